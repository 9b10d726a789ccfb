"""Print the lines of every room of src/lumc; fail when one of them grows above its ceiling.

    python tests/lines.py            as make lines
    python tests/lines.py --write    also writes the table of README.md

A line counts when it holds code: blank lines, comments and docstrings are free, so that nobody
saves on them. The ceilings, and what raised them, stand in ceilings.toml. Files are as
`ruff format` leaves them (make lint checks it).
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lumc"
README = ROOT / "README.md"
MARK = "<!-- lines: written by python tests/lines.py --write -->\n"


class Part(NamedTuple):
    """Rooms that have a ceiling together; a pattern names files."""

    says: str
    rooms: list[str]
    ceiling: int  # code lines
    design: int = 0  # what they are to have; 0: the ceiling
    brought: str = ""  # what the capabilities above the design took, a line each


PARTS = [Part(**p) for p in tomllib.loads((ROOT / "tests" / "ceilings.toml").read_text())["part"]]
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def code_lines(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node):
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def count(rooms: Iterable[str]) -> int:
    """The code lines of folders, and of the files that patterns name."""
    total = 0
    for room in rooms:
        found = PACKAGE.glob(room) if "*" in room else (PACKAGE / room).rglob("*.py")
        total += sum(code_lines(f.read_text()) for f in found)
    return total


def table() -> str:
    """What README.md says of the ceilings."""
    rows = [
        f"| {p.says} | {' '.join(f'`{r}`' for r in p.rooms)} | {p.ceiling:,} | "
        f"{p.design or p.ceiling:,} |"
        for p in PARTS
    ]
    head = ["| | rooms | code lines, at most | by design |", "|---|---|--:|--:|"]
    return "\n".join([*head, *rows]) + "\n"


def main() -> int:
    before, _, rest = README.read_text().partition(MARK)
    old, _, after = rest.partition(MARK)
    if "--write" in sys.argv:
        README.write_text(before + MARK + table() + MARK + after)
        old = table()
    wrong = 0 if old == table() else 1
    print("  code  ceiling  design")
    for p in PARTS:
        code = count(p.rooms)
        wrong += code > p.ceiling
        above = "  ABOVE ITS CEILING" if code > p.ceiling else ""
        print(f"{code:6d}  {p.ceiling:7d}  {p.design or p.ceiling:6d}  {p.says}{above}")
    if old != table():
        print("README.md has other ceilings: python tests/lines.py --write")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
