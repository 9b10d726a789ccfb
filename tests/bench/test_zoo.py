"""The zoo's harness: cases on disk are workloads for every peer, and rows become a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

BENCH = Path(__file__).parents[2] / "bench"


def case(folder: Path) -> None:
    """``y0 = relu(in0 @ in1)`` as torch would have exported it."""
    rng, shapes = np.random.default_rng(0), {"in0": (5, 7), "in1": (7, 3)}
    inputs = {k: rng.standard_normal(s, dtype=np.float32) for k, s in shapes.items()}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", [*inputs], ["m"]), helper.make_node("Relu", ["m"], ["y0"])],
        "case",
        [value(k, TensorProto.FLOAT, s) for k, s in shapes.items()],
        [value("y0", TensorProto.FLOAT, (5, 3))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    want = np.maximum(np.matmul(*(a.astype(np.float64) for a in inputs.values())), 0)
    np.savez(folder / "inputs.npz", **inputs)
    for kept in (folder / "reference.npz", folder.parent.parent / "reference" / "case.npz"):
        kept.parent.mkdir(exist_ok=True)
        np.savez(kept, y0=want)
    facts = {"key": "k", "flops": 210, "reads": 224, "writes": 60}
    (folder / "facts.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("peer", ["lumc", "onnxruntime"])
def test_a_case_on_disk_is_built_checked_and_timed(peer: str, tmp_path: Path) -> None:
    case(tmp_path / "cases" / "case")
    lines = [{"workload": "case"}, {"seconds": 0.01}]
    done = subprocess.run(
        [sys.executable, str(BENCH / "worker.py"), peer, "1", str(tmp_path)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env={**os.environ, "BENCH_PROFILE": "--estimate --threads {threads}"},
        capture_output=True,
        text=True,
    )
    built, timed = map(json.loads, done.stdout.splitlines())
    assert built["error"] < 1e-6, built
    assert min(timed["us"]) > 0


def row(name: str, threads: int, mine: float, other: float) -> dict[str, Any]:
    peers = {"lumc": {"min_us": mine}, "torch": {"min_us": other}}
    return {"workload": name, "threads": threads, "peers": peers, "roofline_us": 1.0}


def page_of(folder: Path, known: str = "[]") -> str:
    code = "import sys, json, pathlib; from zoo.table import collected, document; "
    code += "print(document(collected(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))))"
    command = [sys.executable, "-c", code, str(folder), known]
    env = {**os.environ, "PYTHONPATH": str(BENCH)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_every_row_is_in_the_page_and_those_that_lose_come_first(tmp_path: Path) -> None:
    failed = row("broken", 1, 1, 7)
    failed["peers"]["lumc"] = {"failed": "no reply"}
    rows = [row("fast", 1, 1, 3), row("slow", 1, 4, 1), row("slow", 2, 2, 1), failed]
    (tmp_path / "operators").mkdir()
    text = json.dumps({"cpu": "a", "date": "b", "commit": "c", "rows": rows})
    (tmp_path / "operators" / "bench.json").write_text(text)
    page = page_of(tmp_path)
    table = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert [line.split()[1] for line in table[1:]] == ["broken", "slow", "fast"]
    assert "| 0.25 | 0.50 |" in table[2]
    assert "geometric mean 0.87 over 2 rows, worst 0.25 (slow), 1 below 0.5" in page
    assert "failed: broken" in page


def test_rows_of_an_earlier_measurement_stay_until_they_are_measured_again(tmp_path: Path) -> None:
    """Each says where it was measured."""
    key = {"suite": "operators", "how": "searched", "threads": 1}
    where = {"cpu": "old", "date": "b", "commit": "c"}
    times = {"mine_us": 2.0, "best": "torch", "best_us": 3.0}
    known = [key | where | times | {"workload": name} for name in ("kept", "again")]
    known.append(key | where | times | {"workload": "broken", "mine_us": None})
    (tmp_path / "operators").mkdir()
    rows = [row("again", 1, 1, 4) | {"cpu": "new", "date": "d", "commit": "e"}]
    (tmp_path / "operators" / "bench.json").write_text(json.dumps({"cpu": "?", "rows": rows}))
    page = page_of(tmp_path, json.dumps(known))
    table = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert [line.split()[1] for line in table[1:]] == ["broken", "kept", "again"]
    assert table[2].endswith("| 1.50 |") and table[3].endswith("| 4.00 |")
    assert "* 2 rows (searched, 1 thr.) on old, b, at c" in page
    assert "* 1 rows (searched, 1 thr.) on new, d, at e" in page
