"""Tiles of products with as many lanes as fill the processors in whole turns: odd numbers of
fragments, every width of a product of warpgroups, and which of them is guessed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import mutating
from dealing import dealt, flash, narrowed, refusal, schedule, tiled
from gpu import test_warpgroups as groups
from gpu.test_fragments import TARGET, check
from gpu.test_warpgroups import linear
from kernel_zoo import attention, byte_matmul, matmul, turned_matmul
from lumc.codegen.gpu import counts, cuda, distribution, roles
from lumc.codegen.gpu.counts import count
from lumc.codegen.gpu.limits import limits_us
from lumc.codegen.gpu.program import steps_of
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel
from lumc.profile.price import scheduled
from lumc.schedule import first_shapes
from lumc.schedule.schedule import Schedule

AMPERE = resolve_target("cuda:sm_80")
Case = tuple[Kernel, Schedule]


def odd(k: Kernel, rows: int, lanes: int, grid: tuple[int, int], ring: int, **changes: str) -> Case:
    tile = {"m": rows, "n": lanes, "k": 32}
    stages = tiled(k, "mma", grid, **changes)
    return k, schedule(k, tile, stages, count=32 * grid[0] * grid[1], ring=ring, vector=4)


def products() -> list[Case]:
    """Of warps with 3, 5 and 19 fragments along the lanes; borders along all axes."""
    half = linear(70, 100, 80, DType.F16)
    return [
        odd(half, 32, 24, (2, 1), 2),
        odd(linear(70, 104, 80, DType.BF16, "w"), 32, 40, (2, 1), 3),
        odd(half, 64, 72, (2, 2), 2),
        odd(linear(270, 310, 64, DType.F16), 256, 152, (8, 1), 3),
        odd(half, 32, 24, (2, 1), 1, place_b="register"),
        odd(matmul(70, 100, 80), 32, 24, (2, 1), 2),
        odd(turned_matmul(70, 100, 80), 32, 40, (1, 1), 1, place_b="register"),
        odd(byte_matmul(50, 72, 96, True), 32, 24, (2, 1), 2),
    ]


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_odd_fragments(order: str, tmp_path: Path) -> None:
    """Race-checked; values of 11 bits are exact, of bytes anyhow."""
    cases = products()
    fragments = {count for k, s in cases for count in _lanes(k, s)}
    assert {3, 5, 19} <= fragments
    check(cases, tmp_path, 0.0, order)


def _lanes(k: Kernel, s: Schedule) -> list[int]:
    return [step.roles.counts[1] for step in steps_of(dealt(k, s, TARGET).body) if step.roles]


MUTANTS: dict[str, tuple[ModuleType, str, str]] = {
    "the last fragment is not loaded": (cuda, "(count + 1) // 2", "count // 2"),
    "its operand has no room": (cuda, "[{(ni + 1) // 2}]", "[{max(1, ni // 2)}]"),
    "its neighbour is no part of the tile": (distribution, "ni + ni % 2", "ni"),
    "warps begin at pairs": (distribution, "ni * wide)]", "(ni + ni % 2) * wide)]"),
    "too few fragments": (distribution, "(wide * wn))", "((wide + 8) * wn))"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(*MUTANTS[name], monkeypatch)
    with pytest.raises((AssertionError, LumcError)):
        check(products()[:3], tmp_path, 0.0)


def test_what_is_multiplied_again_has_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the weights of attention would not be the left operands that follow."""
    k = narrowed(attention(1, 64, 40, 32), DType.F16)
    s = flash(k, (4, 1), 64, 40)
    assert not refusal(k, s)
    mutating.replace(roles, " or p.lane_axis in again", "", monkeypatch)
    assert refusal(k, s)


# ---- of warpgroups

WIDTHS = range(16, 257, 16)


@pytest.mark.parametrize("part", range(3))
def test_every_width_of_warpgroups(part: int, tmp_path: Path) -> None:
    found = list[Case]()
    for n in WIDTHS[part::3]:
        k = linear(64, n + 8, 72, DType.F16, "w" if n % 32 else "")
        found.append((k, groups.tiled(k, 64, n, 1 + n // 16 % 4)))
    groups.check(found, tmp_path)


def test_four_warpgroups(tmp_path: Path) -> None:
    k = linear(264, 360, 200, DType.BF16)
    groups.check([(k, groups.tiled(k, 256, 176, 4))], tmp_path)


def copied(k: Kernel, s: Schedule) -> list[int]:
    """Vectors of 16 bytes that a thread copies of each operand in a turn."""
    steps = [step for step in steps_of(dealt(k, s).body) if step.ahead]
    return [step.points.size // step.vector for step in steps]


def test_threads_share_rows_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 192 lanes are three lines of eight vectors: 512 threads copy three each of 64 of
    them, as of 192 rows; by the next power of two a quarter of them would copy nothing, and others
    four. Of rows of 96 it is the line that counts: four vectors are half of one."""
    for turned in ("", "w"):
        k = linear(512, 352, 128, DType.F16, turned)
        assert copied(k, groups.tiled(k, 256, 176, 4)) == [4, 3]
    short = linear(64, 96, 128, DType.F16, "w")
    rows = odd(short, 64, 96, (4, 1), 2)
    assert copied(*rows) == [2, 4]
    mutating.replace(distribution, "even * unit >= line", "False", monkeypatch)
    assert copied(k, groups.tiled(k, 256, 176, 4)) == [4, 4]
    monkeypatch.undo()
    mutating.replace(distribution, "even * unit >= line", "True", monkeypatch)
    assert copied(*rows) == [2, 3]


# ---- which is guessed

N = 4096


def share(name: str, m: int, n: int, k: int) -> tuple[dict[str, int], float]:
    """The tile, and the share of the rate of the tensor cores that a launch can reach."""
    target = resolve_target(name)
    s, program = scheduled(normalize(linear(m, n, k, DType.F16)), target)
    assert target.gpu and target.gpu.rates
    rate = target.gpu.processors * target.gpu.rates.tensor * target.gpu.rates.mhz
    return dict(s.tile), 2 * m * n * k / rate / max(limits_us(program, s.threads).values())


def test_an_a100_has_four_whole_turns() -> None:
    """16 x 27 blocks of 256 x 152 are four for each of 108 processors."""
    tile, reached = share("cuda:sm_80", N, N, N)
    assert tile == {"m": 256, "n": 152, "k": 32} and 16 * -(-N // 152) == 4 * 108
    assert reached > 0.99


def test_an_h200_fetches_less() -> None:
    """By blocks of 128 x 256 the second cache allows 79 %, unless pairs share what they fetch.
    Other lanes of larger blocks fill the turns of a lower product better."""
    tile, reached = share("cuda:sm_90", N, N, N)
    assert tile == {"m": 128, "n": 256, "k": 64} and reached > 0.965
    tile, reached = share("cuda:sm_90", 512, 11008, N)
    assert tile == {"m": 256, "n": 176, "k": 64} and reached > 0.93


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89", "cuda:sm_90", "cuda:sm_120"])
@pytest.mark.parametrize("shape", [(N, N, N), (2048, 2048, 2048), (512, N, N), (N, 1000, 768)])
def test_no_launch_is_slower_than_with_the_known_tiles(
    name: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By counts."""
    _, reached = share(name, *shape)
    monkeypatch.setattr(first_shapes, "CHOSEN", {})
    assert reached >= 0.999 * share(name, *shape)[1]


def test_small_products_keep_their_tiles() -> None:
    for name in ("cuda:sm_80", "cuda:sm_90"):
        assert {*share(name, 1024, 1024, 1024)[0].values()} <= {32, 64, 128}


def test_odd_fragments_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """19 of them along the lanes of a warp, loaded in pairs."""
    k, s = odd(linear(256, 152, 64, DType.F16), 256, 152, (8, 1), 3)
    found, loads = count(dealt(k, s, AMPERE)), 8 * 4 * (2 + 10)
    assert found.tensor == 2 * 256 * 152 * 64
    mutating.replace(counts, "(lanes + 1) // 2", "lanes // 2", monkeypatch)
    before = count(dealt(k, s, AMPERE))
    assert found.issue - before.issue == 8 * 4 and found.shared - before.shared == 8 * 4 * 512
    assert loads * 512 < found.shared
