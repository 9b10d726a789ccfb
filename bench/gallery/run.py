"""Take every entry of the gallery from its export to a checked run; make docs/gallery.md of it.

    make gallery GALLERY="--only 'silero*' --again"

Rows lie in docs/gallery.json. One that is there is kept, unless it failed or is asked for again;
a run that was interrupted goes on. What is made stays under build/gallery, 26 GB of all entries, so
that times that were left out can be measured later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gallery import table
from gallery.entry import networks
from gallery.real import SHIPPED
from gallery.steps import WAYS, place
from run import commit, processor

Row = dict[str, Any]
BENCH = Path(__file__).parent.parent
ROOT = BENCH.parent
LUMC = [sys.executable, "-m", "lumc"]
STEPS = [sys.executable, "-m", "gallery.steps"]
SECONDS = 1800.0  # for one step of an entry
OBJECTS = ""  # the folder of compiled objects: none, a row takes what a first compile takes


class Failed(Exception):
    """A step did not succeed; what it said at last."""


def main() -> int:
    parser = argparse.ArgumentParser("make gallery", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="a pattern; repeatable")
    parser.add_argument("--again", action="store_true", help="rows that are there, too")
    parser.add_argument(
        "--way", choices=[*WAYS, "torch"], default="onnx", help="how models arrive (onnx)"
    )
    parser.add_argument("--untimed", action="store_true", help="no times of runs: others are busy")
    parser.add_argument("--list", action="store_true", help="only name what there is")
    parser.add_argument("--packages", action="store_true", help="only name packages with files")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gallery")
    args = parser.parse_args()
    if args.packages:
        print("\n".join(sorted({s.package for s in SHIPPED})))
        return 0
    missing = {s.name: s.package for s in SHIPPED if s.path() is None}
    names = [n for n in entries(args.way) if any(fnmatch(n, p) for p in args.only or ["*"])]
    if not names:
        raise SystemExit(f"gallery: nothing is named {' or '.join(args.only)}")
    if args.list:
        print("\n".join(names))
        return 0
    rows, untimed = table.read(), args.untimed or args.way != "onnx"
    for name in (n for n in names if n in missing and (n, args.way) not in rows):
        print(f"{name:28} skipped: {missing[name]} is not installed (make gallery-files)")
    for name in (n for n in names if n not in missing):
        before = rows.get((name, args.way))
        if before and before["ok"] and not args.again and (untimed or "us" in before):
            continue
        folder = args.out.resolve() / (f"{name}.codes" if args.way == "codes" else name)
        if before and before["ok"] and not args.again and (folder / "model.lb").exists():
            row = before | timed(folder)
        else:
            row = attempt(name, args.way, folder, untimed)
        rows[name, args.way] = row
        print(table.line(row), flush=True)
        table.write(rows)
    names = [n for n in names if n not in missing or (n, args.way) in rows]
    bad = [n for n in names if not rows.get((n, args.way), {}).get("ok")]
    print(f"gallery: {len(names) - len(bad)} of {len(names)} are right")
    return int(bool(bad))


def entries(way: str) -> list[str]:
    """What can go this way: packages ship ONNX, and codes are those of files that round."""
    if way == "codes":
        return [s.name for s in SHIPPED if s.rounds]
    return [*networks(), *(s.name for s in SHIPPED if way == "onnx")]


def measured() -> str:
    """The commit; rows that are made do not change what is measured."""
    name = commit().removesuffix("-dirty")
    command = ["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs/gallery.*"]
    return name + "-dirty" * bool(subprocess.run(command, cwd=ROOT).returncode)


def timed(folder: Path) -> Row:
    """What was left out of a row that is right."""
    return dict(json.loads(done([*STEPS, "check", str(folder), "onnx"])["said"]))


def attempt(name: str, way: str, folder: Path, untimed: bool = False) -> Row:
    """The row of an entry: what was measured, or what failed."""
    row: Row = {"name": name, "way": way, "cpu": processor(), "date": time.strftime("%Y-%m-%d")}
    row |= {
        "commit": measured(),
        "source": next((s.package for s in SHIPPED if s.name == name), ""),
    }
    step = "write"
    try:
        if way == "torch":
            step = "torch.compile"
            row |= json.loads(done([*STEPS, "torch", name, str(folder)])["said"])
        else:
            done([*STEPS, "write", name, str(folder), way])
            if way != "pt2":
                row["onnx_nodes"] = onnx_nodes(folder / "model.onnx")
            graph, bundle = place(folder, way)
            step = "import"
            row["import"] = done([*LUMC, *WAYS[way](folder, graph)])
            row["nodes"] = count(graph)
            step = "compile"
            how = ["--estimate", "--threads", "1", "-v"]
            row |= compiled([*LUMC, "compile", str(graph), *how, "-o", str(bundle)])
            row["kernels"] = kernels(bundle)
            step = "check"
            words = ["untimed"] if untimed else []
            row |= json.loads(done([*STEPS, "check", str(folder), way, *words])["said"])
        if not row["ok"]:
            row["failed"] = "check: wrong"
    except Failed as e:
        row |= {"ok": False, "failed": f"{step}: {e}"}
    for part in (row.get("import", {}), row):
        part.pop("said", None)
    return row


def done(command: Sequence[str]) -> Row:
    """Seconds, seconds of the processor and MB at most of a command and what it starts. Raises
    Failed."""
    env = {**os.environ, "LUMC_OBJECTS": OBJECTS, "PYTHONPATH": path()}
    start = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failed(f"more than {SECONDS:.0f} s") from None
    wall = time.perf_counter() - start
    if process.returncode:
        raise Failed(f"exit {process.returncode}: {reason(err)}"[:300])
    return {"s": round(wall, 2), "said": out, "errors": err}


def reason(errors: str) -> str:
    """The line that says why: of an error of lumc, or of the first exception; else the last one."""
    lines = [s for s in errors.strip().splitlines() if s.strip()]
    named = (s for s in lines if re.match(r"E\d{4} |(\w+\.)*\w*(Error|Unsupported)\b", s))
    return next(named, lines[-1] if lines else "")


def path() -> str:
    """Where modules are found: those of the bench before others."""
    return os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])


def compiled(command: Sequence[str]) -> Row:
    """What a compile takes, in a process that waits for nothing else."""
    code = "import json, resource, subprocess, sys\n"
    code += "done = subprocess.run(sys.argv[1:])\n"
    code += "u = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    code += "print(json.dumps([done.returncode, u.ru_utime + u.ru_stime, u.ru_maxrss]))\n"
    found = done([sys.executable, "-c", code, *command])
    status, cpu_s, kilobytes = json.loads(found["said"].strip().splitlines()[-1])
    if status:
        raise Failed(f"exit {status}: {reason(found['errors'])}"[:300])
    passes = dict(re.findall(r"^(\w+) +([0-9.]+) s$", found["errors"], re.MULTILINE))
    row: Row = {"compile_s": found["s"], "cpu_s": round(cpu_s, 2), "mb": kilobytes // 1024}
    return row | {"passes_s": {k: float(v) for k, v in passes.items()}}


def count(graph: Path) -> int:
    """Nodes of a graph."""
    return sum(bool(re.match(r"\w+ \w+\[.*\] = ", s)) for s in graph.read_text().splitlines())


def onnx_nodes(model: Path) -> int:
    """Those of an ONNX model, with those inside of others."""
    import onnx

    def inside(graph: Any) -> int:
        below = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
        return len(graph.node) + sum(map(inside, below))

    return inside(onnx.load(model, load_external_data=False).graph)


def kernels(bundle: Path) -> int:
    return len(re.findall(r'"symbol"', (bundle / "manifest.json").read_text())) or -1


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
