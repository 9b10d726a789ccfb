"""What is asked for and not yet answered: a queue with an end, of which a run takes what fits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lumc.serve.spec import Prompt, Query, Sentences


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

    @contextmanager
    def still(self) -> Iterator[None]:
        """Who was let in stays inside for longer."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


@dataclass(eq=False)
class Job:
    """What waits. Jobs of equal ``key`` may share a run while their ``rows`` fit; a job without a
    key runs alone, as one does whose first process ended while it ran."""

    query: Query | Sentences
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


@dataclass(eq=False)
class Talk:
    """A text that goes on, piece by piece, in one process. If that ends, the text is written once
    more in another one, where it becomes the same; what was ``sent`` is not sent again."""

    prompt: Prompt
    pieces: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)
    answer: asyncio.Future[None] = field(default_factory=lambda: new_future())  # until it is over
    sent: str = ""
    again: str = ""  # of what was sent, what the second process has written
    tokens: int = -1  # of the prompt, since it began
    tried: bool = False

    @property
    def model(self) -> str:
        return self.prompt.model

    def hear(self, text: str, ended: str, made: int) -> bool:
        """A piece that the process has written; whether it was the last one."""
        missing = len(self.sent) - len(self.again)
        self.again += text[:missing] if missing > 0 else ""
        if not self.sent.startswith(self.again) or (ended and len(self.again) < len(self.sent)):
            self.fail(Broken())  # it became another one
            return True
        new = text[max(missing, 0) :]
        if new or ended:
            self.sent, self.again = self.sent + new, self.again + new
            self.pieces.put_nowait(Piece(new, ended, self.tokens, made))
        if ended:
            self.finish()
        return bool(ended)

    def finish(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def fail(self, why: Exception) -> None:
        self.pieces.put_nowait(why)
        self.finish()


class Piece(NamedTuple):
    """More of a text; why it ended, or ""; the tokens of its prompt, and those made so far."""

    text: str
    ended: str
    tokens: int
    made: int


def new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


class Queue:
    """Jobs in the order in which they came."""

    def __init__(self) -> None:
        self.jobs, self.more = deque[Job | Talk](), asyncio.Event()

    def __len__(self) -> int:
        return len(self.jobs)

    def put(self, job: Job | Talk) -> None:
        self.jobs.append(job)
        self.more.set()

    def again(self, jobs: Sequence[Job | Talk]) -> None:
        """These first, each of them alone."""
        for job in reversed(jobs):
            job.tried = True
            if isinstance(job, Job):
                job.key = None
            self.jobs.appendleft(job)
        self.more.set()

    async def take(self, seconds: float, busy: Collection[str] = ()) -> list[Job] | Talk:
        """The first job, and those behind it that may share its run, or the first text that goes
        on, of a model that is not ``busy``; [] if none comes in time. What nobody waits for any
        more is dropped."""
        if not self.jobs and seconds:
            self.more.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.more.wait()
        for job in [job for job in self.jobs if job.answer.done()]:
            self.jobs.remove(job)
        free = (j for j in self.jobs if not (isinstance(j, Talk) and j.model in busy))
        first = next(free, None)
        if first is None:
            return []
        self.jobs.remove(first)
        return first if isinstance(first, Talk) else self._batch(first)

    def _batch(self, first: Job) -> list[Job]:
        batch, rows = [first], first.rows
        for job in list(self.jobs) if first.key is not None else ():
            if rows >= first.most:
                break
            if isinstance(job, Job) and job.key == first.key and rows + job.rows <= first.most:
                self.jobs.remove(job)
                batch.append(job)
                rows += job.rows
        return batch
