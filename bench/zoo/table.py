"""Write docs/zoo.md and its picture from the rows that were measured: those that lose first.

What was measured lies in docs/zoo.json, which goes with the project: a measurement takes hours, and
one that was interrupted, or done again in part, goes on from there on any machine. Every row says
on which one and at which commit; rows of a new measurement take the place of older ones.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from report import Verdict, milliseconds, verdict
from zoo.plot import picture

Row = dict[str, Any]
SUITES = {"networks": "Networks", "operators": "Operators"}
HOW = {"": "searched", "-estimate": "--estimate"}
KEY = ("suite", "how", "threads", "workload")
FACTS = ("mine_us", "best", "best_us", "cpu", "date", "commit")
HEAD = """# The zoo

{count} operators and networks as people have them, beside onnxruntime, OpenVINO (f32) and torch.
Written by `make zoo-table` from the rows that `make zoo` measured, as
[bench/README.md](../bench/README.md) says. A ratio is the time of the best peer over that of lumc,
at one and at two threads: above 1, lumc is faster. Rows that lose come first. The times are those
of the first column of ratios, in ms.

![ratios of networks and operators](zoo.svg)
"""


def collected(folder: Path, known: Iterable[Row] = ()) -> list[Row]:
    """All that lies in a folder of measurements, and of the known rows those that it lacks."""
    rows = {tuple(r[k] for k in KEY): r for r in known}
    for suite in SUITES:
        for kind, how in HOW.items():
            rows |= {tuple(r[k] for k in KEY): r for r in _measured(folder, suite, kind, how)}
    return [rows[key] for key in sorted(rows)]


def _measured(folder: Path, suite: str, kind: str, how: str) -> Iterable[Row]:
    path = folder / f"{suite}{kind}" / "bench.json"
    whole = json.loads(path.read_text()) if path.exists() else {"rows": []}
    for row in whole["rows"]:
        v = verdict(row)
        where = {k: row.get(k, whole.get(k, "?")) for k in ("cpu", "date", "commit")}
        facts = {"workload": v.workload, "threads": row["threads"], "suite": suite, "how": how}
        times = {"mine_us": _rounded(v.mine_us), "best": v.best, "best_us": _rounded(v.best_us)}
        yield facts | times | where


def _rounded(us: float) -> float | None:
    return None if math.isnan(us) else float(f"{us:.4g}")


def document(rows: Sequence[Row]) -> str:
    """The page for these rows."""
    parts, count = [], 0
    for suite, title in SUITES.items():
        own = [r for r in rows if r["suite"] == suite]
        keys = [(how, n) for how in HOW.values() for n in sorted({r["threads"] for r in own})]
        ratios = {
            key: {r["workload"]: _verdict(r) for r in own if (r["how"], r["threads"]) == key}
            for key in keys
        }
        ratios = {key: verdicts for key, verdicts in ratios.items() if verdicts}
        if ratios:
            parts.append(_section(title, ratios, own))
            count += len({r["workload"] for r in own})
    return "\n".join([HEAD.format(count=count), *parts])


def _verdict(row: Row) -> Verdict:
    mine, best = (math.nan if row[k] is None else row[k] for k in ("mine_us", "best_us"))
    return Verdict(row["workload"], mine, row["best"], best, math.nan)


def _section(
    title: str, ratios: dict[tuple[str, int], dict[str, Verdict]], rows: Sequence[Row]
) -> str:
    lines = [f"## {title}", ""]
    for (how, n), verdicts in ratios.items():
        label = f"{how}, {n} thread{'s' * (n > 1)}"
        lines.append(f"* {label}: {_summary(verdicts.values())}")
    seen = Counter((r["how"], r["threads"], r["cpu"], r["date"], r["commit"]) for r in rows)
    lines += ["", "Measured:", ""]
    for (how, n, cpu, date, commit), count in sorted(seen.items()):
        lines.append(f"* {count} rows ({how}, {n} thr.) on {cpu}, {date}, at {commit}")
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
    page, store = root / "docs" / "zoo.md", root / "docs" / "zoo.json"
    known = json.loads(store.read_text()) if store.exists() else []
    rows = collected(root / "build" / "zoo", known)
    lines = [json.dumps({k: r[k] for k in (*KEY, *FACTS)}) for r in rows]
    store.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    page.write_text(document(rows))
    page.with_suffix(".svg").write_text(picture(rows))
    print(page)


if __name__ == "__main__":
    main()
