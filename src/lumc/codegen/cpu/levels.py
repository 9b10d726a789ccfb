"""Micro-kernels that read b as levels: numbers become floats in registers, and what is the same for
all steps of the last reduced axis is multiplied, or added, once behind them.

    c[i] += sum_o (scale[o] * sum_k a[i, o, k] * level[o, k] + shift[o] * sum_k a[i, o, k])
"""

from __future__ import annotations

from collections.abc import Mapping

from lumc.codegen.cpu.micro import MicroKernel, Piece
from lumc.codegen.text.phases import LINE
from lumc.codegen.text.statements import Scope, Statement, new
from lumc.codegen.text.term import STORED, WORDS
from lumc.codegen.tile.packing import WORD, step_order
from lumc.codegen.tile.program import Place
from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import dtype
from lumc.schedule.operands import loaded

CHAINS = 8  # sums that hide the latency of multiply-adds
AHEAD = 4096  # bytes of levels from the one that is read to the one that is fetched


class LevelKernel(MicroKernel):
    """The texts of a register tile that reads levels."""

    places: Mapping[str, Place]

    def reads(self, places: Mapping[str, Place]) -> LevelKernel:
        """The same, where weights lie in these places."""
        self.places = places
        self.loads = [e for e in subterms(*self.op.rest) if e.kind == "load"]
        self.level = places[self.op.b.attr[0]]
        return self

    @property
    def operands(self) -> list[tuple[str, Expr, str]]:
        """Name, element and C type of what a call is given, but for the result."""
        more = [
            (f"D{i}", e, STORED[self.places[e.attr[0]].dtype]) for i, e in enumerate(self.loads)
        ]
        return [*super().operands, *more]

    def stored(self, side: str) -> str:
        return WORDS if side == "b" and self.level.steps > 1 else super().stored(side)

    def _tile(self, m: int, n: int, add: bool) -> list[Statement]:
        parts = [Piece(at, self.lanes, min(self.lanes, n - at)) for at in range(0, n, self.lanes)]
        each = [f"{i}_{j}" for i in range(m) for j in range(len(parts))]
        out: list[Statement] = [f"{self._vec(self.lanes)} `:c{x}` = {{0}};" for x in each]
        out += self._outer(0, m, parts)
        for i in range(m):
            for j, p in enumerate(parts):
                at = f"`C` + {self._row(self.c, i) + p.offset}"
                out.append(self._stored(at, f"`c{i}_{j}`", p, add))
        return out

    def _outer(self, d: int, m: int, parts: list[Piece]) -> list[Statement]:
        """The loops over the reduced axes but the last."""
        ends = {name: f"`{name}{d - 1}`" if d else f"`{name}`" for name, _, _ in self.operands}
        if d + 1 == len(self.op.red):
            return self._block(m, parts, ends)
        k, i = self.op.red[d], f"`i{d}`"
        here: list[Statement] = [
            f"const {kind} *`:{name}{d}` = {ends[name]} + {i} * {self._stride(e, k)};"
            for name, e, kind in self.operands
        ]
        head = f"for (long {new(i)} = 0; {i} < {self._size(k)}; {i}++)"
        return [Scope(head, (*here, *self._outer(d + 1, m, parts)), k)]

    def _stride(self, e: Expr, k: str) -> int:
        if e == self.op.a:
            return self.a.stride(k)
        return self.places[e.attr[0]].access(e).stride(k)

    def _block(self, m: int, parts: list[Piece], ends: Mapping[str, str]) -> list[Statement]:
        """All steps along the last axis, and what is the same for these."""
        rows, lanes = range(m), range(len(parts))
        twice = self.level.steps > 1 and 2 * m * len(parts) <= CHAINS
        sums = ("t", "u")[: 1 + twice]
        out: list[Statement] = [
            f"{self._vec(self.lanes)} `:{t}{i}_{j}` = {{0}};"
            for t in sums
            for i in rows
            for j in lanes
        ]
        out.append(self._steps(m, parts, ends, sums))
        if self.op.shift is not None:
            for i in rows:
                out += self._total(i, ends["A"])
        for name in ("scale", "shift"):
            term = getattr(self.op, name)
            for j, p in enumerate(parts if term is not None else ()):
                out.append(
                    f"const {self._vec(self.lanes)} `:{name}{j}` = {self._value(term, ends, p)};"
                )
        for i in rows:
            for j in lanes:
                value = f"(`t{i}_{j}` + `u{i}_{j}`)" if twice else f"`t{i}_{j}`"
                value += f" * `scale{j}`" if self.op.scale is not None else ""
                value += f" + `shift{j}` * `s{i}`" if self.op.shift is not None else ""
                out.append(f"`c{i}_{j}` += {value};")
        return out

    def _steps(
        self, m: int, parts: list[Piece], ends: Mapping[str, str], sums: tuple[str, ...]
    ) -> Scope:
        """The loop along the last axis, in steps of one word."""
        k, steps = self.op.red[-1], self.level.steps
        by, out = self._stride(self.op.b, k), list[Statement]()
        out.append(f"const {self.stored('b')} *`:Bk` = {ends['B']} + `k` * {by};")
        out.append(
            f"const {self.stored('a')} *`:Ak` = {ends['A']} + `k` * {steps * self.a.stride(k)};"
        )
        kind = f"{'i' if dtype(self.op.b) is DType.I8 else 'u'}{WORD // steps}"
        for j, p in enumerate(parts):
            at = f"`Bk` + {p.offset}"
            if steps > 1:
                out.append(
                    f"const lumc_u32x{self.lanes} `:q{j}` = *(const lumc_u32x{self.lanes} *)({at});"
                )
        if self.op.stage.next_panel:
            width = len(parts) * self.lanes * (4 if steps > 1 else 1)
            out += [
                f"__builtin_prefetch((const char *)`Bk` + {AHEAD + at});"
                for at in range(0, width, LINE)
            ]
        for n, step in enumerate(step_order(WORD // steps) if steps > 1 else (0,)):
            body = list[str]()
            for j, p in enumerate(parts):
                level = self._load("b", self.lanes, f"`Bk` + {p.offset}")
                if steps > 1:
                    level = f"lumc_{kind}x{self.lanes}(`q{j}`, {n * WORD // steps})"
                body.append(f"const {self._vec(self.lanes)} `:b{j}` = {level};")
            for i in range(m):
                step_of_a = self._row(self.a, i) + step * self.a.stride(k)
                body.append(f"const {self.element} `:a{i}` = `Ak`[{step_of_a}];")
                body += [
                    f"`{sums[n % len(sums)]}{i}_{j}` += `b{j}` * `a{i}`;" for j in range(len(parts))
                ]
            out.append(Scope("", tuple(body)))
        count = self.sizes[k][0] // steps
        return Scope(
            f"for (long {new('`k`')} = 0; `k` < {count}; `k`++)", tuple(out), k, "GCC unroll 1"
        )

    def _total(self, i: int, a: str) -> list[Statement]:
        """The sum of a row of a along the last axis."""
        k, at = self.op.red[-1], self._row(self.a, i)
        n, whole = self.sizes[k][0], self._vec(self.lanes)
        if self.a.stride(k) == 1 and n % self.lanes == 0:
            each = (f"*(const {whole} *)({a} + {at + x})" for x in range(0, n, self.lanes))
            return [
                f"const float `:s{i}` = lumc_sum_{self.vector}x{self.lanes}({' + '.join(each)});"
            ]
        step = f"`s{i}` += {a}[{at} + `k` * {self.a.stride(k)}];"
        return [
            f"float `:s{i}` = 0;",
            Scope(f"for (long {new('`k`')} = 0; `k` < {n}; `k`++)", (step,)),
        ]

    def _value(self, e: Expr, ends: Mapping[str, str], p: Piece) -> str:
        """A scale or a shift."""
        load = loaded(e, DType.F32)
        if load.kind == "load":
            at = f"{ends[f'D{self.loads.index(load)}']} + {p.offset}"
            kind = self.places[load.attr[0]].dtype
            if kind is DType.F32:
                return f"*(const {self._vec(self.lanes)} *)({at})"
            return f"lumc_load_{kind.value}x{self.lanes}({at})"
        if e.kind == "const":
            return f"((lumc_{self.vector}x{self.lanes}){{0}} + {e.attr[1]!r}f)"
        left, right = (self._value(x, ends, p) for x in e.kids)
        return f"({left} {'+' if e.attr[0] == 'add' else '*'} {right})"
