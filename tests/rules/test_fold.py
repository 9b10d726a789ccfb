"""Folding constants keeps values, saves operations, and leaves alone what it must."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import binary, const, load, reduce
from lumc.oracle.term import evaluate_term
from lumc.search import fold

X, Y = (load(name, DType.F64, "i") for name in "xy")
NUMBERS = (-1.0, 0.5, 2.0, -2.0, 1.4427, 0.0447, -3.0, 1e7, -1e7, 1e-30, 1e30)
EXTENT = {"i": 64}


def number(value: float) -> Expr:
    return const(value, DType.F64)


def draw(rng: np.random.Generator, made: Any, depth: int) -> tuple[Expr, Expr]:
    """A random term, as it is written and as ``made`` folds it."""
    if depth == 0 or rng.random() < 0.15:
        leaf = rng.choice(3)
        e = (X, Y)[leaf] if leaf < 2 else number(float(rng.choice(NUMBERS)))
        return e, e
    op = str(rng.choice(["add", "mul"]))
    a = draw(rng, made, depth - 1)
    b = a if rng.random() < 0.15 else draw(rng, made, depth - 1)
    if rng.random() < 0.3:
        b = (a[0], a[1]) if rng.random() < 0.1 else (X, X)
    if a[1].kind == b[1].kind == "const":  # the caller folds these
        return a
    plain = binary(op, a[0], b[0])
    return plain, (made.add if op == "add" else made.mul)(a[1], b[1])


def value(e: Expr) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(1)
    arrays = {n: rng.uniform(0.2, 3.0, EXTENT["i"]) * rng.choice([-1, 1], 64) for n in "xy"}
    found, axes = evaluate_term(e, EXTENT, arrays)
    return np.broadcast_to(found, 64 if not axes else found.shape)


def magnitude(e: Expr) -> np.ndarray[Any, Any]:
    """The same with everything positive: what rounding is relative to."""
    if e.kind == "const":
        return np.full(64, abs(e.attr[1]))
    if e.kind == "load":
        return abs(value(e))
    a, b = map(magnitude, e.kids)
    return a + b if e.attr[0] == "add" else a * b


def operations(e: Expr) -> int:
    return sum(t.kind == "bin" for t in subterms(e))


def check(made: Any, count: int) -> int:
    """How many terms got shorter; fails when one has another value or got longer."""
    rng, shorter = np.random.default_rng(5), 0
    for _ in range(count):
        plain, folded = draw(rng, made, int(rng.integers(1, 6)))
        assert operations(folded) <= operations(plain) + 3, f"{plain} became {folded}"
        with np.errstate(all="ignore"):
            off, scale = abs(value(plain) - value(folded)), magnitude(plain)
        ok = ~np.isfinite(scale) | (scale > 1e200) | (off <= 1e-12 * scale + 1e-300)
        assert ok.all(), f"{plain} became {folded}"
        shorter += operations(folded) < operations(plain)
    return shorter


def test_values_stay() -> None:
    assert check(fold, 4000) > 120


GELU = binary("mul", binary("mul", X, X), X)


def test_a_logistic_gate_is_one_polynomial() -> None:
    """x * (1 + (2 s - 1)) / 2 and its exponent, as exporters write them."""
    s = load("s", DType.F64, "i")
    tanh = fold.add(fold.mul(s, number(2.0)), number(-1.0))
    assert fold.mul(fold.mul(X, number(0.5)), fold.add(tanh, number(1.0))) == binary("mul", X, s)
    inner = fold.add(fold.mul(GELU, number(0.0447)), X)
    for factor in (1.6, -1.0, 1.4427):
        inner = fold.mul(inner, number(factor))
    assert operations(inner) == 4
    x2 = fold.mul(fold.mul(X, number(0.7)), fold.mul(X, number(0.7)))
    poly = fold.mul(x2, number(3.0))
    for c in (1.0, 2.0, 4.0, 5.0):
        poly = fold.mul(fold.add(poly, number(c)), x2)
    assert operations(poly) == 1 + 1 + 4 * 2


def rounding(made: Any) -> None:
    for magic in (1.5 * 2**23, 1.5 * 2**52, 2.0**20):
        up = made.add(X, number(magic))
        assert made.add(up, number(-magic)) == binary("add", up, number(-magic))


def extremes(made: Any) -> None:
    for size, kind, most in ((1e30, DType.F64, 1e38), (300.0, DType.F16, 65504)):
        e = load("x", kind, "i")
        for _ in range(2):
            e = made.mul(const(size, kind), e)
        assert all(abs(k.attr[1]) < most for k in subterms(e) if k.kind == "const")


SPECIAL = (rounding, extremes)


@pytest.mark.parametrize("special", SPECIAL)
def test_what_rounds_or_overflows_stays(special: Any) -> None:
    special(fold)


def test_what_laws_look_for_stays() -> None:
    """A distance from a maximum has a factor of -1."""
    top = binary("mul", reduce("max", "i", X), number(0.5))
    assert fold.mul(number(-1.0), top) == binary("mul", number(-1.0), top)
    assert operations(fold.mul(number(3.0), top)) == 1


MUTANTS = {
    "sums are products": ("value = c.attr[1] + y.attr[1]", "value = c.attr[1] * y.attr[1]"),
    "sums are left out": (
        "const(value, dtype(y))) if value else rest",
        "const(value, dtype(y))) if 0 else rest",
    ),
    "what rounds is folded": ("< ROUNDS and", "< 1e30 and"),
    "one is two": ("const(1.0, dtype(y))", "const(2.0, dtype(y))"),
    "the term stays": ("return mul(y, add(factor,", "return mul(x, add(factor,"),
    "a factor is lost": (
        "value = c.attr[1] * factor\n        if rest",
        "value = c.attr[1]\n        if rest",
    ),
    "only a part is scaled": (
        ", c.attr[1] * factor\n        if new",
        ", c.attr[1]\n        if new",
    ),
    "both factors are scaled": (
        'return binary("mul", new, y)\n    for',
        'return binary("mul", new, _scaled(y, factor, deep - 1) or y)\n    for',
    ),
    "one cancels anything": ("if value == 1:", "if value > 1:"),
    "all of a product goes": (
        "            if x is factor:\n                return y",
        "            if x is factor:\n                return x",
    ),
    "the constant counts twice": (
        '_outside(binary("mul", found[1], new))',
        '_outside(binary("mul", x, new))',
    ),
    "the rest is lost": (
        'return found[0], binary("mul", found[1], y)',
        "return found[0], found[1]",
    ),
    "constants overflow": ("low < abs(value) < high", "True"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_killed(name: str, tmp_path: Path) -> None:
    old, new = MUTANTS[name]
    source = Path(fold.__file__).read_text()
    assert old in source
    (tmp_path / "wrong.py").write_text(source.replace(old, new))
    spec = spec_from_file_location("wrong", tmp_path / "wrong.py")
    assert spec and spec.loader
    wrong = module_from_spec(spec)
    spec.loader.exec_module(wrong)
    with pytest.raises((AssertionError, AttributeError)):
        for special in SPECIAL:  # these take no time
            special(wrong)
        check(wrong, 6000)
