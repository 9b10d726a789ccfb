"""Programs of torch.export that are in memory: ``model_of(torch.export.export(module, args))``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.pick import stored
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten import tables  # noqa: F401  registers the operators
from lumc.frontend.aten.assemble import Leaf, assemble
from lumc.frontend.aten.fx import Tracer, array_of, dtype_of, size_of
from lumc.frontend.aten.lower import Wrong
from lumc.frontend.aten.program import Foreign, Program
from lumc.frontend.aten.reading import result_names
from lumc.frontend.aten.sizes import Unknown
from lumc.graph.dim import Extent
from lumc.graph.expr import dim
from lumc.graph.ops import DType

MAX_DIM = 1 << 16  # the upper bound of a dim that the export leaves open
WHERE = "torch.export"
TENSORS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


def model_of(exported: Any) -> Model:
    """The model of an ``ExportedProgram``; its parameters are not copied before they are saved.
    Raises E0351 and E0352."""
    model, signature = Model(), exported.graph_signature
    tracer = Tracer(lambda size: size_of(size, dim))
    program, placeholders = tracer.program(exported.graph_module, WHERE)
    metas = {n.name: n.meta.get("val") for n in placeholders}
    specs = {s.arg.name: s for s in signature.input_specs}
    try:
        _declare(model, exported, metas, specs)
        leaves = [_leaf(model, exported, s, metas.get(n)) for n, s in specs.items()]
        leaves += [_constant(model, name, t) for name, t in tracer.attributes.items()]
        assemble(model, _ordered(program, exported, specs), leaves)
    except (Wrong, Unknown) as e:
        raise _refused(str(e), "report it, with the model") from None
    return model


def _refused(what: str, fix: str) -> LumcError:
    return LumcError("E0351", what, where=WHERE, fix=fix, exit=Exit.UNSUPPORTED)


def _ordered(program: Program, exported: Any, specs: Mapping[str, Any]) -> Program:
    """The program with the names that its results have in the module, and what it writes."""
    results, writes, buffers = list[Any](), dict[str, Any](), dict[str, str]()
    buffers = {s.target: name for name, s in specs.items() if s.kind.name == "BUFFER"}
    for spec, value in zip(
        exported.graph_signature.output_specs, program.outputs.values(), strict=True
    ):
        if spec.kind.name == "USER_OUTPUT":
            results.append(value)
        elif spec.kind.name == "BUFFER_MUTATION":
            writes[buffers[spec.target]] = value
        else:
            what = f"an output of the kind {spec.kind.name.lower()}"
            raise _refused(what, "export the model without training")
    pytree: Any = import_module("torch.utils._pytree")
    names = result_names(pytree.treespec_dumps(exported.call_spec.out_spec), len(results))
    outputs = dict(zip(names, results, strict=True))
    kept = frozenset(buffers.values())
    return Program(WHERE, program.nodes, outputs, program.metas, kept, writes)


def _declare(
    model: Model, exported: Any, metas: Mapping[str, Any], specs: Mapping[str, Any]
) -> None:
    """The symbolic dims of the inputs."""
    limits = {str(s): r for s, r in exported.range_constraints.items()}
    names = list[str]()

    def noted(name: str) -> Extent:
        names.append(name)
        return 1

    for name, spec in specs.items():
        if spec.kind.name == "USER_INPUT":
            for size in getattr(metas.get(name), "shape", ()):
                size_of(size, noted)
    for name in dict.fromkeys(names):
        bound = limits.get(name)
        low, high = (_end(bound, "lower", 1), _end(bound, "upper", MAX_DIM))
        model.dim(name, max(low, 1), min(high, MAX_DIM))


def _end(bound: Any, which: str, default: int) -> int:
    """An end of a range of torch, which may be infinite."""
    try:
        return int(getattr(bound, which))
    except (AttributeError, OverflowError, TypeError, ValueError):
        return default


def _leaf(model: Model, exported: Any, spec: Any, meta: Any) -> Leaf:
    name, kind = spec.arg.name, spec.kind.name
    if kind == "USER_INPUT":
        if not hasattr(meta, "shape"):
            value = getattr(spec.arg, "value", meta)
            if value is not None and not isinstance(value, bool | int | float | str):
                raise _refused(f"input '{name}' is a number that runs choose", "make it a tensor")
            return Leaf(name, name, lambda _: value)
        shape = [size_of(size, dim) for size in meta.shape]
        dtype = _dtype(meta.dtype, name)
        return Leaf(name, name, lambda title: model.input(title, shape, dtype), always=True)
    if kind not in TENSORS:
        raise _refused(f"an input of the kind {kind.lower()}", "export the model without it")
    tensor = exported.state_dict.get(spec.target)
    tensor = exported.constants.get(spec.target) if tensor is None else tensor
    leaf = _constant(model, name, tensor, spec.target)
    return (
        leaf
        if kind != "BUFFER"
        else Leaf(name, spec.target, leaf.value, False, _state(model, spec.target, tensor))
    )


def _dtype(kind: Any, name: str) -> DType:
    found = dtype_of(kind)
    if isinstance(found, Foreign):
        raise _refused(f"'{name}' is of {found.says}", "use another dtype")
    return found


def _constant(model: Model, name: str, tensor: Any, title: str = "") -> Leaf:
    """A tensor of the module, by its values."""

    def made(free: str) -> Tensor:
        found: Tensor = stored(model, array_of(tensor), free, _dtype(tensor.dtype, name))
        return found

    return Leaf(name, title or name, made)


def _state(model: Model, name: str, tensor: Any) -> Callable[[str], Tensor]:
    def made(title: str) -> Tensor:
        if np.any(array_of(tensor)):
            what = f"buffer '{name}' is changed by a run, and is not zero at first"
            raise _refused(what, "start with a buffer of zeros")
        return model.state(title, tuple(tensor.shape), _dtype(tensor.dtype, name))

    return made
