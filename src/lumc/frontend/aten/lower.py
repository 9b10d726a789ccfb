"""The walk over a program: every node that an output needs becomes tensor operations by its row.

A node that cannot be lowered becomes a ``Problem``, and its results poison what reads them; the
walk goes on, so that one run finds all problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.names import clean
from lumc.frontend.api.operand import whole_node
from lumc.frontend.api.symbols import Undecided
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.program import (
    Foreign,
    Meta,
    Node,
    Program,
    Writes,
    functional,
    needed,
    refs,
    resolved,
)
from lumc.frontend.aten.refused import BROKEN, REASONS, SIMPLER, UNKNOWN
from lumc.frontend.aten.registry import ROWS, Row, Unsupported
from lumc.graph.expr import Expr
from lumc.graph.verify import STATEMENTS


class Poison:
    """The result of a node that could not be lowered."""


POISON = Poison()


class Wrong(Exception):
    """A node does not give what the program says that it gives, or has other arguments than its
    operator."""


@dataclass(frozen=True)
class Problem:
    """One node that is not supported."""

    target: str
    node: Node
    reason: str
    fix: str = ""


@dataclass
class Lowering:
    """One import: the model under construction and the problems found so far."""

    model: Model
    program: Program
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self.program = functional(self.program)
        except Writes as e:
            self.problems.append(Problem(e.node.target, e.node, e.reason, SIMPLER))
            raise self.unsupported() from None
        self.nodes, self.wanted = needed(self.program)

    def run(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The outputs by name, and what buffers become; ``given`` are the inputs of the program
        that nodes read. Raises E0352 for what is not supported, Wrong."""
        values = dict(given)
        for node in self.nodes:
            for name, value in zip(node.outputs, self.node(node, values), strict=True):
                if name is not None:
                    values[name] = value
                    self._entitle(value, name)
        if self.problems:
            raise self.unsupported()
        try:
            ends = self.program.outputs, self.program.writes
            found, left = ({n: resolved(v, values.__getitem__) for n, v in e.items()} for e in ends)
        except KeyError as e:
            raise Wrong(f"nothing computes {e}") from None
        for value in (*found.values(), *left.values()):
            if isinstance(value, Missing):
                reason = "a result of it that is not computed is one of the model"
                self.problems.append(Problem(value.node.target, value.node, reason))
        if self.problems:
            raise self.unsupported()
        return found, left

    def node(self, node: Node, values: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs of one node; a problem is noted and gives poison."""
        poison = [POISON] * len(node.outputs)
        row = ROWS.get(plain_target(node.target))
        try:
            if row is None:
                raise Unsupported(*_why_not(node.target))
            arguments = _arguments(node, values)
            if any(_poisoned(v) for v in arguments.values()):
                return poison
            self.model.origin = f"{node.name} ({node.target}){node.origin and ' ' + node.origin}"
            return self._fitted(node, self._call(row, node, arguments))
        except Unsupported as e:
            self.problems.append(Problem(node.target, node, e.reason, e.fix))
        except Undecided as e:
            self.problems.append(Problem(node.target, node, f"{e} is not decided", self._bind()))
        except LumcError as e:
            if e.exit is not Exit.UNSUPPORTED:
                raise
            fix = e.fix or self._bind() or BROKEN
            self.problems.append(Problem(node.target, node, e.what, fix))
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as e:
            raise Wrong(f"node '{node.name}' ({node.target}): {type(e).__name__}: {e}") from e
        return poison

    def _bind(self) -> str:
        bind = " ".join(f"--dim {d}=.." for d in self.model.dims)
        return bind and f"bind dims: {bind}"

    def _call(self, row: Row, node: Node, arguments: Mapping[str, Any]) -> Any:
        given = row.arguments(arguments)
        if "model" in row.wants:
            given["model"] = self.model
        if "meta" in row.wants:
            first = next((name for v in node.inputs.values() for name in refs(v)), "")
            given["meta"] = self.program.metas.get(first)
        return row.function(**given)

    def _fitted(self, node: Node, result: Any) -> Sequence[Any]:
        """The results in the dtypes that the program says; raises Wrong for other shapes."""
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if node.listed and len(parts) != len(node.outputs):
            raise Wrong(f"node '{node.name}' gives {len(parts)} of {len(node.outputs)} results")
        parts += [None] * (len(node.outputs) - len(parts))
        fitted = list[Any]()
        for name, part in zip(node.outputs, parts, strict=False):
            meta = self.program.metas.get(name) if name is not None else None
            fitted.append(self._checked(node, part, meta) if meta is not None else part)
        return fitted

    def _checked(self, node: Node, part: Any, meta: Meta) -> Any:
        if isinstance(meta.dtype, Foreign):
            raise Unsupported(f"its result is of {meta.dtype.says}", "compute in another dtype")
        if isinstance(part, int | float | Expr) and not meta.shape:
            part = number(self.model, part)
        if not isinstance(part, Tensor):  # a result that rows leave out, as nothing reads it
            return Missing(node)
        same = len(part.shape) == len(meta.shape) and all(
            m is None or not isinstance(e, int) or e == m
            for e, m in zip(part.shape, meta.shape, strict=True)
        )
        if not same:
            raise Wrong(f"node '{node.name}' ({node.target}) gives {part.describe()}, not {meta}")
        return part.to(meta.dtype)

    def _entitle(self, value: Any, name: str) -> None:
        """Name the node that computes a value after the value."""
        if isinstance(value, Tensor) and whole_node(value) is not None:
            self.model.name(value, clean(name) + "_" * (clean(name) in STATEMENTS))

    def unsupported(self) -> LumcError:
        """One error for all nodes that are not supported: counts, nodes, reasons, fixes."""
        counts = Counter(p.target for p in self.problems)
        said = ", ".join(f"{name} ({n}x)" for name, n in sorted(counts.items()))
        are = "operator is" if len(counts) == 1 else "operators are"
        named = [
            f"'{p.node.name}'" + (f" ({p.node.origin})" if p.node.origin else "")
            for p in self.problems
        ]
        nodes = ", ".join(named[:20]) + (f" and {len(named) - 20} more" if len(named) > 20 else "")
        reasons = dict.fromkeys((p.target, p.reason, p.fix) for p in self.problems)
        lines = [f"{op}: {why}" + (f"; {fix}" if fix else "") for op, why, fix in reasons]
        return LumcError(
            "E0352",
            f"import: {len(counts)} {are} not supported: {said}",
            where=f"{self.program.where}, nodes {nodes}",
            fix="\n         ".join(lines[:50]),
            exit=Exit.UNSUPPORTED,
        )


class Missing:
    """A result that a row leaves out."""

    def __init__(self, node: Node) -> None:
        self.node = node


def _arguments(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a node, by name. Raises Wrong for a value that no node before it computes."""
    try:
        return {k: resolved(v, values.__getitem__) for k, v in node.inputs.items()}
    except KeyError as e:
        said = f"node '{node.name}' ({node.target}) reads {e}, which nothing computes before it"
        raise Wrong(said) from None


def _poisoned(value: Any) -> bool:
    if isinstance(value, list):
        return any(_poisoned(v) for v in value)
    if isinstance(value, Missing):
        raise Unsupported(f"it reads a result of '{value.node.name}' that is not computed")
    return isinstance(value, Poison)


def plain_target(target: str) -> str:
    """The operator that computes what one that writes writes."""
    parts = target.split(".")
    if parts[0] == "aten" and parts[1].endswith("_") and not parts[1].endswith("__"):
        parts[1] = parts[1].removesuffix("_")
    return ".".join(parts)


def _why_not(target: str) -> tuple[str, str]:
    name = target.split(".")[1] if target.startswith("aten.") else target
    return REASONS.get(name, UNKNOWN if target.startswith("aten.") else FOREIGN)


FOREIGN = ("it is no operator of ATen", "write the model without it")


def number(model: Model, value: Any) -> Tensor:
    """A number or an extent as a tensor of shape ()."""
    if isinstance(value, Expr):
        return model.size(value, "i64")
    kind = "bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"
    return model.full((), value, kind)
