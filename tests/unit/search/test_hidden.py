"""Which term hides another one from the result, by its definition and in few steps."""

from __future__ import annotations

import random

import pytest

from kernel_zoo import FAMILIES
from lumc.graph.expr import Expr, below, subterms
from lumc.graph.ops import DType
from lumc.kernel.normal import normalize
from lumc.kernel.term import binary, load, reduce, unary
from lumc.search.cuts import cut_points, hidden_by
from steps import steps


def wanted(value: Expr, e: Expr) -> Expr:
    """The first of the terms above ``e`` without which the value does not have it."""
    above = [t for t in subterms(value) if t is not e and e in subterms(t)]
    return next(t for t in above if t is value or e not in below((value,), {t}))


def drawn(rng: random.Random) -> Expr:
    """A term whose parts are read again."""
    some: list[Expr] = [load(name, DType.F32, "i") for name in "xyz"]
    for _ in range(20):
        a, b = rng.choice(some[-6:]), rng.choice(some)
        some.append(unary("exp2", a) if rng.random() < 0.4 else binary("mul", a, b))
    return some[-1]


@pytest.mark.parametrize("seed", range(20))
def test_drawn_terms(seed: int) -> None:
    value = drawn(random.Random(seed))
    found = hidden_by(subterms(value))
    assert found == {e: wanted(value, e) for e in subterms(value) if e is not value}


def test_terms_of_kernels() -> None:
    for family, shapes in FAMILIES.items():
        for value in normalize(family(*shapes[-1])).values:
            found = hidden_by(subterms(value))
            assert found == {e: wanted(value, e) for e in subterms(value) if e is not value}


def test_cut_points_take_steps_by_size() -> None:
    """Twice as many reductions beside each other take twice as many steps, not four times."""
    one, two = (steps(lambda n=n: cut_points(sums(n))) for n in (32, 64))
    assert two < 2.5 * one, (one, two)


def test_a_value_that_a_chain_reads_takes_few_steps() -> None:
    one, two = (steps(lambda n=n: hidden_by(subterms(chain(n)))) for n in (500, 1000))
    assert two < 2.5 * one, (one, two)


def chain(count: int) -> Expr:
    """Every term of it reads the first one."""
    first = value = load("x", DType.F32, "i")
    for n in range(count):
        value = binary("add", binary("mul", value, load(f"w{n}", DType.F32, "i")), first)
    return value


def sums(count: int) -> Expr:
    parts = [reduce("sum", ("k",), load(f"x{n}", DType.F32, "i", "k")) for n in range(count)]
    whole = parts[0]
    for part in parts[1:]:
        whole = binary("add", whole, unary("exp2", part))
    return unary("exp2", whole)
