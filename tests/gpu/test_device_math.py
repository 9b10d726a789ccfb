"""Every function of lumc_dev.h, run by the emulator, against numpy and integers of Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device import SIGNATURES, every_function
from emulator import Array, build
from lumc.codegen.gpu.grid import Grid
from lumc.graph.ops import from_bf16, to_bf16


@pytest.fixture(scope="module")
def device(built: Path) -> Callable[..., Array]:
    return caller(build(every_function(), built))


def caller(module: Any) -> Callable[..., Array]:
    """``device(function, a[, b])``: the function of every element, by a module of all of them."""
    numpy = {"f16": "uint16", "bf16": "uint16", "bool": "bool"}

    def call(function: str, *operands: Array) -> Array:
        source, result, count = SIGNATURES[function]
        kinds = [
            np.dtype(numpy.get(t, t.replace("f", "float").replace("i", "int").replace("u", "uint")))
            for t in (source, result)
        ]
        assert len(operands) == count and all(x.dtype == kinds[0] for x in operands)
        size = -(-operands[0].size // 128) * 128
        arguments = [np.resize(x, size) for x in operands]
        out = np.zeros(size, kinds[1])
        symbol = f"f{list(SIGNATURES).index(function)}"
        assert module.launch(symbol, Grid(size // 128, 128), [*arguments, out]) == ""
        return out[: operands[0].size]

    return call


def ulps(got: Array, want: Array) -> float:
    """The largest error in units of the last place of the exact f32 result; infinities and NaN
    must agree."""
    want = np.asarray(want, np.float64)
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    exact = np.isinf(rounded) | np.isinf(got)
    np.testing.assert_array_equal(got[exact], rounded[exact])
    use = ~(exact | np.isnan(want))
    unit = np.maximum(np.spacing(np.abs(rounded[use]).astype(np.float32)), 2.0**-149)
    return float(np.max(np.abs(got[use].astype(np.float64) - want[use]) / unit, initial=0))


def numbers(rng: np.random.Generator, lo: float, hi: float, count: int = 40_000) -> Array:
    """Numbers of a range, and those where things go wrong."""
    tiny, huge = np.float32(2.0**-149), np.finfo(np.float32).max
    edges = [0, 1, 0.5, 2, 3, 126, 127, 127.9999, 128, 149, 149.5, 150, 151, 200, 1e10, 2.0**46.9]
    edges += [2.0**60, 2.0**90, 2.0**110, np.pi, 355, 2.0**-126, 2.0**-140, tiny, huge, np.inf]
    edges += [np.nextafter(np.float32(1), np.float32(n)) for n in (0, 2)]
    both = np.array([*edges, *(-np.array(edges)), np.nan], np.float32)
    some = rng.uniform(lo, hi, count).astype(np.float32)
    sized = np.exp2(rng.uniform(-149, 128, count)) * rng.choice([-1, 1], count)
    return np.concatenate([both, some, sized.astype(np.float32)])


# a function, the range of its numbers, and the most ulps
FUNCTIONS = [
    ("exp2", -160, 140, 1.5),
    ("exp2_ftz", -160, 140, 1.5),
    ("exp", -110, 95, 1.5),
    ("exp_ftz", -110, 95, 1.5),
    ("decay", -130, 0, 1.5),
    ("log2", 0, 4, 1.5),
    ("sin", -100, 100, 0.6),
    ("sqrt", 0, 100, 0.5),
    ("recip", -4, 4, 0.5),
    ("finite", -4, 4, 0),
    ("rounded", -4, 4, 0),
]


@pytest.mark.parametrize(("name", "lo", "hi", "limit"), FUNCTIONS)
def test_functions(
    device: Callable[..., Array], name: str, lo: float, hi: float, limit: float
) -> None:
    x = numbers(np.random.default_rng(3), lo, hi)
    if name == "decay":
        x = -np.abs(x)
    got = device(f"lumc_{name}_f32", x)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = {
            "exp2": np.exp2,
            "exp2_ftz": np.exp2,
            "exp": np.exp,
            "exp_ftz": np.exp,
            "decay": np.exp2,
            "log2": np.log2,
            "sin": np.sin,
            "sqrt": np.sqrt,
            "recip": np.reciprocal,
            "finite": lambda v: np.where(v == -np.inf, np.finfo(np.float32).min, v),
            "rounded": np.positive,
        }[name](wide)
        if name in ("decay", "exp2_ftz", "exp_ftz"):
            least = 2.0**-126 if name == "decay" else 2.0**-125
            want = np.where(want < least, 0, want)
            got = np.where(want == 0, np.where(got < 2.0**-125, 0, got), got)
        assert ulps(got, want) <= limit
        double = device(f"lumc_{name}_f64", wide)
        if name == "finite":
            want = np.where(wide == -np.inf, np.finfo(np.float64).min, wide)
        exact = {"decay": np.exp2, "exp2_ftz": np.exp2, "exp_ftz": np.exp}.get(
            name, getattr(np, {"recip": "reciprocal"}.get(name, name), None)
        )
        np.testing.assert_allclose(double, exact(wide) if exact else want, rtol=1e-15)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_floats_of_two(device: Callable[..., Array], kind: str) -> None:
    edges = np.array([0.0, -0.0, 1, -1, 2.5, -2.5, 1e-40, 3e38, np.inf, -np.inf, np.nan])
    rng = np.random.default_rng(4)
    a = np.concatenate([np.repeat(edges, edges.size), rng.standard_normal(5000) * 100])
    b = np.concatenate([np.tile(edges, edges.size), rng.standard_normal(5000)])
    a, b = (x.astype({"f32": np.float32, "f64": np.float64}[kind]) for x in (a, b))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(device(f"lumc_mod_{kind}", a, b), np.fmod(a, b))
        np.testing.assert_array_equal(device(f"lumc_max_{kind}", a, b), np.maximum(a, b))
        usual = ~np.isnan(a)  # what top starts from is never NaN
        want = np.fmax(a, b)[usual]
        np.testing.assert_array_equal(device(f"lumc_top_{kind}", a, b)[usual], want)


def wrapped(value: int, dtype: np.dtype[np.generic]) -> int:
    info = np.iinfo(dtype)
    return (value - int(info.min)) % (int(info.max) - int(info.min) + 1) + int(info.min)


@pytest.mark.parametrize("kind", ["int64", "int32", "int8", "uint8"])
def test_integers(device: Callable[..., Array], kind: str) -> None:
    dtype, name = np.dtype(kind), kind.replace("int", "i").replace("ui", "u")
    info = np.iinfo(dtype)
    edges = [v for v in (0, 1, 2, 7, -1, -2, -7) if v >= info.min] + [info.min, info.max]
    edges += np.random.default_rng(2).integers(info.min, info.max, 20, dtype).tolist()
    a, b = (np.array(x, dtype) for x in zip(*((p, q) for p in edges for q in edges), strict=True))

    def remainder(p: int, q: int) -> int:  # of the sign of p
        return 0 if q == 0 else abs(p) % abs(q) * (-1 if p < 0 else 1)

    table: dict[str, Callable[[int, int], int]] = {
        "add": operator.add,
        "mul": operator.mul,
        "mod": remainder,
        "max": max,
    }
    for operation, function in table.items():
        want = [wrapped(function(int(p), int(q)), dtype) for p, q in zip(a, b, strict=True)]
        got = device(f"lumc_{operation}_{name}", a, b)
        np.testing.assert_array_equal(got, np.array(want, dtype), operation)


def test_indices(device: Callable[..., Array]) -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(-1000, 1000, 3000), rng.integers(1, 40, 3000)
    np.testing.assert_array_equal(device("lumc_floor_div", a, b), a // b)
    a32, b32 = a.astype(np.int32), b.astype(np.int32)
    np.testing.assert_array_equal(device("lumc_floor_mod", a32, b32), a32 % b32)
    np.testing.assert_array_equal(device("lumc_min", a32, b32), np.minimum(a32, b32))
    p, q = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    np.testing.assert_array_equal(device("lumc_max_bool", p, q), p | q)


def same(got: Array, want: Array) -> None:
    """The same 16 bits, whatever the bits of a NaN."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    use = ~np.isnan(want)
    np.testing.assert_array_equal(got[use].view(np.uint32), want[use].view(np.uint32))


def test_half_precision(device: Callable[..., Array]) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    f16 = bits.view(np.float16).astype(np.float32)
    same(device("lumc_from_f16", bits), f16)
    same(device("lumc_from_bf16", bits), from_bf16(bits))
    # every number, what is halfway between two, and the neighbours of that
    for name, exact in (("f16", f16), ("bf16", from_bf16(bits))):
        with np.errstate(all="ignore"):
            middle = np.sort(exact[np.isfinite(exact)]).astype(np.float64)
            middle = ((middle[1:] + middle[:-1]) / 2).astype(np.float32)
            near = [np.nextafter(middle, np.float32(s * np.inf)) for s in (-1, 1)]
            x = np.concatenate([exact, middle, *near, numbers(np.random.default_rng(1), -4, 4)])
            want = (
                x.astype(np.float16).astype(np.float32) if name == "f16" else from_bf16(to_bf16(x))
            )
        got = device(f"lumc_to_{name}", x)
        back = got.view(np.float16).astype(np.float32) if name == "f16" else from_bf16(got)
        same(back, want)
        packed = device(f"lumc_pack<lumc_{name}>", x, x[::-1].copy())
        np.testing.assert_array_equal(packed & 0xFFFF, got)
        np.testing.assert_array_equal(packed >> 16, got[::-1])


def test_merged_words(device: Callable[..., Array]) -> None:
    word, mask, bits = np.random.default_rng(9).integers(0, 1 << 32, (3, 128), np.uint32)
    np.testing.assert_array_equal(device("lumc_merge", word, mask, bits), word & mask | bits)


def test_conversions(device: Callable[..., Array]) -> None:
    x = numbers(np.random.default_rng(8), -1e10, 1e10)
    wide = x.astype(np.float64)
    for function, operand, limit in (
        ("lumc_to_i32", x, 31),
        ("(lumc_i64)lumc_to_i32", wide, 31),
        ("lumc_to_i64", x, 63),
        ("1 * lumc_to_i64", wide, 63),
    ):
        with np.errstate(invalid="ignore"):
            inside = (np.trunc(wide) >= -(2.0**limit)) & (wide < 2.0**limit)
            want = np.where(inside, np.where(inside, wide, 0).astype(np.int64), -(1 << limit))
        np.testing.assert_array_equal(device(function, operand), want)
    finite = x[np.isfinite(x)]
    got = device("lumc_to_tf32", finite).view(np.float32)
    assert not (got.view(np.uint32) & 0x1FFF).any()
    normal = (np.abs(finite) > 2.0**-126) & (np.abs(finite) < 2.0**127)
    np.testing.assert_allclose(got[normal], finite[normal], rtol=2.0**-11)
