"""Make a failing graph small: drop results, and put inputs in the place of what is computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from lumc.errors import LumcError
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

NODE = re.compile(r"(\w+) (\w+)\[(.*?)\] = ")
DEFINED = re.compile(r"(?:input |weight |state )?(\w+) \w+\[")
ENDS = ("output", "update")


def reduced(text: str, fails: Callable[[str], bool]) -> str:
    """A smaller graph text that still fails, found by one greedy descent after the other."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(text):
            if len(candidate) < len(text) and is_graph(candidate) and fails(candidate):
                text, smaller = candidate, True
                break
    return text


def is_graph(text: str) -> bool:
    try:
        verify_graph(parse_graph(text))
    except LumcError:
        return False
    return print_graph(parse_graph(text)) == text


def candidates(text: str) -> Iterator[str]:
    """Texts with one result less, one node less, or a smaller extent; bold changes first."""
    lines = text.split("\n")
    ends = [i for i, s in enumerate(lines) if s.startswith(ENDS)]
    for i in reversed(ends):
        if len(ends) > 1:
            yield pruned([s for j, s in enumerate(lines) if j != i])
    for i in reversed(range(len(lines))):
        match = None if lines[i].startswith(ENDS) else NODE.match(lines[i])
        if match:
            yield pruned(as_input(lines, i, *match.groups()))
            yield from read_through(lines, i, match[1])


def as_input(lines: list[str], at: int, name: str, dtype: str, axes: str) -> list[str]:
    shape = ", ".join(a.split(":")[1] for a in axes.split(", ")) if axes else ""
    kind = "mask" if dtype == "bool" else "real" if "f" in dtype else "whole"
    start = max(i for i in range(at) if not lines[i] or lines[i].startswith("entry"))
    out = [f"input {kind}_{name} {dtype}[{shape}]" if i == at else s for i, s in enumerate(lines)]
    out.insert(start + 1, out.pop(at))
    return [re.sub(rf"(?<!\w){name}(?=\[)", f"{kind}_{name}", s) for s in out]


def read_through(lines: list[str], at: int, name: str) -> Iterator[list[str] | str]:
    """An output at an operand of its node."""
    for operand in re.findall(r"(\w+)\[", lines[at].partition(" = ")[2]):
        out = [re.sub(rf"^(output \w+) = {name}$", rf"\1 = {operand}", s) for s in lines]
        if out != lines:
            yield pruned(out)


def pruned(lines: list[str]) -> str:
    """Without what nothing needs."""
    while True:
        used = set(re.findall(r"(\w+)\[", "\n".join(s.partition(" = ")[2] for s in lines)))
        used |= {s.split(" = ")[1].partition("[")[0] for s in lines if s.startswith("output")}
        used |= {w for s in lines if s.startswith("update") for w in re.findall(r"(\w+)\[", s)}
        names = [None if s.startswith(ENDS) else DEFINED.match(s) for s in lines]
        kept = [s for s, n in zip(lines, names, strict=True) if n is None or n[1] in used]
        if not any(s.startswith("weight") for s in kept):
            kept = [s for s in kept if not s.startswith("file")]
        if kept == lines:
            return "\n".join(kept)
        lines = kept
