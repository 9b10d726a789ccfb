"""Sizes as torch writes them: expressions of sympy, ``Mul(Integer(2), Symbol('s27', ..))``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lumc.disk.pt2 import Damaged
from lumc.frontend.api.view import plus, times
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr

MAX_TEXT, MAX_DEPTH = 10_000, 32
TOKEN = re.compile(r"\s*(?:([A-Za-z_][\w.]*)|(-?\d{1,18})|'(\w{1,100})'|([(),=]))")


class Unknown(Exception):
    """An expression that is no sum of multiples of symbols."""


def parse_size(text: str, symbol: Callable[[str], Extent]) -> Extent:
    """An extent over symbols. Raises Damaged for what is no expression, Unknown for what no
    extent can be."""
    if len(text) > MAX_TEXT:
        raise Damaged(f"a size of {len(text)} letters")
    tokens, at = list[str](), 0
    while at < len(text.rstrip()):
        found = TOKEN.match(text, at)
        if not found:
            raise Damaged(f"{text[:80]!r} is no size")
        tokens.append(found[0].strip())
        at = found.end()
    reader = _Reader(tokens, symbol)
    value = reader.value(0)
    if reader.at != len(tokens):
        raise Damaged(f"{text[:80]!r} is no size")
    return value


@dataclass
class _Reader:
    tokens: Sequence[str]
    symbol: Callable[[str], Extent]
    at: int = 0

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise Damaged("a size that ends early")
        self.at += 1
        return self.tokens[self.at - 1]

    def value(self, depth: int) -> Extent:
        if depth > MAX_DEPTH:
            raise Damaged("a size that nests deeply")
        token = self.next()
        if token.lstrip("-").isdigit():
            return int(token)
        if not (token[0].isalpha() or token[0] == "_"):
            raise Damaged(f"{token!r} in a size")
        if self.at >= len(self.tokens) or self.tokens[self.at] != "(":
            return self.symbol(token)
        self.next()
        if token == "Symbol":
            name = self.next().strip("'")
            while self.next() != ")":  # positive=True, integer=True
                pass
            return self.symbol(name)
        values = list[Extent]()
        while True:
            values.append(self.value(depth + 1))
            end = self.next()
            if end == ")":
                return _applied(token, values)
            if end != ",":
                raise Damaged(f"{end!r} in a size")


def _applied(name: str, values: Sequence[Extent]) -> Extent:
    if name == "Integer" and len(values) == 1:
        return values[0]
    if name == "Add":
        return plus(*values)
    symbols = [v for v in values if isinstance(v, Expr)]
    if name != "Mul" or len(symbols) > 1:
        raise Unknown(name)
    factor = 1
    for v in values:
        factor *= v if isinstance(v, int) else 1
    return times(symbols[0], factor) if symbols else factor
