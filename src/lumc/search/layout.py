"""Layouts of the values between regions: which of its axes is contiguous in memory.

    layout    v[i, j, k]    =    w[j, k, i]    where w holds v with its axis i last

A product makes vectors of its result along one axis. If another one is the last, blocks are turned
in registers on their way to memory, and again where the next product copies its windows. Values
that only regions of the same entry read may lie as their makers make them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lumc.graph.expr import Expr, bound_axes, make, rebuild, subterms
from lumc.kernel.plan import results
from lumc.kernel.term import reduce
from lumc.search.cuts import Frame
from lumc.search.space import Region, Space, Variant

GAIN = 0.005  # of the price of all regions that a layout concerns, which differ in nothing else
(OUT,) = results(1)
T = TypeVar("T")


def with_layouts(
    space: Space, price: Callable[[Region], float], vectors: Callable[[Region], int | None]
) -> Space:
    """The space with all layouts that pay. ``vectors`` says along which dim of its result a region
    makes vectors, if it is not the last."""
    regions, at = {r.key: r for r in space.regions}, [i.region for i in space.instances]
    readers: dict[tuple[str, str], dict[int, str]] = {}
    for n, i in enumerate(space.instances):
        for k, name in enumerate(i.inputs):
            readers.setdefault((i.entry, name), {})[n] = f"b{k}"
    dims = {r.key: vectors(r) for r in space.regions}
    fixed = {s.name for s in space.graph.states}
    for n, i in enumerate(space.instances):
        name, entry = i.outputs[0], i.entry
        read = readers.get((entry, name), {})
        outside = fixed.union(value for _, value in space.outputs[entry])
        dim = None if name in outside or not read else dims[i.region]
        if dim is None:
            continue
        moved = {m: relaid(regions[at[m]], {buffer: dim}) for m, buffer in {n: OUT, **read}.items()}
        before = sum(price(regions[at[m]]) for m in moved)
        if sum(map(price, moved.values())) < before * (1 - GAIN):
            regions.update({r.key: r for r in moved.values()})
            at = [moved[m].key if m in moved else key for m, key in enumerate(at)]
    used = tuple(replace(regions[key], count=at.count(key)) for key in dict.fromkeys(at))
    instances = (replace(i, region=key) for i, key in zip(space.instances, at, strict=True))
    return replace(space, regions=used, instances=tuple(instances))


def relaid(region: Region, last: Mapping[str, int]) -> Region:
    """The region on buffers whose dim of this number is the last in memory."""
    memo: dict[Expr, Expr] = {}
    variants = tuple(
        Variant(_relaid(v.value, last, memo), tuple(_relaid(c, last, memo) for c in v.cuts))
        for v in region.variants
    )
    f = region.frame
    buffers = {
        b.name: replace(b, shape=_to_end(b.shape, last[b.name])) if b.name in last else b
        for b in (*f.inputs, f.output)
    }
    index, axes = f.index, f.axes
    if OUT in last:
        index = _to_end(index, last[OUT])
        axes = tuple(sorted(axes, key=lambda a: a in index[-1].free))
    inputs = tuple(buffers[b.name] for b in f.inputs)
    frame = Frame(inputs, buffers[f.output.name], axes, index, f.extent)
    key = "-".join((region.key, *(f"{name}.{dim}" for name, dim in sorted(last.items()))))
    return replace(region, key=key, frame=frame, variants=variants)


def origin(key: str) -> str:
    """The key of the region that was laid out in another way."""
    return key.partition("-")[0]


def _relaid(value: Expr, last: Mapping[str, int], memo: dict[Expr, Expr]) -> Expr:
    """Loads with the other order of indices; sums walk along the last one innermost."""
    for e in subterms(value):
        if e in memo:
            continue
        new = rebuild(e, [memo[k] for k in e.kids])
        if e.kind == "load" and e.attr[0] in last:
            new = make("load", new.attr, _to_end(new.kids, last[e.attr[0]]))
        elif e.kind == "red":
            loads = (t for t in subterms(new) if t.kind == "load" and t.attr[0] in last)
            along = frozenset[str]().union(*(t.kids[-1].free for t in loads))
            new = reduce(new.attr[0], sorted(bound_axes(new), key=along.__contains__), *new.kids)
        memo[e] = new
    return memo[value]


def _to_end(items: Sequence[T], n: int) -> tuple[T, ...]:
    return (*items[:n], *items[n + 1 :], items[n])
