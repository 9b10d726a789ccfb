"""The algebraic variants of a region: one term per set of reductions.

An e-graph holds astronomically many terms, but most differ only in the order of products and
sums. What matters is which reductions a term contains. Two steps: a fixpoint finds, per class,
the cheapest sets of reductions; then, for each set of the root, every class gets its one
cheapest node that uses no other reduction. One node per class means that a term is costed as a
DAG: no value is computed in two forms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lumc.graph.expr import Expr, axis, substitute
from lumc.graph.graph import reachable
from lumc.kernel import term
from lumc.kernel.bound import COST, WEIGHT
from lumc.search.egraph import EGraph, ENode, build

KEPT = 16  # sets of reductions kept per class
TRIED = 4  # of those, how many a parent combines
ROUNDS = 40
SHARING = 4  # rounds of extraction with shared prices

Choice = Mapping[int, ENode]
Signature = frozenset[int]  # numbers of reduction nodes


def variants(graph: EGraph, limit: int) -> list[Choice]:
    """The node of every class, for the cheapest sets of reductions; cheapest first, at most
    ``limit``."""
    usable = {c: tuple(n for n in ns if is_usable(graph, n)) for c, ns in graph.classes.items()}
    graph = replace(graph, classes=usable)
    search = _Sets(graph)
    search.run()
    out: dict[tuple[object, ...], Choice] = {}
    for signature in search.best(graph.root)[: 2 * limit]:
        choice = cheapest(graph, [search.reductions[r] for r in signature])
        if graph.root in choice:
            used = _used(graph, choice)
            out.setdefault(tuple((c, choice[c]) for c in used), choice)
    return list(out.values())[:limit]


def _used(graph: EGraph, choice: Choice) -> list[int]:
    """The classes below the root, in order of their numbers."""
    return sorted(reachable([graph.root], lambda c: choice[c].below))


def cost(graph: EGraph, c: int, node: ENode) -> float:
    """Operations of one node: per point of its class, and of the axis that it binds. A load is a
    quarter of one."""
    points = math.prod(graph.extent[a] for a in graph.free[c] | ({node.axis} - {""}))
    match node.op:
        case "Un" | "Bin":
            return float(points * COST.get(node.literals[0], 1))
        case "WSum":
            return 2.0 * points
        case "Red" | "Cast" | "Guard":
            return float(points)
        case "Load":
            return 0.25 * points
    return 1e-3


def weight_cost(graph: EGraph, node: ENode) -> float:
    """Operations for the weights of a ``WSum``: maximum, difference and exponential."""
    axes = graph.free[node.kids[0]] | {node.axis}
    return float(WEIGHT) * math.prod(graph.extent[a] for a in axes)


def is_usable(graph: EGraph, node: ENode) -> bool:
    """Whether a node may be chosen: a product of two constants that did not fold would overflow or
    vanish."""
    if node.op == "Bin" and node.literals[0] == "mul":
        return not all(any(n.op == "Const" for n in graph.classes[k]) for k in node.kids)
    return True


def bottom_up(graph: EGraph) -> list[int]:
    """The classes in an order in which each has a node that needs earlier ones only."""
    order: dict[int, None] = {}
    ready = left = list(graph.classes)
    while ready:
        ready = [c for c in left if any(order.keys() >= set(n.below) for n in graph.classes[c])]
        order.update(dict.fromkeys(ready))
        left = [c for c in left if c not in order]
    return list(order)


@dataclass
class _Sets:
    """Per class: sets of reductions with the cost of everything else, cheapest first."""

    graph: EGraph
    reductions: list[tuple[int, ENode]] = field(default_factory=list)
    price: list[float] = field(default_factory=list)
    entries: dict[int, dict[Signature, float]] = field(default_factory=dict)
    ranked: dict[int, list[Signature]] = field(default_factory=dict)  # the cheapest first
    total: dict[Signature, float] = field(default_factory=dict)  # of a set of reductions

    def run(self) -> None:
        """Bottom up, then again where something changed."""
        nodes = [  # class, node, itself if it is a reduction
            (c, node, self._number(c, node))
            for c, members in self.graph.classes.items()
            for node in members
        ]
        place = {c: i for i, c in enumerate(bottom_up(self.graph))}
        nodes = sorted((n for n in nodes if n[0] in place), key=lambda n: place[n[0]])
        readers: dict[int, list[int]] = {}
        for i, (_, node, _) in enumerate(nodes):
            for k in dict.fromkeys(node.below):
                readers.setdefault(k, []).append(i)
        work: Iterable[int] = range(len(nodes))
        for _ in range(ROUNDS):
            changed: set[int] = set()
            for n in work:
                if self._visit(*nodes[n]):
                    changed.add(nodes[n][0])
            work = sorted({n for c in changed for n in readers.get(c, ())})
            if not work:
                return

    def _number(self, c: int, node: ENode) -> Signature:
        if node.op not in ("Red", "WSum"):
            return frozenset()
        self.reductions.append((c, node))
        self.price.append(cost(self.graph, c, node))
        return frozenset({len(self.reductions) - 1})

    def best(self, c: int) -> list[Signature]:
        if c not in self.ranked:
            mine = self.entries.get(c, {})
            price = {s: (self._cost(s) + us, len(s), sorted(s)) for s, us in mine.items()}
            self.ranked[c] = sorted(mine, key=price.__getitem__)
        return self.ranked[c]

    def _cost(self, signature: Signature) -> float:
        if signature not in self.total:
            order = sorted(signature)
            weights = {
                n.kids[0]: n for _, n in (self.reductions[r] for r in order) if n.op == "WSum"
            }
            exponentials = sum(weight_cost(self.graph, n) for n in weights.values())
            self.total[signature] = sum(self.price[r] for r in order) + exponentials
        return self.total[signature]

    def _visit(self, c: int, node: ENode, itself: Signature) -> bool:
        """Combine the best entries of the node's parts; whether the class got a new one."""
        below = node.below
        if any(k not in self.entries for k in below):
            return False
        own = 0.0 if itself else cost(self.graph, c, node)
        mine = self.entries.setdefault(c, {})
        before = dict(mine)
        for parts in itertools.product(*(self.best(k)[:TRIED] for k in below)):
            below_it = frozenset[int]().union(*parts)
            classes = [self.reductions[r][0] for r in (*below_it, *itself)]
            if len(set(classes)) < len(classes):
                continue  # two reductions of one class
            signature = below_it | itself
            price = own + sum(self.entries[k][s] for k, s in zip(below, parts, strict=True))
            if price < mine.get(signature, math.inf) - 1e-9:
                mine[signature] = price
        if mine == before:
            return False
        self.ranked.pop(c, None)
        for worst in self.best(c)[KEPT:]:
            del mine[worst]
        del self.ranked[c][KEPT:]
        return mine != before


def cheapest(graph: EGraph, allowed: Sequence[tuple[int, ENode]]) -> Choice:
    """One node per class, with no reductions but the allowed ones, which cost nothing more.

    The first round costs terms as trees. In the next ones the price of a value is divided by
    its number of users in the round before, so that shared values become attractive; the
    choice that is cheapest as a DAG wins. Nodes are then limited to parts that are cheaper
    as trees, which excludes cycles.
    """
    permitted = set(allowed)
    members = {
        c: [
            (n, 1e-3 if n.op in ("Red", "WSum") else cost(graph, c, n) + 1e-6)
            for n in nodes
            if n.op not in ("Red", "WSum") or (c, n) in permitted
        ]
        for c, nodes in graph.classes.items()
    }
    tree, choice = _as_trees(members)
    below = {
        c: [
            (n, own)
            for n, own in members[c]
            if all(tree.get(k, math.inf) < tree[c] for k in n.below)
        ]
        for c in sorted(choice, key=lambda c: (tree[c], c))
    }
    best: tuple[float, Choice] = (math.inf, choice)
    for _ in range(SHARING if graph.root in choice else 0):
        used = _used(graph, choice)
        total = sum(own for c in used for n, own in members[c] if n == choice[c])
        if total < best[0]:
            best = total, choice
        users: dict[int, int] = {}
        for c in used:
            for k in choice[c].below:
                users[k] = users.get(k, 0) + 1
        price: dict[int, float] = {}
        choice = {}
        for c, nodes in below.items():
            prices = [own + sum(price[k] / users.get(k, 1) for k in n.below) for n, own in nodes]
            price[c] = min(prices)
            choice[c] = nodes[prices.index(price[c])][0]
    return best[1]


def _as_trees(
    members: Mapping[int, Sequence[tuple[ENode, float]]],
) -> tuple[dict[int, float], dict[int, ENode]]:
    """Price and node of every class when nothing is shared: more than that of any part, even where
    that is too large to count the node itself."""
    price: dict[int, float] = {}
    chosen: dict[int, ENode] = {}
    parts = {c: [(n, own, n.below) for n, own in nodes] for c, nodes in members.items()}
    readers: dict[int, set[int]] = {}
    for c, nodes in parts.items():
        for k in (k for _, _, below in nodes for k in below):
            readers.setdefault(k, set()).add(c)
    left = set(members)  # those with a part that became cheaper
    while left:
        for c in (c for c in members if c in left):
            left.remove(c)
            for node, own, below in parts[c]:
                us = [price.get(k, math.inf) for k in below]
                total, most = own + sum(us), max(us, default=0.0)
                total = total if total > most else math.nextafter(most, math.inf)
                if total < price.get(c, math.inf) * (1 - 1e-12):
                    price[c], chosen[c] = total, node
                    left |= readers.get(c, set())
    return price, chosen


# ---- the term of a choice


def extract(graph: EGraph, choice: Choice, names: Mapping[str, str]) -> tuple[Expr, dict[str, str]]:
    """The term of the root, and for its bound axes others of the same extent and length;
    ``names`` renames the free ones.

    A bound axis is named by its extent (of a live one also by the number of its length) and its
    height, 1 + the binders below it: the name depends on the term alone, so equal terms stay equal
    wherever they are used, and nested binders never clash. A sum of sums becomes one sum over
    several axes of one height.
    """
    extraction = _Extraction(graph, choice)
    return extraction.visit(graph.root, names), extraction.alike


class _Extraction:
    def __init__(self, graph: EGraph, choice: Choice) -> None:
        self.graph, self.choice = graph, choice
        self.rank = {a: i for i, a in enumerate(graph.extent)}
        self.heights: dict[int, int] = {}
        lengths = {text: f"n{i}" for i, text in enumerate(sorted({*graph.live.values()}))}
        self.stems = {
            a: f"k{n}{lengths.get(graph.live.get(a, ''), '')}" for a, n in graph.extent.items()
        }
        self.alike: dict[str, str] = {}
        self.memo: dict[tuple[int, tuple[tuple[str, str], ...]], Expr] = {}

    def chain(self, c: int) -> tuple[list[str], int]:
        """The axes of nested reductions of one kind, in order of creation; the body's class."""
        node, axes = self.choice[c], list[str]()
        while True:
            axes.append(node.axis)
            inner = self.choice[node.kids[0]]
            if node.op != "Red" or (inner.op, inner.literals) != (node.op, node.literals):
                return sorted(axes, key=lambda a: self.rank[a]), node.kids[0]
            node = inner

    def height(self, c: int) -> int:
        if c not in self.heights:
            node = self.choice[c]
            below = self.chain(c)[1:] if node.op == "Red" else node.below
            self.heights[c] = max((self.height(k) for k in below), default=0) + bool(node.axis)
        return self.heights[c]

    def visit(self, c: int, env: Mapping[str, str]) -> Expr:
        scope = {a: env[a] for a in sorted(self.graph.free[c])}
        key = (c, tuple(scope.items()))
        if key not in self.memo:
            self.memo[key] = self._expand(c, scope)
        return self.memo[key]

    def _expand(self, c: int, env: Mapping[str, str]) -> Expr:
        node = self.choice[c]
        if node.op == "Red":
            axes, body = self.chain(c)
            bound = self._bound(axes, self.height(c))
            names = [bound[a] for a in axes]
            return term.reduce(node.literals[0], names, self.visit(body, {**env, **bound}))
        bound = self._bound([node.axis], self.height(c)) if node.axis else {}
        env = {**env, **bound}
        renaming = {axis(old): axis(new) for old, new in env.items()}
        index = tuple(
            substitute(i, renaming) if isinstance(i, Expr) else term.dyn(self.visit(i, env))
            for i in node.index
        )
        return build(node, index, [self.visit(k, env) for k in node.kids], *bound.values())

    def _bound(self, axes: Sequence[str], height: int) -> dict[str, str]:
        """Names of bound axes; those of one extent in one reduction are told apart by a letter."""
        out: dict[str, str] = {}
        for a in axes:
            same = sum(self.stems[a] == self.stems[b] for b in out)
            out[a] = f"{self.stems[a]}_{height}" + (chr(ord("a") + same) if same else "")
            self.alike[out[a]] = a
        return out
