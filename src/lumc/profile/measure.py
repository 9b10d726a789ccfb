"""Candidates are compiled, checked and timed. Whatever one of them does, the search goes on.

Compilers run side by side, but never while something is timed; a lock on the device keeps other
searches out of that time too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.text.headers import NAMES, header_of
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program, leaves, loads_of
from lumc.disk.scratch import scratch
from lumc.environment import objects_folder
from lumc.errors import LumcError
from lumc.kernel.codec import to_plain
from lumc.kernel.target import Speeds, Target
from lumc.lab.device import measure_speeds
from lumc.lab.lock import DeviceLock
from lumc.lab.process import Candidates, Limits, build_timer
from lumc.lab.whole import race
from lumc.lab.worker import KEPT, OUTSIDE, Loaded, Worker
from lumc.link.link import Tools
from lumc.link.toolchain import (
    KERNEL_FLAGS,
    REFUSED,
    Toolchain,
    compile_objects,
    link_objects,
    side_by_side,
)
from lumc.process import Lost, undisturbed
from lumc.profile import timing
from lumc.profile.records import Trial, text_of
from lumc.profile.timing import Timing
from lumc.schedule.plan import KernelPlan, Plan
from lumc.schedule.schedule import Schedule

SYMBOL = "k"  # of every candidate
YARDSTICK = 1  # its number in the worker; a candidate is 0
SETTLE = 4  # runs until the last cache holds what it holds when nothing else runs; a guess
COMPILER_S = 50.0  # for one candidate, else it has no time; measured: 0.1 to 0.15 s is usual
OBJECTS = 1000  # compiled candidates that are kept for the finals; derived: two minutes, 8 a second

# why a candidate has no time
ILLEGAL, COMPILER, WRONG = "illegal", "compiler", "wrong"


@dataclass(frozen=True)
class Job:
    """A kernel with one of its schedules; ``best_us`` is the time to beat, ``yardstick`` a trial of
    the kernel that is timed in turn, ``floor_us`` a time that no schedule should beat. Of dims that
    are known at run time it is checked at all ``points``, and timed at the last."""

    plan: KernelPlan
    schedule: Schedule
    cold_bytes: int = 0
    best_us: float | None = None
    yardstick: Trial | None = None
    floor_us: float = 0.0
    points: tuple[Mapping[str, int], ...] = ()


class Bench:
    """The device that candidates are measured on, with its compiler and its worker process."""

    machines = 1  # that measure at the same time

    def __init__(self, target: Target, tools: Toolchain, limits: Limits | None = None) -> None:
        self.target, self.tools, self.limits = target, tools, limits or Limits()
        self.linkers = Tools(replace(tools, kept=objects_folder()))  # of whole plans
        self.lock = DeviceLock()
        self._scratch = ExitStack()
        self.folder = self._scratch.enter_context(scratch())
        self._worker: Candidates | None = None
        self._objects: dict[str, None] = {}  # names of the compiled, oldest first
        self._yardsticks: dict[tuple[str, str], _Made | None] = {}
        self._proven = set[tuple[str, str]]()  # right for all lengths: kernels and names of files
        self._at_hand: object = None  # which of them the worker has
        self.stopped: Callable[[], bool] = lambda: False  # whether the user wants no more
        self._set_up()

    def _set_up(self) -> None:
        """What all candidates share."""
        (self.folder / NAMES["cpu"]).write_text(header_of("cpu"))
        self._timer = build_timer(self.tools, self.folder)

    def _start(self) -> Candidates:
        return Candidates(self.limits, Worker, self._timer, self.target.threads)

    def close(self) -> None:
        self._end()
        self._scratch.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def as_completed(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Trial]]:
        """Jobs with their trials, as soon as they are made; only some if the user wants no more."""
        return zip(jobs, self.measure(jobs), strict=True)

    def measure(self, jobs: Sequence[Job]) -> Iterator[Trial]:
        """One trial per job, in order, each as soon as it is made. Candidates with the same source
        are measured once."""
        made, done = self._make(jobs), dict[str, Trial]()
        with self.lock.held():
            for job, one in zip(jobs, made, strict=True):
                if isinstance(one, Trial):
                    yield one
                    continue
                if one.digest not in done:
                    done[one.digest] = self._trial(job, one)
                yield replace(done[one.digest], schedule=job.schedule)
            self._forget()

    def finals(self, jobs: Sequence[Job], wait_s: float = 0.0) -> list[Trial]:
        """Candidates that were timed before, now in turn; it may wait for a calm moment. Nothing
        if one of them fails."""
        made = self._make(jobs)
        streams = {job.schedule.stream for job in jobs}
        sample = self._sampling(streams)
        wait_s /= 1 + SETTLE * (len(streams) > 1)  # runs that nobody times are waited for too
        with self.lock.held():
            try:
                samples, inner, first = [], [], []
                for number, (job, one) in enumerate(zip(jobs, made, strict=True)):
                    if isinstance(one, Trial) or self._check(job, one, number):
                        return []
                    samples.append(partial(sample, number))
                    found, runs = timing.measure(samples[-1], job.best_us, whole=True)
                    inner.append(runs)
                    first.append(found.us)
                least = [job.best_us or us for job, us in zip(jobs, first, strict=True)]
                floors = [job.floor_us for job in jobs]
                waiting = wait_s * 1e6, floors, self.stopped
                times = timing.finals(samples, inner, first, least, *waiting)
            except Lost:
                return []
            finally:
                self._forget()
        return [_timed(job, t) for job, t in zip(jobs, times, strict=True)]

    def race(self, plans: Sequence[Plan], seconds: float, over: Callable[[], bool]) -> list[float]:
        """The time of whole runs, in turn; nothing when they cannot be linked here, and of plans
        for a mesh, which are several processes."""
        if any(plan.graph.mesh for plan in plans):
            return []
        with self.lock.held():
            try:
                return timing.compared(race(plans, self.linkers, seconds, over))
            except (LumcError, OSError, MemoryError):  # weights that are elsewhere, or too large
                return []

    def speeds(self) -> Speeds:
        """What no kernel exceeds."""
        with self.lock.held():
            return measure_speeds(self.target, self.tools, self.folder)

    # ---- one candidate

    def _trial(self, job: Job, made: _Made) -> Trial:
        try:
            said = self._check(job, made, 0)
            if said:
                if said.startswith(OUTSIDE):  # who knows what else it wrote to
                    self._end()
                return Trial(job.schedule, reason=WRONG, remark=said)
            beside = self._beside(job)
            both = {job.schedule.stream, (job.yardstick or job).schedule.stream}
            sample = self._sampling(both)
            yardstick = (partial(sample, YARDSTICK), beside) if beside else None
            own = partial(sample, 0)
            found, _ = timing.measure(own, job.best_us, beside=yardstick, floor_us=job.floor_us)
        except Lost as e:
            reason, _, remark = str(e).partition(": ")
            return Trial(job.schedule, reason=reason, remark=remark)
        return _timed(job, found)

    def _sampling(self, streams: set[bool]) -> Callable[..., list[float]]:
        """How candidates that take turns are sampled, some of which stream, or none. Results that
        go around the caches take those of the others out of them, and nobody else's runs do that:
        then every turn starts with runs that nobody times, until the caches are as they are when
        one program runs over and over."""
        if len(streams) == 1:
            return partial(self._ask, "sample")

        def sample(number: int, inner: int, n: int, *slices: int) -> list[float]:
            if not slices:  # results of long kernels do not stay in caches
                self._ask("sample", number, SETTLE, 1)
            found: list[float] = self._ask("sample", number, inner, n, *slices)
            return found

        return sample

    def _beside(self, job: Job) -> float:
        """The least time of the yardstick of a job, if it is at hand, or 0."""
        if job.yardstick is None:
            return 0.0
        key = job.plan.key, text_of(job.yardstick.schedule)
        if key not in self._yardsticks:
            (made,) = self._make([replace(job, schedule=job.yardstick.schedule)])
            self._yardsticks[key] = made if isinstance(made, _Made) else None
        one = self._yardsticks[key]
        if one and self._at_hand != key and not self._check(job, one, YARDSTICK):
            self._at_hand = key
        at_hand = one is not None and self._at_hand == key
        return job.yardstick.time if at_hand else 0.0

    def _check(self, job: Job, made: _Made, number: int) -> str:
        """What is wrong with the results of a candidate, or nothing."""
        if self._worker is None:
            self._worker = self._start()
        if not job.points:
            return self._right(job.plan, job, made.loaded, number)
        known = job.plan.key, made.name
        for dims in job.points[-1:] if known in self._proven else job.points:
            key = f"{job.plan.key} {' '.join(map(str, dims.values()))}"
            plan = replace(job.plan, key=key, kernel=job.plan.kernel.bound(dims))
            loaded = made.loaded._replace(dims=tuple(dims.values()))
            if said := self._right(plan, job, loaded, number):
                return f"{said}, {dims}"
        self._proven.add(known)
        return ""

    def _right(self, plan: KernelPlan, job: Job, loaded: Any, number: int) -> str:
        """What is wrong with results that should be those of a kernel."""
        assert self._worker
        if plan.key not in self._worker.known:
            seed = int(plan.key[:8], 16)
            self._ask("kernel", to_plain(plan), seed, job.cold_bytes)
            self._worker.known = [*self._worker.known, plan.key][-KEPT:]
        return str(self._ask("check", plan.key, number, loaded))

    def _ask(self, *question: Any) -> Any:
        assert self._worker is not None
        try:
            return self._worker.ask(question, self.limits.seconds)
        except Lost:
            self._end()
            raise

    def _end(self) -> None:
        """The next question goes to a new worker."""
        self._at_hand = None
        if self._worker:
            self._worker.kill()
            self._worker = None

    def _forget(self) -> None:
        """Drop the candidates of this batch, and the files of the oldest but the yardsticks."""
        self._at_hand = None
        if self._worker:
            self._ask("forget")
        needed = {one.name for one in self._yardsticks.values() if one}
        for name in [n for n in self._objects if n not in needed][:-OBJECTS]:
            del self._objects[name]
            for path in self.folder.glob(f"{name}.*"):
                path.unlink()

    # ---- making them

    def _make(self, jobs: Sequence[Job]) -> list[_Made | Trial]:
        """Lower, print and compile; a trial for whatever does not get that far."""
        out: list[_Made | Trial] = []
        for job in jobs:
            try:
                out.append(self._print(job))
            except OSError:  # of the disk, whatever the candidate
                raise
            except Exception as e:  # of a candidate, so it is a record
                out.append(Trial(job.schedule, reason=ILLEGAL, remark=f"{type(e).__name__}: {e}"))
        with undisturbed():
            failed = self._compile([m for m in out if isinstance(m, _Made)])
        for i, one in enumerate(out):
            if isinstance(one, _Made) and one.name in failed:
                out[i] = Trial(jobs[i].schedule, reason=COMPILER, remark=failed[one.name])
        return out

    def _print(self, job: Job) -> _Made:
        """The text of a candidate, in a file that has the name of its contents."""
        program = lower(job.plan.kernel, job.schedule, self.target)
        source = print_kernel(program, SYMBOL)
        name = digest_of(source)
        (self.folder / f"{name}.c").write_text(source)
        path = str(self.folder / f"{name}.so")
        timed = digest_of(name + str(job.schedule.parts))
        return _Made(timed, name, _loaded(program, job.schedule, path))

    def _compile(self, made: Sequence[_Made]) -> dict[str, str]:
        """Several compilers side by side, for what is not compiled yet; what failed, and what was
        said."""
        todo = {m.name: m for m in made if m.name not in self._objects}

        def attempt(name: str) -> str:
            try:
                self._compile_one(todo[name])
            except LumcError as e:
                if e.code != REFUSED:
                    raise
                return e.what
            return ""

        said = zip(todo, side_by_side(attempt, list(todo)), strict=True)
        failed = {name: what for name, what in said if what}
        self._objects |= {name: None for name in todo if name not in failed}
        return failed

    def _compile_one(self, made: _Made) -> None:
        """A shared object. Raises LumcError when the compiler refuses."""
        flags = (*KERNEL_FLAGS, *self.target.flags)
        compile_objects(self.tools, self.folder, [f"{made.name}.c"], flags, COMPILER_S)
        ends = ("-shared", "-lm")
        link_objects(self.tools, self.folder, [f"{made.name}.o"], f"{made.name}.so", ends)


@dataclass(frozen=True)
class _Made:
    digest: str  # of all that its time depends on
    name: str  # of its files
    loaded: Any  # how the worker finds it


def digest_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:32]


def _timed(job: Job, t: Timing) -> Trial:
    return Trial(job.schedule, t.us, t.samples, t.noise, t.slices, beside=t.beside)


def _loaded(program: Program, schedule: Schedule, path: str) -> Loaded:
    raw = tuple(dict.fromkeys(e.attr[0] for op in leaves(program.body) for e in loads_of(op)))
    data = tuple(map(to_plain, program.packed.values()))
    parallel = int(program.tiles > 0) and (schedule.parts or 1)
    return Loaded(path, SYMBOL, raw, data, program.scratch_bytes, parallel, program.tiles)
