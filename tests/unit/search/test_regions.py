"""What is stored of values that several regions make: no more than saves work, or bytes to read;
and of equal steps the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import lumc.search.regions as regions
import mutating
from lumc import train
from lumc.frontend import Model, Tensor
from lumc.grad import gradients
from lumc.graph.graph import Entry, Node
from lumc.graph.ops import Op
from lumc.limits import LEVELS
from lumc.profile.memory import room_between
from lumc.search.explore import find_regions

LATE = 1 << 14  # bytes that are much in these graphs
Layer = Callable[[Tensor], Tensor]


def trained(layer: Layer) -> Entry:
    """A step of two products after this layer, whose way back reads what the way there makes."""
    m = Model()
    x, y = m.input("x", (96, 16)), m.input("y", (96,), "i64", values=(0, 9))
    shapes = {"w0": (16, 40), "w1": (40, 40), "w2": (40, 10)}
    w = [m.state(n, s, value=np.ones(s)) for n, s in shapes.items()]
    loss = (layer(layer(x @ w[0]) @ w[1]) @ w[2]).cross_entropy(y)
    train.adamw(w, gradients(loss, w), 1e-3)
    m.output("loss", loss)
    return m.graph().entries[0]


@pytest.fixture(scope="module")
def step() -> Entry:
    return trained(lambda h: h.gelu("tanh"))


def readers_of(entry: Entry) -> dict[Node, set[Node]]:
    readers: dict[Node, set[Node]] = {}
    for n in entry.nodes:
        for r in n.reads:
            readers.setdefault(r.source, set()).add(n)
    return readers


def again(entry: Entry, level: int) -> dict[Node, int]:
    """What several regions make, by the operations per element that it takes each of them. Of a
    product that is summed the sum counts, twice."""
    stored, readers = set(regions.partition(entry, again=level)), readers_of(entry)

    def operations(n: Node) -> int:
        summed = n.op is Op.MUL and all(r.op is Op.SUM for r in readers[n])
        return 2 * n.points if n.reduced else 0 if summed else n.size

    def spent(node: Node) -> int:
        below, todo = set[Node](), [node]
        while todo:
            n = todo.pop()
            if n in below or n in stored or not isinstance(n.op, Op):
                continue
            below.add(n)
            todo += [r.source for r in n.reads]
        return sum(map(operations, below)) // node.size

    above: dict[Node, set[Node]] = {}
    for n in reversed(entry.nodes):
        above[n] = {t for r in readers.get(n, ()) for t in ({r} if r in stored else above[r])}
    made = (n for n in entry.nodes if isinstance(n.op, Op) and n not in stored)
    return {n: spent(n) for n in made if len(above[n]) > 1 and len(readers[n]) > 1}


@pytest.mark.parametrize("level", LEVELS)
def test_regions_do_again_what_they_may(level: int, step: Entry) -> None:
    assert all(n <= level for n in again(step, level).values())


def large(entry: Entry) -> list[str]:
    found = (n for n in regions.partition(entry) if n.shape == (96, 40))
    return [n.op.value for n in found if isinstance(n.op, Op)]


def test_what_is_above_a_stored_value_costs_little(step: Entry) -> None:
    """The square in a gelu is made of its argument by all that read it, and the quotient of its
    power. Each layer stores its product, the power and what the next product reads; the way back
    stores one more between its products."""
    assert large(step) == ["sum", "exp2", "mul"] * 2 + ["add"]
    assert max(again(step, LEVELS[0]).values()) > 1


def test_what_is_read_late_is_made_again(step: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back makes the powers in a gelu, and what the products read, from what the products
    gave: few operations, where a value comes from memory. What is read soon is stored as before."""
    before = room_between(step, find_regions(step))
    monkeypatch.setattr(regions, "LATE", LATE)
    assert large(step) == ["sum", "mul"] * 2 + ["add"]
    assert room_between(step, find_regions(step)) < 0.75 * before
    assert LEVELS[0] < max(again(step, LEVELS[0]).values()) <= regions.MORE


def test_operands_that_are_read_late_are_made_again_by_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def products(p: Tensor, q: Tensor) -> list[Tensor]:
        y = p.exp() * q.sum(1, keepdim=True)
        between = [y @ p.transpose(0, 1), p.sin(), q.sin(), (p * q).sin(), (p + q).sin()]
        return [p, q, *between, y.transpose(0, 1) @ q]

    assert stored(products) == ["mul 40"]
    monkeypatch.setattr(regions, "LATE", LATE)
    assert stored(products) == ["sum 1"]


def stored(made: Callable[[Tensor, Tensor], list[Tensor]], level: int = LEVELS[0]) -> list[str]:
    """Of values that are made of two products, what is stored, but for results."""
    m = Model()
    x = m.input("x", (96, 16))
    results = made(*(x @ m.input(n, (16, 40)) for n in "vw"))
    for i, y in enumerate(results):
        m.output(f"y{i}", y)
    (entry,) = m.graph().entries
    given = [n for _, n in entry.outputs]
    found = (n for n in regions.partition(entry, again=level) if n not in given)
    return [f"{n.op.value} {n.size // 96}" for n in found if isinstance(n.op, Op)]


def test_a_sum_over_all_of_an_axis_is_stored_in_place_of_what_it_scales() -> None:
    def scaled(p: Tensor, q: Tensor) -> list[Tensor]:
        y = p * (p * p * p).sum(1, keepdim=True)
        return [p.exp(), q, y.exp(), y.sin()]

    assert stored(scaled) == ["sum 40", "sum 1"]


def test_what_would_take_more_reads_is_stored() -> None:
    def added(p: Tensor, q: Tensor) -> list[Tensor]:
        y = p + q
        return [p.exp(), q.exp(), y.exp(), y.sin(), y.sqrt()]

    assert stored(added) == ["sum 40", "sum 40", "add 40"]
    assert stored(lambda p, q: added(p, q)[:-2]) == ["sum 40", "sum 40"]


def test_operands_of_products_are_there_if_they_would_be_copied() -> None:
    def products(p: Tensor, q: Tensor) -> list[Tensor]:
        return [p, p * 2.0 @ q.transpose(0, 1), (p * 2.0).transpose(0, 1) @ q]

    assert stored(products) == ["sum 40", "mul 40"]
    assert stored(products, regions.COPIED + 8) == ["sum 40"]


def iterated(steps: int = 9) -> Entry:
    m = Model()
    h, seen = m.input("h", (32,)), m.state("seen", (steps, 32))
    for t in range(steps):
        h = (h * h + 1.0) * 0.5
        m.update(seen, h.exp(), (t,))
    m.output("h", h)
    return m.graph().entries[0]


def test_of_equal_steps_the_same_is_stored() -> None:
    """Every other one would do: so many operations may be done again. But the first one does."""
    entry = iterated()
    stored = [n for n in regions.partition(entry) if n not in [u.value for u in entry.writes]]
    assert len(stored) == 8


def test_layers_with_sums_between_are_on_their_own() -> None:
    """What the first layer stores, as much is done for it, the second one need not."""

    def layers(p: Tensor, q: Tensor) -> list[Tensor]:
        first = (p * p * p + 1.0) * (p + 2.0)
        second = (q + first.sum(1, keepdim=True)) * (q + 2.0)
        more = [y for each in (first, second) for y in (each.exp(), each.sin())]
        return [p, q, second.sum(1), *more]

    assert stored(layers) == ["mul 40", "sum 1"]


def test_where_more_may_be_done_again_less_is_stored() -> None:
    entry = trained(lambda h: h.gelu("tanh").layer_norm())
    room = [room_between(entry, find_regions(entry, level)) for level in LEVELS]
    assert room == sorted(room, reverse=True)


MUTANTS = [
    ("asked - sweep.constant, again)", "sweep.cuts, again)"),
    ("own in earlier or not sources", "not sources"),
    ("() if any(n.reduced for n in cone.nodes) else cone.read", "cone.read"),
    (" or _is_summary(sweep, source, node, again):", ":"),
    ("- stored[i + 1] >= LATE", ">= LATE"),
    ("max(again, MORE) if node in sweep.late else again", "max(again, MORE)"),
    ("max(again, MORE) if node in sweep.late", "again if node in sweep.late"),
    ("n in sweep.late or not is_factor", "not is_factor"),
    ("for n in sweep.cones[each].nodes}", "for n in [each]}"),
    ("source.size < node.size,", "True,"),
    ("> (1 + len(above[node])) * _nbytes([node])", "> 1 << 60"),
    ("spent + COPIED * is_factor(sweep, node) > _limit", "spent > _limit"),
    ("spent <= most * node.size", "True"),
    ("if spent + COPIED", "if COPIED or COPIED"),
    ("cuts, _ = min(found, key=lambda each: each[1])", "cuts, _ = found[-1]"),
]


@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_mutants_die(old: str, new: str, step: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(regions, old, new, monkeypatch)
    with pytest.raises(AssertionError):
        test_what_is_above_a_stored_value_costs_little(step)
        test_a_sum_over_all_of_an_axis_is_stored_in_place_of_what_it_scales()
        test_what_would_take_more_reads_is_stored()
        test_operands_of_products_are_there_if_they_would_be_copied()
        test_of_equal_steps_the_same_is_stored()
        test_layers_with_sums_between_are_on_their_own()
        test_where_more_may_be_done_again_less_is_stored()
        with monkeypatch.context() as patched:
            test_what_is_read_late_is_made_again(step, patched)
            test_operands_that_are_read_late_are_made_again_by_their_products(patched)
        for level in LEVELS:
            test_regions_do_again_what_they_may(level, step)
