"""Results that pairs of threads exchange before they store them: whole sectors, by the counts; and
right, on the emulator and on what NVIDIA's compiler makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import dealing
import mutating
from dealing import dealt, flash, narrowed, schedule, tiled
from gpu.ptx import module
from gpu.test_warpgroups import linear
from gpu.test_warpgroups import tiled as by_groups
from kernel_zoo import attention, linear_gelu, random_inputs
from kernels import assert_close
from lumc.codegen.gpu import counts, exchange
from lumc.codegen.gpu.counts import Counter
from lumc.codegen.gpu.expected import distributed_us
from lumc.codegen.gpu.program import Distributed, Step, steps_of, writes
from lumc.codegen.text.headers import header_of
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.profile.price import scheduled
from lumc.schedule.schedule import Schedule

HOPPER = resolve_target("cuda:sm_90")
Case = tuple[Kernel, Schedule]


def cases() -> dict[str, Case]:
    """Edges along rows and lanes, also within the lanes of two matrices; a vector that is added,
    which is loaded where results were; attention; by warps and by warpgroups."""
    k, half, brain = linear(72, 132, 72, DType.F16), DType.F16, DType.BF16
    warps = schedule(k, {"m": 64, "n": 64, "k": 32}, tiled(k, "mma", (2, 2)), ring=2)
    one = schedule(k, {"m": 32, "n": 32, "k": 32}, tiled(k, "mma", (2, 2)))
    groups, g = linear(72, 144, 128, brain), narrowed(linear_gelu(40, 80, 64), half)
    a, b = narrowed(attention(2, 70, 90, 64), brain), narrowed(attention(1, 70, 90, 64), half)
    return {
        "warps": (k, warps),
        "two matrices": (k, one),
        "groups": (groups, by_groups(groups, 64, 128, 2)),
        "gelu": (g, schedule(g, {"m": 32, "n": 64, "k": 32}, tiled(g, "mma", (2, 2)), vector=4)),
        "attention": (a, flash(a, (4, 1), 64, 64, ring=2)),
        "of a group": (b, flash(b, (4, 1), 64, 64, "wgmma", count=128, ring=2)),
    }


def stores(d: Distributed) -> list[Step]:
    return [s for s in steps_of(d.body) for e in writes(s) if e.attr[0] not in d.tiles]


@pytest.mark.parametrize("name", cases())
def test_whole_sectors_are_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exchange halves are. Rows of 264 bytes begin within a sector."""
    k, s = cases()[name]
    d = dealt(k, s)
    (step,) = stores(d)
    (dst,) = writes(step)
    found = Counter(d).sectors(dst, step)
    assert step.stored and (found == 1.0 or k.extent["n"] == 132)
    monkeypatch.setattr(exchange, "PAIRS", 1 << 20)  # as if nothing were aligned
    before = dealt(k, s)
    (plain,) = stores(before)
    assert plain.stored is None and Counter(before).sectors(dst, plain) == (
        2.0 if found == 1.0 else 2.5
    )


def test_what_has_whole_sectors_stays() -> None:
    """Results of f32, and those whose rows are not aligned to 8 bytes."""
    for k in (linear(72, 136, 72, DType.F32), linear(72, 130, 72, DType.F16)):
        s, target = tiled(k, "mma", (2, 2)), resolve_target("cuda:sm_80+tf32")
        d = dealt(k, schedule(k, {"m": 64, "n": 64, "k": 32}, s), target)
        assert [step.stored for step in stores(d)] == [None]


def test_where_memory_is_slower_results_stay() -> None:
    """Of an A100 the second cache is 3.5 times as fast as memory, of others nothing is known."""
    assert [exchange.pays(resolve_target(f"cuda:sm_{n}")) for n in (80, 89, 90, 100, 120)] == [
        *(False, False, True, False, False)
    ]
    k, s = cases()["warps"]
    d = dealt(k, s, resolve_target("cuda:sm_80"))
    assert [step.stored for step in stores(d)] == [None]


def test_short_sums_are_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second cache limits them, by the price; long ones cost no more than 1 % more."""
    for k, least, most in ((128, 0.5, 0.9), (4096, 0.9, 1.01)):
        product = linear(4096, 4096, k, DType.F16)
        s, _ = scheduled(product, HOPPER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange, "PAIRS", 1 << 20)
            before = distributed_us(dealt(product, s))
        assert least < distributed_us(dealt(product, s)) / before < most


def check(every: dict[str, Case], folder: Path, header: str | None = None) -> None:
    """On the emulator with its checker; with a header on the interpreter of PTX."""
    programs = [dealt(*c) for c in every.values()]
    assert all(s.stored for d in programs for s in stores(d))
    if header:
        text, grids = dealing.together(programs)
        built = module.build(text, "compute_90a", header)
    else:
        built, grids = dealing.build(programs, folder, checked=True)  # type: ignore[assignment]
    for i, (k, s) in enumerate(every.values()):
        inputs = random_inputs(k, i)
        got = dealing.run(built, f"k{i}", k, grids[i], inputs)  # type: ignore[arg-type]
        assert_close(k, got, evaluate_kernel(k, inputs), s)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_results(every: bool, tmp_path: Path) -> None:
    found = cases()
    check(found if every else {name: found[name] for name in ("groups", "gelu")}, tmp_path)


@pytest.mark.skipif(not module.compiler(), reason=module.WHY)
def test_machine_code(tmp_path: Path) -> None:
    check(cases(), tmp_path, header_of("cuda"))


HEADERS = {
    "one's own is sent": ("lumc_shuffle_xor(odd ? first : second, 1)", "own"),
    "the other one is sent": ("(odd ? first : second, 1)", "(odd ? second : first, 1)"),
    "to the next pair": ("(odd ? first : second, 1)", "(odd ? first : second, 2)"),
    "the neighbour's first": ("four[0] = odd ? other : own;", "four[0] = odd ? own : other;"),
    "one matrix": ("(two[1][0], two[1][1])", "(two[0][0], two[0][1])"),
}


@pytest.mark.skipif(not module.compiler(), reason=module.WHY)
@pytest.mark.parametrize("name", HEADERS)
def test_a_mutant_of_the_header_dies(name: str, tmp_path: Path) -> None:
    old, new = HEADERS[name]
    assert header_of("cuda").count(old) == 1
    with pytest.raises(AssertionError):
        check({"warps": cases()["warps"]}, tmp_path, header_of("cuda").replace(old, new))


MUTANTS = {
    "halves are exchanged": (
        exchange,
        "ThreadDigit(1, 2, a, LANES)",
        "ThreadDigit(1, 2, a, PAIRS)",
    ),
    "no sectors": (counts, "max(1.0, len(touched) * SECTOR /", "max(1.0, 0 * SECTOR /"),
}


def test_mutants_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of where results lie, and of the count of sectors."""
    with pytest.MonkeyPatch.context() as patch:
        mutating.replace(*MUTANTS["halves are exchanged"], patch)
        with pytest.raises(AssertionError):
            check({"warps": cases()["warps"]}, tmp_path)
    mutating.replace(*MUTANTS["no sectors"], monkeypatch)
    with pytest.raises(AssertionError):
        test_short_sums_are_cheaper(monkeypatch)
