"""A term in an e-graph."""

from __future__ import annotations

import random
from functools import partial, reduce

from lumc.graph.expr import Expr, axis, make
from lumc.graph.ops import DType
from lumc.kernel.term import binary, const
from lumc.search.saturate import Limits, saturate
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
