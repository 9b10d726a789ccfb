"""Compile a workload with lumc, pass by pass."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from workloads import Training, Workload

SUFFIXES = ("lg", "ls", "lp", "lk", "lb")
PASSES = ("search", "profile", "codegen", "link")


def compiled(
    work: Workload | Training, folder: Path, profile: str, precision: str = ""
) -> dict[str, Any]:
    """Make ``folder/model.lb`` unless it is there for this graph, these options and this lumc.

    ``precision`` is an option of the search. The artifacts of all passes stay in the folder, the
    records of the search beside it; the result has the seconds of each pass.
    """
    work.save_graph(folder / "model.lg")
    stamp, key = folder / "compiled.json", _key(folder / "model.lg", profile + precision)
    if stamp.exists():
        notes = dict(json.loads(stamp.read_text()))
        if notes["key"] == key:
            return notes
    seconds = {}
    files = [folder / f"model.{suffix}" for suffix in SUFFIXES]
    options = {"profile": [*profile.split(), f"--cache={folder.parent / 'records'}"]}
    options["search"] = precision.split()
    for name, (source, target) in zip(PASSES, itertools.pairwise(files), strict=True):
        seconds[name] = _run(name, *options.get(name, ()), str(source), "-o", str(target))
    notes = {"key": key, "profile": profile, "passes_s": seconds}
    stamp.write_text(json.dumps(notes))
    return notes


def _run(*arguments: str) -> float:
    """Seconds of one lumc command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "lumc", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"lumc {arguments[0]}: {done.stderr.strip()}")
    return time.perf_counter() - start


def _key(graph: Path, profile: str) -> str:
    import lumc

    assert lumc.__file__
    sources = [p for p in Path(lumc.__file__).parent.rglob("*") if p.suffix in (".py", ".c", ".h")]
    newest = max(p.stat().st_mtime_ns for p in sources)
    text = f"{newest} {profile} {graph.read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()
