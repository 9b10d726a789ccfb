"""One builder for each family of ONNX operators: operands, attributes at their edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuzz.onnx_draw import FLOATS, INTEGERS, Draw, Rejected, number, types_of

Builder = Callable[[Draw], Any]
BUILDERS: list[tuple[Builder, float]] = []
EDGE = 2**63 - 1  # of an index that means "to the end"


def builder(weight: float = 1.0) -> Callable[[Builder], Builder]:
    def register(f: Builder) -> Builder:
        BUILDERS.append((f, weight))
        return f

    return register


# ---- elementwise

SMOOTH = (
    *("Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh"),
    *("Cosh", "Asinh", "Tanh", "Sigmoid", "Erf", "Softplus", "Softsign", "Relu", "Identity"),
    *("HardSwish", "Mish", "Not", "BitwiseNot", "IsNaN"),
)
POSITIVE = ["Log", "Sqrt", "Reciprocal"]
SHAPED = {
    "Elu": ("alpha",),
    "Celu": ("alpha",),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Shrink": ("bias", "lambd"),
}
SINCE = {"HardSwish": 14, "Mish": 18, "BitwiseNot": 18, "Gelu": 20, "Swish": 24}


def of_opset(d: Draw, names: Sequence[str]) -> str:
    return d.rng.choice([n for n in names if SINCE.get(n, 1) <= d.opset])


@builder(3)
def unary(d: Draw) -> str:
    name = of_opset(d, SMOOTH)
    return d.add(name, [d.operand(name)])


@builder()
def of_positives(d: Draw) -> str:
    name = d.rng.choice(POSITIVE)
    return d.add(name, [d.operand(name, how="positive")])


@builder()
def of_the_unit(d: Draw) -> str:
    """Functions that are defined on an interval: of what is clipped to it."""
    name = d.rng.choice(("Asin", "Acos", "Atanh"))
    kinds = [k for k in types_of(name, d.opset, 0) if k in FLOATS]
    return d.add(name, [d.fresh(d.shape(), d.rng.choice(kinds), "unit")])


@builder(1.5)
def activation(d: Draw) -> str:
    if d.opset >= 20 and d.rng.random() < 0.2:
        return d.add("Gelu", [d.operand("Gelu")], approximate=d.rng.choice((None, "none", "tanh")))
    name = d.rng.choice(list(SHAPED))
    values = {a: round(d.rng.uniform(0.1, 2.0), 2) for a in SHAPED[name] if d.rng.random() < 0.7}
    return d.add(name, [d.operand(name)], **values)


@builder(4)
def binary(d: Draw) -> str:
    names = "Add Sub Mul Add Mul Sub Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor"
    names += " BitwiseAnd BitwiseOr BitwiseXor" if d.opset >= 18 else ""
    name = d.rng.choice(names.split())
    a = d.operand(name)
    pair = [a, d.beside(a)]
    d.rng.shuffle(pair)
    return d.add(name, pair)


@builder(1.5)
def division(d: Draw) -> str:
    name = d.rng.choice(("Div", "Div", "Mod", "Mod", "Pow", "PRelu"))
    a = d.operand(name)
    kind = d.array(a).dtype
    if name == "Pow":
        base = d.pick([k for k in FLOATS if k in types_of("Pow", d.opset, 0)], how="positive")
        power = d.rng.choice((0.5, 1.0, 2.0, 3.0, -1.0, 1.5, 0.0))
        return d.add("Pow", [base, d.scalar(power, d.array(base).dtype.name)])
    b = d.beside(a, "" if name == "PRelu" else "positive")
    if name == "PRelu" and not _one_way(d.array(b).shape, d.array(a).shape):
        raise Rejected("broadcasts one way only")
    fmod = 1 if kind.kind == "f" else d.rng.choice((0, 1))
    return d.add(name, [a, b], **({"fmod": fmod} if name == "Mod" else {}))


def _one_way(small: Sequence[int], whole: Sequence[int]) -> bool:
    try:
        return np.broadcast_shapes(tuple(small), tuple(whole)) == tuple(whole)
    except ValueError:
        return False


@builder(1.5)
def several(d: Draw) -> str:
    name = d.rng.choice(("Min", "Max", "Sum", "Mean"))
    a = d.operand(name)
    return d.add(name, [a, *(d.beside(a) for _ in range(d.rng.randint(0, 2)))])


@builder()
def shift(d: Draw) -> str:
    a = d.operand("BitShift")
    bits = 8 * d.array(a).dtype.itemsize
    amount = d.numbers.integers(0, bits, d.array(a).shape).astype(d.array(a).dtype)
    return d.add("BitShift", [a, d.given(amount)], direction=d.rng.choice(("LEFT", "RIGHT")))


@builder(1.5)
def choice(d: Draw) -> str:
    a = d.pick((*FLOATS, *INTEGERS, "bool"))
    condition = d.beside(a, kind="bool")
    return d.add("Where", [condition, a, d.beside(a)])


@builder()
def clip(d: Draw) -> str:
    a = d.operand("Clip")
    kind = d.array(a).dtype.name
    low, high = sorted(d.rng.sample(range(0 if kind.startswith("u") else -3, 7), 2))
    ends = [d.scalar(v, kind) if d.rng.random() < 0.75 else "" for v in (low, high)]
    return d.add("Clip", [a, *ends])


@builder(2)
def cast(d: Draw) -> str:
    a = d.pick((*FLOATS, *INTEGERS, "bool"))
    kind = d.rng.choice((*FLOATS, "float32", *INTEGERS, "bool"))
    value = d.array(a)
    if value.dtype.kind == "f" and np.dtype(kind).kind in "iu" and value.size:
        info = np.iinfo(kind)
        if not (info.min <= float(value.min()) and float(value.max()) <= info.max):
            raise Rejected("an integer that the type cannot hold")
    if d.rng.random() < 0.2:
        return d.add("CastLike", [a, d.fresh((), kind)]) if d.opset >= 15 else ""
    return d.add("Cast", [a], to=number(np.zeros((), kind)))


# ---- movement

MOVED = (*FLOATS, *INTEGERS, "bool")


@builder()
def transpose(d: Draw) -> str:
    a = d.pick(MOVED)
    rank = d.array(a).ndim
    perm = d.rng.sample(range(rank), rank)
    return d.add("Transpose", [a], perm=perm if d.rng.random() < 0.8 else None)


@builder(2)
def reshape(d: Draw) -> str:
    a = d.pick(MOVED)
    shape = list(d.array(a).shape)
    size = int(np.prod(shape))
    new = _factors(d, size)
    for i, n in enumerate(new):
        if i < len(shape) and shape[i] == n and d.rng.random() < 0.3:
            new[i] = 0
    if new and d.rng.random() < 0.4 and size:
        new[d.rng.randrange(len(new))] = -1
    if d.rng.random() < 0.15:
        return d.add("Flatten", [a], axis=d.axis(len(shape)) if shape else 0)
    return d.add("Reshape", [a, d.known(*new)])


def _factors(d: Draw, size: int) -> list[int]:
    new = list[int]()
    for _ in range(d.rng.randint(0, 4) if size != 1 else d.rng.randint(0, 3)):
        divisors = [n for n in range(1, size + 1) if size % n == 0] or [0]
        new.append(d.rng.choice(divisors))
        size //= max(new[-1], 1)
    return [*new, size] if size != 1 or not new else new


@builder()
def squeeze(d: Draw) -> str:
    a = d.pick(MOVED)
    shape = d.array(a).shape
    if d.rng.random() < 0.5:
        count = d.rng.randint(1, 2)
        axes = d.rng.sample(range(len(shape) + count), count)
        rank = len(shape) + count
        axes = [x - rank if d.rng.random() < 0.5 else x for x in axes]
        return d.add("Unsqueeze", [a, d.known(*axes)])
    ones = [i for i, n in enumerate(shape) if n == 1]
    axes = [i - len(shape) if d.rng.random() < 0.5 else i for i in ones]
    return d.add("Squeeze", [a, d.known(*axes) if ones and d.rng.random() < 0.7 else ""])


@builder(2)
def part(d: Draw) -> str:
    a = d.pick(MOVED, rank=lambda r: r > 0)
    shape = d.array(a).shape
    axes = d.axes(len(shape))
    starts, ends, steps = list[int](), list[int](), list[int]()
    for x in axes:
        n, step = shape[x], d.rng.choice((1, 1, 1, 2, 3, -1, -2))
        edges = (0, 1, -1, n - 1, -n, n, n + 5, -n - 3, EDGE, -EDGE)
        lo, hi = d.rng.choice(edges[:5]), d.rng.choice(edges)
        starts.append(lo if step > 0 else hi)
        ends.append(hi if step > 0 else d.rng.choice((-n - 1, -EDGE, lo)))
        steps.append(step)
    kind = d.rng.choice(("int64", "int64", "int32"))
    if kind == "int32":
        starts, ends = ([int(np.clip(v, -(2**31), 2**31 - 1)) for v in s] for s in (starts, ends))
    lists = [d.known(*v, kind=kind) for v in (starts, ends, axes, steps)]
    return d.add("Slice", [a, *lists[: 4 if d.rng.random() < 0.9 or set(steps) != {1} else 3]])


@builder(1.5)
def pad(d: Draw) -> str:
    a = d.pick([k for k in MOVED if k in types_of("Pad", d.opset, 0)], rank=lambda r: r > 0)
    shape = d.array(a).shape
    modes = ("constant", "constant", "reflect", "edge") + (("wrap",) if d.opset >= 19 else ())
    mode = d.rng.choice(modes)
    most = [3 if mode == "constant" else max(0, n - 1) for n in shape]
    least = -1 if mode == "constant" else 0
    ends = [d.rng.randint(least if shape[i] > 3 else 0, min(2, m)) for i, m in enumerate(most)]
    front = [d.rng.randint(0, min(2, m)) for m in most]
    value = d.scalar(1.0, d.array(a).dtype.name) if mode == "constant" else ""
    value = value if d.rng.random() < 0.6 else ""
    if d.opset >= 18 and d.rng.random() < 0.3:
        axes = d.rng.sample(range(len(shape)), d.rng.randint(1, len(shape)))
        pads = [front[i] for i in axes] + [ends[i] for i in axes]
        return d.add("Pad", [a, d.known(*pads), value, d.known(*axes)], mode=mode)
    return d.add("Pad", [a, d.known(*front, *ends), value], mode=mode)


@builder()
def repeat(d: Draw) -> str:
    a = d.pick(MOVED)
    shape = d.array(a).shape
    if d.rng.random() < 0.5:
        return d.add("Tile", [a, d.known(*(d.rng.randint(1, 3) for _ in shape))])
    wide = [d.rng.randint(2, 4) if n == 1 and d.rng.random() < 0.7 else n for n in shape]
    more = [d.rng.randint(1, 3)] if d.rng.random() < 0.3 else []
    wide = [1 if n > 1 and d.rng.random() < 0.2 else n for n in wide]
    return d.add("Expand", [a, d.known(*more, *wide)])


@builder(1.5)
def join(d: Draw) -> str:
    a = d.pick(MOVED, rank=lambda r: r > 0)
    value = d.array(a)
    axis = d.axis(value.ndim)
    parts = [a]
    for _ in range(d.rng.randint(0, 2)):
        shape = list(value.shape)
        shape[axis] = d.rng.randint(1, 4)
        parts.append(d.fresh(shape, value.dtype.name))
    d.rng.shuffle(parts)
    return d.add("Concat", parts, axis=axis)


@builder()
def split(d: Draw) -> str:
    a = d.pick(MOVED, rank=lambda r: r > 0)
    axis = d.axis(d.array(a).ndim)
    n = d.array(a).shape[axis]
    if d.opset >= 18 and d.rng.random() < 0.4:
        count = d.rng.randint(1, min(3, n)) if n else 1
        return d.add("Split", [a], count, axis=axis, num_outputs=count)
    first = d.rng.randint(0, n)
    sizes = [first, n - first] if d.rng.random() < 0.7 else [first, 0, n - first]
    return d.add("Split", [a, d.known(*sizes)], len(sizes), axis=axis)


@builder()
def depth(d: Draw) -> str:
    block = d.rng.choice((1, 2, 2, 3))
    n, c, h, w = d.rng.randint(1, 2), d.rng.randint(1, 2), d.rng.randint(1, 3), d.rng.randint(1, 3)
    if d.rng.random() < 0.5:
        x = d.fresh((n, c * block * block, h, w), "float32")
        mode = d.rng.choice((None, "DCR", "CRD"))
        return d.add("DepthToSpace", [x], blocksize=block, mode=mode)
    return d.add(
        "SpaceToDepth", [d.fresh((n, c, h * block, w * block), "float32")], blocksize=block
    )


# ---- positions


@builder(2)
def gather(d: Draw) -> str:
    a = d.pick(MOVED, rank=lambda r: r > 0)
    value = d.array(a)
    axis = d.axis(value.ndim)
    n = value.shape[axis]
    if not n:
        raise Rejected("nothing to gather")
    kind = d.rng.choice(("int64", "int32"))
    if d.rng.random() < 0.6:
        at = d.numbers.integers(-n, n, d.shape(d.rng.randint(0, 2))).astype(kind)
        return d.add("Gather", [a, d.given(at)], axis=axis)
    shape = [d.rng.randint(1, k) for k in value.shape]
    shape[axis] = d.rng.randint(1, n + 2)
    at = d.numbers.integers(-n, n, shape).astype(kind)
    return d.add("GatherElements", [a, d.given(at)], axis=axis)


@builder()
def gather_nd(d: Draw) -> str:
    a = d.pick(MOVED, rank=lambda r: r > 0)
    shape = d.array(a).shape
    batch = d.rng.randint(0, len(shape) - 1) if d.opset >= 12 else 0
    deep = d.rng.randint(1, len(shape) - batch)
    lead = [*shape[:batch], *d.shape(d.rng.randint(0, 2), 3)]
    parts = [d.numbers.integers(-n, n, lead) for n in shape[batch : batch + deep] if n]
    if len(parts) != deep:
        raise Rejected("nothing to gather")
    at = np.stack(parts, -1).astype("int64")
    return d.add("GatherND", [a, d.given(at)], batch_dims=batch or None)


@builder(1.5)
def scatter(d: Draw) -> str:
    a = d.pick([k for k in MOVED if k != "float16"], rank=lambda r: r > 0)
    value = d.array(a)
    axis = d.axis(value.ndim)
    reductions = [None, "none"] + (["add", "mul"] if d.opset >= 16 else [])
    reductions += ["max", "min"] if d.opset >= 18 else []
    how = d.rng.choice(reductions) if value.dtype.kind != "b" else None
    n = value.shape[axis]
    if not value.size:
        raise Rejected("nothing to scatter")
    at = np.argsort(d.numbers.random(value.shape), axis)  # positions that do not repeat
    at = at[tuple(np.s_[: d.rng.randint(1, k)] for k in value.shape)]
    at = np.where(d.numbers.random(at.shape) < 0.3, at - n, at)
    given = [a, d.given(at), d.fresh(at.shape, value.dtype.name)]
    return d.add("ScatterElements", given, axis=axis, reduction=how)


@builder()
def scatter_nd(d: Draw) -> str:
    a = d.pick([k for k in MOVED if k not in ("float16", "bool")], rank=lambda r: r > 0)
    value = d.array(a)
    n = value.shape[0]
    reductions = [None, "none"] + (["add", "mul"] if d.opset >= 16 else [])
    reductions += ["max", "min"] if d.opset >= 18 else []
    count = d.rng.randint(1, n) if n else 0
    at = d.numbers.permutation(n)[:count][:, None]
    updates = d.fresh((count, *value.shape[1:]), value.dtype.name)
    return d.add("ScatterND", [a, d.given(at), updates], reduction=d.rng.choice(reductions))


@builder()
def one_hot(d: Draw) -> str:
    deep = d.rng.randint(1, 5)
    at = d.numbers.integers(-deep, deep, d.shape(d.rng.randint(0, 2)))
    kind = d.rng.choice(("float32", "int64", "int32"))
    ends = d.given(np.array([d.rng.randint(-2, 0), d.rng.randint(1, 3)], kind))
    return d.add(
        "OneHot", [d.given(at), d.known(deep), ends], axis=d.axis(at.ndim, 1) if at.ndim else -1
    )
