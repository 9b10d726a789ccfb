"""ONNX models: ``import_onnx("model.onnx").save("model.lg")``.

The walk (``lower``) reads each node once: values known at import are computed at once
(``folding``), other nodes become tensor operations by a row of the operator tables (``ops_*``) or
are expanded by their function body. What is not supported is reported all at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend.onnx.names import clean
from lumc.frontend.onnx.problems import unsupported
from lumc.graph.dim import Dim

if TYPE_CHECKING:
    from lumc.frontend.api.model import Model
    from lumc.frontend.onnx.load import Source
    from lumc.frontend.onnx.lower import Lowering, Names
    from lumc.graph.dim import Extent

MAX_DIM = 1 << 16  # the upper bound of a dynamic dim that nothing else bounds
Dims = Mapping[str, int | tuple[int, int] | Dim]
Array = np.ndarray[Any, Any]


def import_onnx(
    path: str | Path,
    dims: Dims | None = None,
    copy: bool = False,
    values: Mapping[str, Array] | None = None,
    counts: Mapping[str, int] | None = None,
) -> Model:
    """The model in an ONNX file. Raises E0201 and E0310 to E0314.

    ``dims`` gives dynamic dims a value, or bounds; the others become symbolic dims. ``values``
    makes inputs constants. ``counts`` says, by the names of nodes, how many positions NonZero and
    NonMaxSuppression give. Weights always go to the safetensors file beside the saved graph, as
    ONNX files cannot be referenced; ``copy`` changes nothing.
    """
    from lumc.frontend.onnx.load import read_model

    return import_source(read_model(Path(path)), dims or {}, values or {}, counts or {})


def import_source(
    source: Source, dims: Dims, values: Mapping[str, Array], counts: Mapping[str, int]
) -> Model:
    """The model of an ONNX file that was read already.

    Where the model shows that a free dim has a smaller bound, the import starts again with it.
    """
    return import_offered(source, dims, values, {}, counts=counts).model


@dataclass(frozen=True)
class Imported:
    """``inputs`` of the ONNX model, by name, are those of ``model``, by name. The others are
    ``known``: the model holds for these values of theirs only. ``outputs`` are in order; a sequence
    has the names of its elements, an optional that is none has none. Those of ``codes``, inputs
    and outputs by their names in the model, stand for elements of an ONNX data type."""

    model: Model
    inputs: Mapping[str, Names]
    known: Mapping[str, Array]
    outputs: Sequence[Names]
    codes: Mapping[str, int]


def import_offered(
    source: Source,
    dims: Dims,
    values: Mapping[str, Array],
    offered: Mapping[str, Array],
    lists: Mapping[str, Any] | None = None,
    counts: Mapping[str, int] | None = None,
) -> Imported:
    """The same; of the ``offered`` inputs those become known without which the graph is not, such
    as a shape to reshape to. Sequences and optionals are as long as those of ``lists``: lists of
    arrays, or None."""
    from lumc.frontend.onnx import tables  # noqa: F401  registers the operators
    from lumc.frontend.onnx.registry import Bind, Tighten

    limits, taken = dict[str, int](), dict(values)
    while True:
        try:
            return _attempt(source, dims, limits, taken, offered, lists or {}, counts or {})
        except Tighten as t:
            limits[t.dim] = t.high
        except Bind as b:
            taken |= {name: offered[name] for name in b.inputs}


def _attempt(
    source: Source,
    dims: Dims,
    limits: Mapping[str, int],
    values: Mapping[str, Array],
    offered: Mapping[str, Array],
    lists: Mapping[str, Any],
    counts: Mapping[str, int],
) -> Imported:
    from lumc.frontend.api.model import Model
    from lumc.frontend.api.symbols import Arithmetic
    from lumc.frontend.onnx.edges import finish
    from lumc.frontend.onnx.folding import Folder
    from lumc.frontend.onnx.lower import Lowering, Scope

    model = Model()
    folder = Folder(Arithmetic(model.dims))
    lowering = Lowering(source, model, folder, offered, lists, counts)
    lowering.functions = {(f.domain, f.name): f for f in source.model.functions}
    graph = source.model.graph
    scope = Scope(source.opsets, _initializers(lowering))
    _inputs(lowering, scope.values, dims, limits, values)
    outputs = [o.name for o in graph.output]
    lowering.walk(graph.node, scope, outputs)
    if lowering.problems:
        raise unsupported(source, lowering.problems)
    if left := sorted(set(counts) - lowering.counted):
        fix = "name nodes NonZero and NonMaxSuppression of values that are not constant"
        raise _usage(f"no count is asked of {', '.join(left)}", str(source.path), fix)
    names = finish(lowering, graph.output, scope.values)
    return Imported(model, lowering.inputs, values, names, lowering.codes)


def free_inputs(source: Source) -> list[Any]:
    """The inputs of an ONNX graph that no initializer gives a value, in order."""
    given = {t.name for t in source.model.graph.initializer}
    return [i for i in source.model.graph.input if i.name not in given]


def _initializers(lowering: Lowering) -> dict[str, Any]:
    """Weights of the file as arrays; only those that something reads."""
    from lumc.frontend.onnx.load import malformed, tensor_value
    from lumc.frontend.onnx.protos import captured

    source = lowering.source
    graph = source.model.graph
    read = {name for node in graph.node for name in (*node.input, *captured(node))}
    read |= {o.name for o in graph.output}
    if any(t.values.name in read for t in graph.sparse_initializer):
        raise malformed("sparse initializers are not supported", str(source.path))
    values: dict[str, Any] = {}
    for tensor in graph.initializer:
        if tensor.name in read:
            values[tensor.name] = tensor_value(tensor, source.path)
            lowering.titles[id(values[tensor.name])] = tensor.name
    return values


# ---- inputs and their dims


def _inputs(
    lowering: Lowering,
    scope: dict[str, Any],
    dims: Dims,
    limits: Mapping[str, int],
    values: Mapping[str, Array],
) -> None:
    """Declare the inputs, or take their given values."""
    from lumc.frontend.onnx.edges import declared

    path = str(lowering.source.path)
    inputs = free_inputs(lowering.source)
    names = [i.name for i in inputs]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise _usage(f"no input is named {', '.join(unknown)}", path, f"one of: {', '.join(names)}")
    shapes = _shapes(lowering, inputs, dims, limits, values)
    for value in inputs:
        if value.name in values:
            scope[value.name] = np.asarray(values[value.name])
        else:
            scope[value.name] = declared(lowering, value, shapes[value.name])


def dynamic_dims(inputs: Sequence[Any], path: str) -> dict[tuple[str, int], str]:
    """The names of the dims that inputs leave open, by input and axis. Raises E0311."""
    dynamic = {}
    for value in inputs:
        for i, d in enumerate(value.type.tensor_type.shape.dim):
            if d.dim_value < -1:
                what = f"input '{value.name}' has an extent of {d.dim_value}"
                fix = "give that dim a name (dim_param) if it is dynamic"
                raise LumcError("E0311", what, where=path, fix=fix, exit=Exit.CORRUPT)
            if d.dim_value == -1 or not d.HasField("dim_value"):  # -1 as Paddle writes it
                named = d.dim_param.strip("?")  # "?" is another dim at every place
                name = clean(named or f"{value.name}_{i}")
                dynamic[value.name, i] = name.replace(".", "_")
    return dynamic


def _shapes(
    lowering: Lowering,
    inputs: Sequence[Any],
    dims: Dims,
    limits: Mapping[str, int],
    values: Mapping[str, Array],
) -> dict[str, list[Extent]]:
    """Extents of the inputs without a value; dynamic ones become symbolic dims unless ``dims``
    binds them."""
    path = str(lowering.source.path)
    dynamic = dynamic_dims(inputs, path)
    unknown = sorted(set(dims) - set(dynamic.values()))
    if unknown:
        known = ", ".join(sorted(set(dynamic.values()))) or "none, all dims are static"
        raise _usage(f"no dim is named {', '.join(unknown)}", path, f"one of: {known}")
    extents: dict[str, Extent] = {}
    taken = {clean(i.name) for i in inputs}
    free = [i for i in inputs if i.name not in values]
    for name in dict.fromkeys(n for (value, _), n in dynamic.items() if value not in values):
        bound = dims.get(name, (1, MAX_DIM))
        if isinstance(bound, int):
            extents[name] = bound
        else:
            title = name + "_" * (name in taken)
            d = bound if isinstance(bound, Dim) else Dim(title, *bound)
            high = min(d.hi, limits.get(title, d.hi))
            extents[name] = lowering.model.dim(title, d.lo, high, d.multiple)
    return {
        value.name: [
            extents[dynamic[value.name, i]] if (value.name, i) in dynamic else int(d.dim_value)
            for i, d in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in free
    }


def _usage(what: str, where: str, fix: str) -> LumcError:
    return LumcError("E0314", what, where=where, fix=fix, exit=Exit.USAGE)
