"""Builders of operators that reduce, contract, slide windows, normalise and quantise, and of what
is made of shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.onnx_draw import FLOATS, INTEGERS, Draw, Rejected, types_of
from fuzz.onnx_ops import MOVED, builder

REDUCE = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum"]
AXES_AS_INPUT = {"Sum": 13}  # the others from 18


@builder(3)
def reduction(d: Draw) -> str:
    kind = d.rng.choice(REDUCE)
    name = f"Reduce{kind}"
    a = d.operand(name, how="positive" if kind == "LogSum" else "")
    if kind == "L2" and wraps(d.array(a)):
        raise Rejected("squares that wrap: the standard and its reference differ in when")
    if kind == "Mean" and inexact(d.array(a)):
        raise Rejected("the reference takes means of integers as floats")
    rank = d.array(a).ndim
    axes = d.axes(rank) if rank and d.rng.random() < 0.75 else None
    keep = d.rng.choice((None, 0, 1))
    if d.opset >= AXES_AS_INPUT.get(kind, 18):
        nothing = d.rng.choice((None, 0, 1)) if axes is None else None
        given = [a] if axes is None else [a, d.known(*axes)]
        return d.add(name, given, keepdims=keep, noop_with_empty_axes=nothing)
    return d.add(name, [a], axes=axes, keepdims=keep)


def wraps(a: np.ndarray) -> bool:
    """Whether the sum of the squares of integers is beyond their dtype."""
    if a.dtype.kind not in "iu":
        return False
    return bool((a.astype("f8") ** 2).sum() > np.iinfo(a.dtype).max)


def inexact(a: np.ndarray) -> bool:
    """Whether a sum of integers may be beyond those that a float64 has, or there is none, of which
    the mean is no integer."""
    large = bool(np.abs(a.astype("f8")).sum() > 2.0**53)
    return a.dtype.kind in "iu" and (large or a.size == 0)


@builder(1.5)
def position(d: Draw) -> str:
    name = d.rng.choice(("ArgMax", "ArgMin"))
    a = d.operand(name, rank=lambda r: r > 0)
    how = {"keepdims": d.rng.choice((None, 0, 1)), "select_last_index": d.rng.choice((None, 0, 1))}
    at = d.axis(d.array(a).ndim) if d.rng.random() < 0.8 else None
    return d.add("Cast", [d.add(name, [a], axis=at, **how)], to=1)


@builder()
def largest(d: Draw) -> str:
    a = d.operand("TopK", rank=lambda r: r > 0)
    axis = d.axis(d.array(a).ndim)
    n = d.array(a).shape[axis]
    k = d.known(d.rng.randint(1, n) if n else 0)
    return d.add("TopK", [a, k], 2, axis=axis, largest=d.rng.choice((None, 0, 1)), sorted=1)


@builder()
def running(d: Draw) -> str:
    kinds = [k for k in types_of("CumSum", d.opset, 0) if k != "float16"]
    a = d.pick(kinds, rank=lambda r: r > 0)
    axis = d.scalar(d.axis(d.array(a).ndim), d.rng.choice(("int64", "int32")))
    ends = {"exclusive": d.rng.choice((None, 0, 1)), "reverse": d.rng.choice((None, 0, 1))}
    return d.add("CumSum", [a, axis], **ends)


@builder(2)
def shares(d: Draw) -> str:
    name = d.rng.choice(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    a = d.operand(name, rank=lambda r: r > 0)
    return d.add(name, [a], axis=d.axis(d.array(a).ndim) if d.rng.random() < 0.7 else None)


# ---- products


@builder(3)
def product(d: Draw) -> str:
    a = d.operand("MatMul", rank=lambda r: r > 0)
    shape = d.array(a).shape
    lead = [1 if d.rng.random() < 0.3 else n for n in shape[:-2]][d.rng.randint(0, 2) :]
    right = d.shape(0) if d.rng.random() < 0.15 else (d.rng.randint(1, 6),)
    other = [*(lead if right else []), shape[-1], *right]
    b = d.fresh(other, d.array(a).dtype.name)
    return d.add("MatMul", [a, b])


@builder(1.5)
def gemm(d: Draw) -> str:
    kinds = [k for k in types_of("Gemm", d.opset, 0) if k in (*FLOATS, "int64", "int32")]
    a = d.pick(kinds, rank=lambda r: r == 2)
    kind = d.array(a).dtype.name
    if kind not in FLOATS and np.abs(d.array(a).astype("f8")).max(initial=0) > 1e6:
        raise Rejected("the reference computes integers as floats")
    ta, tb = d.rng.choice((0, 1)), d.rng.choice((0, 1))
    m, k = d.array(a).shape[::-1] if ta else d.array(a).shape
    n = d.rng.randint(1, 6)
    b = d.fresh((n, k) if tb else (k, n), kind)
    shapes = ((), (1,), (n,), (m, 1), (1, n), (m, n))
    c = d.fresh(d.rng.choice(shapes), kind) if d.rng.random() < 0.7 else ""
    scale = {"alpha": 0.5, "beta": 1.5} if kind.startswith("f") and d.rng.random() < 0.5 else {}
    return d.add("Gemm", [a, b, c], transA=ta, transB=tb, **scale)


EINSUMS = ("ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij,ij->", "bhid,bhjd->bhij", "i,j->ij", "ii->i")
EINSUMS += ("...i,...i->...", "ij,kj", "bi,bj,bk->ijk", "ij->")


@builder(0.7)
def einsum(d: Draw) -> str:
    equation = d.rng.choice(EINSUMS)
    sizes = {letter: d.rng.randint(1, 4) for letter in "abcdefghijk"}
    operands = []
    for part in equation.split("->")[0].split(","):
        lead = [2] if "..." in part else []
        operands.append(d.fresh([*lead, *(sizes[x] for x in part.strip("."))], "float32"))
    return d.add("Einsum", operands, equation=equation)


def window(d: Draw, space: list[int], dilated: bool = True) -> dict[str, Any]:
    """A window that fits into the padded space."""
    kernel = [d.rng.randint(1, min(3, n)) for n in space]
    how: dict[str, Any] = {}
    if d.rng.random() < 0.6:
        how["strides"] = [d.rng.randint(1, 3) for _ in space]
    if dilated and d.rng.random() < 0.3:
        how["dilations"] = [d.rng.randint(1, 2) for _ in space]
    wide = [(k - 1) * s + 1 for k, s in zip(kernel, how.get("dilations", [1] * 9), strict=False)]
    if any(w > n for w, n in zip(wide, space, strict=True)):
        raise Rejected("a window that is wider than its space")
    if d.rng.random() < 0.25:
        how["auto_pad"] = d.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif d.rng.random() < 0.6:
        how["pads"] = [d.rng.randint(0, k - 1) for k in kernel * 2]
    return {"kernel_shape": kernel, **how}


def spaced(d: Draw, channels: int | None = None) -> tuple[str, list[int]]:
    """A tensor [batch, channels, ..] of a float type, and its space."""
    rank = d.rng.choice((1, 2, 2, 2, 3))
    fit = [n for n, w in d.values.items() if w[0].ndim == rank + 2 and w[0].dtype == "f4"]
    fit = [n for n in fit if d.array(n).size and channels is None]
    if fit and d.rng.random() < 0.6:
        x = d.rng.choice(fit)
    else:
        shape = d.rng.randint(1, 2), channels or d.rng.randint(1, 4), *d.shape(rank, 7 - rank)
        x = d.fresh(shape, "float32")
    return x, list(d.array(x).shape[2:])


@builder(3)
def convolution(d: Draw) -> str:
    x, space = spaced(d)
    channels = d.array(x).shape[1]
    groups = d.rng.choice([n for n in range(1, channels + 1) if channels % n == 0])
    how = window(d, space)
    out = groups * d.rng.randint(1, 3)
    w = d.fresh((out, channels // groups, *how["kernel_shape"]), "float32")
    b = d.fresh((out,), "float32") if d.rng.random() < 0.6 else ""
    if d.rng.random() < 0.3:
        del how["kernel_shape"]
    return d.add("Conv", [x, w, b], group=groups if groups > 1 else None, **how)


@builder(1.5)
def transposed(d: Draw) -> str:
    x, space = spaced(d)
    channels = d.array(x).shape[1]
    groups = d.rng.choice([n for n in range(1, channels + 1) if channels % n == 0])
    how = window(d, space)
    if how.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Rejected("the reference and the standard differ")
    strides = how.get("strides", [1] * len(space))
    if d.rng.random() < 0.3:
        how["output_padding"] = [d.rng.randint(0, s - 1) for s in strides]
    each = d.rng.randint(1, 3)
    w = d.fresh((channels, each, *how["kernel_shape"]), "float32")
    # of several groups the reference adds the bias of the first to all
    b = d.fresh((each,), "float32") if groups == 1 and d.rng.random() < 0.5 else ""
    return d.add("ConvTranspose", [x, w, b], group=groups if groups > 1 else None, **how)


@builder(2.5)
def pool(d: Draw) -> str:
    name = d.rng.choice(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    x, space = spaced(d)
    dilated = name == "MaxPool" or (d.opset >= 19 and name == "AveragePool")
    how = window(d, space, dilated)
    if how.get("auto_pad", "").startswith("SAME"):
        if "dilations" in how:
            raise Rejected("onnxruntime pads as if windows had no holes, the reference otherwise")
        ends = zip(space, how["kernel_shape"], how.get("strides", [1] * len(space)), strict=True)
        if any((n - 1) // s * s + k < n for n, k, s in ends):
            raise Rejected("onnxruntime refuses to pad by less than 0, the reference cuts off")
    if how.get("auto_pad", "NOTSET") == "NOTSET" and name != "LpPool":
        how["ceil_mode"] = d.rng.choice((None, 0, 1))
    if name == "AveragePool":
        how["count_include_pad"] = d.rng.choice((None, 0, 1))
    if name == "LpPool":
        how["p"] = d.rng.choice((1, 2, 3))
    return d.add(name, [x], **how)


@builder(0.7)
def whole_pool(d: Draw) -> str:
    x, _ = spaced(d)
    return d.add(d.rng.choice(("GlobalAveragePool", "GlobalMaxPool")), [x])


# ---- normalisations


@builder(2)
def norm(d: Draw) -> str:
    names = ["BatchNormalization", "InstanceNormalization", "LpNormalization"]
    names += ["LayerNormalization"] * 2 if d.opset >= 17 else []
    names += ["GroupNormalization"] if d.opset >= 21 else []
    names += ["RMSNormalization"] if d.opset >= 23 else []
    name = d.rng.choice(names)
    x, _ = spaced(d)
    shape = d.array(x).shape
    channels, epsilon = shape[1], d.rng.choice((None, 1e-3, 0.1))

    def rows(n: int | tuple[int, ...], how: str = "") -> str:
        return d.fresh((n,) if isinstance(n, int) else n, "float32", how)

    if name == "BatchNormalization":
        parts = [rows(channels), rows(channels), rows(channels), rows(channels, "positive")]
        return d.add(name, [x, *parts], epsilon=epsilon)
    if name == "InstanceNormalization":
        return d.add(name, [x, rows(channels), rows(channels)], epsilon=epsilon or 0.1)
    if name == "GroupNormalization":
        groups = d.rng.choice([n for n in range(1, channels + 1) if channels % n == 0])
        parts = [rows(channels), rows(channels)]
        return d.add(name, [x, *parts], epsilon=epsilon or 0.1, num_groups=groups)
    if name == "LpNormalization":
        return d.add(name, [x], axis=d.axis(len(shape)), p=2)  # of 1 the reference has no abs
    axis = d.axis(len(shape))
    tail = shape[axis:] if axis >= 0 else shape[len(shape) + axis :]
    bias = [rows(tail)] if name == "LayerNormalization" and d.rng.random() < 0.6 else []
    return d.add(name, [x, rows(tail), *bias], axis=axis, epsilon=epsilon or 0.1)


# ---- resizing and quantising


@builder(1.5)
def resize(d: Draw) -> str:
    shape = (1, d.rng.randint(1, 2), d.rng.randint(2, 5), d.rng.randint(2, 5))
    x = d.fresh(shape, "float32")
    mode = d.rng.choice(("nearest", "linear", "cubic"))
    where = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.rng.choice(where)}
    if mode == "nearest":
        rounds = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        how["nearest_mode"] = d.rng.choice(rounds)
    if mode == "cubic":
        how["cubic_coeff_a"] = d.rng.choice((None, -0.5, -0.75))
        how["exclude_outside"] = d.rng.choice((None, 0, 1))
    if d.rng.random() < 0.5:
        sizes = [*shape[:2], *(d.rng.randint(1, 9) for _ in range(2))]
        return d.add("Resize", [x, "", "", d.known(*sizes)], **how)
    scales = np.array([1, 1, *(d.rng.choice((0.5, 1, 1.5, 2, 3)) for _ in range(2))], "float32")
    return d.add("Resize", [x, "", d.given(scales, constant=True)], **how)


@builder(1.5)
def quantised(d: Draw) -> str:
    kind = d.rng.choice(("uint8", "int8"))
    x = d.pick(["float32"], rank=lambda r: r > 0)
    value = d.array(x)
    axis = d.axis(value.ndim)
    each = d.rng.random() < 0.4
    shape = (value.shape[axis],) if each else ()
    scale = d.given(d.numbers.uniform(0.01, 0.1, shape).astype("f4"), constant=True)
    zero = d.given(d.drawn(shape, kind, "count"), constant=True)
    how = {"axis": axis} if each else {}
    q = d.add("QuantizeLinear", [x, scale, zero], **how)
    return d.add("DequantizeLinear", [q, scale, zero], **how) if d.rng.random() < 0.8 else q


@builder()
def integer_product(d: Draw) -> str:
    m, k, n = (d.rng.randint(1, 6) for _ in range(3))
    left, right = d.rng.choice(("uint8", "int8")), d.rng.choice(("uint8", "int8"))
    a, b = d.fresh((m, k), left, ""), d.fresh((k, n), right, "")
    if left == "int8" and right == "uint8":
        raise Rejected("onnxruntime has it not")
    zeros = [
        d.scalar(d.rng.randint(0, 5), t) if d.rng.random() < 0.6 else "" for t in (left, right)
    ]
    return d.add("MatMulInteger", [a, b, *zeros])


@builder(0.6)
def dynamic(d: Draw) -> str:
    x = d.fresh(d.shape(2), "float32")
    return d.add("DynamicQuantizeLinear", [x], 3)


@builder(0.5)
def bits(d: Draw) -> str:
    """Integers of every width, over their whole range."""
    kind = d.rng.choice(INTEGERS)
    a = d.fresh(d.shape(), kind, "wide")
    if kind not in types_of("Add", d.opset, 0):
        raise Rejected("not computed with")
    return d.add(d.rng.choice(("Add", "Sub", "Mul")), [a, d.beside(a, "wide")])


# ---- parts of what is there, and what is made of shapes


@builder()
def triangle(d: Draw) -> str:
    if d.opset < 14:
        raise Rejected("newer")
    a = d.pick(MOVED, rank=lambda r: r > 1)
    k = d.scalar(d.rng.choice((0, 1, -1, 2, -7, 7)), "int64") if d.rng.random() < 0.7 else ""
    return d.add("Trilu", [a, k], upper=d.rng.choice((None, 0, 1)))


@builder()
def reverse(d: Draw) -> str:
    t, b = d.rng.randint(1, 5), d.rng.randint(1, 4)
    first = d.rng.choice((0, 1))
    shape = ((t, b) if first else (b, t)) + d.shape(d.rng.randint(0, 1))
    lengths = d.given(d.numbers.integers(1, t + 1, (b,)))
    x = d.fresh(shape, d.rng.choice(("float32", "int64", "uint8")))
    return d.add("ReverseSequence", [x, lengths], batch_axis=first, time_axis=1 - first)


@builder()
def made(d: Draw) -> str:
    """What has its values from shapes and numbers."""
    kind = d.rng.choice(("EyeLike", "Range", "ConstantOfShape", "Shape", "Size"))
    a = d.pick(MOVED, rank=lambda r: r == 2 if kind == "EyeLike" else True)
    if kind == "EyeLike":
        return d.add("EyeLike", [a], k=d.rng.choice((None, 0, 1, -1, 9)), dtype=1)
    if kind == "Range":
        lo, step = d.rng.randint(-5, 5), d.rng.choice((1, 2, -1, -3))
        ends = [d.scalar(v, "int64") for v in (lo, lo + step * d.rng.randint(1, 6), step)]
        return d.add("Cast", [d.add("Range", ends)], to=1)
    if kind == "ConstantOfShape":
        import onnx

        value = onnx.numpy_helper.from_array(np.array([d.rng.randint(1, 4)], "float32"))
        return d.add("ConstantOfShape", [d.known(*d.shape())], value=value)
    ends = {"start": d.axis(3), "end": d.axis(5)} if kind == "Shape" and d.opset >= 15 else {}
    return d.add(kind, [a], **ends)
