"""Operator tables: rows are functions whose parameters are those of an operator's schema, with the
same names and defaults. Parameters ``model`` and ``meta`` are the model that the result belongs to,
and what the program says of the first tensor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lumc.frontend.api.halves import in_f32
from lumc.frontend.aten.program import Foreign

Function = Callable[..., Any]
PLAINLY = "leave it out, or write the call with plainer operators"
# arguments that do not change what is computed
SILENT = frozenset(
    [
        "layout",
        "device",
        "pin_memory",
        "memory_format",
        "non_blocking",
        "copy",
        "implicit",
        "sparse_grad",
        "scale_grad_by_freq",
        "sparse",
        "cudnn_enabled",
        "cudnn_enable",
        "stable",
    ]
)


class Unsupported(Exception):
    """A row cannot express this call: the reason, and what the user can do about it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


@dataclass(frozen=True)
class Row:
    """One operator, under the name that its targets have: ``aten.add.Tensor``."""

    name: str
    function: Function
    note: str = ""  # limits, for the documentation

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those of the schema, by name."""
        found = inspect.signature(self.function).parameters
        return {n: p for n, p in found.items() if n not in ("model", "meta")}

    @cached_property
    def wants(self) -> tuple[str, ...]:
        """Which of ``model`` and ``meta``, what is said of the first tensor, it also takes."""
        found = inspect.signature(self.function).parameters
        return tuple(n for n in ("model", "meta") if n in found)

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, without what does not matter; raises Unsupported for what the row does
        not know."""
        kept = {n: v for n, v in given.items() if n in self.parameters or n not in SILENT}
        for name, value in kept.items():
            if name not in self.parameters:
                raise Unsupported(f"argument '{name}' is not handled", PLAINLY)
            if isinstance(value, Foreign):
                raise Unsupported(f"{name}: {value.says} is not supported")
        for name, p in self.parameters.items():
            if p.default is p.empty and name not in kept:
                raise ValueError(f"argument '{name}' is missing")
        return kept


ROWS: dict[str, Row] = {}


def placed(target: str, values: Sequence[Any]) -> dict[str, Any]:
    """Arguments by place, of what is no ATen operator, under the names of the row."""
    row = ROWS.get(target)
    names = list(row.parameters) if row else [f"a{i}" for i in range(len(values))]
    if len(values) > len(names):
        raise ValueError(f"{len(values)} arguments of {target}")
    return dict(zip(names, values, strict=False))


def aten(*names: str, halves: bool = False, note: str = "") -> Callable[[Function], Function]:
    """Register a row under its names, with their overloads. Floats of 16 bits are computed with in
    f32, and rounded once, but for rows that take ``halves`` as they are."""

    def register(function: Function) -> Function:
        called = function if halves else in_f32(function)
        for name in names:
            target = name if name.startswith(("_operator", "torch", "math")) else f"aten.{name}"
            if target in ROWS:
                raise ValueError(f"{target} has two rows")
            ROWS[target] = Row(target, called, note)
        return function

    return register
