"""Kernels whose lengths are known when they run, on the threads of GPUs: at many lengths on the
emulators, race-checked, with NaN beyond what there is, against float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import emulator
import msl
from dealing import (
    dealt,
    features,
    flash,
    narrowed,
    random_dealt,
    refusal,
    schedule,
    tiled,
    together,
)
from gpu import address_spaces
from gpu.msl_lint import lint
from kernel_zoo import attention, decode, gated, matmul, random_inputs, softmax
from kernels import TOLERANCE, worst
from live_kernels import CASES, Case, S, rmsnorm, roomy, split
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu import operations
from lumc.codegen.gpu.distribution import Distribution
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.writer import GpuWriter, Ranges
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.program import Loop
from lumc.errors import LumcError
from lumc.graph.dim import Dim
from lumc.graph.expr import add, dim, mul
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.link import cuda as compiler
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule
from shorter import shorter

TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]
Run = tuple[Case, Schedule]
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
in_short = pytest.mark.parametrize("target", shorter(TARGETS), ids=lambda t: t.kind)


def half(case: Case, kind: DType) -> Case:
    return replace(case, kernel=narrowed(case.kernel, kind))


def first(case: Case, target: Target) -> Run:
    """What is planned when nothing is searched."""
    every = guesses(case.made, target)
    return case, next(s for s in every if not refusal(case.made, s, target))


def drawn(case: Case, target: Target, rng: random.Random) -> Run:
    while True:
        s = random_dealt(case.made, target, rng)
        if not refusal(case.made, s, target):
            return case, s


def check(runs: Sequence[Run], target: Target, folder: Path, order: str = "forward") -> None:
    """All of these at all of their lengths; nothing beyond is read into a result or written."""
    dialect = DIALECTS[target.kind]
    printed = [
        print_kernel(dealt(c.made, s, target), dialect, f"k{i}") for i, (c, s) in enumerate(runs)
    ]
    source = "\n".join(text for text, _ in printed)
    if target.kind == "metal":
        source = header_of("metal") + source
        assert lint(source, target.arch) == []
        if address_spaces.clang():
            assert address_spaces.check(source) == []
    build = msl.build if target.kind == "metal" else emulator.build
    module = build(source, folder, checked=True)
    for i, (case, chosen) in enumerate(runs):
        kernel, full = normalize(case.made), random_inputs(case.kernel, i)
        at = [b.name for b in kernel.buffers].index("out")
        kind = kernel.buffer("out").dtype
        for dims in case.points():
            given = roomy(case, full, dims)
            want = evaluate_kernel(case.made.bound(dims), given)["out"]
            lengths = [np.full(1, dims[d.name], np.int64) for d in kernel.lengths.dims]
            arrays = [given.get(b.name, nothing(b.shape, b.dtype)) for b in kernel.buffers]
            said = module.launch(f"k{i}", printed[i][1], [*arrays, *lengths], order, i)
            about = f"{kernel.name} {i}, {dims}: {chosen}"
            assert not said, f"{about}\n{said}"
            inside = split(want, case.parts.get("out", {}), dims)
            limit = TOLERANCE.get(kind, 2e-5)
            assert worst(arrays[at][inside], want[inside], kind) < limit, about
            arrays[at][inside] = nothing((), kind)
            assert (arrays[at].view(np.uint8) == 0xFF).all(), f"{about}: written beyond"


def nothing(shape: Sequence[int], kind: DType) -> np.ndarray:
    """NaN of all ones."""
    out = np.empty(shape, kind.numpy)
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    return out


@by_target
def test_guesses(target: Target, built: Path) -> None:
    check([first(make(), target) for make in CASES.values()], target, built)


@in_short
def test_guesses_of_halves(target: Target, built: Path) -> None:
    """On the matrix units."""
    kinds = [DType.F16, DType.BF16] if target.kind == "cuda" else [DType.F16]
    cases = [half(CASES[name](), kind) for name in CASES for kind in kinds]
    check([first(c, target) for c in cases], target, built, "random")


@in_short
def test_random_schedules(target: Target, built: Path) -> None:
    rng = random.Random(f"lengths {target.kind}")
    names = rng.sample([*CASES], 8)
    cases = [CASES[n]() if rng.random() < 0.5 else half(CASES[n](), DType.F16) for n in names]
    check([drawn(c, target, rng) for c in cases], target, built, "reverse")


# ---- copies that run ahead of a loop whose end is known at run time


def steps_of_sixteen() -> Case:
    n = mul(S, 16)
    parts = {"x": {1: n}, "w": {0: n}}
    return half(Case(matmul(40, 64, 144), {"k": n}, parts, (Dim("s", 1, 9),)), DType.F16)


def keys_and_values() -> Case:
    parts = {"Q": {1: S}, "K": {1: S}, "V": {1: S}, "out": {1: S}}
    dims = (Dim("s", 1, 150),)
    square = Case(attention(2, 150, 150, 32, 1, False, True), {"q": S, "j": S}, parts, dims)
    return half(square, DType.F16)


def rings() -> list[Run]:
    product, scores = steps_of_sixteen(), keys_and_values()
    k, tile = product.made, {"m": 16, "n": 64, "k": 32}
    ahead = schedule(k, tile, tiled(normalize(k), "mma", (1, 2)), count=64, ring=3)
    return [
        (product, ahead),
        (product, first(product, TARGETS[0])[1]),
        (scores, flash(scores.made, (2, 1), 32, 32, count=64, ring=2)),
        (scores, first(scores, TARGETS[0])[1]),
    ]


def test_rings_end_at_lengths(built: Path) -> None:
    runs = rings()
    assert all("ring" in features(dealt(c.made, s)) for c, s in runs)
    check(runs, TARGETS[0], built, "random")


@pytest.mark.deep
@by_target
@pytest.mark.parametrize("part", range(12))
def test_many_random_schedules(target: Target, part: int, tmp_path: Path) -> None:
    rng = random.Random(f"lengths {target.kind} {part}")
    cases = [CASES[n]() if rng.random() < 0.5 else half(CASES[n](), DType.F16) for n in CASES]
    check([drawn(c, target, rng) for c in cases for _ in range(2)], target, tmp_path, "random")


# ---- registers, by NVIDIA's compiler


def large() -> list[Case]:
    """What a language model of 1e9 weights has: up to 512 rows, 2048 keys."""
    rows, more = (Dim("s", 1, 512),), (Dim("p", 0, 1536), Dim("s", 1, 512))
    keys, at = add(S, dim("p")), {"x": {0: S}, "out": {0: S}}
    scores = {"Q": {1: S}, "out": {1: S}, "K": {1: keys}, "V": {1: keys}}
    return [
        Case(rmsnorm(512, 2048), {"m": S}, at, rows),
        Case(softmax(512, 2048), {"m": S}, at, rows),
        half(Case(matmul(512, 2048, 2048, True), {"m": S}, at, rows), DType.F16),
        half(Case(gated(512, 2048, 1024), {"m": S}, at, rows), DType.BF16),
        Case(attention(8, 512, 2048, 64, 4, False, True), {"q": S, "j": keys}, scores, more),
        half(
            Case(attention(8, 512, 2048, 64, 4, False, True), {"q": S, "j": keys}, scores, more),
            DType.F16,
        ),
        Case(decode(8, 4, 2048, 64), {"j": S}, {"K": {1: S}, "V": {1: S}}, (Dim("s", 1, 2048),)),
    ]


def test_registers_suffice(tmp_path: Path) -> None:
    try:
        found = compiler.find()
    except LumcError as e:
        pytest.skip(e.what)
    programs = [dealt(case.made, first(case, TARGETS[0])[1]) for case in large()]
    (tmp_path / "lumc_dev.h").write_text(header_of("cuda"))
    (tmp_path / "k.cu").write_text(together(programs)[0])
    found.image(tmp_path, "k.cu", "sm_90", "k.cubin")
    figures = compiler.figures((tmp_path / "k.cubin").read_bytes())
    assert len(figures) == len(programs)
    assert not any(f.local_bytes for f in figures.values()), figures


# ---- mistakes


def greatest(w: GpuWriter, loop: Loop) -> str:
    return str(loop.extent)


def without_dims(found: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Bounds of points, but for those of lengths."""

    def inside(w: GpuWriter, points: Distribution, axes: Sequence[str], r: Ranges) -> list[str]:
        return [c for a in axes if "D_" not in w.end(r[a]) for c in found(w, points, [a], r)]

    return inside


def off_by(n: int) -> Callable[[GpuWriter], None]:
    def read_dims(w: GpuWriter) -> None:
        for d in w.d.program.kernel.lengths.dims:
            w.let(w.names.dim(d.name), f"(int)*{w.names.given(d.name)} + {n}")

    return read_dims


def staying(read_dims: Callable[[GpuWriter], None]) -> Callable[[GpuWriter], None]:
    """Blocks beyond the tiles that there are do something."""

    def changed(w: GpuWriter) -> None:
        read_dims(w)
        w.body = [s for s in w.body if "return" not in str(s)]

    return changed


MISTAKES: dict[str, tuple[str, object]] = {
    "a loop ends at the extent": ("length", greatest),
    "a bound is dropped": ("inside", without_dims(GpuWriter.inside)),
    "a length is one more": ("read_dims", off_by(1)),
    "a length is one less": ("read_dims", off_by(-1)),
    "blocks beyond the lengths work": ("read_dims", staying(operations.read_dims)),
}


@pytest.mark.parametrize("name", MISTAKES)
@by_target
def test_mistakes_are_noticed(
    name: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, other = MISTAKES[name]
    runs = [first(CASES[c](), target) for c in ("softmax row", "matmul m", "attention")]
    runs += rings()[:1] if target.kind == "cuda" else []
    monkeypatch.setattr(operations if method == "read_dims" else GpuWriter, method, other)
    with pytest.raises(AssertionError):
        check(runs, target, tmp_path)
