"""Time lumc beside its peers; print tables, write bench.json and bench.svg."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import time
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
from workloads import WORKLOADS, Workload

Row = dict[str, Any]
HERE = Path(__file__).parent


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    threads = [n for n in args.threads or [1, 2] if n <= (os.cpu_count() or 1)]
    names = args.only or list(WORKLOADS)
    machine = {"cpu": processor(), "date": time.strftime("%Y-%m-%d"), "limits": {}}
    done: list[Row] = []
    if args.resume_json:
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
                time_all(own, n, machine, done, args)
    except KeyboardInterrupt:
        print("bench: interrupted; the rows so far:", file=sys.stderr)
    show(done, machine, args.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="repeatable")
    parser.add_argument(
        "--peer", action="append", choices=PEERS, help="repeatable; default: all that are exact"
    )
    parser.add_argument("--threads", action="append", type=int, help="repeatable; default 1, 2")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of sampling per row")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds to build a workload")
    parser.add_argument(
        "--profile",
        default="--threads {threads}",
        help="options of 'lumc profile'; {threads} is replaced (default: %(default)s, and so the "
        "time that lumc takes by default)",
    )
    parser.add_argument(
        "--resume-json", type=Path, metavar="FILE", help="keep its rows, measure the others"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    return parser.parse_args()


def time_all(
    names: list[str], threads: int, machine: Row, done: list[Row], args: argparse.Namespace
) -> None:
    """Race every workload; each row is written as soon as it is there."""
    chosen = args.peer or [p for p, peer in PEERS.items() if peer.exact]
    folder = args.out.resolve()
    workers = [Worker(p, threads, folder, args.profile) for p in chosen]
    machine_limits = machine["limits"][str(threads)]
    try:
        for name in names:
            try:
                work = WORKLOADS[name]()
            except ImportError as e:
                print(f"bench: {name} skipped: {e}", file=sys.stderr)
                continue
            write_reference(name, work, folder)
            row = {"threads": threads, "flops": work.flops}
            row |= {"reads": work.reads, "writes": work.writes}
            which = limits.to_probe(row, machine_limits)
            peak = partial(limits.now, which, threads, folder)
            row |= race(name, workers, args.budget, args.limit, peak)
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
        why = row["peers"][worker.peer].get("missing")
        if why is None:
            kept.append(worker)
        else:
            print(f"bench: {worker.peer} skipped: {why}", file=sys.stderr)
            worker.close()
    return kept


def write_reference(name: str, work: Workload, folder: Path) -> None:
    """The float64 outputs in reference/NAME.npz, computed once."""
    sources = [HERE / "ops" / "reference.py", *sorted((HERE / "workloads").glob("*.py"))]
    key = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()
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
    rows = sorted(rows, key=lambda r: order[r["workload"]])
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
