"""Tables of the rows of a race: who was best, by how much, and what that is of the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from peers import PEERS

Row = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """lumc against the best peer that computes in f32; times in us, NaN where there is none."""

    workload: str
    mine_us: float
    best: str
    best_us: float
    roofline_us: float

    @property
    def ratio(self) -> float:
        return self.best_us / self.mine_us

    @property
    def share(self) -> float:
        return self.roofline_us / self.mine_us


def verdict(row: Row) -> Verdict:
    times = {k: v["min_us"] for k, v in row["peers"].items() if "min_us" in v and is_valid(v)}
    rivals = {k: v for k, v in times.items() if k != "lumc" and PEERS[k].exact}
    best = min(rivals, key=lambda k: rivals[k], default="-")
    nan = math.nan
    return Verdict(
        row["workload"],
        times.get("lumc", nan),
        best,
        rivals.get(best, nan),
        row["roofline_us"],
    )


def is_valid(record: dict[str, Any]) -> bool:
    return "failed" not in record and "missing" not in record


def main_table(rows: list[Row], threads: int) -> Table:
    title = f"{threads} thread{'s' * (threads > 1)}, minimum times; ratio = best peer / lumc"
    out = Table(title=title, caption=verdict_line(rows))
    out.add_column("workload", no_wrap=True)
    columns = ("lumc ms", "of roofline", "best peer", "ms", "ratio", "search s", "compile s")
    for column in (*columns, "others"):
        out.add_column(column, justify="left" if column == "best peer" else "right")
    for row in rows:
        v, record = verdict(row), row["peers"].get("lumc", {})
        cells = [v.workload, milliseconds(v.mine_us), share(v.share), v.best]
        cells += [milliseconds(v.best_us), coloured(v.ratio)]
        passes = record.get("passes_s")
        if passes:
            cells += [f"{passes['search'] + passes['profile']:.1f}"]
            cells += [f"{passes['codegen'] + passes['link']:.1f}"]
        else:
            cells += ["-", "-"]
        out.add_row(*cells, share(row.get("disturbed", math.nan)))
    return out


def verdict_line(rows: list[Row]) -> str:
    """Geometric mean, the worst row, and how many win."""
    ratios = {row["workload"]: verdict(row).ratio for row in rows}
    ratios = {k: v for k, v in ratios.items() if not math.isnan(v)}
    if not ratios:
        return "nothing to compare"
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = min(ratios, key=lambda k: ratios[k])
    wins = sum(r >= 1 for r in ratios.values())
    return (
        f"geometric mean {mean:.2f} over {len(ratios)} workloads, "
        f"worst {ratios[worst]:.2f} ({worst}), {wins} won"
    )


def markdown(rows: list[Row]) -> str:
    """One table for a README: per number of threads lumc, the best peer and the ratio."""
    counts = sorted({row["threads"] for row in rows})
    head = "".join(f" lumc, {n} thr. | of roofline | best peer | ratio |" for n in counts)
    lines = [f"| workload |{head}", "|---|" + "---|" * 4 * len(counts)]
    for name in dict.fromkeys(row["workload"] for row in rows):
        cells = [name]
        for n in counts:
            own = [row for row in rows if (row["workload"], row["threads"]) == (name, n)]
            v = verdict(own[0]) if own else None
            best = f"{milliseconds(v.best_us)} ms {v.best}" if v else "-"
            cells += [f"{milliseconds(v.mine_us)} ms", share(v.share), best] if v else ["-"] * 3
            cells += [f"{v.ratio:.2f}" if v and not math.isnan(v.ratio) else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    for n in counts:
        own = [row for row in rows if row["threads"] == n]
        lines += ["", f"{n} thread{'s' * (n > 1)}: {verdict_line(own)}."]
    return "\n".join(lines) + "\n"


def peer_table(rows: list[Row], threads: int) -> Table:
    """Every peer's minimum in ms; the best one that computes in f32 is bold."""
    out = Table(title=f"every peer, {threads} thread{'s' * (threads > 1)}, minimum ms")
    names = [n for n in PEERS if any("missing" not in r["peers"].get(n, MISSING) for r in rows)]
    out.add_column("workload", no_wrap=True)
    for name in names:
        out.add_column(name, justify="right")
    for row in rows:
        best = verdict(row).best
        cells = [row["workload"]]
        for name in names:
            record = row["peers"].get(name, MISSING)
            if "failed" in record:
                cells.append("[red]failed[/]")
            else:
                text = milliseconds(record.get("min_us", math.nan))
                cells.append(f"[bold]{text}[/]" if name == best else text)
        out.add_row(*cells)
    return out


MISSING = {"missing": ""}


def milliseconds(us: float) -> str:
    return "-" if math.isnan(us) else f"{us / 1e3:.3f}" if us < 1e5 else f"{us / 1e3:.0f}"


def share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0%}"


def coloured(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"[{judged(ratio)}]{ratio:.2f}[/]"


def judged(ratio: float) -> str:
    """Won, within the noise, or lost: as a colour."""
    return "green" if ratio >= 1 else "yellow" if ratio >= 0.97 else "red"
