"""The saturated e-graph as plain data: classes of nodes, and the axes each class depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lumc.graph.expr import Expr, axis, make
from lumc.graph.ops import DType
from lumc.kernel import term
from lumc.kernel.key import COMMUTATIVE

# constructors of terms: how many leading arguments are literals; the rest are classes
LITERALS = {
    "Load": 2,
    "Const": 2,
    "Lit": 2,
    "Iota": 1,
    "Guard": 0,
    "Cast": 1,
    "Un": 1,
    "Bin": 1,
    "Red": 1,
    "WSum": 0,
}


@dataclass(frozen=True)
class ENode:
    """``op`` over literals and child classes; ``axis`` is what it binds."""

    op: str
    literals: tuple[Any, ...] = ()
    index: tuple[Expr | int, ...] = ()  # of Load, Iota, Guard; an int is the class of a dyn
    kids: tuple[int, ...] = ()
    axis: str = ""

    @property
    def below(self) -> tuple[int, ...]:
        """The classes that it needs."""
        return self.kids + tuple(i for i in self.index if isinstance(i, int))


@dataclass(frozen=True)
class EGraph:
    """``classes[c]`` are equal nodes; ``free[c]`` are the axes that their value depends on;
    ``root`` is the class of the whole, ``extent`` that of every axis, ``live`` the length of each
    live one as text."""

    classes: Mapping[int, tuple[ENode, ...]]
    free: Mapping[int, frozenset[str]]
    extent: Mapping[str, int]
    root: int
    live: Mapping[str, str]


def freeze(
    egg: Any,
    table: Sequence[Expr],
    extent: Mapping[str, int],
    root: str,
    live: Mapping[str, str],
) -> EGraph:
    """Read an egglog e-graph; ``table`` are the index expressions by number.

    A class depends on the intersection of what its members mention. A member that mentions more
    cannot be used where only those axes exist; it is dropped, and never the last one: raises
    RuntimeError where none is left.
    """
    reader = _Reader(egg, table)
    kept: dict[int, tuple[ENode, ...]] = {}
    for c, nodes in reader.nodes.items():
        scope = reader.free[c]
        kept[c] = tuple(dict.fromkeys(n for n in nodes if reader.mentions(n) <= scope))
        if not kept[c]:
            raise RuntimeError(f"class {c} has no node within its axes {sorted(scope)}")
    return EGraph(kept, reader.free, extent, reader.root(root), live)


class _Reader:
    def __init__(self, egg: Any, table: Sequence[Expr]) -> None:
        self.table, self.functions = table, egg.freeze().functions
        self.literal = {
            "String": egg.value_to_string,
            "i64": egg.value_to_i64,
            "f64": egg.value_to_f64,
        }
        self.numbers: dict[tuple[str, Any], int] = {}
        every = (*self._rows("Axis"), *self._rows("Live"))
        self.axes = {value: name for name, _, value in every}
        self.free = {
            self._class("E", row.inputs[0]): frozenset(
                self.axes[self._class("Ax", v)] for v in egg.value_to_set(row.output)
            )
            for row in self.functions["free"].rows
        }
        self.lists = self._index_lists()
        self.nodes: dict[int, list[ENode]] = {}
        for op, literals in LITERALS.items():
            for *args, value in self._rows(op):
                node = self._node(op, tuple(args[:literals]), args[literals:])
                # a load at an index that no law resolved has no free axes, nor has what needs it
                if node and value in self.free and all(c in self.free for c in node.below):
                    self.nodes.setdefault(value, []).append(node)

    def root(self, name: str) -> int:
        return self._class("E", self.functions[name].rows[0].output)

    def _class(self, sort: str, value: Any) -> int:
        return self.numbers.setdefault((sort, value), len(self.numbers))

    def _rows(self, name: str) -> list[list[Any]]:
        """The rows of a constructor: literals as they are, terms as class numbers."""
        f = self.functions[name]
        read = [self.literal.get(s, lambda v, s=s: self._class(s, v)) for s in f.input_sorts]
        return [
            [r(v) for r, v in zip(read, row.inputs, strict=True)]
            + [self._class(f.output_sort, row.output)]
            for row in f.rows
            if not row.subsumed
        ]

    def _index_lists(self) -> dict[int, tuple[Expr | int, ...]]:
        """Index lists by class; one that still has a Put in it has no entry."""
        single: dict[int, Expr | int] = {}
        for ax, value in self._rows("IAx"):
            single[value] = axis(self.axes[ax])
        for e, value in self._rows("IDyn"):
            single[value] = e
        for number, _, value in self._rows("IExp"):
            single[value] = self.table[number]
        self.single = single
        lists: dict[int, tuple[Expr | int, ...]] = {v: () for (v,) in self._rows("INil")}
        cells = self._rows("ICons")
        while left := [c for c in cells if c[2] not in lists and c[1] in lists]:
            for head, tail, value in left:
                lists[value] = (single[head], *lists[tail])
        return lists

    def _node(self, op: str, literals: tuple[Any, ...], args: list[int]) -> ENode | None:
        match op:
            case "Load" if args[0] not in self.lists:
                return None
            case "Load":
                return ENode(op, literals, self.lists[args[0]])
            case "Iota":
                return ENode(op, literals, (self.single[args[0]],))
            case "Guard":
                return ENode(op, tuple(args[1:3]), (self.single[args[0]],), (args[3],))
            case "Red" | "WSum":
                return ENode(op, literals, (), tuple(args[1:]), self.axes[args[0]])
            case "Bin" if literals[0] in COMMUTATIVE:
                args = sorted(args)
        return ENode(op, literals, (), tuple(args))

    def mentions(self, node: ENode) -> frozenset[str]:
        own = frozenset[str]().union(*(i.free for i in node.index if isinstance(i, Expr)))
        below = frozenset[str]().union(*(self.free[c] for c in node.below))
        return (own | below) - {node.axis}


def build(node: ENode, index: tuple[Expr, ...], kids: Sequence[Expr], bound: str = "") -> Expr:
    """The term of a node over the terms of its parts; ``bound`` names the axis that it binds."""
    match node.op:
        case "Lit":
            return term.const(literal(*node.literals), DType(node.literals[0]))
        case "Red":
            return term.reduce(node.literals[0], bound, kids[0])
        case "WSum":
            return term.wsum(bound, *kids)
    return make(node.op.lower(), node.literals, (*index, *kids))


def literal(dtype: str, text: str) -> float | int | bool:
    """The value of a ``Lit`` of this dtype."""
    if dtype == "bool":
        return text == "True"
    return float(text) if DType(dtype).is_float else int(text)
