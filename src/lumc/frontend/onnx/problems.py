"""What of a model is not supported, as one error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumc.errors import Exit, LumcError

if TYPE_CHECKING:
    from lumc.frontend.onnx.load import Source


INPUT = "Input"  # in the place of an operator


@dataclass(frozen=True)
class Problem:
    """One node that is not supported."""

    operator: str
    node: str
    opset: int
    reason: str
    fix: str = ""


def unsupported(source: Source, problems: Sequence[Problem]) -> LumcError:
    """One error for all operators that are not supported: counts, nodes, reasons, fixes."""
    inputs = [p.node for p in problems if p.operator == INPUT]
    counts = Counter(p.operator for p in problems if p.operator != INPUT)
    many = len(counts) + len(inputs) > 1
    names = [f"{name} ({n}x)" for name, n in sorted(counts.items())]
    said = ", ".join([*(f"input '{name}'" for name in inputs), *names])
    kinds = ((len(inputs), "input"), (len(counts), "operator"))
    are = " and ".join(f"{n} {what}{'s' * (n > 1)}" for n, what in kinds if n)
    why = f"{'are' if many else 'is'} not supported"
    if all("--dim" in p.fix for p in problems):
        why = "cannot be imported while dims are symbolic"
    what = f"import: {are} {why}: {said}"
    named = [f"'{p.node}'" for p in problems]
    nodes = ", ".join(named[:20]) + (f" and {len(named) - 20} more" if len(named) > 20 else "")
    where = "inputs" if not counts else "nodes and inputs" if inputs else "nodes"
    opsets = ", ".join(sorted({str(p.opset) for p in problems}))
    reasons = dict.fromkeys((p.operator, p.reason, p.fix) for p in problems)
    lines = [f"{op}: {why}" + (f"; {fix}" if fix else "") for op, why, fix in reasons]
    return LumcError(
        "E0312",
        what,
        where=f"{source.path}, {where} {nodes} (opset {opsets})",
        fix="\n         ".join(lines[:50]),
        exit=Exit.UNSUPPORTED,
    )


def unsupported_output(source: Source, name: str, why: str, fix: str) -> LumcError:
    what = f"import: output '{name}' is not supported: {why}"
    return LumcError("E0312", what, where=str(source.path), fix=fix, exit=Exit.UNSUPPORTED)
