"""What is stored where several regions would make a value: as little as what may be done again."""

from __future__ import annotations

import numpy as np
import pytest

import lumc.search.regions as regions
import mutating
from lumc import train
from lumc.frontend import Model
from lumc.grad import gradients
from lumc.graph.graph import Entry, Node
from lumc.graph.ops import Op
from lumc.limits import LEVELS
from lumc.search.regions import COPIED


@pytest.fixture(scope="module")
def step() -> Entry:
    """A step of two layers with gelu, whose way back reads what the way there makes."""
    m = Model()
    x, y = m.input("x", (96, 16)), m.input("y", (96,), "i64", values=(0, 9))
    shapes = {"w0": (16, 40), "w1": (40, 40), "w2": (40, 10)}
    w = [m.state(n, s, value=np.ones(s)) for n, s in shapes.items()]
    h = ((x @ w[0]).gelu("tanh") @ w[1]).gelu("tanh")
    loss = (h @ w[2]).cross_entropy(y)
    train.adamw(w, gradients(loss, w), 1e-3)
    m.output("loss", loss)
    return m.graph().entries[0]


def spent(node: Node, stored: set[Node]) -> int:
    """Operations per element from what is stored; a product and its sum are never done again."""
    below, todo = set[Node](), [node]
    while todo:
        n = todo.pop()
        if n in below or n in stored or not isinstance(n.op, Op):
            continue
        below.add(n)
        todo += [r.source for r in n.reads]
    return sum(2 * n.points if n.reduced else n.size for n in below) // max(node.size, 1)


def again(entry: Entry, level: int) -> dict[Node, int]:
    """What several regions make, by the operations that it takes each of them."""
    stored = set(regions.partition(entry, again=level))
    readers: dict[Node, set[Node]] = {}
    for n in entry.nodes:
        for r in n.reads:
            readers.setdefault(r.source, set()).add(n)
    above: dict[Node, set[Node]] = {}
    for n in reversed(entry.nodes):
        above[n] = {t for r in readers.get(n, ()) for t in ({r} if r in stored else above[r])}
    made = (n for n in entry.nodes if isinstance(n.op, Op) and n not in stored)
    several = (n for n in made if len(above[n]) > 1 and len(readers[n]) > 1)
    return {n: spent(n, stored) for n in several}


@pytest.mark.parametrize("level", LEVELS)
def test_regions_do_again_what_they_may(level: int, step: Entry) -> None:
    assert all(n <= level for n in again(step, level).values())


def test_what_is_above_a_stored_value_costs_little(step: Entry) -> None:
    """The square in a gelu is made of its argument by all that read it, and the quotient of its
    power. Each layer stores its product, the power and what the next product reads; the way back
    stores one more between its products."""
    large = [n.op.value for n in regions.partition(step) if n.shape == (96, 40)]
    assert large == ["sum", "exp2", "mul"] * 2 + ["add"]
    assert max(again(step, LEVELS[0]).values()) > 1


def test_operands_of_products_are_there_if_they_would_be_copied() -> None:
    m = Model()
    twice = m.input("x", (24, 24)) * 2.0
    for i in range(2):
        m.output(f"y{i}", twice @ m.input(f"v{i}", (24, 24)))
    (entry,) = m.graph().entries
    scaled = [n for n in regions.partition(entry) if n.op is Op.MUL]
    assert len(scaled) == 1 and not [
        n for n in regions.partition(entry, again=COPIED + 8) if n.op is Op.MUL
    ]


MUTANTS = [
    ("spent > again)", "spent > 2 * again)"),
    ("several, sweep.cuts = _several(sweep), {*asked}", "several, sweep.cuts = set(), {*asked}"),
    ("+ COPIED * _is_factor(sweep, node)", ""),
    ("above = {r if r in sweep.cuts else reach[r] for r in readers}", "above = {*readers}"),
    ("reach[node] = above.pop() if len(above) == 1 else None", "reach[node] = above.pop()"),
]


@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_mutants_die(old: str, new: str, step: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(regions, old, new, monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        test_what_is_above_a_stored_value_costs_little(step)
        test_operands_of_products_are_there_if_they_would_be_copied()
        for level in LEVELS:
            test_regions_do_again_what_they_may(level, step)
