"""Arithmetic, comparisons, selects and casts against numpy in f64, special values included."""

from __future__ import annotations

import numpy as np
import pytest

from evaluating import apply
from lumc.errors import LumcError
from lumc.frontend import Model, where

RNG = np.random.default_rng(20)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan])
A = np.concatenate([RNG.standard_normal((3, 7)), np.tile(SPECIAL, (7, 1)).T])
B = np.concatenate([RNG.standard_normal((3, 7)), np.tile(SPECIAL, (7, 1))])
INTS = RNG.integers(-9, 9, (4, 5))
OTHER = RNG.integers(-9, 9, (4, 5))
BOOLS = RNG.random((4, 5)) < 0.5


def same(got: np.ndarray, want: np.ndarray, tolerance: float = 0.0) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


ARITHMETIC = {
    "add": (lambda x, y: x + y, 0),
    "sub": (lambda x, y: x - y, 0),
    "mul": (lambda x, y: x * y, 0),
    "div": (lambda x, y: x / y, 1e-15),
    "mod": (lambda x, y: x % y, 1e-12),
    "lt": (lambda x, y: x < y, 0),
    "le": (lambda x, y: x <= y, 0),
    "gt": (lambda x, y: x > y, 0),
    "ge": (lambda x, y: x >= y, 0),
    "eq": (lambda x, y: x == y, 0),
    "ne": (lambda x, y: x != y, 0),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_operator_of_floats(name: str) -> None:
    function, tolerance = ARITHMETIC[name]
    with np.errstate(all="ignore"):
        want = function(A, B)
    if name == "mod":  # numpy's % of an infinite divisor is the divisor's sign, not C's fmod
        want = np.where(np.isinf(B) | np.isinf(A), np.nan, want)
        got = np.where(np.isinf(B) | np.isinf(A), np.nan, apply(function, A, B))
    else:
        got = apply(function, A, B)
    same(got, want, tolerance)


@pytest.mark.parametrize("name", [n for n in ARITHMETIC if n not in ("div", "mod")])
def test_operator_of_ints(name: str) -> None:
    function, _ = ARITHMETIC[name]
    same(apply(function, INTS, OTHER), function(INTS, OTHER))


def test_int_division_and_remainder_are_floored() -> None:
    divisor = np.where(OTHER == 0, 3, OTHER)
    same(apply(lambda x, y: x // y, INTS, divisor), INTS // divisor)
    same(apply(lambda x, y: x % y, INTS, divisor), INTS % divisor)
    same(apply(lambda x: x // 3, INTS), INTS // 3)
    same(apply(lambda x: x % 4, INTS), INTS % 4)
    same(apply(lambda x: x % -4, INTS), INTS % -4)
    big = np.array([2**40 + 3, -(2**40) - 3, 7])
    same(apply(lambda x: x // 7, big), big // 7)


def test_int_remainder_by_zero_is_zero() -> None:
    assert apply(lambda x, y: x.fmod(y), np.array([5, -5]), np.array([0, 0])).tolist() == [0, 0]


@pytest.mark.parametrize("value", [2, -1, 1.5, 0, 1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_number_on_either_side(name: str, value: float) -> None:
    function, tolerance = ARITHMETIC[name]
    if name == "mod" and not (np.isfinite(value) and value):
        return
    x = A[np.isfinite(A).all(1)] if name == "mod" else A
    with np.errstate(all="ignore"):
        right = function(x, float(value))
        left = function(float(value), x) if name != "mod" else None
    same(apply(lambda t: function(t, value), x), right, tolerance)
    if left is not None:
        same(apply(lambda t: function(value, t), x), left, tolerance)


def test_floats_and_ints_promote() -> None:
    assert apply(lambda x, y: x + y, A[:3].astype("f4"), INTS[:3, :1]).dtype == np.float64
    assert apply(lambda x: x / 2, INTS).tolist() == (INTS / 2).tolist()
    assert apply(lambda x: x + 0.5, INTS).tolist() == (INTS + 0.5).tolist()
    assert apply(lambda x, y: x + y, INTS.astype("i4"), OTHER).dtype == np.int64


def test_bool_operators() -> None:
    other = RNG.random((4, 5)) < 0.5
    same(apply(lambda x, y: x & y, BOOLS, other), BOOLS & other)
    same(apply(lambda x, y: x | y, BOOLS, other), BOOLS | other)
    same(apply(lambda x, y: x ^ y, BOOLS, other), BOOLS ^ other)
    same(apply(lambda x: ~x, BOOLS), ~BOOLS)
    same(apply(lambda x, y: x == y, BOOLS, other), other == BOOLS)
    same(apply(lambda x: x & True, BOOLS), BOOLS)
    same(apply(lambda x: x & False, BOOLS), BOOLS & False)


def test_a_bool_factor_selects() -> None:
    x = np.full((4, 5), np.nan)
    got = apply(lambda c, t: c * t, BOOLS, x)
    assert np.array_equal(np.isnan(got), BOOLS)
    same(apply(lambda t, c: t * c, INTS, BOOLS), INTS * BOOLS)


def test_where_takes_what_is_chosen() -> None:
    x, y = A[:4, :5], B[-4:, :5]
    same(apply(lambda c, a, b: where(c, a, b), BOOLS, x, y), np.where(BOOLS, x, y))
    infinite = apply(lambda c, a: where(c, a, -np.inf), BOOLS, x)
    same(infinite, np.where(BOOLS, x, -np.inf))
    same(apply(lambda c, a: where(c, 0, a), BOOLS, x), np.where(BOOLS, 0, x))
    same(apply(lambda c: where(c, 2.0, 3), BOOLS), np.where(BOOLS, 2.0, 3.0))
    same(apply(lambda a, c: a.masked_fill(c, 7.0), x, BOOLS), np.where(BOOLS, 7.0, x))


@pytest.mark.parametrize("shape", [(2, 3, 1), (0,), (1, 4)])
def test_what_is_zero_everywhere_has_a_shape_too(shape: tuple[int, ...]) -> None:
    """Nothing of it is chosen or added, but the result is as large as it."""
    c, x, zeros = np.array([True]), np.array([2.5]), np.zeros(shape)
    same(apply(lambda c, a: where(c, a, a.model.full(shape, 0.0)), c, x), np.where(c, x, zeros))
    same(apply(lambda c, a: where(c, a.model.full(shape, 0.0), a), ~c, x), np.where(~c, zeros, x))


def test_casts() -> None:
    finite = np.array([0.0, -0.4, 1.9, -1.9, 255.0, 3e4])
    assert apply(lambda x: x.to("i32"), finite).tolist() == [0, 0, 1, -1, 255, 30000]
    assert apply(lambda x: x.to("bool"), SPECIAL).tolist() == SPECIAL.astype(bool).tolist()
    assert apply(lambda x: x.to("u8"), np.array([-1, 256, 5])).tolist() == [255, 0, 5]
    assert apply(lambda x: x.to("f32"), BOOLS).tolist() == BOOLS.astype(float).tolist()
    assert apply(lambda x: x.to("i64"), BOOLS).tolist() == BOOLS.astype(int).tolist()
    half = apply(lambda x: x.to("f16"), np.array([1 / 3]), declared=True)
    assert half == np.float16(1 / 3)
    assert apply(lambda x: x.to("float64") + x.to(np.float64), finite).tolist() == list(2 * finite)


def test_broadcasting_follows_numpy() -> None:
    x, y = RNG.standard_normal((3, 1, 5)), RNG.standard_normal((4, 1))
    same(apply(lambda a, b: a + b, x, y), x + y)
    same(apply(lambda a, b: a * b, y, RNG.standard_normal(())[None][0:0]), np.zeros((4, 0)))
    scalar = np.array(2.5)
    same(apply(lambda a, b: a * b, x, scalar), x * scalar)


def test_shapes_that_do_not_fit_are_both_named() -> None:
    with pytest.raises(LumcError, match=r"\[3, 4\] and \[3, 5\] do not broadcast: 4 and 5") as e:
        apply(lambda x, y: x + y, np.ones((3, 4)), np.ones((3, 5)))
    assert e.value.exit == 4
    assert "test_elementwise.py:" in e.value.where


def test_arithmetic_on_numbers_makes_no_node() -> None:
    g = Model()
    two = g.full((), 2.0)
    x = g.input("x", (3,))
    y = x * (two * 3 + 1).exp2()
    g.output("y", y * 1)
    (entry,) = g.graph().entries
    assert [str(n.op.value) for n in entry.nodes] == ["mul"]
    assert entry.nodes[0].operands[1].value == 128.0


def test_equal_nodes_are_made_once() -> None:
    g = Model()
    x = g.input("x", (3,))
    g.output("y", (x + 1.0).exp2() * (x + 1.0).exp2())
    assert len(g.graph().entries[0].nodes) == 3
    g = Model()
    x = g.input("x", (3,))
    g.output("y", (x + 0.0) * (x + -0.0))
    assert len(g.graph().entries[0].nodes) == 3


def test_axes_that_nothing_depends_on_are_left_out() -> None:
    g = Model()
    x = g.input("x", (4, 5))
    scale = x.sum(1, keepdim=True).expand(4, 5) * 2.0
    g.output("y", x * scale)
    shapes = [n.shape for n in g.graph().entries[0].nodes]
    assert shapes == [(4,), (4,), (4, 5)]


def test_positions_are_index_maps() -> None:
    g = Model()
    i = g.arange(4)
    g.output("y", (i[:, None] * 3 + i[None, :] + 1).to("f32"))
    (node,) = g.graph().entries[0].nodes
    assert str(node.operands[0].index) == "3*i + j + 1"


@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "i32", "i8", "u8", "bool"])
def test_every_dtype_adds(dtype: str) -> None:
    x = np.array([0, 1, 1]).astype(
        {"f32": "f4", "f16": "f2"}.get(
            dtype,
            dtype.replace("u8", "u1").replace("i8", "i1").replace("i32", "i4").replace("i64", "i8"),
        )
    )
    got = apply(lambda a, b: a + b, x, x, declared=True)
    assert got.dtype == x.dtype
    assert got.tolist() == (x + x).tolist()


def test_truth_of_a_tensor_is_an_error() -> None:
    x = Model().input("x", (2,))
    with pytest.raises(LumcError, match="not known while the graph is built"):
        bool(x < 1)
