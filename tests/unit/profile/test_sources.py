"""Every number in the room says where it comes from, and docs/profile.md what that means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lumc.profile

ROOM = Path(lumc.profile.__file__).parent
SOURCES = ("measured", "derived", "data sheet", "counted", "a guess")
NAMES = {"SCHEMA", "YARDSTICK"}  # they count nothing


def numbers(source: str) -> Iterator[tuple[str, str]]:
    """The constants of a module that hold a number, and the comments of their lines."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        below = list(ast.walk(node.value))
        held = any(isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in below)
        if held and not any(isinstance(n, ast.Call) for n in below):
            said = lines[node.end_lineno - 1].partition("  #")[2]
            yield from ((name.id, said) for name in names if isinstance(name, ast.Name))


def without_source(source: str) -> list[str]:
    found = (name for name, said in numbers(source) if not any(word in said for word in SOURCES))
    return [name for name in found if name.isupper() and name not in NAMES]


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda p: p.stem)
def test_numbers_have_a_source(path: Path) -> None:
    assert without_source(path.read_text()) == []


def test_a_number_without_a_source_is_found() -> None:
    given = "A = 1.5  # times the best\nB, C = 2, 0.5  # derived: halves\nD = (4, 30)\nE = 'x'\n"
    assert without_source(given) == ["A", "D"]


def test_the_page_says_what_the_sources_are() -> None:
    page = (ROOM.parents[2] / "docs" / "profile.md").read_text()
    assert all(f"`{word}`" in page for word in SOURCES)
