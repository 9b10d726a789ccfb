"""Write docs/zoo.md from the rows that were measured: every row, those that lose first."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from report import Verdict, milliseconds, verdict

Row = dict[str, Any]
SUITES = {"networks": "Networks", "operators": "Operators"}
HOW = {"": "searched", "-estimate": "--estimate"}
HEAD = """# The zoo

{count} operators and networks as people have them, beside onnxruntime, OpenVINO (f32) and torch.
Written by `make zoo-table` from the rows that `make zoo` measured, as
[bench/README.md](../bench/README.md) says. A ratio is the time of the best peer over that of lumc,
at one and at two threads: above 1, lumc is faster. Rows that lose come first. The times are those
of the first column of ratios, in ms.
"""


def document(folder: Path) -> str:
    """The page for all that lies in a folder of measurements."""
    parts, count = [], 0
    for suite, title in SUITES.items():
        measured = {how: _read(folder / f"{suite}{kind}") for kind, how in HOW.items()}
        rows = {h: [verdict(r) for r in m.get("rows", [])] for h, m in measured.items()}
        threads = {h: [r["threads"] for r in m.get("rows", [])] for h, m in measured.items()}
        ratios = {
            (how, n): {
                v.workload: v for v, t in zip(rows[how], threads[how], strict=True) if t == n
            }
            for how in rows
            for n in sorted(set(threads[how]))
        }
        if ratios:
            parts.append(_section(title, ratios, measured))
            count += len({name for verdicts in ratios.values() for name in verdicts})
    return "\n".join([HEAD.format(count=count), *parts])


def _read(folder: Path) -> Row:
    path = folder / "bench.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _section(
    title: str, ratios: dict[tuple[str, int], dict[str, Verdict]], measured: dict[str, Row]
) -> str:
    lines = [f"## {title}", ""]
    for (how, n), verdicts in ratios.items():
        label = f"{how}, {n} thread{'s' * (n > 1)}"
        lines.append(f"* {label}: {_summary(verdicts.values())}")
    seen = {(m["cpu"], m["date"], m.get("commit", "?")) for m in measured.values() if m}
    lines += [
        "",
        *(f"Measured on {cpu}, {date}, at {commit}." for cpu, date, commit in sorted(seen)),
    ]
    heads = " | ".join(f"{how}, {n} thr." for how, n in ratios)
    lines += [
        "",
        f"| | lumc ms | best peer | ms | {heads} |",
        "|---|--:|---|--:" + "|--:" * len(ratios) + "|",
    ]
    lines += [_row(name, ratios) for name in _ordered(ratios)]
    return "\n".join(lines) + "\n"


def _summary(verdicts: Iterable[Verdict]) -> str:
    known = sorted((v.ratio, v.workload) for v in verdicts if not math.isnan(v.ratio))
    failed = [v.workload for v in verdicts if math.isnan(v.ratio)]
    if not known:
        return "nothing to compare"
    mean = math.exp(sum(math.log(r) for r, _ in known) / len(known))
    said = (
        f"geometric mean {mean:.2f} over {len(known)} rows, worst {known[0][0]:.2f} ({known[0][1]})"
    )
    for bound in (0.5, 0.75, 0.92, 1.0):
        said += f", {sum(r < bound for r, _ in known)} below {bound:g}"
    return said + (f"; failed: {', '.join(failed)}" if failed else "")


def _ordered(ratios: dict[tuple[str, int], dict[str, Verdict]]) -> list[str]:
    """The names of all rows by the least ratio that each has; those that failed come first."""
    least: dict[str, float] = {}
    for verdicts in ratios.values():
        for name, v in verdicts.items():
            ratio = 0.0 if math.isnan(v.ratio) else v.ratio
            least[name] = min(ratio, least.get(name, math.inf))
    return sorted(least, key=lambda name: (least[name], name))


def _row(name: str, ratios: dict[tuple[str, int], dict[str, Verdict]]) -> str:
    first = next(v[name] for v in ratios.values() if name in v)
    cells = [name, milliseconds(first.mine_us), first.best, milliseconds(first.best_us)]
    for verdicts in ratios.values():
        v = verdicts.get(name)
        cells.append("-" if v is None else "failed" if math.isnan(v.ratio) else f"{v.ratio:.2f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    root = Path(__file__).parent.parent.parent
    page = root / "docs" / "zoo.md"
    page.write_text(document(root / "build" / "zoo"))
    print(page)


if __name__ == "__main__":
    main()
