"""The table of docs/accuracy.md holds, and laws and folds do not undo what it promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import accuracy
from commands import Lumc
from evaluating import apply
from lumc.frontend import Model, Tensor

FOUR = ("tanh", "erf", "expm1", "log1p", "softplus", "sigmoid", "exp", "log", "sin", "cos", "rsqrt")


def table() -> tuple[dict[str, list[float]], ...]:
    """Both documented tables: figures by name."""
    parts = accuracy.documented().split("\n\n")
    return tuple(
        {name: [float(c) for c in cells.split("|")[:-1]] for name, cells in found}
        for found in (re.findall(r"^\| `([^`]*)` \|(.*)$", part, re.MULTILINE) for part in parts)
    )


def holds(step: int, rows: int) -> None:
    points, of_rows = table()
    measured, by_rows = accuracy.measured(step, rows)
    assert measured.keys() == points.keys() and by_rows.keys() == of_rows.keys()
    for name, figures in measured.items():
        assert not figures["wrong"], name
        for region, limit in zip(accuracy.REGIONS, points[name], strict=False):
            # rounding alone costs half an ulp, and what is compared with is rounded too
            assert figures[region] <= 1.5 * limit + 0.51, (name, region)
    for name, figures in by_rows.items():
        for region, limit in zip(accuracy.SCALES, of_rows[name], strict=True):
            assert figures[region] <= 2 * limit + 1e-7, (name, region)


def test_accuracy() -> None:
    holds(200_003, 256)


@pytest.mark.deep
def test_accuracy_of_every_2003rd_number() -> None:
    holds(2003, 4096)


@pytest.mark.parametrize("name", FOUR)
def test_what_is_promised(name: str) -> None:
    assert max(table()[0][name][:3]) <= 4


@pytest.mark.parametrize(
    ("written", "exact", "absolute"),
    [
        (lambda x: x.tanh() + 1.0, lambda x: 2 / (1 + np.exp(-2 * x)), 0),
        (lambda x: 1.0 - x.tanh(), lambda x: 2 / (1 + np.exp(2 * x)), 0),
        (lambda x: x.tanh() - 1.0, lambda x: -2 / (1 + np.exp(2 * x)), 0),
        (lambda x: x.tanh() * 0.5 + 0.5, lambda x: 1 / (1 + np.exp(-2 * x)), 0),
        (lambda x: x.erf() + 1.0, lambda x: accuracy.erfc(-x), 1.2e-7),
        (lambda x: x.tanh() + 0.5, lambda x: 0.5 + np.tanh(x), 1.2e-7),
    ],
)
def test_ends_of_what_saturates(
    written: Callable[[Tensor], Tensor], exact: Callable[[np.ndarray], np.ndarray], absolute: float
) -> None:
    """No digit is lost where a sum with one cancels."""
    x = np.linspace(-9, 9, 1001).astype(np.float32)
    got = apply(written, x, declared=True)
    np.testing.assert_allclose(got, exact(x.astype(float)), rtol=4e-6, atol=absolute)


def test_gelu_is_exact_against_its_argument() -> None:
    x = np.linspace(-12, 12, 40001).astype(np.float32)
    wide = x.astype(float)
    want = wide * accuracy.erfc(-wide / np.sqrt(2)) / 2
    got = apply(lambda t: t.gelu(), x, declared=True)
    assert (np.abs(got - want) <= 1.5e-7 * np.abs(wide)).all()
    assert accuracy.ulps(got.astype(float), want)[x >= -0.5].max() <= 4


@pytest.mark.parametrize("base", [-np.inf, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, np.inf, np.nan])
def test_powers_of_special_values(base: float) -> None:
    y = np.array([-np.inf, -3, -2.5, -2, -1, -0.5, 0, 0.5, 1, 2, 2.5, 3, 17, np.inf, np.nan], "f4")
    x = np.full_like(y, base)
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    np.testing.assert_allclose(apply(lambda a, b: a**b, x, y), want, rtol=1e-6)
    with np.errstate(all="ignore"):
        want = np.power(x[:1], np.float32(2.5))
    np.testing.assert_allclose(apply(lambda a: a**2.5, x[:1]), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "exact", "least", "most"),
    [
        (lambda x: x.sinh(), np.sinh, 1e-30, 89.4),
        (Tensor.asinh, np.arcsinh, 1e-30, 1e30),
        (Tensor.atan, np.arctan, 1e-30, 1e30),
        (Tensor.mish, lambda x: x * np.tanh(np.log1p(np.exp(np.minimum(x, 700.0)))), 1e-30, 1e30),
        (lambda x: (-x).mish(), lambda x: -x * np.tanh(np.log1p(np.exp(-x))), 1e-30, 80.0),
    ],
)
def test_functions_of_the_importer(
    function: Callable[[Tensor], Tensor],
    exact: Callable[[np.ndarray], np.ndarray],
    least: float,
    most: float,
) -> None:
    x = np.geomspace(least, most, 5001).astype(np.float32)
    got = apply(function, x, declared=True)
    np.testing.assert_allclose(got, exact(x.astype(float)), rtol=8e-6 if most < 100 else 5e-7)


def test_logsumexp_of_infinities() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 1], [np.nan, np.inf]], np.float32)
    got = apply(lambda t: t.logsumexp(), x)
    np.testing.assert_array_equal(got, [-np.inf, np.inf, 1, np.nan])


def test_a_softcap_verifies(lumc: Lumc) -> None:
    """The last steps of Gemma 2: logits between -30 and 30."""
    g = Model()
    x, w = g.input("x", (3, 64)), g.input("w", (64, 128))
    logits = (x.rms_norm() @ w) * 4.0
    g.output("y", ((logits * (1 / 30)).tanh() * 30.0).softmax())
    g.output("logits", (logits / 30.0).tanh() * 30.0)
    g.save(Path("m.lg"))
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb")
    assert lumc("verify", "m.lb").count("ok") == 2


def judged(lumc: Lumc, builds: list[Callable[..., Tensor]], **arrays: np.ndarray) -> str:
    """What verify says about functions of these inputs, of which all is well."""
    g = Model()
    inputs = [g.input(name, a.shape, a.dtype.name) for name, a in arrays.items()]
    for i, build in enumerate(builds):
        g.output(f"y{i}", build(*inputs))
    g.save(Path("m.lg"))
    np.savez("in.npz", **arrays)
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb")
    return lumc("verify", "m.lb", "--input", "in.npz")


def test_verify_judges_in_the_range_of_the_dtype(lumc: Lumc) -> None:
    builds = [lambda x: x.exp(), lambda x: x * x, lambda x: 1.0 / x, lambda x: x + x]
    values = (88.73, 88.72, -88.73, 200.0, 3e38, 1.8446744e19, 1e-40, 1e-30, 2e38, 1e-39, -1e-37)
    assert "unjudged" not in judged(lumc, builds, x=np.array(values, np.float32))


def test_verify_of_overflow_in_f16(lumc: Lumc) -> None:
    x = np.array([300.0, -300.0, 255.9, 1e-4], np.float16)
    assert "unjudged" not in judged(lumc, [lambda t: t * t.abs()], x=x)


def test_laws_may_exchange_nan_and_inf_where_a_value_is_touched(lumc: Lumc) -> None:
    """``factor``: NaN as written, inf as it is computed. Elements beside it are judged."""
    builds = [lambda a, b: (a[:, None] * b).sum(-1), lambda a, b: a + a * (b[:, 1] * 2.0)]
    a, b = np.array([np.inf, 2.0], np.float32), np.array([[1, -2, 3], [1, -2, 3]], np.float32)
    said = judged(lumc, builds, a=a, b=b).splitlines()
    assert "1 unjudged" in said[0] and "FAIL" not in said[1]
