"""The processes that run models: as many as there are seats, each of them with all models.

Models share the threads of these processes: what runs is one run of each process, whatever model
it is of. A process that ends is replaced, and what it ran is run once more; a bundle that is moved
to the path of another one is opened by new processes, which take the seats when all are ready.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.process import HANG, Lost, Process
from lumc.serve import worker
from lumc.serve.jobs import Broken, Job, Late, Piece, Queue, Talk
from lumc.serve.line import Line
from lumc.serve.spec import Prompt, Query, Sentences, Spec, stamp

OPEN_S = 600.0  # a bundle is hashed and mapped
LOOK_S = 0.5  # between two looks at a process that has nothing to do
WATCH_S = 1.0  # between two looks at the paths of the bundles
SOONEST_S, LATEST_S = 0.05, 5.0  # until a process that does not start is started again


@dataclass(frozen=True)
class Settings:
    """What every process is given, and how long a run may take."""

    paths: Mapping[str, str]  # of bundles, by the names of models
    device: str = ""
    threads: int = 1
    workers: int = 1
    batch: int = 8  # rows of several requests in one run, at most
    seconds: float = 60.0  # of a request
    tokenizers: Mapping[str, str] = field(default_factory=dict)  # by the names of models


@dataclass
class Heard:
    """What others want to know: functions that are called, in the loop."""

    ran: Callable[[str, int, float], None]  # a model, rows, seconds
    replaced: Callable[[], None]
    swapped: Callable[[], None]
    say: Callable[[str], None]


@dataclass(eq=False)
class Seat:
    """The line to a process, none while it is replaced; the next one, if there is one; the texts
    that it goes on with, at most one of a model."""

    line: Line | None = None
    coming: Line | None = None
    talks: deque[Talk] = field(default_factory=deque)


class Pool:
    """Start it, give it queries, stop it."""

    def __init__(self, settings: Settings, heard: Heard) -> None:
        self.settings, self.heard = settings, heard
        self.queue, self.specs = Queue(), dict[str, Spec]()
        self.seats = [Seat() for _ in range(settings.workers)]
        self.stamps = self._stamps()
        self.tasks = list[asyncio.Task[None]]()

    # ---- from outside

    @property
    def is_ready(self) -> bool:
        return any(seat.line for seat in self.seats)

    async def start(self) -> None:
        """Open all bundles. Raises what opening them raises."""
        for seat in self.seats:
            seat.line, self.specs = await self._open()
        self.tasks = [asyncio.create_task(self._work(seat)) for seat in self.seats]
        self.tasks.append(asyncio.create_task(self._watch()))

    async def ask(self, query: Query | Sentences) -> Any:
        """The outputs by name; of sentences their vectors and how many tokens each has. Raises
        LumcError of the run, Late, Broken."""
        job = self._job(query)
        self.queue.put(job)
        try:
            async with asyncio.timeout(self.settings.seconds):
                return await job.answer
        except TimeoutError:
            raise Late from None

    async def talk(self, prompt: Prompt) -> AsyncIterator[Piece]:
        """The text that follows, in pieces; the last one says why it ended. Raises LumcError, Late,
        Broken."""
        talk = Talk(prompt)
        self.queue.put(talk)
        try:
            while True:
                piece = await asyncio.wait_for(talk.pieces.get(), self.settings.seconds)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.ended:
                    return
        except TimeoutError:
            raise Late from None
        finally:
            talk.finish()  # whoever left does not wait for more

    async def stop(self) -> None:
        """End the processes, now."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for line in (one for seat in self.seats for one in (seat.line, seat.coming) if one):
            line.kill()

    # ---- jobs

    def _job(self, query: Query | Sentences) -> Job:
        if isinstance(query, Sentences):
            key: Hashable = query.model, query.truncate
            return Job(query, key, len(query.texts), self.settings.batch)
        rows = self.specs[query.model].entry(query.entry).rows
        count = worker.common_rows(query.inputs)
        most = min(rows[-1], max(self.settings.batch, rows[0])) if rows else 0
        if not 0 < count <= most:
            return Job(query, None, count, most)
        arrays = sorted((n, a.dtype.str, a.shape[1:]) for n, a in query.inputs.items())
        key = query.model, query.entry, tuple(sorted(query.dims.items())), tuple(arrays)
        return Job(query, key, count, most)

    async def _work(self, seat: Seat) -> None:
        while True:
            if seat.coming and not seat.talks:
                old, seat.line, seat.coming = seat.line, seat.coming, None
                if old:
                    old.kill()
            if seat.line is None or seat.line.is_cut:
                await self._replace(seat)
                continue
            if seat.talks:
                await self._go_on(seat, seat.line)
            busy = self.specs if seat.coming else {talk.model for talk in seat.talks}
            found = await self.queue.take(0 if seat.talks else LOOK_S, busy)
            if isinstance(found, Talk):
                seat.talks.append(found)
            elif found:
                await self._run(seat, seat.line, found)

    async def _run(self, seat: Seat, line: Line, jobs: list[Job]) -> None:
        start = asyncio.get_running_loop().time()
        try:
            said = await line.ask(question(jobs), self.settings.seconds)
        except Lost as e:
            await self._lost(seat, jobs, str(e))
            return
        seconds = asyncio.get_running_loop().time() - start
        if said[0] == worker.FINE:
            model = jobs[0].query.model
            self.heard.ran(model, sum(job.rows for job in jobs), seconds)
            for job, outputs in zip(jobs, said[1], strict=True):
                job.finish(outputs)
        elif len(jobs) > 1 and isinstance(jobs[0].query, Sentences):  # one of them is too long
            for job in jobs:
                await self._run(seat, seat.line or line, [job])
        else:
            for job in jobs:
                job.fail(error_of(said))

    async def _go_on(self, seat: Seat, line: Line) -> None:
        """A piece of the next text."""
        talk, seconds = seat.talks.popleft(), self.settings.seconds
        if talk.answer.done():
            return
        try:
            if talk.tokens < 0:
                said = await line.ask(("begin", talk.model, talk.prompt), seconds)
                if said[0] == worker.FINE:
                    talk.tokens = said[1]
            if talk.tokens >= 0:
                said = await line.ask(("go_on", talk.model), seconds)
        except Lost as e:
            seat.talks.append(talk)
            await self._lost(seat, [], str(e))
            return
        if said[0] != worker.FINE:
            talk.fail(error_of(said))
        elif not talk.hear(*said[1]):
            seat.talks.append(talk)

    async def _lost(self, seat: Seat, jobs: list[Job], why: str) -> None:
        """Run them once more, each alone, unless it was too slow or it is the second time."""
        self.heard.say(f"a worker was lost: {why}")
        hung = why.startswith(HANG)
        for job in jobs:
            if hung or job.tried:
                job.fail(Late() if hung else Broken())
        self.queue.again([job for job in jobs if not job.answer.done()])
        await self._replace(seat, hung)

    def _move_talks(self, seat: Seat, hung: bool) -> None:
        """Texts begin again in another process."""
        for talk in seat.talks:
            if hung or talk.tried:
                talk.fail(Late() if hung else Broken())
            talk.tokens, talk.again = -1, ""
        self.queue.again([talk for talk in seat.talks if not talk.answer.done()])
        seat.talks.clear()

    # ---- processes

    async def _replace(self, seat: Seat, hung: bool = False) -> None:
        """Until there is one that works."""
        if seat.line:
            seat.line.kill()
        self._move_talks(seat, hung)
        seat.line, pause = None, SOONEST_S
        self.heard.replaced()
        while seat.line is None and not seat.coming:
            try:
                seat.line, _ = await self._open()
            except (LumcError, Lost, OSError) as e:
                self.heard.say(f"a worker does not start: {e}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LATEST_S)

    async def _watch(self) -> None:
        """Take what is moved to the paths of bundles."""
        while True:
            await asyncio.sleep(WATCH_S)
            found = self._stamps()
            if found == self.stamps or () in found.values():
                continue
            self.stamps, opened = found, list[tuple[Line, dict[str, Spec]]]()
            try:
                for _ in self.seats:
                    opened.append(await self._open())
            except (LumcError, Lost, OSError) as e:
                self.heard.say(f"warning: what is new is not taken: {e}")
                for line, _ in opened:
                    line.kill()
                continue
            self.specs = opened[0][1]
            for seat, (line, _) in zip(self.seats, opened, strict=True):
                seat.coming = line
            self.heard.swapped()

    async def _open(self) -> tuple[Line, dict[str, Spec]]:
        """A new process with all bundles. Raises LumcError, Lost."""
        s = self.settings
        how = dict(s.paths), s.device, s.threads, dict(s.tokenizers)
        line = Line(Process(worker.serve, *how))
        try:
            said = await line.ask(("describe",), OPEN_S)
            if said[0] != worker.FINE:
                raise error_of(said)
        except BaseException:
            line.kill()
            raise
        return line, {spec.name: spec for spec in said[1]}

    def _stamps(self) -> dict[str, tuple[int, ...]]:
        return {name: stamp(Path(path)) for name, path in self.settings.paths.items()}


def question(jobs: list[Job]) -> tuple[Any, ...]:
    """What a process is asked to do for jobs that share a run."""
    first = jobs[0].query
    if isinstance(first, Sentences):
        texts = [job.query.texts for job in jobs if isinstance(job.query, Sentences)]
        return "embed", first.model, texts, first.truncate
    queries = [job.query for job in jobs if isinstance(job.query, Query)]
    batch = [(query.inputs, query.outputs) for query in queries]
    return "run", first.model, first.entry, first.dims, batch


def error_of(said: tuple[Any, ...]) -> LumcError:
    """The error that a worker sent."""
    _, code, what, where, fix, exit = said
    return LumcError(code, what, where=where, fix=fix, exit=Exit(exit))
