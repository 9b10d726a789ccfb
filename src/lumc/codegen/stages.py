"""Which launches of an entry the ranks of a stage run, and where their constants lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lumc.codegen.code import Launch
from lumc.codegen.exchanges import operands
from lumc.codegen.tile.memory import aligned
from lumc.codegen.tile.packing import Packing
from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Node
from lumc.graph.stages import needed_on, stages_of
from lumc.kernel.instance import whole_of

EVERY = 0  # in a word of a plan that says which ranks: all; else 1 + the stage


def region_of(name: str) -> str:
    """The region that alone uses a value, or nothing: local values are called ``12.name``."""
    region, dot, _ = name.partition(".")
    return region if dot and region.isdecimal() else ""


def word_of(leaf: Node) -> int:
    """The ranks that have a weight or a state, as plans say it."""
    return 1 + leaf.stage.at if leaf.stage else EVERY


def overlaid(values: Iterable[tuple[str, int, int]]) -> tuple[dict[str, int], int]:
    """Where values of (name, bytes, ranks) lie in the memory of a rank, and its size: those that
    every rank has, and behind them, in the same place, those of each stage."""
    offsets, ends = dict[str, int](), {EVERY: 0}
    every = [*values]
    for name, nbytes, own in sorted(every, key=lambda v: v[2] != EVERY):
        offsets[name] = ends.setdefault(own, ends[EVERY])
        ends[own] += aligned(nbytes)
    return offsets, max(ends.values())


def words_of_launches(
    packings: Mapping[str, Packing], launches: Sequence[Launch], bucket: Entry
) -> list[int]:
    """Which ranks run each of the launches of an entry: those of the stage whose values it takes or
    makes; what has none of any stage runs where it is needed. Launches of one region go together;
    what is sent is a launch of both ends."""
    stages = stages_of(bucket)
    own = {n.name: 1 + at for n, at in stages.items()}
    own |= {name: own[p.weight] for name, p in packings.items() if p.weight in own}
    free = dict.fromkeys((n.name for n in bucket.nodes if n not in stages), frozenset({EVERY}))
    needed = needed_on(bucket, stages).items()
    free |= {n.name: frozenset(1 + at for at in ats) for n, ats in needed if ats}
    groups, keys = dict[object, set[str]](), list[object]()
    for i, launch in enumerate(launches):
        names = {whole_of(a) for a in launch.args if a}
        keys.append(next(filter(None, map(region_of, names)), i))
        groups.setdefault(keys[-1], set()).update(names)
    return [
        EVERY if x.exchanges and _leaves(operands(bucket, x)[1]) else _ranks(groups[k], own, free)
        for k, x in zip(keys, launches, strict=True)
    ]


def _leaves(node: Node) -> bool:
    return isinstance(node.op, Collective) and node.op.kind.leaves


def _ranks(
    names: Collection[str], own: Mapping[str, int], free: Mapping[str, Collection[int]]
) -> int:
    """Who runs launches that touch these values."""
    found = {own[n] for n in names if n in own}
    if not found:
        found = {word for n in names for word in free.get(n, ())}
        return found.pop() if len(found) == 1 else EVERY
    (word,) = found
    return word
