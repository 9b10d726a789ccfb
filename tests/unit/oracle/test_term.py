"""The meaning of terms, against numpy written out."""

import numpy as np
import pytest

from kernel_zoo import BOOL, F16, I8, I32, I64, c, greatest, times, total, x
from lumc.graph.expr import add, divmod_, index, mul
from lumc.kernel.term import binary, cast, const, dyn, guard, iota, unary, wsum
from lumc.oracle.term import evaluate_term

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype(np.float32)
V = RNG.standard_normal((4, 5)).astype(np.float32)
EXTENT = {"m": 3, "j": 4, "d": 5}


def value(e, **buffers):
    return evaluate_term(e, EXTENT, {"x": X, "v": V, **buffers})


def test_reductions() -> None:
    got, axes = value(total("j", times(x("x", "m", "j"), x("v", "j", "d"))))
    assert axes == ("d", "m") and np.allclose(got, (X.astype(float) @ V).T)
    assert np.array_equal(value(greatest("m j", x("x", "m", "j")))[0], X.max())
    # a bound axis that the body lacks still counts
    assert np.allclose(value(total("j d", x("x", "m", "j")))[0], X.sum(1, dtype=float) * 5)


def test_weighted_sum() -> None:
    s = X.astype(float)
    weights = np.exp2(s - s.max(1, keepdims=True))
    got, axes = value(wsum("j", x("x", "m", "j"), x("v", "j", "d")))
    assert axes == ("d", "m") and np.allclose(got.T, weights @ V)
    s = np.full((3, 4), -np.inf, np.float32)
    assert np.isnan(value(wsum("j", x("x", "m", "j"), c(1.0)), x=s)[0]).all()


def test_indices() -> None:
    e = x("x", divmod_(add("d", -1), 2, {"d": (0, 4)})[0], 1)
    got = value(guard(add("d", -1), 0, 4, e))[0]
    assert np.array_equal(got, [0, X[0, 1], X[0, 1], X[1, 1], X[1, 1]])
    outside = value(x("x", add(mul("d", 2), -3), 0))[0]
    assert np.array_equal(np.isnan(outside), [True, True, False, True, True])
    ids = np.array([2, 0, 1], np.int64)
    got = value(x("x", dyn(x("ids", "m", kind=I64)), "j"), ids=ids)[0]
    assert np.array_equal(got.T, X[ids])
    assert index("m").free == {"m"}


def test_integers_wrap_and_divide_by_zero() -> None:
    a, b = (np.array(v, np.int8) for v in ([127, -7, 7, -128], [2, 2, 0, -1]))
    read = x("a", "j", kind=I8), x("b", "j", kind=I8)
    sums = value(binary("add", *read), a=a, b=b)[0]
    assert sums.dtype == np.int8 and list(sums) == [-127, -5, 7, 127]
    assert list(value(binary("mod", *read), a=a, b=b)[0]) == [1, -1, 0, 0]
    assert value(total("j", read[0]), a=a, b=b)[0] == np.int8(-1)


def test_selects_casts_and_logic() -> None:
    x0 = np.array([np.nan, np.inf, 1, -1], np.float32)
    positive = binary("lt", c(0.0), x("y", "j"))
    assert list(value(binary("sel", positive, x("y", "j")), y=x0)[0]) == [0, np.inf, 1, 0]
    either = binary("or", positive, binary("lt", x("y", "j"), c(0.0)))
    assert list(value(either, y=x0)[0]) == [False, True, True, True]
    assert list(value(binary("lt", positive, const(True, BOOL)), y=x0)[0]) == [1, 0, 0, 1]
    assert value(cast(I32, c(-2.7)))[0] == -2
    assert list(value(cast(F16, iota("j")))[0]) == [0, 1, 2, 3]
    assert value(unary("recip", c(0.0)))[0] == np.inf


def test_unknown_terms_are_refused() -> None:
    from lumc.graph.expr import make

    with pytest.raises(ValueError, match="no value"):
        value(make("nothing"))
