"""What plans take, and plans that take less: what regions and programs hand on, and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pytest

import mutating
from lumc import train
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.memory import PAGE
from lumc.errors import Exit, LumcError
from lumc.frontend import Model, Tensor
from lumc.grad import gradients
from lumc.graph.graph import Graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.limits import AGAIN, LEVELS
from lumc.profile import memory, scratch
from lumc.profile.choose import estimate, programs, shortlist
from lumc.profile.ledger import Ledger, Options, kernels_of
from lumc.profile.lowered import Kernels, Lowered
from lumc.profile.memory import (
    PART,
    Bounds,
    Needs,
    between,
    fitting,
    handed_in,
    handed_on,
    in_states,
    needs_of,
)
from lumc.profile.price import program_us
from lumc.profile.records import Choice, Records, Setting, Trial
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.explore import find_regions
from lumc.search.space import Space

TARGET = resolve_target("cpu:x86-64-v3")
CHAINED = (512, 32), (512, 32), (512,)


def space_of(graph: Graph, again: int = AGAIN) -> Space:
    return search(graph, TARGET, inside=True, again=again)


def graph_of(f: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Graph:
    m = Model()
    m.output("y", f(*(m.input(f"x{i}", s) for i, s in enumerate(shapes))))
    return m.graph()


@pytest.fixture(scope="module")
def step() -> Graph:
    """Two layers with gelu: forward, what it needs on the way back, and AdamW."""
    m = Model()
    x, y = m.input("x", (96, 16)), m.input("y", (96,), "i64", values=(0, 9))
    shapes = {"w0": (16, 40), "w1": (40, 40), "w2": (40, 10)}
    w = [m.state(n, s, value=np.ones(s)) for n, s in shapes.items()]
    h = ((x @ w[0]).gelu("tanh") @ w[1]).gelu("tanh")
    loss = (h @ w[2]).cross_entropy(y)
    train.adamw(w, gradients(loss, w), 1e-3)
    m.output("loss", loss)
    return m.graph()


@pytest.fixture(scope="module")
def wide() -> Space:
    """A norm of a product: the product is handed on, or kept in scratch memory."""
    return space_of(graph_of(lambda x, w: (x @ w).layer_norm(), (128, 256), (256, 512)))


# ---- what is counted


def test_needs_are_what_runners_reserve(wide: Space) -> None:
    plan = estimate(wide)
    one = needs_of(plan)
    three = needs_of(replace(plan, target=replace(TARGET, threads=3)))
    assert one.arena == three.arena >= 128 * 512 * 4
    assert one.scratch > 0 and one.scratch % PAGE == 0
    assert three.scratch == 3 * one.scratch and one.total == one.arena + one.scratch
    assert str(Needs(1000, 24)) == "1,024 bytes (arena 1,000, scratch 24)"


def test_values_between_regions_are_fewer_where_more_is_done_again(step: Graph) -> None:
    found = [between(step, level) for level in LEVELS]
    assert found == sorted(found, reverse=True) and found[-1] < 0.7 * found[0]


@pytest.mark.deep
@pytest.mark.parametrize("level", [128, AGAIN])
def test_values_between_regions_are_known_before_the_search(level: int, step: Graph) -> None:
    """Where regions need nothing for themselves, exactly what codegen makes of a plan."""
    plan = estimate(space_of(step, level), most=0)
    assert not any(map(handed_in, plan.regions.values()))
    assert needs_of(plan).arena == between(step, level)


def test_regions_are_fewer_where_more_is_done_again(step: Graph) -> None:
    counts = [len(find_regions(step.entries[0], level)) for level in LEVELS]
    assert counts == sorted(counts, reverse=True) and counts[-1] < counts[0]


def test_what_programs_hand_on(wide: Space) -> None:
    (listed,) = next(programs(wide, shortlist))[1].values()
    two = next(kernels for kernels in listed if len(kernels) == 2)
    assert handed_on(two) == 128 * 512 * 4 + 64  # whole pages get a cache line more
    assert handed_on([two[0]]) >= handed_on([]) == 0


# ---- bounds


@pytest.mark.parametrize("most", [0, 1000, 1 << 20])
def test_programs_within_a_bound(most: int, wide: Space) -> None:
    known = Kernels(TARGET)
    free, bound = estimate(wide, known=known), estimate(wide, most=most, known=known)
    assert max(map(handed_in, bound.regions.values())) <= most
    if most >= max(map(handed_in, free.regions.values())):
        assert bound == free


def test_a_bound_that_no_program_meets_is_met_as_nearly_as_it_can_be() -> None:
    """Of a region whose program in one kernel is invalid."""
    space = space_of(graph_of(lambda x: x.layer_norm(axis=0), (512, 256)))
    least = handed_in(next(iter(estimate(space).regions.values())))
    assert least > 0

    class Picky(Kernels):
        def lowered(self, kernel: Kernel) -> Lowered:
            found = super().lowered(kernel)
            return found if len(kernel.stages) < 2 else found._replace(whole=inf, why="no")

    found = estimate(space, most=0, known=Picky(TARGET))
    assert 0 < max(map(handed_in, found.regions.values())) <= least + 2048


def test_measured_programs_within_a_bound(wide: Space) -> None:
    def ledger(bounds: Bounds) -> Ledger:
        return Ledger(wide, Options(within=bounds), Records(None, Setting("device", "tools", 1)))

    book, bound = ledger(Bounds()), ledger(Bounds(0))
    (key,), (fast,), (small,) = book.lists, book.lists.values(), bound.lists.values()
    assert all(handed_in(p) == 0 for p in small) and all(map(handed_in, fast))
    book.lists[key] = [*fast, *small]  # as if some were as fast
    book.kernels |= bound.kernels
    book.set_bounds()
    assert book.plan_within(Bounds()) == book.plan() and book.plan().regions[key] == fast[0]
    assert book.plan_within(Bounds(0)).regions[key] == small[0]
    assert book.plan_within(Bounds(handed_in(fast[0]))).regions[key] == fast[0]
    for k in kernels_of(small):
        book.add(k, Trial(book.kernels[k].schedule, reason="crash"))
    assert book.plan_within(Bounds(0)).regions[key] in fast  # what is left of those that are right


# ---- the search for what fits


class Made:
    """Plans of which only the needs are of interest, each of the bound that is asked for."""

    def __init__(
        self, wide: Space, monkeypatch: pytest.MonkeyPatch, *steps: tuple[int, int]
    ) -> None:
        self.asked = list[float]()
        self.steps = steps  # (handed on, total), from the fastest on
        self.plan = estimate(wide)
        self.at = 0
        monkeypatch.setattr(memory, "needs_of", lambda _: Needs(self.steps[self.at][1], 0))
        monkeypatch.setattr(memory, "handed_in", lambda _: self.steps[self.at][0])

    def __call__(self, bounds: Bounds) -> Plan:
        assert bounds.scratch == inf  # there is none
        self.asked.append(bounds.handed)
        meet = [i for i, (handed, _) in enumerate(self.steps) if handed <= bounds.handed]
        self.at = meet[0] if meet else len(self.steps) - 1
        return self.plan


def test_the_fastest_plan_that_fits_is_taken(wide: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(wide, monkeypatch, (50, 300), (40, 200), (30, 100), (0, 90))
    assert fitting(100, made)[1:] == (Needs(100, 0), Bounds(39))
    assert made.asked == [inf, 49, 39]
    made.asked.clear()
    assert fitting(300, made)[1:] == (Needs(300, 0), Bounds()) and made.asked == [inf]
    made.asked.clear()
    made.steps = ((5000, 6000), (100, 80))
    assert fitting(200, made)[2] == Bounds(200)  # nothing that hands on more can fit
    assert made.asked == [inf, 200]


@pytest.mark.parametrize("last", [(0, 95), (7, 95)])  # 7: it cannot hand on less
def test_the_least_is_said_if_nothing_fits(
    last: tuple[int, int], wide: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(wide, monkeypatch, (50, 300), (40, 90), last)
    with pytest.raises(LumcError) as e:
        fitting(80, made)
    assert (e.value.code, e.value.exit) == ("E0419", Exit.BUDGET)
    assert "--memory 80: no plan was found that takes less than 90 bytes" in e.value.what
    assert made.asked[0] == inf and made.asked == sorted(made.asked, reverse=True)


# ---- scratch memory


def powers(x: Tensor, y: Tensor, top: Tensor) -> Tensor:
    """A product with powers of another one, as on the way back of attention: [j, k] of these."""
    return (y @ x.transpose() - top.unsqueeze(-1)).exp2().transpose() @ y


@pytest.fixture(scope="module")
def chained() -> Space:
    return space_of(graph_of(powers, *CHAINED))


def test_schedules_with_less_scratch_memory(chained: Space) -> None:
    plan, free, bound = estimate(chained, most=0), Kernels(TARGET), Kernels(TARGET, 1 << 17)
    (kernel,) = (k.kernel for k in plan.kernels.values())
    (usual, most), (smaller, least) = (k.scheduled(kernel) for k in (free, bound))
    assert most.scratch_bytes >= 512 * 512 * 4 > 1 << 17 >= least.scratch_bytes > 0
    assert smaller != usual and program_us(least) < 1.2 * program_us(most)
    assert Kernels(TARGET, most.scratch_bytes).scheduled(kernel) == (usual, most)
    assert lower(kernel, smaller, TARGET).body == least.body  # a legal one
    tiny = Kernels(TARGET, 1).scheduled(kernel)[1]  # as little as can be
    assert 1 < tiny.scratch_bytes < least.scratch_bytes


def test_plans_with_less_scratch_memory(chained: Space) -> None:
    """Only where the usual one does not fit."""

    def made(bounds: Bounds) -> Plan:
        return estimate(chained, most=bounds.handed, known=Kernels(TARGET, bounds.scratch))

    assert needs_of(made(Bounds(0))).scratch > 1 << 20
    _, needs, bounds = fitting(1 << 18, made)
    assert needs.total <= 1 << 18 and bounds.scratch == (1 << 18) // PART
    assert fitting(1 << 30, made)[2] == Bounds()


def test_measured_schedules_within_a_bound(chained: Space) -> None:
    """The fastest of those that take no more; if there is none the default."""
    book = Ledger(
        chained, Options(within=Bounds(0, 1 << 17)), Records(None, Setting("device", "tools", 1))
    )
    (key,) = kernels_of(plans[0] for plans in book.lists.values())
    kernel, default = book.kernels[key].kernel, book.kernels[key].schedule
    large, small = (
        Kernels(TARGET).scheduled(kernel)[0],
        Kernels(TARGET, 1 << 16).scheduled(kernel)[0],
    )
    assert large != default != small != large
    book.add(key, Trial(large, us=1.0))
    book.choose(key, Choice(large, 1.0, "", 1, 0.0, 0))
    bounds = Bounds(0, 1 << 17)
    assert book.plan().kernels[key].schedule == large
    assert book.plan_within(bounds).kernels[key].schedule == default
    book.add(key, Trial(small, us=2.0))
    assert book.plan_within(bounds).kernels[key].schedule == small
    assert book.plan_within(Bounds(0, 1 << 30)).kernels[key].schedule == large


class Cut(NamedTuple):
    """What a schedule is lowered to, as far as it matters here."""

    scratch_bytes: int
    us: float


def chosen(monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiles that are taken, of several: those that leave the least of bytes times price."""
    ways = {"fewest": Cut(50, 10.0), "best": Cut(60, 1.0), "fastest": Cut(89, 0.9)}
    ways["hardly fewer"] = Cut(95, 0.1)
    monkeypatch.setattr(scratch, "program_us", lambda made: made.us)
    monkeypatch.setattr(scratch, "_smaller", lambda *_: list(ways.items()))
    for name in ("program_us", "_smaller"):
        monkeypatch.setitem(scratch.within.__globals__, name, getattr(scratch, name))
    kernel: Any = None
    return scratch.within(kernel, ("usual", Cut(100, 1.0)), TARGET, 96)[0]  # type: ignore


def test_the_tiles_that_cost_least_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch) == "best"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> most and", "> 2 * most and"),
        ("key=lambda m: m[1].scratch_bytes * ", "key=lambda m: "),
        ("m[1].scratch_bytes * program_us(m[1])", "m[1].scratch_bytes"),
        ("program.scratch_bytes * WORTH", "program.scratch_bytes"),
    ],
)
def test_mutants_of_the_choice(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(scratch, old, new, monkeypatch)
    assert chosen(monkeypatch) != "best"


def test_cuts_add_up(chained: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant forgets those that were made before."""
    mutating.replace(scratch, "{**schedule.tile, axis: less}", "{axis: less}", monkeypatch)
    with pytest.raises(AssertionError):
        test_schedules_with_less_scratch_memory(chained)


def test_values_that_live_in_states(step: Graph) -> None:
    """All that AdamW learns, and its means; not what is read later, moved, or of an output."""
    (entry,) = step.entries
    found = find_regions(entry)
    assert in_states(entry, found) == {u.value for u in entry.writes}
    m = Model()
    x, s, t = m.input("x", (8, 8)), m.state("s", (8, 8)), m.state("t", (8, 8))
    m.update(s, (x + s.transpose()).gelu())  # it reads other elements than it writes
    m.update(t, (x + t).gelu())
    m.output("y", ((x + t).gelu() * 2.0).sum())
    (entry,) = m.graph().entries
    assert in_states(entry, find_regions(entry)) == {entry.writes[1].value}
