"""The gallery: a sixth of it through compiled C, its steps on a small model, its page."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import parser  # noqa: E402

import gallery_models  # noqa: E402
import onnx_suite  # noqa: E402

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def right(names: Sequence[str], how: onnx_suite.How) -> None:
    cases = [gallery_models.Case(name) for name in names]
    found = onnx_suite.run(cases, batch=len(cases), how=how)
    assert {r.name: r.detail for r in found if r.verdict not in onnx_suite.PASSED} == {}


def test_a_sixth_of_the_gallery_is_right() -> None:
    """Of every kind one, in sizes that compile quickly; all of them are in make gallery."""
    entries = {row["name"] for row in json.loads((ROOT / "docs" / "gallery.json").read_text())}
    small = [name.removeprefix("small_") for name in gallery_models.ALWAYS]
    assert [n for n in small if not any(e.startswith(n) for e in entries)] == []
    assert 6 * len(small) >= len(entries)
    right(gallery_models.ALWAYS, onnx_suite.SHORT)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_networks_are_right() -> None:
    """In their own sizes, with all that is searched."""
    right([n for n in gallery_models.NAMES if not n.startswith("small")], onnx_suite.WHOLE)


def test_a_wrong_output_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = gallery_models.Case("tabular")
    (want,) = case.by_onnxruntime()
    case.compare(want, 0)
    for wrong in (want * np.float32(1.001), want * 0, want[:1]):
        with pytest.raises(AssertionError):
            case.compare(wrong, 0)


# ---- the command, on a package of our own


def run(code: str, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    places = [str(BENCH), path, os.environ.get("PYTHONPATH", str(ROOT / "src"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in places if p)}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True)


ATTEMPT = """
import json, os, sys
from pathlib import Path
import gallery.real, gallery.run as run
from gallery.entry import Shipped, normal, number
given, way = {"x": normal(2, 3), "n": number(3)}, sys.argv[3]
if way == "codes":  # one compile from the start is enough
    run.OBJECTS = os.environ["LUMC_OBJECTS"]
small = Shipped("small", "a-package", "a_package/m.onnx", given, ("n",), rounds=way == "codes")
gallery.real.SHIPPED.append(small)
run.STEPS[1:] = [sys.argv[2]]
print(json.dumps(run.attempt("small", way, Path(sys.argv[1]))))
"""
STEPS = """
import gallery.real
from gallery.entry import Shipped, normal, number
given = {"x": normal(2, 3), "n": number(3)}
gallery.real.SHIPPED.append(Shipped("small", "a-package", "a_package/m.onnx", given, ("n",)))
from gallery.steps import main
main()
"""


def attempted(folder: Path, text: str, way: str = "onnx") -> dict[str, Any]:
    """The row of a model that a package has."""
    (folder / "a_package").mkdir()
    onnx.save(parser.parse_model(f"{HEAD} {text}"), folder / "a_package" / "m.onnx")
    (folder / "steps.py").write_text(STEPS)
    done = run(ATTEMPT, str(folder / "out"), str(folder / "steps.py"), way, path=str(folder))
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_a_file_of_a_package_is_taken_to_a_checked_run(tmp_path: Path) -> None:
    """Its second input is known at import; its shape is bound."""
    text = "g (float[b,3] x, int64 n) => (float[a,3] y)"
    row = attempted(tmp_path, text + " { c = Cast<to=1>(n) t = Mul(x, c) y = Exp(t) }")
    assert row["ok"] and row["error"] < 1e-6 and row["oracle_error"] < 1e-6, row
    assert row["kernels"] == 1 and row["onnx_nodes"] == 3 and row["source"] == "a-package"
    assert row["cpu_s"] > 0.3 and row["mb"] > 50 and row["us"]["lumc"] > 0
    assert isinstance(row["us"]["onnxruntime"], float)


def test_a_file_that_rounds_is_held_to_all_limits_without_its_roundings(tmp_path: Path) -> None:
    """What is given to them is an output beside the other."""
    text = "g (float[b,3] x, int64 n) => (float[a,3] y) { c = Cast<to=1>(n) t = Mul(x, c)"
    text += " q, s, z = DynamicQuantizeLinear(t) r = DequantizeLinear(q, s, z) y = Exp(r) }"
    row = attempted(tmp_path, text, "codes")
    assert row["ok"] and row["error"] < 1e-6 and row["oracle_error"] < 1e-6, row
    assert row["onnx_nodes"] == 4 and "apart" not in row


NETWORK = """
import json, sys
from pathlib import Path
import gallery.run as run
print(json.dumps(run.attempt("tabular", sys.argv[1], Path(sys.argv[2]) / "tabular", untimed=True)))
"""


@pytest.mark.deep
def test_a_network_goes_without_onnx(tmp_path: Path) -> None:
    """Through torch.compile it is compared with its archive, too: here with another's outputs."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    def row(way: str) -> dict[str, Any]:
        done = run(NETWORK, way, str(tmp_path))
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert 0 < found["error"] < 1e-6 and found["cpu_s"] > 0.5, found
        return found

    archived, traced = row("pt2"), row("torch")
    assert archived["ok"] and archived["kernels"] > 1 and "between" not in archived
    assert traced["ok"] and traced["between"] < 1e-6 and "kernels" not in traced
    outputs = tmp_path / "tabular" / "pt2.npz"
    np.savez(outputs, y0=np.load(outputs)["y0"] * np.float32(1.001))
    traced = row("torch")
    assert not traced["ok"] and 5e-4 < traced["between"] < 2e-3


ROUNDING = """
import numpy as np
from onnx import helper, numpy_helper, TensorProto
from gallery import rounding
from gallery.steps import error
LAYERS, STEP = 10, np.float32(2e-3)
rng = np.random.default_rng(3)
weights = [rng.integers(-90, 90, (64, 64)).astype("i1") for _ in range(LAYERS)]
x = rng.standard_normal((16, 64)).astype("f4")

def layers(nearest):  # in f64: what ONNX says of DynamicQuantizeLinear
    y = x.astype("f8")
    for w in weights:
        low, high = min(y.min(), 0), max(y.max(), 0)
        scale = (high - low) / 255
        zero = np.rint(np.clip(-low / scale, 0, 255))
        codes = np.clip(nearest(y / scale) + zero, 0, 255)
        y = np.tanh((codes - zero) @ w.astype("f8") * scale * STEP)
    return [y]

nodes = []
for i in range(LAYERS):
    for kind, given, made in (
        ("DynamicQuantizeLinear", f"x{i}", f"q{i} s{i} z{i}"),
        ("MatMulInteger", f"q{i} w{i} z{i}", f"p{i}"),
        ("Cast", f"p{i}", f"f{i}"),
        ("Mul", f"f{i} s{i}", f"m{i}"),
        ("Mul", f"m{i} k", f"t{i}"),
        ("Tanh", f"t{i}", f"x{i + 1}"),
    ):
        to = {"to": TensorProto.FLOAT} if kind == "Cast" else {}
        nodes.append(helper.make_node(kind, given.split(), made.split(), **to))
value = [helper.make_tensor_value_info(f"x{i}", 1, x.shape) for i in (0, LAYERS)]
stored = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
stored.append(numpy_helper.from_array(STEP, "k"))
graph = helper.make_graph(nodes, "g", value[:1], value[1:], stored)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
wanted = list(rounding.run(model, {"x0": x}).values())

apart = rounding.spread(model, {"x0": x}, error)
right, wrong = error(layers(np.rint), wanted), error(layers(np.trunc), wanted)
assert 1e-4 < apart, apart  # f32 rounds to 1e-7
assert 1e-4 < right < 2 * apart, (right, apart)
assert wrong > 4 * apart, (wrong, apart)

part, inputs, ends = rounding.between(model, {"x0": x})
assert len(inputs) == 3 * LAYERS and len(ends) == LAYERS and len(part.graph.node) == 5 * LAYERS
codes = inputs["q7"].astype("f8") - inputs["z7"]
assert error([np.tanh(codes @ weights[7] * inputs["s7"] * STEP)], [ends[7]]) < 1e-6
"""


def test_a_code_next_to_a_half_is_another_result() -> None:
    """Of onnxruntime beside itself as much as beside f64; without the roundings there is none."""
    done = run(ROUNDING)
    assert done.returncode == 0, done.stderr


WHY = """
from gallery.run import reason
assert reason("a\\nE0312 no\\n  fix: b") == "E0312 no"
said = "Traceback:\\n  raise a\\ntorch._dynamo.exc.Unsupported: an RNN\\nValueError: b\\nc"
assert reason(said) == "torch._dynamo.exc.Unsupported: an RNN"
assert reason("a\\nb\\n") == "b" and not reason("")
"""


def test_the_line_that_says_why() -> None:
    done = run(WHY)
    assert done.returncode == 0, done.stderr


def test_what_fails_says_at_which_step(tmp_path: Path) -> None:
    text = "g (float[b,3] x, int64 n) => (int64[2,a] y) { [here] y = NonZero(x) }"
    row = attempted(tmp_path, text)
    assert not row["ok"] and row["failed"].startswith("import: exit 4: E0312"), row


JUDGE = """
import json, sys
import numpy as np
from gallery.steps import ATOL, error
one = np.linspace(1, 2, 50, dtype="f4")
assert error([one], [one.astype("f8")]) == 0
assert 1e-4 < error([one * np.float32(1.001)], [one]) < 2e-3
small = one * 1e-6
assert error([small + np.float32(1e-7)], [small]) > 1e-2
assert error([small + np.float32(1e-7)], [small], ATOL) == 0
assert error([np.array([1, 2])], [np.array([1, 3])]) == 0.5
none = np.zeros(3, int)
pairs = [(one * 0, one), (one, one * 0), (one[1:], one), (one + np.nan, one), (none, none)]
for wrong, want in pairs:
    try:
        error([wrong], [want])
    except ValueError:
        continue
    raise SystemExit(f"accepted {wrong[:3]} for {want[:3]}")
try:  # all of it could be error
    error([small / 10], [small / 10], ATOL)
except ValueError as e:
    assert "output 0 is next to zero" in str(e)
else:
    raise SystemExit("accepted what is next to zero")
"""


def test_outputs_that_are_zero_or_of_another_shape_are_refused() -> None:
    done = run(JUDGE)
    assert done.returncode == 0, done.stderr


PAGE = (
    "import json, sys; from gallery.table import document; print(document(json.loads(sys.argv[1])))"
)


def test_the_page_has_every_row_and_failures_first() -> None:
    where = {"cpu": "a", "date": "b", "commit": "c", "way": "onnx", "source": ""}
    numbers = {"onnx_nodes": 900, "kernels": 3, "error": 2e-7, "oracle_error": 1e-7, "mb": 100}
    took = {"cpu_s": 61.0}
    us = {"us": {"lumc": 2000.0, "onnxruntime": 1000.0, "openvino": "RuntimeError: no"}}
    good = {"name": "good", "ok": True, **where, **numbers, **took, **us}
    ways = [{**good, "way": way} for way in ("codes", "pt2", "torch")]
    ways[-1].pop("kernels")
    ways[-1]["between"] = 3e-8
    bad = {"name": "bad", "ok": False, "failed": "import: exit 4: E0312 no", **where}
    done = run(PAGE, json.dumps([good, bad, *ways]))
    assert done.returncode == 0, done.stderr
    rows = [s for s in done.stdout.splitlines() if s.startswith("| ") and "---" not in s]
    assert rows[1].startswith("| bad | onnx: **failed**")
    assert rows[2] == "| good | onnx | 900 | 3 | 2e-07 | 1e-07 | 61.0 | 100 | 2 | 1 | fails | c |"
    assert rows[3] == rows[2].replace("onnx", "codes", 1)
    assert rows[-1] == "| good | 3 | 2e-07 | 1e-07 | 61.0 | c | 2e-07 | 3e-08 | 61.0 | c |"
    assert "1 of 2 are right by way of ONNX\n" in done.stdout
    assert "1 of 1 are right by way of torch.compile" in done.stdout
    assert "fewer than 1,000 nodes: good" in done.stdout
    assert "* bad (onnx): import: exit 4: E0312 no" in done.stdout
    assert "time of onnxruntime over that of lumc: 0.50" in done.stdout


def test_the_page_is_made_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    table = importlib.import_module("gallery.table")
    rows = table.read()
    page = table.document([rows[k] for k in sorted(rows)])
    assert table.PAGE.read_text() == page, "make gallery writes it"
