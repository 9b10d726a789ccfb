"""How much a plan computes and loads, beside what its graph asks for.

Counted are operations (a multiply-add is two) and elements that are loaded, whatever lanes and
register tiles do: a value is computed where the last axis it depends on is open, an operand of a
contraction is loaded once for every tile. A kernel that computes a value again in each of its
readers, or copies an operand in every tile, shows; one that only runs badly does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lumc.codegen.tile.abreast import stores
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import (
    Block,
    Case,
    Contract,
    Leaf,
    Map,
    Op,
    Par,
    Program,
    Range,
    Reduce,
    Rows,
    When,
)
from lumc.graph.expr import Expr, subterms
from lumc.graph.graph import Entry, Graph, Node, reachable
from lumc.graph.ops import Op as Primitive
from lumc.kernel.instance import Instance, whole_of
from lumc.schedule.plan import Plan

ARITHMETIC = ("un", "bin", "where")
Nest = tuple[tuple[str, float], ...]  # axes of the loops around, and iterations


@dataclass(frozen=True)
class Count:
    """Operations, and loaded elements."""

    flops: float = 0.0
    loads: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(self.flops + other.flops, self.loads + other.loads)

    def __mul__(self, times: float) -> Count:
        return Count(self.flops * times, self.loads * times)

    def over(self, other: Count) -> float:
        """How many times the other one this is, in what it is worse."""
        return max(self.flops / max(other.flops, 1.0), self.loads / max(other.loads, 1.0))


@dataclass(frozen=True)
class Excess:
    """What an instance of a region does, and what its part of the graph needs."""

    instance: Instance
    done: Count
    needed: Count

    @property
    def times(self) -> float:
        return self.done.over(self.needed)


# ---- of tile programs


def of_program(program: Program) -> Count:
    """What one run of a kernel does."""
    return _sum(of_operation(program, op) * times for op, times in operations(program))


def operations(program: Program) -> Iterator[tuple[Leaf, float]]:
    """Everything that is not a loop, in program order, and how often it is done."""
    yield from _walk(program, program.body, ())


def _walk(program: Program, body: Sequence[Op], nest: Nest) -> Iterator[tuple[Leaf, float]]:
    for op in body:
        match op:
            case Par():
                inner = tuple((loop.axis, float(loop.count)) for loop in op.loops)
                yield from _walk(program, op.body, nest + inner)
            case Block():
                yield from _walk(program, op.body, (*nest, *op.loop.turns))
            case Rows():
                own = (op.axis, mean_size(program, op.axis, op.range))
                yield from _walk(program, op.body, (*nest, own))
            case Case():
                yield from _walk(program, op.body, (*nest, (op.axis, op.share)))
            case When():
                left = tuple(n for n in nest if n[0] not in op.first)
                yield from _walk(program, op.body, left)
            case _:
                yield op, prod(n for _, n in nest)


def mean_size(program: Program, axis: str, r: Range) -> float:
    """Values that an axis takes in a tile, on average over all of them."""
    if len(r.sizes) == 1:
        return float(r.largest)
    extent = program.kernel.extent.get(axis, r.largest)
    return extent / -(-extent // r.largest)


def of_operation(program: Program, op: Leaf) -> Count:
    """What it does once."""
    axes = op.axes if isinstance(op, Map) else op.kept + op.red
    own = {a: mean_size(program, a, op.ranges[a]) for a in axes}
    match op:
        case Map():
            axes, values = stores(op)
            return _terms([e for _, e in values], {a: own[a] for a in axes})
        case Reduce():
            terms = [*(o.term for o in op.outputs), *(term for _, term in op.stores)]
            after = of_operation(program, op.then) if op.then else Count()
            return _terms(terms, own) + Count(len(op.outputs) * prod(own.values())) + after
        case Contract():
            own |= op.means
            loads = (prod(own[a] for a in e.free if a in own) for e in (op.a, op.b))
            return Count(2 * prod(own.values()), sum(loads))


def _terms(terms: Iterable[Expr], own: Mapping[str, float]) -> Count:
    """Every distinct value once, where the last of its axes is open."""
    order, flops, loads = list(own), 0.0, 0.0
    for e in subterms(*terms):
        inner = max((order.index(a) + 1 for a in e.free if a in own), default=0)
        points = prod(own[a] for a in order[:inner])
        flops += points * (e.kind in ARITHMETIC)
        loads += points * (e.kind == "load")
    return Count(flops, loads)


# ---- of graphs


def of_nodes(nodes: Iterable[Node]) -> Count:
    """What nodes need if each reads its operands once for every point, and stores its elements."""
    every = list(nodes)
    flops = sum(n.points for n in every if n.op is not Primitive.CONTIGUOUS)
    return Count(flops, sum(n.points * max(1, len(n.reads)) for n in every))


def region_nodes(entry: Entry, instance: Instance) -> list[Node]:
    """The nodes that an instance computes, those that it only reads left out."""
    inputs = set(map(whole_of, instance.inputs))
    stored = set(map(whole_of, instance.outputs))
    results = [n for n in entry.nodes if n.name in stored]
    into = (u.value for u in entry.writes if u.state.name in instance.outputs)
    results += [n for n in into if not n.is_leaf and n.name not in inputs]

    def below(n: Node) -> list[Node]:
        sources = (r.source for r in n.reads)
        return [s for s in sources if not s.is_leaf and s.name not in inputs]

    found = reachable(results, below)
    return [n for n in entry.nodes if n in found]


# ---- of plans


def excesses(plan: Plan) -> list[Excess]:
    """Every instance of a plan for a CPU, in order of execution."""
    made = dict[str, Count]()
    for key, k in plan.kernels.items():
        made[key] = of_program(lower(k.kernel, k.schedule, plan.target))
    out = []
    for i in plan.instances:
        done = _sum(made[s.kernel] for s in plan.regions[i.region].steps)
        out.append(Excess(i, done, _needed(plan.graph, i)))
    return out


def whole(plan: Plan) -> dict[str, tuple[Count, Count]]:
    """By entry: what all instances do, and what the graph needs when no node is computed twice."""
    found, out = excesses(plan), dict[str, tuple[Count, Count]]()
    for entry in plan.graph.entries:
        own = [x for x in found if x.instance.entry == entry.name]
        nodes = dict.fromkeys(n for x in own for n in region_nodes(entry, x.instance))
        copied = [x.needed for x in own if not region_nodes(entry, x.instance)]
        out[entry.name] = _sum(x.done for x in own), _sum([of_nodes(nodes), *copied])
    return out


def _needed(graph: Graph, instance: Instance) -> Count:
    """Of an update of a state: a load for every element of the value."""
    entry = graph.entry(instance.entry)
    if nodes := region_nodes(entry, instance):
        return of_nodes(nodes)
    values = (u.value for u in entry.writes if u.state.name in instance.outputs)
    return Count(loads=sum(v.size for v in values))


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())
