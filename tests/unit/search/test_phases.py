"""Guards outside of which a product is zero."""

from __future__ import annotations

from lumc.graph.expr import axis
from lumc.graph.ops import DType
from lumc.kernel.term import binary, guard, load, reduce
from lumc.search.phases import guards_of
from lumc.search.translate import guarded


def test_guards_of_a_product_are_those_of_its_factors() -> None:
    a = guard(axis("i"), 0, 3, load("b0", DType.F32, "i"))
    b = guard(axis("j"), 1, 4, load("b1", DType.F32, "j"))
    body = reduce("sum", "j", binary("mul", a, b))
    assert set(guards_of(body)) == {a, b}
    assert not [*guards_of(binary("add", a, b))]


def test_buffers_may_have_the_names_of_operations() -> None:
    """Their kids are indices, not operands."""
    for name in ("sum", "mul"):
        read = load(name, DType.F32, "i")
        assert not [*guards_of(read)]
        assert guarded(axis("i"), 4, read) == guard(axis("i"), 0, 4, read)


def test_guards_of_a_chain_of_squares_are_found_once_each() -> None:
    inner = body = guard(axis("i"), 0, 3, load("b0", DType.F32, "i"))
    for _ in range(100):
        body = binary("mul", body, body)
    assert {*guards_of(body)} == {inner} and len([*guards_of(body)]) <= 2
