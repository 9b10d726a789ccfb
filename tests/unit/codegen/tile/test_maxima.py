"""Which maxima may ignore NaN: those of which the results are NaN without them, and no other."""

import numpy as np
import pytest

from kernel_zoo import c, exp, greatest, kernel, minus, plus, softmax, times, total, x
from lumc.codegen.tile.maxima import plain_maxima
from lumc.graph.expr import Expr
from lumc.kernel.term import Kernel, binary, unary
from lumc.oracle.term import evaluate_kernel

M, N = 5, 7
SHAPES = {"x": (M, N), "y": (M, N)}
EXTENT = {"m": M, "n": N, "i": N, "j": N, "h": N - 2, "r": M}


def row(value: Expr) -> Kernel:
    return kernel("row", "m n", EXTENT, value, SHAPES)


def score(j: str) -> Expr:
    """Scaled, and of some columns only."""
    there = binary("lt", c(0.0), x("y", "m", j))
    return plus(times(x("x", "m", j), 0.125), binary("sel", there, c(-1e9)))


def top(j: str = "i") -> Expr:
    return greatest(j, x("x", "m", j))


def weight(j: str) -> Expr:
    return exp(minus(x("x", "m", j), top()))


def ops(k: Kernel) -> list[str]:
    return [s.attr[0] for s in plain_maxima(k).stages]


some = binary("lt", x("y", "m", "j"), c(0.0))
KNOWN = {
    "softmax": times(weight("n"), unary("recip", total("j", weight("j")))),
    "logarithm of a sum": plus(
        plus(top(), unary("log2", total("j", weight("j")))), x("y", "m", "n")
    ),
    "computed scores": plus(
        total("j", exp(minus(score("j"), greatest("i", score("i"))))), x("y", "m", "n")
    ),
    "the same elements": plus(times(top(), total("j", x("x", "m", "j"))), x("y", "m", "n")),
}
UNKNOWN = {
    "nothing else": plus(top(), x("y", "m", "n")),
    "scaled by the maximum": times(x("x", "m", "n"), unary("recip", top())),
    "a sum of something else": times(top(), total("j", x("y", "m", "j"))),
    "a sum of some": times(
        weight("n"), unary("recip", total("j", binary("sel", some, weight("j"))))
    ),
    "a part of the row": times(top(), total("h", x("x", "m", "h"))),
    "another row": times(top(), total("r", x("x", "r", "n"))),
    "only compared": plus(
        binary("sel", binary("lt", total("j", weight("j")), c(1.0)), top()), x("y", "m", "n")
    ),
}


@pytest.mark.parametrize("said", KNOWN)
def test_known(said: str) -> None:
    k = row(KNOWN[said])
    assert "top" in ops(k) and "max" not in ops(k)
    rng = np.random.default_rng(4)
    for at in range(N):
        buffers = {name: rng.normal(0, 3, shape) for name, shape in SHAPES.items()}
        buffers["x"][1, at] = np.nan
        (value,) = evaluate_kernel(k, buffers).values()
        assert np.isnan(value[1]).all() and not np.isnan(value[0]).any()


@pytest.mark.parametrize("said", UNKNOWN)
def test_unknown(said: str) -> None:
    k = row(UNKNOWN[said])
    assert plain_maxima(k) == k


def test_every_reader_counts() -> None:
    """A second result that is the maximum itself would show the difference."""
    value = KNOWN["softmax"]
    both = [(x("out", "m", "n"), value), (x("most", "m"), top())]
    shapes = {**SHAPES, "out": (M, N), "most": (M,)}
    k = kernel("both", "m n", EXTENT, both, shapes)
    assert plain_maxima(k) == k
    once = kernel("once", "m n", EXTENT, both[:1], {**SHAPES, "out": (M, N)})
    assert ops(once) == ["top", "sum"]


def test_stages_keep_their_order() -> None:
    k = softmax(M, N)
    assert [s.attr[1] for s in plain_maxima(k).stages] == [s.attr[1] for s in k.stages]
