"""Statements of one kernel in the making: indices, loads and stores, blocks, loops over tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod

from lumc.codegen.text.statements import Function, Let, Note, Scope, Statement, new
from lumc.codegen.text.term import C, Names, Spelling, narrowed, widened
from lumc.codegen.tile.program import Loop, Program, Range, block_size, block_start
from lumc.graph.expr import Expr, add, bounds, floordiv, mul, signed_sum
from lumc.graph.expr import Range as Bounds
from lumc.graph.expr import text as text_of

EDGES = 4  # sizes of blocks that have texts of their own

Value = Callable[[Expr], str] | None  # says the terms of indices that data decide


class Writer:
    """What all languages have in common; the spelling says how one of them differs."""

    def __init__(self, program: Program, spelling: Spelling = C) -> None:
        kernel = program.kernel
        self.names, self.places, self.spelling = Names(kernel), dict(program.places), spelling
        self.target = program.target
        self.body: list[Statement] = []
        self.functions: dict[Function, str] = {}  # and their names
        self.chosen_tiles: dict[str, str] = {}  # of loops whose tiles a run chooses
        self._serial = 0
        self.ranges: dict[str, Bounds] = dict(kernel.lengths.ranges)
        for a, n in kernel.extent.items():
            self.ranges |= {a: (0, n - 1), f"{a}.0": (0, n - 1), f"{a}.n": (1, n)}

    def fresh(self) -> int:
        """A number that no name has yet."""
        self._serial += 1
        return self._serial

    def function(self, function: Function) -> str:
        """The name of a function; equal ones have the same."""
        return self.functions.setdefault(function, f"micro_{len(self.functions)}")

    # ---- indices and elements

    def index(self, e: Expr, value: Value = None) -> str:
        match e.kind:
            case "axis":
                return self.names.axis(e.attr[0])
            case "dim":
                return self.names.dim(e.attr[0])
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

    def _linear(self, e: Expr, value: Value) -> str:
        def product(atom: Expr, factor: int) -> str:
            body = self.index(atom, value)
            if atom.kind in ("div", "mod") and not body.startswith("lumc"):
                body = f"({body})"
            return body if factor == 1 else f"{body} * {factor}"

        return signed_sum(e, product)

    def end(self, r: Range) -> str:
        return self.index(add(r.lo, r.n))

    def address(self, load: Expr, value: Value = None) -> str:
        """The element that a load reads, as an lvalue."""
        place = self.places[load.attr[0]]
        return f"{self.names.place(place)}[{self.index(place.offset(load.kids), value)}]"

    def load(self, load: Expr, value: Value = None) -> str:
        """The value that a load reads, converted to what it is computed in."""
        return self.widened(load, self.address(load, value))

    def converted(self, cast: Expr, value: Value = None) -> str | None:
        """The value of a cast where it has another text than a cast of the value that it is of."""
        return None

    def widened(self, load: Expr, element: str) -> str:
        return widened(self.places[load.attr[0]].dtype, element)

    def store(self, dst: Expr, text: str, value: Value = None) -> str:
        return f"{self.address(dst, value)} = {self.narrowed(dst, text)};"

    def narrowed(self, dst: Expr, text: str) -> str:
        return narrowed(self.places[dst.attr[0]].dtype, text)

    # ---- statements

    def line(self, statement: Statement) -> None:
        self.body.append(statement)

    def lines_of(self, statements: Iterable[Statement]) -> None:
        self.body.extend(statements)

    def let(self, name: str, value: str) -> None:
        """An index."""
        self.line(Let(self.spelling.counter, name, value))

    def comment(self, text: str) -> None:
        self.line(Note(text))

    @contextmanager
    def apart(self) -> Iterator[list[Statement]]:
        """What is said here, and not in the kernel."""
        outer, self.body = self.body, list[Statement]()
        yield self.body
        self.body = outer

    @contextmanager
    def block(self, head: str = "", note: str = "", pragma: str = "") -> Iterator[None]:
        with self.apart() as body:
            yield
        self.line(Scope(head, tuple(body), note, pragma))

    def count(
        self,
        c: str,
        lo: str,
        end: str,
        by: int = 0,
        note: str = "",
        before: str = "",
        pragma: str = "",
    ) -> AbstractContextManager[None]:
        """A loop, in steps of one or of ``by``."""
        step = f"{c} += {by}" if by else f"{c}++"
        head = f"{before}for ({self.spelling.counter} {new(c)} = {lo}; {c} < {end}; {step})"
        return self.block(head, note, pragma)

    @contextmanager
    def loop(self, name: str, r: Range, note: str = "", pragma: str = "") -> Iterator[None]:
        """A loop over a range of an axis; over one element only, the axis is a constant."""
        c = self.names.axis(name)
        if r.sizes == (1,):
            with self.block():
                self.let(c, self.index(r.lo))
                yield
            return
        with self.count(c, self.index(r.lo), self.end(r), note=note, pragma=pragma):
            yield

    @contextmanager
    def loops(self, names: Sequence[str], ranges: Mapping[str, Range]) -> Iterator[None]:
        if not names:
            yield
            return
        with self.loop(names[0], ranges[names[0]]), self.loops(names[1:], ranges):
            yield

    # ---- loops over tiles

    def tile_starts(self, loops: Sequence[Loop], number: str) -> None:
        """Where the tiles of these loops start, and their sizes, from the number of a tile."""
        for i, loop in enumerate(loops):
            stride = self.tile_count(loops[i + 1 :])
            if loop.count > 1:
                at = number + f" / {stride}" * (stride != "1")
                at += f" % {self.tile_count([loop])}" if loop is not loops[0] else ""
                self.let(self.index(block_start(loop.axis)), f"{at} * {self.tile(loop)}")
                self.tile_size(loop)

    def tile_count(self, loops: Sequence[Loop]) -> str:
        """How many tiles loops have together, as an operand."""
        out = [str(prod(loop.count for loop in loops if loop.length is None))]
        for loop in (loop for loop in loops if loop.length is not None):
            tile = self.tile(loop)
            most = f"{tile} - 1" if loop.axis in self.chosen_tiles else str(loop.tile - 1)
            out.append(f"({self.length(loop)} + {most}) / {tile}")
        return f"({' * '.join(f'({n})' for n in out)})" if out[1:] else out[0]

    def tile(self, loop: Loop) -> str:
        """How many values of its axis a tile has, but for the last one."""
        return self.chosen_tiles.get(loop.axis, str(loop.tile))

    def length(self, loop: Loop) -> str:
        """How many values the axis of a loop has."""
        return str(loop.extent) if loop.length is None else self.index(loop.length)

    def first(self, loop: Loop) -> str:
        """Where the first tile that is done starts."""
        out = "0"
        for first in loop.span.firsts if loop.span else ():
            start = mul(floordiv(first, loop.tile, self.ranges), loop.tile)
            out = f"lumc_max({out}, {self.index(start)})"
        return out

    def last(self, loop: Loop) -> str:
        """Where no tile starts that is done, and none after."""
        out = self.length(loop)
        for end in loop.span.ends if loop.span else ():
            out = f"lumc_min({out}, {self.index(end)})"
        return out

    @contextmanager
    def tiles_of(self, loop: Loop) -> Iterator[None]:
        """A loop over the tiles of an axis."""
        start = self.index(block_start(loop.axis))
        with self.count(start, self.first(loop), self.last(loop), loop.tile, about(loop)):
            self.tile_size(loop)
            yield

    def tile_size(self, loop: Loop) -> None:
        """The size of the current tile, where the last one may be smaller."""
        if loop.extent % loop.tile or loop.length is not None:
            rest = f"{self.length(loop)} - {self.index(block_start(loop.axis))}"
            self.let(self.index(block_size(loop.axis)), f"lumc_min({self.tile(loop)}, {rest})")


def block_sizes(r: Range, by: int) -> list[int]:
    """Every size that a block of ``by`` elements of a range can have, the full one first."""
    return [by] * (r.largest >= by) + r.rests(by)


def ladder(r: Range, by: int) -> list[int]:
    """The sizes of blocks that a range is done in: the exact ones; where these are many the full
    one and powers of two, so that a rest is several blocks."""
    exact = block_sizes(r, by)
    if not is_laddered(r, by):
        return exact
    return [by] * (by in exact) + [1 << i for i in reversed(range((by - 1).bit_length()))]


def is_laddered(r: Range, by: int) -> bool:
    """Are the sizes of its blocks too many for a text each?"""
    return len(block_sizes(r, by)) > EDGES


def title(program: Program) -> list[str]:
    """What a kernel stores, as a comment."""
    kernel = program.kernel
    roots = [f" * {r.buffer}[{', '.join(map(text_of, r.index))}]" for r in kernel.roots]
    return ["/* " + kernel.name, *roots, " */"]


def about(loop: Loop) -> str:
    most = f"{text_of(loop.length)} <= " if loop.length is not None else ""
    tiles = f" in tiles of {loop.tile}" if loop.tile < loop.extent else ""
    return f"{loop.axis} = {most}{loop.extent}{tiles}"
