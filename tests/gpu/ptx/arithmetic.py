"""Arithmetic, comparisons and bits: PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision
Integer Arithmetic", "Floating Point", "Comparison and Selection", "Logic and Shift".

What rounds does so as the manual says, to the bit. Approximations are off by as much as the manual
allows, up and down in turns, so that a result that needs them to be better is wrong here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from gpu.ptx.machine import Decode, Lanes, Step, builds, dtype_of
from gpu.ptx.memory import Array
from gpu.ptx.text import PtxError

F32, F64 = np.dtype("f4"), np.dtype("f8")
EXPONENT = 480  # of f64 factors whose product has an exact error


# ---- sums and products


@builds("add", "sub")
def sums(d: Decode) -> Step:
    kind = d.kind()
    if kind[0] == "f":
        d.flag("rn")
        return d.lift(operator.add if d.base == "add" else operator.sub, kind)
    if d.flag("cc"):
        return _carrying(d, kind, start=True)
    return d.lift(operator.add if d.base == "add" else operator.sub, kind)


@builds("addc", "subc")
def sums_with_carry(d: Decode) -> Step:
    kind = d.kind()
    return _carrying(d, kind, start=False, ends=not d.flag("cc"))


def _carrying(d: Decode, kind: str, start: bool, ends: bool = False) -> Step:
    """32-bit sums that take and leave the carry, which a difference leaves as a borrow."""
    if kind not in ("u32", "s32", "b32"):
        raise d.unknown()
    put, a, b = d.result(0, "u32"), d.source(1, "u32"), d.source(2, "u32")
    sign = 1 if d.base.startswith("add") else -1
    carry = d.machine.carry

    def step(m: Lanes) -> None:
        x, y = (np.asarray(v(m)).astype(np.int64) for v in (a, b))
        value = x + sign * (y + (0 if start else carry[m]))
        put(m, (value & 0xFFFFFFFF).astype(np.uint32))
        if not ends:
            carry[m] = value >> 32 != 0

    return step


@builds("mul", "mad", "madc")
def products(d: Decode) -> Step:
    kind = d.kind()
    dtype = dtype_of(kind)
    if dtype.kind == "f":
        if d.base != "mul":
            raise d.unknown()
        d.flag("rn")
        return d.lift(operator.mul, kind)
    half, carries = d.flag("lo", "hi", "wide"), bool(d.flag("cc"))
    if not half:
        raise d.unknown()
    wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}") if half == "wide" else dtype
    put, a, b = d.result(0, wide), d.source(1, dtype), d.source(2, dtype)
    multiply = {"lo": operator.mul, "hi": high_half, "wide": _widened(wide)}[half]
    if d.base == "mul":
        return lambda m: put(m, multiply(a(m), b(m)))
    c = d.source(3, wide)
    if d.base == "mad" and not carries:
        return lambda m: put(m, multiply(a(m), b(m)) + c(m))
    return _carrying_mad(d, dtype, multiply, carries)


def _carrying_mad(d: Decode, dtype: np.dtype[Any], multiply: Any, leaves: bool) -> Step:
    if dtype != np.dtype("u4"):
        raise d.unknown()
    put, carry = d.result(0, dtype), d.machine.carry
    a, b, c = (d.source(i, dtype) for i in (1, 2, 3))
    takes = d.base == "madc"

    def step(m: Lanes) -> None:
        value = np.asarray(multiply(a(m), b(m))).astype(np.uint64) + c(m)
        value = value + (carry[m] if takes else np.uint64(0))
        put(m, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        if leaves:
            carry[m] = value >> np.uint64(32) != 0

    return step


def _widened(wide: np.dtype[Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: np.asarray(x).astype(wide) * np.asarray(y).astype(wide)


def high_half(x: Any, y: Any) -> Any:
    """The upper half of the product of integers."""
    x, y = np.asarray(x), np.asarray(y)
    dtype = x.dtype
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return (x.astype(wide) * y.astype(wide) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    u, v, low = x.view("u8"), y.view("u8"), np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a, b, c, e = u >> half, u & low, v >> half, v & low
    middle = a * e + (b * e >> half)
    cross = b * c + (middle & low)
    high = a * c + (middle >> half) + (cross >> half)
    if dtype.kind == "i":
        high = high - np.where(x < 0, v, np.uint64(0)) - np.where(y < 0, u, np.uint64(0))
    return high.view(dtype) if dtype.kind == "i" else high


@builds("fma")
def fused(d: Decode) -> Step:
    kind = d.kind()
    rounding = d.flag("rn", "rz")
    if kind == "f32" and rounding:
        return d.lift(fma_f32 if rounding == "rn" else fma_f32_cut, kind)
    if kind == "f64" and rounding == "rn":
        return d.lift(fma_f64, kind)
    raise d.unknown()


def _odd_sum(p: Any, c: Any) -> Array:
    """``p + c`` in f64, rounded to an odd last bit where it is not exact, so that rounding it once
    more is as rounding once."""
    p, c = np.asarray(p, np.float64), np.asarray(c, np.float64)
    s = np.atleast_1d(p + c)
    back = s - p
    error = (p - (s - back)) + (c - back)
    bits = s.view(np.int64)
    cut = (error != 0) & np.isfinite(s) & (bits & 1 == 0)
    away = (error > 0) == (s > 0)
    return np.where(cut, np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def fma_f32(a: Any, b: Any, c: Any) -> Array:
    return _odd_sum(np.asarray(a, np.float64) * np.asarray(b, np.float64), c).astype(np.float32)


def fma_f32_cut(a: Any, b: Any, c: Any) -> Array:
    """Rounded toward zero."""
    exact = _odd_sum(np.asarray(a, np.float64) * np.asarray(b, np.float64), c)
    near = exact.astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(exact)
    return np.where(over, np.nextafter(near, np.float32(0)), near)


def fma_f64(a: Any, b: Any, c: Any) -> Array:
    """By sums and products without error (Boldo, Melquiond: Emulation of FMA and correctly rounded
    sums, 2008); with fractions where exponents are extreme."""
    x, y, z = (np.array(v) for v in np.broadcast_arrays(a, b, c))
    p = x * y
    low = _product_error(x, y, p)
    sum_low, rest = _two_sum(z, low)
    high, left = _two_sum(p, sum_low)
    out = np.array(high + _odd_sum(rest, left).reshape(p.shape))
    sizes = [np.abs(np.frexp(v)[1]) for v in (x, y)]
    plain = (x == 0) | (y == 0) | ((sizes[0] <= EXPONENT) & (sizes[1] <= EXPONENT))
    plain &= np.abs(z) < 2.0**1000
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    out = np.where(finite & (p != 0), out, p + z)
    for i in zip(*np.nonzero(np.atleast_1d(finite & ~plain)), strict=True):
        at = i if out.ndim else ()
        out[at] = _exact_fma(float(x[at]), float(y[at]), float(z[at]))
    return out


def _exact_fma(x: float, y: float, z: float) -> float:
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _product_error(x: Array, y: Array, p: Array) -> Array:
    def halves(v: Array) -> tuple[Array, Array]:
        big = v * 134217729.0  # 2^27 + 1
        high = big - (big - v)
        return high, v - high

    (a, b), (c, e) = halves(x), halves(y)
    return b * e - (((p - a * c) - b * c) - a * e)


# ---- quotients, roots, elementary functions


def approximated(f: Callable[..., Any], relative: float) -> Callable[..., Any]:
    """``f``, off by a relative error, up and down in turns; of zero it is exact."""

    def g(*operands: Any) -> Array:
        wide = np.atleast_1d(f(*(np.asarray(o, np.float64) for o in operands)))
        sign = 1.0 - 2.0 * (np.arange(wide.size) % 2)
        sign = np.where(np.asarray(operands[0]) == 0, 0.0, sign)
        return (wide * (1 + sign * relative)).astype(np.asarray(operands[0]).dtype)

    return g


def flushed(f: Callable[..., Any]) -> Callable[..., Any]:
    """Operands and results that are subnormal are zero."""

    def flush(x: Any) -> Any:
        x = np.asarray(x)
        return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)

    return lambda *operands: flush(f(*map(flush, operands)))


def _function(d: Decode, f: Callable[..., Any], relative: float) -> Step:
    """A function of f32: rounded (.rn), or .approx with this error."""
    kind = d.kind()
    if d.flag("rn"):
        return d.lift(f, kind)
    if kind != "f32" or not d.flag("approx", "full"):
        raise d.unknown()
    near = approximated(f, relative)
    return d.lift(flushed(near) if d.flag("ftz") else near, kind)


@builds("div")
def quotients(d: Decode) -> Step:
    kind = d.words[-1]
    if kind[0] == "f":
        return _function(d, operator.truediv, 2.0**-22)
    return d.lift(_whole_quotient, d.kind())


def _whole_quotient(x: Any, y: Any) -> Array:
    """Toward zero. By zero it is undefined: all ones here."""
    x, y = np.broadcast_arrays(x, y)
    one = np.where(y == 0, y.dtype.type(1), y)
    q = np.where(y == -1, -x, x // one) if x.dtype.kind == "i" else x // one
    if x.dtype.kind == "i":
        q = np.where((y != -1) & (x % one != 0) & ((x < 0) != (one < 0)), q + x.dtype.type(1), q)
    return np.where(y == 0, ~x.dtype.type(0), q)


@builds("rem")
def remainders(d: Decode) -> Step:
    def f(x: Any, y: Any) -> Array:
        x, y = np.broadcast_arrays(x, y)
        whole = np.where((y == 0) | (y == -1) if y.dtype.kind == "i" else y == 0, 1, y)
        found = np.fmod(x, whole.astype(x.dtype))
        return np.where(y == 0, ~x.dtype.type(0), found)

    kind = d.kind()
    if kind[0] == "f":
        raise d.unknown()
    return d.lift(f, kind)


@builds("rcp")
def reciprocals(d: Decode) -> Step:
    if d.words == ["approx", "ftz", "f64"]:
        d.words.clear()
        return d.lift(_coarse_reciprocal, "f64")
    return _function(d, lambda x: 1 / x, 2.0**-23)


def _coarse_reciprocal(x: Any) -> Array:
    """Of the upper half of a double, with nothing in the lower half."""

    def upper(v: Any) -> Array:
        v = np.atleast_1d(v)
        return (v.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)

    return upper(flushed(lambda v: 1 / v)(upper(np.array(x))))


@builds("sqrt")
def roots(d: Decode) -> Step:
    return _function(d, np.sqrt, 2.0**-23)


@builds("rsqrt")
def inverse_roots(d: Decode) -> Step:
    return _function(d, lambda x: 1 / np.sqrt(x), 2.0**-22.9)


@builds("ex2")
def powers(d: Decode) -> Step:
    return _function(d, np.exp2, 2.0**-22)


@builds("lg2")
def logarithms(d: Decode) -> Step:
    return _function(d, np.log2, 2.0**-22)


@builds("copysign")
def signs(d: Decode) -> Step:
    return d.lift(lambda sign, x: np.copysign(x, sign), d.kind())


@builds("testp")
def tests(d: Decode) -> Step:
    kind = d.kind()
    f = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "notanumber": np.isnan,
        "number": lambda x: ~np.isnan(x),
    }[d.words.pop()]
    put, a = d.result(0, "pred"), d.source(1, kind)
    return lambda m: put(m, f(a(m)))


@builds("neg")
def negatives(d: Decode) -> Step:
    return d.lift(operator.neg, d.kind())


@builds("abs")
def sizes(d: Decode) -> Step:
    return d.lift(np.abs, d.kind())


@builds("min", "max")
def extremes(d: Decode) -> Step:
    kind = d.kind()
    if d.flag("NaN"):
        return d.lift({"min": np.minimum, "max": np.maximum}[d.base], kind)
    return d.lift({"min": _least, "max": _greatest}[d.base] if kind[0] == "f" else _whole(d), kind)


def _whole(d: Decode) -> Callable[..., Any]:
    return {"min": np.minimum, "max": np.maximum}[d.base]


def _greatest(x: Any, y: Any) -> Any:
    """A NaN is no number; +0 is greater than -0."""
    return np.where((x == 0) & (y == 0), x + y, np.fmax(x, y))


def _least(x: Any, y: Any) -> Any:
    return -_greatest(-x, -y)


# ---- comparisons

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@builds("setp")
def predicates(d: Decode) -> Step:
    kind = d.kind()
    dtype = dtype_of(kind)
    compare = _comparison(d.words.pop(0), dtype.kind == "f")
    combine = d.flag(*COMBINE)
    first, _, second = d.operands[0].partition("|")
    machine = d.machine
    put, a, b = machine.result(first, np.dtype(bool)), d.source(1, dtype), d.source(2, dtype)
    other = machine.result(second, np.dtype(bool)) if second else None
    if len(d.operands) != 3 + bool(combine):
        raise d.unknown()
    last = d.operands[3] if combine else ""
    q = machine.source(last.lstrip("!"), np.dtype(bool)) if combine else None

    def step(m: Lanes) -> None:
        value = compare(a(m), b(m))
        also = None if q is None else np.logical_xor(q(m), last.startswith("!"))
        put(m, value if also is None else COMBINE[combine](value, also))
        if other:
            no = np.logical_not(value)
            other(m, no if also is None else COMBINE[combine](no, also))

    return step


def _comparison(name: str, is_float: bool) -> Callable[[Any, Any], Any]:
    if not is_float:
        return COMPARE[name]
    if name in ("nan", "num"):
        return lambda x, y: (np.isnan(x) | np.isnan(y)) == (name == "nan")
    if name in ("ltu", "leu", "gtu", "geu", "equ", "neu"):
        f = COMPARE[name[:2]]
        return lambda x, y: f(x, y) | np.isnan(x) | np.isnan(y)
    if name in ("lo", "ls", "hi", "hs"):
        raise PtxError(f"comparison {name} of floats")
    f = COMPARE[name]
    return lambda x, y: f(x, y) & ~(np.isnan(x) | np.isnan(y))


@builds("selp")
def selections(d: Decode) -> Step:
    kind = d.kind()
    put, a, b, q = d.result(0, kind), d.source(1, kind), d.source(2, kind), d.source(3, "pred")
    return lambda m: put(m, np.where(q(m), a(m), b(m)))


# ---- bits


@builds("and", "or", "xor")
def logic(d: Decode) -> Step:
    f = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[d.base]
    return d.lift(f, d.kind())


@builds("not")
def complements(d: Decode) -> Step:
    return d.lift(np.invert, d.kind())


@builds("cnot")
def zeros(d: Decode) -> Step:
    return d.lift(lambda x: np.where(x == 0, 1, 0), d.kind())


@builds("shl", "shr")
def shifts(d: Decode) -> Step:
    """By more than there are bits: nothing is left, or the sign."""
    kind = d.kind()
    dtype = dtype_of(kind)
    put, a, by = d.result(0, dtype), d.source(1, dtype), d.source(2, "u32")
    bits, left = 8 * dtype.itemsize, d.base == "shl"

    def step(m: Lanes) -> None:
        x, n = a(m), np.asarray(by(m))
        inside = np.minimum(n, bits - 1).astype(dtype)
        value = x << inside if left else x >> inside
        fills = not left and dtype.kind == "i"
        put(m, value if fills else np.where(n >= bits, dtype.type(0), value))

    return step


@builds("shf")
def funnels(d: Decode) -> Step:
    d.words.remove("b32")
    left, clamp = d.flag("l", "r") == "l", d.flag("clamp", "wrap") == "clamp"
    put, low, high, by = d.result(0, "u32"), *(d.source(i, "u32") for i in (1, 2, 3))

    def step(m: Lanes) -> None:
        n = np.asarray(by(m)).astype(np.uint64)
        n = np.minimum(n, 32) if clamp else n & np.uint64(31)
        both = np.asarray(high(m)).astype(np.uint64) << np.uint64(32) | low(m)
        value = both << n >> np.uint64(32) if left else both >> n
        put(m, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32))

    return step


@builds("bfi")
def insertions(d: Decode) -> Step:
    """The low bits of a at a position of b."""
    dtype = dtype_of(d.kind().replace("b", "u"))
    put, a, b = d.result(0, dtype), d.source(1, dtype), d.source(2, dtype)
    at, n = d.source(3, "u32"), d.source(4, "u32")

    def step(m: Lanes) -> None:
        p, mask = _field(at(m), n(m), dtype)
        put(m, np.where(p < 8 * dtype.itemsize, b(m) & ~mask | (a(m) << p) & mask, b(m)))

    return step


def _field(at: Any, n: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The position, and a mask of n bits from there on; both operands count modulo 256."""
    bits = 8 * dtype.itemsize
    p, n = (np.minimum(np.asarray(v) & 255, bits).astype(dtype) for v in (at, n))
    ones = ~dtype.type(0)
    below = np.where(n >= bits, ones, (dtype.type(1) << np.minimum(n, bits - 1)) - dtype.type(1))
    return p, np.where(p >= bits, dtype.type(0), below << np.minimum(p, bits - 1))


@builds("bfe")
def extractions(d: Decode) -> Step:
    """n bits from a position on; a signed one is extended by its highest bit."""
    dtype = dtype_of(d.kind())
    wide = np.dtype("i8" if dtype.kind == "i" else "u8")
    put, a = d.result(0, dtype), d.source(1, dtype)
    at, n = d.source(2, "u32"), d.source(3, "u32")

    def step(m: Lanes) -> None:
        x = np.asarray(a(m)).astype(wide)
        p, k = (np.asarray(v(m)) & 255 for v in (at, n))
        gone = (p >= 64) & (dtype.kind == "u")
        shifted = np.where(gone, wide.type(0), x >> np.minimum(p, 63).astype(wide))
        bits = np.minimum(k, 63).astype(wide)
        mask = np.where(k >= 64, ~wide.type(0), (wide.type(1) << bits) - wide.type(1))
        sign = shifted >> np.maximum(bits, 1) - wide.type(1) & wide.type(1)
        fills = (dtype.kind == "i") & (k > 0) & (sign == 1)
        put(m, np.where(fills, shifted | ~mask, shifted & mask).astype(dtype))

    return step


@builds("prmt")
def permutations(d: Decode) -> Step:
    """Four bytes of eight; the high bit of a choice copies the byte's sign."""
    d.words.remove("b32")
    put, a, b, choice = d.result(0, "u32"), *(d.source(i, "u32") for i in (1, 2, 3))

    def step(m: Lanes) -> None:
        eight = np.asarray(b(m)).astype(np.uint64) << np.uint64(32) | a(m)
        chosen, out = np.asarray(choice(m)), np.uint32(0)
        for i in range(4):
            n = chosen >> np.uint32(4 * i)
            byte = eight >> ((n & np.uint32(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint32(255), np.uint32(0))
            byte = np.where(n & np.uint32(8), sign, byte.astype(np.uint32))
            out = out | byte << np.uint32(8 * i)
        put(m, out)

    return step


@builds("lop3")
def tables(d: Decode) -> Step:
    """Any function of three bits: bit 4a + 2b + c of the table."""
    d.words.remove("b32")
    put, table = d.result(0, "u32"), int(d.operands[4], 0)
    a, b, c = (d.source(i, "u32") for i in (1, 2, 3))

    def step(m: Lanes) -> None:
        x, y, z = a(m), b(m), c(m)
        out = np.uint32(0)
        for i in range(8):
            if table >> i & 1:
                out = out | (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
        put(m, out)

    return step


def _bits_of(x: Any, bits: int) -> Array:
    """bool[n, bits], the lowest first."""
    x = np.atleast_1d(x)
    return (x[:, None] >> np.arange(bits, dtype=x.dtype) & x.dtype.type(1)) != 0


@builds("clz", "popc", "brev")
def counts(d: Decode) -> Step:
    kind = d.kind()
    bits = 8 * dtype_of(kind).itemsize
    put, a = d.result(0, kind if d.base == "brev" else "u32"), d.source(1, kind)
    weights = 1 << np.arange(bits, dtype=np.uint64)[::-1]

    def step(m: Lanes) -> None:
        each = _bits_of(a(m), bits)
        if d.base == "popc":
            value = each.sum(1)
        elif d.base == "clz":
            value = np.where(each.any(1), np.argmax(each[:, ::-1], 1), bits)
        else:
            value = (each * weights).sum(1, dtype=np.uint64)
        put(m, value.astype(np.uint64))

    return step


@builds("dp4a", "dp2a")
def products_in_words(d: Decode) -> Step:
    """An addend, and the sum of the products of four bytes with four, or of two halves with two
    bytes of the lower or upper half of the other word."""
    two = d.base == "dp2a"
    start = 2 * (d.words.pop(0) == "hi") if two and d.words[0] in ("lo", "hi") else 0
    kinds = [d.words.pop(0), d.words.pop(0)]
    if not {*kinds} <= {"s32", "u32"}:
        raise d.unknown()
    out = "s32" if "s32" in kinds else "u32"
    put, c = d.result(0, out), d.source(3, out)
    a, b = d.source(1, "u32"), d.source(2, "u32")

    def parts(x: Any, kind: str, size: int) -> Array:
        word = np.ascontiguousarray(x)
        view = word.view(f"{'i' if kind == 's32' else 'u'}{size}")
        return view.reshape(len(word), -1).astype(np.int64)

    def step(m: Lanes) -> None:
        left = parts(d.machine.full(a(m), m), kinds[0], 2 if two else 1)
        right = parts(d.machine.full(b(m), m), kinds[1], 1)
        right = right[:, start : start + 2] if two else right
        value = (left * right).sum(1) + c(m)
        put(m, (value & 0xFFFFFFFF).astype(np.uint32).view(dtype_of(out)))

    return step
