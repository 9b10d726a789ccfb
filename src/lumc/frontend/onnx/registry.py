"""Operator tables: rows are functions whose parameters are the operator's inputs and attributes.

Positional parameters are inputs, in ONNX's order and under ONNX's names; keyword-only parameters
are attributes with their defaults. A positional parameter may also be filled by an attribute of
its name, which is how older opsets pass what newer ones take as an input (``axes``, ``pads``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Function = Callable[..., Any]
PLAINLY = "leave it out, or write the node with plainer operators"


class Unsupported(Exception):
    """A row cannot express this node: the reason, and what the user can do about it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


class Tighten(Exception):
    """The model only makes sense up to a bound of a dim; the import starts again with it."""

    def __init__(self, dim: str, high: int) -> None:
        super().__init__(f"{dim} <= {high}")
        self.dim, self.high = dim, high


class Bind(Exception):
    """The graph needs the values of inputs that the caller offers; the import starts again with
    them."""

    def __init__(self, inputs: Sequence[str]) -> None:
        super().__init__(", ".join(inputs))
        self.inputs = tuple(inputs)


@dataclass(frozen=True)
class Row:
    """One operator from one opset on.

    ``known`` are the inputs whose values must be known at import; ``raw`` rows take their inputs
    as they are, known or not. Other inputs arrive as tensors.
    """

    domain: str
    name: str
    since: int
    function: Function
    known: tuple[str, ...] = ()
    raw: bool = False
    note: str = ""  # limits, for the documentation

    @cached_property
    def inputs(self) -> list[str]:
        """Names of the positional parameters; a variadic one starts with a star."""
        named = []
        for p in inspect.signature(self.function).parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                named.append("*" + p.name)
            elif p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "call":
                named.append(p.name)
        return named

    @cached_property
    def attributes(self) -> list[str]:
        parameters = inspect.signature(self.function).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    @cached_property
    def passes_on(self) -> bool:
        """Whether it takes any attribute, to hand them to another row."""
        parameters = inspect.signature(self.function).parameters.values()
        return any(p.kind is p.VAR_KEYWORD for p in parameters)

    @cached_property
    def wants_call(self) -> bool:
        return next(iter(inspect.signature(self.function).parameters), "") == "call"

    def arguments(
        self, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments; raises Unsupported for what the row does not know."""
        names = self.inputs
        if len(inputs) > len(names) and not (names and names[-1].startswith("*")):
            raise Unsupported(f"input {len(names) + 1} is not handled", PLAINLY)
        keywords = {}
        for name, value in attributes.items():
            late = name in names[len(inputs) :]
            if name not in self.attributes and not late and not self.passes_on:
                raise Unsupported(f"attribute '{name}' is not handled", PLAINLY)
            keywords[name] = value
        return list(inputs), keywords


OPERATORS: dict[tuple[str, str], list[Row]] = {}


def operator(
    *names: str,
    since: int = 1,
    domain: str = "",
    known: Sequence[str] = (),
    raw: bool = False,
    note: str = "",
) -> Callable[[Function], Function]:
    """Register a row under its ONNX names, for this opset and later ones."""

    def register(function: Function) -> Function:
        for name in names:
            rows = OPERATORS.setdefault((domain, name), [])
            rows.append(Row(domain, name, since, function, tuple(known), raw, note))
            rows.sort(key=lambda r: r.since)
        return function

    return register


def find(domain: str, name: str, opset: int) -> Row | None:
    """The row of an operator at an opset: the newest that is not newer."""
    rows = [r for r in OPERATORS.get((domain, name), []) if r.since <= opset]
    return rows[-1] if rows else None
