"""The statements of a kernel: what lies between the tile program and its text, in any language.

    text     a simple statement
    Let      a constant: without effect, so it is left out where nothing reads it
    Scope    a loop, a condition or a mere block around others
    Pieces   a loop over whole pieces of a row, which other rows may join
    Note     a comment

In texts every name stands in `back quotes`, where it is declared as `:name`: what a statement
reads and declares is known, and passes never guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

SIMD = "omp simd"  # iterations that do not depend on one another
WIDTH = 100  # characters of a comment, at most


@dataclass(frozen=True)
class Let:
    """``op`` makes the value ``of`` these names, where a pass wants to know: ``load``, ``mul``, or
    a function and its dtype."""

    type: str
    name: str
    value: str
    op: str = ""
    of: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"const {self.type} {new(self.name)} = {self.value};"


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Scope:
    """``pragma``: what the compiler is told of a loop. Scopes with other notes are equal."""

    head: str
    body: Body
    note: str = field(default="", compare=False)
    pragma: str = ""


@dataclass(frozen=True)
class Pieces:
    """``count`` elements from ``start`` to ``end``, in whole pieces from ``at`` on."""

    at: str
    start: str
    end: str
    count: int
    width: int
    body: Body

    @property
    def scope(self) -> Scope:
        at, by = self.at, self.width
        head = f"for (long {new(at)} = {self.start}; {at} + {by} <= {self.end}; {at} += {by})"
        return Scope(head, self.body)


Simple = str | Let
Steps = Sequence[Simple]
Statement = Simple | Scope | Pieces | Note
Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Function:
    parameters: tuple[str, ...]
    body: Body


# ---- names


def quoted(name: str) -> str:
    return f"`{name}`"


def new(name: str) -> str:
    """A quoted name where it is declared."""
    return f"`:{name[1:]}"


def names(text: str) -> list[str]:
    """The names that a text reads, quoted."""
    return [quoted(n) for n in text.split("`")[1::2] if not n.startswith(":")]


def bare(text: str) -> str:
    """What the compiler sees of it."""
    parts = text.split("`")
    parts[1::2] = [n.removeprefix(":") for n in parts[1::2]]
    return "".join(parts)


# ---- text


def lines(body: Iterable[Statement], depth: int = 1, say: Callable[[str], str] = bare) -> list[str]:
    """The lines of statements in so many blocks; with ``str`` as they are, names quoted."""
    return [*_lines(body, "    " * depth, say)]


def _lines(body: Iterable[Statement], indent: str, say: Callable[[str], str]) -> Iterator[str]:
    for s in body:
        match s:
            case Pieces():
                yield from _lines([s.scope], indent, say)
            case Scope():
                note = f" /* {s.note} */" if s.note else ""
                if s.pragma:
                    yield f"#pragma {say(s.pragma)}"
                yield f"{indent}{f'{say(s.head)} ' if s.head else ''}{{{note}"
                yield from _lines(s.body, indent + "    ", say)
                yield f"{indent}}}"
            case Note():
                text, room = s.text.replace("*/", "* /"), WIDTH - len(indent) - 6
                yield f"{indent}/* {text if len(text) <= room else text[: room - 3] + '...'} */"
            case Let():
                yield indent + say(s.text)
            case _:
                yield indent + say(s)


# ---- passes


def live(body: Iterable[Statement]) -> Body:
    """Without the constants that nothing after them reads."""
    return _live(body)[0]


def _live(body: Iterable[Statement]) -> tuple[Body, set[str]]:
    out, read = list[Statement](), set[str]()
    for s in reversed([*body]):
        match s:
            case Let() if s.name not in read:
                continue
            case Let():
                read.discard(s.name)  # outside it is another
                read.update(names(s.value))
            case Scope() | Pieces():
                inner, inside = _live(s.body)
                scope = s if isinstance(s, Scope) else s.scope
                read.update(inside, names(scope.head), names(scope.pragma))
                s = replace(s, body=inner)
            case str():
                read.update(names(s))
        out.append(s)
    return tuple(reversed(out)), read
