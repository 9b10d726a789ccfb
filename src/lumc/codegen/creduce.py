"""Reductions as C: several outputs over one walk, lanes along the reduced or a kept axis."""

from __future__ import annotations

from contextlib import ExitStack

from lumc.codegen.cmap import print_map
from lumc.codegen.cterm import C_TYPES
from lumc.codegen.cwriter import Writer
from lumc.codegen.program import Map, Output, Reduce
from lumc.graph.expr import text
from lumc.graph.ops import DType
from lumc.kernel.contraction import computed
from lumc.kernel.term import dtype

# sums of integers wrap: they are unsigned, and modulo 2^32 is also modulo 2^8
_SUMS = {
    DType.F32: "float",
    DType.F64: "double",
    DType.I64: "uint64_t",
    DType.I32: "uint32_t",
    DType.I8: "uint32_t",
    DType.U8: "uint32_t",
}
_BITS = {"float": 32, "double": 64, "uint64_t": 64, "uint32_t": 32}
SIMD_FROM = 4  # elements; shorter reductions stay scalar


def print_reduce(w: Writer, op: Reduce) -> None:
    for o in op.outputs:
        w.comment(f"{text(o.dst)} = {o.op} over {', '.join(op.red)} of {text(o.term)}")
    if op.lanes == "kept":
        _along_kept(w, op)
    else:
        _along_reduced(w, op)


def _combine(op: str, kind: DType, a: str, b: str) -> str:
    """One step of a reduction over values of one dtype, exact for NaN."""
    if op == "sum":
        return f"{a} + {b}" if kind.is_float else f"lumc_add_{kind.value}({a}, {b})"
    return f"lumc_{op}_{kind.value}({a}, {b})"


def _along_kept(w: Writer, op: Reduce) -> None:
    """Accumulate through the row of results; the reduction loops run outside the lanes."""
    lane, ranges = op.kept[-1], op.ranges
    with w.loops(op.kept[:-1], ranges):
        for o in op.outputs:
            if o.init is not o.dst:
                print_map(w, Map(o.dst, (lane,), ranges, o.init))
        levels = w.levels((*op.red, lane))
        values = [levels.value(o.term) for o in op.outputs]
        with ExitStack() as nest:
            for depth, a in enumerate((*op.red, lane)):
                w.lines_of(levels.at[depth])
                simd = "" if a == lane and ranges[a].largest > 1 else None
                nest.enter_context(w.loop(a, ranges[a], simd=simd))
            steps = levels.at[-1]
            for o, value in zip(op.outputs, values, strict=True):
                old = w.load(o.dst, levels.value)
                kind = computed(dtype(o.term))
                steps.append(w.store(o.dst, _combine(o.op, kind, old, value), levels.value))
            w.lines_of(steps)


class _Accumulator:
    """The variables of one output, one per lane: the values so far, and the magnitude bits of an
    exact maximum. The compiler keeps them in registers."""

    def __init__(self, o: Output, serial: int, width: int) -> None:
        self.output, self.kind, self.sums = o, computed(dtype(o.term)), o.op == "sum"
        self.name, self.width, size = f"a_{serial}", width, f"lumc_magnitude_{self.kind.value}"
        self.parts = [(self.name, (_SUMS if self.sums else C_TYPES)[self.kind], "")]
        if o.op == "max" and self.kind.is_float:
            bits = "int32_t" if self.kind is DType.F32 else "int64_t"
            self.parts.append((f"m_{serial}", bits, size))

    def declare(self, w: Writer, init: str) -> None:
        self.init = init
        for name, c_type, _ in self.parts:
            w.line(f"{c_type} {name}[{self.width}];")
        w.line("#pragma omp simd")
        with w.block(f"for (long lane = 0; lane < {self.width}; lane++)"):
            for name, _, of in self.parts:
                w.line(f"{name}[lane] = {'0' if self.sums else f'{of}({init})'};")

    def _take(self, variable: str, value: str) -> str:
        if self.sums or self.kind is DType.BOOL:
            return f"{variable} {'+' if self.sums else '|'}= {value};"
        return f"{variable} = {value} > {variable} ? {value} : {variable};"

    def step(self, value: str, lane: str, masked: bool) -> list[str]:
        """Take one value; ``masked``: unless its lane was ``seen``."""
        value = _unseen(value, "0" if self.sums else f"{self.name}[{lane}]", lane, masked)
        return [self._take(f"{n}[{lane}]", f"{of}({value})") for n, _, of in self.parts]

    def finish(self, w: Writer) -> None:
        """Store the result of all lanes."""
        w.line(w.store(self.output.dst, self._sum(w) if self.sums else self._greatest(w)))

    def _sum(self, w: Writer) -> str:
        """Vectors first, then halves: fewer steps in a row than one lane after the other."""
        unit, c_type = min(self.width, w.target.lanes), self.parts[0][1]
        vector = f"{'f' if self.kind.is_float else 'u'}{_BITS[c_type]}x{unit}"
        parts = [f"*(lumc_{vector} *)({self.name} + {k})" for k in range(0, self.width, unit)]
        total = f"({C_TYPES[self.kind]})lumc_sum_{vector}({' + '.join(parts)})"
        return _combine("sum", self.kind, self.init, total)

    def _greatest(self, w: Writer) -> str:
        top = "LUMC_TOP" if self.kind.is_float else "|" if self.kind is DType.BOOL else "max"
        for name, c_type, _ in self.parts:
            w.line(f"{c_type} {name}_top = {name}[0];")
        if self.width > 1:
            clauses = (f" reduction({'max' if of else top}:{n}_top)" for n, _, of in self.parts)
            w.line(f"#pragma omp simd{''.join(clauses)}")
            with w.block(f"for (long lane = 0; lane < {self.width}; lane++)"):
                w.lines_of([self._take(f"{n}_top", f"{n}[lane]") for n, _, _ in self.parts])
        found = ", ".join(f"{name}_top" for name, _, _ in self.parts)
        return f"lumc_join_{self.kind.value}({found})" if len(self.parts) > 1 else found


def _unseen(value: str, old: str, lane: str, masked: bool) -> str:
    """The value, but ``old`` in lanes that were ``seen``."""
    return f"({lane} < seen ? {old} : {value})" if masked else value


def _along_reduced(w: Writer, op: Reduce) -> None:
    """One result at a time: the lanes run along the last reduced axis, in ``streams`` vectors of
    accumulators, or fewer over a short range."""
    last, r = op.red[-1], op.ranges[op.red[-1]]
    width = op.streams * w.target.lanes
    if r.largest < width:
        width = 1 << r.largest.bit_length() - 1 if r.largest >= SIMD_FROM else 1
    sums = [_Accumulator(o, w.fresh(), width) for o in op.outputs]
    with w.loops(op.kept, op.ranges):
        start = w.levels(())
        inits = [start.value(o.init) for o in op.outputs]
        w.lines_of(start.at[0])
        for a, init in zip(sums, inits, strict=True):
            a.declare(w, init)
        levels, lane = w.levels(op.red), w.names.axis(f"{last}.l") if width > 1 else "0"
        values = [levels.value(a.output.term) for a in sums]
        stored = [(dst, levels.value(term)) for dst, term in op.stores]
        steps, masked = (
            [s for a, v in zip(sums, values, strict=True) for s in a.step(v, lane, again)]
            + [w.store(dst, _unseen(v, w.load(dst), lane, again)) for dst, v in stored]
            for again in (False, True)
        )
        with ExitStack() as nest:
            for depth, name in enumerate(op.red[:-1]):
                w.lines_of(levels.at[depth])
                nest.enter_context(w.loop(name, op.ranges[name]))
            w.lines_of(levels.at[len(op.red) - 1])
            if width > 1:
                inner = levels.at[-1]
                w.pieces(last, r, width, op.ahead, [*inner, *steps], [*inner, *masked])
            else:
                with w.loop(last, r):
                    w.lines_of([*levels.at[-1], *steps])
        for a in sums:
            a.finish(w)
