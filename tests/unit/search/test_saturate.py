"""A term in an e-graph."""

from __future__ import annotations

import random
from functools import partial, reduce

import pytest

from lumc.graph.expr import Expr, axis, make
from lumc.graph.ops import DType
from lumc.kernel.term import binary, const
from lumc.search.saturate import Limits, _idle, opened, saturate
from lumc.search.variants import extract, variants


def chain(rng: random.Random) -> Expr:
    """Remainders, whose operands no law exchanges; each of the last by one of a few values."""
    x = make("load", ("b0", "f32"), (axis("o8_0"),))
    few = [x, *(const(float(n), DType.F32) for n in range(1, 20))]
    return reduce(partial(binary, "mod"), rng.choices(few, k=200), binary("mod", *few[:2]))


def test_a_term_comes_out_as_it_went_in() -> None:
    """egglog adds a number to the names of values, one more whenever it reads them: the first $e191
    and the tenth $e19 were both $e1910."""
    term = chain(random.Random(32))  # it did not
    graph, _ = saturate(term, {"o8_0": 8}, Limits(iterations=0))
    (choice,) = variants(graph, 1)
    assert extract(graph, choice, {"o8_0": "o8_0"})[0] is term


def product(names: str) -> Expr:
    """A sum of products, which laws take apart."""
    a, b, c = (make("load", (n, "f32"), (axis(f"o8_{i}"),)) for i, n in enumerate(names))
    return binary("add", binary("mul", a, b), binary("mul", a, c))


def test_an_e_graph_holds_nothing_of_earlier_terms() -> None:
    """Rules are loaded once in a process; what is found is that of an e-graph of its own."""
    extent = {f"o8_{i}": 8 for i in range(3)}
    _idle().clear()
    alone = saturate(product("abc"), extent, Limits())
    assert alone[1].nodes > 8
    (kept,) = _idle()
    others = [saturate(chain(random.Random(n)), {"o8_0": 8}, Limits(nodes=900)) for n in range(3)]
    assert len({repr(o) for o in others}) == 3
    assert _idle() == [kept]
    for _ in range(3):
        assert saturate(product("abc"), extent, Limits()) == alone


def test_an_e_graph_whose_user_failed_is_not_used_again() -> None:
    saturate(product("abc"), {f"o8_{i}": 8 for i in range(3)}, Limits(iterations=0))
    with pytest.raises(TimeoutError), opened() as session:
        assert session not in _idle()
        raise TimeoutError
    assert session not in _idle()
