"""The gallery: a tenth of its networks through compiled C, its steps on a small model, its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_networks_are_right() -> None:
    """Those that compile quickly; all of them are in make gallery."""
    cases = [gallery_models.Case(name) for name in gallery_models.NAMES]
    found = onnx_suite.run(cases, batch=len(cases))
    assert {r.name: r.detail for r in found if r.verdict not in onnx_suite.PASSED} == {}
    assert len(found) >= 5


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
import json, sys
from pathlib import Path
import gallery.real, gallery.run as run
from gallery.entry import Shipped, normal, number
given = {"x": normal(2, 3), "n": number(3)}
gallery.real.SHIPPED.append(Shipped("small", "a-package", "a_package/m.onnx", given, ("n",)))
run.STEPS[1:] = [sys.argv[2]]
print(json.dumps(run.attempt("small", "onnx", Path(sys.argv[1]))))
"""
STEPS = """
import gallery.real
from gallery.entry import Shipped, normal, number
given = {"x": normal(2, 3), "n": number(3)}
gallery.real.SHIPPED.append(Shipped("small", "a-package", "a_package/m.onnx", given, ("n",)))
from gallery.steps import main
main()
"""


def attempted(folder: Path, text: str) -> dict[str, Any]:
    """The row of a model that a package has."""
    (folder / "a_package").mkdir()
    onnx.save(parser.parse_model(f"{HEAD} {text}"), folder / "a_package" / "m.onnx")
    (folder / "steps.py").write_text(STEPS)
    done = run(ATTEMPT, str(folder / "out"), str(folder / "steps.py"), path=str(folder))
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
for wrong, want in ((one * 0, one), (one, one * 0), (one[1:], one), (one + np.nan, one)):
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
    bad = {"name": "bad", "ok": False, "failed": "import: exit 4: E0312 no", **where}
    done = run(PAGE, json.dumps([good, bad]))
    assert done.returncode == 0, done.stderr
    rows = [s for s in done.stdout.splitlines() if s.startswith("| ") and "---" not in s]
    assert rows[1].startswith("| bad | onnx: **failed**")
    assert rows[2] == "| good | onnx | 900 | 3 | 2e-07 | 1e-07 | 61.0 | 100 | 2 | 1 | fails |"
    assert "1 of 2 are right" in done.stdout and "fewer than 1,000 nodes: good" in done.stdout
    assert "* bad (onnx): import: exit 4: E0312 no" in done.stdout
    assert "time of onnxruntime over that of lumc: 0.50" in done.stdout


def test_the_page_is_made_of_its_rows() -> None:
    code = "import sys; from gallery.table import PAGE, document, read; rows = read()"
    code += "; sys.exit(PAGE.read_text() != document([rows[k] for k in sorted(rows)]))"
    assert run(code).returncode == 0, "make gallery writes it"
