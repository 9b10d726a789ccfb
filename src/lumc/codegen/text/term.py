"""Index expressions and terms as C text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lumc.codegen.tile.program import Place
from lumc.graph.expr import Expr, axis, bounds, num, signed_sum, substitute
from lumc.graph.expr import Range as Bounds
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.operands import computed

C_TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.I64: "int64_t",
    DType.I32: "int32_t",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.BOOL: "_Bool",
}
# in memory; f16 and bf16 travel as their bits
STORED = {**C_TYPES, DType.F16: "uint16_t", DType.BF16: "uint16_t", DType.BOOL: "uint8_t"}


@dataclass(frozen=True)
class Spelling:
    """How a language writes types and the constants that are no numbers; ``{f}`` stands for the
    suffix of a float, ``{bits}`` for its width."""

    types: Mapping[DType, str]  # of values
    stored: Mapping[DType, str]  # in memory
    nan: str = '__builtin_nan{f}("")'
    inf: str = "__builtin_inf{f}()"
    least: str = "INT64_MIN"
    index: str = "long"
    counter: str = "long"  # of loops
    truncate: str = "({type}){value}"  # a float to an integer
    zeros: str = ""  # an address where zeros are, of any type


ZEROS = 1 << 14  # bytes of zeros in lumc_kernel.h
C = Spelling(C_TYPES, STORED, zeros="(const void *)lumc_zeros")
_PLAIN = re.compile(r"[a-z][a-z0-9]{0,15}")
_RESERVED = re.compile(
    "args|asm|auto|break|case|char|const|continue|default|do|double|else|enum|extern|first|float"
    "|for|goto|if|inline|int|last|linux|long|main|nparts|part|register|restrict|return|scratch"
    "|short|signed|sizeof|static|struct|switch|tile|typedef|typeof|union|unix|unsigned|void"
    "|volatile|while"
    # of C++ and its GPU dialects
    "|and|block|bool|catch|class|constant|constexpr|delete|device|explicit|export|false|friend"
    "|half|kernel|mutable|namespace|new|not|operator|or|private|protected|public|step|template"
    "|this|thread|threadgroup|throw|tid|true|try|typeid|typename|uint|using|vertex|virtual|xor"
)


class Names:
    """C identifiers of axes, blocks and places. Only plain axes keep their name as it is; all
    others contain an underscore, so they cannot collide."""

    def __init__(self, kernel: Kernel) -> None:
        axes = sorted(kernel.extent)
        plain = {a for a in axes if _PLAIN.fullmatch(a) and not _RESERVED.fullmatch(a)}
        self._axes = {a: a if a in plain else f"axis_{i}" for i, a in enumerate(axes)}
        self._called = dict[str, str]()

    @contextmanager
    def calling(self, name: str, text: str) -> Iterator[None]:
        """Another identifier for an axis, not for its parts."""
        self._called[name] = text
        yield
        del self._called[name]

    def axis(self, name: str) -> str:
        """An axis, or a part of one: ``m.0`` (block start), ``m.n`` (block size), ``y.w3a``."""
        base, dot, part = name.partition(".")
        if not dot:
            return self._called.get(base, self._axes[base])
        return f"{self._axes[base]}_{part.replace('.', '_')}"

    def place(self, place: Place) -> str:
        prefix = "B" if place.kind == "argument" else "S"
        return f"{prefix}_{place.name.replace('.', '_')}"


class TermPrinter:
    """Text of indices and of single operations, and numbers for new names."""

    def __init__(self, kernel: Kernel, places: Mapping[str, Place], spelling: Spelling = C) -> None:
        self.names, self.places, self.spelling = Names(kernel), dict(places), spelling
        self._serial = 0
        self.ranges: dict[str, Bounds] = {}
        for a, n in kernel.extent.items():
            self.ranges |= {a: (0, n - 1), f"{a}.0": (0, n - 1), f"{a}.n": (1, n)}

    def fresh(self) -> int:
        """A number that no name has yet."""
        self._serial += 1
        return self._serial

    def literal(self, e: Expr) -> str:
        """A constant, rounded to its dtype."""
        value, kind = e.attr[1], dtype(e)
        if not kind.is_float:
            return self.spelling.least if value == -(1 << 63) else str(int(value))
        f, bits = ("", 64) if kind is DType.F64 else ("f", 32)
        number = _rounded(value, kind)
        if np.isnan(number):
            return self.spelling.nan.format(f=f, bits=bits)
        if np.isinf(number):
            return f"{'-' if number < 0 else ''}{self.spelling.inf.format(f=f, bits=bits)}"
        return f"{number!r}{f}"

    def index(self, e: Expr, value: Callable[[Expr], str] | None = None) -> str:
        """An index expression; ``value`` prints the terms of data-dependent ones."""
        match e.kind:
            case "axis" | "dim":
                return self.names.axis(e.attr[0])
            case "num":
                return str(e.attr[0])
            case "lin":
                return self._linear(e, value)
            case "dyn":
                assert value is not None
                return f"({self.spelling.index}){value(e.kids[0])}"
        inner, sign = self.index(e.kids[0], value), "/" if e.kind == "div" else "%"
        if bounds(e.kids[0], self.ranges)[0] < 0:  # C truncates, indices floor
            return f"lumc_floor_{e.kind}({inner}, {e.attr[0]})"
        return f"({inner}) {sign} {e.attr[0]}"

    def _linear(self, e: Expr, value: Callable[[Expr], str] | None) -> str:
        def product(atom: Expr, factor: int) -> str:
            body = self.index(atom, value)
            if atom.kind in ("div", "mod") and not body.startswith("lumc"):
                body = f"({body})"
            return body if factor == 1 else f"{body} * {factor}"

        return signed_sum(e, product)

    def address(self, load: Expr, value: Callable[[Expr], str] | None = None) -> str:
        """The element that a load reads, as an lvalue."""
        place = self.places[load.attr[0]]
        return f"{self.names.place(place)}[{self.index(place.offset(load.kids), value)}]"

    def load(self, load: Expr, value: Callable[[Expr], str] | None = None) -> str:
        """The value that a load reads, converted to what it is computed in."""
        return self.widened(load, self.address(load, value))

    def widened(self, load: Expr, element: str) -> str:
        kind = self.places[load.attr[0]].dtype
        if kind in (DType.F16, DType.BF16):
            return f"lumc_from_{kind.value}({element})"
        return f"({element} != 0)" if kind is DType.BOOL else element

    def store(self, dst: Expr, text: str, value: Callable[[Expr], str] | None = None) -> str:
        return f"{self.address(dst, value)} = {self.narrowed(dst, text)};"

    def narrowed(self, dst: Expr, text: str) -> str:
        kind = self.places[dst.attr[0]].dtype
        return f"lumc_to_{kind.value}({text})" if kind in (DType.F16, DType.BF16) else text

    def operation(self, e: Expr, kids: Sequence[str]) -> str:
        """An operation of these operands."""
        kind = computed(dtype(e.kids[0]))
        if e.kind == "un":
            return f"lumc_{e.attr[0]}_{kind.value}({kids[0]})"
        if e.kind == "cast":
            return self.cast(kids[0], dtype(e.kids[0]), dtype(e))
        if e.kind == "where":
            return "({} ? {} : {})".format(*kids)
        a, b = kids
        match e.attr[0]:
            case "lt" if kind is DType.BOOL and e.kids[1].kind == "const" and e.kids[1].attr[1]:
                return f"(!{a})"
            case "lt":
                return f"({a} < {b})"
            case "eq":
                return f"({a} == {b})"
            case "or":
                return f"({a} | {b})"
            case "sel":
                return f"({a} ? {b} : {zero(computed(dtype(e)))})"
            case "add" | "mul" if kind.is_float:
                return f"({a} {'+' if e.attr[0] == 'add' else '*'} {b})"
        return f"lumc_{e.attr[0]}_{kind.value}({a}, {b})"

    def condition(self, guard: Expr, value: Callable[[Expr], str] | None = None) -> str:
        index = self.index(guard.kids[0], value)
        lo, hi = guard.attr
        return f"({index} >= {lo}) & ({index} < {hi})"

    def cast(self, text: str, source: DType, kind: DType) -> str:
        if kind is DType.BOOL:
            return f"({text} != 0)"
        types = self.spelling.types
        if kind in (DType.F16, DType.BF16):  # rounded as a store would
            return f"lumc_from_{kind.value}(lumc_to_{kind.value}((float){text}))"
        if not source.is_float or kind.is_float:
            return f"({types[kind]}){text}"
        wide = DType.I32 if kind in (DType.I8, DType.U8) else kind
        whole = self.spelling.truncate.format(type=types[wide], value=text, kind=wide.value)
        # outside the range of int: as numpy on most machines
        return whole if wide is kind else f"({types[kind]}){whole}"


def zero(kind: DType) -> str:
    return "0.0f" if kind is DType.F32 else "0.0" if kind is DType.F64 else "0"


def _rounded(value: float, kind: DType) -> float:
    """The element of a float dtype that is nearest to a value."""
    with np.errstate(over="ignore"):
        if kind is DType.BF16:
            return float(from_bf16(to_bf16(np.array([value], np.float32)))[0])
        return float(kind.numpy.type(value))


class Levels:
    """The statements of one operation by loop level: a sub-term is computed once, in the
    outermost loop that fixes its axes, whatever stores lie between."""

    def __init__(self, printer: TermPrinter, loops: Sequence[str]) -> None:
        self.printer, self.loops = printer, list(loops)
        self.at: list[list[str]] = [[] for _ in range(len(self.loops) + 1)]
        self._memo: dict[Expr, str] = {}

    def level(self, e: Expr) -> int:
        return max((self.loops.index(a) + 1 for a in e.free if a in self.loops), default=0)

    def value(self, e: Expr) -> str:
        """The name of a temporary that holds the value of a term (or its literal)."""
        if e.kind == "const":
            return self.printer.literal(e)
        if e not in self._memo:
            text, kind = self._text(e), computed(dtype(e))
            c_type = self.printer.spelling.types[DType.I32 if self._is_narrow(e) else kind]
            self._memo[e] = name = f"v_{self.printer.fresh()}"
            level = self.level(e)
            chosen = e.kind == "where" or e.attr[:1] == ("sel",)
            if chosen and level < len(self.loops) and self.printer.spelling.zeros:
                self.at[level] += [f"{c_type} {name} = {text};", f"LUMC_CHOSEN({name});"]
            else:
                self.at[level].append(f"const {c_type} {name} = {text};")
        return self._memo[e]

    def _text(self, e: Expr) -> str:
        p = self.printer
        if e.kind == "load":
            return p.load(e, self.value)
        if e.kind == "iota":
            kind = DType.I32 if self._is_narrow(e) else computed(dtype(e))
            c_type = p.spelling.types[kind]
            return f"({c_type})({p.index(e.kids[0], self.value)})"
        if e.kind == "guard":
            conditions, body = [], e
            while body.kind == "guard":
                conditions.append(p.condition(body, self.value))
                body = body.kids[1]
            if body.kind == "load" and (row := self._row(e, conditions, body)):
                return p.widened(body, row)
            # a guarded load must not happen outside; everything else may be computed anywhere
            inner = p.load(body, self.value) if body.kind == "load" else self.value(body)
            return f"(({' & '.join(conditions)}) ? {inner} : {zero(computed(dtype(e)))})"
        return p.operation(e, [self.value(k) for k in e.kids])

    def _row(self, e: Expr, conditions: Sequence[str], load: Expr) -> str | None:
        """An element of a row that is read for all lanes or for none: elsewhere a row of zeros is
        read, so that no lane has to ask."""
        p, lane = self.printer, self.loops[-1] if self.loops else ""
        place, asked, inner = p.places[load.attr[0]], list[Expr](), e
        while inner is not load:
            asked.append(inner.kids[0])
            inner = inner.kids[1]
        steps, irregular = place.motion(load.kids)
        along = steps.get(lane) == 1 and lane not in irregular
        reach = (p.ranges.get(lane, (0, ZEROS))[1] + 1) * place.dtype.nbytes
        if not along or any(lane in i.free for i in asked) or reach > ZEROS or not p.spelling.zeros:
            return None
        row, start = f"row_{p.fresh()}", substitute(load, {axis(lane): num(0)})
        found = f"({' & '.join(conditions)}) ? &{p.address(start, self.value)} : {p.spelling.zeros}"
        said = f"const {p.spelling.stored[place.dtype]} *{row} = {found};"
        self.at[max(map(self.level, (start, *asked)))] += [said, f"LUMC_CHOSEN({row});"]
        return f"{row}[{p.names.axis(lane)}]"

    def _is_narrow(self, e: Expr) -> bool:
        """An integer index that fits 32 bits: twice the lanes."""
        if e.kind != "iota" or dtype(e) is not DType.I64:
            return False
        lo, hi = bounds(e.kids[0], self.printer.ranges)
        return lo >= -(1 << 31) and hi < 1 << 31


def combine(op: str, kind: DType, a: str, b: str) -> str:
    """One step of a reduction over values of one dtype, exact for NaN."""
    if op == "sum":
        return f"{a} + {b}" if kind.is_float else f"lumc_add_{kind.value}({a}, {b})"
    return f"lumc_{op}_{kind.value}({a}, {b})"
