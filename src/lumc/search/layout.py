"""Layouts of the values between regions: which of its axes is contiguous in memory.

    layout    v[i, j, k]    =    w[j, k, i]    where w holds v with its axis i last

A product makes vectors of its result along one axis. If another one is the last, blocks are turned
in registers on their way to memory, and again where the next product copies its windows. Values
that only regions of the same entry read may lie as their makers make them, or as their readers sum
over them: whole chains of regions at once, since a single value in another layout makes its maker
and its readers turn what all of them together need not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lumc.graph.expr import Expr, bound_axes, make, rebuild, rewrite, subterms
from lumc.graph.ranks import exchanged
from lumc.kernel.instance import Instance, elements_of, results, whole_of
from lumc.kernel.term import reduce
from lumc.search.cuts import Frame, unlike
from lumc.search.space import Region, Space, Variant

GAIN = 0.005  # of the price of all regions that a layout concerns, which differ in nothing else
# the same of a chain that pays only with some of its values turned back; measured: what its price
# gains by 1 % is 2 to 4 % slower (MiniLM, BERT), by 3 % it is not
WORTH = 0.02
NEAR = 1.1  # times the best price: of a chain that is worth a look; measured: 1.01 was 0.75 of it
RIVALS = 1  # beside the cheapest; measured: the default schedules of one take 5 s and more
CHAINS = 2  # dims that whole chains are tried with
LANES = 8  # elements that a dim has at least to be worth the last place
(OUT,) = results(1)
T = TypeVar("T")

Value = tuple[str, str]  # entry and name
Layout = Mapping[Value, int]  # the dim that is the last in memory, where it is another one
Users = dict[Value, list[int]]  # instances: of the one that makes a value, and its readers
Price = Callable[[Region], float]


def layouts(space: Space, price: Price, vectors: Callable[[Region], int | None]) -> Iterator[Space]:
    """The space with all layouts that pay; then with others that no price tells from these.
    ``price`` gives microseconds, inf for what cannot run; ``vectors`` says along which dim of its
    result a region makes vectors, if it is not the last. Entries have no values in common: what
    pays for one of many rows may not for one of few."""
    tried = _Layouts(space, price, vectors)
    every = [tried.ranked(entry) for entry in dict.fromkeys(i.entry for i in space.instances)]
    for n in range(max(map(len, every), default=1)):
        own = [layout[min(n, len(layout) - 1)] for layout in every]
        yield tried.space_of({v: dim for layout in own for v, dim in layout.items()})


class _Layouts:
    """What the layouts of a space cost."""

    def __init__(self, space: Space, price: Price, vectors: Callable[[Region], int | None]) -> None:
        self.space, self.regions = space, {r.key: r for r in space.regions}
        self.price_of, self.vectors = price, {r.key: vectors(r) for r in space.regions}
        self.touching: Users = {}
        outside = {s.name for s in space.graph.states}
        outside |= {n.reads[0].source.name for e in space.graph.entries for n in exchanged(e)}
        names = {(i.entry, n) for i in space.instances for n in (*i.inputs, *i.outputs)}
        parts = {(entry, whole_of(n)) for entry, n in names if elements_of(n)}
        for n, i in enumerate(space.instances):
            self.touching[i.entry, i.outputs[0]] = [n]
        for n, i in enumerate(space.instances):
            for name in i.inputs:
                if (i.entry, name) in self.touching:
                    self.touching[i.entry, name].append(n)
        for (entry, name), users in [*self.touching.items()]:
            given = outside.union(value for _, value in space.outputs[entry])
            if name in given or (entry, whole_of(name)) in parts or len(users) == 1:
                del self.touching[entry, name]
        self.known: dict[str, Region] = {}

    def region(self, instance: Instance, layout: Layout) -> Region:
        """What an instance runs when its values lie so."""
        names = {v: k for k, v in instance.names.items()}
        last = {names[v]: d for v in names if (d := layout.get((instance.entry, v))) is not None}
        if not last:
            return self.regions[instance.region]
        new = key_of(instance.region, last)
        if new not in self.known:
            self.known[new] = relaid(self.regions[instance.region], last)
        return self.known[new]

    def price(self, layout: Layout, instances: Iterable[int]) -> float:
        some = (self.space.instances[n] for n in instances)
        return sum(self.price_of(self.region(i, layout)) for i in some)

    # ---- what is tried

    def ranked(self, entry: str) -> list[Layout]:
        """Layouts of the values of an entry: the cheapest of those that are tried, then those that
        are nearly as cheap."""
        own = [n for n, i in enumerate(self.space.instances) if i.entry == entry]
        values = {v: users for v, users in self.touching.items() if v[0] == entry}
        best = self.improved({}, values)
        ways = [best]
        for dim in self.summed(values):
            start: Layout = {v: dim for v in values if self.fits(v, dim)}
            least = self.price(best, own)
            if (whole := self.price(start, own)) < least * NEAR:
                start = self.improved(start, values)
                pays = least * (1 - WORTH) if whole > least * (1 + GAIN) else least
                best = start if self.price(start, own) < pays else best
                ways.append(start)
        limit = NEAR * self.price(best, own)
        near = [w for w in (*ways, {}) if w != best and self.price(w, own) < limit]
        return [best, *near[:RIVALS]]

    def frame(self, value: Value) -> Frame:
        """That of its maker."""
        return self.regions[self.space.instances[self.touching[value][0]].region].frame

    def fits(self, value: Value, dim: int) -> bool:
        shape = self.frame(value).output.shape
        return dim < len(shape) - 1 and shape[dim] >= LANES and not self.is_live(value, dim)

    def is_live(self, value: Value, dim: int) -> bool:
        """May a run have less of a dim than a vector has lanes? No price knows that: it stays."""
        frame = self.frame(value)
        return any(a in frame.lengths.of for a in frame.index[dim].free)

    def summed(self, values: Users) -> list[int]:
        """The dims that most of these values are summed over, but for the last ones."""
        count = Counter[int]()
        for (entry, name), (_, *readers) in values.items():
            for n in readers:
                i = self.space.instances[n]
                (buffer,) = (k for k, v in i.names.items() if v == name and k != OUT)
                dims = _summed(self.regions[i.region], buffer)
                count.update(d for d in dims if self.fits((entry, name), d))
        return [dim for dim, _ in count.most_common(CHAINS)]

    def improved(self, layout: Layout, values: Users) -> Layout:
        """A layout with single values changed where that is cheaper, in the order of the makers."""
        for value, users in values.items():
            for dim in self._others(value, layout):
                new = {v: d for v, d in layout.items() if v != value}
                new |= {} if dim is None else {value: dim}
                if self.price(new, users) < self.price(layout, users) * (1 - GAIN):
                    layout = new
        return layout

    def _others(self, value: Value, layout: Layout) -> Iterator[int | None]:
        """Other layouts of a value: as its maker makes vectors, or as it is where one of its
        regions would be cheaper so."""
        maker = self.space.instances[self.touching[value][0]]
        dim, now = self.vectors[maker.region], layout.get(value)
        if dim is not None and dim != now and not self.is_live(value, dim):
            yield dim
        if now is not None and self._hurts(value, layout):
            yield None

    def _hurts(self, value: Value, layout: Layout) -> bool:
        users = [self.space.instances[n] for n in self.touching[value]]
        plain = (self.price_of(self.regions[i.region]) for i in users)
        here = (self.price_of(self.region(i, layout)) for i in users)
        return any(a < b * (1 - GAIN) for a, b in zip(plain, here, strict=True))

    def space_of(self, layout: Layout) -> Space:
        chosen = [self.region(i, layout) for i in self.space.instances]
        count = Counter(r.key for r in chosen)
        unique = {r.key: r for r in chosen}
        used = tuple(replace(r, count=count[r.key]) for r in unique.values())
        pairs = zip(self.space.instances, chosen, strict=True)
        return replace(
            self.space,
            regions=used,
            instances=tuple(replace(i, region=r.key) for i, r in pairs),
        )


def _summed(region: Region, buffer: str) -> set[int]:
    """The dims of a buffer that a region walks along with an axis that it reduces."""
    value = region.variants[0].value
    bound = {a for e in subterms(value) for a in bound_axes(e)}
    loads = [e for e in subterms(value) if e.kind == "load" and e.attr[0] == buffer]
    axes = ((d, i) for e in loads for d, i in enumerate(e.kids) if i.kind == "axis")
    return {d for d, i in axes if i.attr[0] in bound}


def relaid(region: Region, last: Mapping[str, int]) -> Region:
    """The region on buffers whose dim of this number, by name, is the last in memory."""
    memo: dict[Expr, Expr] = {}
    f = region.frame

    def value(e: Expr) -> Expr:
        return relaid_value(e, last, memo)

    # cuts whose sums walked along other axes first may be alike now
    variants = tuple(
        Variant(value(v.value), unlike(map(value, v.cuts), f.lengths)) for v in region.variants
    )
    buffers = {
        b.name: replace(b, shape=to_end(b.shape, last[b.name])) if b.name in last else b
        for b in (*f.inputs, f.output)
    }
    index, axes = f.index, f.axes
    if OUT in last:
        index = to_end(index, last[OUT])
        axes = tuple(sorted(axes, key=lambda a: a in index[-1].free))
    inputs = tuple(buffers[b.name] for b in f.inputs)
    frame = Frame(inputs, buffers[f.output.name], axes, index, f.extent, f.live)
    return replace(region, key=key_of(region.key, last), frame=frame, variants=variants)


def key_of(region: str, last: Mapping[str, int]) -> str:
    """The key of a region on buffers that are laid out so."""
    return "-".join((region, *(f"{name}.{dim}" for name, dim in sorted(last.items()))))


def origin(key: str) -> str:
    """The key of the region that was laid out in another way."""
    return key.partition("-")[0]


def last_of(key: str) -> dict[str, int]:
    """Which dims of its buffers are the last in memory, of a region that was laid out."""
    parts = (part.rpartition(".") for part in key.split("-")[1:])
    return {name: int(dim) for name, _, dim in parts}


def relaid_value(
    value: Expr, last: Mapping[str, int], memo: dict[Expr, Expr] | None = None
) -> Expr:
    """Loads with the other order of indices, by name of the buffer; sums walk along the last one
    innermost."""

    def laid(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "load" and e.attr[0] in last:
            return make("load", e.attr, to_end(kids, last[e.attr[0]]))
        if e.kind == "red":
            loads = (t for t in subterms(*kids) if t.kind == "load" and t.attr[0] in last)
            along = frozenset[str]().union(*(t.kids[-1].free for t in loads))
            return reduce(e.attr[0], sorted(e.attr[1], key=along.__contains__), *kids)
        return rebuild(e, kids)

    return rewrite(value, {} if memo is None else memo, laid)


def to_end(items: Sequence[T], n: int) -> tuple[T, ...]:
    """The items with the n-th one last."""
    return (*items[:n], *items[n + 1 :], items[n])
