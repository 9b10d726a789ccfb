"""The machine's limits, measured by ``limits.c``, and what they allow a workload."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ["-O2", "-funroll-loops", "-ffp-contract=fast", "-march=native", "-pthread"]
PROBE_US = 60e3  # of multiply-adds between the bursts of a race: a try may be interrupted
STEP_US = 2.5e-3  # of one step, about
IN_CACHE = 24 << 20  # bytes: less than this is taken to stay in the last cache between runs
Limits = dict[str, float]


def measure(threads: list[int], folder: Path, tries: int = 3) -> dict[str, Limits]:
    """Per number of threads; the best values seen in this folder so far, as noise only lowers
    them."""
    names = (os.environ.get("CC", ""), "gcc", "cc", "clang")
    compiler = next((c for c in names if shutil.which(c)), None)
    if compiler is None:
        raise SystemExit("bench: no C compiler found")
    program, store = folder / "limits", folder / "limits.json"
    subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(program)], check=True)
    known = json.loads(store.read_text()) if store.exists() else {}
    for n in threads:
        for _ in range(tries):
            out = subprocess.run([str(program), str(n)], capture_output=True, check=True).stdout
            seen, new = known.get(str(n), {}), json.loads(out)
            known[str(n)] = {k: max(v, seen.get(k, 0)) for k, v in new.items()}
    store.write_text(json.dumps(known, indent=1))
    return {str(n): known[str(n)] for n in threads}


def now(which: str, threads: int, folder: Path, us: float) -> float:
    """One limit of this moment, after ``measure``: clocks wander, and so does the memory of a
    shared machine. Multiply-adds are sustained for ``us`` microseconds, as they are faster for a
    short while more often than for a long one."""
    us = max(us, 1e3)
    steps = [max(2, math.ceil(PROBE_US / us)), round(us / STEP_US)]
    of = steps if which == "fma_gflops" else [which.removesuffix("_gbs")]
    command = [str(folder / "limits"), *map(str, (threads, *of))]
    out = subprocess.run(command, capture_output=True, check=True).stdout
    return float(json.loads(out)[which])


def memory(row: dict[str, Any], limits: Limits) -> str:
    """The limit that the memory of a row meets."""
    total = row["reads"] + row["writes"]
    if total < IN_CACHE:
        return "cache_gbs"
    reads = row["writes"] < 0.1 * total or limits["read_gbs"] > limits["copy_gbs"]
    return "read_gbs" if reads else "copy_gbs"


def to_probe(row: dict[str, Any], limits: Limits) -> str:
    """The limit to measure beside a row: that of memory if it binds, else multiply-adds."""
    which = memory(row, limits)
    binds = roofline(row, limits)["bound"] == "memory" and which != "cache_gbs"
    return which if binds else "fma_gflops"


def roofline(row: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The time that no f32 program can beat, and which limit it is; a limit that was seen beside
    the fastest call of this row counts in the place of the one of the whole run."""
    which = memory(row, limits)
    limits = limits | {k: row[k] for k in limits if row.get(k)}
    compute = row["flops"] / limits["fma_gflops"] * 1e-3
    memory_us = (row["reads"] + row["writes"]) / limits[which] * 1e-3
    bound = "compute" if compute >= memory_us else "memory"
    return {"roofline_us": max(compute, memory_us), "bound": bound}
