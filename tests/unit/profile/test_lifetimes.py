"""Lifetimes: what schedules take is what a memory would hold that frees what is read no more; what
is made again is made of the same values; copies that are not needed are none."""

from __future__ import annotations

import random

import pytest

import mutating
from lumc.profile import lifetimes
from lumc.profile.lifetimes import Schedule, Task, plain

SEEDS = range(60)


def random_tasks(seed: int) -> list[Task]:
    """Forward and back, the values of any size and price, some cheap; updates at the end."""
    rng = random.Random(seed)
    n, out = rng.randint(4, 14), list[Task]()
    for i in range(n):
        reads = {i - 1, rng.randrange(i)} if i else set[int]()
        out.append(
            Task(rng.randint(1, 40), rng.uniform(1, 9), (*sorted(reads),), rng.random() < 0.3)
        )
    for i in reversed(range(n)):
        reads = {len(out) - 1, i, rng.randrange(n)}
        out.append(
            Task(rng.randint(0, 40), rng.uniform(1, 9), (*sorted(reads),), rng.random() < 0.3)
        )
    made = len(out)
    for _ in range(3):
        out.append(Task(0, 1.0, (rng.randrange(made),), last=True))
    return out


def chain(layers: int) -> list[Task]:
    """Each layer reads the one before; back, each slope reads the one after and the layer."""
    forward = [Task(8, 1.0, (i - 1,) if i else ()) for i in range(layers)]
    back = [Task(1, 1.0, (layers + i - 1, layers - 1 - i)) for i in range(layers)]
    return [*forward, back[0]._replace(reads=(layers - 1,)), *back[1:]]


def replayed(s: Schedule) -> int:
    """The most bytes that are held at once. Fails where a run reads what was not made of the same,
    is not there yet, or is freed."""
    readers = {run: [r for r in s.order if run in s.reads[r]] for run in s.order}
    inside = {
        run
        for run in s.order
        if s.of(run).cheap and len(readers[run]) == 1 and not s.of(readers[run][0]).last
    }

    def needs(run: int) -> set[int]:
        own = set(s.reads[run])
        return (own - inside).union(*(needs(r) for r in own & inside))

    stored = [run for run in s.order if run not in inside]
    until = {
        run: max([t, *(u for u, r in enumerate(stored) if run in needs(r))])
        for t, run in enumerate(stored)
    }
    there, most = set[int](), 0
    for t, run in enumerate(stored):
        assert needs(run) <= there, "reads what is not there"
        assert tuple(s.task[r] for r in s.reads[run]) == s.of(run).reads, "made of something else"
        there.add(run)
        most = max(most, sum(s.nbytes(r) for r in there))
        there = {r for r in there if until[r] > t}
    return most


def agrees() -> None:
    """Of random programs: what is said to be taken is, and falls; bounds hold; nothing is copied in
    vain, and updates come last."""
    fell = 0
    for seed in SEEDS:
        first = plain(random_tasks(seed))
        assert first.peak == replayed(first) and not first.copies and first.price == 0
        before = first
        for s in lifetimes.leaner(first):
            assert s.peak == replayed(s)
            assert (s.peak, s.taken.count(s.peak)) < (before.peak, before.taken.count(before.peak))
            assert sorted(r for r in s.order if not s.is_copy(r)) == [*range(len(s.tasks))]
            assert not any(s.of(run).last for run in s.copies)
            kinds = [s.of(run).last for run in s.order]
            assert kinds == sorted(kinds), "a copy behind an update"
            before = s
        fell += before.peak < first.peak
        limit = (before.peak + first.peak) // 2
        enough = next((s for s in lifetimes.leaner(first) if s.peak <= limit), before)
        least = lifetimes.pruned(enough, limit)
        assert replayed(least) <= limit and least.price <= enough.price
        assert lifetimes.pruned(least, limit).order == least.order
        assert not lifetimes.pruned(least, sum(t.nbytes for t in first.tasks)).copies
    assert fell > len(SEEDS) / 2


def test_random_programs() -> None:
    agrees()


@pytest.mark.parametrize("layers", [16, 32])
def test_a_chain_in_half_its_memory(layers: int) -> None:
    """Half of the forward pass once more; a quarter takes all of it."""
    first = plain(chain(layers))
    limit = first.peak // 2 + 8
    path = [*lifetimes.leaner(first)]
    found = lifetimes.pruned(next(s for s in path if s.peak <= limit), limit)
    quarter = next(s for s in path if s.peak <= first.peak // 4 + 8)
    assert len(quarter.copies) <= layers
    assert replayed(found) <= limit and len(found.copies) == layers // 2


def test_what_is_dear_is_kept() -> None:
    """Of two values that are only kept, of one size, the one that costs less is made again."""
    for dear in (0, 1):
        own = [Task(10, 100.0 if i == dear else 1.0, ()) for i in (0, 1)]
        tasks = [*own, Task(5, 1.0, (0, 1)), Task(10, 1.0, (2,)), Task(1, 1.0, (0, 1, 3))]
        s = next(lifetimes.leaner(plain(tasks)), None)
        assert s is None or [s.task[r] for r in s.copies] == [1 - dear]


def test_cheap_values_with_one_reader_take_nothing() -> None:
    tasks = [Task(4, 1.0, ()), Task(9, 1.0, (0,), cheap=True), Task(1, 1.0, (1,))]
    assert plain(tasks).taken == [4, 4, 5]
    assert plain([*tasks, Task(1, 1.0, (1,))]).peak == 4 + 9
    assert plain([*tasks[:2], tasks[2]._replace(last=True)]).peak == 4 + 9


def test_the_same_twice() -> None:
    runs = [[s.order for s in lifetimes.leaner(plain(random_tasks(3)))] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "steps[self.place[run]] += self.nbytes(run)",
            "steps[self.place[run]] += 2 * self.nbytes(run)",
        ),
        (
            "*(self.at[r] for r in self.readers[run])",
            "*(self.at[r] for r in self.readers[run][:1])",
        ),
        ("self.at[self.readers[run][0]] if run in inside", "self.place[run] if run in inside"),
        ("schedule = less if less.peak <= limit", "schedule = less if less.peak <= limit + 40"),
        ("reads.append(tuple(copy.get(r, r) for r in choice.again[run]))", "reads.append(())"),
        ("place = min((_front(s, later[0]), *ends[:1]))", "place = _front(s, later[0])"),
        (
            "order = [*schedule.order[:at], *copy.values(), *late]",
            "order = [*schedule.order, *copy.values()]",
        ),
    ],
)
def test_mutants_die(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that counts twice, operands that are freed, a bound that is a value off, copies that
    are made of nothing, behind an update, or behind who reads them."""
    mutating.replace(lifetimes, old, new, monkeypatch)
    with pytest.raises(Exception):  # noqa: B017
        agrees()
