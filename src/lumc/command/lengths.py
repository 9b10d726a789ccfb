"""The dims of runs: what the user gives, and the ones that are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from lumc.command.arrays import Arrays
from lumc.command.sources import parse_dims
from lumc.errors import Exit, LumcError
from lumc.graph.bind import dims_in, dims_of
from lumc.graph.dim import Dim, as_expr
from lumc.graph.expr import dim, num, substitute
from lumc.graph.graph import Entry, Graph

WORK = 1 << 33  # points of an entry that are computed in float64, at most: seconds to minutes
Dims = dict[str, int]


def parse_values(texts: Sequence[str]) -> Dims:
    """``("p=17",)`` as a dict; E0203 for anything else."""
    out = Dims()
    for name, value in parse_dims(texts).items():
        if isinstance(value, Dim):
            what, fix = f"--dim {name}={value.lo}..{value.hi}: a run has one", f"--dim {name}=8"
            raise LumcError("E0203", what, fix=f"for example {fix}", exit=Exit.USAGE)
        out[name] = value
    return out


def known(graph: Graph, entry: str, given: Arrays, named: Mapping[str, int]) -> Dims:
    """The dims that names and given inputs tell, and the least of those without effect."""
    e = graph.entry(entry)
    if e.repeat in named:
        what = f"--dim {e.repeat}: it counts how often entry '{entry}' is run through"
        raise LumcError("E0203", what, fix="leave it out", exit=Exit.USAGE)
    free = graph.dims.keys() - dims_in(e) - {e.repeat}
    told = dims_of(e.inputs, {name: a.shape for name, a in given.items()})
    return {d.name: d.values[0] for d in graph.dims.values() if d.name in free} | told | dict(named)


def greatest(graph: Graph, entry: str, fixed: Mapping[str, int]) -> Dims:
    """The greatest values of the dims that a run chooses, but for what is fixed."""
    return {d.name: d.values[-1] for d in chosen(graph, entry)} | dict(fixed)


def chosen(graph: Graph, entry: str) -> list[Dim]:
    """The dims that a run of an entry chooses: all but the one that it counts with."""
    return [d for name, d in graph.dims.items() if name != graph.entry(entry).repeat]


def points(graph: Graph, entry: str, fixed: Mapping[str, int]) -> Iterator[Dims]:
    """Values of dims to try: the least, some between, the greatest of which the entry is no more
    ``WORK``, and those at which buckets end and the next ones begin; only one where all are
    fixed."""
    every = chosen(graph, entry)
    free = [d for d in every if d.name not in fixed]
    part, e = 1.0, graph.entry(entry)
    counted = {e.repeat: graph.dims[e.repeat].values[-1]} if e.repeat else {}

    def at(shares: Sequence[float]) -> Dims:
        values = {
            d.name: d.values[round((len(d.values) - 1) * share * part)]
            for d, share in zip(free, shares, strict=True)
        }
        return {d.name: {**fixed, **values}[d.name] for d in every}

    while part > 1e-6 and work(e, at([1.0] * len(free)) | counted) > WORK:
        part /= 2
    ends = [0.0, 0.38, 0.71, 1.0]
    turned = [[ends[i if k % 2 == 0 else 3 - i] for k in range(len(free))] for i in (1, 2)]
    tried = [at([0.0] * len(free)), *map(at, turned), at([1.0] * len(free))]
    for d in free:
        values, most = d.values, tried[-1][d.name]
        last = [values.index(n) for n in graph.tuned.get(d.name, ()) if n < most]
        near = (values[i] for end in last for i in (end, end + 1))
        tried[-1:-1] = [{**tried[1], d.name: n} for n in near]
    yield from (dict(items) for items in dict.fromkeys(tuple(p.items()) for p in tried))


def work(entry: Entry, dims: Mapping[str, int]) -> int:
    """The points of an entry's nodes for these dims."""
    numbers = {dim(name): num(value) for name, value in dims.items()}
    known = dict[object, int]()

    def size(e: object) -> int:
        if isinstance(e, int):
            return e
        if e not in known:
            known[e] = int(substitute(as_expr(e), numbers).attr[0])  # type: ignore[arg-type]
        return known[e]

    return sum(prod(size(e) for _, e in n.loops) for n in entry.nodes)


def said(dims: Mapping[str, int]) -> str:
    """``s=17, p=3``"""
    return ", ".join(f"{name}={value}" for name, value in dims.items())
