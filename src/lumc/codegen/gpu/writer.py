"""What the texts of GPUs have in common: loops over registers, guards, copies, maps, reductions
and the contractions of plain threads. It decides nothing.

``a_t`` and ``a_o`` are the parts of axis ``a`` that come from the thread and from the register;
``D0 ..`` are the digits of the register index. What lies beyond the data is zero in every tile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import Distribution, RegisterDigit, ThreadDigit
from lumc.codegen.gpu.program import Distributed, Nest, Step, Tile
from lumc.codegen.gpu.spelling import SPELLING, placed
from lumc.codegen.gpu.words import as_float, log, parted, shifted, taken, words_of
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.statements import new, quoted
from lumc.codegen.text.term import literal
from lumc.codegen.text.writer import Value, Writer
from lumc.graph.expr import Expr, add, dim, mul, num
from lumc.graph.ops import DType
from lumc.kernel.term import const, dtype
from lumc.schedule.operands import computed

OUTSIDE = "0"  # what stands for a value beyond the data
UNROLL = "LUMC_UNROLL "
FULLY = 32  # steps of a loop that is unrolled
TURNS = 8  # the same of a loop in each of which several neighbours are moved
LARGE = 1 << 31  # elements of a buffer whose offsets need 64 bits
Ranges = Mapping[str, ir.Range]


class Dialect(ABC):
    """The syntax of one language, and what only it can do."""

    steps = UNROLL  # in front of a loop over a few steps of shared operands

    @abstractmethod
    def kernel(self, w: GpuWriter, symbol: str, body: Sequence[str]) -> list[str]:
        """The lines of the kernel ``symbol`` around its body."""

    @abstractmethod
    def declare(self, w: GpuWriter) -> None:
        """The index of the thread and of the block, and the shared memory."""

    @abstractmethod
    def tile(self, kind: str, array: str, offset: int, size: int) -> str:
        """The declaration of a shared tile."""

    @abstractmethod
    def fragments(self, w: GpuWriter, step: Step, op: ir.Contract) -> None:
        """A contraction on the matrix units."""

    def sync(self, w: GpuWriter) -> None:
        """A barrier of the block."""
        w.line("lumc_sync();")

    def move_ahead(self, to: str, source: str, inside: str) -> str:
        """An asynchronous copy of 16 bytes; ``distribute`` refuses it where a language cannot."""
        raise AssertionError("a language without asynchronous copies")

    def ring(self, w: GpuWriter, nest: Nest) -> None:
        """A loop that copies ahead of itself; refused likewise."""
        raise AssertionError("a language without asynchronous copies")


class GpuWriter(Writer):
    """The statements of one kernel in the making."""

    def __init__(self, d: Distributed, dialect: Dialect) -> None:
        super().__init__(d.program, SPELLING)
        self.d, self.tiles, self.dialect = d, d.tiles, dialect
        self.words = words_of(d.program.kernel)
        self.slot = "0"  # of the copies in flight
        self.vectors = dict[Expr, str]()  # loads of neighbours that are there already
        self.numbers = dict[Expr, tuple[str, str]]()  # the same of words: the word, and which of it
        self.loose = set[str]()  # packed values that are being made, one element at a time
        for name, tile in d.tiles.items():
            kind = computed(tile.dtype) if tile.memory == "register" else tile.dtype
            self.places[name] = replace(self.places[name], dtype=kind)

    def move(self, step: Step, to: str, source: str, inside: str) -> None:
        """Copy ``vector`` elements between addresses; zeros where ``inside`` does not hold."""
        copied = f"lumc_copy<16>({to}, {source});"
        if step.ahead or not inside:
            self.line(self.dialect.move_ahead(to, source, inside) if step.ahead else copied)
            return
        assert isinstance(step.op, ir.Map)
        kind = self.spelling.stored[self.places[step.op.dst.attr[0]].dtype]
        self.line(f"const {kind} `:ZERO`[{step.vector}] = {{}};")
        self.line(f"if ({inside}) {copied} else lumc_store({to}, `ZERO`);")

    # ---- where values are

    def parameters(self) -> Iterator[tuple[str, str, str]]:
        """(address space, what they point to, name): maps, buffers in order, then constant dims."""
        kernel = self.d.program.kernel
        yield from (("map", "LUMC_MAP", f"`M{i}`") for i in range(len(self.d.maps)))
        for b in kernel.buffers:
            const = "" if b.name in kernel.stored else "const "
            kind = "lumc_u32" if b.name in self.words else self.spelling.stored[b.dtype]
            yield "device", f"{const}{kind}", self.names.place(self.places[b.name])
        for d in kernel.lengths.dims:
            yield "constant", self.spelling.stored[DType.I64], self.names.given(d.name)

    def registers_and_tiles(self) -> None:
        for name, t in self.tiles.items():
            kind, array = self.places[name].dtype, self.array(name)
            if t.memory == "shared":
                stored = self.spelling.stored[kind]
                self.line(self.dialect.tile(stored, new(array), t.offset, t.size * t.slots))
            elif t.packed:
                self.line(f"lumc_u32 {new(array)}[{t.distribution.size // 2}];")
            else:
                self.line(f"{self.spelling.types[kind]} {new(array)}[{t.distribution.size}];")

    def address(self, load: Expr, value: Value = None) -> str:
        name, tile = load.attr[0], self.tiles.get(load.attr[0])
        if tile is None:
            return f"{self.names.place(self.places[name])}[{self.element(load, value)}]"
        if tile.memory == "register":
            index = self.register(load, tile)
            if tile.packed and name not in self.loose:
                index = f"({index}) / 2"
            return f"{self.array(name)}[{index or '0'}]"
        return f"{self.array(name)}[{self.offset(load, tile)}]"

    def array(self, name: str) -> str:
        tile, c = self.tiles[name], name.replace(".", "_")
        kind = "E" if name in self.loose else "R" if tile.memory == "register" else "S"
        return quoted(f"{kind}_{c}")

    def element(self, load: Expr, value: Value) -> str:
        """The index of an element of an argument."""
        place = self.places[load.attr[0]]
        if place.size < LARGE:
            return self.index(place.offset(load.kids), value)
        wide = self.spelling.types[DType.I64]
        parts = [
            f"({wide})({self.index(i, value)}) * {s}"
            for i, s in zip(load.kids, place.strides, strict=True)
        ]
        return " + ".join(parts)

    def register(self, load: Expr, tile: Tile) -> str:
        """The index of an element among the registers of its value."""
        labels = zip(load.kids, self.places[load.attr[0]].dims, strict=True)
        axes = {d.label: k.attr[0] for k, d in labels if k.kind == "axis"}
        parts, step = list[str](), 1
        for label, extent, stride in reversed(tile.distribution.registers):
            if extent > 1:
                part = self.index(dim(f"{axes[label]}.o"))
                part += f" / {stride}" * (stride > 1) + f" % {extent}" + f" * {step}" * (step > 1)
                parts.append(part)
            step *= extent
        return " + ".join(reversed(parts)) or "0"

    def offset(self, load: Expr, tile: Tile) -> str:
        """The index of an element of a shared tile."""
        total = num(0)
        dims = self.places[load.attr[0]].dims
        for i, d, stride in zip(load.kids, dims, tile.strides, strict=True):
            if d.size > 1:
                total = add(total, mul(i, stride), mul(d.origin, -stride))
        return self.slotted(self.index(total), tile)

    def slotted(self, at: str, tile: Tile) -> str:
        """An index of the copies in flight."""
        at = placed(at, tile)
        return at if tile.slots == 1 else f"({self.slot}) * {tile.size} + {at}"

    def load(self, load: Expr, value: Value = None) -> str:
        if load in self.vectors:
            return self.widened(load, self.vectors[load])
        if packing := self.words.get(load.attr[0]):
            found = self.numbers.get(load) or self.word(load, value)
            return taken(*found, packing, self.places[load.attr[0]].dtype)
        tile = self.tiles.get(load.attr[0])
        if tile is None or not tile.packed or load.attr[0] in self.loose:
            return super().load(load, value)
        bits = f"{self.address(load)} >> ({self.register(load, tile)}) % 2 * 16"
        kind = tile.dtype
        return f"lumc_from_{kind.value}({self.spelling.stored[kind]}{{(lumc_u16)({bits})}})"

    def word(self, load: Expr, value: Value = None) -> tuple[str, str]:
        """The word that a number is in, by shifts: no index is below 0, but a compiler that divides
        must think of it. And which number it is, in the low bits of an index."""
        place, packing = self.places[load.attr[0]], self.words[load.attr[0]]
        if place.size >= LARGE:
            at = self.element(load, value)
            index = f"({at}) >> {log(packing.steps)}"
        else:
            whole, rest = parted(place.offset(load.kids), packing.steps)
            index, at = self.index(whole, value), self.index(rest, value)
            if rest.kind != "num":
                index += f" + (({at}) >> {log(packing.steps)})"
        return f"{self.names.place(place)}[{index}]", at

    def converted(self, e: Expr, value: Value = None) -> str | None:
        (load,) = e.kids
        packing = self.words.get(load.attr[0]) if load.kind == "load" else None
        if packing is None or computed(dtype(e)) is not DType.F32:
            return None
        of = self.places[load.attr[0]].dtype
        apart = self.numbers.get(load) or (shifted(*self.word(load, value), packing), "0")
        return as_float(*apart, of)

    # ---- which points a thread has

    def digit(self, t: ThreadDigit) -> str:
        shift = f" >> {t.div.bit_length() - 1}" if t.div > 1 else ""
        return f"(`tid`{shift} & {t.mod - 1})"

    def threads(self, points: Distribution, axes: Sequence[str]) -> None:
        """The parts of these axes that come from the thread."""
        for a in axes:
            parts = [
                f"(int){self.digit(t)}" + f" * {t.stride}" * (t.stride > 1)
                for t in points.threads
                if t.axis == a
            ]
            if parts:
                self.let(self.index(dim(f"{a}.t")), " + ".join(parts))

    @contextmanager
    def counting(self, counts: Mapping[str, int], unroll: bool = True) -> Iterator[None]:
        """Loops of these variables from 0 to their counts, the outer ones first."""
        with ExitStack() as nest:
            for name, n in counts.items():
                nest.enter_context(self.count(name, "0", f"{n}", before=UNROLL * unroll))
            yield

    def registers(
        self, digits: Sequence[RegisterDigit], start: int = 0, unroll: bool = True
    ) -> AbstractContextManager[None]:
        return self.counting({f"`D{i}`": r.extent for i, r in enumerate(digits, start)}, unroll)

    def coordinates(
        self,
        points: Distribution,
        axes: Sequence[str],
        ranges: Ranges,
        digits: Sequence[RegisterDigit],
    ) -> None:
        """Where the current element lies along these axes."""
        for a in axes:
            r = [
                f"`D{i}`" + f" * {d.stride}" * (d.stride > 1)
                for i, d in enumerate(digits)
                if d.axis == a
            ]
            if r:
                self.let(self.index(dim(f"{a}.o")), " + ".join(r))
            self.let(self.names.axis(a), self.index(self.at(points, a, ranges[a].lo, bool(r))))

    def at(self, points: Distribution, a: str, lo: Expr, registers: bool | None = None) -> Expr:
        """A start, and the parts of an axis that a thread and a register add to it."""
        if registers is None:
            registers = any(r.axis == a for r in points.registers)
        thread = [dim(f"{a}.t")] if any(t.axis == a for t in points.threads) else []
        return add(lo, *thread, *([dim(f"{a}.o")] if registers else []))

    @contextmanager
    def points(self, points: Distribution, axes: Sequence[str], ranges: Ranges) -> Iterator[None]:
        """The elements of this thread, one after the other."""
        self.threads(points, axes)
        with self.registers(points.registers):
            self.coordinates(points, axes, ranges, points.registers)
            yield

    def inside(self, points: Distribution, axes: Sequence[str], ranges: Ranges) -> list[str]:
        """What holds for points that lie in the data."""
        return [
            f"{self.names.axis(a)} < {self.end(ranges[a])}"
            for a in axes
            if len(ranges[a].sizes) > 1 or points.span(a) > ranges[a].largest
        ]

    def once(self, points: Distribution, axes: frozenset[str]) -> list[str]:
        """What holds for one of the threads that have the same."""
        return [f"{self.digit(t)} == 0" for t in points.threads if t.mod > 1 and t.axis not in axes]

    def fits(self, ref: Expr, points: Distribution, ranges: Ranges) -> list[str]:
        """What holds for points that a shared tile has, also one that began before this loop."""
        out = list[str]()
        for i, d in zip(ref.kids, self.places[ref.attr[0]].dims, strict=True):
            if i.kind == "axis" and d.origin is ranges[i.attr[0]].lo:
                a = i.attr[0]
                if points.span(a) > d.size:
                    out.append(f"{self.index(self.at(points, a, num(0)))} < {d.size}")
            else:
                spread = [a for a in sorted(i.free & ranges.keys()) if points.span(a) > 1]
                out += self.inside(points, spread, ranges)
        return list(dict.fromkeys(out))

    @contextmanager
    def when(self, conditions: Sequence[str]) -> Iterator[None]:
        if not conditions:
            yield
            return
        with self.block(f"if ({' && '.join(conditions)})"):
            yield

    # ---- values

    def values(self, terms: Sequence[tuple[Expr, str]], inside: Sequence[str]) -> list[str]:
        """The values of terms, with what stands for them outside the data."""
        levels = Levels(self, ())
        found = [levels.value(e) for e, _ in terms]
        if not inside or all(e.kind == "const" for e, _ in terms):
            self.lines_of(levels.at[0])
            return found
        names = [quoted(f"e_{self.fresh()}") for _ in terms]
        for (e, other), name in zip(terms, names, strict=True):
            self.line(f"{self.spelling.types[computed(dtype(e))]} {new(name)} = {other};")
        with self.when(inside):
            self.lines_of(levels.at[0])
            self.lines_of([f"{n} = {v};" for n, v in zip(names, found, strict=True)])
        return names

    @contextmanager
    def storing(
        self, dst: Expr, points: Distribution, axes: Sequence[str], ranges: Ranges
    ) -> Iterator[None]:
        """Of the threads that have the same, one stores to memory, where there is a place; the
        value is zero outside the data."""
        tile = self.tiles.get(dst.attr[0])
        conditions = list[str]()
        if tile is None or tile.memory == "shared":
            conditions = self.once(points, dst.free)
            conditions += (
                self.fits(dst, points, ranges) if tile else self.inside(points, axes, ranges)
            )
        with self.when(conditions):
            yield

    # ---- loops and operands

    def held(self, refs: Iterable[Expr]) -> bool:
        """Does one of these lie in registers? The compiler must know at which index."""
        tiles = [self.tiles.get(e.attr[0]) for e in refs]
        return any(t and t.memory == "register" for t in tiles)

    @contextmanager
    def steps(self, k: str, r: ir.Range, held: bool) -> Iterator[None]:
        """A loop over a reduced axis; over registers it has a constant number of steps."""
        c = self.names.axis(k)
        if not held:
            few = len(r.sizes) == 1 and r.largest <= FULLY
            with self.count(c, self.index(r.lo), self.end(r), before=self.dialect.steps * few):
                yield
            return
        o = self.index(dim(f"{k}.o"))
        with self.counting({o: r.largest}):
            self.let(c, self.index(add(r.lo, dim(f"{k}.o"))))
            yield

    def operand(self, ref: Expr, op: ir.Contract, points: Distribution, axes: Sequence[str]) -> str:
        """An element that a contraction reads, zero outside the data."""
        levels = Levels(self, ())
        value = self.load(ref, levels.value)
        self.lines_of(levels.at[0])
        conditions = self.readable(ref, op, points, axes)
        other = literal(const(0, computed(dtype(ref))), self.spelling)
        return f"{' && '.join(conditions)} ? {value} : {other}" if conditions else value

    def readable(
        self, ref: Expr, op: ir.Contract, points: Distribution, axes: Sequence[str]
    ) -> list[str]:
        """What holds for the elements of an operand that are there."""
        tile = self.tiles.get(ref.attr[0])
        if tile and tile.memory == "register":
            return []
        ranges = op.ranges
        found = self.fits(ref, points, ranges) if tile else self.inside(points, axes, ranges)
        if op.stage.fragment != "simt" or not self.held((op.a, op.b)):
            return found
        edges = [k for k in op.red if k in ref.free and len(ranges[k].sizes) > 1]
        return found + [f"{self.names.axis(k)} < {self.end(ranges[k])}" for k in edges]

    def around(self, nest: ExitStack, op: ir.Contract, along: str) -> None:
        """What fragments do not cover: loops over other reduced axes, batch axes of one element."""
        assert op.stage.rows_axis and op.stage.lane_axis
        for a in op.red:
            if a != along:
                nest.enter_context(self.steps(a, op.ranges[a], False))
        for a in op.kept:
            if a not in (op.stage.rows_axis, op.stage.lane_axis):
                self.let(self.names.axis(a), self.index(op.ranges[a].lo))

    def elements(self, op: ir.Contract, role: Distribution, offsets: Mapping[str, str]) -> None:
        """The coordinates of an element of a fragment from its register parts."""
        for a, offset in offsets.items():
            self.let(self.index(dim(f"{a}.o")), offset)
            self.let(self.names.axis(a), self.index(self.at(role, a, op.ranges[a].lo, True)))
