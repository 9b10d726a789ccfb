"""What is asked for and not yet answered: a queue with an end, of which a run takes what fits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from lumc.serve.spec import Query


class Full(Exception):
    """More is asked for than may wait."""


class Late(Exception):
    """There was no answer in time."""


class Broken(Exception):
    """The process that ran it ended, and the next one too."""


class Gate:
    """How many requests may be inside: what is read of them, what waits and what runs. This bounds
    the memory that strangers can have, and how long an answer takes."""

    def __init__(self, most: int) -> None:
        self.most, self.inside = most, 0

    @contextmanager
    def pass_(self) -> Iterator[None]:
        """Raises Full."""
        if self.inside >= self.most:
            raise Full
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


@dataclass(eq=False)
class Job:
    """A query that waits. Jobs of equal ``key`` may share a run while their ``rows`` fit; a job
    without a key runs alone, as one does whose first process ended while it ran."""

    query: Query
    key: Hashable
    rows: int
    most: int  # rows of a run
    answer: asyncio.Future[Any] = field(default_factory=lambda: new_future())
    tried: bool = False

    def finish(self, value: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(value)

    def fail(self, why: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(why)


def new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


class Queue:
    """Jobs in the order in which they came."""

    def __init__(self) -> None:
        self.jobs, self.more = deque[Job](), asyncio.Event()

    def __len__(self) -> int:
        return len(self.jobs)

    def put(self, job: Job) -> None:
        self.jobs.append(job)
        self.more.set()

    def again(self, jobs: list[Job]) -> None:
        """These first, each of them alone."""
        for job in reversed(jobs):
            job.key, job.tried = None, True
            self.jobs.appendleft(job)
        self.more.set()

    async def take(self, seconds: float) -> list[Job]:
        """The first job, and those behind it that may share its run; [] if none comes in time.
        Jobs that nobody waits for any more are dropped."""
        if not self.jobs:
            self.more.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.more.wait(), seconds)
        return self._batch()

    def _batch(self) -> list[Job]:
        while self.jobs and self.jobs[0].answer.done():
            self.jobs.popleft()
        if not self.jobs:
            return []
        first = self.jobs.popleft()
        batch, rows = [first], first.rows
        for job in list(self.jobs) if first.key is not None else ():
            if rows >= first.most:
                break
            fits = job.key == first.key and rows + job.rows <= first.most
            if fits and not job.answer.done():
                self.jobs.remove(job)
                batch.append(job)
                rows += job.rows
        return batch
