"""Kernels, parameters and threadgroup arrays in Metal text, by a scan of its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ATTRIBUTE = re.compile(r"\[\[\s*(\w+)\s*(?:\(\s*(\w+)\s*\))?\s*\]\]")
KERNEL = re.compile(r"((?:\[\[[^\]]*\]\]\s*)*)\bkernel\s+(\w+)\s+(\w+)\s*\(")
LOCAL = re.compile(r"\bthreadgroup\s+((?:metal::)?\w+(?:\s*<[^;{}()]*>)?)\s+(\w[^;{}()*&=]*);")
CONSTANT = re.compile(
    r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\(\s*(\d+)\s*\)\s*\]\]"
)


@dataclass(frozen=True)
class Parameter:
    """``device const float *x [[buffer(0)]]``: type, name, attribute and what stands in it."""

    type: str
    name: str
    attribute: str
    index: int | None


@dataclass(frozen=True)
class Local:
    """A threadgroup array: ``float``, ``tile``, ``[32][33]``; the span of its declaration."""

    type: str
    declarators: tuple[tuple[str, str], ...]  # name, extents
    start: int
    end: int
    depth: int  # of braces inside the kernel; 1 is its outermost block


@dataclass(frozen=True)
class Function:
    """A kernel; offsets are into the text."""

    name: str
    result: str
    attributes: tuple[tuple[str, str], ...]
    parameters: tuple[Parameter, ...]
    locals: tuple[Local, ...]
    start: int
    body: int
    end: int

    def attribute(self, name: str) -> int | None:
        return next((int(v) for n, v in self.attributes if n == name and v.isdecimal()), None)


def without_comments(source: str) -> str:
    """Comments become blanks, so that offsets and lines stay."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.S)


def line_of(source: str, at: int) -> int:
    return source.count("\n", 0, at) + 1


def kernels(source: str) -> Iterator[Function]:
    """The kernels of a text without comments. Raises ValueError for brackets that do not match."""
    for m in KERNEL.finditer(source):
        close = _closing(source, m.end() - 1)
        body = source.find("{", close)
        end = _closing(source, body)
        parameters = tuple(_parameter(p) for p in split(source[m.end() : close]))
        attributes = tuple((a[1], a[2] or "") for a in ATTRIBUTE.finditer(m[1]))
        found = tuple(_locals(source, body, end))
        yield Function(m[3], m[2], attributes, parameters, found, m.start(), body, end)


def split(text: str) -> list[str]:
    """The parts of a list, at its commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def _parameter(text: str) -> Parameter:
    found = ATTRIBUTE.search(text)
    plain = ATTRIBUTE.sub("", text).strip()
    m = re.fullmatch(r"(.*?)(\w+)", plain, re.S)
    if not m:
        raise ValueError(f"not a parameter: {text}")
    index = int(found[2]) if found and (found[2] or "").isdecimal() else None
    return Parameter(" ".join(m[1].split()), m[2], found[1] if found else "", index)


def _locals(source: str, body: int, end: int) -> Iterator[Local]:
    for m in LOCAL.finditer(source, body, end):
        depth = source.count("{", body, m.start()) - source.count("}", body, m.start())
        names = [re.fullmatch(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)", d) for d in split(m[2])]
        if all(names):
            declarators = tuple((n[1], n[2].strip()) for n in names if n)
            yield Local(m[1], declarators, m.start(), m.end(), depth)


def _closing(source: str, start: int) -> int:
    """The bracket that closes the one at ``start``."""
    depth = 0
    for at in range(start, len(source)):
        depth += (source[at] in "({") - (source[at] in ")}")
        if depth == 0:
            return at
    raise ValueError(f"{line_of(source, start)}: a bracket is not closed")
