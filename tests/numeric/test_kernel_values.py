"""Special values: NaN, infinities, denormals, empty axes. Nothing but sums may be reordered."""

from __future__ import annotations

import ctypes
import os
import random
import re
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import kernel_zoo as zoo
import lumc.codegen.tile.program as ir
from drawing import random_schedule
from kernel_zoo import F32, F64, c, greatest, kernel, plus, times, total, x
from kernels import FLAGS, QUICK, compile_programs, native, run, run_checked, worst
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.lower import lower
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel, binary, cast, const, guard, unary, wsum
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule, Stage

NAN, INF = np.nan, np.inf


def check(
    tmp_path: Path, k: Kernel, inputs: dict, seeds: int = 4, flags=QUICK, limit=2e-5, more=()
) -> None:
    """Default, random and other schedules agree with the evaluator, NaN and infinities included;
    half of the random ones without LUMC_FUZZ, with which mutants are looked for."""
    seeds = seeds if os.environ.get("LUMC_FUZZ") else (seeds + 1) // 2
    draws = [*more, *(random_schedule(k, native(), random.Random(s)) for s in range(seeds))]
    programs = [lower(k, s, native()) for s in [default_schedule(k, native()), *draws]]
    lib = compile_programs(tmp_path, programs, flags)
    want = evaluate_kernel(k, inputs)
    for i, program in enumerate(programs):
        got = run(lib, i, program, inputs, 1 + i % 2)
        for name, array in got.items():
            error = worst(array, want[name], k.buffer(name).dtype)
            assert error < limit, (i, name, array, want[name])


def rows_with(n: int, **special: list[float]) -> np.ndarray:
    """Random rows; each keyword is one row with these values spread over it."""
    rng = np.random.default_rng(7)
    out = rng.standard_normal((len(special), n)).astype(np.float32)
    for row, values in zip(out, special.values(), strict=True):
        at = rng.choice(n, len(values), replace=False)
        row[at] = values
    return out


SPECIAL = {
    "plain": [],
    "nan": [NAN],
    "negative_nan": [-NAN],
    "inf": [INF],
    "minus_inf": [-INF, -INF],
    "both": [INF, -INF],
    "nan_and_inf": [NAN, INF],
    "large": [3.4e38, -3.4e38],
    "tiny": [1e-45, -1e-45],
}


@pytest.mark.parametrize("kind", [F32, F64])
@pytest.mark.parametrize("n", [5, 137])
def test_max_carries_nan(tmp_path: Path, kind: DType, n: int) -> None:
    data = rows_with(n, **SPECIAL)
    data = np.vstack([data, np.full((1, n), -INF), np.full((1, n), NAN)]).astype(kind.numpy)
    m = len(data)
    value = greatest("j", x("x", "m", "j", kind=kind))
    k = kernel("row_max", "m", {"m": m, "j": n}, value, {"x": (m, n)}, dtypes={"x": kind})
    check(tmp_path, k, {"x": data})
    value = greatest("j", x("x", "j", "m", kind=kind))
    k = kernel("column_max", "m", {"m": m, "j": n}, value, {"x": (n, m)}, dtypes={"x": kind})
    check(tmp_path, k, {"x": np.ascontiguousarray(data.T)})


@pytest.mark.parametrize(("size", "step"), [(3, 1), (3, 2), (5, 1), (7, 3)])
@pytest.mark.parametrize("last", [False, True])
def test_max_of_windows_carries_nan(tmp_path: Path, size: int, step: int, last: bool) -> None:
    """Windows are compared as integers: NaN of either sign, infinities, zeros, tiny and large."""
    rng = np.random.default_rng(size)
    specials = [NAN, -NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 1.5e38, -1.5e38]
    data = rng.normal(size=(6, 14, 20)).astype(np.float32)
    data[::2] -= 10  # windows of negative values only
    for channel in data[1:]:
        at = rng.integers(0, channel.size, 12)
        channel.flat[at] = rng.choice(specials, 12)
    data[5] = -INF
    data = np.moveaxis(data, 0, -1) if last else data
    k = zoo.windows(6, 14, 20, size, step, last, "max")
    check(tmp_path, k, {"x": np.ascontiguousarray(data)})


def test_max_over_tiles_keeps_an_early_nan(tmp_path: Path) -> None:
    """A NaN of the first tile must survive the others."""
    data = rows_with(64, early=[], late=[])
    data[0, 1], data[1, 60] = NAN, NAN
    k = kernel("row_max", "m", {"m": 2, "j": 64}, greatest("j", x("x", "m", "j")), {"x": (2, 64)})
    check(tmp_path, k, {"x": data}, seeds=12)


@pytest.mark.parametrize("n", [3, 100])
def test_softmax_of_special_rows(tmp_path: Path, n: int) -> None:
    data = rows_with(n, **{k: v for k, v in SPECIAL.items() if k != "large"})
    data = np.vstack([data, np.full((1, n), -INF), np.full((1, n), NAN), np.full((1, n), INF)])
    check(tmp_path, zoo.softmax(len(data), n), {"x": data.astype(np.float32)}, 6)


@pytest.mark.parametrize("how", ["up", "up before", "down", "down before"])
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("n", [3, 100])
def test_running_over_special_rows(tmp_path: Path, how: str, op: str, n: int) -> None:
    """What is not finite is seen from there on, and nowhere before."""
    special = {name: v for name, v in SPECIAL.items() if name not in ("large", "tiny")}
    rows = rows_with(n, **special)
    check(tmp_path, zoo.running(len(rows), n, 1, how, op), {"x": rows[..., None]})
    columns = np.ascontiguousarray(rows.T)[None]
    check(tmp_path, zoo.running(1, n, len(rows), how, op), {"x": columns})


@pytest.mark.parametrize("shape", [(1, 100_000, 1), (2, 20_000, 3)])
def test_running_sums_are_as_exact_as_those_of_numpy(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    data = np.random.default_rng(3).random(shape, np.float32)
    k = zoo.running(*shape)
    program = lower(k, default_schedule(k, native()), native())
    lib = compile_programs(tmp_path, [program], FLAGS)
    got = run(lib, 0, program, {"x": data}, 1)["out"]
    exact = np.cumsum(data.astype(np.float64), 1)
    theirs = np.abs(np.cumsum(data, 1) - exact).max()
    assert np.abs(got - exact).max() <= 1.1 * theirs


def weighted(m: int, n: int, d: int) -> Kernel:
    """Both results of a weighted sum, unnormalised, with scores as they are."""
    s = x("s", "m", "j")
    value = plus(wsum("j", s, x("v", "j", "d")), times(wsum("j", s, c(1.0)), 0.5))
    return kernel("weighted", "m d", {"m": m, "j": n, "d": d}, value, {"s": (m, n), "v": (n, d)})


@pytest.mark.parametrize("computed", [False, True])
def test_weighted_sum_is_the_naive_one(tmp_path: Path, computed: bool) -> None:
    """Rows of -inf only give NaN; tiles of -inf only do not poison the others."""
    n = 48
    data = rows_with(n, **{k: v for k, v in SPECIAL.items() if k != "large"})
    masked = np.vstack([data, data[:1], data[:1], np.full((2, n), -INF), np.full((1, n), NAN)])
    masked[len(data), : n - 3] = -INF  # only the last tile has anything
    masked[len(data) + 1, 5:] = -INF  # only the first one has
    masked[len(data) + 3, 4] = -3.4028235e38  # the least finite score
    k = weighted(len(masked), n, 17)
    if computed:  # the scores are a stage: a contraction
        e = total("e", times(x("s", "m", "e"), x("i", "e", "j")))
        s = plus(e, x("b", "m", "j"))
        value = plus(wsum("j", s, x("v", "j", "d")), wsum("j", s, c(1.0)))
        shapes = {"s": (len(masked), 4), "i": (4, n), "b": masked.shape, "v": (n, 17)}
        extent = {"m": len(masked), "j": n, "d": 17, "e": 4}
        k = kernel("weighted_scores", "m d", extent, value, shapes)
    rng = np.random.default_rng(1)
    inputs = {b.name: rng.standard_normal(b.shape).astype(np.float32) for b in k.buffers}
    inputs["b" if computed else "s"] = masked.astype(np.float32)
    del inputs["out"]
    check(tmp_path, k, inputs, 16)


@pytest.mark.parametrize("queries", [48, 49, 100])
def test_scores_with_lanes_along_the_queries(tmp_path: Path, queries: int) -> None:
    """Tiles of queries and keys with remainders; biases that mask tiles, all keys, or are NaN."""
    bias = np.zeros((5, 200), np.float32)
    bias[0, :150], bias[1, 3:], bias[2] = -INF, -INF, -INF
    bias[3, 190], bias[4, 7], bias[4, 160] = NAN, -3.4e38, 3.4e38
    score = times(total("e", times(x("q", "h", "i", "e"), x("k", "h", "j", "e"))), 0.3)
    score = plus(score, x("b", "h", "j"))
    value = times(wsum("j", score, x("v", "h", "j", "d")), unary("recip", wsum("j", score, c(1.0))))
    shapes = {"q": (5, queries, 8), "k": (5, 200, 8), "b": bias.shape, "v": (5, 200, 20)}
    extent = {"h": 5, "i": queries, "d": 20, "j": 200, "e": 8}
    k = kernel("columns", "h i d", extent, value, shapes)
    walks = ir.leaves(lower(k, default_schedule(k, native()), native()).body)
    assert {op.lanes for op in walks if isinstance(op, ir.Reduce)} == {"strips"}
    rng = np.random.default_rng(2)
    inputs = {b.name: rng.standard_normal(b.shape).astype(np.float32) for b in k.buffers[:-1]}
    check(tmp_path, k, inputs | {"b": bias}, seeds=0)


@pytest.mark.parametrize(("m", "n"), [(48, 32), (40, 24), (100, 17)])
def test_sums_that_lie_across_a_residual(tmp_path: Path, m: int, n: int) -> None:
    """With lanes along the rows of the result the sums are transposed, and what is added to them
    is read as it lies: in whole blocks, in those that lack some rows, and in what is left."""
    value = plus(x("r", "m", "n"), total("k", times(x("x", "m", "k"), x("w", "k", "n"))))
    shapes = {"r": (m, n), "x": (m, 7), "w": (7, n)}
    k = kernel("across", "m n", {"m": m, "n": n, "k": 7}, value, shapes)
    stage = Stage("contract", "n", "m", 4, 1, stage_b="inner")
    schedule = Schedule(("m", "n"), 0, stages=(stage,))
    text = print_kernel(lower(k, schedule, resolve_target("cpu:x86-64-v3")), "across")
    assert re.search(r"lumc_transpose\(.*&S_stage.*&S_block", text)
    assert re.search(r"for \(long n =[^\n]*\n[^}]*B_r\[", text)
    rng = np.random.default_rng(3)
    inputs = {b.name: rng.standard_normal(b.shape).astype(np.float32) for b in k.buffers[:-1]}
    check(tmp_path, k, inputs, 6, more=[schedule])


def test_weighted_sum_of_infinite_values(tmp_path: Path) -> None:
    """A weight of exactly 0 times inf is NaN, as in the naive form."""
    s = rows_with(20, plain=[], masked=[-INF, -INF])
    v = rows_with(9, **{f"r{i}": [] for i in range(20)})
    v[3, 4], v[7, 2], v[11, 1] = INF, NAN, -INF
    k = weighted(2, 20, 9)
    check(tmp_path, k, {"s": s, "v": v}, 8)


def test_functions_of_special_values(tmp_path: Path) -> None:
    """All of them in one library, and in one process under sanitizers."""
    special = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, -NAN, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38]
    special += [127.9, 128.0, 128.1, 129.0, 1e30, -125.5, -126.5, -148.9, -149.5, -150.1, -1e30]
    special += [1e5, 1e9, 1e20, 1.5707964, 3.1415927, 0.5, 2.0**23, 2.0**47, 2.0**100]
    cases = list(product((F32, F64), ("exp2", "log2", "sin", "sqrt", "recip")))
    kernels, inputs = list[Kernel](), list[dict[str, np.ndarray]]()
    for kind, op in cases:
        data, value = np.array(special, kind.numpy), unary(op, x("x", "n", kind=kind))
        shape, dtypes = {"x": data.shape}, {"x": kind}
        kernels.append(kernel(op, "n", {"n": len(data)}, value, shape, dtypes=dtypes))
        inputs.append({"x": data})
    programs = [lower(k, default_schedule(k, native()), native()) for k in kernels]
    lib = compile_programs(tmp_path, programs)
    plain = [run(lib, i, p, each) for i, (p, each) in enumerate(zip(programs, inputs, strict=True))]
    checked = run_checked(tmp_path, programs, inputs)
    for i, (k, (kind, op)) in enumerate(zip(kernels, cases, strict=True)):
        data = inputs[i]["x"]
        with np.errstate(all="ignore"):
            want = evaluate_kernel(k, inputs[i])["out"].astype(kind.numpy)
        for result in (plain[i], checked[i]):
            got = result["out"]
            assert np.array_equal(np.isnan(got), np.isnan(want)), op
            number = ~np.isnan(want)
            assert np.array_equal(np.signbit(got[number]), np.signbit(want[number])), op
            ulp = np.spacing(np.abs(np.where(np.isfinite(want), want, 1)))
            with np.errstate(all="ignore"):
                error = np.where(got == want, 0, np.abs(got - want) / ulp)
            assert error[number].max() <= 2, (op, data[number][error[number].argmax()])


@pytest.mark.parametrize(("op", "limit"), [("exp2", 1.1), ("log2", 1.2), ("sin", 0.51)])
def test_accuracy_of_functions(tmp_path: Path, op: str, limit: float) -> None:
    """At most this many units in the last place, over random bit patterns of f32."""
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, np.uint32)
    data = bits.view(np.float32)
    data[: 1 << 18] = np.random.default_rng(4).uniform(-20, 20, 1 << 18)
    value = unary(op, x("x", "n"))
    k = kernel(op, "n", {"n": data.size}, value, {"x": data.shape})
    program = lower(k, default_schedule(k, native()), native())
    got = run(compile_programs(tmp_path, [program]), 0, program, {"x": data})["out"]
    want = evaluate_kernel(k, {"x": data})["out"]
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        finite = np.isfinite(rounded)
        assert np.array_equal(got[~finite], rounded[~finite], equal_nan=True)
        ulp = np.abs(got - want)[finite] / np.spacing(np.abs(rounded[finite]))
    assert ulp.max() <= limit


def test_select_drops_nan_and_inf(tmp_path: Path) -> None:
    a, b = x("a", "n"), x("b", "n")
    value = binary("sel", binary("lt", a, b), unary("recip", a))
    k = kernel("select", "n", {"n": 40}, value, {"a": (40,), "b": (40,)})
    data = rows_with(40, a=[0.0, INF, NAN, -0.0, -INF], b=[NAN, INF, 0.0, 1.0])
    check(tmp_path, k, {"a": data[0], "b": data[1]}, 2)


def test_select_by_a_nan_sum(tmp_path: Path) -> None:
    """A product with a selected factor: 0 * inf inside the sum is NaN, a dropped one is not."""
    keep = binary("lt", x("m", "k"), c(0.0))
    value = total("k", times(binary("sel", keep, x("x", "i", "k")), x("w", "k", "n")))
    shapes = {"m": (20,), "x": (5, 20), "w": (20, 17)}
    k = kernel("masked_matmul", "i n", {"i": 5, "n": 17, "k": 20}, value, shapes)
    rng = np.random.default_rng(2)
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    inputs["x"][2, 3], inputs["w"][4, 5] = INF, INF
    check(tmp_path, k, inputs, 8)


@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
def test_every_narrow_float_round_trips(tmp_path: Path, kind: DType) -> None:
    """All 65536 patterns load right; f32 values round to nearest even on the way back."""
    every = np.arange(1 << 16, dtype=np.uint16)
    data = every.view(np.float16) if kind is DType.F16 else every
    k = kernel(
        "widen",
        "n",
        {"n": 1 << 16},
        cast(F32, x("x", "n", kind=kind)),
        {"x": (1 << 16,)},
        dtypes={"x": kind},
    )
    check(tmp_path, k, {"x": data}, 0)
    bits = np.random.default_rng(5).integers(0, 1 << 32, 1 << 18, np.uint32)
    bits[: 1 << 16] = every.astype(np.uint32) << 16 | 0x8000  # ties of bf16
    bits[1 << 16 : 1 << 17] = (every.astype(np.uint32) << 13) + 0x38000000 | 0x1000  # of f16
    wide = bits.view(np.float32)
    k = kernel("narrow", "n", {"n": wide.size}, cast(kind, x("x", "n")), {"x": wide.shape})
    program = lower(k, default_schedule(k, native()), native())
    got = run(compile_programs(tmp_path, [program]), 0, program, {"x": wide})["out"]
    with np.errstate(all="ignore"):
        if kind is DType.F16:
            want = wide.astype(np.float16)
            assert np.array_equal(got, want, equal_nan=True)
        else:
            exact = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            nan = np.isnan(wide)
            assert np.array_equal(got[~nan], exact[~nan].astype(np.uint16))
            assert np.isnan((got[nan].astype(np.uint32) << 16).view(np.float32)).all()


def test_empty_axes(tmp_path: Path) -> None:
    """Empty sums are 0, empty maxima -inf, empty weighted sums 0; empty results need no work."""
    read = x("x", "m", "j")
    values = {
        "sum": total("j", read),
        "max": greatest("j", read),
        "wsum": wsum("j", read, x("v", "j")),
        "matmul": total("j", times(read, x("v", "j"))),
    }
    for m, n in ((3, 0), (0, 5), (0, 0)):
        for name, value in values.items():
            k = kernel(name, "m", {"m": m, "j": n}, value, {"x": (m, n), "v": (n,)})
            data = {"x": np.ones((m, n), np.float32), "v": np.ones(n, np.float32)}
            check(tmp_path, k, data, 3)


def test_guards_never_read_outside(tmp_path: Path) -> None:
    """Run under the address sanitizer by the sanitizer test as well; here: the values."""
    for index, n in (("m", 12), ("n", 20)):
        e = unary("exp2", times(x("x", index), 3.0))
        value = guard(zoo.add(index, -4), 0, n - 9, plus(e, const(1.0, F32)))
        value = zoo.total("k", times(value, x("w", "k", "n"))) if index == "m" else value
        shapes = {"x": (n,), "w": (6, 20)}
        extent = {"m": 12, "n": 20, "k": 6}
        k = kernel("guarded", "m n", extent, value, shapes)
        rng = np.random.default_rng(0)
        inputs = {b: rng.standard_normal(s).astype(np.float32) for b, s in shapes.items()}
        check(tmp_path, k, inputs, 4)


@pytest.mark.parametrize(("op", "least"), [("exp2_ftz", 0.0), ("decay", 2.0**-126)])
def test_accuracy_of_shorter_powers(tmp_path: Path, op: str, least: float) -> None:
    """Where a constant is added, and of squares below zero: NaN, infinities and all sizes."""
    data = np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
    data[: 1 << 18] = np.random.default_rng(4).uniform(-130, 130, 1 << 18)
    data[:6] = [INF, -INF, NAN, -126.0, 127.9999, 128.0]
    square = times(times(x("x", "n"), x("x", "n")), -0.5)
    value = plus(unary("exp2", x("x", "n")), 1e-25) if op == "exp2_ftz" else unary("exp2", square)
    k = kernel(op, "n", {"n": data.size}, value, {"x": data.shape})
    program = lower(k, default_schedule(k, native()), native())
    assert f"lumc_{op}_n_f32" in print_kernel(program, "k")
    got = run(compile_programs(tmp_path, [program]), 0, program, {"x": data})["out"]
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64)
        want = np.exp2(wide) + 1e-25 if op == "exp2_ftz" else np.exp2(-0.5 * wide * wide)
        rounded = want.astype(np.float32)
        finite = np.isfinite(rounded)
        assert np.array_equal(got[~finite], rounded[~finite], equal_nan=True)
        # the square is rounded too
        limit = 1.7 if op == "exp2_ftz" else 1.7 + 0.7 * np.abs(wide * wide)[finite]
        off = np.abs(got - want)[finite]
        ulp = off / np.spacing(np.abs(rounded[finite]))
    assert ((ulp <= limit) | (off <= least)).all()


@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
def test_functions_of_whole_vectors(tmp_path: Path, name: str) -> None:
    """What vectors compute with a table is as good as what lanes compute one by one."""
    target = resolve_target(f"cpu:{name}")
    if native().lanes < target.lanes or native().arch == "aarch64":
        pytest.skip(f"this CPU is no {name}")
    (tmp_path / "powers.c").write_text(
        f"""#define LUMC_LANES {target.lanes}
{header_of("cpu")}
/* in the mode that the runner sets: what is no normal number counts as zero */
#define FLUSHED(call)                                 \\
    {{                                                \\
        unsigned mode = __builtin_ia32_stmxcsr();     \\
        __builtin_ia32_ldmxcsr(mode | 0x8040);        \\
        call;                                         \\
        __builtin_ia32_ldmxcsr(mode);                 \\
    }}
void decay(float *to, const float *from, long n) {{ lumc_decay_n_f32(to, from, n); }}
void exp2_ftz(float *to, const float *from, long n) {{ lumc_exp2_ftz_n_f32(to, from, n); }}
void exp_ftz(float *to, const float *from, long n) {{ lumc_exp_ftz_n_f32(to, from, n); }}
void flushed_exp_ftz(float *to, const float *from, long n) FLUSHED(exp_ftz(to, from, n))
void flushed_decay(float *to, const float *from, long n) FLUSHED(decay(to, from, n))
void flushed_exp2_ftz(float *to, const float *from, long n) FLUSHED(exp2_ftz(to, from, n))
void log2_(float *to, const float *from, long n) {{ lumc_log2_n_f32(to, from, n); }}
"""
    )
    command = ["gcc", "-std=gnu11", "-shared", "-fPIC", *FLAGS, *target.flags, "-Wno-psabi"]
    subprocess.run(
        [*command, str(tmp_path / "powers.c"), "-o", str(tmp_path / "powers.so")], check=True
    )
    lib = ctypes.CDLL(str(tmp_path / "powers.so"))
    data = np.random.default_rng(5).integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
    data[: 1 << 19] = np.random.default_rng(6).uniform(-130, 130, 1 << 19)
    data[:8] = [INF, -INF, NAN, -NAN, -0.0, -126.0, 127.9999, 128.0]
    with np.errstate(all="ignore"):
        powers = {f.__name__: f(data.astype(np.float64)) for f in (np.exp2, np.exp)}
    cases = tuple(
        (how + op, top, least)
        for op, top, least in (
            ("decay", 0.0, 2.0**-126),
            ("exp2_ftz", INF, 2.0**-125),
            ("exp_ftz", INF, 2.0**-125),
        )
        for how in ("", "flushed_")
    )
    for op, top, least in cases:
        with np.errstate(all="ignore"):
            want = powers["exp" if op.endswith("exp_ftz") else "exp2"]
            rounded = want.astype(np.float32)
        got = np.empty_like(data)
        getattr(lib, op)(got.ctypes, data.ctypes, ctypes.c_long(data.size))
        mine = ~(data > top)
        finite = mine & np.isfinite(rounded)
        assert np.array_equal(got[mine & ~finite], rounded[mine & ~finite], equal_nan=True)
        off = np.abs(got[finite] - want[finite])
        assert ((off <= 1.4 * np.spacing(rounded[finite])) | (off <= least)).all()
        # no number that is not normal, which some processors are slow to make and to read
        assert not op.startswith("flushed") or (got[data <= -127] == 0).all()
    data[: 1 << 19] = np.random.default_rng(7).uniform(0.5, 2, 1 << 19)
    data[:8] = [INF, -INF, NAN, 0.0, -0.0, 1.0, 1e-45, -1e-45]
    data[8 : 1 << 17] = 1 + np.random.default_rng(8).uniform(-1e-3, 1e-3, (1 << 17) - 8)
    with np.errstate(all="ignore"):
        want = np.log2(data.astype(np.float64))
    got = np.empty_like(data)
    lib.log2_(got.ctypes, data.ctypes, ctypes.c_long(data.size))
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite].astype(np.float32), equal_nan=True)
    near = np.spacing(np.abs(want[finite].astype(np.float32)))
    limit = 1.2 if target.lanes == 16 else 1.5
    assert (np.abs(got[finite] - want[finite]) <= limit * near).all()
