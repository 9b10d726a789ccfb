"""Candidates are measured by several machines of one kind at the same time.

Each has a bench of its own: compiler, check of results, clock. This machine hands out candidates
and keeps the records. It also runs finals and whole plans: what is compared there runs in turn. A
pool (``on_ray``, ``on_ssh``) knows the machines, and carries JSON to them and back.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from lumc.codegen.text.headers import header_of
from lumc.errors import Exit, LumcError
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.target import Target
from lumc.lab import device
from lumc.lab.lock import Busy
from lumc.link import cuda
from lumc.link.toolchain import KERNEL_FLAGS, Toolchain, features, find, fingerprint, macros
from lumc.process import CRASH
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Setting, Trial
from lumc.profile.settings import Known, differences
from lumc.runtime import nvidia
from lumc.voice import VOICE, WARNING

TRIES = 2  # processes that may end while they have the same candidate; a guess
LOOK_S = 0.5  # until it is asked again whether the user wants no more; a guess
ANSWER_S = 600.0  # of one candidate; derived: compilers have 50 s, its process 20 s an answer
# what a machine answers: the value that was asked for, why it cannot measure, or why it is lost
Answer = dict[str, Any]
VALUE, WHY, LOST = "value", "why", "lost"


@dataclass(frozen=True)
class Kind:
    """Machines with equal devices, tools and code measure the same."""

    device: str  # fingerprint
    tools: str  # of the compiler and its flags
    said: Mapping[str, str | int]  # both, in words
    code: str = ""  # of lumc


def kind_here(target: Target, tools: Toolchain) -> Kind:
    """Of this machine, with this compiler."""
    flags = (*KERNEL_FLAGS, *target.flags)
    used = " ".join(features(macros(tools, flags)))
    said = {**device.described(), "compiler": tools.version, "features": used}
    return Kind(device.fingerprint(), fingerprint(tools, flags, header_of("cpu")), said)


def kind_of_gpu(compiler: cuda.Compiler) -> Kind:
    """Of the GPU of this machine, with this compiler of its kernels."""
    made_by = repr((compiler.version, cuda.FLAGS, header_of("cuda")))
    tools = hashlib.sha256(made_by.encode()).hexdigest()[:16]
    said = {"gpu": nvidia.describe(), "compiler": compiler.version}
    return Kind(nvidia.fingerprint(), tools, {**said, "cache_bytes": nvidia.cache_bytes()})


def code_here() -> str:
    """Identifies the files of this lumc: versions are equal while it is developed."""
    root, found = Path(str(files("lumc"))), hashlib.sha256()
    for path in sorted(root.rglob("*.*")):
        if path.suffix != ".pyc" and path.is_file():
            found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def unlike(said: Any, here: Kind) -> str:
    """What a machine has, as it describes itself, that this one has not; nothing if they measure
    the same."""
    try:
        there = from_plain(Kind, said)
    except (LookupError, TypeError, ValueError):
        return "another version of lumc"
    if (there.device, there.tools) != (here.device, here.tools):
        known = [Known(Setting(k.device, k.tools, 1), said=dict(k.said)) for k in (there, here)]
        return differences(*known)
    return "" if there.code == here.code else "other files of lumc"


def refusal(answer: Answer, here: Kind) -> str:
    """Why a machine that says this of itself does not measure; nothing if it does."""
    if VALUE in answer:
        return unlike(answer[VALUE], here)
    return str(answer.get(WHY) or answer.get(LOST) or "it does not say what it is")


def require_some(machines: Sequence[str], on: str) -> None:
    """Say who measures. Raises E0716 where nobody does."""
    if not machines:
        what = f"no machine can measure for this one: --on {on}"
        fix = "the lines above say why; machines of one kind, with the same lumc"
        raise LumcError("E0716", what, fix=fix, exit=Exit.TOOLCHAIN)
    say(f"{len(machines)} machines measure: {', '.join(sorted(machines))}")


class Remote:
    """On another machine: its bench, which answers in JSON."""

    def __init__(self, target: Any, cc: str | None) -> None:
        self.target, self.cc = target, cc
        self.bench: Bench | None = None

    def described(self) -> Answer:
        """Its kind."""
        return attempt(self._described)

    def measure(self, job: Any) -> Answer:
        """The trial of a job."""
        return attempt(lambda: self._measure(job))

    def close(self) -> None:
        """Nobody asks any more."""
        if self.bench:
            self.bench.close()

    def _described(self) -> Any:
        kind = kind_here(from_plain(Target, self.target), find(self.cc))
        return {**to_plain(kind), "code": code_here()}

    def _measure(self, job: Any) -> Any:
        if self.bench is None:
            self.bench = Bench(from_plain(Target, self.target), find(self.cc))
        (trial,) = self.bench.measure([from_plain(Job, job)])
        return to_plain(trial)


def attempt(ask: Callable[[], Any]) -> Answer:
    """What the machine said, or what is the matter with it."""
    try:
        return {VALUE: ask()}
    except Busy:
        return {WHY: "other searches are timed there"}
    except (LumcError, OSError) as e:
        return {WHY: str(e).partition("\n")[0]}


class Pool(Protocol):
    """Machines by name, each of which measures one job at a time."""

    @property
    def count(self) -> int:
        """Machines that measure, or will again."""

    def free(self) -> list[str]:
        """Those that have no job now."""

    def give(self, machine: str, job: Any) -> None:
        """A job for a machine that is free."""

    def heard(self, seconds: float) -> list[tuple[str, Answer]]:
        """Who answered: it waits so long for the first. Who is lost may be free again later."""

    def drop(self, machine: str) -> None:
        """It gets no more jobs."""

    def close(self) -> None:
        """All are let go."""


class Cluster(Bench):
    """The bench of this machine, and others that measure its candidates."""

    def __init__(self, open_pool: Callable[[], Pool], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made = Counter[str]()  # trials of each machine
        try:
            self.pool = open_pool()
        except BaseException:
            super().close()
            raise

    def close(self) -> None:
        self.pool.close()
        super().close()
        if self.made:
            counts = (f"{name}: {n}" for name, n in sorted(self.made.items()))
            say(f"trials by machine: {', '.join(counts)}")

    @property
    def machines(self) -> int:  # type: ignore[override]
        return max(1, self.pool.count)

    def as_completed(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Trial]]:
        """Jobs go to whoever is free; those of machines that are lost to another. While no machine
        measures, this one does."""
        todo, tries, busy = deque(range(len(jobs))), Counter[int](), dict[str, tuple[int, float]]()
        while todo or busy:
            if self.stopped():
                todo.clear()
            for name in self.pool.free()[: len(todo)]:
                busy[name] = todo.popleft(), time.monotonic()
                self.pool.give(name, to_plain(jobs[busy[name][0]]))
            if todo and not busy:
                yield from super().as_completed([jobs[todo.popleft()]])
                self.made["this machine"] += 1
            for name, answer in self.pool.heard(LOOK_S if busy else 0.0) or _late(busy):
                number, _ = busy.pop(name)
                trial = self._judged(name, answer, jobs[number])
                tries[number] += LOST in answer
                if trial is None and tries[number] >= TRIES:
                    remark = f"{TRIES} machines were lost with it"
                    trial = Trial(jobs[number].schedule, reason=CRASH, remark=remark)
                if trial:
                    yield jobs[number], trial
                else:
                    todo.appendleft(number)

    def _judged(self, name: str, answer: Answer, job: Job) -> Trial | None:
        """The trial that a machine made, if it did; machines that cannot measure get no more."""
        trial = trial_of(answer[VALUE], job) if VALUE in answer else None
        if trial:
            self.made[name] += 1
            return trial
        if LOST in answer:
            say(f"{WARNING}{name} was lost ({answer[LOST]}): its candidate goes to another machine")
            return None
        self.pool.drop(name)
        why = answer.get(WHY, "it answered with something else than a trial of its candidate")
        say(f"{WARNING}{name} measures no more: {why}")
        return None


def _late(busy: Mapping[str, tuple[int, float]]) -> list[tuple[str, Answer]]:
    """Machines that have had a candidate for too long."""
    now = time.monotonic()
    late = [name for name, (_, since) in busy.items() if now - since > ANSWER_S]
    return [(name, {WHY: f"no answer in {ANSWER_S:g} s"}) for name in late]


def trial_of(said: Any, job: Job) -> Trial | None:
    """What another machine says of a candidate, if it can be one of its trials."""
    try:
        trial = from_plain(Trial, said)
    except (LookupError, TypeError, ValueError):
        return None
    numbers = [trial.us or 0.0, trial.noise, trial.beside, trial.samples, trial.slices]
    fine = min(numbers) >= 0 and (trial.us or trial.reason) and trial.schedule == job.schedule
    return trial if fine else None


def say(what: str) -> None:
    """To the user, whatever -v says."""
    warning = WARNING if what.startswith(WARNING) else ""
    VOICE.get().say(0, f"{warning}profile: {what.removeprefix(WARNING)}")
