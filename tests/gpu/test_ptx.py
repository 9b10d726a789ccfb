"""The interpreter of PTX by itself, on text by hand: instructions against integers and fractions of
Python, and a kernel for everything that it reports. No compiler is needed."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gpu.ptx.arithmetic import fma_f32, fma_f32_cut, fma_f64
from gpu.ptx.collective import fragment
from gpu.ptx.contract import contracted
from gpu.ptx.launch import launch
from gpu.ptx.size import Size, size_of
from gpu.ptx.text import PtxError, parse
from gpu.ptx.warpgroup import sum_of

Array = np.ndarray[Any, Any]
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<40>; .reg .b64 %d<40>; .reg .f32 %f<140>;
.reg .f64 %g<8>;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %r0;
"""


def kernel(body: str, arrays: int, outside: str = "", directives: str = "") -> str:
    """A module with a kernel ``k``: %r0 is the thread, %r3 its number in the grid, and the address
    of array ``i`` is in %d30 and on."""
    names = ", ".join(f".param .u64 k_{i}" for i in range(arrays))
    load = "".join(f"ld.param.u64 %d{30 + i}, [k_{i}];" for i in range(arrays))
    return (
        f"{HEAD}{outside}.visible .entry k({names}) {directives} {{ {REGISTERS}{load}{body} ret; }}"
    )


def run(text: str, arrays: list[Array], threads: int = 32, blocks: int = 1, shared: int = 0) -> str:
    return launch(parse(text).entries["k"], blocks, threads, shared, arrays)


# ---- instructions

WORD = {"b16": "h", "u16": "h", "s16": "h", "b32": "r", "u32": "r", "s32": "r", "b64": "d"}
WORD |= {"u64": "d", "s64": "d", "f32": "f", "f64": "g"}


def of_each(opcode: str, kinds: str, *operands: Array) -> Array:
    """An instruction of elements; ``kinds``: of the result and of each operand."""
    out, *others = kinds.split()
    n = operands[0].size
    body, names = "", []
    for i, kind in enumerate(others):
        size = int(kind[1:]) // 8
        names.append(f"%{WORD[kind]}{i + 4}")
        body += f"mad.wide.s32 %d1, %r3, {size}, %d{30 + i}; ld.global.{kind} {names[-1]}, [%d1];"
    size, name = int(out[1:]) // 8, f"%{WORD[out]}3"
    name = "%r9" if out[1:] == "32" and out[0] != "f" else name
    body += f"{opcode} {name}, {', '.join(names)};"
    body += f"mad.wide.s32 %d1, %r3, {size}, %d{30 + len(others)}; st.global.{out} [%d1], {name};"
    letter = {"u": "u", "s": "i", "b": "u", "f": "f"}[out[0]]
    got = np.zeros(n, f"{letter}{size}")
    arrays = [np.ascontiguousarray(o) for o in operands]
    assert run(kernel(body, len(arrays) + 1), [*arrays, got], 32, -(-n // 32)) == ""
    return got


def integers(kind: str, seed: int, n: int = 256) -> Array:
    dtype = np.dtype({"u": "u", "s": "i", "b": "u"}[kind[0]] + str(int(kind[1:]) // 8))
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    edges = [info.min, info.max, info.max // 2, 0, 1, 2, 3, 31, 32, 33]
    some = rng.integers(info.min, info.max, n - len(edges), dtype, endpoint=True)
    return rng.permutation(np.concatenate([np.array(edges, dtype), some]))


def wrapped(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> bits - 1 else value


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


WHOLE: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": quotient,
    "rem": lambda a, b: a - b * quotient(a, b) if b else -1,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers(kind: str) -> None:
    a, b = integers(kind, 1), integers(kind, 2)
    for name, f in WHOLE.items():
        typed = f"{name}.{'b' + kind[1:] if name in ('and', 'or', 'xor') else kind}"
        got = of_each(typed, f"{kind} {kind} {kind}", a, b)
        want = [wrapped(f(int(x), int(y)), kind) for x, y in zip(a, b, strict=True)]
        assert got.tolist() == want, name
    high = of_each(f"mul.hi.{kind}", f"{kind} {kind} {kind}", a, b)
    bits = int(kind[1:])
    assert high.tolist() == [
        wrapped(int(x) * int(y) >> bits, kind) for x, y in zip(a, b, strict=True)
    ]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bits(kind: str) -> None:
    a, n = integers(kind, 3), integers("u32", 4) % 80
    bits, untyped = int(kind[1:]), f"b{kind[1:]}"
    pairs = [(int(x), int(y)) for x, y in zip(a, n, strict=True)]
    left = of_each(f"shl.{untyped}", f"{kind} {kind} u32", a, n)
    assert left.tolist() == [wrapped(x << y, kind) for x, y in pairs]
    right = of_each(f"shr.{kind}", f"{kind} {kind} u32", a, n)
    assert right.tolist() == [x >> y for x, y in pairs]
    raw = [x % (1 << bits) for x, _ in pairs]
    assert of_each(f"popc.{untyped}", f"u32 {kind}", a).tolist() == [x.bit_count() for x in raw]
    assert of_each(f"clz.{untyped}", f"u32 {kind}", a).tolist() == [
        bits - x.bit_length() for x in raw
    ]
    reverse = [wrapped(int(f"{x:0{bits}b}"[::-1], 2), kind) for x in raw]
    assert of_each(f"brev.{untyped}", f"{kind} {kind}", a).tolist() == reverse


def parts(word: int, bits: int, kind: str) -> list[int]:
    """The integers of so many bits in a word, the lowest first."""
    every = [word % (1 << 32) >> at & (1 << bits) - 1 for at in range(0, 32, bits)]
    return [wrapped(x, f"{kind[0]}{bits}") for x in every]


@pytest.mark.parametrize("kinds", ["u32 u32", "u32 s32", "s32 u32", "s32 s32"])
@pytest.mark.parametrize("name", ["dp4a", "dp2a.lo", "dp2a.hi"])
def test_products_in_words(name: str, kinds: str) -> None:
    left, right = kinds.split()
    out = "s32" if "s32" in kinds else "u32"
    a, b, c = integers(left, 11), integers(right, 12), integers(out, 13)
    got = of_each(f"{name}.{left}.{right}", f"{out} {left} {right} {out}", a, b, c)
    want, bits = [], 8 if name == "dp4a" else 16
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        bytes_ = parts(y, 8, right)[2 * (name == "dp2a.hi") :]
        pairs = zip(parts(x, bits, left), bytes_, strict=False)
        want.append(wrapped(z + sum(i * j for i, j in pairs), out))
    assert got.tolist() == want


def field(x: int, at: int, n: int, kind: str) -> int:
    """bfe as its pseudocode in the manual says."""
    msb = int(kind[1:]) - 1
    sign = 0 if kind[0] == "u" or n == 0 else x >> min(at + n - 1, msb) & 1
    out = 0
    for i in range(msb + 1):
        bit = x >> at + i & 1 if i < n and at + i <= msb else sign
        out |= bit << i
    return wrapped(out, kind)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_fields(kind: str) -> None:
    a, b = integers(kind, 5), integers(kind, 6)
    at, n = integers("u32", 7) % 70, integers("u32", 8) % 70
    bits = int(kind[1:])
    rows = [[int(v) for v in row] for row in zip(a, b, at, n, strict=True)]
    got = of_each(f"bfe.{kind}", f"{kind} {kind} u32 u32", a, at, n)
    assert got.tolist() == [field(x % (1 << bits), p, k, kind) for x, _, p, k in rows]
    got = of_each(f"bfi.b{bits}", f"{kind} {kind} {kind} u32 u32", a, b, at, n)
    for value, (x, y, p, k) in zip(got.tolist(), rows, strict=True):
        mask = ((1 << k) - 1) << p
        assert value == wrapped(y & ~mask | x << p & mask if p < bits else y, kind)


def test_bytes_and_tables() -> None:
    a, b, c = (integers("u32", i) for i in (9, 10, 11))
    rows = [[int(v) for v in row] for row in zip(a, b, c, strict=True)]
    for x, (p, q, how) in zip(of_each("prmt.b32", "u32 u32 u32 u32", a, b, c), rows, strict=True):
        eight = struct.pack("<II", p, q)
        for i in range(4):
            n = how >> 4 * i & 15
            want = eight[n & 7] if n < 8 else 255 * (eight[n & 7] >> 7)
            assert int(x) >> 8 * i & 255 == want
    for table in (0x96, 0xE8, 0x1B, 0xFF, 0):
        text = kernel(
            "mad.wide.s32 %d1, %r3, 4, %d30; mad.wide.s32 %d2, %r3, 4, %d31;"
            "mad.wide.s32 %d3, %r3, 4, %d32; mad.wide.s32 %d4, %r3, 4, %d33;"
            "ld.global.u32 %r4, [%d1]; ld.global.u32 %r5, [%d2]; ld.global.u32 %r6, [%d3];"
            f"lop3.b32 %r7, %r4, %r5, %r6, {table:#x}; st.global.u32 [%d4], %r7;",
            4,
        )
        out = np.zeros_like(a)
        assert run(text, [a, b, c, out], 32, a.size // 32) == ""
        for x, (p, q, r) in zip(out, rows, strict=True):
            for i in range(32):
                at = (p >> i & 1) * 4 + (q >> i & 1) * 2 + (r >> i & 1)
                assert int(x) >> i & 1 == table >> at & 1


def test_carries() -> None:
    """A product of 64 bits in four of 32, as libdevice has it."""
    a, b = integers("u64", 12), integers("u64", 13)
    text = kernel(
        "mad.wide.s32 %d1, %r3, 8, %d30; mad.wide.s32 %d2, %r3, 8, %d31; mad.wide.s32 %d3, %r3, 16,"
        "%d32; ld.global.u64 %d4, [%d1]; ld.global.u64 %d5, [%d2];"
        "{ .reg .u32 %r0, %r1, a, b, c, e; mov.b64 {a, b}, %d4; mov.b64 {c, e}, %d5;"
        "mul.lo.u32 %r0, a, c; mul.hi.u32 %r1, a, c; mad.lo.cc.u32 %r1, a, e, %r1;"
        ".reg .u32 h, t; madc.hi.u32 h, a, e, 0; mad.lo.cc.u32 %r1, b, c, %r1;"
        "madc.hi.cc.u32 h, b, c, h; addc.u32 t, 0, 0; mad.lo.cc.u32 h, b, e, h;"
        "madc.hi.u32 t, b, e, t; st.global.v4.u32 [%d3], {%r0, %r1, h, t}; }"
        "st.global.u32 [%d33], %r0;",
        4,
    )
    out, thread = np.zeros((a.size, 4), np.uint32), np.zeros(1, np.uint32)
    said = run(text, [a, b, out, thread], 32, a.size // 32)
    assert said.startswith("race write global") and thread[0] < 32  # %r0 is the outer one again
    for row, x, y in zip(out.tolist(), a.tolist(), b.tolist(), strict=True):
        assert sum(v << 32 * i for i, v in enumerate(row)) == x * y


def floats(dtype: str, seed: int, n: int = 3000) -> Array:
    """Of all sizes, near each other often enough for cancellation."""
    rng, top = np.random.default_rng(seed), 128 if dtype == "f4" else 1024
    edges = np.array([0, -0.0, 1, -1, 1.5, np.finfo(dtype).max, np.finfo(dtype).tiny, 2.0**-149])
    x = np.exp2(rng.uniform(-top - 10, top, n // 3)) * rng.choice([-1, 1], n // 3)
    near = 1 + rng.integers(-8, 8, n - n // 3) * float(np.finfo(dtype).eps)
    return rng.permutation(np.concatenate([edges, x, near])).astype(dtype)


def nearest(exact: Fraction, dtype: str) -> float:
    """A fraction as a float, a half to even, by its definition."""
    if exact == 0:
        return 0.0
    bits, least = (24, -149) if dtype == "f4" else (53, -1074)
    size = abs(exact)
    e = math.floor(math.log2(size.numerator) - math.log2(size.denominator))
    e += (size >= Fraction(2) ** (e + 1)) - (size < Fraction(2) ** e)
    unit = Fraction(2) ** max(e - bits + 1, least)
    value = round(exact / unit) * unit
    if abs(value) >= Fraction(2) ** (128 if dtype == "f4" else 1024):
        return math.inf if value > 0 else -math.inf
    return float(value)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_multiply_add_rounds_once(dtype: str) -> None:
    a, b, c = (floats(dtype, i) for i in (14, 15, 16))
    with np.errstate(all="ignore"):
        c[::3] = -(a[::3] * b[::3])  # what is left is the error of the product
        c = np.where(np.isfinite(c), c, 1).astype(dtype)
        got = (fma_f32 if dtype == "f4" else fma_f64)(a, b, c)
        cut = fma_f32_cut(a, b, c)
    for x, y, z, value, toward_zero in zip(a, b, c, got, cut, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert float(value) == nearest(exact, dtype), (x, y, z)
        if dtype == "f4" and math.isfinite(toward_zero):
            assert abs(Fraction(float(toward_zero))) <= abs(exact)
            with np.errstate(over="ignore"):
                next_ = np.nextafter(toward_zero, np.float32(math.inf if exact > 0 else -math.inf))
            assert not math.isfinite(next_) or abs(Fraction(float(next_))) > abs(exact)


def test_multiply_add_of_special_values() -> None:
    inf, nan = math.inf, math.nan
    rows = np.array(
        [[inf, 1, -inf], [0, inf, 1], [inf, 2, 3], [1, 2, nan], [-0.0, 1, -0.0], [0, 1, -0.0]]
    )
    for dtype, f in (("f4", fma_f32), ("f8", fma_f64)):
        with np.errstate(all="ignore"):
            got = f(*rows.astype(dtype).T)
        np.testing.assert_array_equal(got, [nan, nan, inf, nan, -0.0, 0.0])
        assert np.signbit(got[4:]).tolist() == [True, False]


def test_comparisons_of_nan() -> None:
    a, b = np.array([1, 2, np.nan, 2] * 8, np.float32), np.array([2, 2, 1, np.nan] * 8, np.float32)
    for name, want in {
        "lt": [1, 0, 0, 0], "ltu": [1, 0, 1, 1], "ne": [1, 0, 0, 0], "neu": [1, 0, 1, 1],
        "num": [1, 1, 0, 0], "nan": [0, 0, 1, 1], "eq": [0, 1, 0, 0], "geu": [0, 1, 1, 1],
    }.items():  # fmt: skip
        body = "mad.wide.s32 %d1, %r3, 4, %d30; mad.wide.s32 %d2, %r3, 4, %d31;"
        body += (
            "mad.wide.s32 %d3, %r3, 4, %d32; ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2];"
        )
        body += f"setp.{name}.f32 %p1|%p2, %f1, %f2; selp.u32 %r5, 1, 0, %p1;"
        body += "@%p2 add.u32 %r5, %r5, 2; st.global.u32 [%d3], %r5;"
        out = np.zeros(32, np.uint32)
        assert run(kernel(body, 3), [a, b, out]) == ""
        assert out[:4].tolist() == [2 - x for x in want], name


def test_conversions_to_integers() -> None:
    """Beyond the range, and NaN: 0 from f32 to 32 bits, the highest bit elsewhere."""
    x = np.array([np.nan, 3e9, -3e9, 2.5, -2.5, 1e30, -1e30, 0.0] * 4)
    low, high = -(1 << 31), (1 << 31) - 1
    for opcode, kinds, want in (
        ("cvt.rzi.s32.f32", "s32 f32", [0, high, low, 2, -2, high, low, 0]),
        ("cvt.rni.s32.f64", "s32 f64", [low, high, low, 2, -2, high, low, 0]),
        ("cvt.rmi.s32.f32", "s32 f32", [0, high, low, 2, -3, high, low, 0]),
        ("cvt.rzi.u32.f32", "u32 f32", [0, 3_000_000_000, 0, 2, 0, 2 * high + 1, 0, 0]),
    ):
        got = of_each(opcode, kinds, x.astype("f4" if kinds.endswith("32") else "f8"))
        assert got[:8].tolist() == want, opcode
    got = of_each("cvt.rzi.s64.f32", "s64 f32", x.astype("f4"))
    assert got[[0, 5, 6]].tolist() == [-(1 << 63), (1 << 63) - 1, -(1 << 63)]


def test_approximations_are_at_their_bounds() -> None:
    x = np.random.default_rng(3).uniform(-100, 0, 320).astype(np.float32)
    got = of_each("ex2.approx.ftz.f32", "f32 f32", x).astype(np.float64)
    off = np.abs(got / np.exp2(x.astype(np.float64)) - 1)
    assert 0.9 * 2.0**-22 < off.max() <= 2.0**-22 + 2.0**-24
    tiny = np.array([-126.5, -149, -np.inf, 0] * 8, np.float32)
    assert of_each("ex2.approx.ftz.f32", "f32 f32", tiny)[:4].tolist() == [0, 0, 0, 1]


def test_shuffles_and_votes() -> None:
    body = """
    shfl.sync.bfly.b32 %r4, %r0, 5, 31, -1; shfl.sync.down.b32 %r5|%p1, %r0, 3, 31, -1;
    shfl.sync.up.b32 %r6, %r0, 2, 0, -1; shfl.sync.idx.b32 %r7, %r0, 7, 6175, -1;
    setp.lt.u32 %p2, %r0, 3; vote.sync.ballot.b32 %r8, %p2, -1; vote.sync.any.pred %p3, %p2, -1;
    selp.u32 %r9, 1, 0, %p3; selp.u32 %r10, 1, 0, %p1; mad.wide.s32 %d1, %r0, 32, %d30;
    st.global.v4.u32 [%d1], {%r4, %r5, %r6, %r7}; st.global.v4.u32 [%d1+16], {%r8, %r9, %r10, %r0};
    """
    out, lane = np.zeros((32, 8), np.uint32), np.arange(32)
    assert run(kernel(body, 1), [out]) == ""
    want = [lane ^ 5, np.where(lane < 29, lane + 3, lane), np.where(lane > 1, lane - 2, lane)]
    want += [lane // 8 * 8 + 7, np.full(32, 7), np.ones(32), lane < 29, lane]
    np.testing.assert_array_equal(out, np.stack(want, 1))


def test_lanes_part_and_meet() -> None:
    """The steps of 3n + 1 until 1: lanes leave the loop at different times, and wait."""
    body = """
    add.u32 %r4, %r3, 1; mov.u32 %r5, 0;
    again: setp.eq.u32 %p1, %r4, 1; @%p1 bra done; and.b32 %r6, %r4, 1;
    setp.eq.u32 %p2, %r6, 0; @%p2 bra even; mad.lo.u32 %r4, %r4, 3, 1; bra.uni next;
    even: shr.u32 %r4, %r4, 1;
    next: add.u32 %r5, %r5, 1; bra again;
    done: bar.sync 0; shfl.sync.bfly.b32 %r7, %r5, 1, 31, -1;
    mad.wide.s32 %d1, %r3, 8, %d30; st.global.v2.u32 [%d1], {%r5, %r7};
    """
    out = np.zeros((128, 2), np.uint32)
    assert run(kernel(body, 1), [out], 64, 2) == ""

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    want = np.array([steps(n + 1) for n in range(128)])
    np.testing.assert_array_equal(out, np.stack([want, want[np.arange(128) ^ 1]], 1))


def test_functions_are_called() -> None:
    outside = """.func (.param .b32 out) twice(.param .b32 in) { .reg .b32 %r<3>;
    ld.param.u32 %r0, [in]; setp_free: add.u32 %r1, %r0, %r0; st.param.b32 [out], %r1; ret; }
    """
    body = """{ .param .b32 p; st.param.b32 [p], %r3; .param .b32 q;
    call.uni (q), twice, (p); ld.param.b32 %r5, [q]; }
    { .param .b32 p; st.param.b32 [p], %r5; .param .b32 q; call (q), twice, (p);
    ld.param.b32 %r5, [q]; } mad.wide.s32 %d1, %r3, 4, %d30; st.global.u32 [%d1], %r5;"""
    out = np.zeros(64, np.uint32)
    assert run(kernel(body, 1, outside), [out], 32, 2) == ""
    np.testing.assert_array_equal(out, 4 * np.arange(64))


# Fragments as NVIDIA publishes them for its own library: CUTLASS, include/cute/atom, ALayout,
# BLayout and CLayout of mma_traits_sm80.hpp and mma_traits_sm90_gmma.hpp. Sizes and strides of the
# digits of a thread and of its element: row + rows * column, and of b column + columns * row.
LAYOUTS = {
    ("f16", "a"): ((4, 32), (8, 1), (2, 16), (2, 8), (2, 128)),
    ("f16", "b"): ((4, 16), (8, 1), (2, 8), (2, 64)),
    ("f16", "c"): ((4, 32), (8, 1), (2, 16), (2, 8)),
    ("tf32", "a"): ((4, 16), (8, 1), (2, 8), (2, 64)),
    ("tf32", "b"): ((4, 8), (8, 1), (2, 32)),
    ("s8", "a"): ((4, 64), (8, 1), (4, 16), (2, 8), (2, 256)),
    ("s8", "b"): ((4, 32), (8, 1), (4, 8), (2, 128)),
}


def published(layout: tuple[tuple[int, int], ...], threads: int, elements: int) -> Array:
    """i64[threads, elements]"""
    out = np.zeros((threads, elements), np.int64)
    left, size = np.arange(threads)[:, None], threads
    for extent, stride in layout:
        if size == 1:
            left, size = np.arange(elements)[None], elements
        out = out + left % extent * stride
        left, size = left // extent, size // extent
    return out


@pytest.mark.parametrize(("kind", "operand"), LAYOUTS)
def test_fragments_are_as_published(kind: str, operand: str) -> None:
    first, second = fragment(kind, operand)
    want = published(LAYOUTS[kind, operand], 32, first.shape[1])
    got = second + 8 * first if operand == "b" else first + 16 * second
    np.testing.assert_array_equal(got, want)


def test_sums_of_warpgroups_are_as_published() -> None:
    layout = ((4, 128), (8, 1), (4, 16), (2, 64), (2, 8), (32, 512))
    want = published(layout, 128, 128)
    for i in range(128):
        rows, columns = sum_of(i)
        np.testing.assert_array_equal(rows + 64 * columns, want[:, i])


# ---- what is reported

SHARED = ".extern .shared .align 1024 .b8 s[];\n"
PLACE = "mad.lo.u32 %r4, %r0, 4, 0; mov.u32 %r5, s; add.u32 %r5, %r5, %r4;"
WRONG = {
    "misaligned": "mad.wide.s32 %d1, %r0, 4, %d30; ld.global.v2.u32 {%r4, %r5}, [%d1];",
    "out of bounds: 4 bytes at 256 of 256": "ld.global.u32 %r4, [%d30+256];",
    "where no array is": "mov.u64 %d1, 64; ld.global.u32 %r4, [%d1];",
    "of 1024 shared": PLACE + "st.shared.u32 [%r5+1024], %r0;",
    "race write global": "st.global.u32 [%d30], %r0;",
    "race read shared": PLACE + "st.shared.u32 [%r5], %r0; ld.shared.u32 %r6, [s];",
    "race write shared": PLACE + "st.shared.u32 [s], %r0;",
    "write of shared memory after a read of another thread": PLACE
    + "ld.shared.u32 %r6, [s+64]; setp.eq.u32 %p1, %r0, 1; @%p1 st.shared.u32 [s+64], %r0;",
    "uninitialised": PLACE + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [s];",
    "in flight": PLACE
    + "cp.async.ca.shared.global [%r5], [%d30], 4; ld.shared.u32 %r6, [%r5]; cp.async.wait_all;",
    "copies left": PLACE + "cp.async.ca.shared.global [%r5], [%d30], 4;",
    "an asynchronous copy of 8 of 4": PLACE
    + "cp.async.ca.shared.global [%r5], [%d30], 4, 8; cp.async.wait_all;",
    "wait for each other": "setp.lt.u32 %p1, %r0, 16; @%p1 bra there; bar.sync 0;"
    "there: bar.warp.sync -1;",
    "threads have ended": "setp.eq.u32 %p1, %r0, 0; @%p1 ret; bar.sync 0;",
    "by a part of a warp": "setp.eq.u32 %p1, %r0, 0; @%p1 ret; shfl.sync.bfly.b32 %r4, %r0, 1, 31,"
    " -1;",
    "by its mask": "shfl.sync.bfly.b32 %r4, %r0, 1, 31, 255;",
    "is read as constant": "mad.wide.s32 %d1, %r0, 4, %d30; ld.global.nc.u32 %r4, [%d1];"
    "st.global.u32 [%d1], %r4;",
    "a write of a constant": "mov.u64 %d1, c; st.global.u32 [%d1], 1;",
    "does not end": "again: bra again;",
    "has no end": "bra.uni last; ret; last:",
}


@pytest.mark.parametrize("said", WRONG)
def test_reports(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.ptx.machine.MOST_STEPS", 1000)
    constant = ".global .align 4 .b8 c[4] = {1, 2, 3, 4};\n"
    text = kernel(WRONG[said], 1, SHARED + constant)
    text = text.replace("last: ret; }", "last: }")
    assert said in run(text, [np.zeros(64, np.uint32)], shared=1024)


def test_what_is_right_is_not_reported() -> None:
    """The same accesses with the barriers that they need."""
    body = PLACE + "st.shared.u32 [%r5], %r3; bar.sync 0; ld.shared.u32 %r6, [s+4]; bar.sync 0;"
    body += "cp.async.ca.shared.global [%r5], [%d30], 4, 2; cp.async.commit_group;"
    body += "cp.async.wait_group 0; ld.shared.u32 %r7, [%r5]; add.u32 %r6, %r6, %r7;"
    body += "mad.wide.s32 %d1, %r3, 4, %d31; st.global.u32 [%d1], %r6;"
    x, y = np.array([0x50003], np.uint32), np.zeros(128, np.uint32)
    assert run(kernel(body, 2, SHARED), [x, y], 64, 2, 1024) == ""
    np.testing.assert_array_equal(y, np.repeat([1 + 3, 65 + 3], 64))


def test_an_access_of_shared_and_global_memory() -> None:
    body = PLACE + "st.shared.u32 [%r5], 40; cvt.u64.u32 %d1, %r5; cvta.shared.u64 %d1, %d1;"
    body += "mad.wide.s32 %d2, %r0, 4, %d30; setp.lt.u32 %p1, %r0, 9;"
    body += "selp.b64 %d3, %d1, %d2, %p1; ld.u32 %r6, [%d3]; st.global.u32 [%d2], %r6;"
    x = np.full(32, 5, np.uint32)
    assert run(kernel(body, 1, SHARED), [x], shared=128) == ""
    np.testing.assert_array_equal(x, np.where(np.arange(32) < 9, 40, 5))


def test_an_access_of_two_arrays() -> None:
    body = "setp.lt.u32 %p1, %r0, 9; selp.b64 %d1, %d30, %d31, %p1; mad.wide.s32 %d1, %r0, 4, %d1;"
    body += "ld.u32 %r4, [%d1]; add.u32 %r4, %r4, 1; st.u32 [%d1], %r4;"
    x, y = np.full(32, 5, np.uint32), np.full(32, 7, np.uint32)
    assert run(kernel(body, 2), [x, y]) == ""
    lane = np.arange(32)
    np.testing.assert_array_equal(x, np.where(lane < 9, 6, 5))
    np.testing.assert_array_equal(y, np.where(lane < 9, 7, 8))


def test_a_copy_lands_as_late_as_it_may() -> None:
    """What is written to its source before the wait is what arrives."""
    body = PLACE + "mad.wide.s32 %d1, %r0, 4, %d30; mad.wide.s32 %d2, %r0, 4, %d31;"
    body += "cp.async.ca.shared.global [%r5], [%d1], 4; cp.async.commit_group;"
    body += "st.global.u32 [%d1], 7; cp.async.wait_group {}; ld.shared.u32 %r6, [%r5];"
    body += "st.global.u32 [%d2], %r6; cp.async.wait_all;"
    for groups, says in ((0, ""), (1, "in flight")):
        x, y = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
        said = run(kernel(body.format(groups), 2, SHARED), [x, y], shared=128)
        assert says in said and bool(says) == bool(said)
        assert set(y.tolist()) == {7 if groups == 0 else 0xFFFFFFFF}


UNKNOWN = {
    "atom.global.add.u32": "%r4, [%d30], 1",
    "frob.u32": "%r1, %r2",
    "add.rz.f32": "%f1, %f2, %f3",
    "mul.ftz.f32": "%f1, %f2, %f3",
    "fma.f32": "%f1, %f2, %f3, %f4",
    "cvt.u32.f32": "%r4, %f1",
    "cvt.rz.bf16.f32": "%h1, %f1",
    "bar.sync": "1",
    "bar.red.popc.u32": "%r4, 0, %p1",
    "mov.u32": "%r4, nothing",
    "ld.global.u32": "%f1, [%q1]",
    "st.global.u16": "[%d1], %p1",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": "{%g0}, {%g1}, {%g2}, {%g3}",
    "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8": "{%r1}, %d1, %d2, 1",
    "mbarrier.init.shared.b64": "[%r1], 1",
    "bra.weakly": "k",
}


@pytest.mark.parametrize("opcode", UNKNOWN)
def test_what_is_not_known_is_named(opcode: str) -> None:
    with pytest.raises(PtxError, match=re.escape(opcode.split(".")[0])) as found:
        run(kernel(f"k: {opcode} {UNKNOWN[opcode]};", 1), [np.zeros(64, np.uint32)])
    assert UNKNOWN[opcode].split(",")[0] in str(found.value)


def test_products_and_sums_are_fused_where_they_may_be() -> None:
    """1 + 2^-12 squared, less what it rounds to, is 0 or the error of the product."""
    x = np.full(32, 1 + 2.0**-12, np.float32)
    for product, difference, error in (
        ("mul.f32", "sub.f32 %f4, %f2, %f3;", 2.0**-24),
        ("mul.f32", "sub.f32 %f4, %f3, %f2;", -(2.0**-24)),
        ("mul.f32", "neg.f32 %f3, %f3; add.f32 %f4, %f3, %f2;", 2.0**-24),
        ("mul.rn.f32", "sub.f32 %f4, %f2, %f3;", 0),
        ("mul.f32", "sub.rn.f32 %f4, %f2, %f3;", 0),
        ("mul.f32", "add.rn.f32 %f2, %f2, 0f80000000; sub.f32 %f4, %f2, %f3;", 0),
        ("mul.f32", "mov.f32 %f1, 0f00000000; sub.f32 %f4, %f2, %f3;", 0),
        ("mul.f32", "bra there; there: sub.f32 %f4, %f2, %f3;", 0),
    ):
        body = "mad.wide.s32 %d1, %r0, 4, %d30; mad.wide.s32 %d2, %r0, 4, %d31;"
        body += f"ld.global.f32 %f1, [%d1]; mul.rn.f32 %f3, %f1, %f1; {product} %f2, %f1, %f1;"
        body += f"{difference} st.global.f32 [%d2], %f4;"
        entry, y = parse(kernel(body, 2)).entries["k"], np.ones(32, np.float32)
        assert launch(contracted(entry), 1, 32, 0, [x, y]) == ""
        assert set(y.tolist()) == {error}, (product, difference)
        assert launch(entry, 1, 32, 0, [x, y]) == "" and not y.any()


def test_a_barrier_under_a_condition_is_refused() -> None:
    with pytest.raises(PtxError, match="under a condition: @%p1 bar"):
        run(kernel("@%p1 bar.sync 0;", 1), [np.zeros(64, np.uint32)])


def test_launch_limits() -> None:
    text = kernel("", 1, SHARED, ".maxntid 64, 1, 1")
    x = [np.zeros(1, np.uint32)]
    assert run(text, x, 64, shared=1024) == ""
    assert "compiled for 64" in run(text, x, 128)
    assert "takes 1 arrays" in run(text, [])
    assert "the most of a block" in run(text, x, 64, shared=232_449)


@pytest.mark.parametrize("text", ["", HEAD + ".entry k() { .tex .u32 t; ret; }", HEAD + "what;"])
def test_text_that_is_no_ptx(text: str) -> None:
    with pytest.raises(PtxError):
        parse(text)


# ---- arrays that are read and written

MOVED = """add.u32 %r4, %r3, {}; rem.u32 %r4, %r4, 64; mad.wide.u32 %d1, %r4, 4, %d30;
ld.global.u32 %r5, [%d1]; add.u32 %r5, %r5, 1; mad.wide.u32 %d2, %r3, 4, %d30;
st.global.u32 [%d2], %r5;"""


def test_elements_are_changed_in_place() -> None:
    """What is executed counts once, though the launch is begun again when the array is written."""
    x, executed = np.arange(64, dtype="u4"), Counter[str]()
    entry = parse(kernel(MOVED.format(0), 1)).entries["k"]
    for blocks in (1, 2):
        assert launch(entry, blocks, 64 // blocks, 0, [x], executed, together=32) == ""
    assert x.tolist() == [*range(2, 66)]
    assert executed["st.global.u32"] == 128


@pytest.mark.parametrize("blocks", [1, 2])
def test_elements_that_others_change_are_races(blocks: int) -> None:
    """Of threads of one block, of two that run at once, and of two one after the other."""
    for together in (32, 64):
        x = np.arange(64, dtype="u4")
        entry = parse(kernel(MOVED.format(1), 1)).entries["k"]
        said = launch(entry, blocks, 64 // blocks, 0, [x], together=together)
        assert "another thread" in said and said.startswith("race")


# ---- the size of a text

LOOPS = """for (int k_0 = 0, SLOT = 0; k_0 < 100; k_0 += 32, SLOT = SLOT + 1) { /* k */
    LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
        const int x[2] = {0, 1};
    }
}
for (int e = e_0; e < e_0 + e_n; e++) {
    y += x;
}
LUMC_UNROLL for (int v = v_0; v < v_0 + 7; v++) {
    z += y;
}
"""


def test_lines_are_counted_as_often_as_they_are_written_or_executed() -> None:
    """Two of them in unrolled loops, and one in a loop of which nobody knows the end."""
    written = 6 + 1 + 4 + 1 + 1 + 7  # six lines are around the loops
    assert size_of(LOOPS) == Size(written, 6 + 4 + 4 * 4 + 4 + 1 + 7)
    assert size_of(LOOPS, 10) == Size(written, 6 + 4 + 4 * 4 + 4 + 10 + 7)
