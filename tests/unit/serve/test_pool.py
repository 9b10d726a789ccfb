"""Processes that run models: batches, processes that end, hang or are exchanged."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import failing_workers
from failing_workers import ENDS, HANGS, WRONG
from lumc.errors import LumcError
from lumc.serve import pool as pools
from lumc.serve.jobs import Broken, Full, Gate, Job, Late, Queue
from lumc.serve.pool import Heard, Pool, Settings
from lumc.serve.spec import Query


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools.worker, "serve", failing_workers.serve)
    monkeypatch.setattr(pools, "WATCH_S", 0.05)


class Said:
    """What a pool said."""

    def __init__(self) -> None:
        self.lines, self.rows, self.replaced, self.swapped = list[str](), list[int](), 0, 0

    def heard(self) -> Heard:
        return Heard(
            lambda model, rows, seconds: self.rows.append(rows),
            self._one,
            self._swap,
            self.lines.append,
        )

    def _one(self) -> None:
        self.replaced += 1

    def _swap(self) -> None:
        self.swapped += 1


def query(*values: float, model: str = "m", dtype: Any = np.float32) -> Query:
    return Query(model, "main", {"x": np.array(values, dtype)})


def run(
    folder: Path, do: Callable[[Pool, Said], Awaitable[None]], number: str = "1", **more: Any
) -> None:
    """``do`` with a pool of one model that adds a number."""
    (folder / "m").write_text(number)
    settings = Settings({"m": str(folder / "m")}, **{"seconds": 240.0, **more})

    async def whole() -> None:
        said = Said()
        pool = Pool(settings, said.heard())
        try:
            await pool.start()
            await do(pool, said)
        finally:
            await pool.stop()

    asyncio.run(whole())


async def at_last(pool: Pool, asked: Query) -> Any:
    """The answer: a process that is yet to start may take longer than a request may."""
    while True:
        with suppress(Late):
            return await pool.ask(asked)


def test_requests_that_wait_share_a_run(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        asked = [query(*range(n, n + 1 + n % 3)) for n in range(20)]
        found = await asyncio.gather(*map(pool.ask, asked))
        for q, out in zip(asked, found, strict=True):
            assert np.array_equal(out["y"], q.inputs["x"] + 1)
        assert sum(said.rows) == sum(len(q.inputs["x"]) for q in asked)
        assert max(said.rows) > 3 and max(said.rows) <= 8 and len(said.rows) < 12

    run(tmp_path, do)


def test_other_shapes_and_dtypes_and_dims_run_apart(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        other = Query("m", "main", {"x": np.zeros(2, np.float32)}, {"p": 1})
        asked = [query(1), query(2, dtype=np.float64), other, query(*range(9))]
        found = await asyncio.gather(*map(pool.ask, asked))
        assert [len(out["rows"]) for out in found] == [1, 1, 2, 9]

    run(tmp_path, do)


def test_a_batch_of_one(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        await asyncio.gather(*(pool.ask(query(n)) for n in range(5)))
        assert said.rows == [1] * 5

    run(tmp_path, do, batch=1)


def test_an_error_is_that_of_the_request(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        with pytest.raises(LumcError, match="does not fit"):
            await pool.ask(query(WRONG))
        assert (await pool.ask(query(1)))["y"] == 2 and not said.replaced

    run(tmp_path, do)


def test_a_request_that_ends_processes_takes_no_other_with_it(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        asked = [query(1), query(2), query(ENDS), query(3)]
        found = await asyncio.gather(*map(pool.ask, asked), return_exceptions=True)
        assert [type(f) for f in found] == [dict, dict, Broken, dict]
        assert [f["y"].tolist() for f in found if isinstance(f, dict)] == [[2], [3], [4]]
        assert said.replaced == 2  # of the batch, and of the one alone

    run(tmp_path, do)


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        for _ in range(2):
            pid = int((await pool.ask(query(1)))["pid"][0])
            os.kill(pid, signal.SIGKILL)
            found = await asyncio.wait_for(pool.ask(query(5)), 5)
            assert found["y"] == 6 and found["pid"][0] != pid

    run(tmp_path, do)


def test_a_process_that_is_killed_while_it_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.05)

    async def do(pool: Pool, said: Said) -> None:
        os.kill(int((await pool.ask(query(1)))["pid"][0]), signal.SIGKILL)
        while not said.replaced:
            await asyncio.sleep(0.02)
        assert not pool.is_ready
        assert (await pool.ask(query(1)))["y"] == 2 and pool.is_ready

    run(tmp_path, do)


def test_a_run_that_hangs_is_late_and_holds_up_nobody(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        first = asyncio.create_task(pool.ask(query(HANGS)))
        await asyncio.sleep(0.1)
        with pytest.raises(Late):
            await first
        assert (await asyncio.wait_for(at_last(pool, query(1)), 20))["y"] == 2

    run(tmp_path, do, seconds=1.0)


def test_what_is_larger_than_a_pipe_arrives(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        x = np.arange(1 << 20, dtype=np.float32) + 0.25
        found, small = await asyncio.gather(pool.ask(query(*x)), pool.ask(query(1)))
        assert np.array_equal(found["y"], x + 1) and small["y"] == 2

    run(tmp_path, do)


def test_a_stopped_process_holds_up_nobody_who_sends_much(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        os.kill(int((await pool.ask(query(1)))["pid"][0]), signal.SIGSTOP)
        asked = asyncio.create_task(pool.ask(query(*np.zeros(1 << 20))))
        for _ in range(10):  # the loop goes on
            await asyncio.sleep(0.01)
        with pytest.raises(Late):
            await asked
        assert (await asyncio.wait_for(at_last(pool, query(1)), 20))["y"] == 2

    run(tmp_path, do, seconds=2.0)


def test_several_processes_run_at_the_same_time(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        waiting = asyncio.create_task(pool.ask(query(HANGS)))
        await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(pool.ask(query(1)), 5))["y"] == 2
        waiting.cancel()

    run(tmp_path, do, workers=2)


def test_a_bundle_that_is_exchanged(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        assert (await pool.ask(query(1)))["y"] == 2
        (tmp_path / "new").write_text("bad")
        (tmp_path / "new").rename(tmp_path / "m")
        while not said.lines:
            await asyncio.sleep(0.02)
        assert "not taken" in said.lines[0] and "it is bad" in said.lines[0]
        assert (await pool.ask(query(1)))["y"] == 2
        (tmp_path / "new").write_text("10")
        (tmp_path / "new").rename(tmp_path / "m")
        while not said.swapped:
            assert (await pool.ask(query(1)))["y"] in (2, 11)
        while (await pool.ask(query(1)))["y"] == 2:
            pass
        assert (await pool.ask(query(1)))["y"] == 11 and not said.replaced

    run(tmp_path, do, workers=2)


def test_a_bundle_that_cannot_be_opened(tmp_path: Path) -> None:
    async def do(pool: Pool, said: Said) -> None:
        raise AssertionError("it started")

    with pytest.raises(LumcError, match="it is bad"):
        run(tmp_path, do, number="bad")


def test_the_gate() -> None:
    gate = Gate(2)
    with gate.pass_(), gate.pass_():
        with pytest.raises(Full), gate.pass_():
            pass
        assert gate.inside == 2
    assert gate.inside == 0


def test_who_does_not_wait_any_more_is_not_run() -> None:
    async def whole() -> None:
        queue = Queue()
        jobs = [Job(query(n), "k", 1, 8) for n in range(4)]
        for job in jobs:
            queue.put(job)
        jobs[0].answer.cancel()
        jobs[2].answer.cancel()
        assert await queue.take(1) == [jobs[1], jobs[3]]
        assert await queue.take(0.01) == []

    asyncio.run(whole())
