"""Every class of kernel as HIP: on the emulator with waves of 64 and of 32 threads, against
float64, and by clang for every architecture, without spills."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dealing import build, dealt, narrowed, random_dealt, refusal, run, together, zoo
from kernel_zoo import (
    FAMILIES,
    attention,
    layernorm,
    matmul,
    random_inputs,
    softmax,
    turned_matmul,
)
from kernels import assert_close
from lumc.codegen.text.headers import header_of
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.kernel.machines import GPUS, resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.link import hip
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.operands import HALF, pairs
from lumc.schedule.schedule import Schedule, Threads

TARGETS = {arch: resolve_target(f"hip:{arch}") for arch in GPUS["hip"]}
WIDE, NARROW, NEW = (TARGETS[a] for a in ("gfx942", "gfx1100", "gfx1201"))  # waves of 64, 32, 32
ORDERS = ("forward", "reverse", "random")
Case = tuple[Kernel, Schedule]
# of the newest, whose waves are those of NARROW, a third is enough to see how its fragments differ
in_parts = pytest.mark.parametrize(
    ("part", "target"),
    [
        pytest.param(i, t, marks=[pytest.mark.deep] * (t is NEW and i > 0), id=f"{i}-{t.arch}")
        for i in range(3)
        for t in (WIDE, NARROW, NEW)
    ],
)


def check(
    cases: list[Case], target: Target, folder: Path, checked: bool, order: str = "forward"
) -> None:
    """Compile these cases together, run them, compare."""
    module, grids = build([dealt(k, s, target) for k, s in cases], folder, checked)
    for i, (k, s) in enumerate(cases):
        inputs = random_inputs(k, i)
        got = run(module, f"k{i}", k, grids[i], inputs, order)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


def first_guess(kernel: Kernel, target: Target) -> Schedule:
    return next(s for s in guesses(kernel, target) if not refusal(kernel, s, target))


def middle() -> list[Kernel]:
    """Every family at an odd shape; those with contractions in 16 bits, too."""
    kernels = [family(*shapes[len(shapes) // 2]) for family, shapes in FAMILIES.items()]
    floats = [k for k in kernels if {b.dtype for b in k.buffers} == {DType.F32}]
    products = [k for k in floats if any(pairs(s) for s in normalize(k).stages)]
    return kernels + [narrowed(k, HALF[i % 2]) for i, k in enumerate(products)]


@in_parts
def test_guesses(part: int, target: Target, tmp_path: Path) -> None:
    """What is planned for a kernel when nothing is searched."""
    cases = [(k, first_guess(k, target)) for k in middle()[part::3]]
    check(cases, target, tmp_path, checked=True)


@in_parts
def test_random_schedules(part: int, target: Target, tmp_path: Path) -> None:
    found = drawn(random.Random(f"{target.name} {part}"), target, 12)
    check(found, target, tmp_path, checked=part != 0, order=ORDERS[part])


@pytest.mark.deep
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.arch)
def test_many_random_schedules(target: Target, tmp_path: Path) -> None:
    rng = random.Random(f"{target.name} deep")
    for i in range(12):
        check(drawn(rng, target, 30), target, tmp_path, i % 4 != 0, ORDERS[i % 3])


def drawn(rng: random.Random, target: Target, n: int) -> list[Case]:
    """Random kernels with random schedules that a block can hold."""
    kernels, out = zoo(), list[Case]()
    while len(out) < n:
        k = rng.choice(kernels)
        s = random_dealt(k, target, rng)
        if not refusal(k, s, target):
            out.append((k, s))
    return out


@pytest.mark.parametrize("target", [WIDE, NARROW], ids=lambda t: t.arch)
def test_a_block_has_a_wave_at_least(target: Target) -> None:
    kernel = middle()[0]
    assert target.gpu
    for count in (32, 64):
        few = replace(first_guess(kernel, target), threads=Threads(count, row=4))
        said = refusal(kernel, few, target)
        assert bool(said) == (count < target.gpu.warp), said


# ---- clang


@cache
def compiler() -> hip.Compiler:
    """The one that ``link`` takes; without it the test is skipped."""
    try:
        return hip.find()
    except LumcError as e:
        pytest.skip(f"{e.what} (Debian: apt install clang-19 lld-19)")


def images(
    cases: list[Case], target: Target, folder: Path, archs: Sequence[str]
) -> dict[str, dict[str, hip.Figures]]:
    """What clang says of the kernels k0, k1, .. by architecture."""
    source, _ = together([dealt(k, s, target) for k, s in cases])
    (folder / "lumc_hip.h").write_text(header_of("hip"))
    (folder / "kernels.hip").write_text(source)
    hip.compile_images(compiler(), folder, "kernels.hip", archs)
    return {a: hip.figures((folder / f"kernels.{a}.hsaco").read_bytes()) for a in archs}


def large() -> list[Kernel]:
    """At sizes for which GPUs are bought."""
    turned, scores = turned_matmul(4096, 4096, 4096), attention(32, 4096, 4096, 128)
    return [
        *(narrowed(turned, DType.BF16), narrowed(matmul(1024, 1024, 1024), DType.F16)),
        *(narrowed(scores, DType.F16), narrowed(attention(8, 1024, 1024, 64), DType.BF16)),
        *(matmul(1024, 1024, 1024), attention(8, 1024, 1024, 64)),
        *(softmax(4096, 4096), layernorm(512, 4096)),
    ]


@pytest.mark.parametrize("target", [WIDE, NARROW, NEW], ids=lambda t: t.arch)
def test_images_without_spills(target: Target, tmp_path: Path) -> None:
    """Where registers are full, as it is planned when nothing is searched."""
    without_spills(large(), target, tmp_path, hip.IMAGES[target.arch][:1])


@pytest.mark.deep
@pytest.mark.parametrize("target", [WIDE, NARROW, NEW], ids=lambda t: t.arch)
def test_all_images_without_spills(target: Target, tmp_path: Path) -> None:
    """All families, for every architecture."""
    without_spills([*middle(), *large()], target, tmp_path, hip.IMAGES[target.arch])


def without_spills(
    kernels: Sequence[Kernel], target: Target, folder: Path, archs: Sequence[str]
) -> None:
    cases = [(k, first_guess(k, target)) for k in kernels]
    assert target.gpu
    for arch, figures in images(cases, target, folder, archs).items():
        assert set(figures) == {f"k{i}" for i in range(len(cases))}
        for i, (k, _) in enumerate(cases):
            found = figures[f"k{i}"]
            assert not found.spilled and not found.local_bytes, f"{k.name} on {arch}: {found}"
            assert found.wave == target.gpu.warp


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(LumcError) as e:
        hip.find(str(tmp_path / "none"))
    assert e.value.code == "E0713" and e.value.exit == 7
    lame = tmp_path / "clang"
    lame.write_text("#!/bin/sh\necho clang version 1\nexit $(( $# > 1 ))\n")
    lame.chmod(0o755)
    with pytest.raises(LumcError) as e:
        hip.find(str(lame))
    assert "the compiler refused empty.hip" in e.value.where
