"""Copies of whole tiles by tensor maps: products that are right, on the emulator and as PTX, which
copies they are, what blocks share, and the maps that both runtimes make."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import emulator
import on_ptx
from dealing import cuda, dealt, flash, narrowed, refusal, schedule
from gpu import test_warpgroups as groups
from gpu.ptx import module as ptx
from gpu.test_warpgroups import Case, linear
from kernel_zoo import attention, kernel, times, total, x
from lumc.codegen.gpu.grid import TensorMap
from lumc.codegen.gpu.program import Bulk, steps_of
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel
from lumc.schedule.schedule import Schedule, Stage

F16, BF16 = DType.F16, DType.BF16


def whole(k: Kernel, s: Schedule, blocks: int = 1) -> Case:
    """With copies of whole tiles, each for so many blocks along the rows."""
    order = tuple(sorted(s.order, key=lambda a: a == "m")) if blocks > 1 else s.order
    assert s.threads
    return k, replace(s, order=order, threads=replace(s.threads, bulk=blocks))


def batched(h: int, m: int, n: int, k: int, inside: bool) -> Kernel:
    """A product for each h; of x that axis lies ``inside`` of the rows."""
    extent = {"h": h, "m": m, "n": n, "k": k}
    axes = {"x": ("m", "h", "k") if inside else ("h", "m", "k"), "w": ("h", "n", "k")}
    value = total("k", times(*(x(b, *a, kind=F16) for b, a in axes.items())))
    shapes = {b: tuple(extent[i] for i in a) for b, a in axes.items()}
    return kernel("batched", "h m n", extent, value, shapes, "w", dict.fromkeys(axes, F16))


def of_three_axes(rows: int, inside: bool, blocks: int = 1, ring: int = 4) -> Case:
    k = batched(3, rows, 200, 72, inside)
    p = Stage("contract", "m", "n", stage_a="inner", stage_b="inner", fragment="wgmma", grid=(4, 1))
    tile = {"h": 1, "m": 64, "n": 64, "k": 64}
    return whole(k, schedule(k, tile, [p], count=128, ring=ring, vector=4), blocks)


def products() -> list[Case]:
    """Both ways to lie, edges along all axes, one and several panels, rings whose products are
    waited for and that run behind; blocks by themselves and in pairs."""
    out = list[Case]()
    for blocks in (1, 2):
        for kind in (F16, BF16):
            for turned in ("", "x", "w", "xw"):
                k = linear(256, 264, 200, kind, turned)
                out.append(whole(k, groups.tiled(k, 64, 64, 3), blocks))
        for shape, tile in (
            ((256, 256, 136), (128, 128, 4)),
            ((200, 256, 392), (128, 256, 4)),
            ((128, 136, 104), (64, 128, 2)),
            ((128, 96, 320), (64, 96, 4)),
            ((128, 128, 320), (64, 128, 4, 128)),
        ):
            out.append(whole(k := linear(*shape, F16), groups.tiled(k, *tile), blocks))
    return [*out, of_three_axes(136, False), of_three_axes(128, True, 2)]


def attended(place: str, blocks: int = 1) -> Case:
    """Attention, whose queries lie in panels that are filled otherwise, or in registers."""
    k = narrowed(attention(2, 128, 200, 64), BF16)
    s = flash(k, (4, 1), 64, 64, "wgmma", count=128, ring=2)
    stages = (replace(p, place_a=place) if p.stage_a == "hoist" else p for p in s.stages)
    assert s.threads
    return k, replace(s, stages=tuple(stages), threads=replace(s.threads, bulk=blocks))


def copied(case: Case) -> list[Bulk]:
    return [s.bulk for s in steps_of(dealt(*case).body) if s.bulk]


@pytest.mark.parametrize("part", range(3))
def test_products(part: int, tmp_path: Path) -> None:
    cases = [*products(), attended("register"), attended("shared", 2)][part::3]
    assert all(len(copied(c)) == 2 for c in cases)
    groups.check(cases, tmp_path)


@pytest.mark.skipif(not ptx.compiler(), reason=ptx.WHY)
@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.deep) for i in (1, 2))])
def test_as_ptx(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of the hardware, with barriers that count bytes and pairs of blocks."""
    monkeypatch.setattr(emulator, "build", on_ptx.build)
    groups.check([*products(), attended("register"), attended("shared", 2)][part::3], tmp_path)


def drawn(rng: random.Random, n: int) -> list[Case]:
    """Random products whose tiles are copied whole."""
    out = list[Case]()
    while len(out) < n:
        sizes = [rng.choice((8, 64, 72, 128, 136, 200)) for _ in range(3)]
        k = linear(*sizes, rng.choice((F16, BF16)), rng.choice(("", "x", "w", "xw")))
        lanes = rng.choice((16, 48, 64, 64, 96, 128))
        s = groups.tiled(k, *(64 * rng.choice((1, 1, 2)), lanes, rng.randint(2, 5)), 64)
        if rng.random() < 0.2:
            case = of_three_axes(128, rng.random() < 0.5, 1, rng.randint(2, 4))
        else:
            case = whole(k, replace(s, tile=s.tile | {"k": rng.choice((64, 64, 128))}), 1)
        if rng.random() < 0.5:
            case = whole(*case, 2)
        if not refusal(*case) and copied(case):
            out.append(case)
    return out


@pytest.mark.parametrize("part", range(2))
def test_random_schedules(part: int, tmp_path: Path) -> None:
    cases = drawn(random.Random(f"whole{part}"), 10)
    assert {b.blocks for c in cases for b in copied(c)} == {1, 2}
    groups.check(cases, tmp_path, order=("reverse", "random")[part])
