"""The inputs and outputs of a graph: tensors, and sequences of known length, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.onnx.coded import NAMES, Coded, coded, stored
from lumc.frontend.onnx.load import malformed
from lumc.frontend.onnx.lower import POISON, Names
from lumc.frontend.onnx.names import clean
from lumc.frontend.onnx.problems import INPUT, Problem, unsupported_output
from lumc.frontend.onnx.registry import Unsupported
from lumc.frontend.onnx.values import dtype_of

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Lowering


def declared(lowering: Lowering, value: Any, shape: Sequence[Any]) -> Any:
    """The value of an input; one that cannot be tensors of lumc is a problem."""
    kind = value.type.WhichOneof("value")
    try:
        if kind == "tensor_type":
            if not value.type.tensor_type.HasField("shape"):
                raise Unsupported("an input of unknown rank", "export with shapes")
            found, title = _tensor(lowering, value.type, value.name, shape)
            lowering.inputs[value.name] = title
        elif value.name in lowering.lists:
            given = lowering.lists[value.name]
            found, names = _elements(lowering, value.type, value.name, given)
            lowering.inputs[value.name] = names
        else:
            what = f"an input of type {(kind or 'unknown').replace('_type', '')}, not a tensor"
            raise Unsupported(what, "run it by lumc.onnx_backend, which sees what is given")
    except Unsupported as e:
        opset = lowering.source.opsets.get("", 1)
        lowering.problems.append(Problem(INPUT, value.name, opset, e.reason, e.fix))
        return POISON
    return found


def _tensor(lowering: Lowering, kind: Any, title: str, shape: Sequence[Any]) -> tuple[Any, str]:
    number = kind.tensor_type.elem_type
    dtype = stored(number) if number in NAMES else dtype_of(number)
    name = lowering.unique(clean(title))
    tensor = lowering.model.input(name, shape, dtype)
    if number not in NAMES:
        return tensor, name
    lowering.codes[name] = number
    return Coded(number, tensor), name


def _elements(lowering: Lowering, kind: Any, title: str, given: Any) -> tuple[Any, Names]:
    """What is given for a sequence or an optional, as inputs, and their names."""
    what = kind.WhichOneof("value")
    if what == "optional_type":
        if given is None:
            return None, None
        return _elements(lowering, kind.optional_type.elem_type, title, given)
    if what == "sequence_type" and isinstance(given, list):
        inner = kind.sequence_type.elem_type
        parts = [_elements(lowering, inner, f"{title}_{i}", g) for i, g in enumerate(given)]
        return [p for p, _ in parts], [n for _, n in parts]
    if what != "tensor_type" or not isinstance(given, np.ndarray):
        raise Unsupported(f"a {(what or 'unknown').replace('_type', '')} of what is none")
    return _tensor(lowering, kind, title, given.shape)


def finish(lowering: Lowering, outputs: Sequence[Any], values: Mapping[str, Any]) -> list[Names]:
    """Declare the outputs, those of a sequence as ``y_0``, ``y_1``, ..; gives their names."""
    taken: set[str] = set()
    names = list[Names]()
    for o in outputs:
        value = values.get(o.name)
        if value is None and (o.name not in values or not o.type.HasField("optional_type")):
            raise malformed(f"nothing computes output '{o.name}'", str(lowering.source.path))
        names.append(_finished(lowering, o.name, clean(o.name), value, taken))
    return names


def _finished(lowering: Lowering, name: str, title: str, value: Any, taken: set[str]) -> Names:
    if value is None:
        return None
    if isinstance(value, list):
        parts = enumerate(value)
        return [_finished(lowering, name, f"{title}_{i}", v, taken) for i, v in parts]
    while title in taken:
        title += "_"
    taken.add(title)
    lowering.model.origin = f"output '{name}'"
    try:
        value = coded(lowering, value)
        if isinstance(value, Coded):
            lowering.codes[title], value = value.number, value.tensor
        lowering.model.output(title, lowering.tensor(value))
    except Unsupported as e:
        raise unsupported_output(lowering.source, name, e.reason, e.fix) from None
    return title
