"""Which powers of two are known to be at most one; none other may be taken for one."""

import math

import numpy as np
import pytest

from kernel_zoo import c, greatest, kernel, minus, plus, softmax, times, x
from lumc.codegen.tile.powers import shorter_powers
from lumc.graph.expr import Expr, subterms
from lumc.kernel.term import Kernel, unary
from lumc.oracle.term import evaluate_kernel

M, N = 5, 7
SHAPES = {"x": (M, N), "y": (M, N), "s": (M, N)}


def score(j: str) -> Expr:
    """Scores scaled and masked: more than one term."""
    return plus(times(x("x", "m", j), 0.125), x("y", "m", j))


def top(j: str = "i") -> Expr:
    return greatest(j, score(j))


def power(exponent: Expr) -> Kernel:
    extent = {"m": M, "n": N, "i": N, "h": N - 2}
    return kernel("power", "m n", extent, unary("exp2", exponent), SHAPES)


def decays(k: Kernel) -> int:
    return sum(e.kind == "un" and e.attr[0] == "decay" for e in subterms(*shorter_powers(k).values))


KNOWN = {
    "distance from the maximum": minus(score("n"), top()),
    "scaled after": times(minus(score("n"), top()), 1.4427),
    "scaled before": minus(times(score("n"), 1.4427), times(top(), 1.4427)),
    "the other way round": plus(times(top(), -1.0), score("n")),
    "a square": times(times(x("x", "m", "n"), x("x", "m", "n")), -0.5),
    "squares": plus(times(times(score("n"), score("n")), -0.5), times(times(top(), top()), -2.0)),
}
UNKNOWN = {
    "nothing is known of an input": x("x", "m", "n"),
    "a square above zero": times(x("x", "m", "n"), x("x", "m", "n")),
    "a product of two": times(times(x("x", "m", "n"), x("y", "m", "n")), -1.0),
    "how far below the maximum": minus(top(), score("n")),
    "scaled by less than zero": times(minus(score("n"), top()), -1.4427),
    "the maximum of something else": minus(x("y", "m", "n"), top()),
    "one scale is not the other": minus(times(score("n"), 2.0), top()),
    "one part scaled only": minus(plus(x("x", "m", "n"), x("y", "m", "n")), top()),
    "something is added": plus(minus(score("n"), top()), x("s", "m", "n")),
    "a constant is added": plus(minus(score("n"), top()), c(3.0)),
    "the maximum of a part of the row": minus(score("n"), top("h")),
}


@pytest.mark.parametrize("said", KNOWN)
def test_known(said: str) -> None:
    k = power(KNOWN[said])
    assert decays(k) == 1
    rng = np.random.default_rng(3)
    buffers = {name: rng.normal(0, 9, shape) for name, shape in SHAPES.items()}
    (value,) = evaluate_kernel(k, buffers).values()
    assert value.max() <= 1 + 1e-12  # it is what it is taken for


@pytest.mark.parametrize("said", UNKNOWN)
def test_unknown(said: str) -> None:
    k = power(UNKNOWN[said])
    assert shorter_powers(k) == k


ROUNDED = {
    "distance from the maximum": 0,  # of sums; a sign changes no digit
    "scaled after": 0,
    "scaled before": 2,
    "the other way round": 0,
    "a square": 0,  # nothing is subtracted from what was stored
    "squares": 0,
}


@pytest.mark.parametrize("said", KNOWN)
def test_products_that_are_subtracted_are_rounded(said: str) -> None:
    terms = subterms(*shorter_powers(power(KNOWN[said])).values)
    assert sum(e.kind == "un" and e.attr[0] == "rounded" for e in terms) == ROUNDED[said]


def test_weights_of_a_softmax() -> None:
    """Both times that they are computed, so that they can still be kept."""
    k = softmax(M, N)
    assert decays(k) == 2 and [s.kind for s in shorter_powers(k).stages] == ["red", "red"]
    assert [s.attr for s in shorter_powers(k).stages] == [s.attr for s in k.stages]


def names(value: Expr) -> list[str]:
    k = kernel("power", "m n", {"m": M, "n": N}, value, SHAPES)
    terms = subterms(*shorter_powers(k).values)
    return sorted(e.attr[0] for e in terms if e.kind == "un" and e.attr[0] != "recip")


def test_where_tiny_results_are_not_seen() -> None:
    e = unary("exp2", x("x", "m", "n"))
    assert names(unary("recip", plus(e, 1.0))) == ["exp2_ftz"]
    assert names(times(plus(e, 1.0), plus(e, -1.0))) == ["exp2_ftz"]


def test_where_tiny_results_are_seen() -> None:
    e = unary("exp2", x("x", "m", "n"))
    for value in (e, times(plus(e, 1.0), e), plus(e, 1e-30), plus(e, x("y", "m", "n"))):
        assert names(value) == ["exp2"]


def test_powers_of_e_take_what_is_not_rounded() -> None:
    a, b = x("x", "m", "n"), x("y", "m", "n")
    e = unary("exp2", times(a, math.log2(math.e)))
    assert names(e) == ["exp"] and names(times(e, b)) == ["exp"]
    assert names(unary("recip", plus(unary("exp2", times(a, -math.log2(math.e))), 1.0))) == [
        "exp_ftz"
    ]
    assert names(unary("exp2", times(a, 1.4427))) == ["exp2"]
    assert names(unary("exp2", times(times(a, a), -math.log2(math.e)))) == ["decay"]
    k = kernel("power", "m n", {"m": M, "n": N}, e, SHAPES)
    (new,) = shorter_powers(k).values
    assert new is unary("exp", a)
