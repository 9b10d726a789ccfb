"""plan.bin: the launches of every entry as the native runner reads them; see docs/bundle.md."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import prod

from lumc.bundle.extents import BY_NAME, BY_SHAPE, COUNTED, MAX_LENGTHS, UNUSED, Lengths, Source
from lumc.bundle.packing import Recipe
from lumc.bundle.ranks import UNSTAGED, Exchange, Segment, exchange_of
from lumc.bundle.weights import Layout
from lumc.codegen.code import Code, EntryPlan, Value
from lumc.codegen.exchanges import operands, turns_of
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.interleave import Pipeline, pipeline_of
from lumc.codegen.stages import overlaid, word_of, words_of_launches
from lumc.errors import Exit, LumcError
from lumc.graph.bind import dims_in, told_by
from lumc.graph.dim import Extent
from lumc.graph.graph import Entry, Graph, Node
from lumc.graph.ops import DType
from lumc.graph.stages import axis_of_stages
from lumc.graph.tensor import Tensor
from lumc.graph.turns import most_open, order

MAGIC = b"LUMCPLAN"
VERSION = 5
RANKS, STAGES, TURNS = 6, 7, 8  # of files for a mesh; with stages or micro-batches; that alternate
PARTS = 9  # of files without a mesh whose launches touch parts of inputs or outputs
MAPS = 16  # is added where kernels have tensor maps
DTYPES = tuple(DType)  # the order of enum lumc_dtype
NOWHERE, INPUT, OUTPUT, ARENA, WEIGHT, STATE, SCRATCH, PACKED, DIM = range(9)
MAX_BYTES, PAGE = 1 << 46, 4096  # of all tensors of one place, each from a page; of an arena
PLACES = {"input": INPUT, "output": OUTPUT, "arena": ARENA, "state": STATE, "dim": DIM}


@dataclass(frozen=True)
class Loading:
    """Where the constants of a plan are: in the file, or packed from what is there."""

    layout: Layout
    recipes: Mapping[str, Recipe]  # by value name
    offsets: Mapping[str, int]  # of these values in the memory that they are packed into
    nbytes: int
    segments: Sequence[Segment] = ()  # of a mesh: where a rank has the layout from


def require_room(code: Code) -> None:
    """Raises E0114, exit 4, where a plan would ask for more bytes than its readers take."""
    shapes = ((n, tuple(int(str(e)) for e in n.shape)) for n in code.graph.states)
    places = {"states": [Tensor(n.name, n.dtype, shape) for n, shape in shapes]}
    asked = {}
    for e in code.entries:
        places |= {f"{p}s of entry {e.name}": list(e.place(p)) for p in ("input", "output")}
        asked[f"values between the kernels of entry {e.name}"] = e.arena_bytes
    for name, tensors in places.items():
        asked[name] = sum(t.nbytes + PAGE for t in tensors)
    most = max(asked, key=lambda name: asked[name])
    if asked[most] > MAX_BYTES:
        what = f"the {most} take {asked[most]:,} bytes, more than a bundle can ({MAX_BYTES:,})"
        fix = "smaller extents, or several models"
        raise LumcError("E0114", what, fix=fix, exit=Exit.UNSUPPORTED)


def loading(
    code: Code,
    layout: Layout,
    recipes: Mapping[str, Recipe],
    segments: Sequence[Segment] = (),
) -> Loading:
    """Places for what a plan packs at load."""
    values = {v.name: v for e in code.entries for v in e.values if v.name in recipes}
    own = {name: word_of(_packed(code, name)) for name in values}
    offsets, nbytes = overlaid((name, values[name].nbytes, own[name]) for name in sorted(values))
    return Loading(layout, recipes, offsets, nbytes, segments)


def encode(code: Code, target: str, arch: str, features: Sequence[str], place: Loading) -> bytes:
    """The file; everything is 8-byte words, little endian, and strings padded to words."""
    weights = place.layout
    symbols: dict[object, int] = {k.symbol: i for i, k in enumerate(code.kernels)}
    symbols |= {at: len(symbols) + i for i, at in enumerate(exchanged(code))}
    version = version_of(code)
    maps = any(k.grid and k.grid.maps for k in code.kernels)
    parts = [MAGIC, _words(version + MAPS * maps), _string(target), _string(arch)]
    parts.append(_words(len(features)))
    parts += [_string(f) for f in features]
    lengths, ends = Lengths(code.graph.dims), list[bytes]()
    for known in code.graph.base.entries:
        ends += _entry(code, known, lengths, symbols, place, version)
    if len(lengths.rows) > MAX_LENGTHS:
        raise ValueError(f"its tensors have more than {MAX_LENGTHS} extents of dims")
    parts += _dims(code.graph, lengths)
    parts += _mesh(code, place)
    parts.append(_words(weights.start, weights.nbytes, place.nbytes, len(place.offsets)))
    parts += [_packing(code, name, place) for name in place.offsets]
    parts.append(_words(len(code.graph.states)))
    parts += [_tensor(s.name, s.dtype, s.sizes, s.shape, lengths) for s in code.graph.states]
    parts += [_words(1 + weights.offsets[s.name] if s.file else 0) for s in code.graph.states]
    parts.append(_words(len(code.kernels)))
    for k in code.kernels:
        grid = (k.grid.blocks, k.grid.threads, k.grid.shared_bytes) if k.grid else (0, 0, 0)
        parts += [_string(k.symbol), _words(k.parallel, k.scratch_bytes, *grid)]
        if maps:
            parts += _maps(k.grid)
    parts += _exchanges(code)
    parts.append(_words(len(code.graph.base.entries)))
    return b"".join([*parts, *ends])


def _maps(grid: Grid | None) -> Iterable[bytes]:
    """The tensor maps of a kernel; of one with two axes the third has one element."""
    made = grid.maps if grid else ()
    yield _words(len(made))
    for m in made:
        dims, strides = (*m.dims, 1)[:3], (*m.strides, 0)[:2]
        yield _words(m.buffer, len(m.dims), *dims, *strides, *m.box)


def version_of(code: Code) -> int:
    """Of the file of a plan: the least that says all."""
    if any(pipelines(code)):
        return TURNS
    if is_long(code) or code.graph.mesh:
        return STAGES if is_long(code) else RANKS
    ends = (v for e in code.entries for v in e.values if v.place in ("input", "output"))
    return PARTS if any(v.start for v in ends) else VERSION


def pipelines(code: Code) -> list[Pipeline | None]:
    """Of each entry: how its micro-batches go forward and back in turn."""
    pairs = zip(code.entries, code.graph.entries, strict=True)
    return [pipeline_of(code.graph, bucket, code.packings, plan) for plan, bucket in pairs]


def is_long(code: Code) -> bool:
    """Does a plan tell of stages and micro-batches?"""
    return bool(axis_of_stages(code.graph) or code.graph.time)


def _mesh(code: Code, place: Loading) -> Iterable[bytes]:
    """The axes of a mesh, where the memory of weights is from, which parts of states a rank has;
    nothing without a mesh. A long plan also has which of the axes stages are along, and which is in
    time, and which stages have what of all that."""
    graph, long = code.graph, is_long(code)
    if not graph.mesh:
        return
    axes = list(graph.mesh)
    yield _words(len(graph.mesh))
    for name, ranks in graph.mesh.items():
        yield _string(name) + _words(ranks)
    if long:
        named = axis_of_stages(graph), graph.time
        yield _words(*(1 + axes.index(name) if name else 0 for name in named))
    yield _words(len(place.segments))
    for s in place.segments:
        yield _words(s.start, s.to, s.nbytes, s.parts, *([s.stage] if long else []), *s.steps)
    yield _words(len(graph.states))
    for state in graph.states:
        parts = [word for p in state.parts for word in (p.dim, axes.index(p.mesh))]
        yield _words(*([word_of(state)] if long else []), len(state.parts), *parts)
    if long:
        own = [word_of(_packed(code, name)) for name in place.offsets]
        yield _words(len(own), *own)


def _exchanges(code: Code) -> Iterable[bytes]:
    if code.graph.mesh:
        made = exchanged(code)
        yield _words(len(made))
        words = len(Exchange._fields) if is_long(code) else UNSTAGED
        for n in made.values():
            yield _words(*exchange_of(n, list(code.graph.mesh), DTYPES.index(n.dtype))[:words])


def exchanged(code: Code) -> dict[tuple[str, str], Node]:
    """The collectives that are launched, by entry and name."""
    return {
        (plan.name, launch.args[1]): operands(bucket, launch)[1]
        for plan, bucket in zip(code.entries, code.graph.entries, strict=True)
        for launch in plan.launches
        if launch.exchanges
    }


def _dims(graph: Graph, lengths: Lengths) -> Iterable[bytes]:
    yield _words(len(graph.dims))
    for d in graph.dims.values():
        yield _string(d.name) + _words(d.lo, d.hi, d.multiple)
    yield _words(len(lengths.rows), *(word for row in lengths.rows for word in row))


def _packed(code: Code, name: str) -> Node:
    """The weight of which this is a packed form."""
    (node,) = (w for w in code.graph.weights if w.name == code.packings[name].weight)
    return node


def _packing(code: Code, name: str, place: Loading) -> bytes:
    """Where a weight is and where its packed form goes, and the recipe."""
    how, node = place.recipes[name], _packed(code, name)
    nbytes = prod(int(str(n)) for n in node.shape) * node.dtype.nbytes
    dims = [word for dim in how.dims for word in dim]
    return _words(
        *(place.layout.offsets[node.name], nbytes, node.dtype.nbytes, place.offsets[name]),
        *(how.base, how.width, how.lanes, len(how.dims), *dims),
    )


def _entry(
    code: Code,
    known: Entry,
    lengths: Lengths,
    symbols: Mapping[object, int],
    place: Loading,
    version: int,
) -> Iterable[bytes]:
    lists = lists_of(code, known.name)
    yield _string(known.name) + _words(max(e.arena_bytes for e, _ in lists), len(known.inputs))
    for n in known.inputs:
        yield _tensor(n.name, n.dtype, n.sizes, n.shape, lengths)
    yield _words(len(known.outputs))
    for name, n in known.outputs:
        yield _tensor(name, n.dtype, n.sizes, n.shape, lengths)
    for source in sources(code.graph.base, known):
        yield _words(*astuple(source))
    yield _words(len(lists))
    for entry, bucket in lists:
        yield from _list(code, entry, bucket, symbols, place, version)


def lists_of(code: Code, entry: str) -> list[tuple[EntryPlan, Entry]]:
    """What may run an entry of the whole graph: its buckets, in the order of their trials."""
    pairs = zip(code.entries, code.graph.entries, strict=True)
    return [(plan, bucket) for plan, bucket in pairs if bucket.title == entry]


def _list(
    code: Code,
    entry: EntryPlan,
    bucket: Entry,
    symbols: Mapping[object, int],
    place: Loading,
    version: int,
) -> Iterable[bytes]:
    values = {v.name: v for v in entry.values}
    ends = [bucket.dims.get(name, d).values[-1] for name, d in code.graph.dims.items()]
    shapes = [v.shape for v in (*entry.place("input"), *entry.place("output"))]
    ranks: Sequence[Sequence[int]] = [()] * len(entry.launches)
    yield _words(*ends, *(n for shape in shapes for n in shape))
    if is_long(code):
        yield _words(*turns_of(bucket, entry.launches))
        yield _words(*_turns(code, entry, bucket) if version == TURNS else ())
        ranks = [[w] for w in words_of_launches(code.packings, entry.launches, bucket)]
    yield _words(len(entry.launches))
    for launch, own in zip(entry.launches, ranks, strict=True):
        if launch.exchanges:
            yield _words(symbols[entry.name, launch.args[1]], *own, len(launch.args))
            yield from (_argument(values[name], place) for name in launch.args)
            continue
        yield _words(symbols[launch.kernel], *own, len(launch.args) + 1)
        for name in launch.args:
            yield _argument(values[name], place) if name else _words(NOWHERE, 0, 0, 0)
        yield _words(SCRATCH, 0, 0, 0)


def _turns(code: Code, entry: EntryPlan, bucket: Entry) -> Iterable[int]:
    """How the stages alternate between the two ways of micro-batches: 0, or 1, where values wait,
    how many bytes of a micro-batch; of each stage from which launch on it goes back, how many
    micro-batches it may have open, and its turns, each twice the micro-batch and 1 for back."""
    pipe, graph = pipeline_of(code.graph, bucket, code.packings, entry), code.graph
    yield int(pipe is not None)
    if pipe is None:
        return
    yield from pipe.place
    stages, batches = graph.mesh[axis_of_stages(graph)], graph.mesh[graph.time]
    for s, middle in enumerate(pipe.middles):
        yield from (middle, most_open(s, stages, batches))
        yield from (2 * t.batch + t.back for t in order(s, stages, batches))


def sources(graph: Graph, entry: Entry) -> list[Source]:
    """How the entry comes to every dim of the graph."""
    told, used = told_by(n.shape for n in entry.inputs), dims_in(entry)
    by_shape = {name: Source(BY_SHAPE, *where) for name, where in told.items()}
    counted = {entry.repeat: Source(COUNTED)}
    known = counted | by_shape
    return [known.get(d, Source(BY_NAME if d in used else UNUSED)) for d in graph.dims]


def _argument(value: Value, place: Loading) -> bytes:
    """Place, index, offset and size of a value."""
    if value.name in place.offsets:
        return _words(PACKED, 0, place.offsets[value.name], value.nbytes)
    if value.place in ("weight", "packed"):
        return _words(WEIGHT, 0, place.layout.offsets[value.name], value.nbytes)
    index, offset = (0, value.offset) if value.place == "arena" else (value.offset, 0)
    offset += value.start if value.place != "arena" else 0
    return _words(PLACES[value.place], index, offset, value.nbytes)


def _tensor(
    name: str, dtype: DType, shape: Sequence[int], extents: Sequence[Extent], lengths: Lengths
) -> bytes:
    """The greatest extents, then what these are."""
    words = [lengths.word(e) for e in extents]
    return _string(name) + _words(DTYPES.index(dtype), len(shape), *shape, *words)


def _string(text: str) -> bytes:
    data = text.encode()
    return _words(len(data)) + data.ljust((len(data) + 8) // 8 * 8, b"\0")


def _words(*values: int) -> bytes:
    """Negative numbers in two's complement."""
    return b"".join(struct.pack("<q" if v < 0 else "<Q", v) for v in values)
