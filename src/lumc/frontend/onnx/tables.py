"""All operator tables: importing this module registers every row."""

from __future__ import annotations

from lumc.frontend.onnx import (
    ops_attention,
    ops_blocks,
    ops_contract,
    ops_contrib,
    ops_control,
    ops_count,
    ops_grouped,
    ops_index,
    ops_logic,
    ops_math,
    ops_ml,
    ops_norm,
    ops_qlinear,
    ops_quantize,
    ops_random,
    ops_recurrent,
    ops_reduce,
    ops_region,
    ops_resize,
    ops_sample,
    ops_shape,
    ops_train,
    ops_window,
)
from lumc.frontend.onnx.refused import REASONS
from lumc.frontend.onnx.registry import OPERATORS, Row

TABLES = (
    ops_math,
    ops_logic,
    ops_shape,
    ops_index,
    ops_reduce,
    ops_contract,
    ops_window,
    ops_resize,
    ops_norm,
    ops_recurrent,
    ops_control,
    ops_quantize,
    ops_sample,
    ops_region,
    ops_count,
    ops_random,
    ops_ml,
    ops_train,
    ops_contrib,
    ops_attention,
    ops_grouped,
    ops_blocks,
    ops_qlinear,
)


def markdown() -> str:
    """The tables of docs/onnx.md: operators by topic with their limits, and the refused ones."""
    lines = ["| topic | operators |", "|---|---|"]
    for module in TABLES:
        topic = (module.__doc__ or "").split("\n")[0].rstrip(".")
        lines.append(f"| {topic} | {', '.join(_names(module.__name__))} |")
    lines += ["", "| operator | limits |", "|---|---|"]
    newest = {name: rows[-1] for (_, name), rows in sorted(OPERATORS.items())}
    lines += [f"| {name} | {limits(row)} |" for name, row in newest.items() if limits(row)]
    lines += ["", "| not supported | why | instead |", "|---|---|---|"]
    lines += [f"| {name} | {why} | {fix} |" for name, (why, fix) in sorted(REASONS.items())]
    return "\n".join(lines) + "\n"


def _names(module: str) -> list[str]:
    rows = [row for rows in OPERATORS.values() for row in rows if row.function.__module__ == module]
    return sorted({f"{row.domain}.{row.name}" if row.domain else row.name for row in rows})


def limits(row: Row) -> str:
    """What has to be known at import, and the note of the row."""
    named = ", ".join(f"`{name}`" for name in row.known)
    known = f"{named} known at import" if named else ""
    return "; ".join(part for part in (known, row.note) if part)
