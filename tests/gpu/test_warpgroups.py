"""Products of warpgroups (wgmma): tiles in panels, both ways to lie, sums that run behind; on the
emulator, which multiplies the same panels by the products of warps."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dealing
from dealing import cuda, dealt, flash, matrix_kinds, narrowed, random_dealt, refusal, schedule, zoo
from kernel_zoo import attention, kernel, random_inputs, times, total, x
from kernels import assert_close
from lumc.codegen.text.headers import header_of
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.link import cuda as compiler
from lumc.oracle.term import evaluate_kernel
from lumc.profile.price import scheduled
from lumc.schedule.fragment import matrix_speed
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.space import Grammar

HALVES = (DType.F16, DType.BF16)


def linear(m: int, n: int, k: int, kind: DType, turned: str = "") -> Kernel:
    """``x w^T``; the operands named in ``turned`` lie along their other axis."""
    lie = {name: ("k", a) if name in turned else (a, "k") for name, a in (("x", "m"), ("w", "n"))}
    extent = {"m": m, "n": n, "k": k}
    value = total("k", times(*(x(name, *axes, kind=kind) for name, axes in lie.items())))
    shapes = {name: tuple(extent[a] for a in axes) for name, axes in lie.items()}
    return kernel("linear", "m n", extent, value, shapes, "w", dict.fromkeys(lie, kind))


def tiled(k: Kernel, m: int, n: int, ring: int, deep: int = 64) -> Schedule:
    """Tiles of m x n, a warpgroup for 64 rows."""
    p = Stage("contract", "m", "n", stage_a="inner", stage_b="inner", fragment="wgmma")
    stages = tuple(replace(p, grid=(m // 16, 1)) for _ in normalize(k).stages)
    return schedule(k, {"m": m, "n": n, "k": deep}, stages, count=2 * m, ring=ring, vector=4)


Case = tuple[Kernel, Schedule]


def check(cases: list[Case], folder: Path, checked: bool = True, order: str = "random") -> None:
    module, grids = dealing.build([dealt(*c) for c in cases], folder, checked)
    for i, (k, s) in enumerate(cases):
        inputs = random_inputs(k, i)
        got = dealing.run(module, f"k{i}", k, grids[i], inputs, order)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


def products() -> list[Case]:
    """Edges along all axes, rings with sums that are waited for and that run behind."""
    turned = [linear(136, 264, 200, kind, t) for kind in HALVES for t in ("", "x", "w", "xw")]
    out = [(k, tiled(k, 64, 64, 3)) for k in turned]
    for kind, shape, tile in (
        (DType.F16, (128, 256, 136), (128, 128, 4)),
        (DType.BF16, (100, 256, 392), (128, 256, 4)),
        (DType.F16, (128, 256, 136), (128, 256, 1)),
        (DType.BF16, (72, 130, 100), (64, 128, 2)),
        (DType.F16, (64, 96, 320), (64, 96, 4)),
    ):
        out.append((k := linear(*shape, kind), tiled(k, *tile)))
    return out


def test_products(tmp_path: Path) -> None:
    check(products(), tmp_path)


def test_attention(tmp_path: Path) -> None:
    """Weights stay in the registers that multiply them; the queries lie there or in panels."""
    cases = list[Case]()
    for shape, place in (((2, 130, 130, 64), "register"), ((1, 70, 200, 128), "shared")):
        k = narrowed(attention(*shape), DType.F16 if place == "shared" else DType.BF16)
        s = flash(k, (4, 1), 64, 64, "wgmma", count=128, ring=2)
        stages = (replace(p, place_a=place) if p.stage_a == "hoist" else p for p in s.stages)
        cases.append((k, replace(s, stages=tuple(stages))))
    check(cases, tmp_path)


def drawn(rng: random.Random, n: int) -> list[Case]:
    """Random schedules of any kernel that warpgroups multiply."""
    kernels, out = [k for k in zoo() if "wgmma" in matrix_kinds(k, cuda())], list[Case]()
    while len(out) < n:
        k = rng.choice(kernels)
        s = random_dealt(k, cuda(), rng)
        if any(p.fragment == "wgmma" for p in s.stages) and not refusal(k, s):
            out.append((k, s))
    return out


@pytest.mark.parametrize("part", range(2))
def test_random_schedules(part: int, tmp_path: Path) -> None:
    check(drawn(random.Random(f"groups{part}"), 10), tmp_path, order=("reverse", "random")[part])


@pytest.mark.deep
def test_many_random_schedules(tmp_path: Path) -> None:
    for part in range(30):
        check(drawn(random.Random(f"more{part}"), 12), tmp_path, checked=part % 3 > 0)


MUTANTS = {
    "no exchange": ("j ^ (j >> 3 & 56)", "j"),
    "panels of other rows": ("* (ROWS * 64)", "* (ROWS * 32)"),
    "another step": ("K % 4 * 16", "K % 4 * 8"),
    "rows of the first group": ("(tid >> 7)", "0"),
    "sums go on": ("K > 0)", "true)"),
    "operands lie the other way": ("false, true>", "false, false>"),
    "no barrier": ("lumc_fence_async();\n            lumc_sync();", "lumc_fence_async();"),
}


@pytest.fixture(scope="module")
def text() -> tuple[list[Case], str]:
    """Kernels of two warpgroups, and the header in the place of the line that includes it."""
    k = narrowed(attention(1, 200, 150, 128), DType.F16)
    cases = [(k, flash(k, (8, 1), 128, 64, "wgmma", count=256, ring=2))]
    k = linear(200, 96, 264, DType.BF16, "w")
    cases.append((k, tiled(k, 128, 64, 2, 128)))
    source, _ = dealing.together([dealt(*c) for c in cases])
    header = header_of("cuda").replace("#pragma once", "").replace("LUMC_EXPORT(symbol)", "NONE")
    first, *others = source.split('#include "lumc_dev.h"')
    return cases, first + header + "".join(others)


@pytest.mark.parametrize("name", ["", *MUTANTS])
def test_a_mutant_dies(name: str, text: tuple[list[Case], str], tmp_path: Path) -> None:
    """Of the header, or of what is printed; without a name nothing is changed."""
    cases, source = text
    old, new = MUTANTS.get(name, ("", ""))
    assert old in source
    module = dealing.emulator.build(source.replace(old, new) if old else source, tmp_path, True)
    wrong = 0
    for i, (k, s) in enumerate(cases):
        inputs, arrays = random_inputs(k, i), dealing.arguments(k, random_inputs(k, i))
        said = module.launch(f"k{i}", dealing.together([dealt(k, s)])[1][0], arrays, "random")
        names = [b.name for b in k.buffers]
        try:
            assert not said
            got = {n: arrays[names.index(n)] for n in k.stored}
            assert_close(k, got, evaluate_kernel(k, inputs), s)
        except AssertionError:
            wrong += 1
    assert (wrong > 0) == bool(name)


@pytest.mark.parametrize("why", ["rows", "lanes", "in place"])
def test_refusals(why: str) -> None:
    k = linear(256, 512, 256, DType.F16)
    good = tiled(k, 128, 128, 2)
    (p,) = (p for p in good.stages if p.form == "contract")
    bad = {
        "rows": replace(good, tile={**good.tile, "m": 256}),
        "lanes": replace(good, tile={**good.tile, "n": 512}),
        "in place": replace(good, stages=(replace(p, stage_b="none"),)),
    }[why]
    assert not refusal(k, good)
    assert refusal(k, bad)


def test_what_hopper_guesses_first() -> None:
    """Also where a tile is larger than the data; older and newer GPUs have none."""
    for k in (linear(4096, 4096, 4096, DType.F16), linear(8, 300, 128, DType.BF16)):
        found, _ = scheduled(normalize(k), cuda())
        assert [p.fragment for p in found.stages] == ["wgmma"]
        assert Grammar(k, cuda()).path(found)
        assert matrix_speed(normalize(k), cuda()) > 10
        for other in ("cuda:sm_80", "cuda:sm_100"):
            found, _ = scheduled(normalize(k), resolve(other))
            assert [p.fragment for p in found.stages] == ["mma"]


def resolve(name: str) -> Target:
    from lumc.kernel.machines import resolve_target

    return resolve_target(name)


def test_registers_suffice() -> None:
    """By NVIDIA's compiler, of what is guessed first for an H100."""
    try:
        found = compiler.find()
    except LumcError as e:
        pytest.skip(e.what)
    kernels = [
        linear(4096, 4096, 4096, DType.F16, "w"),
        narrowed(attention(16, 4096, 4096, 128, mask=False), DType.F16),
    ]
    programs = [dealt(k, scheduled(normalize(k), cuda())[0]) for k in kernels]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lumc_dev.h").write_text(header_of("cuda"))
        (folder / "k.cu").write_text(dealing.together(programs)[0])
        found.image(folder, "k.cu", "sm_90", "k.cubin")
        figures = compiler.figures((folder / "k.cubin").read_bytes())
    assert len(figures) == 2 and not any(f.local_bytes for f in figures.values()), figures


def test_panels_exchange_pieces() -> None:
    """No two elements of a tile share a place, and eight rows of a piece have eight banks."""
    rows, wide = 24, 128
    i = np.arange(rows * wide)
    j = i // wide * 64 + i % wide // 64 * (rows * 64) + i % 64
    j ^= j >> 3 & 56
    assert len(set(j)) == len(i)
    piece = j.reshape(rows, wide)[:8, 0] * 2 // 16 % 8
    assert sorted(piece) == list(range(8))
