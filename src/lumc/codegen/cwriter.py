"""Lines of C: indentation, blocks, loops over ranges, micro-kernels that are shared by text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lumc.codegen.cterm import Levels, TermPrinter
from lumc.codegen.program import Program, Range
from lumc.graph.expr import add


class Writer(TermPrinter):
    """The text of one kernel function in the making."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.kernel, program.places)
        self.target = program.target
        self.lines: list[str] = []
        self.functions: dict[str, str] = {}  # text of a function called @ -> its name
        self._depth = 1
        self._counter = [0]

    def line(self, text: str) -> None:
        self.lines.append(("" if text.startswith("#") else "    " * self._depth) + text)

    def lines_of(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.line(text)

    def comment(self, text: str) -> None:
        """One line of at most 100 characters."""
        text = text.replace("*/", "* /")
        room = 100 - 4 * self._depth - 6
        self.line(f"/* {text if len(text) <= room else text[: room - 3] + '...'} */")

    def fresh(self) -> int:
        self._counter[0] += 1
        return self._counter[0]

    def levels(self, loops: Sequence[str]) -> Levels:
        return Levels(self, loops, self.fresh)

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
                code = (line.partition("/*")[0] for line in self.lines[at:])
                if not any(re.search(rf"\b{c}\b", text) for text in code):
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


def block_sizes(r: Range, by: int) -> list[int]:
    """Every size that a block of ``by`` elements of a range can have, the full one first."""
    full = [by] if any(s >= by for s in r.sizes) else []
    return full + sorted({s % by for s in r.sizes} - {0})
