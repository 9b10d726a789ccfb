"""Every class of kernel on the threads of a GPU: on the emulator, against float64."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest

from dealing import (
    build,
    cuda,
    dealt,
    features,
    random_dealt,
    refusal,
    run,
    zoo,
)
from kernel_zoo import FAMILIES, random_inputs
from kernels import assert_close
from lumc.codegen.gpu.program import Tile
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule

TOGETHER = 12  # kernels that are compiled at once
ORDERS = ("forward", "reverse", "random")
PARTS = int(os.environ.get("LUMC_PARTS", "6"))  # of random schedules
DEEP, MANY = 2000, 40  # random runs; a process can hold the stacks of about 100 modules


Case = tuple[Kernel, Schedule]


def check(
    cases: list[Case],
    folder: Path,
    checked: bool,
    order: str = "forward",
    targets: Sequence[Target | None] = (),
) -> None:
    """Compile these cases together, run them, compare."""
    programs = [dealt(k, s, t) for (k, s), t in zip_longest(cases, targets)]
    module, grids = build(programs, folder, checked)
    for i, (k, s) in enumerate(cases):
        inputs = random_inputs(k, i)
        got = run(module, f"k{i}", k, grids[i], inputs, order)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


def batches(cases: list[Case], size: int) -> list[list[Case]]:
    return [cases[i : i + size] for i in range(0, len(cases), size)]


def first_guess(kernel: Kernel) -> Schedule:
    return next(s for s in guesses(kernel, cuda()) if not refusal(kernel, s))


@pytest.mark.parametrize("part", range(4))
def test_guesses(part: int, tmp_path: Path) -> None:
    """What is planned for a kernel when nothing is searched: the odd shapes of every family."""
    kernels = [family(*shapes[len(shapes) // 2]) for family, shapes in FAMILIES.items()][part::4]
    check([(k, first_guess(k)) for k in kernels], tmp_path, checked=True)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules(part: int, tmp_path: Path) -> None:
    found = drawn(random.Random(f"gpu{part}"), TOGETHER)
    check(found, tmp_path, checked=part % 3 != 0, order=ORDERS[part % 3])


def drawn(rng: random.Random, n: int) -> list[Case]:
    """Random kernels with random schedules that a block can hold."""
    kernels, out = zoo(), list[Case]()
    while len(out) < n:
        k = rng.choice(kernels)
        s = random_dealt(k, cuda(), rng)
        if not refusal(k, s):
            out.append((k, s))
    return out


def sharing(rng: random.Random, n: int) -> list[tuple[Case, Target]]:
    """Schedules that need a little more shared memory than a target has, if no bytes are reused."""
    kernels, out = zoo(), list[tuple[Case, Target]]()
    while len(out) < n:
        k = rng.choice(kernels)
        s = random_dealt(k, cuda(), rng)
        if not refusal(k, s) and (most := dealt(k, s).shared_bytes):
            gpu = cuda().gpu
            assert gpu
            small = replace(cuda(), gpu=replace(gpu, shared=most - 16))
            if not refusal(k, s, small):
                out.append(((k, s), small))
    return out


def test_values_that_are_not_alive_at_once_share_memory(tmp_path: Path) -> None:
    """Race-checked: what overwrites the bytes of another value waits for who reads it."""
    found = sharing(random.Random(7), 16)
    check([c for c, _ in found], tmp_path, checked=True, targets=[t for _, t in found])


def test_reuse_without_its_barriers_is_a_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tile, "overlaps", lambda self, other: self == other)
    found = sharing(random.Random(3), 3)
    with pytest.raises(AssertionError, match="race"):
        check([c for c, _ in found], tmp_path, checked=True, targets=[t for _, t in found])


@pytest.mark.deep
def test_many_random_schedules(tmp_path: Path) -> None:
    rng, seen = random.Random(os.environ.get("LUMC_SEED", "0")), Counter[str]()
    for i, batch in enumerate(batches(drawn(rng, DEEP), MANY)):
        check(batch, tmp_path, checked=i % 4 != 0, order=ORDERS[i % 3])
        for k, s in batch:
            seen.update(features(dealt(k, s)))
    assert all(seen[f] > DEEP // 100 for f in ("mma", "simt", "packed", "ring", "across warps"))
