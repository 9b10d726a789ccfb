"""Statements: their text, what nothing reads, and that every name is declared once, before it is
read - in all kernels of the tests, for C, CUDA and Metal."""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Set

import pytest

from drawing import a_path
from kernel_zoo import FAMILIES
from lumc.codegen.cpu import kernel as c
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu import operations as gpu
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.text.statements import (
    Let,
    Note,
    Pieces,
    Scope,
    Statement,
    lines,
    live,
    names,
    new,
)
from lumc.codegen.tile.lower import lower
from lumc.errors import LumcError
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar

DRAWS = 4 if os.environ.get("LUMC_FUZZ") else 1  # beside the default
MACHINES = ("cpu:x86-64-v4", "cpu:x86-64-v3", "cuda:sm_90+tf32", "metal:apple9")


def wrong(body: Iterable[Statement], outer: Set[str]) -> Iterator[str]:
    """What is read before it is declared, declared twice in a block, or named without quotes."""
    own = set[str]()
    for s in body:
        match s:
            case Let():
                yield from spoken(s.value, outer, own)
                yield from spoken(new(s.name), outer, own)
            case str():
                # the names of a loop end with it
                yield from spoken(s, outer, {*own} if s.startswith("for (") else own)
            case Scope() | Pieces():
                scope, inside = s if isinstance(s, Scope) else s.scope, set[str]()
                yield from spoken(scope.pragma, outer | own, inside)
                yield from spoken(scope.head, outer | own, inside)
                yield from wrong(scope.body, outer | own | inside)


def spoken(text: str, outer: Set[str], own: set[str]) -> Iterator[str]:
    """The mistakes in one text, whose names are added to those of its block."""
    new = set[str]()
    for i, part in enumerate(text.split("`")):
        if i % 2 and part.startswith(":"):
            if part[1:] in own | new:
                yield f"{part[1:]} is declared again: {text}"
            new.add(part[1:])
        elif i % 2 and part not in outer | own | new:
            yield f"{part} is not declared: {text}"
        elif i % 2 == 0:
            known = words(part) & (outer | own)
            yield from (f"{n} without quotes: {text}" for n in sorted(known))
    own |= new


@functools.cache  # most pieces of text are said again and again
def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"(?<![\w.])[A-Za-z_]\w*", re.sub(r'"[^"]*"|/\*.*?\*/', "", text)))


def mistakes(kernel: Kernel, schedule: Schedule, target: Target) -> list[str]:
    program = lower(kernel, schedule, target)
    if target.gpu:
        d = distribute(program, schedule.threads)
        w = gpu.written(d, DIALECTS[target.kind])
        ends = {name[1:-1] for *_, name in w.parameters()}
        return [*wrong(w.body, ends | ({"tid"} if target.kind == "metal" else set()))]
    w = c.written(program)
    out = [*wrong(w.body, {"args", "part", "nparts"})]
    for f in w.functions:
        parameters = set[str]()
        out += [m for p in f.parameters for m in spoken(p, set(), parameters)]
        out += wrong(f.body, parameters)
    return out


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_names_are_declared_once_before_they_are_read(
    family: Callable[..., Kernel], machine: str
) -> None:
    target, rng = resolve_target(machine), random.Random(family.__name__)
    for shape in FAMILIES[family]:
        kernel = family(*shape)
        space = Grammar(kernel, target)
        for s in (space.default, *(space.build(a_path(space, rng)) for _ in range(DRAWS))):
            try:
                found = mistakes(kernel, s, target)
            except LumcError:  # what does not fit a block
                continue
            assert not found, found[0]


BODY: list[Statement] = [
    Let("long", "`i`", "3"),
    Let("long", "`j`", "`i` + 1"),
    Scope("for (long `:k` = 0; `k` < `n`; `k`++)", (Let("long", "`l`", "`k`"), "f(`k`);"), "rows"),
    Note("of i */"),
    Scope("", ("g(`i`);",), pragma="omp simd"),
]


def test_text_shows_all_names() -> None:
    assert "\n".join(lines(BODY[:3], 0, str)) == (
        "const long `:i` = 3;\nconst long `:j` = `i` + 1;\n"
        "for (long `:k` = 0; `k` < `n`; `k`++) { /* rows */\n"
        "    const long `:l` = `k`;\n    f(`k`);\n}"
    )
    assert lines(BODY[1:]) == [
        "    const long j = i + 1;",
        "    for (long k = 0; k < n; k++) { /* rows */",
        "        const long l = k;",
        "        f(k);",
        "    }",
        "    /* of i * / */",
        "#pragma omp simd",
        "    {",
        "        g(i);",
        "    }",
    ]


def test_what_nothing_reads_is_left_out() -> None:
    scope = Scope("for (long `:k` = 0; `k` < `n`; `k`++)", ("f(`k`);",), "rows")
    assert live(BODY) == (BODY[0], scope, *BODY[3:])
    row = Pieces(
        "`at`", "0", "`n`", 64, 16, (Let("int", "`a`", "1"), Let("int", "`b`", "`at`"), "f(`b`);")
    )
    (kept,) = live([row])
    assert isinstance(kept, Pieces) and kept.body == row.body[1:]
    assert live([Let("int", "`n`", "2"), row])[0] == Let("int", "`n`", "2")  # read by the loop
    assert live([Let("int", "`a`", "2"), row]) == (kept,)  # one inside is another
    inner = Scope("", (Let("int", "`n`", "3"), "f(`n`);"))
    assert live([Let("int", "`n`", "2"), inner]) == (inner,)
    assert live([Let("int", "`n`", "2"), inner, "f(`n`);"])[0] == Let("int", "`n`", "2")


def test_names_in_texts() -> None:
    assert names("`a`[`:b`] = `c` ? `a`:`d`;") == ["`a`", "`c`", "`a`", "`d`"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (["f(`x`);"], "x is not declared"),
        (["int `:x` = 1;", "int `:x` = 2;"], "x is declared again"),
        ([Scope("", ("int `:x` = 1;", "int `:x` = 2;"))], "x is declared again"),
        ([Scope("", ("int `:x` = 2;",)), "f(`x`);"], "x is not declared"),
        (["int `:x` = 1;", "f(x);"], "x without quotes"),
        ([Let("int", "`x`", "`x`")], "x is not declared"),
    ],
)
def test_mistakes_are_found(body: list[Statement], message: str) -> None:
    assert [m.partition(":")[0] for m in wrong(body, set())] == [message]
