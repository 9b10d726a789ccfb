"""Which values stay in memory from where they are made to where they are read, and which are made
again for those who read them late.

A program is an order of runs. Each makes one value, and reads values that earlier runs made. A
value takes its bytes from the run that makes it to the last one that reads it. Rematerialization
gives late readers a copy, which is made in front of the first of them. Whether that takes less
depends on what the copy reads: that has to be there, or is made again too. A cheap value with one
reader takes nothing: it is made inside of it.

The search is greedy: where most bytes are taken, the choice by which a byte costs least. (Chen et
al., "Training deep nets with sublinear memory cost", 2016, keep values at equal distances; Kirisame
et al., "Dynamic tensor rematerialization", 2021, choose by cost per byte, while the program runs.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

AT_ONCE = 64  # values that are made again for one late reader, at most; a guess
TRIES = 64  # choices that are tried at one place, in the order of what a byte costs; a guess

Reads = list[tuple[int, ...]]


class Task(NamedTuple):
    """What makes a value: how many bytes that takes (0: none, or none in this memory), what making
    it costs, and which tasks make what it reads. One that is ``cheap`` is made inside of its reader
    if it has one; a ``last`` one has nothing inside, and no copies in front of it."""

    nbytes: int
    price: float
    reads: tuple[int, ...]
    cheap: bool = False
    last: bool = False


@dataclass
class Schedule:
    """An order of runs. Of each run, by its number, ``task`` says whose value it makes, and
    ``reads`` which runs made what it reads. Runs with a number of at least ``len(tasks)`` are
    copies; those that nobody reads are left out. What is made inside of a run stands in front of
    it."""

    tasks: Sequence[Task]
    order: list[int]
    task: list[int]
    reads: Reads
    place: dict[int, int] = field(init=False)  # of every run in the order
    at: dict[int, int] = field(init=False)  # the place of what it is made inside of, or its own
    made: dict[int, list[int]] = field(init=False)  # the runs of every task, in order
    readers: dict[int, list[int]] = field(init=False)  # of every run, in order
    taken: list[int] = field(init=False)  # bytes, at every place

    def __post_init__(self) -> None:
        self._sweep()
        inside = {run for run in self.order if self._is_inside(run)}
        self._arrange(inside)
        self._count(inside)

    def _arrange(self, inside: set[int]) -> None:
        """Put runs where they are made, and say where that is."""
        order = list[int]()
        for run in self.order:
            order += self._with_inner(run, inside) if run not in inside else []
        self.order = order
        self.place = {run: at for at, run in enumerate(order)}
        self.readers = {
            run: sorted(r, key=self.place.__getitem__) for run, r in self.readers.items()
        }
        self.at, self.made = {}, {}
        for run in reversed(order):
            self.at[run] = self.at[self.readers[run][0]] if run in inside else self.place[run]
            self.made.setdefault(self.task[run], []).insert(0, run)

    def _count(self, inside: set[int]) -> None:
        """How many bytes are taken where."""
        steps = [0] * (len(self.order) + 1)
        for run in (run for run in self.order if run not in inside):
            steps[self.place[run]] += self.nbytes(run)
            steps[self.end(run) + 1] -= self.nbytes(run)
        self.taken = [*accumulate(steps)][:-1]

    def _sweep(self) -> None:
        """Leave out copies that nobody reads; who reads the others."""
        self.readers = {run: [] for run in self.order}
        for run in reversed(self.order):
            if self.readers[run] or not self.is_copy(run):
                for source in dict.fromkeys(self.reads[run]):
                    self.readers[source].append(run)
        self.order = [r for r in self.order if self.readers[r] or not self.is_copy(r)]

    def _is_inside(self, run: int) -> bool:
        readers = self.readers[run]
        return self.of(run).cheap and len(readers) == 1 and not self.of(readers[0]).last

    def _with_inner(self, run: int, inside: set[int]) -> list[int]:
        """A run behind all that is made inside of it."""
        out, todo = list[int](), [run]
        while todo:
            out.append(todo.pop())
            todo += [r for r in dict.fromkeys(self.reads[out[-1]]) if r in inside]
        return out[::-1]

    @property
    def peak(self) -> int:
        """The bytes that are taken where most are."""
        return max(self.taken, default=0)

    @property
    def copies(self) -> list[int]:
        """The runs that make a value again, in order."""
        return [run for run in self.order if self.is_copy(run)]

    @property
    def price(self) -> float:
        """What all copies cost."""
        return sum(self.of(run).price for run in self.copies)

    def of(self, run: int) -> Task:
        """The task of a run."""
        return self.tasks[self.task[run]]

    def is_copy(self, run: int) -> bool:
        """Whether it makes a value again."""
        return run >= len(self.tasks)

    def nbytes(self, run: int) -> int:
        """What its value takes, where it is stored."""
        return self.of(run).nbytes

    def end(self, run: int) -> int:
        """The last place where its value is needed."""
        return max((self.at[run], *(self.at[r] for r in self.readers[run])))

    def latest(self, run: int, place: int) -> int:
        """Of the runs before a place that make the value of this one, that whose value is there
        longest, as far as the place."""
        before = [r for r in self.made[self.task[run]] if self.place[r] < place]
        return max(before, key=lambda r: (min(self.end(r), place), self.place[r]), default=run)


class Choice(NamedTuple):
    """A copy of ``run`` in front of a place, for those of its readers that stand there or later,
    or only for ``reader``. ``again`` are all that are copied for that with what their copies read,
    a run that is among them as its copy; ``whole``: they also stand for later copies."""

    cost: float  # of a byte that is no longer taken at one place
    place: int
    run: int
    again: dict[int, tuple[int, ...]]
    whole: bool = False
    reader: int = -1


def plain(tasks: Sequence[Task]) -> Schedule:
    """Every task once."""
    numbers = list(range(len(tasks)))
    return Schedule(tasks, numbers, numbers[:], [t.reads for t in tasks])


def leaner(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules that take less and less, each one choice behind the one before."""
    while True:
        for made in _found(schedule):
            if (made.peak, made.taken.count(made.peak)) < (
                schedule.peak,
                schedule.taken.count(schedule.peak),
            ):
                break
        else:
            return
        schedule = made
        yield schedule


def pruned(schedule: Schedule, limit: int) -> Schedule:
    """Without copies that are not needed to take no more than ``limit``, the dearest first."""
    for run in sorted(schedule.copies, key=lambda run: (-schedule.of(run).price, run)):
        if run in schedule.place:
            before = schedule.latest(run, schedule.place[run])
            reads = [tuple(before if r == run else r for r in each) for each in schedule.reads]
            less = Schedule(schedule.tasks, schedule.order, schedule.task, reads)
            schedule = less if less.peak <= limit else schedule
    return schedule


def _found(schedule: Schedule) -> Iterator[Schedule]:
    """What choices make of a schedule, those by which a byte costs least first."""
    top = schedule.at[schedule.order[schedule.taken.index(schedule.peak)]]
    for choice in sorted([*_late(schedule, top), *_apart(schedule, top)], key=lambda c: c[:3])[
        :TRIES
    ]:
        made = schedule
        if choice.again:
            made = _made(schedule, choice)
        else:
            for reader in schedule.readers[choice.run][:0:-1]:
                made = _made(made, _for_one(made, choice.run, reader))
        yield made


def _late(s: Schedule, top: int) -> Iterator[Choice]:
    """Values that are only kept where most is taken, to be made again behind that."""
    ends = [at for at, run in enumerate(s.order) if s.of(run).last]
    for run in s.order[:top]:
        later = [r for r in s.readers[run] if s.at[r] >= top]
        if not s.nbytes(run) or s.at[run] >= top or not later or any(s.at[r] == top for r in later):
            continue
        place = min((_front(s, later[0]), *ends[:1]))
        for keeps in (True, False) if place > top else ():
            again = dict[int, tuple[int, ...]]()
            gain = s.nbytes(run) - _again(s, run, run, place, top, again, keeps)
            if gain > 0 and len(again) <= AT_ONCE:
                since = max((s.at[run], *(s.at[r] for r in s.readers[run] if s.at[r] < top)))
                yield from _priced(s, Choice(gain * (place - since), place, run, again))


def _priced(s: Schedule, choice: Choice) -> Iterator[Choice]:
    """A choice that gains so much, and the same in place of later copies."""
    tasks = dict.fromkeys(s.task[r] for r in choice.again)
    merged = [r for t in tasks for r in s.made[t] if s.place[r] >= choice.place]
    price, gain = sum(s.of(r).price for r in choice.again), choice.cost
    yield choice._replace(cost=price / gain)
    if merged:
        saved = sum(s.of(r).price for r in merged)
        yield choice._replace(cost=(price - saved) / gain, whole=True)


def _apart(s: Schedule, top: int) -> Iterator[Choice]:
    """Cheap values that are made or read where most is taken, to be made inside of each reader."""
    for run in s.order[: top + 1]:
        seen = s.at[run] == top or any(s.at[r] == top for r in s.readers[run])
        many = len(s.readers[run])
        cheap = s.of(run).cheap and not any(s.of(r).last for r in s.readers[run])
        if seen and many > 1 and cheap and s.nbytes(run):
            price = s.of(run).price * (many - 1)
            span = s.end(run) - s.at[run]
            yield Choice(price / (s.nbytes(run) * span), s.place[run], run, {})


def _for_one(s: Schedule, run: int, reader: int) -> Choice:
    """A copy of what is read by several for one of them: what both read is kept until then."""
    return Choice(0, _front(s, reader), run, {run: s.reads[run]}, reader=reader)


def _front(s: Schedule, run: int) -> int:
    """The first place of what is made inside of the same run."""
    place = s.at[run]
    while place and s.at[s.order[place - 1]] == s.at[run]:
        place -= 1
    return place


def _again(
    s: Schedule,
    run: int,
    of: int,
    place: int,
    top: int,
    again: dict[int, tuple[int, ...]],
    keeps: bool,
) -> int:
    """Fill in what has to be made again so that ``run``, for the copy of ``of``, can be made in
    front of a place; the bytes that are kept at ``top`` for that. What is there is read; what was
    there after ``top`` is kept longer; so is, where that is asked for, what costs more per byte
    than ``of`` does."""
    found, extra, want = list[int](), 0, s.of(of)
    again[run] = ()
    for source in s.reads[run]:
        source = s.latest(source, place)
        task, end = s.of(source), s.end(source)
        if task.nbytes and end < top and source not in again:
            if keeps and task.nbytes * want.price <= task.price * want.nbytes:
                extra += task.nbytes
            elif len(again) <= AT_ONCE:
                extra += _again(s, source, of, place, top, again, keeps)
        found.append(source)
    again[run] = tuple(found)
    return extra


def _made(schedule: Schedule, choice: Choice) -> Schedule:
    """The schedule after a choice."""
    task, reads, at = schedule.task[:], schedule.reads[:], choice.place
    copy = dict[int, int]()
    for run in sorted(choice.again, key=schedule.place.__getitem__):
        copy[run] = len(task)
        task.append(schedule.task[run])
        reads.append(tuple(copy.get(r, r) for r in choice.again[run]))
    instead, late = {choice.run: copy[choice.run]}, schedule.order[at:]
    if choice.whole:
        new = {task[run]: run for run in copy.values()}
        instead |= {r: new[task[r]] for r in late if schedule.is_copy(r) and task[r] in new}
    for run in late if choice.reader < 0 else [choice.reader]:
        reads[run] = tuple(instead.get(r, r) for r in reads[run])
    order = [*schedule.order[:at], *copy.values(), *late]
    return Schedule(schedule.tasks, order, task, reads)
