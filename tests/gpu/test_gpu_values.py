"""NaN, infinities, empty axes and guards on the threads of a GPU: the cases of the CPU, run on the
emulator with what would be planned and with random schedules."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from dealing import build, cuda, dealt, random_dealt, refusal, run
from kernels import worst
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule
from numeric import test_kernel_values as cases


def check(folder: Path, k: Kernel, inputs: dict, seeds: int = 4, *_: object) -> None:
    found = list(islice((s for s in guesses(k, cuda()) if not refusal(k, s)), 1))
    found += islice(random_schedules(k), min(seeds, 5))
    module, grids = build([dealt(k, s) for s in found], folder)
    want = evaluate_kernel(k, inputs)
    for i, s in enumerate(found):
        for name, array in run(module, f"k{i}", k, grids[i], inputs).items():
            error = worst(array, want[name], k.buffer(name).dtype)
            assert error < 2e-5, (i, name, array, want[name], s)


def random_schedules(k: Kernel) -> islice[Schedule]:
    drawn = (random_dealt(k, cuda(), random.Random(i)) for i in range(100))
    return islice((s for s in drawn if not refusal(k, s)), 100)


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "check", check)


def test_max_carries_nan(tmp_path: Path) -> None:
    cases.test_max_carries_nan(tmp_path, DType.F32, 137)


def test_max_over_tiles(tmp_path: Path) -> None:
    cases.test_max_over_tiles_keeps_an_early_nan(tmp_path)


def test_softmax(tmp_path: Path) -> None:
    cases.test_softmax_of_special_rows(tmp_path, 100)


@pytest.mark.parametrize("computed", [False, True])
def test_weighted_sums(tmp_path: Path, computed: bool) -> None:
    cases.test_weighted_sum_is_the_naive_one(tmp_path, computed)


def test_infinite_values(tmp_path: Path) -> None:
    cases.test_weighted_sum_of_infinite_values(tmp_path)


def test_selects(tmp_path: Path) -> None:
    cases.test_select_drops_nan_and_inf(tmp_path)
    cases.test_select_by_a_nan_sum(tmp_path)


def test_empty_axes(tmp_path: Path) -> None:
    cases.test_empty_axes(tmp_path)


def test_guards(tmp_path: Path) -> None:
    cases.test_guards_never_read_outside(tmp_path)
