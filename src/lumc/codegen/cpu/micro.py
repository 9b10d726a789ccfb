"""Micro-kernels: one register tile of a contraction as a C function over vectors.

Accumulators are named variables, strides are constants, edges have functions of their own: the
compiler keeps everything in registers and there is nothing to decide at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lumc.codegen.text.phases import LINE
from lumc.codegen.text.statements import Function, Let, Scope, Statement, new
from lumc.codegen.text.term import STORED
from lumc.codegen.tile.program import Contract, Valid
from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.access import Access

# (element, vector element): integers wrap, so their products are unsigned
ELEMENT = {
    DType.F32: ("float", "f32"),
    DType.F64: ("double", "f64"),
    DType.I32: ("uint32_t", "u32"),
    DType.I64: ("uint64_t", "u64"),
}
MASKED = 64  # bytes of vectors of which a part can be read and written
SPARE = 2  # registers that are left where the steps of unrolled windows share elements of a
WRITTEN = 256  # sums of all steps of a window that are written out
SHORT = 16  # accumulators; a step of so few pays for its part of the loop
# bytes from what is read of a weight to what is fetched, where each element is read once: what is
# under way in 150 ns at 50 GB/s; measured: 4096 is 10 % slower, 12288 not faster
AHEAD = 8192


class Piece(NamedTuple):
    """A vector of some lanes, of which the first ``used`` are in memory."""

    offset: int
    width: int
    used: int


def pieces(n: int, lanes: int, whole: bool = False) -> list[Piece]:
    """The vectors that cover n lanes exactly: full ones, then halves, ..; or, ``whole``, a last one
    of which only a part is stored, where that saves vectors."""
    out, offset, width = list[Piece](), 0, lanes
    while offset < n:
        if whole and offset + lanes > n and (n - offset).bit_count() > 1:
            return [*out, Piece(offset, lanes, n - offset)]
        while width > n - offset:
            width //= 2
        out.append(Piece(offset, width, width))
        offset += width
    return out


class MicroKernel:
    """The texts of a contraction's register tile: m rows by n lanes, overwriting or adding."""

    def __init__(
        self,
        op: Contract,
        kinds: Sequence[DType],
        lanes: int,
        moves: Sequence[Access],
        ahead: int = 0,
        once: bool = False,
        registers: int = 32,
        padded: bool = False,
        counted: bool = False,
    ) -> None:
        """``kinds`` and ``moves`` of a, b and the result; operands of another dtype than the
        result are converted when they are loaded. ``ahead``: bytes of the next panel of b that
        each step of the innermost loop fetches. ``once``: each row of b is read once, and with it
        one that comes much later is fetched. ``padded``: the rows of b are stored as whole
        vectors. ``counted``: at run time, how many calls there are, and so what a step of those
        with all rows fetches; others fetch nothing."""
        self.op, self.lanes, self.registers, self.padded = op, lanes, registers, padded
        self.ahead, self.once, self.counted = ahead, once, counted
        self.element, self.vector = ELEMENT[kinds[2]]
        self.nbytes = lanes * kinds[2].nbytes
        self.element_of_b = kinds[1].nbytes
        self.narrow = {s: k for s, k in zip("ab", kinds, strict=False) if k is not kinds[2]}
        self.a, self.b, self.c = moves
        self.sizes = {k: op.ranges[k].sizes for k in op.red}

    @property
    def operands(self) -> list[tuple[str, Expr, str]]:
        """Name, element and C type of what a call is given, but for the result."""
        return [("A", self.op.a, self.stored("a")), ("B", self.op.b, self.stored("b"))]

    @property
    def varying(self) -> list[str]:
        """Reduced axes whose size is an argument."""
        return [k for k in self.op.red if len(self.sizes[k]) > 1 and k != self.written_out]

    @property
    def written_out(self) -> str | None:
        """The innermost axis, if some of its steps may be left out: every number of them has a
        text of its own."""
        last = self.op.red[-1]
        some = self.op.stage.form != "dot" and any(w.border.over == last for w in self.op.within)
        return last if some else None

    def fetches(self, m: int) -> int:
        """How many arguments a call has for what it fetches of the next panel."""
        some = self.ahead and (m == self.op.stage.mr or not self.counted)
        return (1 + self.counted) if some else 0

    def function(self, m: int, n: int, add: bool, steps: int = 0, valid: Valid = ()) -> Function:
        """``steps``: of the axis that is written out; ``valid``: the rows that steps of the axis of
        the edge add something to."""
        self.steps, self.valid, self.fetched = steps, valid, self.fetches(m)
        body = self._dot(m, n, add) if self.op.stage.form == "dot" else self._tile(m, n, add)
        given = [f"const {kind} *restrict `:{name}`" for name, _, kind in self.operands]
        given.append(f"{self.element} *restrict `:C`")
        given += [f"long `:n{self.op.red.index(k)}`" for k in self.varying]
        given += ["const char *`:N`", "long `:F`"][: self.fetches(m)]
        return Function(tuple(given), tuple(body))

    def _size(self, k: str) -> str:
        steps = self.steps if k == self.written_out else self.sizes[k][0]
        return f"`n{self.op.red.index(k)}`" if k in self.varying else str(steps)

    def _row(self, access: Access, i: int) -> int:
        """Offset of register row i."""
        return i * access.stride(self.op.stage.rows_axis)

    def _vec(self, width: int) -> str:
        return f"lumc_{self.vector}x{width}"

    def stored(self, side: str) -> str:
        """The C type of an operand in memory."""
        return STORED[self.narrow[side]] if side in self.narrow else self.element

    def _load(self, side: str, width: int, at: str) -> str:
        """The vector at an address, or with width 0 the scalar."""
        if side not in self.narrow:
            return f"*(const {self._vec(width)} *)({at})" if width else f"*({at})"
        return f"lumc_load_{self.narrow[side].value}x{width or 1}({at})"

    def _row_of_b(self, at: str, p: Piece) -> str:
        if p.used == p.width or self.padded:
            return self._load("b", p.width, f"{at} + {p.offset}")
        return f"lumc_part_{self.vector}x{p.width}({at} + {p.offset}, {p.used})"

    def _stored(self, at: str, value: str, p: Piece, add: bool) -> str:
        if p.used == p.width:
            return f"*({self._vec(p.width)} *)({at}) {'+=' if add else '='} {value};"
        kind = f"{self.vector}x{p.width}"
        before = f"lumc_part_{kind}({at}, {p.used}) + " if add else ""
        return f"lumc_put_{kind}({at}, {before}{value}, {p.used});"

    def _tile(self, m: int, n: int, add: bool) -> list[Statement]:
        """c[i][:] += a[i] * b[:], lanes along the lane axis."""
        masked = self.nbytes == MASKED and "b" not in self.narrow
        whole = self.vector == "f32" and (self.padded or masked)
        rows, parts = range(m), list(enumerate(pieces(n, self.lanes, whole)))
        zeros = ([f"{self._vec(p.width)} `:c{i}_{j}` = {{0}};" for j, p in parts] for i in rows)
        out: list[Statement] = [" ".join(each) for each in zeros]
        out += self._nest(0, "`A`", "`B`", rows, [p for _, p in parts])
        for i in rows:
            for j, p in parts:
                at = f"`C` + {self._row(self.c, i) + p.offset}"
                out.append(self._stored(at, f"`c{i}_{j}`", p, add))
        return out

    def _nest(self, d: int, a: str, b: str, rows: range, parts: list[Piece]) -> list[Statement]:
        """The loops over the reduced axes from number ``d`` on, with all in them. Of the axis of
        the edge every step is written out, with its own rows."""
        depth, held = len(self.op.red), len(rows) * len(parts)
        alone = depth > 1 and held + len(parts) + len(rows) > self.registers - SPARE
        if d == depth:
            return self._step(a, b, rows, parts, alone)
        k, inside = self.op.red[d], (f"`A{d}`", f"`B{d}`")
        if self.valid and self.op.edge and k == self.op.edge.border.over:
            out = list[Statement]()
            for v, (first, end) in enumerate(self.valid):
                if own := range(max(first, rows.start), min(end, rows.stop)):
                    here = Let("long", f"`i{d}`", f"{v}"), self._stands(d, k, a, b)
                    step = self._nest(d + 1, *inside, own, parts)
                    out.append(Scope("", (*here, *step), k))
            return out
        several = 4 if self.op.stage.unroll and d + 1 == depth and held <= SHORT else 0
        several = self._unrolled(d, held) if alone else several
        pragma = f"GCC unroll {several}" if several else ""
        return [self._walk(d, a, b, self._nest(d + 1, *inside, rows, parts), pragma)]

    def _step(
        self, a: str, b: str, rows: range, parts: list[Piece], alone: bool
    ) -> list[Statement]:
        """One step of all reduced axes."""
        # no step knows that its elements are those of the last one
        out: list[Statement] = [f'__asm__("" : "+r"({a}));'] if alone else []
        for j, p in enumerate(parts):
            out.append(f"const {self._vec(p.width)} `:b{j}` = {self._row_of_b(b, p)};")
        for i in rows:
            value = f"const {self.element} `:a{i}` = {a}[{self._row(self.a, i)}];"
            out.append(f"{value} {_products(i, range(len(parts)))}")
        ahead = self.ahead if self.fetched else 0
        out += [f"__builtin_prefetch(`N` + {at}, 0, 2);" for at in range(0, ahead, LINE)]
        later = self.element_of_b * sum(p.width for p in parts) if self.once else 0
        out += [
            f"__builtin_prefetch((const char *){b} + {AHEAD + at});" for at in range(0, later, LINE)
        ]
        return out + [f"`N` += {'`F`' if self.counted else ahead};"] * bool(ahead)

    def _unrolled(self, d: int, sums: int) -> int:
        """Steps of a loop over a window that are written out: three steps are too few for a loop,
        which waits for a branch that was foretold wrong."""
        inner, k = d + 1 == len(self.op.red), self.op.red[d]
        steps = 1 if k in self.varying else int(self._size(k))
        return steps if self.op.stage.unroll and inner and steps * sums <= WRITTEN else 1

    def _walk(self, d: int, a: str, b: str, inner: list[Statement], pragma: str = "") -> Scope:
        """The loop over a reduced axis, with where the operands stand in it."""
        k, i = self.op.red[d], f"`i{d}`"
        head = f"for (long {new(i)} = 0; {i} < {self._size(k)}; {i}++)"
        return Scope(head, (self._stands(d, k, a, b), *inner), k, pragma)

    def _stands(self, d: int, k: str, a: str, b: str) -> str:
        """Where the operands stand in a step of a reduced axis."""
        then = f"; const {self.stored('b')} " if self.narrow else ", "
        return (
            f"const {self.stored('a')} *`:A{d}` = {a} + `i{d}` * {self.a.stride(k)}{then}"
            f"*`:B{d}` = {b} + `i{d}` * {self.b.stride(k)};"
        )

    def _dot(self, m: int, n: int, add: bool) -> list[Statement]:
        """c[i][j] += a[i][:] * b[j][:], lanes along the last reduced axis."""
        vec, outer, last = self._vec(self.lanes), self.op.red[:-1], self.op.red[-1]
        # with one reduced axis the horizontal sums come before the scalar tail, so that scalars
        # are not live beside the vector accumulators
        split, total = bool(outer), f"lumc_sum_{self.vector}x{self.lanes}"
        each = [(i, j) for i in range(m) for j in range(n)]
        out: list[Statement] = [f"{vec} `:c{i}_{j}` = {{0}};" for i, j in each]
        out += [f"{self.element} `:s{i}_{j}` = 0;" for i, j in each if split]
        a, b = (f"`{x}{len(outer) - 1 if split else ''}`" for x in "AB")
        loop: list[Statement] = ["long `:k` = 0;", self._products_of_lanes(m, n, a, b)]
        if not split:
            loop += [f"{self.element} `:s{i}_{j}` = {total}(`c{i}_{j}`);" for i, j in each]
        if any(s % self.lanes for s in self.sizes[last]):
            loop.append(self._tail(each, a, b))
        for d in reversed(range(len(outer))):
            ends = ("`A`", "`B`") if d == 0 else (f"`A{d - 1}`", f"`B{d - 1}`")
            loop = [self._walk(d, *ends, loop)]
        out += loop
        for i, j in each:
            at = self._row(self.c, i) + j * self.c.stride(self.op.stage.lane_axis)
            value = f"`s{i}_{j}` + {total}(`c{i}_{j}`)" if split else f"`s{i}_{j}`"
            out.append(f"`C`[{at}] {'+=' if add else '='} {value};")
        return out

    def _products_of_lanes(self, m: int, n: int, a: str, b: str) -> Scope:
        """The whole vectors of a dot product."""
        vec, lanes, out = self._vec(self.lanes), self.lanes, list[Statement]()
        last, col = self.op.red[-1], self.b.stride(self.op.stage.lane_axis)
        for j in range(n):
            right = self._load("b", lanes, f"{b} + {j * col} + `k`")
            out.append(f"const {vec} `:b{j}` = {right};")
        for i in range(m):
            left = self._load("a", lanes, f"{a} + {self._row(self.a, i)} + `k`")
            out.append(f"const {vec} `:a{i}` = {left}; {_products(i, range(n))}")
        head = f"for (; `k` + {lanes} <= {self._size(last)}; `k` += {lanes})"
        return Scope(head, tuple(out), last)

    def _tail(self, each: Sequence[tuple[int, int]], a: str, b: str) -> Scope:
        """The elements that fill no vector."""
        out, col = list[Statement](), self.b.stride(self.op.stage.lane_axis)
        for i, j in each:
            left = self._load("a", 0, f"{a} + {self._row(self.a, i)} + `k`")
            right = self._load("b", 0, f"{b} + {j * col} + `k`")
            out.append(f"`s{i}_{j}` += {left} * {right};")
        return Scope(f"for (; `k` < {self._size(self.op.red[-1])}; `k`++)", tuple(out))


def _products(i: int, cols: range) -> str:
    return " ".join(f"`c{i}_{j}` += `a{i}` * `b{j}`;" for j in cols)
