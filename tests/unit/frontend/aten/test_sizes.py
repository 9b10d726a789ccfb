"""Sizes as torch writes them, and arithmetic with them."""

from __future__ import annotations

import pytest

from lumc.disk.pt2 import Damaged
from lumc.frontend.api.model import Model
from lumc.frontend.aten import tables  # noqa: F401
from lumc.frontend.aten.lower import Lowering
from lumc.frontend.aten.program import Node, Program, Ref
from lumc.frontend.aten.sizes import Unknown, parse_size
from lumc.graph.dim import Extent
from lumc.graph.expr import dim

S = "Symbol('s27', positive=True, integer=True)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (S, "s27"),
        ("s0", "s0"),
        ("Integer(12)", "12"),
        ("-3", "-3"),
        (f"Mul(Integer(2), {S})", "2*s27"),
        (f"Add({S}, Integer(1))", "s27 + 1"),
        (f"Add(Mul(Integer(2), {S}), Integer(-1), Symbol('s3'))", "2*s27 + s3 - 1"),
    ],
)
def test_sizes(text: str, said: str) -> None:
    assert str(parse_size(text, dim)) == said


@pytest.mark.parametrize(
    "text", ["", "(", "Add(", "Add(1", "Add(1;2)", "Symbol('s'", "1 2", "'a'", ")"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(Damaged):
        parse_size(text, dim)


@pytest.mark.parametrize("text", ["Pow(s0, Integer(2))", "Mul(s0, s1)", "FloorDiv(s0, Integer(2))"])
def test_sizes_that_no_extent_is(text: str) -> None:
    with pytest.raises(Unknown):
        parse_size(text, dim)


def test_long_and_deep_ones_are_refused() -> None:
    for text in ("Add(" * 5000, "Add(1, " * 40 + "1" + ")" * 40, "s" * 20_000):
        with pytest.raises(Damaged):
            parse_size(text, dim)


def value(target: str, *arguments: Extent) -> Extent:
    """What an operator makes of sizes, of which s is from 2 to 64."""
    model = Model()
    model.dim("s", 2, 64)
    names = ("a", "b")
    node = Node("n", target, dict(zip(names, arguments, strict=False)), ["n"])
    found, _ = Lowering(model, Program("test", [node], {"y": Ref("n")})).run({})
    result: Extent = found["y"]
    return result


@pytest.mark.parametrize(
    ("target", "arguments", "said"),
    [
        ("_operator.add", (dim("s"), 3), "s + 3"),
        ("_operator.sub", (dim("s"), 1), "s - 1"),
        ("_operator.mul", (dim("s"), 4), "4*s"),
        ("_operator.mul", (5, 4), "20"),
        ("_operator.floordiv", (7, 2), "3"),
        ("_operator.mod", (7, 4), "3"),
        ("torch.sym_max", (dim("s"), 1), "s"),
        ("torch.sym_min", (dim("s"), 100), "s"),
        ("_operator.neg", (dim("s"),), "-s"),
        ("_operator.pow", (3, 2), "9"),
    ],
)
def test_arithmetic(target: str, arguments: tuple[Extent, ...], said: str) -> None:
    assert str(value(target, *arguments)) == said


def test_what_depends_on_a_size_says_which_dims_to_bind() -> None:
    from lumc.errors import Exit, LumcError

    undecided: list[tuple[str, tuple[Extent, ...]]] = [
        ("_operator.truediv", (dim("s"), 3)),
        ("_operator.pow", (2, dim("s"))),
        ("torch.sym_max", (dim("s"), 9)),
    ]
    for target, arguments in undecided:
        with pytest.raises(LumcError) as e:
            value(target, *arguments)
        assert e.value.exit is Exit.UNSUPPORTED and "--dim s=.." in e.value.fix
