"""Reductions and norms against numpy in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evaluating import apply
from lumc.errors import LumcError
from lumc.frontend import Model, Tensor

RNG = np.random.default_rng(23)
X = RNG.standard_normal((3, 5, 7))
INTS = RNG.integers(-50, 50, (3, 5, 7))
Array = np.ndarray[Any, Any]
AXES = [None, 0, 1, -1, (0, 2), (-1, -2), (0, 1, 2)]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "var", "std", "prod"])
def test_reduction(name: str, axis: Any, keepdim: bool) -> None:
    x = X * 1.5 if name == "prod" else X
    want = getattr(np, name)(x, axis=axis, keepdims=keepdim)
    got = apply(lambda t: getattr(t, name)(axis, keepdim), x)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
    assert got.shape == want.shape


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "any", "all"])
def test_reduction_of_ints(name: str, axis: Any) -> None:
    x = INTS % 3 if name in ("any", "all") else INTS
    want = getattr(np, name)(x, axis=axis)
    got = apply(lambda t: getattr(t, name)(axis), x)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_min_at_the_ends_of_the_range(dtype: str) -> None:
    ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1]).astype(dtype)
    for k in range(4):
        x = np.roll(ends, k)[: 3 if k % 2 else 4]
        assert apply(lambda t: t.min(), x, declared=True) == x.min()


def test_bool_reductions() -> None:
    mask = X > 0.8
    assert np.array_equal(apply(lambda t: t.sum(1), mask), mask.sum(1))
    assert np.array_equal(apply(lambda t: t.any(2), mask), mask.any(2))
    assert np.array_equal(apply(lambda t: t.all((0, 2)), ~mask), (~mask).all((0, 2)))
    assert np.array_equal(apply(lambda t: t.min(0), mask), mask.min(0))


def test_nan_and_infinity_propagate() -> None:
    x = X[0].copy()
    x[0, 1], x[1, 2], x[2, 3] = np.nan, np.inf, -np.inf
    for name in ("sum", "max", "min", "mean"):
        np.testing.assert_allclose(
            apply(lambda t, n=name: getattr(t, n)(1), x), getattr(x, name)(1)
        )


def test_argmax_takes_the_first() -> None:
    x = np.round(X)
    for axis in (0, 1, 2):
        assert np.array_equal(apply(lambda t, a=axis: t.argmax(a), x), x.argmax(axis))
        assert np.array_equal(apply(lambda t, a=axis: t.argmin(a), x), x.argmin(axis))
    assert apply(lambda t: t.argmax(), x) == x.argmax()
    assert apply(lambda t: t.argmax(1, keepdim=True), INTS).shape == (3, 1, 7)
    assert np.array_equal(apply(lambda t: t.argmin(1), INTS), INTS.argmin(1))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(axis: int) -> None:
    np.testing.assert_allclose(apply(lambda t: t.cumsum(axis), X), X.cumsum(axis), atol=1e-13)
    assert np.array_equal(apply(lambda t: t.cumsum(axis), INTS), INTS.cumsum(axis))
    flipped = np.flip(np.flip(X, axis).cumsum(axis), axis)
    np.testing.assert_allclose(
        apply(lambda t: t.cumsum(axis, reverse=True), X), flipped, atol=1e-13
    )
    exclusive = apply(lambda t: t.cumsum(axis, exclusive=True), X)
    np.testing.assert_allclose(exclusive, X.cumsum(axis) - X, atol=1e-13)


def test_empty_and_single_extents() -> None:
    assert np.array_equal(apply(lambda t: t.sum(1), np.zeros((2, 0))), [0, 0])
    assert np.array_equal(apply(lambda t: t.max(1), np.zeros((2, 0))), [-np.inf, -np.inf])
    assert apply(lambda t: t.sum((0, 1)) * 2.0, np.array([[3.0]])) == 6.0
    assert apply(lambda t: t.mean() + t.var(), np.array(3.0)) == 3.0


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int) -> None:
    x = X * 30
    want = softmax(x, axis)
    np.testing.assert_allclose(apply(lambda t: t.softmax(axis), x), want, rtol=1e-12)
    logs = apply(lambda t: t.log_softmax(axis), x)
    np.testing.assert_allclose(np.exp(logs), want, rtol=1e-11)
    total = np.log(np.exp(X).sum(axis))
    np.testing.assert_allclose(apply(lambda t: t.logsumexp(axis), X), total, rtol=1e-12)


def test_softmax_of_rows_of_minus_infinity() -> None:
    x = np.array([[-np.inf, 0.0, 1.0], [-np.inf] * 3])
    got = apply(lambda t: t.softmax(), x)
    np.testing.assert_allclose(got[0], softmax(x[0], 0), rtol=1e-14)
    assert np.isnan(got[1]).all()


def standard(x: Array, axis: Any, eps: float = 1e-5) -> Array:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


NORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "layer": (lambda t: t.layer_norm(), lambda x: standard(x, -1)),
    "layer of two axes": (
        lambda t: t.layer_norm(eps=0.1, axis=(-2, -1)),
        lambda x: standard(x, (1, 2), 0.1),
    ),
    "rms": (
        lambda t: t.rms_norm(eps=1e-3),
        lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3),
    ),
    "instance": (lambda t: t.instance_norm(), lambda x: standard(x, 2)),
    "group": (
        lambda t: t[:, :4].group_norm(2),
        lambda x: standard(x[:, :4].reshape(3, 2, 14), 2).reshape(3, 4, 7),
    ),
    "length": (lambda t: t.normalize(1), lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str) -> None:
    mine, numpys = NORMS[name]
    np.testing.assert_allclose(apply(mine, X), numpys(X), rtol=1e-11, atol=1e-12)


def test_norms_scale_and_shift() -> None:
    w, b = RNG.standard_normal(7), RNG.standard_normal(7)
    c, d = RNG.standard_normal(5), np.abs(RNG.standard_normal(5))

    def per(v: Array) -> Array:
        return v[:, None]

    got = apply(lambda t, u, v: t.layer_norm(u, v), X, w, b)
    np.testing.assert_allclose(got, standard(X, -1) * w + b, rtol=1e-11, atol=1e-12)
    got = apply(lambda t, u: t.rms_norm(u), X, w)
    np.testing.assert_allclose(got, X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-5) * w)
    got = apply(lambda t, m, v, u: t.batch_norm(m, v, u, m), X, c, d, c)
    want = (X - per(c)) / np.sqrt(per(d) + 1e-5) * per(c) + per(c)
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)
    got = apply(lambda t, u, v: t.instance_norm(u, v), X, c, d)
    np.testing.assert_allclose(got, standard(X, 2) * per(c) + per(d), rtol=1e-11, atol=1e-12)


def test_normalize_of_zero_is_zero() -> None:
    assert np.array_equal(apply(lambda t: t.normalize(), np.zeros((2, 3))), np.zeros((2, 3)))


def test_long_products_are_refused() -> None:
    with pytest.raises(LumcError, match="at most 64 elements"):
        Model().input("x", (65,)).prod()


@pytest.mark.parametrize("k", [-1, 4])
def test_more_elements_than_there_are_are_refused(k: int) -> None:
    """There would be nothing to give: zeros are wrong."""
    x = Model().input("x", (2, 3))
    with pytest.raises(LumcError, match="E0121"):
        x.topk(k)
    assert x.topk(3)[0].shape == (2, 3) and x.topk(0)[0].shape == (2, 0)
