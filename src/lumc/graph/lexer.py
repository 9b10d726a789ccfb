"""The words of the ``.lg`` form: tokens of a line, and errors that point at them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar, cast

from lumc.errors import Exit, LumcError
from lumc.graph.ops import DTYPES, DType
from lumc.graph.verify import NAME

MAX_CHARS = 1 << 28
MAX_LINES = 1_000_000
MAX_LINE = 1 << 16
MAX_DIGITS = 20
MAX_STRING = 4096

T = TypeVar("T")


class Token(NamedTuple):
    """A piece of a line; columns count from 1."""

    kind: str  # name, number, hash, string, sign, bad, end
    text: str
    column: int


TOKEN = re.compile(
    r"""[ \t\r]+ | \#.* | (?P<hash>\b[0-9a-f]{64}\b) | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?) | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<sign>\.\.|<=|//|[][(),:=<+*%-]) | (?P<bad>.)""",
    re.VERBOSE,
)


def _shown(text: str) -> str:
    """Without what could move the cursor of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


class Lines:
    """A text that is read line by line, token by token; ``where`` names it in messages. Raises
    E0302 (too long)."""

    def __init__(self, text: str, where: str) -> None:
        self.where, self.lines, self.number = where, text.split("\n"), 0
        self.tokens = [Token("end", "", 1)]  # of this line
        self.at = 0
        if len(text) > MAX_CHARS or len(self.lines) > MAX_LINES:
            self.lines = [""]
            self.fail(f"over {MAX_CHARS} characters or {MAX_LINES} lines", "E0302")

    def next_line(self) -> bool:
        """Go to the next line that is not empty; False after the last one. Raises E0302 (a line
        that is too long)."""
        while self.number < len(self.lines):
            self.number += 1
            self.at, self.tokens = 0, self.scan(self.lines[self.number - 1])
            if self.peek().kind != "end":
                return True
        return False

    def fail(
        self, what: str, code: str = "E0301", token: Token | None = None, fix: str = ""
    ) -> NoReturn:
        """Raise with the place, the line and a caret below the token (by default the next one):
        E0301 (cannot be read) or another ``code``; exit 4 for E0303, 5 for the rest."""
        column = (token or self.peek()).column
        start = max(column - 80, 0)
        line = self.lines[max(self.number - 1, 0)][start : start + 120]
        caret = " " * (column - 1 - start) + "^"
        where = f"{self.where}:{self.number}:{column}\n    {_shown(line)}\n    {caret}"
        exit = Exit.UNSUPPORTED if code == "E0303" else Exit.CORRUPT
        raise LumcError(code, _shown(what), where=where, fix=fix, exit=exit)

    # ---- tokens

    def scan(self, line: str) -> list[Token]:
        """The tokens of a line, and one of kind ``end``; raises E0302 (too long)."""
        if len(line) > MAX_LINE:
            self.fail(f"a line of more than {MAX_LINE} characters", "E0302", Token("end", "", 1))
        matches = (m for m in TOKEN.finditer(line) if m.lastgroup)
        found = [Token(str(m.lastgroup), m[0], m.start() + 1) for m in matches]
        return [*found, Token("end", "", len(line) + 1)]

    @property
    def last(self) -> Token:
        """The token that was taken last."""
        return self.tokens[self.at - 1]

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one so many further ahead; at most the end of the line."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def said(self) -> str:
        """The next token, as messages name it."""
        return f"'{self.peek().text[:60]}'" if self.peek().text else "the end of the line"

    def take(self, what: str, accepted: bool) -> Token:
        """The next token; raises E0301 that ``what`` was expected if it is not ``accepted``."""
        if not accepted:
            self.fail(f"expected {what}, got {self.said()}")
        self.at += 1
        return self.last

    def accept(self, text: str) -> bool:
        """Pass the next token if it is this one."""
        found = self.peek().text == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        """Pass the next token, which must be this one; raises E0301."""
        self.take(f"'{text}'", self.peek().text == text)

    def name(self) -> str:
        """A name; raises E0301."""
        return self.take("a name", NAME.fullmatch(self.peek().text) is not None).text

    def dtype(self) -> DType:
        """A dtype; raises E0301."""
        return DTYPES[self.take("a dtype", self.peek().text in DTYPES).text]

    def string(self) -> str:
        """The value of a string of JSON; raises E0301, and E0302 (too long)."""
        token = self.take("a string in quotes", self.peek().kind == "string")
        if len(token.text) > MAX_STRING:
            self.fail(f"longer than {MAX_STRING} characters", "E0302", token)
        try:
            value = cast(str, json.loads(token.text))
            value.encode()  # half a surrogate pair is no text
        except ValueError:
            self.fail("not a string of JSON", token=token)
        return value

    def integer(self) -> int:
        """An integer with its sign; raises E0301, and E0302 (too many digits)."""
        sign = -1 if self.accept("-") else 1
        token = self.take(
            "an integer", self.peek().kind == "number" and self.peek().text.isdecimal()
        )
        if len(token.text) > MAX_DIGITS:
            self.fail(f"more than {MAX_DIGITS} digits", "E0302", token)
        return sign * int(token.text)

    def bracket(self, item: Callable[[], T]) -> list[T]:
        """``[item, ..]``, none or several; raises E0301 where a bracket or comma is missing."""
        self.expect("[")
        items: list[T] = []
        while not self.accept("]"):
            if items:
                self.expect(",")
            items.append(item())
        return items
