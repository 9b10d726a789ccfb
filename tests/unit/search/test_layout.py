"""Which layouts of values are chosen, with prices made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lumc.frontend import Model
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.search import search
from lumc.search.layout import layouts, origin
from lumc.search.space import Region, Space
from searching import TARGET


def chain(n: int, channels: int = 16, sizes: Sequence[int] = (12,)) -> Graph:
    """Convolutions one after the other, each to 16 channels, the first from some; an entry of it
    for every size of the picture."""
    g, rng = Model(), np.random.default_rng(1)
    shapes = [(16, channels if i == 0 else 16, 3, 3) for i in range(n)]
    ws = [rng.normal(size=shape).astype("f4") for shape in shapes]
    for size in sizes:
        g.entry(f"of{size}")
        x = g.input("x", (1, channels, size, size))
        for i, w in enumerate(ws):
            x = x.conv2d(g.constant(w, f"w{i}_{size}"), padding=1).relu()
        g.output("y", x)
    return g.graph()


def moved(region: Region) -> int:
    """How many of the values of a region are laid out in another way."""
    return region.key.count("-")


def with_layouts(
    space: Space, price: Callable[[Region], float], vectors: Callable[[Region], int | None]
) -> Space:
    """In the cheapest layouts."""
    return next(layouts(space, price, vectors))


def laid_out(space: Space) -> list[int]:
    return [i.region.count("-") for i in space.instances]


def space(n: int = 4) -> Space:
    return search(chain(n), TARGET, inside=True)


def test_whole_chains_are_laid_out_where_single_values_would_not_pay() -> None:
    """In the middle both values together are cheaper; one alone is dearer than none."""

    def price(region: Region) -> float:
        return {0: 10.0, 1: 11.0, 2: 5.0}[moved(region)]

    found = with_layouts(space(), price, lambda region: None)
    assert laid_out(found) == [1, 2, 2, 1]
    assert all(origin(i.region) for i in found.instances)
    assert sum(r.count for r in found.regions) == 4


def test_every_entry_has_its_own_layouts() -> None:
    """What is gained in the large one is many times what would be lost in the small one."""

    def price(region: Region) -> float:
        large, n = 24 in region.frame.output.shape, moved(region)
        return {0: 100.0, 1: 90.0, 2: 50.0}[n] if large else {0: 10.0, 1: 12.0, 2: 10.0}[n]

    both = search(chain(4, sizes=(12, 24)), TARGET, inside=True)
    found = with_layouts(both, price, lambda region: None)
    assert laid_out(found) == [0, 0, 0, 0, 1, 2, 2, 1]


def test_chains_stay_where_it_is_dearer() -> None:
    found = with_layouts(space(), lambda region: 1.0 + moved(region), lambda region: None)
    assert laid_out(found) == [0, 0, 0, 0]


def test_layouts_that_are_nearly_as_cheap_come_next() -> None:
    """Prices err by more than a few percent: what is measured decides between them."""

    def found(both: float) -> list[list[int]]:
        def price(region: Region) -> float:
            return {0: 10.0, 1: 10.5, 2: both}[moved(region)]

        return [laid_out(s) for s in layouts(space(), price, lambda region: None)]

    plain, chain = [0, 0, 0, 0], [1, 2, 2, 1]
    assert found(9.9) == [plain, chain] and found(9.0) == [chain, plain]
    assert found(12.0) == [plain] and found(5.0) == [chain]


@pytest.mark.parametrize(("both", "chosen"), [(9.0, [0, 1, 2, 1]), (9.5, [0, 0, 0, 0])])
def test_a_chain_may_pay_only_without_some_of_its_values(both: float, chosen: list[int]) -> None:
    """All of it costs 42 or more, none 40, without the first value 39; 39.5 is too near: values
    that are turned between others cost more than their price."""

    def price(region: Region) -> float:
        first = any(i.shape == (8, 12, 12) for i in region.frame.inputs)
        return 10.0 + 4 * moved(region) if first else {0: 10.0, 1: 10.0, 2: both}[moved(region)]

    narrow = search(chain(4, 8), TARGET, inside=True)
    assert laid_out(with_layouts(narrow, price, lambda region: None)) == chosen


def test_a_value_that_hurts_is_laid_out_as_it_was() -> None:
    """The first convolution is dear when its result is laid out; all others are cheaper so."""

    def price(region: Region) -> float:
        first = region.frame.inputs[0].shape == (8, 12, 12) and moved(region) == 1
        return 60.0 if first and region.key.endswith("out.0") else 20.0 - 9 * moved(region)

    narrow = search(chain(6, 8), TARGET, inside=True)
    found = laid_out(with_layouts(narrow, price, lambda region: None))
    assert found[0] == 0 and found[2:4] == [2, 2]


def test_one_value_is_laid_out_as_its_maker_makes_vectors() -> None:
    def price(region: Region) -> float:
        return 5.0 if region.key.endswith("out.0") else 10.0

    found = with_layouts(space(2), price, lambda region: 0)
    assert laid_out(found) == [1, 1]


PRODUCTS = """lumc graph 1
{dim}input x f32[{s}, 400]
input v f32[400, 240]
input w f32[{s}, 320]
t f32[i:{s}, j:240, k:400] = mul x[i, k], v[k, j]
y f32[i:{s}, j:240] = sum k of t[i, j, k]
u f32[j:240, l:320, i:{s}] = mul y[i, j], w[i, l]
z f32[j:240, l:320] = sum i of u[j, l, i]
output z = z
"""


@pytest.mark.parametrize(("dim", "s", "chosen"), [("", "64", 1), ("dim s in 1..64\n", "s", 0)])
@pytest.mark.parametrize("vectors", [None, 0], ids=["as it is read", "as it is made"])
def test_a_dim_of_which_runs_may_have_less_is_never_the_last_one(
    vectors: int | None, dim: str, s: str, chosen: int
) -> None:
    """Prices are those of the greatest length, where vectors along it are full."""
    found = search(parse_graph(PRODUCTS.format(dim=dim, s=s)), TARGET, inside=True)
    laid = with_layouts(found, lambda region: 10.0 - 9 * moved(region), lambda _: vectors)
    assert laid_out(laid) == [chosen] * 2
