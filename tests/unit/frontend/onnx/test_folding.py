"""Values known at import: arithmetic on extents, and the numpy rows against the numpy they mean."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from lumc.frontend.api.symbols import Arithmetic, Symbolic, Undecided, extents
from lumc.frontend.onnx.folding import FOLDS, Folder
from lumc.graph.dim import Dim
from lumc.graph.expr import add, dim, mul

DIMS = {"s": Dim("s", 2, 100), "p": Dim("p", 0, 9)}
S, P = dim("s"), dim("p")
FOLDER = Folder(Arithmetic(DIMS))


def fold(name: str, *inputs: Any, **attributes: Any) -> Any:
    found = FOLDER.fold(name, [i if i is None else _known(i) for i in inputs], attributes)
    return None if found is None else found[0]


def _known(value: Any) -> Any:
    return value if isinstance(value, np.ndarray | Symbolic) else np.array(value)


def said(value: Any) -> list[str]:
    array = value.array if isinstance(value, Symbolic) else value
    return [str(e) for e in array.ravel()]


@pytest.mark.parametrize(
    ("name", "a", "b", "want"),
    [
        ("add", S, 3, "s + 3"),
        ("sub", S, S, "0"),
        ("mul", S, 4, "4*s"),
        ("div", mul(S, 6), 3, "2*s"),
        ("div", mul(S, 6), S, "6"),
        ("div", add(mul(S, 6), 12), add(S, 2), "6"),
        ("div", add(S, 1), 2, "(s + 1) // 2"),
        ("mod", mul(S, 6), 3, "0"),
        ("less", P, S, None),
        ("less", 1, S, "True"),
        ("less", S, 2, "False"),
        ("equal", S, 1, "False"),
        ("equal", S, S, "True"),
        ("max", S, 1, "s"),
        ("min", P, 20, "p"),
        ("mul", S, P, None),
        ("div", 7, S, None),
        ("div", add(S, -5), 2, None),
    ],
)
def test_arithmetic_on_extents(name: str, a: Any, b: Any, want: str | None) -> None:
    function = getattr(Arithmetic(DIMS), name)
    if want is None:
        with pytest.raises(Undecided):
            function(a, b)
    else:
        assert str(function(a, b)) == want


def test_division_agrees_with_integers() -> None:
    """Every quotient that is found symbolically is right for every value of the dims."""
    from lumc.graph.dim import bind

    arithmetic = Arithmetic(DIMS)
    for a in (mul(S, 6), add(mul(S, 4), 8), add(S, 7), add(mul(S, 3), mul(P, 6))):
        for b in (1, 2, 3, S, add(S, 2), add(S, mul(P, 2))):
            try:
                found = arithmetic.div(a, b)
            except Undecided:
                continue
            for s in (2, 3, 17, 100):
                for p in (0, 1, 9):
                    at = {"s": s, "p": p}
                    assert bind(found, at) == bind(a, at) // bind(b, at), (str(a), str(b), at)


def test_shapes_stay_symbolic() -> None:
    shape = extents([S, 8, add(P, 1)])
    assert said(fold("Gather", shape, np.array(-1))) == ["p + 1"]
    assert said(fold("Concat", shape, extents([S]), axis=0)) == ["s", "8", "p + 1", "s"]
    assert said(fold("Slice", shape, [0], [2])) == ["s", "8"]
    assert said(fold("Mul", shape, [2])) == ["2*s", "16", "2*p + 2"]
    assert said(fold("Unsqueeze", fold("Gather", shape, np.array(0)), [0])) == ["s"]
    assert said(fold("Where", fold("Equal", extents([S, 0]), [0]), [5], extents([S, 0]))) == [
        "s",
        "5",
    ]
    assert fold("Equal", shape, [8]) is None  # s may be 8
    assert isinstance(fold("Gather", shape, np.array(1)), np.ndarray)
    assert fold("Mul", shape, shape) is None
    assert fold("Sqrt", shape) is None


def test_a_folded_type_is_the_models() -> None:
    for dtype in (np.int32, np.int64):
        size = Symbolic(np.array([S], object), np.dtype(dtype))
        assert fold("Add", size, np.array([1], dtype)).dtype == dtype
        assert fold("Sub", size, size).dtype == dtype


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_arithmetic_on_numbers(dtype: Any) -> None:
    a = np.array([7, -7, 7, -7], dtype)
    b = np.array([2, 2, -2, -2], dtype)
    want = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Neg": -a, "Max": np.maximum(a, b)}
    want["Div"] = a / b if dtype == np.float32 else np.array([3, -3, -3, 3], dtype)
    for name, value in want.items():
        found = fold(name, a) if name == "Neg" else fold(name, a, b)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


def test_division_by_zero_is_left_to_run_time() -> None:
    assert fold("Div", np.array([1, 2]), np.array([0, 1])) is None
    assert fold("Mod", np.array([1, 2]), np.array([0, 1])) is None


def test_slices_are_numpys() -> None:
    x = np.arange(30).reshape(5, 6)
    assert np.array_equal(fold("Slice", x, [1], [2**63 - 1], [1], [2]), x[:, 1::2])
    assert np.array_equal(fold("Slice", x, [-1], [-(2**63)], [0], [-1]), x[::-1])
    assert np.array_equal(fold("Slice", x, [1, -3], [4, -1]), x[1:4, -3:-1])
    assert np.array_equal(fold("Slice", x, [9], [99]), x[9:])


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("ConstantOfShape", [[10**9, 10**9]]),
        ("Expand", [np.zeros(1), [10**9]]),
        ("Tile", [np.zeros(4), [10**9]]),
        ("Range", [np.array(0), np.array(10**12), np.array(1)]),
        ("Add", [np.zeros((10**4, 1)), np.zeros((1, 10**4))]),
        ("Gather", [np.zeros((1, 10**6)), np.zeros(10**6, np.int64)]),
    ],
)
def test_results_do_not_outgrow_their_inputs(name: str, inputs: list[Any]) -> None:
    assert fold(name, *inputs) is None


def test_large_weights_are_folded_in_place() -> None:
    x = np.arange(10**6, dtype=np.float32).reshape(1000, 1000)
    np.testing.assert_array_equal(fold("Transpose", x), x.T)
    np.testing.assert_array_equal(fold("Mul", x, np.float32(2)), x * 2)


def test_a_bad_index_is_an_error() -> None:
    with pytest.raises(ValueError, match="index"):
        fold("Gather", np.arange(3), np.array([3]))


def test_rows_take_every_attribute_of_their_operators() -> None:
    """Of every version since 7, from which on operators broadcast as numpy does."""
    onnx = pytest.importorskip("onnx")
    missing = set[str]()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version >= 7 and schema.name in FOLDS:
            taken = inspect.signature(FOLDS[schema.name]).parameters
            missing |= {f"{schema.name} {a}" for a in schema.attributes if a not in taken}
    assert not missing


def test_a_product_over_no_axes_is_lowered_where_that_changes_nothing() -> None:
    data = np.arange(1.0, 4)
    assert fold("ReduceProd", data, noop_with_empty_axes=1) is None
    assert fold("ReduceProd", data, keepdims=0) == 6


def test_a_product_of_extents() -> None:
    shape = extents((S, 2, 5))
    assert said(fold("ReduceProd", shape, np.array([0]))) == ["10*s"]
    assert fold("ReduceProd", shape, keepdims=0).shape == ()
    assert fold("ReduceProd", extents((S, P))) is None
    assert fold("ReduceProd", shape, noop_with_empty_axes=1) is None
