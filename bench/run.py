"""Time lumc beside its peers; print tables, write bench.json and bench.svg."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import chart
import limits
import report
from peers import PEERS
from race import Worker, race
from trainers import TRAINERS
from workloads import WORKLOADS, Training, Workload
from zoo.case import Case, Exported, cases, export

Row = dict[str, Any]
HERE = Path(__file__).parent
# What a suite of the zoo is measured with: the peers that read ONNX, or are the source of it.
ZOO_PEERS = ("lumc", "onnxruntime", "openvino", "torch")
ZOO_PROFILE = {"operators": "--budget 15s --threads {threads}", "networks": "--threads {threads}"}


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    threads = [n for n in args.threads or [1, 2] if n <= (os.cpu_count() or 1)]
    suite: dict[str, Any] = WORKLOADS if args.suite == "bench" else cases()[args.suite]
    names = [n for n in suite if any(fnmatch(n, p) for p in args.only or ["*"])]
    if not names:
        raise SystemExit(f"bench: no workload of '{args.suite}' is named {' or '.join(args.only)}")
    machine = {"cpu": processor(), "date": time.strftime("%Y-%m-%d"), "limits": {}}
    machine["commit"] = commit()
    done: list[Row] = []
    if args.resume_json and args.resume_json.exists():
        earlier = json.loads(args.resume_json.read_text())
        done = earlier.pop("rows")
        machine |= earlier
    known = {(row["workload"], row["threads"]) for row in done}
    todo = [(n, w) for n in threads for w in names if (w, n) not in known]
    if todo:
        machine["limits"] |= limits.measure(sorted({n for n, _ in todo}), args.out)
    try:
        for n in threads:
            own = [w for m, w in todo if m == n]
            if own:
                time_all(suite, own, n, machine, done, args)
    except KeyboardInterrupt:
        print("bench: interrupted; the rows so far:", file=sys.stderr)
    show([row for row in done if row["workload"] in names], machine, args.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--suite",
        choices=("bench", *ZOO_PROFILE),
        default="bench",
        help="the bench's own workloads, or those of the zoo, which need torch and transformers",
    )
    parser.add_argument(
        "--only", action="append", metavar="WORKLOAD", help="a name or a pattern; repeatable"
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=PEERS,
        help="repeatable; default: all that are exact; for the zoo " + ", ".join(ZOO_PEERS),
    )
    parser.add_argument("--threads", action="append", type=int, help="repeatable; default 1, 2")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of sampling per row")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds to build a workload")
    parser.add_argument(
        "--profile",
        help="options of 'lumc profile'; {threads} is replaced (default: --threads {threads}, and "
        "so the time that lumc takes by default; 15 s for operators of the zoo)",
    )
    parser.add_argument(
        "--resume-json", type=Path, metavar="FILE", help="keep its rows, measure the others"
    )
    parser.add_argument("--resume", action="store_true", help="keep the rows of bench.json in OUT")
    parser.add_argument("--out", type=Path, help="a folder (default: build/bench or build/zoo/..)")
    args = parser.parse_args()
    zoo = args.suite != "bench"
    args.profile = args.profile or ZOO_PROFILE.get(args.suite, "--threads {threads}")
    kind = args.suite + "-estimate" * ("--estimate" in args.profile)
    args.out = args.out or Path("build", "zoo", kind) if zoo else args.out or Path("build/bench")
    args.peer = args.peer or [
        p for p, peer in PEERS.items() if (p in ZOO_PEERS if zoo else peer.exact)
    ]
    if args.resume:
        args.resume_json = args.out / "bench.json"
    return args


def commit() -> str:
    """The commit that is measured, with a mark where the tree has more than it."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip()


def time_all(
    suite: dict[str, Any],
    names: list[str],
    threads: int,
    machine: Row,
    done: list[Row],
    args: argparse.Namespace,
) -> None:
    """Race every workload; each row is written as soon as it is there."""
    folder = args.out.resolve()
    workers = [Worker(p, threads, folder, args.profile) for p in args.peer]
    machine_limits = machine["limits"][str(threads)]
    try:
        for name in names:
            try:
                work = made(suite[name], folder)
                own = taking(work, workers)
                write_reference(name, work, folder)
            except (ImportError, RuntimeError) as e:
                print(f"bench: {name} skipped: {e}", file=sys.stderr)
                continue
            row = {"threads": threads, "flops": work.flops, "cpu": machine["cpu"]}
            row |= {"date": time.strftime("%Y-%m-%d"), "commit": commit()}
            row |= {"reads": work.reads, "writes": work.writes}
            which = limits.to_probe(row, machine_limits)
            peak = partial(limits.now, which, threads, folder)
            row |= race(name, own, args.budget, args.limit, peak)
            row[which] = row.pop("beside")
            row |= limits.roofline(row, machine_limits)
            workers = without_missing(row, workers)
            done.append(row)
            progress(row)
            text = json.dumps(machine | {"rows": done}, indent=1)
            (args.out / "bench.json").write_text(text)
    finally:
        for worker in workers:
            worker.close()


def without_missing(row: Row, workers: list[Worker]) -> list[Worker]:
    """Name the peers that are not installed once, and leave them out from now on."""
    kept = []
    for worker in workers:
        why = row["peers"].get(worker.peer, {}).get("missing")
        if why is None:
            kept.append(worker)
        else:
            print(f"bench: {worker.peer} skipped: {why}", file=sys.stderr)
            worker.close()
    return kept


def made(entry: Any, folder: Path) -> Workload | Training | Exported:
    """A workload; a case of the zoo is written into cases/NAME for all peers."""
    if not isinstance(entry, Case):
        work: Workload | Training = entry()
        return work
    export(entry, folder / "cases" / entry.name)
    return Exported(folder / "cases" / entry.name)


def taking(work: Workload | Training | Exported, workers: list[Worker]) -> list[Worker]:
    """The peers that can do it; raises RuntimeError if there are none."""
    found = [w for w in workers if not isinstance(work, Training) or w.peer in TRAINERS]
    if not found:
        raise RuntimeError(f"only {', '.join(TRAINERS)} train")
    return found


def write_reference(name: str, work: Workload | Training | Exported, folder: Path) -> None:
    """The float64 outputs in reference/NAME.npz, computed once."""
    sources = [HERE / "ops" / "reference.py", *sorted((HERE / "workloads").glob("*.py"))]
    key = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()
    key = work.key if isinstance(work, Exported) else key
    path = folder / "reference" / f"{name}.npz"
    if path.exists():
        with np.load(path) as stored:
            if str(stored["key"]) == key:
                return
    path.parent.mkdir(exist_ok=True)
    np.savez(path, key=key, **{f"y{i}": y for i, y in enumerate(work.reference())})


def progress(row: Row) -> None:
    v = report.verdict(row)
    line = f"{v.workload:20} {row['threads']}  lumc {report.milliseconds(v.mine_us):>8} ms"
    line += f"  {report.share(v.share):>4}   {v.best:12} {report.milliseconds(v.best_us):>8} ms"
    print(f"{line}  ratio {v.ratio:.2f}", file=sys.stderr)
    for name, record in row["peers"].items():
        if "failed" in record:
            print(f"  {name} failed: {record['failed'][:400]}", file=sys.stderr)


def show(rows: list[Row], machine: Row, out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    order = {name: i for i, name in enumerate(WORKLOADS)}
    rows = sorted(rows, key=lambda r: order.get(r["workload"], len(order)))
    rows = [r | limits.roofline(r, machine["limits"][str(r["threads"])]) for r in rows]
    for n in sorted({row["threads"] for row in rows}):
        own = [row for row in rows if row["threads"] == n]
        console.print(report.main_table(own, n))
        console.print(report.peer_table(own, n))
    for n, limit in machine["limits"].items():
        values = ", ".join(f"{k} {v:g}" for k, v in limit.items() if k != "threads")
        console.print(f"{machine['cpu']}, {n} thread{'s' * (int(n) > 1)}: {values}")
    (out / "bench.svg").write_text(chart.draw(rows))
    (out / "bench.md").write_text(report.markdown(rows))
    console.print(", ".join(str(out / f"bench.{kind}") for kind in ("json", "svg", "md")))


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
