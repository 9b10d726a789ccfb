"""docs/onnx-coverage.md: what the ONNX backend suite gives, through compiled C, and onnxruntime
beside it.

    python tests/onnx_coverage.py --update --jobs 2

runs all cases and writes the page; without ``--update`` it says whether the page is true. With
``--results FILE`` what the cases gave is kept in a file, or read from it if it is there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnx_suite
from onnx_suite import Result, reason

PAGE = Path(__file__).parents[1] / "docs" / "onnx-coverage.md"
HEAD = "<!-- written by: python tests/onnx_coverage.py --update -->\n\n# ONNX: what is covered\n"


def onnxruntime_verdicts(cases: Sequence[Any]) -> dict[str, str]:
    """``pass``, ``wrong``, or ``refused`` of onnxruntime for each case, as lumc is counted: dtypes
    are as expected, tolerances are the suite's."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return {case.name: _verdict(onnxruntime, options, case) for case in cases}


def _verdict(onnxruntime: Any, options: Any, case: Any) -> str:
    model, sets = onnx_suite.loaded(case)
    try:
        data, providers = model.SerializeToString(), ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(data, options, providers=providers)
        names = [i.name for i in session.get_inputs()]
        for inputs, wanted in sets:
            got = session.run(None, dict(zip(names, inputs, strict=False)))
            for a, b in zip(got, wanted, strict=True):
                onnx_suite.compare(case, *_as_texts(a, b))
    except AssertionError:
        return "wrong"
    except Exception:  # its errors have no common class
        return "refused"
    return "pass"


def _as_texts(a: Any, b: Any) -> tuple[Any, Any]:
    """Strings as numbers that are equal if they are."""
    if not all(isinstance(x, np.ndarray) for x in (a, b)):
        return a, b
    if a.dtype.kind not in "OUS" or b.dtype.kind not in "OUS" or a.shape != b.shape:
        return a, b
    return (a.astype(str) == b.astype(str)).astype(int), np.ones(a.shape, int)


def page(results: Sequence[Result], other: dict[str, str], peer: str) -> str:
    """The text of the page; ``other`` is of onnxruntime of the version ``peer``."""
    counts = Counter(r.verdict for r in results)
    passed = [r for r in results if r.verdict in onnx_suite.PASSED]
    theirs = sum(v == "pass" for v in other.values())
    lines = [
        HEAD + INTRODUCTION.format(onnx.__version__, len(results)),
        "| | cases |",
        "|---|---|",
        f"| pass | {len(passed):,} |",
        f"| of these with inputs known at import | {counts['known']:,} |",
        f"| refused with exit code 4 and a reason | {counts['refused']:,} |",
        f"| the expected values are rounded beyond the tolerance | {counts['rounded']:,} |",
        f"| the expected values are those of another random generator | {counts['random']:,} |",
        f"| wrong | {counts['wrong']:,} |",
        f"| crash, hang or another error | {sum(counts[v] for v in FAULTS):,} |",
        f"| onnxruntime {peer}, counted the same way: pass | {theirs:,} |",
        "",
        "## Why cases are refused",
        "",
        "| reason | cases | |",
        "|---|---|---|",
        *_reasons(results),
        "",
        "## By operator",
        "",
        "A case counts for every operator in it. `+` marks operators whose cases all pass.",
        "",
        "| operator | cases | lumc | onnxruntime |",
        "|---|---|---|---|",
        *_operators(results, other),
        "",
        "## Cases that do not pass",
        "",
        *_failures(results),
    ]
    return "\n".join(lines) + "\n"


FAULTS = ("crash", "hang", "error")
NAMES = {"random": "another random generator"}
INTRODUCTION = """
The backend suite of onnx {} has {:,} cases that need no download. Each is imported, searched,
planned by estimate and compiled to C. The kernels run in one part and in two; results are compared
with what the suite expects, within its tolerances. Inputs that decide the graph (shapes, axes) are
known at import. Where expected values are rounded beyond the tolerance, those of lumc are nearer to
the result in f64.
"""


def _reasons(results: Sequence[Result]) -> list[str]:
    why = Counter(reason(r.detail) for r in results if r.verdict == "refused")
    ways = {name: way for name, _, way in onnx_suite.REASONS}
    return [f"| {name} | {n} | {ways.get(name, '')} |" for name, n in _most(why)]


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _operators(results: Sequence[Result], other: dict[str, str]) -> list[str]:
    by = defaultdict[str, list[Result]](list)
    for r in results:
        for name in r.operators:
            by[name].append(r)
    rows = []
    for name, found in sorted(by.items(), key=lambda item: ("." in item[0], item[0])):
        ours = sum(r.verdict in onnx_suite.PASSED for r in found)
        theirs = sum(other[r.name] == "pass" for r in found)
        mark = " +" if ours == len(found) else ""
        rows.append(f"| {name}{mark} | {len(found)} | {ours} | {theirs} |")
    return rows


def _failures(results: Sequence[Result]) -> list[str]:
    by = defaultdict[str, list[str]](list)
    for r in results:
        if r.verdict not in onnx_suite.PASSED:
            by[
                reason(r.detail) if r.verdict == "refused" else NAMES.get(r.verdict, r.verdict)
            ].append(r.name)
    return [
        line
        for name, found in sorted(by.items(), key=lambda item: (-len(item[1]), item[0]))
        for line in (f"**{name}**: {', '.join(re.sub('^test_', '', n) for n in found)}", "")
    ][:-1]


def kept(path: Path | None) -> list[Result]:
    """The results in a file, or none."""
    if path is None or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Result(**{**row, "operators": tuple(row["operators"])}) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the page")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, help="JSON lines, one for each case")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = list(onnx_suite.cases())
    results = kept(asked.results) or onnx_suite.run(cases, asked.jobs)
    if asked.results and not asked.results.exists():
        asked.results.write_text("".join(f"{json.dumps(asdict(r))}\n" for r in results))
    for r in results:
        if r.verdict in ("wrong", *FAULTS):
            print(f"{r.name}: {r.verdict}: {r.detail}")
    print(dict(Counter(r.verdict for r in results)))
    text = page(results, onnxruntime_verdicts(cases), version("onnxruntime"))
    if asked.update:
        PAGE.write_text(text)
    return int(not PAGE.exists() or PAGE.read_text() != text)


if __name__ == "__main__":
    sys.exit(main())
