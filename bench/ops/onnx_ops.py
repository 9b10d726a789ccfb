"""ONNX nodes as the common exporters write them, so that the runtimes' fusions apply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20  # the first with Gelu
ELEMENT = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("int64"): TensorProto.INT64}
Shape = tuple[int, ...]


@dataclass
class Graph:
    """Nodes and constants in the order they are made."""

    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def input(self, name: str, value: np.ndarray) -> Value:
        info = helper.make_tensor_value_info(name, ELEMENT[value.dtype], value.shape)
        self.inputs.append(info)
        return Value(self, name, value.shape)

    def constant(self, value: Any, dtype: Any = np.float32) -> Value:
        array = np.ascontiguousarray(value, dtype).reshape(np.shape(value))
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return Value(self, name, array.shape, array)

    def add(self, op: str, args: Sequence[Value], shape: Sequence[int], **attributes: Any) -> Value:
        name = f"t{len(self.nodes)}"
        names = [a.name for a in args]
        self.nodes.append(helper.make_node(op, names, [name], **attributes))
        return Value(self, name, tuple(shape))

    def save(self, outputs: Sequence[Value], path: Path) -> None:
        results = [
            helper.make_tensor_value_info(y.name, TensorProto.FLOAT, y.shape) for y in outputs
        ]
        graph = helper.make_graph(self.nodes, path.stem, self.inputs, results, self.constants)
        opset = helper.make_opsetid("", OPSET)
        onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))


@dataclass(frozen=True)
class Value:
    graph: Graph
    name: str
    shape: Shape
    array: np.ndarray | None = None  # of a constant

    def _binary(self, op: str, other: Any, swap: bool = False) -> Value:
        y = other if isinstance(other, Value) else self.graph.constant(other)
        args = (y, self) if swap else (self, y)
        return self.graph.add(op, args, np.broadcast_shapes(self.shape, y.shape))

    def __add__(self, other: Any) -> Value:
        return self._binary("Add", other)

    def __sub__(self, other: Any) -> Value:
        return self._binary("Sub", other)

    def __mul__(self, other: Any) -> Value:
        return self._binary("Mul", other)

    def __truediv__(self, other: Any) -> Value:
        return self._binary("Div", other)

    def __radd__(self, other: Any) -> Value:
        return self._binary("Add", other, swap=True)

    def __rmul__(self, other: Any) -> Value:
        return self._binary("Mul", other, swap=True)

    def __neg__(self) -> Value:
        return self.graph.add("Neg", [self], self.shape)

    def __matmul__(self, other: Value) -> Value:
        lead = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        return self.graph.add("MatMul", [self, other], (*lead, self.shape[-2], other.shape[-1]))


def _same(op: str, x: Value, **attributes: Any) -> Value:
    return x.graph.add(op, [x], x.shape, **attributes)


def exp(x: Value) -> Value:
    return _same("Exp", x)


def log(x: Value) -> Value:
    return _same("Log", x)


def tanh(x: Value) -> Value:
    return _same("Tanh", x)


def relu(x: Value) -> Value:
    return _same("Relu", x)


def rsqrt(x: Value) -> Value:
    return _same("Reciprocal", _same("Sqrt", x))


def step(x: Value) -> Value:
    positive = x.graph.add("Greater", [x, x.graph.constant(0.0)], x.shape)
    return _same("Cast", positive, to=TensorProto.FLOAT)


def silu(x: Value) -> Value:
    return x * _same("Sigmoid", x)


def gelu(x: Value) -> Value:
    return _same("Gelu", x)


def gelu_tanh(x: Value) -> Value:
    return _same("Gelu", x, approximate="tanh")


def softmax(x: Value) -> Value:
    return _same("Softmax", x, axis=-1)


def _reduced(op: str, x: Value, axis: int) -> Value:
    shape = list(x.shape)
    shape[axis] = 1
    return x.graph.add(op, [x, x.graph.constant([axis], np.int64)], shape, keepdims=1)


def sum(x: Value, axis: int) -> Value:
    return _reduced("ReduceSum", x, axis)


def mean(x: Value, axis: int) -> Value:
    return _reduced("ReduceMean", x, axis)


def max(x: Value, axis: int) -> Value:
    return _reduced("ReduceMax", x, axis)


def layer_norm(x: Value, g: Value, b: Value, eps: float) -> Value:
    return x.graph.add("LayerNormalization", [x, g, b], x.shape, axis=-1, epsilon=eps)


def rms_norm(x: Value, g: Value, eps: float) -> Value:
    square = x.graph.add("Pow", [x, x.graph.constant(2.0)], x.shape)
    return x / _same("Sqrt", mean(square, -1) + eps) * g


def batch_norm(x: Value, mean: Value, variance: Value, g: Value, b: Value, eps: float) -> Value:
    args = [x, g, b, mean, variance]
    return x.graph.add("BatchNormalization", args, x.shape, epsilon=eps)


def permute(x: Value, order: Sequence[int]) -> Value:
    return x.graph.add("Transpose", [x], [x.shape[i] for i in order], perm=list(order))


def reshape(x: Value, shape: Sequence[int]) -> Value:
    return x.graph.add("Reshape", [x, x.graph.constant(shape, np.int64)], shape)


def concat(xs: Sequence[Value], axis: int) -> Value:
    shape = list(xs[0].shape)
    shape[axis] = int(np.sum([x.shape[axis] for x in xs]))
    return xs[0].graph.add("Concat", xs, shape, axis=axis)


def halves(x: Value) -> list[Value]:
    half = x.shape[-1] // 2
    parts = []
    for start in (0, half):
        bounds = ([start], [start + half], [len(x.shape) - 1])
        args = [x, *(x.graph.constant(v, np.int64) for v in bounds)]
        parts.append(x.graph.add("Slice", args, (*x.shape[:-1], half)))
    return parts


def take(table: Value, ids: Value) -> Value:
    return table.graph.add("Gather", [table, ids], (*ids.shape, *table.shape[1:]))


def linear(x: Value, w: Value, b: Value | None = None) -> Value:
    """Gemm of matrices, else MatMul and Add; the kernel is stored transposed for the latter."""
    shape = (*x.shape[:-1], w.shape[0])
    if len(x.shape) == 2:
        return x.graph.add("Gemm", [x, w, *([b] if b else [])], shape, transB=1)
    assert w.array is not None
    y = x @ x.graph.constant(w.array.T)
    return y if b is None else y + b


def conv3x3(x: Value, w: Value) -> Value:
    shape = (x.shape[0], w.shape[0], *x.shape[2:])
    return x.graph.add("Conv", [x, w], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def attention(q: Value, k: Value, v: Value, causal: bool = False) -> Value:
    k, v = (_repeated(t, q.shape[1] // k.shape[1]) for t in (k, v))
    scores = (q @ permute(k, (0, 1, 3, 2))) * (1 / math.sqrt(q.shape[-1]))
    if causal:
        hidden = np.triu(np.full(scores.shape[-2:], np.finfo(np.float32).min, np.float32), 1)
        scores = scores + q.graph.constant(hidden)
    return softmax(scores) @ v


def _repeated(x: Value, groups: int) -> Value:
    """[b, n, s, d] -> [b, n * groups, s, d]."""
    if groups == 1:
        return x
    b, n, s, d = x.shape
    wide = x.graph.add("Unsqueeze", [x, x.graph.constant([2], np.int64)], (b, n, 1, s, d))
    shape = (b, n, groups, s, d)
    wide = x.graph.add("Expand", [wide, x.graph.constant(shape, np.int64)], shape)
    return reshape(wide, (b, n * groups, s, d))
