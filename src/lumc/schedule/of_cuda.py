"""What only CUDA, or only Hopper, offers to schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lumc.schedule.case import Case


def maps(c: Case, _: Any, __: Any) -> tuple[int, ...]:
    """Blocks that share what tensor maps copy."""
    hopper = c.target.kind == "cuda" and c.target.generation == 90
    return (0, 1, 2)[: 3 if c.copies and hopper else 1]


def of_cuda(applies: Callable[[Case], bool]) -> dict[str, Any]:
    """Up to four of what only CUDA has, where it applies."""

    def values(c: Case, _: Any, __: Any) -> tuple[int, ...]:
        return (1, 2, 3, 4)[: 4 if c.target.kind == "cuda" and applies(c) else 1]

    def legal(c: Case, _: Any, __: Any, n: int) -> bool:
        return n == 1 or c.target.kind == "cuda"

    return {"values": values, "legal": legal}
