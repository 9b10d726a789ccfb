"""Random graphs, written with the Tensor API: what the differential test is made of.

Every value carries what is known of it - the interval of its finite elements, whether they are
integers that any order of operations computes exactly, whether NaN and infinities may be among
them - so that only meaningful operations are drawn: no logarithm of a negative number, no
comparison that rounding could decide, no product whose NaN a law may move (rules/README.md).
Names of leaves say what values they get (``leaf_values``), so the text of a graph reproduces it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend import Model, Tensor, concat, stack, where
from lumc.graph.graph import Graph, Node, Read, Scalar, WeightFile
from lumc.graph.ops import UNSIGNED, DType, Op, to_bf16

Array = np.ndarray[Any, Any]
FILE = WeightFile("weights.safetensors", 8, "0" * 64)
FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
EXACT = {DType.F32: 24, DType.F64: 53, DType.F16: 11, DType.BF16: 8}  # bits of exact integers
LARGEST = {DType.F16: 2e3}  # of other floats 1e5
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0])
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 33)
WIDE = (24, 31, 32, 40, 48, 64, 65, 70, 96, 100, 130, 200, 257)
MAX_SIZE, MAX_POINTS = 8_000, 400_000

# what leaves hold: by the first word of their names, after "w_" for weights and "s_" for states
KINDS = {
    "real": (-2.0, 2.0),
    "pos": (0.5, 2.0),
    "whole": (-3, 3),
    "index": (0, 4),
    "special": (-3.0, 3.0),
    "tiny": (-2.0, 2.0),  # some of them denormal
    "huge": (-2.0, 2.0),  # some of them near the end of the range
    "wrap": (0, 0),  # integers of the whole range
    "mask": (0, 1),
}
POWERS = {DType.F32: 126, DType.F64: 1022, DType.F16: 14, DType.BF16: 126}  # of normal numbers


def leaf_values(node: Node, seed: int) -> Array:
    """The values of a leaf: they follow from its name, its dtype and the seed."""
    kind = node.name.removeprefix("w_").removeprefix("s_").partition("_")[0]
    if kind not in KINDS:  # what was a value of the graph before it was reduced
        kind = "mask" if node.dtype is DType.BOOL else "whole" if node.dtype.is_int else "real"
    rng = np.random.default_rng([seed, *node.name.encode()])
    shape = tuple(int(str(n)) for n in node.shape)
    low, high = KINDS[kind]
    if kind == "mask":
        return np.asarray(rng.random(shape) < 0.6)
    if kind in ("whole", "index"):
        values: Array = rng.integers(
            0 if node.dtype in UNSIGNED else int(low), int(high) + 1, shape
        )
    else:
        values = rng.uniform(low, high, shape)
    if kind in ("tiny", "huge"):
        power = POWERS[node.dtype] * (1 if kind == "huge" else -1)
        far = np.ldexp(values, power - rng.integers(0, 8, shape))
        values = np.where(rng.random(shape) < 0.7, values, far)
    if kind == "wrap":
        values = rng.integers(*node.dtype.limits, shape, node.dtype.numpy, endpoint=True)
    if kind == "special":
        values = np.where(rng.random(shape) < 0.7, values, rng.choice(SPECIAL, shape))
    if node.dtype is DType.BF16:
        return to_bf16(values)
    return np.asarray(values).astype(node.dtype.numpy)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor and what is known of its elements."""

    tensor: Tensor
    low: float
    high: float
    whole: bool = False  # integers, exact in any order of operations
    special: bool = False  # NaN and infinities may be among them
    summed: bool = False  # a sum below: a special value must not multiply it
    product: bool = False  # a product below: of special values it must not be summed

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(str(e)) for e in self.tensor.shape)

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))

    @property
    def comparable(self) -> bool:
        """Rounding cannot change what a comparison gives."""
        return self.whole or is_unrounded(self.tensor.operand)


def is_unrounded(operand: Any) -> bool:
    """Elements of leaves, only chosen among and copied."""
    if isinstance(operand, Scalar):
        return not operand.dtype.is_float or float(operand.value).is_integer()
    if not isinstance(operand, Read) or not operand.source.dtype.is_float:
        return True
    node = operand.source
    if node.is_leaf or node.op is Op.MAX:
        return all(map(is_unrounded, node.operands))
    if node.op is Op.CONTIGUOUS:
        return node.operands[0].dtype is node.dtype and is_unrounded(node.operands[0])
    if node.op is Op.MUL and node.operands[0].dtype is DType.BOOL:
        return is_unrounded(node.operands[1])
    if node.op is Op.MUL:
        by = [o.value for o in node.operands if isinstance(o, Scalar)]
        return by == [-1] and all(map(is_unrounded, node.operands))
    return False


@dataclass(frozen=True)
class Profile:
    """What graphs are made of: how large, and which operations."""

    steps: tuple[int, int] = (2, 9)
    dtypes: tuple[DType, ...] = (DType.F32, DType.F32, DType.F32, DType.F64, DType.F16, DType.BF16)
    special: bool = False
    only: tuple[str, ...] = ()  # names of operations; all if empty
    wide: bool = False  # larger extents


@dataclass
class Writer:
    """One graph being written."""

    rng: random.Random
    profile: Profile
    model: Model = field(default_factory=Model)
    pool: list[Value] = field(default_factory=list)
    shared: list[Value] = field(default_factory=list)  # weights and states
    states: list[tuple[Tensor, Value]] = field(default_factory=list)
    serial: int = 0

    # ---- choices

    def pick(self, items: Sequence[Any]) -> Any:
        return self.rng.choice(items)

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def permutation(self, items: Iterable[Any]) -> list[Any]:
        items = list(items)
        return self.rng.sample(items, len(items))

    def extent(self) -> int:
        if self.profile.wide and self.chance(40):
            return int(self.pick(WIDE))
        return int(self.pick(EXTENTS)) if not self.chance(1) else 0

    def shape(self, most: int = 4) -> tuple[int, ...]:
        rank = self.number(0, most) if self.chance(20) else self.number(2, min(3, most))
        shape = [self.extent() for _ in range(rank)]
        while math.prod(shape) > MAX_SIZE:
            shape[shape.index(max(shape))] //= 2
        return tuple(shape)

    def value(self, accept: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value that fits, later ones more often."""
        fits = [v for v in self.pool if accept(v)]
        if not fits:
            return None
        return fits[-1 - min(int(self.rng.expovariate(0.6)), len(fits) - 1)]

    # ---- leaves

    def leaf(self, kind: str, dtype: DType, shape: Sequence[int], role: str = "") -> Value:
        """A new input, or with a role ``w_`` a weight, ``s_`` a state."""
        name = f"{role}{kind}_{self.serial}"
        self.serial += 1
        if role == "w_":
            tensor = self.model.weight(name, shape, dtype, FILE)
        elif role == "s_":
            tensor = self.model.state(name, shape, dtype)
        else:
            tensor = self.model.input(name, shape, dtype)
        low, high = KINDS[kind]
        low = 0 if dtype in UNSIGNED else low
        value = Value(
            tensor, low, high, dtype.is_int or kind in ("whole", "mask"), kind == "special"
        )
        (self.shared if role else self.pool).append(value)
        if role:
            self.pool.append(value)
        return value

    def kind_of(self, dtype: DType) -> str:
        if dtype is DType.BOOL:
            return "mask"
        if dtype.is_int:
            return str(self.pick(("whole", "index")))
        if self.profile.special:
            return str(self.pick(("special", "special", "real")))
        return str(self.pick(("real", "real", "pos", "whole")))

    def any_leaf(self, shape: Sequence[int] | None = None, dtype: DType | None = None) -> Value:
        if dtype is None:
            others = (DType.I64, DType.I32, DType.BOOL, DType.I8, DType.U8)
            dtype = self.pick(others) if self.chance(20) else self.pick(self.profile.dtypes)
        role = "w_" if self.chance(30) else ""
        shape = self.shape() if shape is None else shape
        return self.leaf(self.kind_of(dtype), dtype, shape, role)

    # ---- results

    def made(
        self,
        tensor: Tensor,
        low: float,
        high: float,
        whole: bool = False,
        special: bool = False,
        summed: bool = False,
        product: bool = False,
    ) -> Value | None:
        """The value, if its elements and their number are reasonable."""
        shape = [int(str(e)) for e in tensor.shape]
        if math.prod(shape) > MAX_SIZE or len(shape) > 6:
            return None
        if tensor.dtype is DType.BOOL:
            return Value(tensor, 0, 1, True)
        if tensor.dtype.is_int:
            least, most = tensor.dtype.limits
            if low < least or high > most:
                low, high = least, most
            return Value(tensor, low, high, True)
        size = max(abs(low), abs(high))
        if size > LARGEST.get(tensor.dtype, 1e5):
            return None
        whole = whole and size < 1 << EXACT[tensor.dtype]
        return Value(tensor, low, high, whole, special, summed, product)

    def like(self, tensor: Tensor, *of: Value, **changes: Any) -> Value | None:
        """A value that lies between the least and the greatest of others."""
        known = {
            "low": min(v.low for v in of),
            "high": max(v.high for v in of),
            "whole": all(v.whole for v in of),
            "special": any(v.special for v in of),
            "summed": any(v.summed for v in of),
            "product": any(v.product for v in of),
        }
        return self.made(tensor, **{**known, **changes})

    def fitted(self, v: Value, shape: Sequence[int]) -> Value | None:
        """Another value moved to a shape that broadcasts against ``shape``."""
        t = v.tensor
        while t.ndim > len(shape):
            t = t[self.number(0, max(0, int(str(t.shape[0])) - 1))] if t.shape[0] else t.sum(0)
        want = shape[len(shape) - t.ndim :]
        for i, n in enumerate(want):
            have = int(str(t.shape[i]))
            if have in (1, n):
                continue
            if have > n:
                start = self.number(0, have - n)
                t = t[(*[slice(None)] * i, slice(start, start + n))]
            elif have == 0 or self.chance(50):
                widths = [(0, 0)] * t.ndim
                before = self.number(0, n - have)
                widths[i] = (before, n - have - before)
                t = t.pad(widths)
            else:
                t = t[(*[slice(None)] * i, slice(0, 1))]
        return self.like(t, v, low=min(v.low, 0), high=max(v.high, 0))

    def partner(self, v: Value, accept: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A second operand of the same dtype that broadcasts against ``v``."""
        mixed = self.chance(10)

        def fits(o: Value) -> bool:
            return accept(o) and (o.dtype is v.dtype or (mixed and o.dtype is not DType.BOOL))

        other = self.value(fits) if self.chance(70) else None
        if other is None:
            if v.dtype is DType.BOOL or not accept(v):
                return None
            shape = [n if self.chance(70) else 1 for n in v.shape]
            shape = shape[self.number(0, len(shape)) :] if self.chance(30) else shape
            other = self.any_leaf(shape, v.dtype)
            if not accept(other):
                return None
        return self.fitted(other, v.shape)


OPERATIONS: dict[str, Callable[[Writer], Value | None]] = {}
IN_SPECIAL: set[str] = set()
WEIGHTS: dict[str, int] = {}
Operation = Callable[[Writer], Value | None]


def operation(weight: int = 2, special: bool = False) -> Callable[[Operation], Operation]:
    def register(f: Operation) -> Operation:
        OPERATIONS[f.__name__] = f
        WEIGHTS[f.__name__] = weight
        if special:
            IN_SPECIAL.add(f.__name__)
        return f

    return register


def is_float(v: Value) -> bool:
    return v.dtype.is_float


def is_number(v: Value) -> bool:
    return v.dtype is not DType.BOOL


def corners(f: Callable[[float, float], float], a: Value, b: Value) -> tuple[float, float]:
    found = [f(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(found), max(found)


# ---- elementwise


@operation(4, special=True)
def functions(w: Writer) -> Value | None:
    """A function of one variable, in its domain."""
    v = w.value(is_float)
    if v is None:
        return None
    x, lo, hi = v.tensor, v.low, v.high
    found: list[Callable[[], tuple[Tensor, float, float]]] = []
    if hi <= 12:
        found.append(lambda: (x.exp2(), 0.0 if v.special else 2.0**lo, 2.0**hi))
    if hi <= 8:
        found.append(lambda: (x.exp(), 0.0, math.exp(hi)))
        found.append(lambda: (x.sigmoid(), 0.0, 1.0))
        found.append(lambda: (x.softplus(), 0.0, max(hi, 0) + 1))
    if lo >= 0.01:
        found.append(lambda: (x.log2(), math.log2(lo), math.log2(hi)))
        found.append(lambda: (x.log(), math.log(lo), math.log(hi)))
        found.append(lambda: (x.rsqrt(), hi**-0.5, lo**-0.5))
    if lo >= 0.05 or hi <= -0.05:
        found.append(lambda: (x.reciprocal(), min(1 / lo, 1 / hi), max(1 / lo, 1 / hi)))
    if lo >= 0 or v.special:
        found.append(lambda: (x.sqrt(), math.sqrt(max(lo, 0)), math.sqrt(max(hi, 0))))
    if v.size <= 30:
        found.append(lambda: (x.sin(), -1.0, 1.0))
        if not v.special:
            found.append(lambda: (x.cos(), -1.0, 1.0))
            found.append(lambda: (x.gelu(), min(lo, -0.2), max(hi, 0.0)))
            found.append(lambda: (x.tanh(), -1.0, 1.0))
            found.append(lambda: (x.silu(), min(lo, -0.3), max(hi, 0.0)))
    f = w.pick(found) if found else None
    if f is None:
        return None
    tensor, low, high = f()
    return w.like(tensor, v, low=low, high=high, whole=False, product=True)


@operation(3, special=True)
def signs(w: Writer) -> Value | None:
    """Pieces that compare with zero: of values that are continuous there, or known exactly."""
    v = w.value(is_number)
    if v is None:
        return None
    x, size = v.tensor, v.size
    found = [lambda: (-x, -v.high, -v.low)]
    if is_float(v) and not v.special:
        found += [lambda: (x.relu(), 0.0, max(v.high, 0.0)), lambda: (x.abs(), 0.0, size)]
        found += [lambda: (x.leaky_relu(0.25), v.low, max(v.high, 0.0))]
        found += [lambda: (x.clip(-1, 1.5), -1.0, 1.5)]
    if v.comparable and not v.special:
        found += [lambda: (x.sign(), -1.0, 1.0), lambda: (x.floor(), v.low - 1, v.high)]
    tensor, low, high = w.pick(found)()
    return w.like(tensor, v, low=low, high=high)


@operation(4, special=True)
def scaled(w: Writer) -> Value | None:
    """With a number."""
    v = w.value(is_number)
    if v is None:
        return None
    c = w.pick((2, 3, -1, 5, -2)) if v.dtype.is_int else w.pick((2.0, -1.0, 0.5, 1.5, -0.1, 3.0))
    whole = v.whole and c == int(c)
    if w.chance(50):
        return w.like(v.tensor + c, v, low=v.low + c, high=v.high + c, whole=whole)
    ends = sorted((v.low * c, v.high * c))
    return w.like(v.tensor * c, v, low=ends[0], high=ends[1], whole=whole)


@operation(6, special=True)
def arithmetic(w: Writer) -> Value | None:
    v = w.value(is_number)
    other = w.partner(v) if v else None
    if v is None or other is None:
        return None
    a, b = (v, other) if w.chance(70) else (other, v)
    x, y = a.tensor, b.tensor
    name = w.pick(("add", "sub", "mul", "mul", "max", "min"))
    if name == "mul":
        special = a.special or b.special
        if special and (a.summed or b.summed):
            return None
        low, high = corners(lambda p, q: p * q, a, b)
        return w.like(x * y, a, b, low=low, high=high, product=True)
    if name == "add":
        return w.like(x + y, a, b, low=a.low + b.low, high=a.high + b.high)
    if name == "sub":
        return w.like(x - y, a, b, low=a.low - b.high, high=a.high - b.low)
    return w.like(x.maximum(y) if name == "max" else x.minimum(y), a, b)


@operation(2)
def quotients(w: Writer) -> Value | None:
    v = w.value(is_number)
    if v is None:
        return None
    if v.dtype.is_int or (v.whole and w.chance(40)):
        by = w.pick((2, 3, -3, 7))
        if v.dtype in UNSIGNED:
            by = abs(by)
        x = v.tensor
        name = w.pick(("floordiv", "remainder", "fmod"))
        if name == "floordiv" and v.dtype.is_int:
            return w.like(x // by, v, low=-v.size, high=v.size)
        other = w.partner(v, lambda o: o.dtype is v.dtype) if v.dtype.is_int else None
        if other and w.chance(50):
            return w.like(x.fmod(other.tensor), v, other)
        size = max(abs(by), v.size)
        return w.like(x % by if name == "remainder" else x.fmod(by), v, low=-size, high=size)
    other = w.partner(v, lambda o: is_float(o) and (o.low > 0.05 or o.high < -0.05))
    if other is None or not (other.low > 0.05 or other.high < -0.05):
        return None
    low, high = corners(lambda p, q: p / q, v, other)
    return w.like(v.tensor / other.tensor, v, other, low=low, high=high, whole=False)


@operation(4, special=True)
def comparisons(w: Writer) -> Value | None:
    v = w.value(lambda v: v.comparable)
    if v is None:
        return None
    other: Any = w.pick((0, 1, -1, 2)) if is_number(v) and w.chance(40) else None
    if other is None:
        found = w.partner(v, lambda o: o.comparable and o.dtype is v.dtype)
        if found is None or not found.comparable:
            return None
        other = found.tensor
    x = v.tensor
    name = w.pick(("lt", "le", "gt", "ge", "eq", "ne"))
    made = {"lt": x < other, "le": x <= other, "gt": x > other}
    made |= {"ge": x >= other, "eq": x == other, "ne": x != other}
    return w.made(made[name], 0, 1, True)


@operation(2, special=True)
def logic(w: Writer) -> Value | None:
    v = w.value(lambda v: v.dtype is DType.BOOL)
    other = w.partner(v, lambda o: o.dtype is DType.BOOL) if v else None
    if v is None:
        return None
    if other is None:
        return w.made(~v.tensor, 0, 1, True)
    x, y = v.tensor, other.tensor
    return w.made(w.pick((x & y, x | y, x ^ y)), 0, 1, True)


@operation(4, special=True)
def selects(w: Writer) -> Value | None:
    c = w.value(lambda v: v.dtype is DType.BOOL)
    if c is None or w.chance(30):
        c = w.positions()
    v = w.value(is_number)
    if v is None or c is None:
        return None
    c = w.fitted(c, v.shape)
    if c is None:
        return None
    if w.chance(40):
        return w.like(c.tensor * v.tensor, v, low=min(v.low, 0), high=max(v.high, 0))
    if w.chance(30):
        number = w.pick((0.5, -1, 2)) if is_float(v) else w.pick((1, 2))
        whole = v.whole and number == int(number)
        ends = min(v.low, number), max(v.high, number)
        return w.like(where(c.tensor, v.tensor, number), v, low=ends[0], high=ends[1], whole=whole)
    other = w.partner(v, lambda o: o.dtype is v.dtype)
    if other is None:
        return None
    return w.like(where(c.tensor, v.tensor, other.tensor), v, other, low=min(v.low, other.low, 0))


def positions(w: Writer) -> Value | None:
    """A mask made of positions: a band of a matrix."""
    rows, cols = w.model.arange(w.extent() or 1)[:, None], w.model.arange(w.extent() or 1)[None, :]
    shift = w.number(-2, 2)
    name = w.pick(("causal", "band", "stripes"))
    if name == "causal":
        return w.made(cols <= rows + shift, 0, 1, True)
    if name == "band":
        return w.made((cols < rows + 2) & (rows < cols + 3), 0, 1, True)
    return w.made((rows + cols) % 3 == w.number(0, 2), 0, 1, True)


Writer.positions = positions  # type: ignore[attr-defined]


@operation(3, special=True)
def casts(w: Writer) -> Value | None:
    v = w.value()
    if v is None:
        return None
    kinds = [k for k in w.profile.dtypes if k.is_float]
    if not v.special and (v.whole or not is_float(v)):
        usual = (DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL)
        kinds += [*usual, *(k for k in w.profile.dtypes if k.is_int and k not in usual)]
    if v.special:
        kinds = [k for k in kinds if k in (DType.F32, DType.F64)]
    kind = w.pick([k for k in kinds if k is not v.dtype] or [v.dtype])
    if kind.is_float and not is_float(v) and v.size > 1e4:
        return None
    if is_float(v) and kind.is_int and not kind.limits[0] <= v.low <= v.high <= kind.limits[1]:
        return None
    return w.like(v.tensor.to(kind), v, low=v.low, high=v.high)


@operation(1, special=True)
def copies(w: Writer) -> Value | None:
    v = w.value()
    return w.like(v.tensor.contiguous(), v) if v else None


@operation(1)
def iotas(w: Writer) -> Value | None:
    """Positions as numbers, added to a value."""
    v = w.value(lambda v: is_number(v) and len(v.shape) > 0 and v.shape[-1] > 0)
    if v is None:
        return None
    n = v.shape[-1]
    dtype = v.dtype if v.dtype in (DType.F32, DType.F64, DType.I64, DType.I32) else DType.F32
    step = w.pick((1, 1, 2, -1))
    at = w.model.arange(0, n, dtype=dtype) * step + w.number(0, 3)
    size = abs(step) * n + 3
    return w.like(v.tensor + at, v, low=v.low - size, high=v.high + size)


# ---- movement


@operation(12, special=True)
def moves(w: Writer) -> Value | None:
    """A chain of movements."""
    v = w.value()
    for _ in range(w.number(1, 3)):
        if v is None:
            return None
        v = moved(w, v)
    return v


def moved(w: Writer, v: Value) -> Value | None:
    x, shape = v.tensor, v.shape
    rank = len(shape)
    names = ["unsqueeze", "reshape", "flatten"]
    if rank:
        names += ["permute", "permute", "slice", "slice", "flip", "pad", "pad", "repeat", "roll"]
        names += ["unfold", "unfold", "interleave", "squeeze", "expand"]
    if rank >= 2:
        names += ["tril", "diagonal"]
    name, axis = w.pick(names), w.number(0, rank - 1) if rank else 0
    n = shape[axis] if rank else 1
    low, high = min(v.low, 0), max(v.high, 0)
    wider = {"low": low, "high": high}
    if name == "permute":
        order = w.permutation(range(rank))
        return w.like(x.permute(order), v)
    if name == "slice":
        step = w.pick((1, 1, 2, 3, -1, -2))
        start = w.number(0, max(0, n - 1))
        if w.chance(15) and n:
            return w.like(x[(*[slice(None)] * axis, start)], v)
        part = slice(start, None, step) if w.chance(60) else slice(None, start + 1, abs(step))
        return w.like(x[(*[slice(None)] * axis, part)], v)
    if name == "flip":
        return w.like(x.flip(axis), v)
    if name == "pad":
        widths = [(w.number(0, 2), w.number(0, 3)) if w.chance(60) else (0, 0) for _ in shape]
        fill = w.pick((0, 0, 0, 1, 2))
        if fill == 0 or not is_number(v):
            return w.like(x.pad(widths), v, **wider)
        return w.like(x.pad(widths, fill), v, low=min(low, fill), high=max(high, fill))
    if name == "repeat":
        counts = [w.pick((1, 1, 2, 3)) for _ in shape]
        return w.like(x.repeat(*counts), v)
    if name == "interleave":
        return w.like(x.repeat_interleave(w.number(2, 3), axis), v)
    if name == "roll":
        return w.like(x.roll(w.number(0, 3), axis), v, **wider)
    if name == "unfold":
        size, step, dilation = w.number(1, 3), w.number(1, 2), w.number(1, 2)
        if (size - 1) * dilation + 1 > n:
            return None
        return w.like(x.unfold(axis, size, step, dilation), v)
    if name == "expand":
        at = w.number(0, rank)
        wide = x.unsqueeze(at)
        return w.like(wide.expand(*shape[:at], w.extent() or 1, *shape[at:]), v)
    if name == "tril":
        k = w.number(-1, 2)
        return w.like(x.tril(k) if w.chance(50) else x.triu(k), v, **wider)
    if name == "diagonal":
        m = min(shape[-2:])
        return w.like(x[..., :m, :m].diagonal(), v)
    if name == "flatten":
        return w.like(x.flatten(w.number(0, max(0, rank - 1))) if rank else x.flatten(), v)
    if name == "squeeze":
        return w.like(x.squeeze(), v)
    if name == "reshape":
        return w.like(x.reshape(reshaped(w, shape)), v)
    return w.like(x.unsqueeze(w.number(0, rank)), v)


def reshaped(w: Writer, shape: Sequence[int]) -> list[int]:
    """Another shape of as many elements: its prime factors, grouped."""
    n = math.prod(shape)
    if n == 0:
        return [*shape]
    primes = []
    for p in (2, 3, 5, 7, 11, 13, 17):
        while n % p == 0:
            primes.append(p)
            n //= p
    primes = w.permutation([*primes, n] if n > 1 else primes)
    out = [1]
    for p in primes:
        if len(out) < 4 and w.chance(50):
            out.append(p)
        else:
            out[-1] *= p
    return out


@operation(3, special=True)
def joins(w: Writer) -> Value | None:
    """Values side by side."""
    v = w.value(lambda v: len(v.shape) > 0)
    if v is None:
        return None
    axis = w.number(0, len(v.shape) - 1)
    shape = [n if i != axis else w.number(1, 5) for i, n in enumerate(v.shape)]
    other = w.partner(replace(v), lambda o: o.dtype is v.dtype)
    if other is None:
        return None
    other = w.fitted(other, shape)
    if other is None:
        return None
    parts = [v.tensor, other.tensor.expand(*shape)]
    if w.chance(20):
        parts.append(v.tensor)
    if w.chance(30):
        parts.reverse()
    ends = {"low": min(v.low, other.low, 0), "high": max(v.high, other.high, 0)}
    if w.chance(20):
        return w.like(stack([v.tensor, v.tensor], axis), v, **{**ends})
    return w.like(concat(parts, axis), v, other, **ends)


# ---- reductions


def points(v: Value) -> int:
    return math.prod(v.shape)


@operation(8, special=True)
def reductions(w: Writer) -> Value | None:
    v = w.value(lambda v: len(v.shape) > 0)
    if v is None:
        return None
    rank = len(v.shape)
    axes = [i for i in range(rank) if w.chance(45)] or [w.number(0, rank - 1)]
    n = math.prod(v.shape[a] for a in axes)
    keep = w.chance(30)
    x = v.tensor
    if v.dtype is DType.BOOL:
        f = w.pick((x.any, x.all, x.max, x.min))
        return w.made(f(axes, keep), 0, 1, True)
    name = w.pick(("sum", "sum", "sum", "max", "min", "mean"))
    if name in ("max", "min"):
        if n == 0:
            return None
        return w.like(x.max(axes, keep) if name == "max" else x.min(axes, keep), v)
    if v.special and v.product:
        return None
    low, high = min(v.low, v.low * n), max(v.high, v.high * n)
    if name == "mean" and is_float(v) and n:
        return w.like(x.mean(axes, keep), v, whole=False, summed=True)
    return w.like(x.sum(axes, keep), v, low=low, high=high, summed=True)


@operation(1)
def positions_of_extremes(w: Writer) -> Value | None:
    v = w.value(lambda v: v.comparable and is_number(v) and len(v.shape) > 0 and 0 not in v.shape)
    if v is None:
        return None
    axis = w.number(0, len(v.shape) - 1)
    made = v.tensor.argmax(axis) if w.chance(60) else v.tensor.argmin(axis)
    return w.made(made, 0, v.shape[axis], True)


@operation(2)
def running_sums(w: Writer) -> Value | None:
    v = w.value(lambda v: is_number(v) and len(v.shape) > 0 and points(v) <= 1500)
    if v is None:
        return None
    axis = w.number(0, len(v.shape) - 1)
    n = v.shape[axis]
    made = v.tensor.cumsum(axis, exclusive=w.chance(30), reverse=w.chance(30))
    return w.like(made, v, low=min(0, v.low * n), high=max(0, v.high * n))


@operation(3, special=True)
def softmaxes(w: Writer) -> Value | None:
    v = w.value(lambda v: is_float(v) and len(v.shape) > 0 and 0 not in v.shape)
    if v is None:
        return None
    axis, x = w.number(0, len(v.shape) - 1), v.tensor
    flags = {"whole": False, "summed": True, "product": True}
    name = w.pick(("softmax", "softmax", "logsumexp", "log_softmax"))
    if name == "softmax":
        return w.like(x.softmax(axis), v, low=0, high=1, **flags)
    if v.special or v.size > 100:
        return None
    if name == "logsumexp":
        return w.like(x.logsumexp(axis), v, low=v.low, high=v.high + 10, **flags)
    return w.like(x.log_softmax(axis), v, low=v.low - v.high - 10, high=0, **flags)


@operation(2)
def norms(w: Writer) -> Value | None:
    v = w.value(lambda v: is_float(v) and len(v.shape) > 0 and 0 not in v.shape and v.size < 100)
    if v is None:
        return None
    axis, x = w.number(0, len(v.shape) - 1), v.tensor
    if v.dtype is DType.F16 and v.size > 10:
        return None
    if w.chance(50):
        bound = math.sqrt(v.shape[axis]) + 1
        return w.like(x.rms_norm(axis=axis, eps=1e-2), v, low=-bound, high=bound, whole=False)
    bound = math.sqrt(v.shape[axis]) + 1
    return w.like(x.layer_norm(axis=axis, eps=1e-1), v, low=-bound, high=bound, whole=False)


# ---- contractions


@operation(7)
def matmuls(w: Writer) -> Value | None:
    v = w.value(lambda v: is_number(v) and len(v.shape) >= 1 and v.shape[-1] > 0)
    if v is None:
        return None
    k, n = v.shape[-1], w.extent()
    if w.chance(15):  # of a value with itself
        if len(v.shape) < 2 or points(v) * v.shape[-2] > MAX_POINTS:
            return None
        low, high = corners(lambda p, q: p * q * k, v, v)
        return w.like(v.tensor @ v.tensor.transpose(), v, low=low, high=high)
    lead = [m if w.chance(80) else 1 for m in v.shape[:-2]] if w.chance(20) else []
    shape = (*lead, k, n) if w.chance(60) else (*lead, n, k)
    other = w.any_leaf(shape, v.dtype) if w.chance(70) else w.value(lambda o: o.dtype is v.dtype)
    other = other and w.fitted(other, shape)
    if other is None or points(v) * n > MAX_POINTS:
        return None
    y = other.tensor.expand(*shape[len(shape) - other.tensor.ndim :]) if other.tensor.ndim else None
    if y is None or y.ndim < 2:
        return None
    if shape[-2:] != (k, n):
        y = y.transpose()
    if y.shape[-2:] != (k, n):
        return None
    low, high = corners(lambda p, q: p * q * k, v, other)
    made = v.tensor @ y
    if w.chance(40) and is_float(v) and other.dtype is v.dtype:  # bias and a scale
        bias = w.any_leaf((n,), v.dtype)
        scale = w.pick((1.0, 0.5, 0.25))
        made = made * scale + bias.tensor
        low, high = low + bias.low, high + bias.high
        return w.like(made, v, other, bias, low=low, high=high, whole=False)
    return w.like(made, v, other, low=low, high=high)


@operation(4)
def contractions(w: Writer) -> Value | None:
    """A product of two or three values over shared axes, summed over some of them."""
    letters = "abcd"[: w.number(2, 4)]
    extent = {c: w.pick((1, 2, 3, 4, 5, 8, 9, 17)) for c in letters}
    if w.profile.wide:
        extent = {c: n if w.chance(60) else int(w.pick(WIDE)) for c, n in extent.items()}
    if math.prod(extent.values()) > MAX_POINTS // 10:
        return None
    dtype = w.pick((*w.profile.dtypes, DType.I32))
    factors, whole = [], True
    low, high = 1.0, 1.0
    for _ in range(w.number(2, 3)):
        mine = [c for c in letters if w.chance(65)] or [letters[0]]
        order = w.permutation(mine)
        shape = [extent[c] for c in order]
        v = w.any_leaf(shape, dtype)
        if math.prod(shape) > MAX_SIZE:
            return None
        t = v.tensor.permute([order.index(c) for c in sorted(order)])
        t = t.unsqueeze([i for i, c in enumerate(letters) if c not in mine]) if mine else t
        if w.chance(30) and dtype.is_float and not v.whole and v.size <= 2:
            t, v = t.exp(), replace(v, low=0.1, high=7.4, whole=False)
        factors.append(t)
        ends = [p * q for p in (low, high) for q in (v.low, v.high)]
        low, high, whole = min(ends), max(ends), whole and v.whole
    product = factors[0]
    for t in factors[1:]:
        product = product * t
    axes = [i for i in range(product.ndim) if w.chance(50)] or [0]
    n = math.prod(int(str(product.shape[i])) for i in axes)
    made = product.sum(axes)
    return w.made(made, min(low, low * n), max(high, high * n), whole)


@operation(3)
def attention(w: Writer) -> Value | None:
    """Scores, perhaps a mask, a softmax or something like it, and a product."""
    heads, rows, cols = w.pick((1, 2, 3)), w.extent() or 1, w.extent() or 1
    depth, width = w.pick((2, 4, 8, 9, 16)), w.pick((1, 3, 8, 16, 17))
    if heads * rows * cols * depth > MAX_POINTS:
        return None
    dtype = w.pick(w.profile.dtypes)
    q, k = w.any_leaf((heads, rows, depth), dtype), w.any_leaf((heads, cols, depth), dtype)
    v = w.any_leaf((heads, cols, width), dtype)
    scores = q.tensor @ k.tensor.transpose() * (0.5 / depth)
    size = q.size * k.size * 0.5
    if size > 20:
        return None
    special = False
    mask = w.pick(("none", "causal", "causal", "columns", "bias"))
    if mask == "causal":
        here = w.model.arange(rows)[:, None], w.model.arange(cols)[None, :]
        scores = where(here[1] <= here[0] + w.number(0, 3), scores, -math.inf)
    elif mask == "columns":
        scores = where(w.leaf("mask", DType.BOOL, (cols,)).tensor, scores, -math.inf)
        special = True
    elif mask == "bias":
        bias = w.any_leaf((rows, cols), dtype)
        scores = scores + bias.tensor
        if bias.size > 10:
            return None
    name = w.pick(("softmax", "softmax", "late", "max"))
    if name == "softmax":
        made = scores.softmax() @ v.tensor
    elif name == "late":  # normalised after the product
        e = (scores - scores.max(-1, True)).exp()
        made = (e @ v.tensor) * e.sum(-1, True).reciprocal()
    else:
        e = (scores - scores.max(-1, True)).exp2()
        made = e @ v.tensor
    n = cols if name == "max" else 1
    return w.made(
        made, min(0, v.low * n), max(0, v.high * n), special=special, summed=True, product=True
    )


@operation(2)
def convolutions(w: Writer) -> Value | None:
    channels, out = w.pick((1, 2, 3, 4, 8)), w.pick((1, 2, 3, 8, 17))
    size, kernel = w.pick((5, 6, 8, 9, 12)), w.pick((1, 2, 3))
    dtype = w.pick(w.profile.dtypes)
    if w.chance(50):
        x = w.any_leaf((w.number(1, 2), channels, size), dtype)
        f = w.any_leaf((out, channels, kernel), dtype)
        made = x.tensor.conv1d(f.tensor, stride=w.number(1, 2), padding=w.number(0, 1))
        n = channels * kernel
    else:
        x = w.any_leaf((w.number(1, 2), channels, size, size), dtype)
        f = w.any_leaf((out, channels, kernel, kernel), dtype)
        made = x.tensor.conv2d(
            f.tensor, stride=w.number(1, 2), padding=w.number(0, 1), dilation=w.number(1, 2)
        )
        n = channels * kernel * kernel
    size_ = x.size * f.size * n
    value = w.made(made, -size_, size_, x.whole and f.whole)
    if value and w.chance(40):
        value = w.like(made.relu(), value)
    return value


@operation(1)
def pools(w: Writer) -> Value | None:
    v = w.value(lambda v: is_float(v) and len(v.shape) >= 3 and min(v.shape[-2:]) >= 3)
    if v is None or len(v.shape) > 4:
        return None
    x = v.tensor if len(v.shape) == 4 else v.tensor.unsqueeze(0)
    stride, padding = w.number(1, 2), w.number(0, 1)
    if w.chance(50):
        return w.like(x.max_pool(2, stride, padding), v)
    return w.like(
        x.avg_pool(2, stride, padding), v, low=min(0, v.low), high=max(0, v.high), whole=False
    )


# ---- lookups


@operation(4, special=True)
def lookups(w: Writer) -> Value | None:
    """Elements at places that are data."""
    table = w.value(lambda v: len(v.shape) > 0 and 0 not in v.shape and points(v) <= 2000)
    if table is None:
        return None
    axis = w.number(0, len(table.shape) - 1)
    n = table.shape[axis]
    index = w.value(lambda v: v.dtype is DType.I64 and v.low >= 0 and points(v) <= 100)
    if index is None or w.chance(50):
        index = w.leaf("index", w.pick((DType.I64, DType.I64, DType.I32)), w.shape(2))
    if points(index) * points(table) > MAX_POINTS:
        return None
    at = index.tensor
    ends = {"low": min(table.low, 0), "high": max(table.high, 0)}  # outside the table: zero
    x = table.tensor
    name = w.pick(("select", "select", "one_hot", "gather", "mapped"))
    if name == "one_hot":
        return w.made(at.one_hot(n), 0, 1, True)
    if name == "gather":
        rows = at.reshape(-1)
        shape = [1] * len(table.shape)
        shape[axis] = int(str(rows.shape[0]))
        whole = [*table.shape]
        whole[axis] = shape[axis]
        return w.like(x.gather(axis, rows.reshape(*shape).expand(*whole)), table, **ends)
    if name == "mapped":  # an index that is computed
        at = (at + w.number(0, 2)) % max(1, n)
    return w.like(x.index_select(axis, at), table, **ends)


# ---- states


@operation(2)
def updates(w: Writer) -> Value | None:
    """A value written to a part of a state."""
    v = w.value(lambda v: 0 < len(v.shape) <= 4 and 0 not in v.shape and not v.special)
    if v is None or len(w.states) > 1:
        return None
    grown = [n + w.pick((0, 0, 1, 3)) for n in v.shape]
    state = w.leaf(w.kind_of(v.dtype), v.dtype, grown, "s_")
    start = [w.number(0, g - n) for g, n in zip(grown, v.shape, strict=True)]
    w.states.append((state.tensor, v))
    at = tuple(slice(s, s + n) for s, n in zip(start, v.shape, strict=True))
    fresh = v.tensor
    if isinstance(fresh.operand, Read) and fresh.operand.source.op == "state":
        fresh = fresh.contiguous()
    w.model.update(state.tensor, fresh, at)
    return state


# ---- graphs


def random_graph(seed: int, profile: Profile) -> Graph:
    """A graph of one or two entries; every output is worth comparing."""
    w = Writer(random.Random(seed), profile)
    names = [n for n in OPERATIONS if not profile.special or n in IN_SPECIAL]
    names = [n for n in names if not profile.only or n in profile.only]
    table = list(itertools.chain(*([n] * WEIGHTS[n] for n in names)))
    for e in range(2 if w.chance(10) else 1):
        w.pool = list(w.shared)
        if e or w.chance(10):
            w.model.entry(f"entry{e}")
        for _ in range(w.number(1, 2)):
            w.any_leaf()
        leaves = list(w.pool)
        for _ in range(w.number(*profile.steps)):
            try:
                made = OPERATIONS[w.pick(table)](w)
            except LumcError as error:
                if error.exit is not Exit.UNSUPPORTED:
                    raise
                made = None  # the frontend says that this cannot be
            if made is not None:
                w.pool.append(made)
        results = [v for v in w.pool if v not in leaves] or leaves
        count = w.number(1, min(4, len(results)))
        chosen = [results[-1], *(w.pick(results) for _ in range(count - 1))]
        if w.chance(8):
            chosen.append(w.pick(leaves))
        for i, v in enumerate(chosen):
            w.model.output(f"y{i}", v.tensor)
    return w.model.graph()
