"""The dims of one run: the shapes of its inputs tell them, or the caller does, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lumc.bundle.extents import BY_NAME, BY_SHAPE, COUNTED, Source
from lumc.errors import Exit, LumcError
from lumc.graph.dim import Dim
from lumc.graph.tensor import Tensor


def usage(what: str, fix: str = "") -> LumcError:
    return LumcError("E0610", what, fix=fix, exit=Exit.USAGE)


def values_of(
    dims: Mapping[str, Dim],
    sources: Sequence[Source],
    inputs: Sequence[Tensor],
    arrays: Mapping[str, Any],
    given: Mapping[str, int],
) -> dict[str, int]:
    """A value for every dim. Raises E0610 for one that is missing, is two, or may not be."""
    if unknown := sorted(given.keys() - dims.keys()):
        known = ", ".join(dims) or "none, all shapes are fixed"
        raise usage(f"no dim '{unknown[0]}'", f"dims of the bundle: {known}")
    out = dict[str, int]()
    for d, source in zip(dims.values(), sources, strict=True):
        said, value = given.get(d.name), _told(inputs, source, arrays)
        if source.how == COUNTED and said is not None:
            raise usage(f"dim '{d.name}' counts how often the entry is run through: leave it out")
        if source.how == BY_NAME and said is None:
            what = f"dim '{d.name}' has no value, which no shape of an input tells"
            raise usage(what, f"give it by name, such as {d.name}={d.values[-1]}")
        if value is None:
            value = d.values[0] if said is None else said
        if said not in (None, value):
            where = inputs[source.input].name
            raise usage(f"dim '{d.name}' is {value} in the shape of '{where}', but {said} by name")
        if type(value) is not int or value not in d.values:
            t = inputs[source.input] if said is None else None
            where = f"input '{t.name}' must be {t}: " if t else ""
            raise usage(f"{where}dim {d.name}={value} is not in {d.bounds}")
        out[d.name] = value
    return out


def _told(inputs: Sequence[Tensor], source: Source, arrays: Mapping[str, Any]) -> int | None:
    """What the shape of an input says."""
    if source.how != BY_SHAPE:
        return None
    t = inputs[source.input]
    shape, rest = np.shape(arrays[t.name]), 0
    if len(shape) == len(t.shape):
        value, rest = divmod(int(shape[source.axis]) - source.constant, source.coefficient)
    if rest or len(shape) != len(t.shape):
        raise usage(f"input '{t.name}' must be {t}, got shape {list(shape)}")
    return value
