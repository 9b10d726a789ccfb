"""What took how long, in the trace event format that ui.perfetto.dev and chrome://tracing read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lumc.disk import artifact
from lumc.kernel.target import Speeds
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Trial
from lumc.shard.pipeline import Turn

if TYPE_CHECKING:
    from lumc.profile.session import Progress
    from lumc.runtime.opened import Part

Event = dict[str, Any]


class Trace:
    """Spans and counters of one command; times are microseconds from its start."""

    def __init__(self, command: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.start = clock, clock()
        self.events: list[Event] = [
            _named("process_name", command, 0),
            _named("thread_name", command, 0),
        ]

    def now(self) -> float:
        return round((self.clock() - self.start) * 1e6, 3)

    @contextmanager
    def span(self, name: str, kind: str, **said: Any) -> Iterator[dict[str, Any]]:
        """The time of a block; what is put into the dictionary is shown with it."""
        start = self.now()
        try:
            yield said
        finally:
            self.add(name, kind, start, self.now() - start, 0, said)

    def add(self, name: str, kind: str, start: float, us: float, thread: int, said: Event) -> None:
        event = {"name": name, "cat": kind, "ph": "X", "ts": start, "dur": round(us, 3)}
        self.events.append({**event, "pid": 1, "tid": thread, "args": said})

    def count(self, now: Progress) -> None:
        """How far the search is, as curves."""
        for name, value in (("best plan, us", now.us), ("trials", now.trials), ("open", now.open)):
            event = {"name": name, "ph": "C", "ts": self.now(), "pid": 1, "tid": 0}
            self.events.append({**event, "args": {name: value}})

    def write(self, path: str) -> None:
        body = {"displayTimeUnit": "ms", "traceEvents": self.events}
        artifact.write_text(path, json.dumps(body, indent=0, allow_nan=False) + "\n")


def _named(what: str, name: str, thread: int) -> Event:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


class TracedBench(Bench):
    """A bench that says what it compiles and measures."""

    def __init__(self, trace: Trace, *arguments: Any) -> None:
        self.trace = trace
        with trace.span("start", "bench"):
            super().__init__(*arguments)

    def speeds(self) -> Speeds:
        with self.trace.span("peak", "bench") as said:
            found = super().speeds()
            said["gflops"] = found.gflops
        return found

    def finals(self, jobs: Sequence[Job], wait_s: float = 0.0) -> list[Trial]:
        kernels = len({job.plan.key for job in jobs})
        with self.trace.span("finals", "finals", kernels=kernels, candidates=len(jobs)):
            return super().finals(jobs, wait_s)

    def _compile(self, made: Any) -> dict[str, str]:
        with self.trace.span("compile", "compile", candidates=len(made)) as said:
            failed = super()._compile(made)
            said["failed"] = len(failed)
        return failed

    def _trial(self, job: Job, made: Any) -> Trial:
        with self.trace.span(job.plan.kernel.name, "trial", kernel=job.plan.key) as said:
            trial = super()._trial(job, made)
            said["schedule"] = job.schedule.to_json()
            found = {"us": trial.us, "samples": trial.samples, "noise": trial.noise}
            said |= found if trial.us is not None else {"reason": trial.reason}
        return trial


def of_run(command: str, parts: Iterable[Part], threads: int) -> Trace:
    """The trace of a run of a bundle: every launch on every thread."""
    trace = Trace(command)
    trace.events[1:] = [_named("thread_name", f"thread {t}", t) for t in range(threads)]
    for p in parts:
        trace.add(p.kernel, "launch", round(p.start_us, 3), p.us, p.thread, {"launch": p.launch})
    return trace


def of_stages(command: str, turns: Iterable[Turn], stages: int) -> Trace:
    """What the stages of a pipeline do when, as a model expects it."""
    trace = Trace(command)
    trace.events[1:] = [_named("thread_name", f"stage {s}", s) for s in range(stages)]
    for t in turns:
        way, us = "backward" if t.backward else "forward", t.start * 1e6
        name = f"{way} {t.batch}"
        trace.add(name, way, round(us, 3), t.end * 1e6 - us, t.stage, {"micro-batch": t.batch})
    return trace
