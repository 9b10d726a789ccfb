"""How many requests a server answers: `make load LOAD="model.lb --dim s=32"`.

Starts `lumc serve` on free ports of this machine, asks it with 1, 16 and 160 clients for some
seconds each, by `hey` (apt install hey, or brew), and compares with the bundle alone. Prints a line
for each as Markdown. Other options are those of `lumc serve`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lumc.graph.dim import bind
from lumc.graph.tensor import LiveTensor
from lumc.runtime.choose import open_bundle
from lumc.serve.tensors import NAMES, to_numbers

CLIENTS = (1, 16, 160)


class Load(NamedTuple):
    """What one number of clients saw."""

    clients: int
    answers: Counter[int]  # by status
    seconds: float
    p50_ms: float  # of those with 200
    p99_ms: float


def inputs_of(bundle: Any, dims: dict[str, int]) -> dict[str, Any]:
    """Ones, of the least lengths but for those that are given."""
    known = {name: d.values[0] for name, d in bundle.dims.items()} | dims
    out = {}
    for t in bundle.inputs:
        extents = t.extents if isinstance(t, LiveTensor) else t.shape
        shape = [int(str(bind(e, known))) for e in extents]
        out[t.name] = np.ones(shape, t.dtype.numpy)
    return out


def request(bundle: Any, inputs: dict[str, Any], outputs: Sequence[str]) -> str:
    """The same for the server; of the outputs these, all if there are none."""
    given = [
        {
            "name": t.name,
            "datatype": NAMES[t.dtype],
            "shape": inputs[t.name].shape,
            "data": to_numbers(inputs[t.name], t.dtype),
        }
        for t in bundle.inputs
    ]
    wanted = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return json.dumps({"inputs": given, **wanted})


def load(url: str, body: Path, clients: int, seconds: float) -> Load:
    """Ask for so long."""
    command = ["hey", "-z", f"{seconds}s", "-c", str(clients), "-m", "POST", "-t", "60"]
    command += ["-T", "application/json", "-D", str(body), "-o", "csv", url]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = time.perf_counter() - start
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    answers = Counter(int(r["status-code"]) for r in rows)
    times = [float(r["response-time"]) * 1e3 for r in rows if r["status-code"] == "200"]
    p50, p99 = np.percentile(times, [50, 99]) if times else (np.nan, np.nan)
    return Load(clients, answers, took, float(p50), float(p99))


def resident(pid: int) -> int:
    """Megabytes that a process and those that it started hold, shared pages counted once."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [pid, *(int(p) for f in children for p in f.read_text().split())]
    total = 0
    for one in pids:
        text = Path(f"/proc/{one}/smaps_rollup").read_text()
        total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])  # type: ignore[index]
    return total >> 10


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--output", action="append", default=[], help="repeatable; default: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each number of clients")
    parser.add_argument("--threads", type=int, default=1, help="of a run, served or bare")
    asked, more = parser.parse_known_args(arguments)
    if not shutil.which("hey"):
        print("load: hey is not installed: apt install hey", file=sys.stderr)
        return 7
    dims = {n: int(v) for n, _, v in (text.partition("=") for text in asked.dim)}
    with open_bundle(asked.bundle, say=print) as bundle:
        inputs = inputs_of(bundle, dims)
        body = request(bundle, inputs, asked.output)
        bare_ms = float(np.median(bundle.bench(inputs, "", asked.threads, 1.0))) / 1e3
    size = sum(f.stat().st_size for f in Path(asked.bundle).rglob("weights.safetensors")) >> 20
    with tempfile.TemporaryDirectory() as folder:
        said, sent = Path(folder) / "said", Path(folder) / "body.json"
        sent.write_text(body)
        command = [sys.executable, "-m", "lumc", "serve", f"model={asked.bundle}", "--http", "0"]
        command += ["--threads", str(asked.threads)]
        with said.open("w") as err:
            server = subprocess.Popen([*command, "--no-access-log", *more], stderr=err)
        try:
            while not (found := re.search(r"serving http at (\S+)", said.read_text())):
                if server.poll() is not None:
                    print(said.read_text(), file=sys.stderr)
                    return 1
                time.sleep(0.05)
            url = f"http://{found[1]}/v2/models/model/infer"
            load(url, sent, 4, 0.5)  # warm
            print(f"bare bundle: {bare_ms:.2f} ms, {1e3 / bare_ms:.0f} rows/s")
            print(
                "| clients | answers | rows/s | of bare | p50 ms | p99 ms |\n"
                + "|--:|---|--:|--:|--:|--:|"
            )
            for clients in CLIENTS:
                r = load(url, sent, clients, asked.seconds)
                rate = r.answers[200] / r.seconds
                codes = ", ".join(f"{n} x {code}" for code, n in sorted(r.answers.items()))
                times = f"{r.p50_ms:.2f} | {r.p99_ms:.2f}"
                print(
                    f"| {clients} | {codes} | {rate:.0f} | {rate * bare_ms / 1e3:.2f} | {times} |"
                )
            print(f"memory: {resident(server.pid)} MB, of which weights are {size} MB")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(70)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
