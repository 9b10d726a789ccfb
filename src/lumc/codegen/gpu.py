"""What CUDA and Metal text have in common: loops over registers, guards, copies, maps, reductions
and the contractions of plain threads. It decides nothing.

``a_t`` and ``a_o`` are the parts of axis ``a`` that come from the thread and from the register;
``D0 ..`` are the digits of the register index. What lies beyond the data is zero in every tile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod

import lumc.codegen.program as ir
from lumc.codegen.creduce import combine
from lumc.codegen.cterm import Spelling
from lumc.codegen.cwriter import Writer
from lumc.codegen.distributed import (
    Combine,
    Distributed,
    Nest,
    Node,
    Step,
    Sync,
    Tile,
    loads_of,
    writes,
)
from lumc.codegen.layout import WARP, Distribution, RegisterDigit, ThreadDigit
from lumc.graph.expr import Expr, add, axis, dim, mul, num, text
from lumc.graph.ops import DType
from lumc.kernel.contraction import computed
from lumc.kernel.normal import least
from lumc.kernel.term import const, dtype

FULLY = 32  # steps of a loop that is unrolled
LARGE = 1 << 31  # elements of a buffer whose offsets need 64 bits
Ranges = Mapping[str, ir.Range]
Value = Callable[[Expr], str] | None


class GpuWriter(Writer, ABC):
    """The text of one kernel in the making."""

    thread = "tid"
    unroll = "LUMC_UNROLL"

    def __init__(self, d: Distributed, spelling: Spelling) -> None:
        super().__init__(d.program, spelling)
        self.d, self.tiles = d, d.tiles
        self.slot = "0"  # of the copies in flight
        self.loose = set[str]()  # packed values that are being made, one element at a time
        for name, tile in d.tiles.items():
            kind = computed(tile.dtype) if tile.memory == "register" else tile.dtype
            self.places[name] = replace(self.places[name], dtype=kind)

    # ---- syntax of one language

    @abstractmethod
    def sync(self) -> None: ...

    @abstractmethod
    def shuffle(self, value: str, lanes: int) -> str:
        """The value of the thread whose index differs in these bits."""

    @abstractmethod
    def move(self, step: Step, to: str, source: str, inside: str) -> None:
        """Copy ``vector`` elements; zeros where ``inside`` does not hold."""

    @abstractmethod
    def fragments(self, step: Step, op: ir.Contract) -> None:
        """A contraction on the matrix units."""

    def ring(self, nest: Nest) -> None:
        raise NotImplementedError("asynchronous copies")

    # ---- where values are

    def address(self, load: Expr, value: Value = None) -> str:
        name, tile = load.attr[0], self.tiles.get(load.attr[0])
        if tile is None:
            return self._argument(load, value)
        if tile.memory == "register":
            index = self.register(load, tile)
            if tile.packed and name not in self.loose:
                index = f"({index}) / 2"
            return f"{self.array(name)}[{index or '0'}]"
        return f"{self.array(name)}[{self.offset(load, tile)}]"

    def array(self, name: str) -> str:
        tile, c = self.tiles[name], name.replace(".", "_")
        return f"{'E' if name in self.loose else 'R' if tile.memory == 'register' else 'S'}_{c}"

    def _argument(self, load: Expr, value: Value) -> str:
        place = self.places[load.attr[0]]
        if place.size < LARGE:
            return super().address(load, value)
        wide = self.spelling.types[DType.I64]
        parts = [
            f"({wide})({self.index(i, value)}) * {s}"
            for i, s in zip(load.kids, place.strides, strict=True)
        ]
        return f"{self.names.place(place)}[{' + '.join(parts)}]"

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
        at = self.index(total)
        return at if tile.slots == 1 else f"({self.slot}) * {tile.size} + {at}"

    def load(self, load: Expr, value: Value = None) -> str:
        tile = self.tiles.get(load.attr[0])
        if tile is None or not tile.packed or load.attr[0] in self.loose:
            return super().load(load, value)
        bits = f"{self.address(load)} >> ({self.register(load, tile)}) % 2 * 16"
        kind = tile.dtype
        return f"lumc_from_{kind.value}({self.spelling.stored[kind]}{{(lumc_u16)({bits})}})"

    # ---- which points a thread has

    def digit(self, t: ThreadDigit) -> str:
        shift = f" >> {t.div.bit_length() - 1}" if t.div > 1 else ""
        return f"({self.thread}{shift} & {t.mod - 1})"

    def threads(self, points: Distribution, axes: Sequence[str]) -> None:
        """The parts of these axes that come from the thread."""
        for a in axes:
            parts = [
                f"(int){self.digit(t)}" + f" * {t.stride}" * (t.stride > 1)
                for t in points.threads
                if t.axis == a
            ]
            if parts:
                self.line(f"const int {self.index(dim(f'{a}.t'))} = {' + '.join(parts)};")

    @contextmanager
    def registers(
        self, digits: Sequence[RegisterDigit], start: int = 0, unroll: bool = True
    ) -> Iterator[None]:
        with ExitStack() as nest:
            for i, r in enumerate(digits, start):
                head = f"for (int D{i} = 0; D{i} < {r.extent}; D{i}++)"
                nest.enter_context(self.block(f"{self.unroll} {head}" if unroll else head))
            yield

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
                f"D{i}" + f" * {d.stride}" * (d.stride > 1)
                for i, d in enumerate(digits)
                if d.axis == a
            ]
            if r:
                self.line(f"const int {self.index(dim(f'{a}.o'))} = {' + '.join(r)};")
            here = self.index(self.at(points, a, ranges[a].lo, bool(r)))
            self.line(f"const int {self.names.axis(a)} = {here};")

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
        """What holds for points that a shared tile has."""
        dims = self.places[ref.attr[0]].dims
        limits = dict[str, int]()
        for i, d in zip(ref.kids, dims, strict=True):
            for a in sorted(i.free):
                whole = i.kind == "axis" and d.origin is ranges[a].lo
                limits[a] = d.size if whole else ranges[a].largest
        return [
            f"{self.index(self.at(points, a, num(0)))} < {n}"
            for a, n in limits.items()
            if points.span(a) > n
        ]

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
        levels = self.levels(())
        found = [levels.value(e) for e, _ in terms]
        if not inside or all(e.kind == "const" for e, _ in terms):
            self.lines_of(levels.at[0])
            return found
        names = [f"e_{self.fresh()}" for _ in terms]
        for (e, other), name in zip(terms, names, strict=True):
            self.line(f"{self.spelling.types[computed(dtype(e))]} {name} = {other};")
        with self.when(inside):
            self.lines_of(levels.at[0])
            self.lines_of([f"{n} = {v};" for n, v in zip(names, found, strict=True)])
        return names

    def put(
        self, dst: Expr, value: str, points: Distribution, axes: Sequence[str], ranges: Ranges
    ) -> None:
        """Store a value that is zero outside the data."""
        with self.storing(dst, points, axes, ranges):
            self.line(self.store(dst, value))

    @contextmanager
    def storing(
        self, dst: Expr, points: Distribution, axes: Sequence[str], ranges: Ranges
    ) -> Iterator[None]:
        """Of the threads that have the same, one stores to memory, where there is a place."""
        tile = self.tiles.get(dst.attr[0])
        conditions = list[str]()
        if tile is None or tile.memory == "shared":
            conditions = self.once(points, dst.free)
            conditions += (
                self.fits(dst, points, ranges) if tile else self.inside(points, axes, ranges)
            )
        with self.when(conditions):
            yield

    # ---- nests

    def nodes(self, body: Sequence[Node]) -> None:
        for node in body:
            match node:
                case Sync():
                    self.sync()
                case Step():
                    self._step(node)
                case Combine():
                    with self.block("", "the results of all warps"):
                        self._combine(node.step)
                case Nest():
                    self._nest(node)

    def _nest(self, nest: Nest) -> None:
        if nest.slots > 1:
            self.ring(nest)
            return
        match nest.op:
            case ir.Par(loops=loops):
                stride = prod(loop.count for loop in loops)
                self.comment("blocks: " + ", ".join(about(loop) for loop in loops))
                for loop in loops:
                    stride //= loop.count
                    if loop.count > 1:
                        number = "block" + f" / {stride}" * (stride > 1)
                        number += f" % {loop.count}" if loop is not loops[0] else ""
                        start = self.index(ir.block_start(loop.axis))
                        self.line(f"const int {start} = {number} * {loop.tile};")
                        self.tile_size(loop)
                self.nodes(nest.body)
            case ir.Block(loop=loop):
                start = self.index(ir.block_start(loop.axis))
                head = f"for (int {start} = 0; {start} < {loop.extent}; {start} += {loop.tile})"
                with self.block(head, about(loop)):
                    self.tile_size(loop)
                    self.nodes(nest.body)
            case ir.When(first=first):
                tests = [f"{self.index(ir.block_start(a))} == 0" for a in first]
                with self.when(tests):
                    self.nodes(nest.body)

    def tile_size(self, loop: ir.Loop) -> None:
        """The size of the current tile, where the last one is smaller."""
        if loop.extent % loop.tile:
            rest = f"{loop.extent} - {self.index(ir.block_start(loop.axis))}"
            size = self.index(ir.block_size(loop.axis))
            self.line(f"const int {size} = lumc_min({loop.tile}, {rest});")

    # ---- operations

    def _step(self, step: Step) -> None:
        packed = [
            e.attr[0]
            for e in writes(step)
            if e.attr[0] in self.tiles and self.tiles[e.attr[0]].packed
        ]
        with self.block():
            self.loose |= {*packed}
            for name in packed:
                size = self.tiles[name].distribution.size
                self.line(f"float {self.array(name)}[{size}];")
            match step.op:
                case ir.Map():
                    self._map(step, step.op)
                case ir.Reduce():
                    self._reduce(step, step.op)
                case ir.Contract(plan=plan) as op:
                    self.comment(f"{text(op.dst)} += {text(op.a)} * {text(op.b)}")
                    if op.overwrite is not None:
                        self._clear(step, op)
                    (self._simt if plan.fragment == "simt" else self.fragments)(step, op)
            for name in packed:
                loose = self.array(name)
                self.loose.remove(name)
                self.pack(name, loose)

    def pack(self, name: str, loose: str) -> None:
        tile = self.tiles[name]
        kind = self.spelling.stored[tile.dtype]
        head = f"{self.unroll} for (int D = 0; D < {tile.distribution.size // 2}; D++)"
        with self.block(head):
            pair = f"{loose}[2 * D], {loose}[2 * D + 1]"
            self.line(f"{self.array(name)}[D] = lumc_pack<{kind}>({pair});")

    def _map(self, step: Step, op: ir.Map) -> None:
        self.comment(f"{text(op.dst)} = {text(op.term)}")
        points, ranges = step.points, op.ranges
        if step.vector > 1 and self.tiles[op.dst.attr[0]].memory == "shared":
            starts = [r for r in points.registers if r.axis != step.along or r.stride > 1]
            points = replace(points, registers=tuple(starts))
            with self.points(points, op.axes, ranges):
                conditions = [*self.once(points, op.dst.free), *self.fits(op.dst, points, ranges)]
                with self.when(conditions):
                    ends = self.address(op.dst), self.address(op.term)
                    self.move(step, *ends, " && ".join(self.inside(points, op.axes, ranges)))
            return
        with self.points(points, op.axes, ranges):
            inside = self.inside(points, op.axes, ranges)
            if op.dst.attr[0] in self.tiles:
                with self.storing(op.dst, points, op.axes, ranges):
                    value = self.values([(op.term, zero(op.dst))], inside)[0]
                    self.line(self.store(op.dst, value))
                return
            levels = self.levels(())
            stored = self.store(op.dst, levels.value(op.term), levels.value)
            with self.when([*inside, *self.once(points, op.dst.free)]):
                self.lines_of([*levels.at[0], stored])

    def _reduce(self, step: Step, op: ir.Reduce) -> None:
        for o in op.outputs:
            self.comment(f"{text(o.dst)} = {o.op} over {', '.join(op.red)} of {text(o.term)}")
        points, ranges, axes = step.points, op.ranges, (*op.kept, *op.red)
        rows = points.on(op.kept)
        walked = [r for r in points.registers if r.axis in op.red]
        digits = [*rows.registers, *walked]
        results = [f"a_{self.fresh()}" for _ in op.outputs]
        self.threads(points, axes)
        with self.registers(rows.registers):
            for o, a in zip(op.outputs, results, strict=True):
                kind = computed(dtype(o.term))
                self.line(f"{self.spelling.types[kind]} {a} = {self.neutral(o)};")
            stored_in = [self.tiles.get(dst.attr[0]) for dst, _ in op.stores]
            kept = any(t and t.memory == "register" for t in stored_in)
            few = kept or self._by_registers(op) or prod(r.extent for r in walked) <= FULLY
            with self.registers(walked, len(rows.registers), few):
                self.coordinates(points, axes, ranges, digits)
                terms = [(o.term, self.neutral(o)) for o in op.outputs]
                terms += [(e, zero(e)) for _, e in op.stores]
                values = self.values(terms, self.inside(points, axes, ranges))
                for o, a, v in zip(op.outputs, results, values, strict=False):
                    self.line(f"{a} = {combine(o.op, computed(dtype(o.term)), a, v)};")
                for (dst, _), v in zip(op.stores, values[len(results) :], strict=True):
                    self.put(dst, v, points, axes, ranges)
            self._across_lanes(points, op, results)
            with self.block():
                self.coordinates(rows, op.kept, ranges, rows.registers)
                if step.partials:
                    self._partial(step, op, results)
                else:
                    self._finish(op, rows, results)

    def _by_registers(self, op: ir.Reduce) -> bool:
        """Registers are read at indices that the compiler must know."""
        loads = [e for o in op.outputs for e in loads_of(o.term)]
        tiles = [self.tiles.get(e.attr[0]) for e in loads]
        return any(t and t.memory == "register" for t in tiles)

    def neutral(self, o: ir.Output) -> str:
        kind = computed(dtype(o.term))
        return self.literal(const(0, kind) if o.op == "sum" else least(kind))

    def _across_lanes(self, points: Distribution, op: ir.Reduce, results: Sequence[str]) -> None:
        """A butterfly over the threads of a warp that share a result."""
        for t in points.threads:
            bit = t.div
            while t.axis in op.red and bit < min(t.div * t.mod, WARP):
                for o, a in zip(op.outputs, results, strict=True):
                    kind = computed(dtype(o.term))
                    wide = "" if kind.nbytes > 2 else f"({self.spelling.types[DType.I32]})"
                    other = self.shuffle(wide + a, bit)
                    self.line(f"{a} = {combine(o.op, kind, a, other)};")
                bit *= 2

    def _partial(self, step: Step, op: ir.Reduce, results: Sequence[str]) -> None:
        """The first lane of every warp stores what it has."""
        parts, by = list[str](), 1
        for t in step.points.across_warps(op.red):
            parts.append(self.digit(t) + f" * {by}" * (by > 1))
            by *= t.mod
        lanes = (
            t._replace(mod=min(t.mod, WARP // t.div))
            for t in step.points.threads
            if t.axis in op.red and t.div < WARP
        )
        alike = (t for t in step.points.threads if t.axis is None)
        first = [f"{self.digit(t)} == 0" for t in (*lanes, *alike) if t.mod > 1]
        with self.when(first):
            for name, a in zip(step.partials, results, strict=True):
                self.line(f"{self._slot(name, op, ' + '.join(parts))} = {a};")

    def _slot(self, name: str, op: ir.Reduce, slot: str) -> str:
        row = ir.reference(self.places[name], [*(axis(a) for a in op.kept), num(0)])
        return f"{self.array(name)}[{self.offset(row, self.tiles[name])} + {slot}]"

    def _combine(self, step: Step) -> None:
        assert isinstance(step.op, ir.Reduce)
        op, rows = step.op, step.points.on(step.op.kept)
        warps = prod(t.mod for t in step.points.across_warps(op.red))
        results = [f"a_{self.fresh()}" for _ in op.outputs]
        with self.points(rows, op.kept, op.ranges):
            for o, a in zip(op.outputs, results, strict=True):
                kind = computed(dtype(o.term))
                self.line(f"{self.spelling.types[kind]} {a} = {self.neutral(o)};")
            with self.block(f"{self.unroll} for (int W = 0; W < {warps}; W++)"):
                for o, a, name in zip(op.outputs, results, step.partials, strict=True):
                    kind, other = computed(dtype(o.term)), self._slot(name, op, "W")
                    self.line(f"{a} = {combine(o.op, kind, a, other)};")
            self._finish(op, rows, results)

    def _finish(self, op: ir.Reduce, rows: Distribution, results: Sequence[str]) -> None:
        """Join the results of one walk with what they start from, and store them."""
        inside = self.inside(rows, op.kept, op.ranges)
        for o, a in zip(op.outputs, results, strict=True):
            with self.storing(o.dst, rows, op.kept, op.ranges):  # who stores it reads it, alone
                start = self.values([(o.init, zero(o.init))], inside)[0]
                value = combine(o.op, computed(dtype(o.term)), start, a)
                if inside and o.dst.attr[0] in self.tiles:
                    value = f"{' && '.join(inside)} ? {value} : {zero(o.dst)}"
                self.line(self.store(o.dst, value))

    # ---- contractions of plain threads

    def _clear(self, step: Step, op: ir.Contract) -> None:
        with self.registers(step.points.registers):
            self._offsets(step.points.registers)
            self.line(f"{self.address(op.dst)} = {zero(op.dst)};")

    def _offsets(self, digits: Sequence[RegisterDigit]) -> None:
        """The register parts of axes alone."""
        for a in dict.fromkeys(d.axis for d in digits):
            r = [f"D{i} * {d.stride}" for i, d in enumerate(digits) if d.axis == a]
            self.line(f"const int {self.index(dim(f'{a}.o'))} = {' + '.join(r)};")

    def _simt(self, step: Step, op: ir.Contract) -> None:
        assert step.roles
        c, kind = step.roles.c, computed(dtype(op.dst))
        held = self.held(op)
        self.threads(c, op.kept)
        with ExitStack() as nest:
            for k in op.red:
                nest.enter_context(self.steps(k, op.ranges[k], held))
            sides = (("A", op.a), ("B", op.b))
            sizes = dict[str, Distribution]()
            for side, ref in sides:
                points = sizes[side] = c.on(ref.free.difference(op.red))
                axes = [a for a in op.kept if a in ref.free]
                self.line(f"{self.spelling.types[kind]} {side}[{points.size}];")
                with self.registers(points.registers) if points.registers else self.block():
                    self.coordinates(points, axes, op.ranges, points.registers)
                    value = self.operand(ref, op, points, axes)
                    self.line(f"{side}[{_linear(points.registers)}] = {value};")
            with self.registers(c.registers):
                self._offsets(c.registers)
                a, b = (f"{s}[{_linear(c.registers, sizes[s])}]" for s, _ in sides)
                dst = self.address(op.dst)
                if kind.is_float:
                    self.line(f"{dst} += {a} * {b};")
                else:
                    product = f"lumc_mul_{kind.value}({a}, {b})"
                    self.line(f"{dst} = lumc_add_{kind.value}({dst}, {product});")

    def held(self, op: ir.Contract) -> bool:
        """Does an operand lie in registers?"""
        tiles = [self.tiles.get(e.attr[0]) for e in (op.a, op.b)]
        return any(t and t.memory == "register" for t in tiles)

    @contextmanager
    def steps(self, k: str, r: ir.Range, held: bool) -> Iterator[None]:
        """A loop over a reduced axis; over registers it has a constant number of steps."""
        c = self.names.axis(k)
        if not held:
            head = f"for (int {c} = {self.index(r.lo)}; {c} < {self.end(r)}; {c}++)"
            few = len(r.sizes) == 1 and r.largest <= FULLY
            with self.block(f"{self.unroll} {head}" if few else head):
                yield
            return
        o = self.index(dim(f"{k}.o"))
        with self.block(f"{self.unroll} for (int {o} = 0; {o} < {r.largest}; {o}++)"):
            self.line(f"const int {c} = {self.index(add(r.lo, dim(f'{k}.o')))};")
            yield

    def operand(self, ref: Expr, op: ir.Contract, points: Distribution, axes: Sequence[str]) -> str:
        """An element that a contraction reads, zero outside the data."""
        tile = self.tiles.get(ref.attr[0])
        levels = self.levels(())
        value = self.load(ref, levels.value)
        self.lines_of(levels.at[0])
        if tile and tile.memory == "register":
            return value
        if tile:
            conditions = self.fits(ref, points, op.ranges)
        else:
            conditions = self.inside(points, axes, op.ranges)
        if op.plan.fragment == "simt" and self.held(op):  # its steps run over whole tiles
            conditions += [
                f"{self.names.axis(k)} < {self.end(op.ranges[k])}"
                for k in op.red
                if k in ref.free and len(op.ranges[k].sizes) > 1
            ]
        kind = computed(dtype(ref))
        other = self.literal(const(0, kind))
        return f"{' && '.join(conditions)} ? {value} : {other}" if conditions else value


def _linear(digits: Sequence[RegisterDigit], only: Distribution | None = None) -> str:
    """The register index of the current digits, of those that a restriction has."""
    parts, step = list[str](), 1
    axes = {r.axis for r in (only.registers if only else digits)}
    for i, r in reversed([*enumerate(digits)]):
        if r.axis in axes:
            parts.append(f"D{i}" + f" * {step}" * (step > 1))
            step *= r.extent
    return " + ".join(reversed(parts)) or "0"


def zero(e: Expr) -> str:
    return "0"


def title(program: ir.Program) -> list[str]:
    """What a kernel stores, as a comment."""
    kernel = program.kernel
    roots = [f" * {r.buffer}[{', '.join(map(text, r.index))}]" for r in kernel.roots]
    return ["/* " + kernel.name.replace("*/", ""), *roots, " */"]


def about(loop: ir.Loop) -> str:
    whole = loop.tile >= loop.extent
    return f"{loop.axis} = {loop.extent}" + ("" if whole else f" in tiles of {loop.tile}")
