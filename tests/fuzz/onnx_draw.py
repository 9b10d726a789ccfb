"""Random ONNX graphs: nodes are drawn one after the other and computed at once, so that shapes and
types are known and values stay where functions are not steep.

A value is an array in several worlds: as the onnx package's reference evaluates it, and again with
every float on the way changed by a little. How far apart the worlds are says how far a right
result may be off; what differs without being a float (a comparison, a position) is not judged.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
Worlds = tuple[Array, ...]
FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
KINDS = (*FLOATS, *INTEGERS, "bool")
COMMON = (*["float32"] * 9, "float64", "float16", *["int64"] * 2, *INTEGERS, "bool")
SIGNS = (0.0, 1.0, -1.0, 2.0, 3.0)  # worlds: as it is, all up, all down, at random twice
CHANGE = {"float32": 2.0**-20, "float64": 2.0**-20, "float16": 2.0**-9}
POSITION = {"float32": 2.0**-24, "float64": 2.0**-24, "float16": 2.0**-11}  # its last bit
LARGEST = {"float16": 1e3}  # of float results: beyond it, functions are steep
MOST = 2_000  # elements of a value
OPSETS = (13, 17, 18, 19, 20, 21, 22, 23)


class Rejected(Exception):
    """A node that is no test: not valid, without a meaning, or too steep."""


def changed(name: str, value: Array, world: int) -> Array:
    """A float a little off, as the rounding of another order of operations might leave it.

    By its name at random: values that are equal but for rounding are in one order here, in
    another there.
    """
    if value.dtype.name not in CHANGE or not SIGNS[world]:
        return value
    size, sign = CHANGE[value.dtype.name], SIGNS[world]
    if abs(sign) > 1:
        sign = np.random.default_rng([world, crc32(name.encode())]).uniform(-1, 1, value.shape)
    return np.asarray(value * (1 + size * np.asarray(sign)), value.dtype)


def around(name: str, array: Array) -> Worlds:
    """A leaf in every world."""
    return (array,) if name[0] == "k" else tuple(changed(name, array, i) for i in range(len(SIGNS)))


def compute(node: Any, worlds: Sequence[Worlds | None], opset: int) -> list[Worlds]:
    """What a node gives in every world. Raises Rejected."""
    names = [n for n in node.input if n]
    given = [w for w in worlds if w is not None]
    results = list[list[Array]]()
    count = max((len(w) for w in given), default=1)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            run = _evaluator(node, opset)
            for i in range(count):
                # copies: some operators of the reference write into what they are given
                feed = {n: w[min(i, len(w) - 1)].copy() for n, w in zip(names, given, strict=True)}
                results.append([np.asarray(r) for r in run.run(None, feed)])
    except Exception as e:  # the reference has no common class of errors
        raise Rejected(f"the reference: {e}") from None
    out = list[Worlds]()
    for k, first in enumerate(results[0]):
        whole = tuple(r[k] for r in results)
        if any(w.shape != first.shape for w in whole):
            raise Rejected("a shape that rounding decides")
        if first.dtype.name not in KINDS or first.size > MOST:
            raise Rejected("a type or size that is not tried")
        if first.dtype.kind == "f" and not _tame(whole):
            raise Rejected("values that are not tame")
        if first.dtype.kind == "f" and count == 1:  # of constants: rounded all the same
            whole = whole * len(SIGNS)
        if node.op_type == "Resize" and len(whole) == len(SIGNS):
            whole = _resized(given[0][0], whole)
        out.append(tuple(changed(node.output[k], w, i) for i, w in enumerate(whole)))
    return out


def _resized(x: Array, worlds: Worlds) -> Worlds:
    """Positions are rounded to f32 as well: by up to the last bit of the greatest, which moves a
    result as far as neighbours may be apart."""
    if x.dtype.name not in POSITION or not x.size:
        return worlds
    far = POSITION[x.dtype.name] * max(x.shape) * 2.0 * float(np.abs(x).max())
    return tuple(
        np.asarray(w + far * sign, w.dtype) if abs(sign) == 1 else w
        for w, sign in zip(worlds, SIGNS, strict=True)
    )


def _evaluator(node: Any, opset: int) -> Any:
    declared = [onnx.ValueInfoProto(name=n) for n in dict.fromkeys(node.input) if n]
    results = [onnx.ValueInfoProto(name=n) for n in node.output]
    graph = helper.make_graph([node], "g", declared, results)
    opsets = [helper.make_opsetid("", opset)]
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def _tame(worlds: Sequence[Array]) -> bool:
    most = LARGEST.get(worlds[0].dtype.name, 1e4)
    if worlds[0].size and not worlds[0].any():
        return False  # a result that is all zeros says little
    return all(np.isfinite(w).all() and (np.abs(w) < most).all() for w in worlds)


@cache
def types_of(operator: str, opset: int, place: int) -> tuple[str, ...]:
    """The dtypes that an input of an operator may have."""
    schema = onnx.defs.get_schema(operator, opset)
    formal = schema.inputs[min(place, len(schema.inputs) - 1)]
    return tuple(n for n in KINDS if _type_name(n) in formal.types)


def _type_name(kind: str) -> str:
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(kind, kind) })".replace(" ", "")


@dataclass
class Draw:
    """A model that grows: ``nodes``, and every value so far by name."""

    rng: random.Random
    opset: int
    nodes: list[Any] = field(default_factory=list)
    values: dict[str, Worlds] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # results of nodes
    count: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.getrandbits(40))

    # ---- values

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def array(self, name: str) -> Array:
        return self.values[name][0]

    def shape(self, rank: int | None = None, most: int = 6) -> tuple[int, ...]:
        r = self.rng
        rank = r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        return tuple(1 if r.random() < 0.12 else r.randint(2, most) for _ in range(rank))

    def drawn(self, shape: Sequence[int], kind: str, how: str = "") -> Array:
        """Random values: ``how`` is "positive", "unit", or "wide" for all of an integer type."""
        dtype, n = np.dtype(kind), self.numbers
        if kind == "bool":
            return n.random(shape) < 0.5
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            if how == "wide":
                return n.integers(info.min, info.max, shape, dtype, endpoint=True)
            low, high = (1 if how else max(info.min, -9)), 9
            return n.integers(low, high, shape, dtype, endpoint=True)
        if how == "positive":
            return n.uniform(0.25, 3, shape).astype(dtype)
        return n.uniform(-0.95, 0.95, shape).astype(dtype) * dtype.type(1 if how == "unit" else 3)

    def given(self, array: Array, constant: bool | None = None) -> str:
        """A new input of the model ``x1``, a constant ``w2``, or one that is exact ``k3``, such as
        axes and scales."""
        inside = constant if constant is not None else self.rng.random() < 0.3
        name = self.name("k" if constant else "w" if inside else "x")
        (self.constants if inside else self.inputs)[name] = array
        self.values[name] = around(name, array)
        return name

    def fresh(self, shape: Sequence[int], kind: str, how: str = "") -> str:
        return self.given(self.drawn(tuple(shape), kind, how))

    def known(self, *values: int, kind: str = "int64") -> str:
        """A constant list of integers, such as axes."""
        return self.given(np.array(values, kind), constant=True)

    def scalar(self, value: Any, kind: str) -> str:
        return self.given(np.array(value, kind), constant=True)

    def pick(
        self, kinds: Sequence[str], rank: Callable[[int], bool] = lambda r: True, how: str = ""
    ) -> str:
        """A value of one of these dtypes: an earlier one, or a new one."""
        fit = [
            n
            for n, w in self.values.items()
            if n not in self.constants
            and w[0].dtype.name in kinds
            and rank(w[0].ndim)
            and (how != "positive" or (w[0].size and w[0].min() > 0.05))
        ]
        if fit and self.rng.random() < 0.85:
            late = [n for n in fit if n in self.made[-3:]]
            return self.rng.choice(late if late and self.rng.random() < 0.6 else fit)
        common = [k for k in COMMON if k in kinds] or list(kinds)
        ranks = [r for r in (0, 1, 2, 2, 3, 3, 4) if rank(r)]
        size = self.shape(self.rng.choice(ranks))
        kind = self.rng.choice(common)
        wide = kind in INTEGERS and not how and self.rng.random() < 0.15
        return self.fresh(size, kind, "wide" if wide else how)

    def operand(self, operator: str, place: int = 0, **how: Any) -> str:
        """A value that an input of an operator takes."""
        return self.pick(types_of(operator, self.opset, place), **how)

    def beside(self, name: str, how: str = "", kind: str = "") -> str:
        """A value whose shape broadcasts with that of another, and of its dtype."""
        a, r = self.array(name), self.rng
        kind = kind or a.dtype.name
        same = [
            n
            for n, w in self.values.items()
            if w[0].dtype.name == kind and _broadcasts(w[0].shape, a.shape) and not how
        ]
        if same and r.random() < 0.5:
            return r.choice(same)
        shape = [1 if r.random() < 0.25 else n for n in a.shape][r.randint(0, a.ndim) :]
        if a.size and r.random() < 0.15 and a.size < 200:
            shape = [r.randint(1, 3), *a.shape]
        return self.fresh(shape, kind, how)

    def axis(self, rank: int, past: int = 0) -> int:
        """An axis, from either end; ``past`` more positions than there are axes."""
        return self.rng.randint(-rank - past, rank - 1 + past) if rank + past else 0

    def axes(self, rank: int) -> list[int]:
        count = self.rng.randint(1, rank) if rank else 0
        chosen = self.rng.sample(range(rank), count)
        return [a - rank if self.rng.random() < 0.5 else a for a in chosen]

    # ---- nodes

    def add(self, operator: str, inputs: Sequence[str], results: int = 1, **attributes: Any) -> str:
        """A node and its results; the first one's name. Raises Rejected."""
        names = [self.name("t") for _ in range(results)]
        kept = {k: v for k, v in attributes.items() if v is not None and v != []}
        ins = list(inputs)
        while ins and not ins[-1]:
            ins.pop()
        node = helper.make_node(operator, ins, names, name=f"n{self.count}", **kept)
        worlds = [self.values[n] for n in ins if n]
        found = compute(node, worlds, self.opset)
        self.check_types(node, found)
        self.nodes.append(node)
        for name, value in zip(names, found, strict=True):
            self.values[name] = value
            self.made.append(name)
        return names[0]

    def check_types(self, node: Any, found: Sequence[Worlds]) -> None:
        """Raises Rejected where the reference gives another dtype than the standard says."""
        given = {n: self.array(n) for n in node.input if n}
        types = {n: helper.make_tensor_type_proto(number(a), a.shape) for n, a in given.items()}
        data = {n: numpy_helper.from_array(a, n) for n, a in given.items() if n in self.constants}
        schema = onnx.defs.get_schema(node.op_type, self.opset)
        opsets = [helper.make_opsetid("", self.opset)]
        try:
            said = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=opsets, ir_version=10
            )
        except Exception as e:
            raise Rejected(f"inference: {e}") from None
        for name, worlds in zip(node.output, found, strict=True):
            tensor = said[name].tensor_type if name in said else None
            if tensor and tensor.elem_type != number(worlds[0]):
                raise Rejected("the reference has another dtype")
            dims = tensor.shape.dim if tensor else []
            sizes = [x.dim_value if x.HasField("dim_value") else None for x in dims]
            if tensor and tensor.HasField("shape") and len(sizes) != worlds[0].ndim:
                raise Rejected("the reference has another shape")
            if any(a not in (None, b) for a, b in zip(sizes, worlds[0].shape, strict=False)):
                raise Rejected("the reference has another shape")


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(tuple(a), tuple(b)))) <= MOST
    except ValueError:
        return False


def number(array: Array) -> int:
    """Of its dtype in ONNX."""
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def is_float(number: int) -> bool:
    return number in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
