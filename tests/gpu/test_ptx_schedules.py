"""Random schedules as PTX of NVIDIA's compiler, on its interpreter: 500 of them whose text is
short, as a compiler sees it, and apart from these some that are long."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import emulator
import on_ptx
from dealing import cuda, dealt, together
from gpu import test_fragments as fragments
from gpu import test_gpu_kernels as families
from gpu import test_gpu_lengths as lengths
from gpu import test_tensor_maps as maps
from gpu import test_warpgroups as groups
from gpu.ptx import module
from gpu.ptx.size import Size, size_of
from live_kernels import CASES, MOST
from lumc.graph.ops import DType
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.schedule import Schedule

pytestmark = pytest.mark.skipif(not module.compiler(), reason=module.WHY)
EACH = 20  # schedules of a part: they are compiled together
SHORT = Size(written=4000, executed=50_000)
Case = tuple[Kernel, Schedule]


@pytest.fixture(autouse=True)
def on_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "build", on_ptx.build)


def size(kernel: Kernel, schedule: Schedule, target: Target | None = None) -> Size:
    return size_of(together([dealt(kernel, schedule, target)])[0], MOST)


def is_short(s: Size) -> bool:
    return s.written < SHORT.written and s.executed < SHORT.executed


# ---- what is drawn; of some the text is long


def any_kernel(rng: random.Random, n: int, folder: Path) -> int:
    cases = [c for c in families.drawn(rng, 2 * n) if is_short(size(*c))][:n]
    families.check(cases, folder, checked=True)
    return len(cases)


def products_of_warpgroups(rng: random.Random, n: int, folder: Path) -> int:
    cases = [c for c in groups.drawn(rng, 2 * n) if is_short(size(*c))][:n]
    groups.check(cases, folder)
    return len(cases)


def whole_tiles(rng: random.Random, n: int, folder: Path) -> int:
    """Copied by tensor maps, also for two blocks at once."""
    cases = [c for c in maps.drawn(rng, 2 * n) if is_short(size(*c))][:n]
    groups.check(cases, folder)
    return len(cases)


def products_of_words(rng: random.Random, n: int, folder: Path) -> int:
    """tf32 and bytes, which are exact."""
    kernels, target = fragments.products(), fragments.TARGET
    found = fragments.drawn(rng, kernels, 2 * n)
    cases = [c for c in found if is_short(size(*c, target))][:n]
    fragments.check(cases, folder, 0.0)
    return len(cases)


def known_lengths(rng: random.Random, n: int, folder: Path) -> int:
    """Lengths that are known at run time: each schedule at several of them."""
    runs = list[lengths.Run]()
    while len(runs) < n:
        case = CASES[rng.choice([*CASES])]()
        case = case if rng.random() < 0.5 else lengths.half(case, rng.choice([*HALVES]))
        case, s = lengths.drawn(case, cuda(), rng)
        if is_short(size(case.made, s)):
            runs.append((case, s))
    lengths.check(runs, cuda(), folder, "random")
    return len(runs)


HALVES = (DType.F16, DType.BF16)


class Kind(NamedTuple):
    """Schedules of one kind, and in how many parts they are drawn."""

    run: Callable[[random.Random, int, Path], int]
    parts: int
    soon: int  # how many of these are in ``make test``


KINDS = {  # 25 parts: 500 schedules
    "any kernel": Kind(any_kernel, 15, 1),
    "warpgroups": Kind(products_of_warpgroups, 4, 1),
    "whole tiles": Kind(whole_tiles, 2, 1),
    "words": Kind(products_of_words, 3, 0),
    "lengths": Kind(known_lengths, 1, 0),
}
PARTS = [
    pytest.param(name, i, marks=[pytest.mark.deep] * (i >= kind.soon), id=f"{name}-{i}")
    for name, kind in KINDS.items()
    for i in range(kind.parts)
]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_schedules_at_random(kind: str, part: int, tmp_path: Path) -> None:
    """Without a report, and right."""
    assert KINDS[kind].run(random.Random(f"ptx {kind} {part}"), EACH, tmp_path) == EACH


def long_ones(n: int) -> Sequence[Case]:
    """Of each a thread has hundreds of points, or thousands of steps."""
    found = families.drawn(random.Random("ptx long"), 16 * n)
    return [c for c in found if not is_short(size(*c))][:n]


@pytest.mark.deep
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("part", range(2))
def test_long_ones(part: int, tmp_path: Path) -> None:
    """One by one: a compiler takes some seconds for each."""
    cases = long_ones(8)[part::2]
    assert len(cases) == 4
    for case in cases:
        families.check([case], tmp_path, checked=True)
