"""Operands of contractions: read in place, or copied at a depth as a panel or a window.

All questions that depend on the kind of machine are asked here: what a register tile can read
in place, how wide panels are, which copies go through a register transpose.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from lumc.codegen.tile.context import Body, Context, Scope
from lumc.codegen.tile.digits import copy_digits
from lumc.codegen.tile.families import families
from lumc.codegen.tile.packing import WORD, Packing
from lumc.codegen.tile.program import Map, Output, Range, Reduce, whole
from lumc.errors import LumcError
from lumc.graph.expr import (
    Expr,
    add,
    axis,
    bound_axes,
    floordiv,
    mod,
    mul,
    num,
    substitute,
    subterms,
)
from lumc.graph.ops import DType
from lumc.kernel.access import access
from lumc.kernel.key import rename
from lumc.kernel.term import REDUCTIONS, cast, const, dtype
from lumc.schedule.applies import TURNED
from lumc.schedule.fragment import as_stored
from lumc.schedule.levels import (
    AS_LEVELS,
    Levels,
    in_memory,
    levels_of,
    panel_width,
    quantised,
    steps_of,
)
from lumc.schedule.operands import (
    NARROW,
    VECTOR,
    computed,
    lanes,
    loaded,
    loads,
    readable,
    split_operands,
)
from lumc.schedule.staging import reads_levels

PAIRS = 2  # elements this far apart are taken from two whole vectors by one shuffle
FILLED = 2  # vectors of a row from which on its end costs little


class Staging:
    """The copies of operands, made when their depth is reached."""

    def __init__(self, context: Context) -> None:
        self.c = context
        self.staged: dict[tuple[Expr, str], Expr] = {}
        self.spans: dict[str, Scope] = {}  # of the axes of copies in index space
        self.levels: dict[Expr, Levels] = {}  # by stage
        self.packed: dict[tuple[Expr, Expr], Expr] = {}  # by stage and load
        self.by: dict[Expr, tuple[Expr | None, Expr]] = {}  # by stage, of bytes: scale and sums
        self.beside: dict[Expr, tuple[Expr | None, Expr]] = {}  # the same by copy

    def operand(self, stage: Expr, side: str, term: Expr, scope: Scope, body: Body) -> Expr:
        """The load that the register tile reads; copies the operand beside it if it must. Raises
        E0411 (it cannot be read as the schedule asks)."""
        if (stage, side) in self.staged:
            return self.staged[stage, side]
        mode, value = self.c.stage[stage].staging(side), self.c.now(term)
        if mode == "inner":
            return self._copy(stage, side, value, scope, body)
        load = loaded(value, VECTOR[dtype(stage)])
        if mode != "none" or load.kind != "load" or not self._readable(stage, side, load):
            what = f"staging '{mode}' is not possible for operand {side}: {value}"
            raise LumcError("E0411", what, where=f"kernel '{self.c.kernel.name}'")
        return load

    def at_depth(self, position: int, scope: Scope, body: Body) -> None:
        """Make the hoisted copies that belong here: the last open loop that they mention."""
        for stage, side, term in self._to_stage("hoist"):
            depth = self._depth(term)
            value = self.c.now(term)
            missing = any(e.kind in REDUCTIONS for e in subterms(value))
            if depth == position and not missing:
                self.staged[stage, side] = self._copy(stage, side, value, scope, body)

    def _depth(self, term: Expr) -> int:
        """How many output loops must be open for a copy of this operand."""
        schedule = self.c.schedule
        # stages over distributed axes are computed inside their loops, even when these are whole
        inside = {a for e in subterms(term) if e.kind in REDUCTIONS for a in e.free}
        inside &= set(schedule.order[: schedule.parallel])
        cut = {a for a in term.free if a in schedule.order and self.c.is_cut(a)}
        return max((schedule.order.index(a) + 1 for a in cut | inside), default=0)

    def pack(self) -> None:
        """Lay out the constant operands that are copied at link time."""
        done: dict[object, Expr] = {}
        linked = ((mode, *each) for mode in ("link", *AS_LEVELS) for each in self._to_stage(mode))
        for mode, stage, side, term in linked:
            if side == "b" and reads_levels(self.c.kernel, stage, self.c.stage[stage]):
                self._pack_levels(stage, done)
                continue
            _, axes, panel = self._panel(stage, side, term)
            load = loaded(term, VECTOR[dtype(stage)])
            key = (load, axes, panel, mode)
            if key not in done:
                kind = dtype(load) if mode == "narrow" else computed(dtype(stage))
                done[key] = self._pack(load, axes, kind, panel)
            self.staged[stage, side] = done[key]

    def _pack(
        self,
        load: Expr,
        axes: tuple[str, ...],
        kind: DType,
        panel: tuple[int, int] | None,
        steps: int = 1,
    ) -> Expr:
        """A weight as it lies from link time on; ``steps`` of it are one word."""
        packed = self.c.new("packed", axes, self.c.whole, kind, panel, "packed", steps)
        extents, w = self.c.kernel.extent, self.c.kernel.buffer(load.attr[0])
        names = {a: f"a{i}" for i, a in enumerate(axes)}  # alike in all kernels
        over = tuple((names[a], extents[a]) for a in axes)
        index = tuple(rename(i, names) for i in load.kids)
        bits = WORD // steps if steps > 1 else UNSET
        stored = self.c.places[packed.attr[0]].stored
        packing = Packing(w.name, stored, index, over, panel, w.shape, bits)
        self.c.packed[packed.attr[0]] = packing
        return packed

    def _pack_levels(self, stage: Expr, done: dict[object, Expr]) -> None:
        """Lay out the levels of an operand, and each weight that its scale and shift are made
        of."""
        kernel, lane = self.c.kernel, self.c.stage[stage].lane_axis or ""
        found = levels_of(kernel, stage, lane)
        assert found
        self.levels[stage] = found
        width = panel_width(kernel, stage, lane, self.c.target)
        steps = steps_of(kernel, found, self.c.stage[stage].stage_b)
        for load in (e for e in subterms(found.load, *found.rest) if e.kind == "load"):
            over = {*bound_axes(stage)} & load.free
            batch = in_memory(kernel, load, load.free - {lane, *over})
            reduced = [*in_memory(kernel, load, over - {found.inner}), *({found.inner} & over)]
            axes, words = (*batch, *reduced, lane), steps if load == found.load else 1
            panel, key = (len(axes) - 1, width), (load, axes, width, words)
            if key not in done:
                done[key] = self._pack(load, axes, dtype(load), panel, words)
            self.packed[stage, load] = done[key]
        self.staged[stage, "b"] = self.packed[stage, found.load]

    def laid_out(self, stage: Expr, term: Expr | None) -> Expr | None:
        """A scale or a shift of levels, read from where its weights are laid out."""
        return term and substitute(term, {e: q for (s, e), q in self.packed.items() if s == stage})

    def _to_stage(self, mode: str) -> list[tuple[Expr, str, Expr]]:
        """(stage, side, operand) of the operands with this mode that are not staged yet."""
        out = []
        for stage, p in self.c.stage.items():
            split = split_operands(stage, p) if p.lane_axis else None
            for side, term in zip("ab", split or (), strict=False):
                if p.staging(side) == mode and (stage, side) not in self.staged:
                    out.append((stage, side, term))
        return out

    # ---- copies

    def _copy(self, stage: Expr, side: str, value: Expr, scope: Scope, body: Body) -> Expr:
        """Stages that read the same operand the same way share one copy."""
        p = self.c.stage[stage]
        if p.stage_b == "integers":
            return self._copy_bytes(stage, value, scope, body)
        if p.stage_b == "digits":
            return self._copy_digits(stage, value, scope, body)
        value = as_stored(value, dtype(stage), self.c.target)
        lane, axes, panel = self._panel(stage, side, value)
        key = (value, lane, axes, panel, p.window, bound_axes(stage))
        if key not in body.copies:
            copied = self._window(stage, side, value, scope, body) if p.window else None
            if copied is None:
                copied = self.c.new("copy", axes, scope, dtype(value), panel)
                turn = self.turn(copied, value, axes, scope)
                self._write(copied, axes, scope, value, body, turn)
            body.copies[key] = copied
        return body.copies[key]

    def _copy_bytes(self, stage: Expr, value: Expr, scope: Scope, body: Body) -> Expr:
        """Operand a as rows of bytes; what these are multiplied with, and their sums along the
        inner axis, beside them."""
        inner, p = self.levels[stage].inner, self.c.stage[stage]
        made = quantised(value, inner)
        assert made
        key = (value, p.rows_axis, inner)
        if key not in body.copies:
            level, by = made
            outer = self.c.order(level.free - {inner})
            copied = level
            if level.kind != "load" or not self.c.access(level).is_contiguous(inner):
                copied = self.c.new("copy", (*outer, inner), scope, DType.I8)
                self._write(copied, (*outer, inner), scope, level, body)
            sums = self.c.new("stage", outer, scope, DType.F32)
            ranges, term = {a: scope[a] for a in (*outer, inner)}, cast(DType.F32, copied)
            total = Output(sums, "sum", term, const(0.0))
            body.ops.append(Reduce(outer, (inner,), ranges, (total,), copy=True))
            axes = self.c.order(by.free) if by is not None else ()
            scale = by if by is None else self.c.new("copy", axes, scope, DType.F32)
            if by is not None and scale is not None:
                self._write(scale, axes, scope, by, body)
            body.copies[key] = copied
            self.beside[copied] = (scale, sums)
        self.by[stage] = self.beside[body.copies[key]]
        return body.copies[key]

    def _copy_digits(self, stage: Expr, value: Expr, scope: Scope, body: Body) -> Expr:
        """Operand a in digits; what these are multiplied with, and sums, beside them."""
        inner, p = self.levels[stage].inner, self.c.stage[stage]
        key = (value, p.rows_axis, inner, p.stage_b)
        if key not in body.copies:
            made, *beside = copy_digits(self.c, value, inner, scope, body)
            body.copies[key], self.beside[made] = made, (beside[0], beside[1])
        self.by[stage] = self.beside[body.copies[key]]
        return body.copies[key]

    def _write(
        self,
        dst: Expr,
        axes: tuple[str, ...],
        scope: Scope,
        value: Expr,
        body: Body,
        turn: str | None = None,
    ) -> None:
        body.ops.append(Map(dst, axes, {a: scope[a] for a in axes}, value, turn, copy=True))

    def _panel(
        self, stage: Expr, side: str, value: Expr
    ) -> tuple[str | None, tuple[str, ...], tuple[int, int] | None]:
        """(lane axis, axes, panel) of a copy in axis space."""
        p = self.c.stage[stage]
        lane = p.lane_axis if side == "b" else p.rows_axis
        reduced = tuple(a for a in bound_axes(stage) if a in value.free)
        batch = self.c.order(value.free - set(reduced) - {lane or ""})
        if lane is None or lane not in value.free:
            return lane, batch + reduced, None
        if p.form == "dot":  # lanes run along the last reduced axis
            return lane, (*batch, lane, *reduced), None
        axes = (*batch, *reduced, lane)
        if not self.c.execution.by_vectors:
            return lane, axes, None
        return lane, axes, (len(axes) - 1, self.c.width(stage, side))

    def _window(self, stage: Expr, side: str, value: Expr, scope: Scope, body: Body) -> Expr | None:
        """A copy in index space: an index c1*y + c2*u + c whose windows overlap is one axis of
        the copy. Smaller than the copy in axis space, and its guards are paid once."""
        spans, new, names = families(value, scope, len(self.c.places))
        p = self.c.stage[stage]
        lane = p.lane_axis if side == "b" else p.rows_axis
        inner = bound_axes(stage)[-1] if p.form == "dot" else lane
        if not spans or new.free & {a for i in spans for a in i.free}:
            return None
        local = {**scope, **{names[i]: r for i, r in spans.items()}}
        last = [n for i, n in names.items() if inner in i.free]
        last = last or [a for a in (inner,) if a in new.free]
        if side == "a" and p.form == "contract":  # its rows may lie apart
            reads = (self.c.access(e) for e in subterms(new) if e.kind == "load")
            last = [*next((a.contiguous for a in reads), ())] or last
        axes = (*sorted(new.free - set(last)), *last)
        load = self.c.new("window", axes, local, dtype(value))
        seen = substitute(load, {axis(n): i for i, n in names.items()})
        if not self._readable(stage, side, seen):
            del self.c.places[load.attr[0]]
            return None
        self._write(load, axes, local, new, body)
        return seen

    def padded(
        self, value: Expr, lane: str, scope: Scope, body: Body, across: bool = False
    ) -> Expr:
        """The term of a walk over windows, read from a copy in index space: its guards are paid
        once for each element, and not for every window that has it. Lanes that lie c elements
        apart lie side by side in one of c phases of the copy. Of windows that lie ``across`` the
        lanes every element is read anyway; of others only a part of a line may be."""
        if not any(e.kind == "guard" for e in subterms(value)):
            return value
        spans, new, names = families(value, scope, len(self.c.places))
        forms = [i for i in names if lane in i.free] or [axis(lane)] * (across and len(names) > 0)
        if len(forms) != 1 or new.free & {a for i in spans for a in i.free}:
            return value
        (form,), seen = forms, {axis(n): i for i, n in names.items()}
        inner, span = names.get(form, lane), spans.get(form, scope[lane])
        local = {**scope, **{names[i]: r for i, r in spans.items()}}
        axes = (*sorted(new.free - {inner}), inner)
        if (value, lane) in body.copies:
            return body.copies[value, lane]
        step = access(form).stride(lane)
        if self._by_phases(step, scope[lane].largest, dtype(value)) and _is_fixed(span):
            load = self._in_phases(new, axes, step, local, body)
            rest = add(form, mul(axis(lane), -step))
            seen[axis(f"{inner}p")] = mod(rest, step, {})
            seen[axis(f"{inner}q")] = add(axis(lane), floordiv(rest, step, {}))
        else:
            load = self.c.new("window", axes, local, dtype(value))
            self._write(load, axes, local, new, body)
        self.spans[load.attr[0]] = local
        body.copies[value, lane] = substitute(load, seen)
        return body.copies[value, lane]

    def _by_phases(self, step: int, n: int, kind: DType) -> bool:
        """Do rows of n lanes, so many elements apart, deserve a copy in phases? Parts of a vector
        come one by one else; of pairs every second one is taken by a shuffle for every window."""
        width = lanes(self.c.target, kind)
        return step > 1 and (n < width or (step == PAIRS and n >= FILLED * width))

    def _in_phases(
        self, value: Expr, axes: Sequence[str], step: int, scope: Scope, body: Body
    ) -> Expr:
        """A copy with its last axis as step*q + p: one phase p after the other."""
        *outer, inner = axes
        p, q, size = f"{inner}p", f"{inner}q", scope[inner].largest
        longest, width = -(-size // step), lanes(self.c.target, dtype(value))
        rows = longest if longest < width else -(-longest // width) * width  # that start alike
        scope = {**scope, p: whole(step), q: whole(rows)}
        phased = self.c.new("window", (*outer, p, q), scope, dtype(value))
        for n in range(min(step, size)):  # the last phases may be shorter
            at = {axis(inner): add(mul(axis(q), step), n)}
            own = {**scope, q: whole(-(-(size - n) // step))}
            dst = substitute(phased, {axis(p): num(n)})
            self._write(dst, (*outer, q), own, substitute(value, at), body)
        return phased

    # ---- questions to the machine

    def _readable(self, stage: Expr, side: str, load: Expr) -> bool:
        place, p = self.c.places[load.attr[0]], self.c.stage[stage]
        known = not place.panel and loads(place.dtype, VECTOR[dtype(stage)], p, side)
        if not self.c.execution.by_vectors:
            return True
        return known and readable(place.access(load), stage, p, side)

    def turn(self, dst: Expr, value: Expr, axes: Sequence[str], scope: Scope) -> str | None:
        """The axis along which the operand of a map is contiguous, if that is not the lane axis
        and a register transpose (of 4-byte elements) pays."""
        kind = computed(dtype(value))
        turns = self.c.schedule.transpose and self.c.execution.by_vectors
        if not turns or len(axes) < 2 or kind.nbytes != 4:
            return None
        if self.c.places[dst.attr[0]].dtype is not kind:
            return None
        for e in subterms(value):
            if e.kind != "load" or dtype(e) not in (kind, *NARROW):
                continue
            read = self.c.access(e)
            unit = [a for a in axes if a in read.transposed(axes[-1])]
            wide = all(scope[a].largest >= TURNED for a in (axes[-1], *unit[:1]))
            if unit and wide and read.is_affine(*axes) and not self.c.places[e.attr[0]].panel:
                return unit[0]
        return None


def _is_fixed(r: Range) -> bool:
    return r.lo == num(0) and len(r.sizes) == 1
