"""A process that runs one peer with one number of threads; JSON lines on stdin and stdout.

worker.py PEER THREADS FOLDER
{"workload": ..} -> {"compile_s": .., "error": .., "once_us": .., ..}
                    or {"missing": why} or {"failed": why}
{"seconds": ..}  -> {"us": [..], "cpu_s": ..}: times of single calls for about this long
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from peers import PEERS, Program, aligned
from trainers import TRAINERS
from workloads import WORKLOADS, Training, Workload
from zoo.case import Exported

Reply = dict[str, Any]
Work = Workload | Training | Exported
# Who is slow is sampled twice only, and the first calls are no measure: threads that wait for a
# core took 8 ms where the next calls took 11 us.
SETTLE_S = 0.2


def prepare(peer: str, threads: int, folder: Path, name: str) -> tuple[Reply, Program, Work]:
    """Build, run once and compare with the reference. The workload owns the inputs' memory."""
    kept = folder / "cases" / name
    work = with_aligned_inputs(Exported(kept) if kept.exists() else WORKLOADS[name]())
    start = time.perf_counter()
    own = folder / peer / name
    own.mkdir(parents=True, exist_ok=True)
    build = TRAINERS[peer] if isinstance(work, Training) else PEERS[peer].build
    program = build(work, threads, own)
    program.call()
    reply = program.notes | {"compile_s": time.perf_counter() - start}
    reply["version"] = importlib.metadata.version(PEERS[peer].package)
    with np.load(folder / "reference" / f"{name}.npz") as wanted:
        got = program.fetch()
        errors = [relative_error(y, wanted[f"y{i}"]) for i, y in enumerate(got)]
    reply["error"] = max(errors)
    reply["once_us"] = min(sample(program.call, 0) + sample(program.call, SETTLE_S))
    return reply, program, work


def with_aligned_inputs(work: Work) -> Work:
    for name, value in work.inputs.items():
        work.inputs[name] = aligned(value.shape, value.dtype)
        work.inputs[name][...] = value
    return work


def relative_error(got: Any, want: np.ndarray) -> float:
    """L2 norm of the difference over the L2 norm of the reference."""
    difference = np.asarray(got, np.float64).reshape(want.shape) - want
    return float(np.linalg.norm(difference) / np.linalg.norm(want))


def sample(call: Callable[[], Any], seconds: float) -> list[float]:
    """Times of single calls in microseconds, at least one."""
    times, end = list[float](), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        stop = time.perf_counter()
        times.append((stop - start) * 1e6)
        if stop > end:
            return times


def settle() -> None:
    """Wait until the peer's threads sleep: many spin for a while after a call."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.001:
            return


def main() -> None:
    peer, threads, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    replies, sys.stdout = sys.stdout, sys.stderr  # what peers print must not mix with replies
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    program = work = None
    for line in sys.stdin:
        request = json.loads(line)
        reply: Reply
        if "workload" in request:
            program = work = None
            gc.collect()
            try:
                reply, program, work = prepare(peer, threads, folder, request["workload"])
            except ImportError as e:
                reply = {"missing": str(e)}
            except Exception as e:  # a peer's failure is a result
                reply = {"failed": f"{type(e).__name__}: {e}"}
        else:
            assert program is not None and work is not None
            before = time.process_time()
            reply = {"us": sample(program.call, request["seconds"])}
            reply["cpu_s"] = time.process_time() - before
        settle()
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
