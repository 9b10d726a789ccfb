"""Collectives among the launches of a plan: each is a launch of its own, in the same place on every
rank.

It comes as late as possible: what it makes takes memory from then on. Before it stands the region
that made what it is of; behind it whoever reads its result, and the next update of the state that
it is of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lumc.codegen.code import EXCHANGE, Launch
from lumc.codegen.tile.memory import Interval
from lumc.graph.batches import AFTER, BEFORE, WITHIN, phases_of, runs
from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Entry, Node
from lumc.graph.ops import Op
from lumc.graph.ranks import exchanged
from lumc.kernel.instance import Instance, elements_of, whole_of


def places(entry: Entry, instances: Sequence[Instance]) -> list[list[Launch]]:
    """The collectives before each of the instances of an entry, and behind the last."""
    out: list[list[Launch]] = [[] for _ in range(len(instances) + 1)]
    first = dict[str, int]()
    for at, i in enumerate(instances):
        for name in map(whole_of, i.inputs):
            first.setdefault(name, at)
    limit = _limits(entry, instances)
    when = runs(entry)
    writers = {
        s: [at for at, i in enumerate(instances) if s in map(whole_of, i.outputs)]
        for s in {n.reads[0].source.home.name for n in exchanged(entry)}
    }
    for n in reversed(exchanged(entry)):
        source = n.reads[0].source
        at = min(first.get(n.name, len(instances)), limit[when.get(n, AFTER)])
        if source.home.op == "state":
            later = writers[source.home.name][_updates(entry, source) :]
            at = min([at, *later])
        out[at].insert(0, Launch(EXCHANGE, (source.home.name, n.name)))
        first[source.name] = min(at, first.get(source.name, at))
    order = {n.name: phase for n, phase in when.items()}
    return [sorted(each, key=lambda x: order.get(x.args[1], AFTER)) for each in out]


def _limits(entry: Entry, instances: Sequence[Instance]) -> tuple[int, int, int]:
    """Before which instance what comes before micro-batches stands, what each makes, the rest."""
    phases = {n.name: phase for n, phase in phases_of(entry).items()}
    after = [phases.get(whole_of(i.outputs[0]), AFTER) for i in instances]
    ends = [next((i for i, p in enumerate(after) if p > k), len(after)) for k in (BEFORE, WITHIN)]
    return ends[0], ends[1], len(after)


def turns_of(entry: Entry, launches: Sequence[Launch]) -> tuple[int, int]:
    """The launches of each micro-batch: from one to before another."""
    within = {n.name for n, phase in phases_of(entry).items() if phase == WITHIN}
    found = [
        i for i, launch in enumerate(launches) if not within.isdisjoint(map(whole_of, launch.args))
    ]
    return (found[0], found[-1] + 1) if found else (0, 0)


def through_turns(intervals: Sequence[Interval], turns: tuple[int, int]) -> list[Interval]:
    """What is there before or after micro-batches is there during all of them."""
    first, last = turns[0], turns[1] - 1

    def kept(i: Interval) -> Interval:
        touched = i.first <= last and first <= i.last
        if not touched or first <= i.first <= i.last <= last:
            return i
        return replace(i, first=min(i.first, first), last=max(i.last, last))

    return [kept(i) for i in intervals]


def _updates(entry: Entry, source: Node) -> int:
    """How many updates a state has behind it that is read after them."""
    if source.op != "update":
        return 0
    own = [n for n in entry.nodes if n.op == "update" and n.home is source.home]
    return own.index(source) + 1


def in_place(
    entry: Entry, launches: Sequence[Launch], outputs: Collection[str], fixed: Collection[str]
) -> list[Launch]:
    """The launches, with what is reduced on all ranks in the memory of its result where nothing
    needs it any more: a region made it, all of it, it is no output, lies in no memory of its own
    (``fixed``), and is read by nobody after."""
    out, nodes = [*launches], {n.name: n for n in entry.nodes}
    apart = {whole_of(a) for launch in launches for a in launch.args if elements_of(a)}
    free = {n.name for n in entry.nodes if isinstance(n.op, Op)}.difference(outputs, fixed, apart)
    for at, launch in enumerate(launches):
        op = nodes[launch.args[1]].op if launch.exchanges else None
        if not isinstance(op, Collective) or op.kind is not Kind.ALL_REDUCE:
            continue
        if op.mesh == entry.time:
            continue  # it is added to
        source, result = out[at].args
        if source in free and not any(source in one.args for one in out[at + 1 :]):
            for i, one in enumerate(out[: at + 1]):
                args = tuple(result if a == source else a for a in one.args)
                out[i] = replace(one, args=args)
    return out


def operands(entry: Entry, launch: Launch) -> tuple[Node, Node]:
    """What a collective is of, and what it makes. Raises LookupError for a launch of none."""
    (result,) = (n for n in entry.nodes if n.name == launch.args[1])
    if not isinstance(result.op, Collective):
        raise LookupError(f"{launch.args[1]} is no collective")
    return result.reads[0].source, result


def by_kernels(launches: Mapping[str, Sequence[Launch]]) -> list[Launch]:
    """Those of all entries that are of kernels."""
    return [x for each in launches.values() for x in each if not x.exchanges]
