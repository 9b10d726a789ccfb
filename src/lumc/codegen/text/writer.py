"""Lines of C: indentation, blocks, loops over ranges, micro-kernels that are shared by text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from lumc.codegen.text.phases import has_calls, phases, quotients
from lumc.codegen.text.term import C, Levels, Spelling, TermPrinter
from lumc.codegen.tile.program import Loop, Program, Range, block_size, block_start
from lumc.graph.expr import Expr, add, axis, dim, substitute
from lumc.graph.expr import text as text_of

LINE = 64  # bytes of a cache line
WIDTH = 100  # characters of a comment, at most
Lines = Sequence[str]


@dataclass(frozen=True)
class Pieces:
    """The whole pieces of a walk over a row, as ``lines`` for the one that starts at ``at``."""

    at: str
    range: Range
    width: int
    position: int  # in what the operation says
    lines: Lines


class Writer(TermPrinter):
    """The text of one kernel function in the making."""

    def __init__(self, program: Program, spelling: Spelling = C) -> None:
        super().__init__(program.kernel, program.places, spelling)
        self.target = program.target
        self.lines: list[str] = []
        self.functions: dict[str, str] = {}  # text of a function called @ -> its name
        self._depth = 1
        self._apart: list[Pieces] | None = None  # loops that somebody else prints

    def line(self, text: str) -> None:
        self.lines.append(("" if text.startswith("#") else "    " * self._depth) + text)

    def lines_of(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.line(text)

    def comment(self, text: str) -> None:
        """One line of at most ``WIDTH`` characters."""
        text = text.replace("*/", "* /")
        room = WIDTH - 4 * self._depth - 6
        self.line(f"/* {text if len(text) <= room else text[: room - 3] + '...'} */")

    def levels(self, loops: Sequence[str]) -> Levels:
        return Levels(self, loops)

    def function(self, text: str) -> str:
        """The name of a function with this text, in which ``@`` stands for the name."""
        return self.functions.setdefault(text, f"micro_{len(self.functions)}")

    @contextmanager
    def block(self, head: str = "", note: str = "") -> Iterator[None]:
        self.line(f"{head} {{".lstrip() + (f" /* {note} */" if note else ""))
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def end(self, r: Range) -> str:
        return self.index(add(r.lo, r.n))

    @contextmanager
    def loop(self, name: str, r: Range, note: str = "", simd: str | None = None) -> Iterator[None]:
        """A loop over a range of an axis; over one element only, the axis is a constant."""
        c = self.names.axis(name)
        if r.sizes == (1,):
            with self.block():
                self.line(f"const long {c} = {self.index(r.lo)};")
                at = len(self.lines)
                yield
                if not _mentions(self.lines[at:], c):
                    del self.lines[at - 1]
            return
        if simd is not None:
            self.line(f"#pragma omp simd{simd}")
        head = f"for (long {c} = {self.index(r.lo)}; {c} < {self.end(r)}; {c}++)"
        with self.block(head, note):
            yield

    @contextmanager
    def loops(self, names: Sequence[str], ranges: Mapping[str, Range]) -> Iterator[None]:
        if not names:
            yield
            return
        with self.loop(names[0], ranges[names[0]]), self.loops(names[1:], ranges):
            yield

    @contextmanager
    def nest(self, levels: Levels, ranges: Mapping[str, Range], depth: int) -> Iterator[None]:
        """The first ``depth`` loops of an operation with what is computed in each of them; the
        last of all loops goes over lanes."""
        with ExitStack() as loops:
            for i, a in enumerate(levels.loops[:depth], 1):
                self.lines_of(levels.at[i - 1])
                simd = "" if i == len(levels.loops) and ranges[a].largest > 1 else None
                loops.enter_context(self.loop(a, ranges[a], simd=simd))
            self.lines_of(levels.at[depth])
            yield

    # ---- loops over tiles

    def tile_starts(self, loops: Sequence[Loop], number: str) -> None:
        """Where the tiles of these loops start, and their sizes, from the number of a tile."""
        stride = prod(loop.count for loop in loops)
        for loop in loops:
            stride //= loop.count
            if loop.count > 1:
                at = number + f" / {stride}" * (stride > 1)
                at += f" % {loop.count}" if loop is not loops[0] else ""
                start = self.index(block_start(loop.axis))
                self.line(f"const {self.spelling.counter} {start} = {at} * {loop.tile};")
                self.tile_size(loop)

    @contextmanager
    def tiles_of(self, loop: Loop) -> Iterator[None]:
        """A loop over the tiles of an axis."""
        start, counter = self.index(block_start(loop.axis)), self.spelling.counter
        head = f"for ({counter} {start} = 0; {start} < {loop.extent}; {start} += {loop.tile})"
        with self.block(head, about(loop)):
            self.tile_size(loop)
            yield

    def tile_size(self, loop: Loop) -> None:
        """The size of the current tile, where the last one is smaller."""
        if loop.extent % loop.tile:
            rest = f"{loop.extent} - {self.index(block_start(loop.axis))}"
            size = self.index(block_size(loop.axis))
            self.line(f"const {self.spelling.counter} {size} = lumc_min({loop.tile}, {rest});")

    # ---- pieces of the lanes: NAME_at is where one starts, NAME_l counts within it

    def walk(
        self,
        levels: Levels,
        ranges: Mapping[str, Range],
        steps: Lines,
        width: int,
        ahead: Sequence[Expr] = (),
    ) -> None:
        """All loops of an operation around these steps, the last one in pieces where that helps."""
        loops, own = levels.loops, levels.at[-1]
        calls = loops and ranges[loops[-1]].largest > 1 and has_calls(own, self.target.lanes)
        if not loops or not (ahead or calls or self.is_apart):
            levels.at[-1] = []
            with self.nest(levels, ranges, len(loops)):
                self.lines_of(quotients([*own, *steps]))
            return
        with self.nest(levels, ranges, len(loops) - 1):
            self.pieces(loops[-1], ranges[loops[-1]], width, ahead, [*own, *steps])

    def lanes(
        self, name: str, count: int | str, steps: Lines, most: int = 0, start: Expr | None = None
    ) -> None:
        """These steps for ``count`` lanes, ``most`` at most, of the piece of an axis that starts
        at ``start``, else at ``NAME_at``."""
        c, lane = self.names.axis(name), self.names.axis(f"{name}.l")
        origin = f"const long {c} = {self.index(start or dim(f'{name}.at'))} + {lane};"
        arrays, parts = phases(quotients(steps), lane, count, most, self.target.lanes)
        self.lines_of(arrays)
        for part in parts:
            text = [origin, *part.steps] if _mentions(part.steps, c) else part.steps
            self.line("#pragma omp simd")
            with self.block(f"for (long {lane} = 0; {lane} < {count}; {lane}++)"):
                self.lines_of(text)
            if part.call:
                self.line(part.call)

    def pieces(
        self,
        name: str,
        r: Range,
        width: int,
        ahead: Sequence[Expr],
        steps: Lines,
        masked: Lines = (),
    ) -> None:
        """These steps for a range of lanes: whole pieces, then the rest. With ``masked`` the
        rest is the last piece once more, in which ``masked`` skips the lanes below ``seen``."""
        at, end, n = self.names.axis(f"{name}.at"), self.end(r), self.index(r.n)
        if r.largest >= width:
            with self.whole_pieces(at, r, width):
                self.prefetch(name, ahead, width)
                self.lanes(name, width, steps)
        if all(size % width == 0 for size in r.sizes):
            return
        rest = r.sizes[0] % width if len(r.sizes) == 1 else f"({n}) % {width}"
        again = bool(masked) and min(r.sizes) >= width
        with self.block("", "rest"):
            if again:
                self.line(f"const int seen = {width} - {rest};")
            self.line(f"const long {at} = {end} - {width if again else rest};")
            self.lanes(name, width if again else rest, masked if again else steps, width)

    @contextmanager
    def whole_pieces(self, at: str, r: Range, width: int) -> Iterator[None]:
        """The loop over them, unless somebody else prints it."""
        start, end = len(self.lines), self.end(r)
        if self._apart is None:
            head = f"for (long {at} = {self.index(r.lo)}; {at} + {width} <= {end}; {at} += {width})"
            with self.block(head):
                yield
            return
        self._depth += 2
        yield
        self._depth -= 2
        self._apart.append(Pieces(at, r, width, start, self.lines[start:]))
        del self.lines[start:]

    def taken_apart(self, operation: Callable[[], None]) -> tuple[Lines, Pieces | None, Lines]:
        """What an operation over one row says before, in and after its loop over whole pieces; that
        loop is left to the caller, two levels deeper."""
        lines, self.lines, self._apart = self.lines, [], []
        operation()
        said, pieces = self.lines, self._apart
        self.lines, self._apart = lines, None
        if not pieces:
            return said, None, []
        (only,) = pieces
        return said[: only.position], only, said[only.position :]

    @property
    def is_apart(self) -> bool:
        return self._apart is not None

    def prefetch(self, name: str, ahead: Sequence[Expr], width: int) -> None:
        """The lines that these loads touch in a piece of an axis."""
        lane = self.names.axis(f"{name}.l")
        for e in ahead:
            by = LINE // self.places[e.attr[0]].dtype.nbytes
            here = substitute(e, {axis(name): add(dim(f"{name}.at"), dim(f"{name}.l"))})
            head = f"for (long {lane} = 0; {lane} < {width}; {lane} += {by})"
            self.line(f"{head} __builtin_prefetch(&{self.address(here)});")


def block_sizes(r: Range, by: int) -> list[int]:
    """Every size that a block of ``by`` elements of a range can have, the full one first."""
    full = [by] if any(s >= by for s in r.sizes) else []
    return full + sorted({s % by for s in r.sizes} - {0})


def _mentions(lines: Lines, name: str) -> bool:
    """Does code, not only a comment, contain a name?"""
    return any(re.search(rf"\b{name}\b", line.partition("/*")[0]) for line in lines)


def title(program: Program) -> list[str]:
    """What a kernel stores, as a comment."""
    kernel = program.kernel
    roots = [f" * {r.buffer}[{', '.join(map(text_of, r.index))}]" for r in kernel.roots]
    return ["/* " + kernel.name.replace("*/", ""), *roots, " */"]


def about(loop: Loop) -> str:
    whole = loop.tile >= loop.extent
    return f"{loop.axis} = {loop.extent}" + ("" if whole else f" in tiles of {loop.tile}")
