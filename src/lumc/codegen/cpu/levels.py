"""Micro-kernels that read b as levels: numbers become floats in registers, and what is the same for
all steps of the last reduced axis is multiplied, or added, once behind them.

    c[i] += sum_o (scale[o] * sum_k a[i, o, k] * level[o, k] + shift[o] * sum_k a[i, o, k])

Or they are multiplied with bytes, as integers; ``above`` are levels as they are stored, what they
are above the least one:

    c[i] += by[i, o] * (scale[o] * (sum_k a[i, o, k] * above[o, k] + least * sums[i, o])
                        + shift[o] * sums[i, o])

With digits a[i, o, k] are three of them, and sums are those of floats:

    c[i] += scale[o] * (by[i, o] * sum_d 256^d * sum_k a[i, o, d, k] * above[o, k]
                        + least * sums[i, o]) + shift[o] * sums[i, o]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lumc.codegen.cpu.micro import AHEAD, MicroKernel, Piece
from lumc.codegen.text.phases import LINE
from lumc.codegen.text.statements import Let, Scope, Statement, new
from lumc.codegen.text.term import STORED, WORDS
from lumc.codegen.tile.packing import WORD, step_order
from lumc.codegen.tile.program import Place
from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import dtype
from lumc.schedule.levels import DIGIT, DIGITS, FINE, OF_BYTES
from lumc.schedule.operands import loaded

CHAINS = 8  # sums that hide the latency of multiply-adds
BYTES = WORD // 8


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
        beside = [("E", self.op.by), ("F", self.op.sums)]
        more += [(n, e, self.element) for n, e in beside if e is not None]
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
        if self.op.stage.stage_b in OF_BYTES:
            return self._sums_of_integers(m, parts, ends)
        rows, lanes = range(m), range(len(parts))
        twice = self.level.steps > 1 and 2 * m * len(parts) <= CHAINS
        sums = ("t", "u")[: 1 + twice]
        out: list[Statement] = [
            f"{self._vec(self.lanes)} `:{t}{i}_{j}` = {{0}};"
            for t in sums
            for i in rows
            for j in lanes
        ]
        shifted = self.op.shift is not None
        beside = self._rows_of_a(m) if shifted else []
        out += [f"{self._vec(p.width)} `:z{p.offset}` = {{0}};" for p in beside]
        out.append(self._steps(m, parts, ends, sums, beside))
        for p in beside:
            out += [f"const float `:s{p.offset + x}` = `z{p.offset}`[{x}];" for x in range(p.used)]
        for i in rows if shifted and not beside else ():
            out += self._total(i, ends["A"])
        out += self._shared(parts, ends)
        for i in rows:
            for j in lanes:
                value = f"(`t{i}_{j}` + `u{i}_{j}`)" if twice else f"`t{i}_{j}`"
                value += f" * `scale{j}`" if self.op.scale is not None else ""
                value += f" + `shift{j}` * `s{i}`" if shifted else ""
                out.append(f"`c{i}_{j}` += {value};")
        return out

    def _shared(self, parts: list[Piece], ends: Mapping[str, str]) -> list[Statement]:
        """The scale and the shift of a block."""
        out = list[Statement]()
        for name in ("scale", "shift"):
            term = getattr(self.op, name)
            for j, p in enumerate(parts if term is not None else ()):
                out.append(
                    f"const {self._vec(self.lanes)} `:{name}{j}` = {self._value(term, ends, p)};"
                )
        return out

    def _rows_of_a(self, m: int) -> list[Piece]:
        """Vectors of the rows of a, if these lie side by side: they are added up beside the
        products, on other ports."""
        if m == 1 or self._row(self.a, 1) != 1:
            return []
        starts = range(0, m, self.lanes)
        used = [min(self.lanes, m - at) for at in starts]
        widths = [max(4, 1 << (n - 1).bit_length()) for n in used]
        return [Piece(*each) for each in zip(starts, widths, used, strict=True)]

    def _rows(self, at: str, p: Piece) -> str:
        """A vector of rows of a that lie side by side."""
        if p.used == p.width:
            return self._load("a", p.width, f"{at} + {p.offset}")
        return f"lumc_part_{self.vector}x{p.width}({at} + {p.offset}, {p.used})"

    def _steps(
        self,
        m: int,
        parts: list[Piece],
        ends: Mapping[str, str],
        sums: tuple[str, ...],
        beside: list[Piece],
    ) -> Scope:
        """The loop along the last axis, in steps of one word. ``beside``: rows that are added up
        as well."""
        k, steps = self.op.red[-1], self.level.steps
        by, out = self._stride(self.op.b, k), list[Statement]()
        out.append(f"const {self.stored('b')} *`:Bk` = {ends['B']} + `k` * {by};")
        out.append(
            f"const {self.stored('a')} *`:Ak` = {ends['A']} + `k` * {steps * self.a.stride(k)};"
        )
        kind = f"{'i' if dtype(self.op.b) is DType.I8 else 'u'}{WORD // steps}"
        starts = [f"`Ak` + {step * self.a.stride(k)}" for step in range(steps)]
        out += [
            f"`z{p.offset}` += {_in_pairs([self._rows(x, p) for x in starts])};" for p in beside
        ]
        out += self._loaded(parts)
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

    def _loaded(self, parts: list[Piece]) -> Iterator[str]:
        """The words of a step, and what later ones read is fetched."""
        vector = f"lumc_u32x{self.lanes}"
        for j, p in enumerate(parts if self.level.steps > 1 else ()):
            yield f"const {vector} `:q{j}` = *(const {vector} *)(`Bk` + {p.offset});"
        if self.op.stage.next_panel:
            width = len(parts) * self.lanes * self.level.stored.nbytes
            for at in range(0, width, LINE):
                yield f"__builtin_prefetch((const char *)`Bk` + {AHEAD + at});"

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

    # ---- bytes times levels

    def _sums_of_integers(
        self, m: int, parts: list[Piece], ends: Mapping[str, str]
    ) -> list[Statement]:
        """A block as integers, which are scaled then."""
        rows, lanes = range(m), range(len(parts))
        sums = [f"t{d}_{i}_{j}" for d in self.digits for i in rows for j in lanes]
        out: list[Statement] = [f"lumc_word_x{self.lanes} `:{t}` = {{0}};" for t in sums]
        out.append(self._words(m, parts, ends))
        out += self._shared(parts, ends)
        for i in rows:
            if self.op.sums is not None:
                out.append(Let(self.element, f"`s{i}`", self._beside("F", i, ends)))
            if self.op.by is not None:
                out.append(Let(self.element, f"`y{i}`", self._beside("E", i, ends)))
            out += [f"`c{i}_{j}` += {self._sum(i, j)};" for j in lanes]
        return out

    def _beside(self, name: str, i: int, ends: Mapping[str, str]) -> str:
        """What belongs to a block of a row of bytes."""
        (e,) = (e for n, e, _ in self.operands if n == name)
        return f"{ends[name]}[{self._row(self.places[e.attr[0]].access(e), i)}]"

    def _sum(self, i: int, j: int) -> str:
        """Of a block, as floats."""
        bits = WORD // self.level.steps
        least = 1 << bits - 1 if dtype(self.op.b) is DType.I8 else 0
        value, by = self._joined(i, j), f" * `y{i}`" if self.op.by is not None else ""
        if self.op.stage.stage_b == "digits":
            value, by = value + by, ""
        value = f"({value} - {least}.0f * `s{i}`)" if least else value
        value += f" * `scale{j}`" if self.op.scale is not None else ""
        value += f" + `shift{j}` * `s{i}`" if self.op.shift is not None else ""
        return f"({value}){by}" if by else value

    def _joined(self, i: int, j: int) -> str:
        """Sums of digits as floats; where it can be, as integers before."""
        bits, steps = WORD // self.level.steps, self.sizes[self.op.red[-1]][0]
        last, *more = (f"`t{d}_{i}_{j}`" for d in self.digits)
        kind = self._vec(self.lanes)
        if not more:
            return f"__builtin_convertvector({last}, {kind})"
        two = f"({more[0]} << {DIGIT}) + {last}"
        if ((1 << bits) - 1) * steps << FINE < 1 << WORD - 1:
            two = f"((({more[1]} << {DIGIT}) + {more[0]}) << {DIGIT}) + {last}"
            return f"__builtin_convertvector({two}, {kind})"
        first = f"__builtin_convertvector({more[1]}, {kind}) * {float(1 << 2 * DIGIT)}f"
        return f"({first} + __builtin_convertvector({two}, {kind}))"

    @property
    def digits(self) -> range:
        """Of every element of a, the last one first."""
        return range(DIGITS if self.op.stage.stage_b == "digits" else 1)

    def _words(self, m: int, parts: list[Piece], ends: Mapping[str, str]) -> Scope:
        """The loop along the last axis, in steps of one word of levels."""
        k, steps = self.op.red[-1], self.level.steps
        out = list[Statement]()
        out.append(
            f"const {self.stored('b')} *`:Bk` = {ends['B']} + `k` * {self._stride(self.op.b, k)};"
        )
        out.append(f"const {self.stored('a')} *`:Ak` = {ends['A']} + `k` * {steps};")
        out += self._loaded(parts)
        for part in range(steps // BYTES):
            body = [
                f"const lumc_u32x{self.lanes} `:b{j}` = {self._bytes(f'`q{j}`', part)};"
                for j in range(len(parts))
            ]
            for i in range(m):
                for d in self.digits:
                    at, a = self._row(self.a, i) + part * BYTES + d, f"a{d}_{i}"
                    body.append(f"const int32_t `:{a}` = lumc_four(`Ak` + {at});")
                    for j in range(len(parts)):
                        t = f"`t{d}_{i}_{j}`"
                        body.append(f"{t} = lumc_dot4x{self.lanes}({t}, `b{j}`, `{a}`);")
            out.append(Scope("", tuple(body)))
        count = self.sizes[k][0] // steps
        head = f"for (long {new('`k`')} = 0; `k` < {count}; `k`++)"
        return Scope(head, tuple(out), k, "GCC unroll 1")

    def _bytes(self, word: str, part: int) -> str:
        """Four levels of every lane, as bytes."""
        bits = WORD // self.level.steps
        every = f"0x{((1 << bits) - 1) * 0x01010101:08x}u"
        return word if bits == 8 else f"({word} >> {bits * part} & {every})"


def _in_pairs(terms: list[str]) -> str:
    """Their sum, as a tree: no addition waits for all others."""
    half = len(terms) // 2
    return f"({_in_pairs(terms[:half])} + {_in_pairs(terms[half:])})" if half else terms[0]
