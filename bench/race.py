"""Time peers beside each other: short bursts in turn, each in its own process."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers import PEERS, environment

HERE = Path(__file__).parent
TOLERANCE = {True: 1e-4, False: 5e-2}  # of peers that compute in f32, and of the others
SLOW = 10  # times the best: sampled twice only
ROUNDS = 12
# Memory of a shared machine has moods that last for seconds. A minimum is one when it has stood for
# a third of the time; the times that decide a row are waited for, up to some budgets, and for as
# long where a peer that is close to the best usually takes this much more than its minimum.
CLOSE, FALL, STOOD, BUDGETS, MOODY = 1.25, 0.995, 1 / 3, 8, 1.25
Record = dict[str, Any]


class Died(Exception):
    """A worker ended or hung; the message says which."""


class Worker:
    """A peer's process. It lives for all workloads and is started again when it dies."""

    def __init__(self, peer: str, threads: int, folder: Path, profile: str) -> None:
        self.peer, self.command = peer, [str(HERE / "worker.py"), peer, str(threads), str(folder)]
        self.environment, self.log = environment(threads, profile), folder / f"{peer}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, limit: float = 60.0, **request: Any) -> Record:
        """Send a request and wait ``limit`` seconds for the reply."""
        process = self.process or self._start()
        assert process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
        ready, _, _ = select.select([process.stdout], [], [], limit)
        line = process.stdout.readline() if ready else b""
        if not line:
            self.close(kill=True)
            why = f"exit code {process.returncode}" if ready else f"no reply in {limit:.0f} s"
            raise Died(f"{why}; see {self.log}")
        return dict(json.loads(line))

    def _start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            bufsize=0,
            env=self.environment,
        )
        return self.process

    def close(self, kill: bool = False) -> None:
        if self.process is None:
            return
        if kill:
            self.process.kill()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        self.process = None


def prepare(worker: Worker, workload: str, limit: float) -> Record:
    """The peer's record: built and checked, or why not."""
    try:
        record = worker.ask(limit, workload=workload)
    except Died as e:
        return {"failed": str(e)}
    if record.get("error", 0) > TOLERANCE[PEERS[worker.peer].exact]:
        record["failed"] = f"wrong result: relative error {record['error']:.1e}"
    return record


def race(
    workload: str,
    workers: list[Worker],
    budget: float,
    limit: float,
    peak: Callable[[float], float],
) -> Record:
    """A row: every peer's record with its minimum and median, and the ``peak`` rate beside the
    burst with the least time, each over a run of the fastest.

    It takes ``budget`` seconds and ``ROUNDS`` at least - long runs meet as many moments as short
    ones - and goes on while a peer that is ``CLOSE`` to the best still finds faster moments, or
    is seldom as fast as it was."""
    peers = {w.peer: prepare(w, workload, limit) for w in workers}
    running = [w for w in workers if not {"missing", "failed"} & set(peers[w.peer])]
    best = min((peers[w.peer]["once_us"] for w in running), default=0.0)
    slow = {w.peer for w in running if peers[w.peer]["once_us"] > SLOW * best}
    burst = max(0.02, budget / max(len(running) - len(slow), 1) / ROUNDS)
    times: dict[str, list[float]] = {w.peer: [] for w in running}
    before, own, start, rounds = busy_seconds(), 0.0, time.monotonic(), 0
    rate, least, beside = peak(best), math.inf, 0.0
    minima, fell = dict.fromkeys(times, math.inf), start
    while running and (
        rounds < ROUNDS or not settled(time.monotonic(), start, fell, budget, is_moody(times))
    ):
        for worker in list(running):
            if worker.peer in slow and rounds >= 2:
                continue
            try:
                reply = worker.ask(limit, seconds=0 if worker.peer in slow else burst)
            except Died as e:
                peers[worker.peer]["failed"] = str(e)
                running.remove(worker)
                continue
            times[worker.peer] += reply["us"]
            probes, last, rate = spent_by_children(), rate, peak(best)
            own += reply["cpu_s"] + spent_by_children() - probes
            fastest = min(reply["us"])
            if fastest < FALL * minima[worker.peer]:
                minima[worker.peer] = fastest
                if fastest < CLOSE * least:
                    fell = time.monotonic()
            if fastest < least:
                least, beside = fastest, max(last, rate)
        running[:] = running[1:] + running[:1]  # another one begins the next round
        rounds += 1
    wall = time.monotonic() - start
    for worker in running:
        peers[worker.peer] |= summary(times[worker.peer])
    row: Record = {"workload": workload, "peers": peers, "beside": beside}
    if before is not None:
        others = (busy_seconds() or before) - before - own
        row["disturbed"] = max(0.0, others / wall / (os.cpu_count() or 1))
    return row


def settled(now: float, start: float, fell: float, budget: float, moody: bool) -> bool:
    """Whether the minima have stood for long enough since one of the best ``fell``."""
    taken = now - start
    if taken >= BUDGETS * budget:
        return True
    return taken >= budget and now - fell >= STOOD * taken and not moody


def is_moody(times: dict[str, list[float]]) -> bool:
    """Whether a peer that is close to the best usually takes much more than its minimum."""
    minima = {peer: min(us) for peer, us in times.items() if us}
    close = [p for p, us in minima.items() if us < CLOSE * min(minima.values())]
    return any(statistics.median(times[p]) > MOODY * minima[p] for p in close)


def summary(times: list[float]) -> Record:
    return {"min_us": min(times), "median_us": statistics.median(times), "samples": len(times)}


def spent_by_children() -> float:
    """CPU time of the processes that were waited for."""
    return os.times().children_user + os.times().children_system


def busy_seconds() -> float | None:
    """CPU time that everything on this machine has used so far, where the system tells."""
    try:
        fields = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
