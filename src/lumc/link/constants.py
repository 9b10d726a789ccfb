"""The weights of a bundle: which ones launches read, raw and packed, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from lumc.bundle import ranks, weights
from lumc.bundle.packing import Array, Recipe, pack, recipe
from lumc.codegen.code import Code, Value
from lumc.disk.weights import read_weight
from lumc.graph.graph import Node

NO_PLACE: ranks.Place = {}


def store_weights(
    codes: Sequence[Code], path: Path, base: Path
) -> tuple[weights.Layout, Sequence[ranks.Segment]]:
    """The raw and the packed tensors that launches read, each once, sorted by name; of a mesh every
    part, and where a rank has its own."""
    stored, read = constants(codes), weight_reader(codes, base)
    if not codes[0].graph.mesh:
        return weights.write(path, stored, read), ()
    return ranks.write(path, stored, leaf_of(codes), list(codes[0].graph.mesh), read)


def leaf_of(codes: Sequence[Code]) -> Callable[[Value], Node]:
    """The weight or state that a constant is of."""
    graph = codes[0].graph
    nodes = {n.name: n for n in (*graph.weights, *graph.states)}
    packings = {name: p for code in codes for name, p in code.packings.items()}
    return lambda v: nodes[v.name if v.place == "weight" else packings[v.name].weight]


def weight_reader(codes: Sequence[Code], base: Path) -> Callable[..., Array]:
    """Gives the elements of what launches read; of a mesh those of a rank, by its place."""
    graph = codes[0].graph
    nodes = {n.name: n for n in (*graph.weights, *graph.states)}
    packings = {name: p for code in codes for name, p in code.packings.items()}

    @lru_cache(maxsize=1)  # of the parts of one the whole is read once
    def read_whole(name: str) -> Array:
        return read_weight(nodes[name].whole, base)

    def read(value: Value, place: ranks.Place = NO_PLACE) -> Array:
        packing = None if value.place == "weight" else packings[value.name]
        node = nodes[packing.weight if packing else value.name]
        own = ranks.part(read_whole(node.name), node.parts, place)
        return pack(own, node.dtype, packing) if packing else own

    return read


def read_by_launches(codes: Sequence[Code]) -> dict[str, Value]:
    """What of the weights, raw and packed, any launch reads."""
    entries = [e for code in codes for e in code.entries]
    return {v.name: v for e in entries for v in e.values if v.place in ("weight", "packed")}


def first_values(code: Code) -> dict[str, Value]:
    """What states begin with, of those that have values of their own."""
    states = (s for s in code.graph.states if s.file)
    return {s.name: Value(s.name, s.dtype, s.sizes, "weight") for s in states}


def packed_at_load(codes: Sequence[Code]) -> dict[str, Recipe]:
    """The packed values that need not be stored, as the weight is there for another target."""
    used, nodes = read_by_launches(codes), {w.name: w for w in codes[0].graph.weights}
    packings = {name: p for code in codes for name, p in code.packings.items()}
    out = dict[str, Recipe]()
    for name, packing in packings.items():
        node = nodes[packing.weight]
        shape = tuple(int(str(n)) for n in node.shape)
        if name in used and node.name in used and (how := recipe(packing, shape, node.dtype)):
            out[name] = how
    return out


def constants(codes: Sequence[Code]) -> list[Value]:
    """What of the weights, raw and packed, a bundle stores, and the first values of states."""
    used, made = read_by_launches(codes) | first_values(codes[0]), packed_at_load(codes)
    return [used[name] for name in sorted(used) if name not in made]
