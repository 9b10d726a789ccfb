"""Print the lines of every room of src/lumc; fail when one of them grows above its ceiling.

    python tests/lines.py            as make lines
    python tests/lines.py --write    also writes the table of README.md

A line counts when it holds code: blank lines, comments and docstrings are free, so that nobody
saves on them. Files are as `ruff format` leaves them (make lint checks it).
"""

import ast
import io
import sys
import tokenize
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
    rooms: tuple[str, ...]
    ceiling: int  # code lines
    design: int = 0  # what they are to have; 0: the ceiling


# What the compiler has over the 5,000 lines that it once was to have: the back ends of GPUs brought
# 2,400 lines; reductions in two steps,
# tf32 and bytes on tensor cores and shared bytes 300 more; kernels of siblings side by side and the
# yardstick of timings 200; finals in one run and schedules that are carried over 100;
# layouts of values between regions 120; shorter powers of two 60; folded constants
# 70; loops in phases 90; moments that are half as fast 20; loads that are turned instead of
# results 55; caches that settle 20; times that nothing takes 10; maxima that may
# ignore NaN 35; finals without the lightest 15, and what they record 4; lanes where
# little is turned 10; walks over rows side by side 201; the proof that accesses
# lie inside their buffers, cuts that are stored where they are read, candidates that are dropped
# and limits that count 190; the count of what a plan does 118; texts that are bounded and one
# interval of guards for each form, large indices stored 115; merged axes 135; result axes that
# operands divide, and phases 110; windows written out, rows of zeros, weights across the lanes and
# padded copies 190; layouts of whole chains 100; rows of windows in whole vectors, phases
# of copies and of sums that they do not divide 150; kernels on turned copies 75; maxima of windows
# as integers, windows in two steps 90; results that follow from one another, in one pass 270;
# maps in pieces and short axes written out 230; register tiles that know what a core does in a
# cycle, and axes of contractions by what they cost 60; kernels of phases 75; vectors used in
# part 35; rows with weights of their own, long sums side by side, logarithms in phases 20; kernels
# on compact copies 40; blocks of axes 75; tiles of reduced axes 10; lines that are
# read again, and what threads get from each other, in the price 40; steps beyond the
# border of windows 98; loops dealt in equal shares 40, walks over what is not
# zero 20; axes named by what they are 10; a choice of two values 25;
# copies of every second element in phases, walks over rows as one, and what follows
# windows in registers 75; rows at borders with steps of their own 80;
# passes on tile programs as rows that are watched 40, these
# programs as text 87, their verifier 420; stages, windows, weighted
# sums and prefetches in files of their own 63 (no file above 400 lines); tiles that
# threads share equally and borders in the bound 64; choices of schedules as rows with their
# words, 47 of it from reports, 103; what is legal, and what leaves nothing to do, of every one 305,
# 11 more where records are read, which may be older than that;
# statements under tile programs, whose names are known, 80, less the loops over lanes of C, which
# live there; headers in parts 4; defaults in files of one noun 60; how machines run tiles, and
# which operands are turned (it was the printers'), 30, less one rewrite of terms and
# bodies 23; states of a space that forget what is not asked for 13, equal shares of register
# tiles, and loops dealt alone, 7, partial sums 20; names with one grammar 7. Lower it with every
# simplification. Files from strangers have 102 more: what terms and sources may say 92, weights
# near their graph 14. Commands and reports have 42 more, the imports of files of one noun each, 88
# for what a pass may take and for arrays whose headers are checked first, and 10 for what a process
# holds, which was in search.
# Nothing silent: what was spent on each kernel, where its schedule comes from, finals that end when
# they are asked to, 62 in profile; artifacts that are named with what to do with them 17 in files;
# lines of steps that take long, SIGTERM, arrays in pipes, what was not measured and where schedules
# come from, 202 in commands and reports.
PARTS = (
    Part(
        "the machine-free compiler",
        ("graph", "kernel", "schedule", "search", "codegen/tile", "codegen/text"),
        9594,
        6200,
    ),
    Part("kernels as C", ("codegen/cpu",), 1045, 1100),  # its loops over lanes came from text
    Part("kernels for GPUs", ("codegen/gpu",), 2050),
    Part("plans to code", ("codegen/*.py",), 370),
    Part("the format of bundles", ("bundle",), 600),
    Part("compilers, linking", ("link",), 700),
    Part("what is fastest", ("profile",), 1856, 1350),
    Part("what is right", ("oracle",), 550),
    Part("where candidates run", ("lab",), 520),
    Part("bundles from Python", ("runtime",), 1200),
    Part("files", ("disk", "artifacts"), 719, 600),
    Part("models arrive", ("frontend",), 6750),
    Part("commands, reports", ("cli", "command", "report", "*.py"), 3942, 3600),
)
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
