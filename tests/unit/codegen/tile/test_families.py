"""Indices that vary together, as axes of a copy."""

from __future__ import annotations

import pytest

from lumc.codegen.tile.families import families, summed
from lumc.codegen.tile.program import whole
from lumc.graph.expr import Expr, add, axis, make, mul
from lumc.kernel.term import guard

SCOPE = {"j": whole(8), "k": whole(8), "u": whole(3), "v": whole(3)}
ROW, COLUMN = add(mul("j", 2), "u", -1), add(mul("k", 2), "v", -1)


def load(*index: Expr) -> Expr:
    return make("load", ("x", "f32"), index)


def padded(value: Expr) -> Expr:
    return guard(ROW, 0, 16, guard(COLUMN, 0, 16, value))


def test_a_flat_index_is_made_of_a_row_and_a_column() -> None:
    """With an axis of its own it went on where the guards end: a read behind the image."""
    spans, new, names = families(padded(load(add(mul(ROW, 16), COLUMN))), SCOPE, 7)
    row, column = (axis(names[add(e, 1)]) for e in (ROW, COLUMN))
    assert [r.largest for r in spans.values()] == [17, 17]
    flat = load(add(mul(row, 16), column, -17))
    assert new == guard(add(row, -1), 0, 16, guard(add(column, -1), 0, 16, flat))


def test_what_varies_with_a_guarded_index_in_another_way_has_no_copy() -> None:
    skewed = load(add("j", mul("u", 2)))
    assert families(padded(skewed), SCOPE, 7) == ({}, padded(skewed), {})
    assert len(families(skewed, SCOPE, 7)[0]) == 1


@pytest.mark.parametrize(
    ("form", "found"),
    [
        (add(mul(ROW, 16), COLUMN, 17), [16, 1]),
        (add(ROW, COLUMN, 2), [1, 1]),
        (add(mul(ROW, 16), "k", 16), []),  # not all of a column
        (add(mul("j", 3), mul("u", 2), COLUMN, 1), []),  # not a multiple of a row
        (add(ROW, 1), []),  # itself
    ],
)
def test_sums_of_forms(form: Expr, found: list[int]) -> None:
    assert list(summed(form, [add(ROW, 1), add(COLUMN, 1)]).values()) == found
