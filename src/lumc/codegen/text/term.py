"""Names, constants and operations as C text; indices and loads are said by a writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lumc.codegen.text.statements import quoted
from lumc.codegen.tile.program import Place
from lumc.graph.expr import Expr
from lumc.graph.ops import UNSIGNED, DType, from_bf16, to_bf16
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.operands import HALF, computed

C_TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.I64: "int64_t",
    DType.I32: "int32_t",
    DType.I16: "int16_t",
    DType.I8: "int8_t",
    DType.U64: "uint64_t",
    DType.U32: "uint32_t",
    DType.U16: "uint16_t",
    DType.U8: "uint8_t",
    DType.BOOL: "_Bool",
}
# in memory; f16 and bf16 travel as their bits
WORDS = "uint32_t"  # of several numbers
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
# a float becomes one of these before it becomes a narrower or an unsigned integer
_WIDER = {
    **dict.fromkeys((DType.I16, DType.I8, DType.U16, DType.U8), DType.I32),
    DType.U32: DType.I64,
}
LONGEST = 16  # characters of a name that is kept
_WORDS = """
args asm auto break case char const continue default do double else enum extern first float for goto
if inline int last linux long main nparts part register restrict return scratch short signed sizeof
static struct switch tile typedef typeof union unix unsigned void volatile while

and block bool catch class constant constexpr delete device explicit export false friend half kernel
mutable namespace new not operator or private protected public step template this thread threadgroup
throw tid true try typeid typename uint using vertex virtual xor
"""
_RESERVED = frozenset(_WORDS.split())  # of C; of C++ and its GPU dialects


def is_plain(name: str) -> bool:
    """Small letters and digits, no word of a language?"""
    known = name.isascii() and name.isalnum() and name[0].isalpha() and name == name.lower()
    return known and len(name) <= LONGEST and name not in _RESERVED


class Names:
    """Quoted C identifiers of axes, blocks and places. Only plain axes keep their name as it is;
    all others contain an underscore, so they cannot collide."""

    def __init__(self, kernel: Kernel) -> None:
        axes, dims = enumerate(sorted(kernel.extent)), enumerate(kernel.lengths.dims)
        self._axes = {a: a if is_plain(a) else f"axis_{i}" for i, a in axes}
        self._dims = {d.name: f"D_{d.name if is_plain(d.name) else i}" for i, d in dims}
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
            return self._called.get(base, quoted(self._axes[base]))
        return quoted(f"{self._axes[base]}_{part.replace('.', '_')}")

    def dim(self, name: str) -> str:
        """A symbolic dim, or a part of an axis."""
        return quoted(self._dims[name]) if name in self._dims else self.axis(name)

    def given(self, dim: str) -> str:
        """Where a kernel of a GPU finds the value of a symbolic dim."""
        return quoted(f"P{self._dims[dim][1:]}")

    def place(self, place: Place) -> str:
        prefix = "B" if place.kind == "argument" else "S"
        return quoted(f"{prefix}_{place.name.replace('.', '_')}")


# ---- values


def literal(e: Expr, spelling: Spelling) -> str:
    """A constant, rounded to its dtype."""
    value, kind = e.attr[1], dtype(e)
    if not kind.is_float:
        large = "u" * (value > DType.I32.limits[1] and kind in UNSIGNED)
        return spelling.least if value == -(1 << 63) else f"{int(value)}{large}"
    f, bits = ("", 64) if kind is DType.F64 else ("f", 32)
    number = _rounded(value, kind)
    if np.isnan(number):
        return spelling.nan.format(f=f, bits=bits)
    if np.isinf(number):
        return f"{'-' if number < 0 else ''}{spelling.inf.format(f=f, bits=bits)}"
    return f"{number!r}{f}"


def zero(kind: DType) -> str:
    return "0.0f" if kind is DType.F32 else "0.0" if kind is DType.F64 else "0"


def _rounded(value: float, kind: DType) -> float:
    """The element of a float dtype that is nearest to a value."""
    with np.errstate(over="ignore"):
        if kind is DType.BF16:
            return float(from_bf16(to_bf16(np.array([value], np.float32)))[0])
        return float(kind.numpy.type(value))


def widened(kind: DType, element: str) -> str:
    """What is computed with an element in memory."""
    if kind in HALF:
        return f"lumc_from_{kind.value}({element})"
    return f"({element} != 0)" if kind is DType.BOOL else element


def narrowed(kind: DType, value: str) -> str:
    """What is stored of a value."""
    return f"lumc_to_{kind.value}({value})" if kind in HALF else value


def operation(e: Expr, kids: Sequence[str], spelling: Spelling) -> str:
    """An operation of these operands."""
    kind = computed(dtype(e.kids[0]))
    if e.kind == "un":
        return f"lumc_{e.attr[0]}_{kind.value}({kids[0]})"
    if e.kind == "cast":
        return cast(kids[0], dtype(e.kids[0]), dtype(e), spelling)
    if e.kind == "where" and dtype(e) is DType.BOOL:  # gcc makes no vectors of choices of bools
        return "(({0} & {1}) | (!{0} & {2}))".format(*kids)
    if e.kind == "where":
        return "({} ? {} : {})".format(*kids)
    a, b = kids
    match e.attr[0]:
        case "lt" if kind is DType.BOOL and e.kids[1].kind == "const" and e.kids[1].attr[1]:
            return f"(!{a})"
        case "lt" if a == b:  # of no value, NaN neither; compilers warn of a < a, and of unread a
            return f"(0 & ({a} != 0))"
        case "lt" if kind is DType.BOOL:  # compilers warn of b that is 0
            return f"(!{a} & {b})"
        case "lt":
            return f"({a} < {b})"
        case "eq":
            return f"({a} == {b})"
        case "or":
            return f"({a} | {b})"
        case "sel" if computed(dtype(e)) is DType.BOOL:
            return f"({a} & {b})"
        case "sel":
            return f"({a} ? {b} : {zero(computed(dtype(e)))})"
        case "add" | "mul" if kind.is_float:
            return f"({a} {'+' if e.attr[0] == 'add' else '*'} {b})"
    return f"lumc_{e.attr[0]}_{kind.value}({a}, {b})"


def cast(text: str, source: DType, kind: DType, spelling: Spelling) -> str:
    if kind is DType.BOOL:
        return f"({text} != 0)"
    if kind in HALF:  # rounded as a store would
        return widened(kind, narrowed(kind, f"(float){text}"))
    types = spelling.types
    if not source.is_float or kind.is_float:
        return f"({types[kind]}){text}"
    if kind is DType.U64:
        return f"lumc_to_u64({text})"
    wide = _WIDER.get(kind, kind)
    whole = spelling.truncate.format(type=types[wide], value=text, kind=wide.value)
    # outside the range of int: as numpy on most machines
    return whole if wide is kind else f"({types[kind]}){whole}"


def combine(op: str, kind: DType, a: str, b: str) -> str:
    """One step of a reduction over values of one dtype, exact for NaN."""
    if op == "sum":
        return f"{a} + {b}" if kind.is_float else f"lumc_add_{kind.value}({a}, {b})"
    return f"lumc_{op}_{kind.value}({a}, {b})"
