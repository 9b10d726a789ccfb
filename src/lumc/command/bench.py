"""What ``bench`` does with a bundle: figures of the times of single runs, and if they got worse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import ceil, sqrt
from typing import Any

from lumc.bundle.restore import graph_of
from lumc.command.arrays import read_arrays
from lumc.command.bundles import complete, note
from lumc.command.lengths import greatest, parse_values
from lumc.command.lengths import known as known_dims
from lumc.command.lengths import said as said_dims
from lumc.disk.artifact import read_text
from lumc.errors import Exit, LumcError
from lumc.graph.bind import bind_dims
from lumc.report.words import us

Figures = dict[str, Any]
SETTING = ("entry", "device", "threads")
DEVIATIONS = 1.96  # of the normal distribution, between which 95 % lie


def bench(
    path: str,
    inputs: tuple[str, ...],
    seconds: float,
    entry: str,
    threads: Sequence[int],
    seed: int,
    as_json: bool,
    device: str = "",
    old: str = "",
    fail_above: float | None = None,
    form: str | None = None,
    dims: Sequence[str] = (),
) -> None:
    """``lumc bench``, once for each number of threads. Raises E0614 where it is slower than the
    figures in ``old``, times ``fail_above``."""
    from lumc.bundle.unpack import opened
    from lumc.runtime.choose import open_bundle

    if fail_above is not None and not old:
        fix = "name figures of bench --json: --compare OLD.json"
        raise LumcError("E0203", "--fail-above compares", fix=fix, exit=Exit.USAGE)
    before = known(old) if old else []
    with opened(path) as folder, open_bundle(folder, device, say=note) as bundle:
        entry = entry or bundle.entries[0]
        given = read_arrays(inputs, bundle.entry(entry).inputs, "input")
        graph = graph_of(folder)
        values = greatest(graph, entry, known_dims(graph, entry, given, parse_values(dims)))
        arrays = complete(bind_dims(graph, values), entry, given, seed)
        rows, setting = list[Figures](), {"dims": said_dims(values)} if values else {}
        for n in threads:
            times = bundle.bench(arrays, entry=entry, threads=n, seconds=seconds, dims=values)
            where = {"entry": entry, "device": bundle.device, "threads": n, **setting}
            rows.append(where | figures(times))
    for row in rows if old else ():
        row["ratio"] = row["min_us"] / same(before, row, old)["min_us"]
    if as_json:
        print(json.dumps(rows if len(rows) > 1 else rows[0]))
    else:
        print("\n".join(table(rows, form) if form else map(said, rows)))
    slow = [r for r in rows if fail_above is not None and r["ratio"] > fail_above]
    if slow:
        what = ", ".join(f"{r['ratio']:.3f} times at {r['threads']} threads" for r in slow)
        what = f"slower than in {old}: {what}; --fail-above {fail_above:g}"
        raise LumcError("E0614", what, exit=Exit.MISMATCH)


def figures(times: Sequence[float]) -> Figures:
    """Of times in us. The interval holds the median of all runs that could have been, in 95 of 100
    cases: ranks of the sorted times, as many below as a fair coin gives. It asks nothing of how
    times are distributed, but that one says nothing of the next."""
    times, n = sorted(times), len(times)
    spread = DEVIATIONS * sqrt(n) / 2
    low, high = max(0, int(n / 2 - spread)), min(n - 1, ceil(n / 2 + spread))
    return {
        "min_us": times[0],
        "median_us": times[n // 2],
        "median_low_us": times[low],
        "median_high_us": times[high],
        "p90_us": times[min(n - 1, n * 9 // 10)],
        "p99_us": times[min(n - 1, n * 99 // 100)],
        "iterations": n,
    }


def said(row: Figures) -> str:
    """Figures in a line."""
    least, most = us(row["median_low_us"]), us(row["median_high_us"])
    parts = [f"{name} {row[name]}" for name in SETTING]
    parts += [row["dims"]] if "dims" in row else []
    parts += [f"min {us(row['min_us'])}"]
    parts += [f"median {us(row['median_us'])} ({least} to {most})"]
    parts += [f"{name} {us(row[f'{name}_us'])}" for name in ("p90", "p99")]
    parts += [f"{row['iterations']} samples"]
    if "ratio" in row:
        parts += [f"{row['ratio']:.3f} times the old minimum"]
    return " · ".join(parts)


def table(rows: Sequence[Figures], form: str) -> Iterator[str]:
    """Figures as lines of csv or md, a row for each number of threads."""
    texts = [list(rows[0]), *([["---"] * len(rows[0])] if form == "md" else [])]
    texts += [[f"{v:.6g}" if isinstance(v, float) else str(v) for v in r.values()] for r in rows]
    for cells in texts:
        yield f"| {' | '.join(cells)} |" if form == "md" else ",".join(cells)


def known(path: str) -> list[Figures]:
    """Figures that ``bench --json`` printed. Raises E0201, and E0501 for other files."""
    try:
        data = json.loads(read_text(path)[0])
        rows = data if isinstance(data, list) else [data]
        for row in rows:
            if not all(name in row for name in SETTING) or not row["min_us"] > 0:
                raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        what, fix = "not figures that bench --json printed", "lumc bench BUNDLE --json > OLD.json"
        raise LumcError("E0501", what, where=path, fix=fix, exit=Exit.CORRUPT) from None
    return rows


def same(rows: Sequence[Figures], wanted: Figures, path: str) -> Figures:
    """The figures of the same setting. Raises E0203 where there are none."""
    for row in rows:
        if all(row.get(name) == wanted.get(name) for name in (*SETTING, "dims")):
            return row
    setting = _setting(wanted)
    there = "; ".join(map(_setting, rows))
    what = f"--compare {path} has no figures of {setting}"
    raise LumcError("E0203", what, fix=f"it has: {there}", exit=Exit.USAGE)


def _setting(row: Figures) -> str:
    return ", ".join(f"{name} {row[name]}" for name in (*SETTING, "dims") if name in row)
