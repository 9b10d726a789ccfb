"""Between ONNX values and tensors of the model: dtypes, constants, shapes as values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lumc.frontend.api.finish import reachable
from lumc.frontend.api.model import Model
from lumc.frontend.api.pick import stored
from lumc.frontend.api.symbols import Array, Symbolic
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.value import Maker
from lumc.frontend.onnx.registry import Unsupported
from lumc.graph.expr import subterms
from lumc.graph.graph import Entry, Graph, Iota, Node, Read
from lumc.graph.ops import DType, Op
from lumc.oracle.graph import evaluate

MAX_COMPUTED = 1 << 20  # elements that nodes touch to find a value that an operator must know

# ONNX's TensorProto.DataType by its number; the others have no counterpart in lumc
DTYPES = {
    1: DType.F32,
    10: DType.F16,
    16: DType.BF16,
    11: DType.F64,
    7: DType.I64,
    6: DType.I32,
    5: DType.I16,
    3: DType.I8,
    13: DType.U64,
    12: DType.U32,
    4: DType.U16,
    2: DType.U8,
    9: DType.BOOL,
}
NUMBERS = {d: n for n, d in DTYPES.items()}


def dtype_of(number: int) -> DType:
    """The dtype of an ONNX data type number."""
    if number not in DTYPES:
        import onnx

        names = {n: name.lower() for name, n in onnx.TensorProto.DataType.items()}
        raise unsupported_dtype(names.get(number, f"number {number}"))
    return DTYPES[number]


def lumc_dtype(dtype: np.dtype[Any]) -> DType:
    """The dtype of a numpy array, bfloat16 of ml_dtypes included."""
    if dtype.name == "bfloat16":
        return DType.BF16
    for d in DType:
        if d is not DType.BF16 and d.numpy == dtype:
            return d
    raise unsupported_dtype("string" if dtype.kind in "OUS" else dtype.name)


def unsupported_dtype(name: str) -> Unsupported:
    ways = {"string": "do what has strings before the model, or after it"}
    ways |= dict.fromkeys(("complex64", "complex128"), "split it into real and imaginary parts")
    known = ", ".join(d.value for d in DType)
    return Unsupported(f"dtype {name} is not supported", ways.get(name, f"cast it to {known}"))


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype that a known value of this dtype has."""
    if dtype is DType.BF16:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return dtype.numpy


def least_value(dtype: DType) -> float | int:
    """What no element lies below."""
    if dtype.is_float:
        return float("-inf")
    return int(np.iinfo(dtype.numpy.name).min) if dtype.is_int else 0


def constant_tensor(model: Maker, array: Array, name: str = "") -> Tensor:
    """An array as a constant or weight of the model; equally spaced ints need no storage."""
    dtype = lumc_dtype(array.dtype)
    return stored(model, array.view(np.uint16) if dtype is DType.BF16 else array, name, dtype)


def symbolic_tensor(model: Model, value: Symbolic) -> Tensor:
    """Integers that depend on dims, as a tensor: a sum of one-hot terms."""
    dtype = lumc_dtype(value.dtype)
    flat = list(value.array.ravel())
    if not value.shape:
        return model.size(flat[0], dtype)
    place = model.arange(len(flat), dtype=dtype)
    terms = [(place == i) * model.size(e, dtype) for i, e in enumerate(flat)]
    return sum(terms[1:], terms[0]).reshape(value.shape)


def inputs_of(tensor: Tensor) -> list[str]:
    """The names of the inputs of the model that a tensor depends on, sorted."""
    if not isinstance(tensor.operand, Read):
        return []
    return sorted(n.name for n in reachable([tensor.operand.source]) if n.op == "input")


def constant_value(model: Model, tensor: Tensor) -> Array | None:
    """The value of a tensor that depends on no input or dim, by the oracle; None for others."""
    whole = model.emit(Op.CONTIGUOUS, [tensor], dtype=tensor.dtype, whole=True).operand
    assert isinstance(whole, Read)
    inside = reachable([whole.source])
    if not all(_is_constant(n) for n in inside):
        return None
    if sum(math.prod(e for _, e in n.loops if isinstance(e, int)) for n in inside) > MAX_COMPUTED:
        return None
    nodes = tuple(n for n in model.builder.nodes if n in inside)
    weights = tuple(n for n in model.builder.weights if n in inside)
    graph = Graph({}, weights, (), (Entry("main", (), nodes, (("value", whole.source),)),))
    outputs, _ = evaluate(graph, "main", {}, model.read_weight, declared=True)
    return outputs["value"]


def _is_constant(node: Node) -> bool:
    """Whether a node is a weight or an operation, and free of symbolic dims."""
    indices = [b.index for o in node.operands for b in o.bounds]
    for o in node.operands:
        indices += [o.index] if isinstance(o, Iota) else o.index if isinstance(o, Read) else []
    static = all(isinstance(e, int) for _, e in node.loops)
    free = not any(t.kind == "dim" for e in indices for t in subterms(e))
    return static and free and node.op not in ("input", "state")
