"""``lumc cache``: the timing records of a project or a user."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lumc.disk import artifact, objects, private
from lumc.disk.project import looked
from lumc.errors import Exit, LumcError
from lumc.lab.device import fingerprint
from lumc.profile.records import NAME, SCHEMA, Setting, compact, read_lines
from lumc.profile.settings import known_settings, words

Line = dict[str, Any]
FIELDS = ("kernel", "device", "tools", "threads", "cold")


def list_(folder: Path, as_json: bool) -> None:
    """One row per kernel and setting: trials, failures, the best time, why the search ended."""
    rows = summary(read_lines(folder / NAME))
    known = {k.setting: words(k.said) for k in known_settings(folder / NAME)}
    for row in rows:
        row["machine"] = known.get(Setting(row["device"], row["tools"], row["threads"]), "")
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        best = f"{row['us']:.4g} us" if row["us"] is not None else "no time"
        weights = "cold" if row["cold"] else "warm"
        print(
            f"{row['kernel']}  {best}  {row['trials']} trials, {row['failed']} failed, "
            f"stop: {row['stop'] or 'open'}  ({weights}, threads {row['threads']}, "
            f"device {row['device']}, tools {row['tools']})"
        )
    for (device, tools), machine in {(r["device"], r["tools"]): r["machine"] for r in rows}.items():
        here = ", this machine" if device == fingerprint() else ""
        print(f"{device}/{tools}  {machine}{here}")
    print(f"{len(rows)} kernels in {looked(folder)}")


def summary(lines: Iterable[Line]) -> list[Line]:
    found: dict[str, Line] = {}
    for n in compact(lines):
        if n["kind"] not in ("choice", "trial"):
            continue
        head = {k: n.get(k) for k in FIELDS}
        start = {**head, "trials": 0, "failed": 0, "us": None, "stop": ""}
        row = found.setdefault(json.dumps(head), start)
        if n["kind"] == "choice":
            row["us"], row["stop"] = n.get("us"), n.get("stop")
        elif n["kind"] == "trial":
            row["trials"] += 1
            row["failed"] += "us" not in n
            known = [us for us in (row["us"], n.get("us")) if us is not None]
            row["us"] = row["us"] if row["stop"] else min(known, default=None)
    return list(found.values())


def prune(folder: Path, kept: Path | None = None) -> None:
    """Keep the fastest of every candidate and the last of every choice; of the compiled objects
    in ``kept`` the whole ones that were used lately."""
    before = _count(folder / NAME)
    if before:
        _write(folder / NAME, compact(read_lines(folder / NAME)))
    print(f"{before} lines before, {_count(folder / NAME)} now")
    if kept:
        dropped, left = objects.prune(kept)
        print(f"{dropped} objects dropped, {left} left in {kept}")


def merge(folder: Path, others: Iterable[str]) -> None:
    """Take the records of other files or folders in."""
    lines = list(read_lines(folder / NAME))
    for other in others:
        path = Path(other) / NAME if Path(other).is_dir() else Path(other)
        if not path.is_file():
            raise LumcError("E0201", f"cannot read {path}", exit=Exit.USAGE)
        if not (found := list(read_lines(path))) and path.stat().st_size:
            fix = "name what lumc cache export wrote, or a folder of records"
            raise LumcError("E0505", f"no records in {path}", fix=fix, exit=Exit.CORRUPT)
        lines += found
    private.make(folder)
    _write(folder / NAME, compact(lines))
    print(f"{_count(folder / NAME)} records in {folder / NAME}")


def export(folder: Path, output: str) -> None:
    """The records as one file."""
    artifact.write_text(output, _text(compact(read_lines(folder / NAME))))


def verify(folder: Path, kept: Path | None = None) -> None:
    """Read every line, and every compiled object in ``kept``. Raises E0505, exit 5, when some are
    damaged (a torn last line is not)."""
    path = folder / NAME
    raw = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    whole = [line for line in raw[:-1] if line]
    bad = sum(not _is_record(line) for line in whole)
    if bad:
        what = f"{bad} of {len(whole)} records are damaged or not of schema {SCHEMA}"
        fix = "drop them with: lumc cache prune"
        raise LumcError("E0505", what, where=str(path), fix=fix, exit=Exit.CORRUPT)
    torn = (
        [p.name for p in objects.every(kept) if not objects.is_whole(p, p.read_bytes())]
        if kept and objects.is_own(kept)
        else []
    )
    if torn:
        what, fix = f"{len(torn)} compiled objects are damaged", "drop them with: lumc cache prune"
        raise LumcError("E0505", what, where=str(kept), fix=fix, exit=Exit.CORRUPT)
    kinds = Counter(n["kind"] for n in read_lines(path))
    print(", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "no records")


def _is_record(line: bytes) -> bool:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("v") == SCHEMA


def _count(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.is_file() else 0


def _text(lines: Iterable[Line]) -> str:
    return "".join(json.dumps(n, separators=(",", ":")) + "\n" for n in lines)


def _write(path: Path, lines: Iterable[Line]) -> None:
    with artifact.atomic(path) as f:
        f.write(_text(lines).encode())
