"""All operator tables: importing this module registers every row."""

from __future__ import annotations

from lumc.frontend.aten import (
    ops_backward,
    ops_contract,
    ops_create,
    ops_elementwise,
    ops_functions,
    ops_lookup,
    ops_more,
    ops_norm,
    ops_recurrent,
    ops_reduce,
    ops_sample,
    ops_shape,
    ops_sizes,
    ops_window,
)
from lumc.frontend.aten.refused import REASONS
from lumc.frontend.aten.registry import ROWS

TABLES = (
    ops_elementwise,
    ops_functions,
    ops_shape,
    ops_create,
    ops_lookup,
    ops_reduce,
    ops_contract,
    ops_window,
    ops_norm,
    ops_sample,
    ops_recurrent,
    ops_more,
    ops_sizes,
    ops_backward,
)


def markdown() -> str:
    """The tables of docs/pytorch.md: operators by topic, their limits, and the refused ones."""
    lines = ["| topic | operators |", "|---|---|"]
    for module in TABLES:
        topic = (module.__doc__ or "").split("\n")[0].rstrip(".")
        lines.append(f"| {topic} | {', '.join(_names(module.__name__))} |")
    noted = {_short(name): row.note for name, row in sorted(ROWS.items()) if row.note}
    lines += ["", "| operator | limits |", "|---|---|"]
    lines += [f"| {name} | {note} |" for name, note in noted.items()]
    lines += ["", "| not supported | why | instead |", "|---|---|---|"]
    lines += [f"| {name} | {why} | {fix} |" for name, (why, fix) in sorted(REASONS.items())]
    return "\n".join(lines) + "\n"


def _names(module: str) -> list[str]:
    """Operators without their overloads."""
    found = {_short(n) for n, row in ROWS.items() if row.function.__module__ == module}
    return sorted(found)


def _short(target: str) -> str:
    return target.split(".")[1] if target.startswith("aten.") else target
