"""Functions of one variable against numpy and the math module."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from evaluating import apply

RNG = np.random.default_rng(21)
X = np.concatenate([RNG.standard_normal(40) * 3, [0.0, 1.0, -1.0, 0.5, -0.5, 20.0, -20.0]])
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 2.5, -2.5, 3.5])


def each(f: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(f, otypes=[float])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


erf = each(math.erf)
FUNCTIONS = {
    "exp": (np.exp, 1e-13),
    "exp2": (np.exp2, 1e-15),
    "tanh": (np.tanh, 1e-14),
    "sigmoid": (sigmoid, 1e-14),
    "silu": (lambda x: x * sigmoid(x), 1e-13),
    "softplus": (lambda x: np.logaddexp(0, x), 1e-13),
    "sin": (np.sin, 1e-15),
    "cos": (np.cos, 1e-15),
    "tan": (np.tan, 1e-12),
    "erf": (erf, 6e-8),
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, 1.5e-7),
    "relu": (lambda x: np.maximum(x, 0), 0),
    "elu": (lambda x: np.where(x < 0, np.expm1(x), x), 1e-15),
    "leaky_relu": (lambda x: np.where(x < 0, 0.01 * x, x), 1e-15),
    "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), 1e-15),
    "hardswish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 1e-15),
    "abs": (np.abs, 0),
    "sign": (np.sign, 0),
    "square": (np.square, 0),
    "neg": (np.negative, 0),
    "floor": (np.floor, 0),
    "ceil": (np.ceil, 0),
    "round": (np.round, 0),
    "trunc": (np.trunc, 0),
    "reciprocal": (np.reciprocal, 0),
    "sqrt": (np.sqrt, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0),
    "log2": (np.log2, 0),
    "log": (np.log, 1e-15),
    "isnan": (np.isnan, 0),
    "isinf": (np.isinf, 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    want, tolerance = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        expected = want(X)
    got = apply(lambda x: getattr(x, name)(), X)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("sign", "elu", "softplus")])
def test_function_of_special_values(name: str) -> None:
    want, tolerance = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        expected = want(SPECIAL)
    if name in ("silu", "hardswish", "gelu"):
        expected[1] = np.nan  # -inf * 0
    if name == "hardswish":
        expected[0] = np.inf
    got = apply(lambda x: getattr(x, name)(), SPECIAL)
    np.testing.assert_allclose(got, expected, rtol=max(tolerance, 1e-7), atol=max(tolerance, 1e-7))


def test_erf_saturates() -> None:
    x = np.array([3.9, 4.6, 6.0, 30.0, 1e30, np.inf])
    np.testing.assert_allclose(apply(lambda t: t.erf(), x), 1.0, atol=6e-8)
    np.testing.assert_allclose(apply(lambda t: t.erf(), -x), -1.0, atol=6e-8)


def test_gelu_keeps_its_tail() -> None:
    x = np.linspace(-12, 12, 4001)
    tail = x * each(math.erfc)(-x / math.sqrt(2)) / 2
    got = apply(lambda t: t.gelu(), x)
    assert np.abs(got - tail).max() < 1.5e-7
    assert np.abs(got[x < -9]).max() < 1e-15


def test_gelu_tanh() -> None:
    inner = math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)
    want = X * (1 + np.tanh(inner)) / 2
    np.testing.assert_allclose(apply(lambda x: x.gelu("tanh"), X), want, rtol=1e-12, atol=1e-12)


def test_parameters() -> None:
    np.testing.assert_allclose(
        apply(lambda x: x.elu(0.3), X), np.where(X < 0, 0.3 * np.expm1(X), X)
    )
    got = apply(lambda x: x.leaky_relu(0.2), X)
    np.testing.assert_allclose(got, np.where(X < 0, 0.2 * X, X))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, -1, -3, 16, 21, 20.0])
def test_integer_powers(exponent: float) -> None:
    x = X[np.abs(X) < 4]
    x = np.where(x == 0, 0.25, x) if exponent < 0 else x
    np.testing.assert_allclose(apply(lambda t: t**exponent, x), x**exponent, rtol=1e-12)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.7, -2.3])
def test_powers_of_positive_numbers(exponent: float) -> None:
    x = np.abs(X) + 0.1
    np.testing.assert_allclose(apply(lambda t: t**exponent, x), x**exponent, rtol=1e-13)


def test_power_of_tensors() -> None:
    x, y = np.abs(X) + 0.1, RNG.standard_normal(X.size)
    np.testing.assert_allclose(apply(lambda a, b: a**b, x, y), x**y, rtol=1e-12)
    np.testing.assert_allclose(apply(lambda b: 3**b, y), 3**y, rtol=1e-12)
    for same in (0.0, 2.0, 0.5):  # of an exponent that is one number everywhere
        wide = apply(lambda a, e=same: a ** a.model.full((2, 1), e), x)
        np.testing.assert_allclose(wide, x ** np.full((2, 1), same), rtol=1e-13)
    ints = np.array([[2, -3]])
    assert apply(lambda t: t**3, ints).tolist() == [[8, -27]]


def test_maximum_and_minimum_propagate_nan() -> None:
    a, b = (m.ravel() for m in np.meshgrid(SPECIAL, SPECIAL))
    np.testing.assert_array_equal(apply(lambda x, y: x.maximum(y), a, b), np.maximum(a, b))
    np.testing.assert_array_equal(apply(lambda x, y: x.minimum(y), a, b), np.minimum(a, b))
    np.testing.assert_array_equal(apply(lambda x: x.maximum(1), a), np.maximum(a, 1))
    np.testing.assert_array_equal(apply(lambda x: x.clip(-1, 2), a), np.clip(a, -1, 2))
    np.testing.assert_array_equal(apply(lambda x: x.clip(high=2), a), np.minimum(a, 2))
    ints = np.array([5, -5, 2])
    assert apply(lambda x: x.clip(-1, 3), ints).tolist() == [3, -1, 2]


def test_functions_of_ints_are_floats() -> None:
    ints = np.array([1, 2, 8])
    assert apply(lambda x: x.log2(), ints).tolist() == [0.0, 1.0, 3.0]
    assert apply(lambda x: x.floor(), ints).tolist() == [1, 2, 8]


def test_f32_evaluation_is_close() -> None:
    """In the declared dtype the compositions lose a few units in the last place, not digits."""
    x = np.linspace(-8, 8, 2001, dtype=np.float32)
    wide = x.astype(np.float64)
    for name, limit in (("gelu", 3e-7), ("erf", 3e-7), ("sigmoid", 2e-7), ("tanh", 3e-7)):
        got = apply(lambda t, name=name: getattr(t, name)(), x, declared=True)
        assert np.abs(got - FUNCTIONS[name][0](wide)).max() < limit * max(1, np.abs(wide).max() / 4)
    far = np.linspace(0, 2048, 4097, dtype=np.float32)
    got = apply(lambda t: t.cos(), far, declared=True)
    assert np.abs(got - np.cos(far.astype(np.float64))).max() < 3e-7
