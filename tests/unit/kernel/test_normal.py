"""The normal form of kernels."""

import random

import numpy as np
import pytest

from kernel_zoo import (
    BOOL,
    FAMILIES,
    c,
    greatest,
    kernel,
    padded_sum,
    plus,
    random_inputs,
    total,
    x,
)
from lumc.graph.expr import Expr, add, mul, subterms
from lumc.graph.index import of_form
from lumc.kernel import normal
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, binary, guard, unary, where, wsum
from lumc.oracle.term import evaluate_kernel, evaluate_term


def test_it_computes_the_same_and_is_stable() -> None:
    for family, shapes in FAMILIES.items():
        k = family(*shapes[0])
        new, inputs = normalize(k), random_inputs(k, 1)
        normal._known.cache_clear()  # which says that it is normal
        assert normalize(new).roots == new.roots
        want, got = evaluate_kernel(k, inputs), evaluate_kernel(new, inputs)
        for name in want:
            assert np.allclose(got[name], want[name], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_single_axes_and_nested_sums_go() -> None:
    e = total("u", total("c", total("v", x("x", add("y", "u"), "c", "v"))))
    extent = {"y": 3, "u": 1, "c": 4, "v": 5}
    k = normalize(kernel("k", "y", extent, e, {"x": (3, 4, 5)}))
    assert [s.attr for s in k.stages] == [("sum", ("c", "v"))]
    assert k.roots[0].value.kids[0] is x("x", "y", "c", "v")


def test_a_sum_that_is_used_twice_stays() -> None:
    inner = total("j", x("x", "m", "j"))
    value = plus(inner, total("i", total("j", x("x", "i", "j"))))
    inner_of_both = plus(total("m", inner), inner)
    k = normalize(kernel("k", "m", {"m": 3, "i": 3, "j": 4}, value, {"x": (3, 4)}))
    assert [s.attr[1] for s in k.stages] == [("j",), ("i", "j")]
    k = normalize(kernel("k", "m", {"m": 3, "j": 4}, inner_of_both, {"x": (3, 4)}))
    assert [s.attr[1] for s in k.stages] == [("j",), ("m",)]


def test_empty_reductions_are_constants() -> None:
    read = x("x", "m", "j")
    values = {0.0: total("j", read), -np.inf: greatest("j", read)}
    values[0.0] = wsum("j", read, c(1.0))
    for value, e in values.items():
        k = normalize(kernel("k", "m", {"m": 3, "j": 0}, e, {"x": (3, 0)}))
        assert not k.stages and k.roots[0].value is c(value)
    assert not normalize(kernel("k", "m", {"m": 0}, x("x", "m"), {"x": (0,)})).roots


def test_guards_reach_their_loads() -> None:
    k = normalize(padded_sum(9, 17, 5))
    (stage,) = k.stages
    read = [e for e in subterms(stage) if e.kind == "load" and e.attr[0] == "x"]
    guarded = [e.kids[1] for e in subterms(stage) if e.kind == "guard"]
    assert read == guarded and k.roots[0].value.kind == "guard"


def test_guards_that_say_nothing_go() -> None:
    e = guard("m", 0, 9, guard(add("m", -1), 0, 9, unary("sin", x("x", add("m", -1)))))
    value = normalize(kernel("k", "m", {"m": 9}, e, {"x": (9,)})).roots[0].value
    assert [g.attr for g in subterms(value) if g.kind == "guard"] == [(0, 9), (0, 9)]
    never = guard("m", 20, 30, x("x", "m"))
    assert normalize(kernel("k", "m", {"m": 9}, never, {"x": (9,)})).roots[0].value is c(0.0)


AFFINE = (add("m", 0), add("m", -3), add(mul("m", 2), 1), add(mul("m", -1), 7), add("m", "n"))
AFFINE += (add(mul("m", -3), mul("n", -3), 2), add(mul("m", 2), mul("n", 4)), add("n", 1))


def _guarded(rng: random.Random, depth: int) -> Expr:
    """A term in which every load that may be outside of its buffer is under a guard that says so:
    outside the oracle gives NaN."""
    if depth == 0:
        i = rng.choice(AFFINE)
        return guard(i, 0, 9, x("x", i))
    one = _guarded(rng, depth - 1)
    match rng.randrange(5):
        case 0:
            return plus(one, _guarded(rng, depth - 1))
        case 1:
            return plus(one, unary("sin", one))
        case 2:
            return unary("exp2", one)
    low = rng.randrange(-6, 12)
    return guard(rng.choice(AFFINE), low, low + rng.randrange(14), one)


@pytest.mark.parametrize("seed", range(60))
def test_intervals_of_guards_say_what_the_guards_said(seed: int) -> None:
    rng = random.Random(seed)
    value = _guarded(rng, 6)
    before = kernel("k", "m n", {"m": 8, "n": 5}, value, {"x": (9,)})
    after = normalize(before)
    assert normalize(after).roots == after.roots
    array = np.random.default_rng(seed).uniform(-1, 1, 9)
    array[rng.randrange(9)] = rng.choice([np.nan, np.inf, -np.inf, 0.5])
    want, got = (evaluate_kernel(k, {"x": array})["out"] for k in (before, after))
    assert np.array_equal(got, want, equal_nan=True)
    for e in subterms(after.roots[0].value):  # each load alone: it has all guards that it needs
        guards, inner = list[Expr](), e
        while inner.kind == "guard":
            guards, inner = [*guards, inner], inner.kids[1]
        if inner.kind == "load" and guards and _is_outermost(after, e):
            alone = evaluate_term(e, after.extent, {"x": np.ones(9)})[0]
            assert np.isfinite(alone).all()
            forms = [of_form(g.kids[0], *g.attr)[0] for g in guards]
            assert len(set(forms)) == len(forms)


def _is_outermost(k: Kernel, e: Expr) -> bool:
    """Whether this guard is not the value of another one."""
    return not any(g.kind == "guard" and g.kids[1] is e for g in subterms(k.roots[0].value))


def test_a_term_may_be_deeper_than_the_stack() -> None:
    e = x("x", add("m", -1))
    for i in range(3000):
        e = unary("sin", e) if i % 3 else guard(add("m", -1), 0, 9 + i, e)
    k = normalize(kernel("k", "m", {"m": 9}, e, {"x": (9,)}))
    assert sum(g.kind == "guard" for g in subterms(k.roots[0].value)) <= 1001


@pytest.mark.parametrize("turned", [False, True])
def test_halves_of_a_choice_are_one_choice(turned: bool) -> None:
    condition, a, b = binary("lt", x("y", "m"), c(0.0)), x("x", "m"), x("z", "m")
    rest = binary("lt", condition, c(True, BOOL))
    halves = binary("sel", condition, a), binary("sel", rest, b)
    shapes = {"x": (5,), "y": (5,), "z": (5,)}
    made = kernel("k", "m", {"m": 5}, plus(*halves[:: -1 if turned else 1]), shapes)
    assert normalize(made).roots[0].value is where(condition, a, b)
    x0, y0 = np.array([np.nan, 1, np.inf, 2, -1]), np.array([-1, 0, np.nan, -np.inf, 3])
    z0 = np.array([7, np.inf, 8, np.nan, np.nan])
    inputs = {"x": x0, "y": y0, "z": z0}
    want, got = (evaluate_kernel(k, inputs)["out"] for k in (made, normalize(made)))
    np.testing.assert_array_equal(got, want)


def test_other_halves_stay() -> None:
    one, two = (binary("lt", x("y", "m"), c(v)) for v in (0.0, 1.0))
    rest = binary("lt", two, c(True, BOOL))
    for halves in ((one, rest), (one, two), (one, one)):
        value = plus(*(binary("sel", h, x(n, "m")) for h, n in zip(halves, "xz", strict=True)))
        made = kernel("k", "m", {"m": 5}, value, {"x": (5,), "y": (5,), "z": (5,)})
        assert normalize(made).roots[0].value is value
