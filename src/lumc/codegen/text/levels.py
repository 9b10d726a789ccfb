"""What an operation computes in each of its loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from lumc.codegen.text.statements import SIMD, Let, Simple, new, quoted
from lumc.codegen.text.term import ZEROS, literal, operation, zero
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.program import Range
from lumc.graph.expr import Expr, axis, bounds, linear, num, substitute
from lumc.graph.ops import DType
from lumc.kernel.term import dtype
from lumc.schedule.operands import HALF, computed


class Made(NamedTuple):
    """A value, and the operation that makes it, as in ``Let``."""

    text: str
    op: str = ""
    of: tuple[str, ...] = ()


class Levels:
    """The statements of one operation by loop level: a sub-term is computed once, in the
    outermost loop that fixes its axes, whatever stores lie between."""

    def __init__(self, writer: Writer, loops: Sequence[str]) -> None:
        self.writer, self.loops = writer, list(loops)
        self.at: list[list[Simple]] = [[] for _ in range(len(self.loops) + 1)]
        self._memo: dict[Expr, str] = {}

    def level(self, e: Expr) -> int:
        return max((self.loops.index(a) + 1 for a in e.free if a in self.loops), default=0)

    @contextmanager
    def nest(self, ranges: Mapping[str, Range], depth: int) -> Iterator[None]:
        """The first ``depth`` loops with what is computed in each of them; the last of all loops
        goes over lanes."""
        w = self.writer
        with ExitStack() as loops:
            for i, a in enumerate(self.loops[:depth], 1):
                w.lines_of(self.at[i - 1])
                pragma = SIMD if i == len(self.loops) and ranges[a].largest > 1 else ""
                loops.enter_context(w.loop(a, ranges[a], pragma=pragma))
            w.lines_of(self.at[depth])
            yield

    def value(self, e: Expr) -> str:
        """The name of a constant that holds the value of a term (or its literal)."""
        spelling = self.writer.spelling
        if e.kind == "const":
            return literal(e, spelling)
        if e not in self._memo:
            made, kind = self._made(e), computed(dtype(e))
            c_type = spelling.types[DType.I32 if self._is_narrow(e) else kind]
            self._memo[e] = name = quoted(f"v_{self.writer.fresh()}")
            level = self.level(e)
            chosen = e.kind == "where" or e.attr[:1] == ("sel",)
            if chosen and level < len(self.loops) and spelling.zeros:
                said = f"{c_type} {new(name)} = {made.text};"
                self.at[level] += [said, f"LUMC_CHOSEN({name});"]
            else:
                self.at[level].append(Let(c_type, name, *made))
        return self._memo[e]

    def _made(self, e: Expr) -> Made:
        w = self.writer
        if e.kind == "load":
            return self._loaded(e, w.load(e, self.value))
        if e.kind == "iota":
            kind = DType.I32 if self._is_narrow(e) else computed(dtype(e))
            return Made(f"({w.spelling.types[kind]})({w.index(e.kids[0], self.value)})")
        if e.kind == "guard":
            return self._guarded(e)
        if e.kind == "cast" and (said := w.converted(e, self.value)):
            return Made(said)
        kids, kind = tuple(self.value(k) for k in e.kids), computed(dtype(e.kids[0]))
        op = f"{e.attr[0]}_{kind.value}" if e.kind == "un" else ""
        op = "mul" if e.kind == "bin" and e.attr[0] == "mul" and kind.is_float else op
        named = all(k.startswith("`") for k in kids)
        return Made(operation(e, kids, w.spelling), op if named else "", kids)

    def _loaded(self, load: Expr, value: str) -> Made:
        """``load`` is what nothing converts: cheaper to read again than to keep."""
        converted = self.writer.places[load.attr[0]].dtype in (*HALF, DType.BOOL)
        return Made(value, "" if converted else "load")

    def _guarded(self, e: Expr) -> Made:
        w, conditions, body = self.writer, list[str](), e
        while body.kind == "guard":
            index, (lo, hi) = w.index(body.kids[0], self.value), body.attr
            conditions.append(f"({index} >= {lo}) & ({index} < {hi})")
            body = body.kids[1]
        if body.kind == "load" and (row := self._row(e, conditions, body)):
            return self._loaded(body, w.widened(body, row))
        # a guarded load must not happen outside; everything else may be computed anywhere
        inner = w.load(body, self.value) if body.kind == "load" else self.value(body)
        return Made(f"(({' & '.join(conditions)}) ? {inner} : {zero(computed(dtype(e)))})")

    def _row(self, e: Expr, conditions: Sequence[str], load: Expr) -> str | None:
        """An element of a row that is read for all lanes or for none: elsewhere a row of zeros is
        read, so that no lane has to ask."""
        w, lane = self.writer, self.loops[-1] if self.loops else ""
        place, asked, inner = w.places[load.attr[0]], list[Expr](), e
        while inner is not load:
            asked.append(inner.kids[0])
            inner = inner.kids[1]
        along = place.access(load).is_contiguous(lane)
        reach = (w.ranges.get(lane, (0, ZEROS))[1] + 1) * place.dtype.nbytes
        if not along or any(lane in i.free for i in asked) or reach > ZEROS or not w.spelling.zeros:
            return None
        row, start = quoted(f"row_{w.fresh()}"), substitute(load, {axis(lane): num(0)})
        c_type, offset = w.spelling.stored[place.dtype], place.offset(start.kids)
        begin = f"&{w.address(start, self.value)}"
        before = any(n < 0 for n in (linear(offset)[0], *linear(offset)[1].values()))
        if before and place.kind == "scratch":
            # the lanes begin inside; no element of an array lies before it, but a number does
            at = f"(uintptr_t)({w.index(offset, self.value)}) * sizeof({c_type})"
            begin = f"(const {c_type} *)((uintptr_t){w.names.place(place)} + {at})"
        found = f"({' & '.join(conditions)}) ? {begin} : {w.spelling.zeros}"
        said = f"const {c_type} *{new(row)} = {found};"
        self.at[max(map(self.level, (start, *asked)))] += [said, f"LUMC_CHOSEN({row});"]
        return f"{row}[{w.names.axis(lane)}]"

    def _is_narrow(self, e: Expr) -> bool:
        """An integer index that fits 32 bits: twice the lanes."""
        if e.kind != "iota" or dtype(e) is not DType.I64:
            return False
        lo, hi = bounds(e.kids[0], self.writer.ranges)
        return lo >= -(1 << 31) and hi < 1 << 31
