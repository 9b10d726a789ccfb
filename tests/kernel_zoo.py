"""Kernels of every class as terms, at any shape: what lowering and printing are tested on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lumc.graph.expr import Expr, add, axis, divmod_, index, mul, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import (
    Buffer,
    Kernel,
    Root,
    binary,
    cast,
    const,
    dtype,
    dyn,
    guard,
    iota,
    load,
    reduce,
    unary,
    wsum,
)

F32, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL
Shapes = Mapping[str, tuple[int, ...]]


def kernel(
    name: str,
    axes: str,
    extent: Mapping[str, int],
    value: Expr | list[tuple[Expr, Expr]],
    shapes: Shapes,
    const: str = "",
    dtypes: Mapping[str, DType] | None = None,
) -> Kernel:
    """One root over all axes into ``out``, or a list of (destination load, value)."""
    kinds = dtypes or {}
    names = tuple(axes.split())
    buffers = [Buffer(b, kinds.get(b, F32), s, b in const.split()) for b, s in shapes.items()]
    if isinstance(value, list):
        roots = tuple(Root(dst.attr[0], dst.kids, v) for dst, v in value)
    else:
        roots = (Root("out", tuple(axis(a) for a in names), value),)
        buffers.append(Buffer("out", dtype(value), tuple(extent[a] for a in names)))
    stored = {b.name: b.dtype.value for b in buffers}
    read = {e.attr for r in roots for e in subterms(r.value) if e.kind == "load"}
    assert all(stored[b] == kind for b, kind in read), f"{name} reads {sorted(read)} of {stored}"
    return Kernel(name, names, extent, roots, tuple(buffers))


def x(buffer: str, *indices: Expr | str | int, kind: DType = F32) -> Expr:
    return load(buffer, kind, *indices)


def c(value: float, kind: DType = F32) -> Expr:
    return const(value, kind)


def plus(a: Expr, b: Expr | float) -> Expr:
    return binary("add", a, b if isinstance(b, Expr) else c(b, dtype(a)))


def times(a: Expr, b: Expr | float) -> Expr:
    return binary("mul", a, b if isinstance(b, Expr) else c(b, dtype(a)))


def minus(a: Expr, b: Expr) -> Expr:
    return plus(a, times(b, -1))


def exp(a: Expr) -> Expr:
    return unary("exp2", times(a, math.log2(math.e)))


def sigmoid(a: Expr) -> Expr:
    return unary("recip", plus(exp(times(a, -1)), 1))


def gelu(a: Expr) -> Expr:
    cube = times(times(a, a), a)
    return times(a, sigmoid(times(plus(a, times(cube, 0.044715)), 1.5957691216)))


def div(e: Expr | str, by: int, extent: Mapping[str, int]) -> Expr:
    return divmod_(index(e), by, {a: (0, n - 1) for a, n in extent.items()})[0]


def mod(e: Expr | str, by: int, extent: Mapping[str, int]) -> Expr:
    return divmod_(index(e), by, {a: (0, n - 1) for a, n in extent.items()})[1]


def total(axes: str, e: Expr) -> Expr:
    return reduce("sum", axes, e)


def greatest(axes: str, e: Expr) -> Expr:
    return reduce("max", axes, e)


# ---- maps


def bias_gelu(m: int, n: int) -> Kernel:
    value = gelu(plus(x("x", "m", "n"), x("b", "n")))
    return kernel("bias_gelu", "m n", {"m": m, "n": n}, value, {"x": (m, n), "b": (n,)})


def transpose(m: int, n: int) -> Kernel:
    return kernel("transpose", "m n", {"m": m, "n": n}, x("x", "n", "m"), {"x": (n, m)})


def turned_gelu(m: int, n: int) -> Kernel:
    """A computation on the way through a transpose."""
    value = gelu(plus(x("x", "n", "m"), x("b", "n")))
    return kernel("turned_gelu", "m n", {"m": m, "n": n}, value, {"x": (n, m), "b": (n,)})


def pad_iota(m: int, n: int) -> Kernel:
    """A pad, a comparison of indices, and a view through // and %."""
    extent = {"m": m, "n": n}
    moved = add("n", -2)
    padded = guard(moved, 0, n - 3, x("x", "m", moved))
    mask = binary("sel", binary("lt", iota("m"), iota("n")), c(-1e3))
    view = x("x", div("m", 2, extent), mod(add(mul("n", 3), "m"), n, extent))
    waves = plus(unary("sin", view), unary("log2", plus(times(view, view), 1)))
    value = plus(plus(padded, mask), waves)
    return kernel("pad_iota", "m n", extent, value, {"x": (m, n)})


def negative_division(n: int) -> Kernel:
    """(4 - n) // 2 is negative in the end, where the guard does not hold."""
    i = div(add(mul("n", -1), 4), 2, {"n": n})
    return kernel("negative_division", "n", {"n": n}, guard(i, 0, n, x("x", i)), {"x": (n,)})


def reflected(m: int, n: int, pad: int) -> Kernel:
    """Padded by what lies behind its edges, rows and columns: guards in guards, reversed reads."""

    def parts(a: str, size: int) -> list[tuple[int, int, Expr]]:
        before, after = add(mul(a, -1), pad), add(mul(a, -1), 2 * size - 2 + pad)
        ends = (pad, pad + size, size + 2 * pad)
        return list(zip((0, *ends), ends, (before, add(a, -pad), after), strict=False))

    value = c(0.0)
    for lo, hi, row in parts("m", m):
        inner = c(0.0)
        for low, high, column in parts("n", n):
            inner = plus(inner, guard("n", low, high, x("x", row, column)))
        value = plus(value, guard("m", lo, hi, inner))
    extent = {"m": m + 2 * pad, "n": n + 2 * pad}
    return kernel("reflected", "m n", extent, value, {"x": (m, n)})


def joined(m: int, a: int, b: int, along: str) -> Kernel:
    """Two operands side by side, or one below the other, the second one negated."""
    moved, rows = add(along, -a), {"m": m, "n": m} | {along: a + b}
    first = guard(along, 0, a, x("x", "m", "n"))
    at = {"m": index("m"), "n": index("n")} | {along: moved}
    second = times(guard(moved, 0, b, x("y", at["m"], at["n"])), -1)
    shapes = {k: tuple((rows | {along: size}).values()) for k, size in (("x", a), ("y", b))}
    return kernel("joined", "m n", rows, plus(first, second), shapes)


def side_by_side(m: int, count: int, width: int, op: str = "") -> Kernel:
    """So many operands, or a function of them."""
    value, shapes = c(0.0), {}
    for i in range(count):
        at = add("n", -i * width)
        value = plus(value, guard(at, 0, width, x(f"x{i}", "m", at)))
        shapes[f"x{i}"] = (m, width)
    value = unary(op, value) if op else value
    return kernel("side_by_side", "m n", {"m": m, "n": count * width}, value, shapes)


def joined_product(m: int, n: int, group: int, inner: int) -> Kernel:
    """A product with three operands side by side along groups of the reduced axis, of which one
    lies across the others: as the gradient of what a layer makes queries, keys and values of."""
    at, size, value = add(mul(axis("o"), inner), axis("k")), group * inner, c(0.0)
    for i, order in enumerate((("m", "k"), ("k", "m"), ("m", "k"))):
        value = plus(
            value, guard(add(at, -i * size), 0, size, x(f"x{i}", add("o", -i * group), *order))
        )
    shapes = {"x0": (group, m, inner), "x1": (group, inner, m), "x2": (group, m, inner)}
    shapes["w"] = (3 * size, n)
    extent = {"m": m, "n": n, "o": 3 * group, "k": inner}
    return kernel(
        "joined_product", "m n", extent, total("o k", times(value, x("w", at, "n"))), shapes
    )


def rolled(m: int, n: int, by: int) -> Kernel:
    """Rows and columns that go round, through %; every second element of a guard is another one."""
    extent = {"m": m, "n": n}
    row, column = mod(add("m", by), m, extent), mod(add("n", by), n, extent)
    some = guard(div("n", 3, extent), 1, 4, x("x", div("m", 2, extent), "n"))
    edge = binary("sel", binary("lt", guard("n", 0, n - 1, c(True, BOOL)), c(True, BOOL)), c(7.0))
    value = plus(plus(x("x", row, column), some), edge)
    return kernel("rolled", "m n", extent, value, {"x": (m, n)})


def chosen(m: int, n: int) -> Kernel:
    """One of two values by a condition that rows share, and the sum of a row of such choices."""

    def one_of(condition: Expr, a: Expr, b: Expr) -> Expr:
        rest = binary("lt", condition, c(True, BOOL))
        return plus(binary("sel", rest, b), binary("sel", condition, a))

    here, shared = x("x", "m", "n"), binary("lt", x("y", "n"), c(0.0))
    small = binary("lt", x("x", "m", "k"), x("y", "k"))
    sums = total("k", one_of(small, x("x", "m", "k"), c(1.0)))
    both = [(x("out", "m", "n"), one_of(shared, unary("exp2", here), times(here, 2.0)))]
    both += [(x("sums", "m"), sums)]
    shapes = {"x": (m, n), "y": (n,), "out": (m, n), "sums": (m,)}
    return kernel("chosen", "m n", {"m": m, "n": n, "k": n}, both, shapes)


def paired(m: int, n: int, k: int) -> Kernel:
    """Rows of ``n`` groups of ``k`` neighbours: each twice, once of another operand."""
    first, last = guard("j", 0, k - 1, x("x", "m", "n")), guard("j", k - 1, k, x("y", "m", "n"))
    both = [(x("out", "m", add(mul("n", k), "j")), times(plus(first, last), 0.5))]
    shapes = {"x": (m, n), "y": (m, n), "out": (m, n * k)}
    return kernel("paired", "m n j", {"m": m, "n": n, "j": k}, both, shapes)


def embed(m: int, words: int, d: int) -> Kernel:
    row = dyn(x("ids", "m", kind=I64))
    value = plus(x("table", row, "d"), x("position", "m", "d"))
    shapes = {"table": (words, d), "ids": (m,), "position": (m, d)}
    return kernel("embed", "m d", {"m": m, "d": d}, value, shapes, dtypes={"ids": I64})


def scalar_add() -> Kernel:
    value = plus(x("x"), x("y"))
    return kernel("scalar_add", "", {}, value, {"x": (), "y": ()})


# ---- rows


def softmax(m: int, n: int) -> Kernel:
    def e(j: str) -> Expr:
        return exp(minus(x("x", "m", j), greatest("i", x("x", "m", "i"))))

    value = times(e("n"), unary("recip", total("j", e("j"))))
    return kernel("softmax", "m n", {"m": m, "n": n, "j": n, "i": n}, value, {"x": (m, n)})


def layernorm(m: int, n: int) -> Kernel:
    mean = times(total("i", x("x", "m", "i")), 1 / n)

    def centred(j: str) -> Expr:
        return minus(x("x", "m", j), mean)

    variance = times(total("j", times(centred("j"), centred("j"))), 1 / n)
    scale = unary("recip", unary("sqrt", plus(variance, 1e-5)))
    value = plus(times(times(centred("n"), scale), x("w", "n")), x("b", "n"))
    shapes = {"x": (m, n), "w": (n,), "b": (n,)}
    return kernel("layernorm", "m n", {"m": m, "n": n, "i": n, "j": n}, value, shapes)


def norm_of_gelu(m: int, n: int) -> Kernel:
    """Three passes over an expensive value."""

    def centred(k: str) -> Expr:
        mean = times(total("i", gelu(x("x", "m", "i"))), 1 / n)
        return minus(gelu(x("x", "m", k)), mean)

    square = times(total("j", times(centred("j"), centred("j"))), 1 / n)
    value = times(centred("n"), unary("recip", unary("sqrt", plus(square, 1e-5))))
    return kernel("norm_of_gelu", "m n", {"m": m, "n": n, "i": n, "j": n}, value, {"x": (m, n)})


def moments(m: int, n: int) -> Kernel:
    """Two independent reductions in one walk."""
    square = times(x("x", "m", "j"), x("x", "m", "j"))
    value = plus(total("j", x("x", "m", "j")), unary("sqrt", total("j", square)))
    return kernel("moments", "m", {"m": m, "j": n}, value, {"x": (m, n)})


def column_sum(m: int, n: int) -> Kernel:
    value = total("m", x("x", "m", "n"))
    return kernel("column_sum", "n", {"m": m, "n": n}, value, {"x": (m, n)})


def column_max(m: int, n: int) -> Kernel:
    value = greatest("m", x("x", "m", "n"))
    return kernel("column_max", "n", {"m": m, "n": n}, value, {"x": (m, n)})


def sum_of_all(m: int, n: int) -> Kernel:
    """A scalar, as nested reductions."""
    value = total("m", total("n", x("x", "m", "n")))
    return kernel("sum_of_all", "", {"m": m, "n": n}, value, {"x": (m, n)})


def squared_product(m: int, k: int, n: int) -> Kernel:
    """A scalar around a contraction: the squares of all elements of a product, added up."""
    inner = total("k", times(x("x", "m", "k"), x("w", "k", "n")))
    value = total("m", total("n", times(inner, inner)))
    shapes = {"x": (m, k), "w": (k, n)}
    return kernel("squared_product", "", {"m": m, "n": n, "k": k}, value, shapes, "w")


def running(
    m: int, n: int, inner: int, how: str = "up", op: str = "sum", kind: DType = F32, said: str = ""
) -> Kernel:
    """``out[m, i, j] = op over k up to i of x[m, k, j]``, or from i down, with or without i. A
    guard leaves the others out, or a mask that is a factor, or a choice."""
    i, k, down = axis("i"), axis("k"), how.startswith("down")
    low, high = (i, k) if down else (k, i)
    value = x("x", "m", "k", "j", kind=kind)
    if said == "guard":
        value = guard(add(high, mul(low, -1)), int(how.endswith("before")), n, value)
    else:
        taken = binary("lt", iota(low), iota(high))
        if not how.endswith("before"):
            taken = binary("lt", binary("lt", iota(high), iota(low)), c(True, BOOL))
        value = times(cast(kind, taken), value) if said else binary("sel", taken, value)
        if op == "max" and said == "mask":
            left = binary("lt", taken, c(True, BOOL))
            value = plus(binary("sel", taken, value), binary("sel", left, c(-math.inf)))
    extent = {"m": m, "i": n, "j": inner, "k": n}
    shapes, kinds = {"x": (m, n, inner)}, {"x": kind}
    return kernel("running", "m i j", extent, reduce(op, "k", value), shapes, dtypes=kinds)


def counted_rows(m: int, n: int, d: int) -> Kernel:
    """Rows of a table by how many elements before are not zero, and a sum over all of them."""
    one = binary("lt", x("x", "m", "k"), c(0.0))
    number = total("k", binary("sel", binary("lt", iota("k"), iota("i")), cast(I64, one)))
    row = x("t", dyn(number), "d")
    roots = [
        (x("row", "m", "i", "d"), plus(row, total("j", x("t", "j", "d")))),
        (x("number", "m", "i", kind=I64), number),
    ]
    shapes = {"x": (m, n), "t": (n, d), "row": (m, n, d), "number": (m, n)}
    extent = {"m": m, "i": n, "d": d, "k": n, "j": n}
    return kernel("counted_rows", "m i d", extent, roots, shapes, dtypes={"number": I64})


def nucleus(m: int, n: int) -> Kernel:
    """Weights of a softmax until they add up to 0.9, with the sum from there on."""
    score = x("x", "m", "k")
    top = greatest("l", x("x", "m", "l"))
    weight = exp(minus(score, top))
    whole = total("j", exp(minus(x("x", "m", "j"), top)))
    before = total("k", binary("sel", binary("lt", iota("k"), iota("i")), weight))
    rest = binary("sel", binary("lt", binary("lt", iota("k"), iota("i")), c(True, BOOL)), weight)
    kept = binary("lt", before, times(whole, 0.9))
    own = exp(minus(x("x", "m", "i"), top))
    value = plus(binary("sel", kept, own), times(total("k", rest), unary("recip", whole)))
    extent = dict.fromkeys("ijkl", n)
    return kernel("nucleus", "m i", {"m": m, **extent}, value, {"x": (m, n)})


def average_pool(channels: int, height: int, width: int) -> Kernel:
    value = times(total("y x", x("x", "c", "y", "x")), 1 / (height * width))
    extent = {"c": channels, "y": height, "x": width}
    return kernel("average_pool", "c", extent, value, {"x": (channels, height, width)})


def max_pool(channels: int, height: int, width: int, k: int = 2, step: int = 2) -> Kernel:
    ny, nx = (height - k) // step + 1, (width - k) // step + 1
    read = x("x", "c", add(mul("y", step), "u"), add(mul("x", step), "v"))
    extent = {"c": channels, "y": ny, "x": nx, "u": k, "v": k}
    value = greatest("u v", read)
    return kernel("max_pool", "c y x", extent, value, {"x": (channels, height, width)})


def broadcast_sum(m: int, n: int, k: int) -> Kernel:
    """The result has an axis that its value lacks."""
    value = total("k", times(x("x", "m", "k"), x("w", "k")))
    shapes = {"x": (m, k), "w": (k,)}
    return kernel("broadcast_sum", "m n", {"m": m, "n": n, "k": k}, value, shapes)


# ---- contractions


def matmul(m: int, n: int, k: int, turned: bool = False, weight: bool = True) -> Kernel:
    b = x("w", "n", "k") if turned else x("w", "k", "n")
    value = total("k", times(x("x", "m", "k"), b))
    shapes = {"x": (m, k), "w": (n, k) if turned else (k, n)}
    name = "matmul" + "_turned" * turned
    return kernel(name, "m n", {"m": m, "n": n, "k": k}, value, shapes, "w" if weight else "")


def turned_matmul(m: int, n: int, k: int) -> Kernel:
    return matmul(m, n, k, True, False)


def gemv(n: int, k: int, turned: bool = True) -> Kernel:
    return matmul(1, n, k, turned)


def linear_gelu(m: int, n: int, k: int) -> Kernel:
    product = total("k", times(x("x", "m", "k"), x("w", "n", "k")))
    shapes = {"x": (m, k), "w": (n, k), "b": (n,)}
    value = gelu(plus(product, x("b", "n")))
    return kernel("linear_gelu", "m n", {"m": m, "n": n, "k": k}, value, shapes, "w b")


def head_linear(m: int, heads: int, d: int, k: int) -> Kernel:
    """A projection whose result is stored by heads, from an input that is read by heads."""
    product = total("k", times(x("x", "m", "k"), x("w", add(mul("h", d), "d"), "k")))
    value = plus(product, x("b", add(mul("h", d), "d")))
    shapes = {"x": (m, k), "w": (heads * d, k), "b": (heads * d,)}
    extent = {"h": heads, "m": m, "d": d, "k": k}
    return kernel("head_linear", "h m d", extent, value, shapes, "w b")


def rms_scale(k: int) -> Expr:
    square = total("j", times(x("x", "m", "j"), x("x", "m", "j")))
    return unary("recip", unary("sqrt", plus(times(square, 1 / k), 1e-5)))


def rms_linear_residual(m: int, n: int, k: int) -> Kernel:
    """A statistic and a scale before the contraction, an addition after it."""
    a = times(times(x("x", "m", "k"), rms_scale(k)), x("g", "k"))
    value = plus(x("r", "m", "n"), total("k", times(a, x("w", "k", "n"))))
    shapes = {"x": (m, k), "g": (k,), "w": (k, n), "r": (m, n)}
    extent = {"m": m, "n": n, "k": k, "j": k}
    return kernel("rms_linear_residual", "m n", extent, value, shapes, "w g")


def gated(m: int, n: int, k: int) -> Kernel:
    """Two contractions share their loop and their left operand."""
    a, b = (total("k", times(x("x", "m", "k"), x(w, "k", "n"))) for w in ("w1", "w3"))
    value = times(times(a, sigmoid(a)), b)
    shapes = {"x": (m, k), "w1": (k, n), "w3": (k, n)}
    return kernel("gated", "m n", {"m": m, "n": n, "k": k}, value, shapes, "w1 w3")


def scores(heads: int, m: int, n: int, d: int) -> Kernel:
    extent = {"h": heads, "q": m, "j": n, "e": d}
    key = x("k", "j", div("h", 2, extent), "e")
    value = times(total("e", times(x("q", "q", "h", "e"), key)), d**-0.5)
    shapes = {"q": (m, heads, d), "k": (n, (heads + 1) // 2, d)}
    return kernel("scores", "h q j", extent, value, shapes)


def mod_matmul(m: int, n: int, k: int) -> Kernel:
    """// and % of the axes of the register tile: cannot be read in place."""
    extent = {"m": m, "n": n, "k": k}
    a, b = x("x", div("m", 2, extent), "k"), x("w", mod("k", 7, extent), "n")
    shapes = {"x": (m, k), "w": (7, n)}
    return kernel("mod_matmul", "m n", extent, total("k", times(a, b)), shapes, "w")


def batched_matmul(batch: int, m: int, n: int, k: int) -> Kernel:
    """The rows of a register tile can cover two axes."""
    value = total("k", times(x("x", "a", "m", "k"), x("w", "n", "k")))
    extent = {"a": batch, "m": m, "n": n, "k": k}
    shapes = {"x": (batch, m, k), "w": (n, k)}
    return kernel("batched_matmul", "a m n", extent, value, shapes, "w")


def conv(
    out: int,
    channels: int,
    height: int,
    width: int,
    k: int = 3,
    pad: int = 1,
    step: int = 1,
    bias: bool = True,
) -> Kernel:
    iy, ix = (add(mul(a, step), u, -pad) for a, u in (("y", "u"), ("x", "v")))
    ny, nx = ((n + 2 * pad - k) // step + 1 for n in (height, width))
    read = guard(iy, 0, height, guard(ix, 0, width, x("x", "c", iy, ix)))
    nested = total("c", total("u", total("v", times(x("w", "o", "c", "u", "v"), read))))
    shapes = {"w": (out, channels, k, k), "x": (channels, height, width)}
    if bias:
        nested, shapes = plus(nested, x("b", "o")), {**shapes, "b": (out,)}
    extent = {"o": out, "y": ny, "x": nx, "c": channels, "u": k, "v": k}
    return kernel(f"conv{k}s{step}", "o y x", extent, nested, shapes, "w b")


def scaled_blocks(m: int, groups: int, k: int, n: int) -> Kernel:
    """A product of rows whose blocks of neighbours are shifted and scaled alike."""
    at = add(mul("g", k), "k")
    left = times(plus(x("x", "m", at), x("b", "g")), x("s", "g"))
    value = plus(total("g k", times(left, x("w", "n", at))), x("c", "n"))
    extent = {"m": m, "n": n, "g": groups, "k": k}
    shapes = {"x": (m, groups * k), "w": (n, groups * k), "c": (n,)}
    return kernel(
        "scaled_blocks", "m n", extent, value, {**shapes, **dict.fromkeys("bs", (groups,))}, "wc"
    )


def bordered_conv(out: int, channels: int, height: int, width: int, ky: int, by: int) -> Kernel:
    """Windows of ky x 3 whose rows lie ``by`` apart: many of these lie beyond the border. The
    innermost steps go along them."""
    before = by * (ky - 1) // 2
    iy, ix = add("y", mul("z", by), -before), add("x", "v", -1)
    read = guard(iy, 0, height, guard(ix, 0, width, x("x", "c", iy, ix)))
    nested = total("c", total("v", total("z", times(x("w", "o", "c", "z", "v"), read))))
    shapes = {"w": (out, channels, ky, 3), "x": (channels, height, width)}
    extent = {"o": out, "y": height, "x": width, "c": channels, "z": ky, "v": 3}
    return kernel("bordered_conv", "o y x", extent, nested, shapes, "w")


def normalized_conv(out: int, channels: int, height: int, width: int, last: bool) -> Kernel:
    """Channels first, or last: a convolution, then ``* g[o] / sqrt(v[o])`` and ``max(., 0)``."""
    place = ("y", "x", "o") if last else ("o", "y", "x")
    iy, ix = add("y", "u", -1), add("x", "v", -1)
    at = (iy, ix, "c") if last else ("c", iy, ix)
    read = guard(iy, 0, height, guard(ix, 0, width, x("x", *at)))
    order = "u v c" if last else "c u v"
    value = total(order, times(x("w", "o", "c", "u", "v"), read))
    scaled = times(value, times(x("g", "o"), unary("recip", unary("sqrt", x("v", "o")))))
    positive = binary("lt", c(0.0), scaled)
    sizes = {"o": out, "y": height, "x": width, "c": channels}
    shapes = {
        "w": (out, channels, 3, 3),
        "x": tuple(sizes[a] for a in (("y", "x", "c") if last else ("c", "y", "x"))),
        **dict.fromkeys("gv", (out,)),
    }
    extent = {**{a: sizes[a] for a in place}, "c": channels, "u": 3, "v": 3}
    body = binary("sel", positive, scaled)
    return kernel("normalized_conv", " ".join(place), extent, body, shapes, "w g v")


def pooled_beside(before: int, channels: int, height: int, width: int, last: bool) -> Kernel:
    """Some channels as they are, then of others the maxima or, if ``last``, sums of windows."""
    place = ("y", "x", "c") if last else ("c", "y", "x")
    iy, ix, ic = add("y", "u", -1), add("x", "v", -1), add("c", -before)
    at = (iy, ix, ic) if last else (ic, iy, ix)
    read = guard(ic, 0, channels, guard(iy, 0, height, guard(ix, 0, width, x("x", *at))))
    walk = total("u v", times(read, x("w", "u", "v"))) if last else greatest("u v", read)
    value = plus(guard("c", 0, before, x("z", *place)), walk)
    sizes = {"c": before + channels, "y": height, "x": width}
    shapes = {"x": {**sizes, "c": channels}, "z": {**sizes, "c": before}}
    buffers = {b: tuple(own[a] for a in place) for b, own in shapes.items()}
    extent = {**{a: sizes[a] for a in place}, "u": 3, "v": 3}
    return kernel("pooled_beside", " ".join(place), extent, value, {**buffers, "w": (3, 3)}, "w")


def windows(
    channels: int,
    height: int,
    width: int,
    k: int,
    step: int,
    last: bool,
    kind: str = "sum",
    dtype: DType = F32,
) -> Kernel:
    """Every channel alone, first or last: padded windows weighted and summed, or their maximum."""
    pad, place = k // 2, ("y", "x", "c") if last else ("c", "y", "x")
    iy, ix = (add(mul(a, step), u, -pad) for a, u in (("y", "u"), ("x", "v")))
    at = (iy, ix, "c") if last else ("c", iy, ix)

    def inside(e: Expr) -> Expr:
        return guard(iy, 0, height, guard(ix, 0, width, e))

    read = inside(x("x", *at, kind=dtype))
    shapes = {"x": (height, width, channels) if last else (channels, height, width)}
    if kind == "sum":
        value = total("u v", times(read, x("w", "c", "u", "v", kind=dtype)))
        shapes["w"] = (channels, k, k)
    else:
        outside = binary("lt", inside(const(True, BOOL)), const(True, BOOL))
        value = greatest("u v", plus(read, binary("sel", outside, c(-math.inf, dtype))))
    sizes = {"c": channels, "y": (height - 1) // step + 1, "x": (width - 1) // step + 1}
    extent = {**{a: sizes[a] for a in place}, "u": k, "v": k}
    kinds, name = dict.fromkeys(shapes, dtype), f"windows_{kind}"
    return kernel(name, " ".join(place), extent, plus(value, value), shapes, "w", kinds)


def qkv(m: int, n: int, k: int) -> Kernel:
    """Three roots share the loop, the statistic and the left operand."""
    value = {
        o: times(total("k", times(x("x", "m", "k"), x(w, "k", "n"))), rms_scale(k))
        for o, w in (("q", "wq"), ("k", "wk"), ("v", "wv"))
    }
    roots = [(x(o, "m", "n"), v) for o, v in value.items()]
    weights = dict.fromkeys(("wq", "wk", "wv"), (k, n))
    shapes = {"x": (m, k), **weights, **dict.fromkeys(value, (m, n))}
    extent = {"m": m, "n": n, "k": k, "j": k}
    return kernel("qkv", "m n", extent, roots, shapes, "wq wk wv")


# ---- weighted sums


def attention(
    heads: int, m: int, n: int, d: int, group: int = 1, mask: bool = True, causal: bool = False
) -> Kernel:
    extent = {"h": heads, "q": m, "j": n, "e": d, "d": d}
    h = div("h", group, extent)
    product = total("e", times(x("Q", "h", "q", "e"), x("K", h, "j", "e")))
    s = times(product, d**-0.5 * math.log2(math.e))
    if mask:
        s = plus(s, x("mask", "q", "j"))
    if causal:
        s = plus(s, binary("sel", binary("lt", iota("q"), iota("j")), c(-np.inf)))
    value = times(wsum("j", s, x("V", h, "j", "d")), unary("recip", wsum("j", s, c(1.0))))
    kv = -(-heads // group)
    shapes = {"Q": (heads, m, d), "K": (kv, n, d), "V": (kv, n, d)}
    if mask:
        shapes["mask"] = (m, n)
    return kernel("attention", "h q d", extent, value, shapes)


def masked_attention(heads: int, s: int, d: int) -> Kernel:
    """Heads are views of [s, heads*d]; the mask comes from integers; the result is [s, h, d]."""
    extent = {"h": heads, "q": s, "j": s, "e": d, "d": d}
    product = total(
        "e", times(x("Q", "q", add(mul("h", d), "e")), x("K", "j", add(mul("h", d), "e")))
    )
    open_ = cast(F32, x("mask", "j", kind=I64))
    masked = times(minus(c(1.0), open_), -1e9)
    score = plus(times(product, d**-0.5 * math.log2(math.e)), masked)
    value_read = x("V", "j", add(mul("h", d), "d"))
    value = times(wsum("j", score, value_read), unary("recip", wsum("j", score, c(1.0))))
    shapes = dict.fromkeys("QKV", (s, heads * d)) | {"mask": (s,)}
    return kernel("masked_attention", "q h d", extent, value, shapes, dtypes={"mask": I64})


def unfused_attention(m: int, n: int, d: int) -> Kernel:
    """The scores are a stage below two reductions."""

    def s(j: str) -> Expr:
        return times(total("e", times(x("Q", "q", "e"), x("K", j, "e"))), d**-0.5)

    def p(j: str) -> Expr:
        return exp(minus(s(j), greatest("i", s("i"))))

    top = total("j", times(p("j"), x("V", "j", "d")))
    value = times(top, unary("recip", total("l", p("l"))))
    extent = {"q": m, "i": n, "j": n, "l": n, "e": d, "d": d}
    shapes = {"Q": (m, d), "K": (n, d), "V": (n, d)}
    return kernel("unfused_attention", "q d", extent, value, shapes)


def decode(groups: int, rows: int, n: int, d: int) -> Kernel:
    """One query per head, the head axis refined into (g, r): r is a row axis."""
    extent = {"g": groups, "r": rows, "j": n, "e": d, "d": d}
    product = total("e", times(x("Q", add(mul("g", rows), "r"), "e"), x("K", "g", "j", "e")))
    s = times(product, d**-0.5)
    value = times(wsum("j", s, x("V", "g", "j", "d")), unary("recip", wsum("j", s, c(1.0))))
    shapes = {"Q": (groups * rows, d), "K": (groups, n, d), "V": (groups, n, d)}
    return kernel("decode", "g r d", extent, value, shapes)


def split_attention(heads: int, m: int, outer: int, inner: int, d: int) -> Kernel:
    """A weighted sum over two axes as a weighted sum of maxima and weighted sums."""
    j = add(mul("i", inner), "j")
    s = times(total("e", times(x("Q", "h", "q", "e"), x("K", "h", j, "e"))), d**-0.5)

    def both(v: Expr) -> Expr:
        return wsum("i", greatest("j", s), wsum("j", s, v))

    value = times(both(x("V", "h", j, "d")), unary("recip", both(c(1.0))))
    extent = {"h": heads, "q": m, "i": outer, "j": inner, "e": d, "d": d}
    keys = (heads, outer * inner, d)
    shapes = {"Q": (heads, m, d), "K": keys, "V": keys}
    return kernel("split_attention", "h q d", extent, value, shapes)


def attention_parts(heads: int, rows: int, outer: int, inner: int, d: int) -> Kernel:
    """Maximum, sum and result of every part: three roots, one without the axis d."""
    j = add(mul("i", inner), "j")
    s = times(total("e", times(x("Q", "h", "q", "e"), x("K", "h", j, "e"))), d**-0.5)
    roots = [
        (x("m", "h", "i", "q"), greatest("j", s)),
        (x("l", "h", "i", "q"), wsum("j", s, c(1.0))),
        (x("o", "h", "i", "q", "d"), wsum("j", s, x("V", "h", j, "d"))),
    ]
    keys, part = (heads, outer * inner, d), (heads, outer, rows)
    shapes = {"Q": (heads, rows, d), "K": keys, "V": keys, "m": part, "l": part, "o": (*part, d)}
    extent = {"h": heads, "i": outer, "q": rows, "j": inner, "e": d, "d": d}
    return kernel("attention_parts", "h i q d", extent, roots, shapes)


def attention_join(heads: int, rows: int, outer: int, d: int) -> Kernel:
    """A weighted sum whose scores are a plain load."""

    def weigh(v: Expr) -> Expr:
        return wsum("i", x("m", "h", "i", "q"), v)

    top, below = weigh(x("o", "h", "i", "q", "d")), weigh(x("l", "h", "i", "q"))
    extent = {"h": heads, "q": rows, "i": outer, "d": d}
    part = (heads, outer, rows)
    shapes = {"m": part, "l": part, "o": (*part, d)}
    value = times(top, unary("recip", below))
    return kernel("attention_join", "h q d", extent, value, shapes)


# ---- several roots and updates in place


def cache_update(heads: int, size: int, d: int) -> Kernel:
    """A store at a position that is data, and a value computed beside it."""
    at = dyn(x("position", 0, kind=I32))
    product = total("e", times(x("x", "h", "e"), x("w", "e", "d")))
    roots = [(x("cache", "h", at, "d"), product), (x("y", "h", "d"), times(x("x", "h", "d"), 2))]
    shapes = {"x": (heads, d), "w": (d, d), "position": (1,)}
    shapes |= {"cache": (heads, size, d), "y": (heads, d)}
    extent = {"h": heads, "d": d, "e": d}
    return kernel("cache_update", "h d", extent, roots, shapes, "w", {"position": I32})


def add_in_place(m: int, n: int) -> Kernel:
    roots = [(x("x", "m", "n"), plus(x("x", "m", "n"), x("y", "m", "n")))]
    return kernel("add_in_place", "m n", {"m": m, "n": n}, roots, {"x": (m, n), "y": (m, n)})


def stored_moments(m: int, n: int) -> Kernel:
    mean = times(total("i", x("x", "m", "i")), 1 / n)
    d = minus(x("x", "m", "j"), mean)
    variance = times(total("j", times(d, d)), 1 / n)
    roots = [(x("mean", "m"), mean), (x("var", "m"), variance)]
    shapes = {"x": (m, n), "mean": (m,), "var": (m,)}
    return kernel("stored_moments", "m", {"m": m, "i": n, "j": n}, roots, shapes)


def row_update(m: int, n: int, k: int) -> Kernel:
    """A root without the axis n, updated in place beside one that has it."""
    product = total("k", times(x("x", "m", "k"), x("w", "k", "n")))
    updated = plus(x("acc", "m"), total("j", x("x", "m", "j")))
    roots = [(x("acc", "m"), updated), (x("y", "m", "n"), product)]
    shapes = {"x": (m, k), "w": (k, n), "acc": (m,), "y": (m, n)}
    extent = {"m": m, "n": n, "k": k, "j": k}
    return kernel("row_update", "m n", extent, roots, shapes, "w")


def padded_sum(m: int, n: int, k: int) -> Kernel:
    """A reduction under a guard: it must not be computed where the guard does not hold."""
    moved = add("m", -2)
    inner = total("k", times(x("x", moved, "k"), x("w", "k", "n")))
    value = guard(moved, 0, m - 3, inner)
    shapes = {"x": (m - 3, k), "w": (k, n)}
    return kernel("padded_sum", "m n", {"m": m, "n": n, "k": k}, value, shapes, "w")


# ---- dtypes


def typed_matmul(m: int, n: int, k: int, kind: DType) -> Kernel:
    value = total("k", times(x("x", "m", "k", kind=kind), x("w", "k", "n", kind=kind)))
    kinds = {"x": kind, "w": kind}
    extent, shapes = {"m": m, "n": n, "k": k}, {"x": (m, k), "w": (k, n)}
    return kernel(f"matmul_{kind.value}", "m n", extent, value, shapes, "w", kinds)


def levels(m: int, n: int, o: int, k: int, kind: DType, bits: int = 0, form: str = "") -> Kernel:
    """A product with weights in blocks of k levels: scaled, ``shifted``, ``nested`` (factors and
    offsets of blocks), ``normed`` rows, ``turned`` (blocks lie apart in the rows) or ``bare``."""
    at = add(mul(axis("o"), k), axis("k"))
    level, kinds = cast(F32, x("levels", "n", at, kind=kind)), {"levels": kind}
    shapes = {"x": (m, o * k), "levels": (n, o * k)}

    def part(name: str, kind: DType) -> Expr:
        shapes[name], kinds[name] = (n, o), kind
        return cast(F32, x(name, "n", "o", kind=kind))

    b = level if form == "bare" else times(part("scales", F16), level)
    if form == "nested":
        b = plus(times(part("factors", U8), b), times(part("mins", F16), part("offsets", U8)))
    if form == "shifted":
        b = plus(b, part("mins", F16))
    extent = {"m": m, "n": n, "o": o, "k": k}
    a = x("x", "m", at)
    if form == "turned":
        shapes["x"], a = (m, k, o), x("x", "m", "k", "o")
    if form == "normed":
        extent["j"] = o * k
        a = times(a, unary("recip", plus(total("j", times(x("x", "m", "j"), x("x", "m", "j"))), 1)))
    if form in ("bytes", "coded"):
        extent["l"] = k
        inner = add(mul(axis("o"), k), axis("l"))
        largest = reduce("max", ["l"], times(x("x", "m", inner), x("x", "m", inner)))
        by = plus(unary("sqrt", largest), 1e-30)
        code = cast(I8, times(times(a, unary("recip", by)), 126.5))
        a = times(cast(F32, code), times(by, 1 / 126.5))
        b = plus(b, part("mins", F16)) if form == "coded" else b
    axes = "k o" if form == "turned" else "o k"
    value = total(axes, times(a, b))
    made = kernel("levels", "m n", extent, value, shapes, " ".join([*shapes][1:]), kinds)
    few = (replace(b, few=bits) if bits and b.name == "levels" else b for b in made.buffers)
    return replace(made, buffers=tuple(few))


def byte_matmul(m: int, n: int, k: int, turned: bool = False) -> Kernel:
    """Bytes, summed in 32 bits."""
    w = x("w", *("nk" if turned else "kn"), kind=I8)
    value = total("k", times(cast(I32, x("x", "m", "k", kind=I8)), cast(I32, w)))
    shapes = {"x": (m, k), "w": (n, k) if turned else (k, n)}
    extent = {"m": m, "n": n, "k": k}
    return kernel("matmul_bytes", "m n", extent, value, shapes, "w", {"x": I8, "w": I8})


def typed_rows(m: int, n: int, kind: DType) -> Kernel:
    """sum, max and arithmetic that wraps or rounds in one dtype."""
    read = x("x", "m", "j", kind=kind)
    square = times(x("x", "m", "n", kind=kind), x("x", "m", "n", kind=kind))
    value = plus(plus(total("j", read), greatest("i", x("x", "m", "i", kind=kind))), square)
    extent = {"m": m, "n": n, "j": n, "i": n}
    name = f"rows_{kind.value}"
    return kernel(name, "m n", extent, value, {"x": (m, n)}, dtypes={"x": kind})


def typed_mod(n: int, kind: DType) -> Kernel:
    """A remainder (by zero too), a comparison, a select and an equality."""
    a, b = x("x", "n", kind=kind), x("y", "n", kind=kind)
    value = plus(binary("mod", a, b), binary("sel", binary("lt", a, b), times(a, b)))
    value = plus(value, binary("sel", binary("eq", a, b), c(1, kind)))
    shapes = {"x": (n,), "y": (n,)}
    return kernel(f"mod_{kind.value}", "n", {"n": n}, value, shapes, dtypes={"x": kind, "y": kind})


def cast_chain(n: int, source: DType, kind: DType) -> Kernel:
    value = cast(kind, x("x", "n", kind=source))
    name = f"cast_{source.value}_{kind.value}"
    return kernel(name, "n", {"n": n}, value, {"x": (n,)}, dtypes={"x": source})


def bool_rows(m: int, n: int) -> Kernel:
    """Any, a select by a stored mask, and negation."""
    flag = x("x", "m", "j", kind=BOOL)
    any_ = greatest("j", flag)
    none = binary("lt", any_, const(True, BOOL))
    value = binary("or", none, binary("lt", x("y", "m"), c(0.5)))
    shapes = {"x": (m, n), "y": (m,)}
    return kernel("bool_rows", "m", {"m": m, "j": n}, value, shapes, dtypes={"x": BOOL})


def mixed_linear(m: int, n: int, k: int, kind: DType) -> Kernel:
    """Narrow weights and inputs, f32 bias and result."""
    a, b = (cast(F32, e) for e in (x("x", "m", "k", kind=kind), x("w", "n", "k", kind=kind)))
    value = plus(total("k", times(a, b)), x("b", "n"))
    shapes, kinds = {"x": (m, k), "w": (n, k), "b": (n,)}, {"x": kind, "w": kind}
    name = f"mixed_linear_{kind.value}"
    return kernel(name, "m n", {"m": m, "n": n, "k": k}, value, shapes, "w b", kinds)


def narrow_attention(heads: int, m: int, n: int, d: int, kind: DType) -> Kernel:
    def read(b: str, *i: str) -> Expr:
        return x(b, *i, kind=kind)

    product = total("e", times(read("Q", "h", "q", "e"), read("K", "h", "j", "e")))
    s = times(product, const(d**-0.5, kind))
    below = wsum("j", s, const(1.0, kind))
    value = times(wsum("j", s, read("V", "h", "j", "d")), unary("recip", below))
    shapes = {"Q": (heads, m, d), "K": (heads, n, d), "V": (heads, n, d)}
    extent = {"h": heads, "q": m, "j": n, "e": d, "d": d}
    kinds = dict.fromkeys(shapes, kind)
    return kernel(f"attention_{kind.value}", "h q d", extent, value, shapes, dtypes=kinds)


F64, F16, BF16, I8, U8 = DType.F64, DType.F16, DType.BF16, DType.I8, DType.U8
FAMILIES = {
    bias_gelu: [(1, 1), (17, 100), (32, 64)],
    negative_division: [(17,), (64,)],
    transpose: [(3, 17), (100, 137), (64, 64)],
    turned_gelu: [(3, 17), (40, 37), (64, 64)],
    pad_iota: [(3, 17), (6, 40), (17, 137)],
    chosen: [(1, 1), (3, 17), (17, 137)],
    embed: [(1, 3, 1), (7, 50, 33), (16, 100, 64)],
    scalar_add: [()],
    softmax: [(1, 3), (17, 100), (5, 137), (16, 256)],
    layernorm: [(1, 3), (17, 137), (16, 256)],
    norm_of_gelu: [(3, 17), (17, 137), (16, 256)],
    moments: [(3, 17), (17, 137)],
    column_sum: [(3, 17), (17, 137), (64, 64)],
    column_max: [(3, 17), (64, 64)],
    sum_of_all: [(3, 17), (17, 137)],
    running: [
        (3, 17, 5),
        (2, 137, 1, "up before"),
        (1, 100, 17, "down"),
        (5, 64, 1, "down before"),
        (1, 2, 33, "up", "max"),
        (2, 70, 1, "down", "max"),
        (1, 300, 1),
        (3, 40, 20, "up before", "max", F32, "guard"),
        (3, 70, 1, "up", "sum", F32, "guard"),
        (2, 33, 64, "down before", "sum", F32, "guard"),
        (2, 33, 7, "up", "sum", F32, "mask"),
        (2, 90, 1, "down before", "max", F32, "mask"),
        *((2, 70, n, "up", op, k) for k, op in ((F64, "sum"), (I32, "max")) for n in (1, 9)),
        *((3, 37, 1, "down before", "sum", k) for k in (F16, I64, U8)),
        (1, 1, 3),
        (4, 1, 1, "up before"),
        (2, 0, 3),
    ],
    counted_rows: [(1, 3, 1), (3, 17, 5), (2, 40, 64)],
    nucleus: [(1, 3), (5, 137), (16, 64)],
    average_pool: [(1, 3, 5), (17, 7, 9)],
    broadcast_sum: [(3, 5, 17), (17, 33, 64)],
    max_pool: [(1, 3, 5), (3, 9, 17), (4, 16, 32), (2, 9, 17, 3, 2)],
    matmul: [(1, 1, 1), (3, 17, 5), (17, 100, 137), (100, 137, 17), (64, 96, 64)],
    turned_matmul: [(3, 17, 5), (17, 100, 137), (64, 96, 64)],
    gemv: [(17, 3), (100, 137), (64, 256), (17, 3, False), (64, 256, False)],
    linear_gelu: [(3, 17, 5), (17, 100, 137), (64, 96, 64)],
    head_linear: [(5, 2, 3, 7), (33, 4, 16, 40)],
    rms_linear_residual: [(3, 17, 5), (17, 100, 137), (64, 96, 64)],
    gated: [(3, 17, 5), (17, 100, 37), (32, 48, 64)],
    scores: [(3, 3, 17, 5), (4, 17, 33, 20), (2, 32, 64, 16)],
    mod_matmul: [(17, 50, 20), (32, 96, 16)],
    batched_matmul: [(3, 5, 17, 20), (4, 14, 48, 32)],
    conv: [
        (3, 1, 3, 3),
        (10, 3, 9, 17),
        (8, 4, 16, 16),
        (10, 3, 9, 17, 3, 1, 2),
        (6, 5, 7, 20, 1, 0),
        (16, 3, 6, 40, 5, 2),
        (20, 2, 5, 71, 3, 1, 2),
        (4, 2, 11, 10, 5, 2, 2, False),
    ],
    pooled_beside: [
        *((b, ch, 5, 9, last) for b, ch in ((3, 2), (20, 33)) for last in (False, True)),
        (16, 16, 7, 20, True),
    ],
    windows: [
        *((5, 9, 13, k, step, last) for k in (2, 3) for step in (1, 2) for last in (False, True)),
        (20, 7, 30, 3, 1, True),
        (3, 14, 28, 5, 1, False),
        (16, 7, 7, 7, 1, True),
        (33, 5, 8, 3, 3, True),
        (4, 14, 14, 7, 1, False),
        (6, 11, 29, 5, 2, False),
        (3, 7, 40, 7, 3, False),
        (1, 1, 1, 3, 1, True),
        *((6, 9, 20, 3, 2, last, "max") for last in (False, True)),
        *((4, 14, 13, k, 1, False, "max") for k in (3, 5, 9)),
        *((6, 9, 20, 3, 1, True, "sum", kind) for kind in (F64, F16, I32)),
        *((2, 13, width, 3, 2, False, kind) for width in (70, 112) for kind in ("sum", "max")),
        (2, 9, 75, 5, 2, False),
    ],
    qkv: [(3, 17, 5), (17, 48, 37), (32, 64, 64)],
    scaled_blocks: [(1, 1, 3, 5), (64, 8, 8, 64), (33, 5, 4, 18)],
    bordered_conv: [
        (20, 5, 7, 9, 3, 1),
        (17, 3, 4, 18, 7, 1),
        (33, 4, 9, 5, 3, 6),
        (8, 2, 1, 16, 5, 2),
        (17, 3, 4, 40, 3, 1),
        (16, 2, 3, 1, 3, 1),
    ],
    normalized_conv: [
        (5, 3, 7, 9, False),
        (17, 20, 9, 30, False),
        (32, 16, 29, 17, True),
        (3, 1, 1, 1, True),
    ],
    attention: [
        (2, 3, 17, 5),
        (4, 17, 100, 33, 2),
        (2, 32, 64, 16),
        (3, 17, 137, 8, 1, False, True),
    ],
    masked_attention: [(2, 7, 5), (3, 40, 16)],
    unfused_attention: [(3, 17, 5), (17, 33, 20), (32, 64, 16)],
    decode: [(2, 3, 17, 5), (2, 4, 100, 32)],
    split_attention: [(2, 3, 3, 17, 5), (2, 17, 4, 32, 16)],
    attention_parts: [(2, 4, 3, 17, 5), (2, 4, 4, 64, 16)],
    attention_join: [(2, 4, 3, 5), (2, 4, 8, 16)],
    cache_update: [(2, 3, 17), (4, 8, 32)],
    add_in_place: [(3, 17), (17, 137)],
    stored_moments: [(17, 137), (8, 64)],
    row_update: [(17, 50, 20), (32, 96, 16)],
    padded_sum: [(9, 17, 5), (40, 64, 33)],
    typed_matmul: [(17, 50, 20, k) for k in (F64, F16, BF16, I64, I32, I8, U8)],
    byte_matmul: [(3, 17, 5), (17, 100, 137, True), (48, 64, 96)],
    typed_rows: [(5, 37, k) for k in (F64, F16, BF16, I64, I32, I8, U8)],
    typed_mod: [(70, k) for k in (F32, F64, I64, I32, I8, U8)],
    cast_chain: [
        *((50, a, F32) for a in (F64, F16, BF16, I64, I32, I8, U8, BOOL)),
        *((50, F32, a) for a in (F64, F16, BF16, I64, I32, I8, U8, BOOL)),
        *((50, I64, a) for a in (I32, I8, U8, BOOL, F64)),
    ],
    bool_rows: [(17, 37)],
    mixed_linear: [
        *((17, 50, 20, k) for k in (F16, BF16, I8, U8)),
        *((1, 100, 137, k) for k in (F16, BF16, I8)),
    ],
    narrow_attention: [(2, 17, 33, 16, k) for k in (F64, F16, BF16)],
    reflected: [(2, 2, 1), (5, 40, 3), (33, 37, 4), (1, 17, 0)],
    joined: [
        (1, 1, 1, "n"),
        (17, 20, 1, "n"),
        (6, 33, 64, "n"),
        (17, 1, 5, "m"),
        (40, 20, 13, "m"),
    ],
    side_by_side: [(3, 17, 37), (17, 20, 64, "exp2")],
    joined_product: [(3, 17, 2, 5), (40, 100, 2, 32), (37, 64, 1, 8)],
    rolled: [(1, 17, 1), (7, 33, 3), (40, 130, 5)],
    paired: [(1, 1, 2), (3, 50, 2), (17, 33, 3), (5, 64, 4), (5, 20, 5)],
    squared_product: [(3, 17, 5), (17, 40, 137), (64, 64, 64)],
    levels: [
        (1, 3, 1, 8, U8, 4, "bare"),
        (1, 100, 3, 32, U8, 4, "shifted"),
        (17, 130, 3, 16, I8, 4, "normed"),
        (5, 64, 2, 24, U8, 4, "nested"),
        (3, 37, 5, 16, I8),
        (1, 64, 4, 32, I8, 0, "turned"),
        (7, 65, 3, 8, I8, 4, "turned"),
        (40, 48, 1, 32, U8, 4, "shifted"),
        (1, 64, 3, 32, U8, 4, "coded"),
        (7, 130, 2, 16, I8, 4, "coded"),
        (3, 37, 3, 12, I8, 0, "bytes"),
    ],
}


def random_inputs(k: Kernel, seed: int) -> dict[str, np.ndarray]:
    """Distinct random values for every buffer that is read or updated; indices in range."""
    rng = np.random.default_rng(seed)
    loads = {e.attr[0] for v in k.values for e in subterms(v) if e.kind == "load"}
    moved = {r.buffer for r in k.roots if any(i.kind != "axis" for i in r.index)}
    bounds = {"ids": ("table", 0), "position": ("cache", 1)}
    out = {}
    for b in k.buffers:
        if b.name not in loads | moved | {"position"}:
            continue
        if b.name in bounds and b.dtype.is_int:
            other, at = bounds[b.name]
            values = rng.integers(0, k.buffer(other).shape[at], b.shape)
        elif b.name == "mask" and b.dtype is I64:
            values = rng.integers(0, 2, b.shape)
            values[0] = 1  # -1e9 beside every score of a row leaves nothing of them in f32
        elif k.name == "attention_join" and b.name == "l":
            values = 1 + rng.random(b.shape)  # sums of powers, the greatest of which is 1
        elif b.dtype is BF16:
            bits = rng.standard_normal(b.shape).astype(np.float32).view(np.uint32)
            values = bits >> 16
        elif b.dtype.is_float:
            values = rng.standard_normal(b.shape)
        elif b.dtype is BOOL:
            values = rng.integers(0, 2, b.shape)
        elif b.bits:
            values = rng.integers(0, 1 << b.bits, b.shape) - (b.dtype is I8) * (1 << b.bits - 1)
        else:
            values = rng.integers(-100, 100, b.shape)
        out[b.name] = values.astype(b.dtype.numpy)
    return out
