"""The ``.lk`` artifact: printed kernels, the place of every value, the list of launches.

``generate`` makes it from a plan; ``link`` compiles it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from lumc.artifact import corrupt
from lumc.codegen.memory import ALIGN
from lumc.graph.expr import Expr
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.codec import decode, encode
from lumc.kernel.target import Target

PLACES = ("input", "output", "arena", "weight", "packed", "state")


@dataclass(frozen=True)
class Packing:
    """How a kernel wants a weight: ``value[axes] = weight[index]``, and with ``panel`` (position
    of the lane axis, width) laid out as ``[ceil(lane / width)][other axes..][width]``."""

    weight: str
    dtype: DType
    index: tuple[Expr, ...]
    axes: tuple[tuple[str, int], ...]  # (name, extent)
    panel: tuple[int, int] | None

    @property
    def size(self) -> int:
        """Elements, the zeros that fill the last panel included."""
        extents = [n for _, n in self.axes]
        if self.panel:
            lane, width = self.panel
            extents[lane] = -(-extents[lane] // width) * width
        return prod(extents)


@dataclass(frozen=True)
class KernelCode:
    """A printed kernel: ``void symbol(void *const *args, long part, long nparts)``."""

    key: str
    name: str
    symbol: str
    source: str  # C text
    args: tuple[str, ...]  # names of its buffers, then of its packed ones; the scratch base follows
    scratch_bytes: int  # for each part
    parallel: bool  # if not, it runs as part 0 of 1
    regions: int  # how many region instances launch it


@dataclass(frozen=True)
class Value:
    """A tensor that launches read or write. ``offset`` is the byte in the arena, or the position
    among the inputs, outputs or states."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    place: str  # one of PLACES
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.nbytes


@dataclass(frozen=True)
class Launch:
    """A kernel, by symbol, on values, by name; "" for a buffer that the kernel never touches."""

    kernel: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class EntryPlan:
    """What one entry runs: launches in order, with a barrier between."""

    name: str
    values: tuple[Value, ...]  # all that its launches touch, its inputs and its outputs
    outputs: tuple[str, ...]  # public names, in the order of the graph
    launches: tuple[Launch, ...]
    arena_bytes: int
    arena_bytes_without_reuse: int

    def place(self, place: str) -> list[Value]:
        return sorted((v for v in self.values if v.place == place), key=lambda v: v.offset)


@dataclass(frozen=True)
class Code:
    """Everything that ``link`` needs but the values of the weights."""

    graph: Graph
    target: Target
    header: str  # text of lumc_kernel.h, which every kernel includes
    kernels: tuple[KernelCode, ...]  # in order of their first launch
    packings: Mapping[str, Packing]  # by value name
    entries: tuple[EntryPlan, ...]


# ---- JSON


def packing_to_json(p: Packing) -> dict[str, Any]:
    terms, index = encode(p.index)
    axes, panel = [list(a) for a in p.axes], list(p.panel) if p.panel else None
    what = {"weight": p.weight, "dtype": p.dtype.value}
    return {**what, "axes": axes, "terms": terms, "index": index, "panel": panel}


def packing_from_json(data: Mapping[str, Any]) -> Packing:
    axes = tuple((str(a), _size(n)) for a, n in data["axes"])
    panel = None
    if data["panel"] is not None:
        lane, width = (_size(n) for n in data["panel"])
        if lane >= len(axes) or width == 0:
            raise ValueError(f"not a panel: {lane}, {width}")
        panel = lane, width
    terms = decode(data["terms"])
    index = tuple(terms[_size(i)] for i in data["index"])
    return Packing(str(data["weight"]), DType(data["dtype"]), index, axes, panel)


def to_json(code: Code) -> dict[str, Any]:
    """The body of a ``.lk`` without its graph."""
    packings = [{"name": n, **packing_to_json(p)} for n, p in code.packings.items()]
    return {
        "target": asdict(code.target),
        "header": code.header,
        "kernels": [asdict(k) for k in code.kernels],
        "packings": packings,
        "entries": [_entry_to_json(e) for e in code.entries],
    }


def _entry_to_json(entry: EntryPlan) -> dict[str, Any]:
    values = [{**asdict(v), "dtype": v.dtype.value, "shape": list(v.shape)} for v in entry.values]
    launches = [[launch.kernel, *launch.args] for launch in entry.launches]
    return {**asdict(entry), "values": values, "launches": launches}


def from_json(body: Mapping[str, Any], graph: Graph) -> Code:
    """The code of a body; raises the errors of malformed JSON, see ``artifact.fields``."""
    target = {**body["target"], "flags": tuple(body["target"]["flags"])}
    kernels = tuple(_kernel_from_json(k) for k in body["kernels"])
    packings = {str(p["name"]): packing_from_json(p) for p in body["packings"]}
    entries = tuple(_entry_from_json(e) for e in body["entries"])
    code = Code(graph, Target(**target), str(body["header"]), kernels, packings, entries)
    verify(code)
    return code


def _kernel_from_json(data: Mapping[str, Any]) -> KernelCode:
    k = KernelCode(**{**data, "args": tuple(data["args"])})
    texts = (k.key, k.name, k.symbol, k.source, *k.args)
    if not all(isinstance(t, str) for t in texts) or not isinstance(k.parallel, bool):
        raise ValueError(f"not a kernel: {k.symbol!r}")
    _size(k.scratch_bytes)
    _size(k.regions)
    return k


def _entry_from_json(data: Mapping[str, Any]) -> EntryPlan:
    values = tuple(
        Value(
            v["name"],
            DType(v["dtype"]),
            tuple(_size(n) for n in v["shape"]),
            v["place"],
            _size(v["offset"]),
        )
        for v in data["values"]
    )
    launches = tuple(Launch(symbol, tuple(args)) for symbol, *args in data["launches"])
    sizes = _size(data["arena_bytes"]), _size(data["arena_bytes_without_reuse"])
    return EntryPlan(data["name"], values, tuple(data["outputs"]), launches, *sizes)


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 46:
        raise ValueError(f"not a size: {value!r}")
    return value


# ---- what must hold


def verify(code: Code) -> None:
    """Symbols are identifiers, names resolve, values fit their places. Raises E0501, exit 5."""
    for problem in (*_kernel_problems(code), *_entry_problems(code)):
        raise corrupt(problem)


def _kernel_problems(code: Code) -> Iterator[str]:
    symbols = [k.symbol for k in code.kernels]
    if len(set(symbols)) != len(symbols):
        yield "two kernels have the same symbol"
    for symbol in symbols:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,99}", symbol):
            yield f"kernel symbol {symbol!r} is not a plain identifier"


def _entry_problems(code: Code) -> Iterator[str]:
    arity = {k.symbol: len(k.args) for k in code.kernels}
    for entry in code.entries:
        known = {v.name for v in entry.values} | {""}
        for launch in entry.launches:
            if arity.get(launch.kernel) != len(launch.args) or not known.issuperset(launch.args):
                yield f"entry '{entry.name}': no kernel or value for {launch}"
        ends = [("input", len(entry.place("input"))), ("output", len(entry.outputs))]
        for place, n in ends:
            if [v.offset for v in entry.place(place)] != list(range(n)):
                yield f"entry '{entry.name}': its {place}s are not in order"
        yield from (
            f"{v} does not fit its place" for v in entry.values if not _fits(v, entry, code)
        )


def _fits(v: Value, entry: EntryPlan, code: Code) -> bool:
    match v.place:
        case "arena":
            return v.offset % ALIGN == 0 and v.offset + v.nbytes <= entry.arena_bytes
        case "packed":
            return v.name in code.packings and v.shape == (code.packings[v.name].size,)
        case "weight":
            return v.name in {w.name for w in code.graph.weights}
        case "state":
            return v.offset < len(code.graph.states)
    return v.place in PLACES
