"""Plans of meshes: what a step is made of, where, and what is expected of it."""

from __future__ import annotations

import itertools
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lumc.frontend import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import axis
from lumc.graph.graph import Graph, Node, Read
from lumc.graph.ops import DType, Op
from lumc.shard.devices import DEVICES
from lumc.shard.pipeline import turns
from lumc.shard.placing import numbered, placed
from lumc.shard.plan import Choice, choices, tensors
from lumc.shard.work import BACKWARD, FORWARD, Work, rows_of, work
from planned import TABLE, Published, expected, gpt
from sharded_models import training
from shorter import shorter

A100 = DEVICES["A100"]
D, HEADS, S, VOCAB, BATCH = 256, 4, 128, 512, 96


@cache
def small() -> Graph:
    return gpt(2, D, HEADS, S, VOCAB, BATCH)


@cache
def halves(tp: int = 1) -> Work:
    """What a rank of so many does of the small one, in mixed precision."""
    return work(rows_of(small()), tp, A100, 1e-9, halves=True)


def weights(of: Work) -> dict[str, int]:
    return {name: i for i, name in enumerate(of.names)}


# ---- rows, and what is at which weight


def test_the_rows_of_a_batch_are_found_and_products_are_those_of_the_formula() -> None:
    """Narayanan and others, 2021, without the factor for what is done again: 24 s d^2 a layer and
    row for the weights, 4 s^2 d for the attention, 2 s d V for the head, and twice that back."""
    made = halves()
    assert rows_of(small()).number == made.rows == BATCH
    assert made.flops == 3 * (2 * (24 * S * D**2 + 4 * S**2 * D) + 2 * S * D * VOCAB)
    forward = 2 * made.points[made.way == FORWARD].sum()
    assert forward == made.flops / 3


def test_weights_are_in_order_and_have_their_own_sums_and_moments() -> None:
    made = work(rows_of(small()), 1, A100, 1e-9, halves=False)
    at = weights(made)
    assert [n for n in made.names if n.startswith("h0.w")] == ["h0.wq", "h0.wk", "h0.wv", "h0.wo"]
    assert at["embed"] == 0 and at["head"] == len(at) - 1 and at["h0.down"] < at["h1.g1"]
    for name, elements in (("h0.wq", D * D), ("h1.up", 4 * D * D), ("h1.down", 4 * D * D)):
        i = at[name]
        assert made.held[i] == made.sums[i] == 4 * elements and made.only[i] == 2 * 4 * elements
    mixed = halves()
    assert mixed.held[at["h0.wq"]] == 6 * D * D and mixed.sums[at["h0.wq"]] == 4 * D * D


def test_between_layers_goes_what_layers_hand_on() -> None:
    made = halves()
    at = weights(made)
    stream = 2 * S * D  # bytes of a row
    layer = at["h1.g1"]
    # the hidden values, before and after the first half of the layer is added
    assert stream <= made.passes[FORWARD, layer] <= 2 * stream
    assert stream <= made.passes[BACKWARD, layer] <= 2 * stream
    assert made.passes[:, 0].sum() == made.passes[:, -1].sum() == 0
    assert made.kept[at["h0.down"]] > 0 and made.kept.sum() > 12 * stream


def test_tensor_ranks_have_their_parts() -> None:
    one, four = halves(), halves(4)
    assert one.waits.sum() == one.sends.sum() == 0 and four.waits.sum() > 0
    assert four.flops == one.flops
    assert one.points.sum() / 4 <= four.points.sum() <= one.points.sum() / 3
    at = weights(one)
    for name in ("h0.wq", "h1.up", "h1.down", "head"):
        assert four.held[at[name]] == one.held[at[name]] / 4


def test_without_a_batch_or_a_way_back_all_goes_forward() -> None:
    g = Model()
    x, w = g.input("x", (1, 64)), g.state("w", (64, 64))
    g.output("y", x @ w)
    made = work(rows_of(g.graph()), 1, A100, 0.0, halves=False)
    assert made.rows == 1 and made.flops == 2 * 64 * 64
    assert made.kept.sum() == made.sums.sum() == 0 and (made.way == FORWARD).all()
    assert made.fixed.sum() == 4 * 64 * 64 + 4 * 64
    (best, *_) = choices([made], A100, 1)
    assert best.batches == 1 and not best.again and best.slots[BACKWARD] == (0.0,)


def test_a_step_that_gives_nothing_out_has_a_way_back_too() -> None:
    made = work(rows_of(training(64, (32, 48, 16))), 1, A100, 0.0, halves=False)
    at = weights(made)
    assert made.rows == 64 and (made.way[made.at == at["w0"]] == [FORWARD, BACKWARD]).all()
    assert made.sums[at["w0"]] == 4 * 32 * 48


def test_a_norm_of_all_gradients_moves_none_of_them() -> None:
    from lumc.grad import gradients
    from lumc.train import adam, clip_norm

    g, params = Model(), list[Tensor]()
    x = g.input("x", (64, 32))
    for i in range(3):
        params.append(g.state(f"w{i}", (32, 32)))
        x = (x @ params[-1]).relu()
    loss = (x * x).sum()
    g.output("loss", loss)
    adam(params, clip_norm(gradients(loss, params), 1.0), g.input("lr", ()))
    made = work(rows_of(g.graph()), 1, A100, 0.0, halves=False)
    assert made.names == ("w0", "w1", "w2")
    assert (made.sums - 4 * 32 * 32).tolist() == [0, 0, 4]  # the loss is a sum, too


# ---- where values are


def test_values_are_where_least_passes_weights() -> None:
    """All assignments of small graphs at random."""
    rng = random.Random(0)
    for _ in range(40):
        nodes, leaves = chain(rng)
        at = numbered(nodes, leaves)
        found = placed(nodes, at, {})
        fixed = {n: at[r.source] for n in nodes for r in n.reads if r.source in at}
        readers = {n: [m for m in nodes if any(r.source is n for r in m.reads)] for n in found}

        def passed(where: dict[Node, int], readers: dict[Node, list[Node]] = readers) -> float:
            ends = {n: [where[n], *(where[m] for m in r)] for n, r in readers.items()}
            return sum(n.size * (max(e) - min(e)) for n, e in ends.items())

        left = [n for n in found if n not in fixed]
        every = itertools.product(range(max(at.values()) + 1), repeat=len(left))
        best = min(passed(fixed | dict(zip(left, p, strict=True))) for p in every)
        assert passed(found) == best
        assert all(found[n] == i for n, i in fixed.items())


def chain(rng: random.Random) -> tuple[list[Node], list[Node]]:
    """Nodes that read nodes before them, some of which read one of four weights."""
    leaves = [Node(f"w{i}", "weight", DType.F32, (), ()) for i in range(4)]
    nodes = list[Node]()
    order = sorted(rng.sample(range(9), 4))
    for i in range(9):
        reads = [Read(n, ()) for n in rng.sample(nodes, min(len(nodes), rng.randint(0, 2)))]
        if i in order:
            reads.append(Read(leaves[order.index(i)], ()))
        size = rng.randint(1, 9)
        nodes.append(Node(f"t{i}", Op.ADD, DType.F32, ("i",), (size,), tuple(reads)))
    return nodes, leaves


def test_weights_that_are_read_together_have_one_number() -> None:
    leaves = [Node(f"w{i}", "weight", DType.F32, (), ()) for i in range(3)]

    def reads(*which: int) -> Node:
        operands = tuple(Read(leaves[i], (axis("i"),)) for i in which)
        return Node("t", Op.ADD, DType.F32, ("i",), (4,), operands)

    found = numbered([reads(2), reads(0, 1), reads(1, 2)], leaves)
    assert set(found.values()) == {0}
    assert numbered([reads(2), reads(0), reads(1)], leaves) == {
        leaves[2]: 0,
        leaves[0]: 1,
        leaves[1]: 2,
    }


# ---- meshes


def every(devices: int) -> list[Choice]:
    works = [halves(tp) for tp in tensors(A100, devices)]
    return list(choices(works, A100, devices))


@pytest.mark.parametrize("devices", shorter([4, 8]))
def test_meshes_divide_devices_and_rows(devices: int) -> None:
    found, every_one = every(devices), {n for n in (1, 2, 4, 8) if n <= devices}
    assert {c.tp for c in found} == {c.pp for c in found} == every_one
    assert {c.again for c in found} == {False, True}
    for c in found:
        assert c.tp * c.pp * c.dp == devices and c.dp * c.rows * c.batches == BATCH
        assert len(c.cuts) == c.pp + 1 and c.cuts[0] == 0
        parts = c.waiting, c.exchange, c.reduce
        assert min(parts) >= 0 and sum(parts) <= c.seconds * (1 + 1e-9)
        assert (c.dp == 1) == (c.reduce == 0) and (c.tp == 1) == (c.exchange == 0)


def test_what_is_done_again_is_not_kept() -> None:
    found = {(c.tp, c.pp, c.rows, c.again): c for c in every(4)}
    for (tp, pp, rows, again), c in found.items():
        if again and (tp, pp, rows, False) in found:
            other = found[tp, pp, rows, False]
            assert c.nbytes < other.nbytes and c.seconds > other.seconds


@pytest.mark.deep
def test_a_simulated_pipeline_takes_what_is_expected() -> None:
    for c in every(4):
        if c.pp > 1 and c.batches >= c.pp:
            found = max(t.end for t in turns(*c.slots, c.batches))
            both = np.sum(c.slots, axis=0)
            assert found == pytest.approx(both.sum() + (c.batches - 1) * both.max(), rel=0.1)


# ---- beside published figures


PAGE = Path(__file__).parents[3] / "docs" / "mesh.md"
MOST = {1.7}  # the others: make test-deep


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(r, id=f"{r.billions}B", marks=() if r.billions in MOST else pytest.mark.deep)
        for r in TABLE
    ],
)
def test_published_trainings_are_expected_as_the_page_says(row: Published) -> None:
    found = expected(row)
    assert abs(found / row.reached - 1) < 0.1
    dp = row.devices // (row.tp * row.pp)
    line = f"| {row.billions:,} | {row.tp} | {row.pp} | {dp} | {row.devices:,} | {row.reached} |"
    assert f"{line} {found:.0f} | {100 * (found / row.reached - 1):+.0f} % |" in PAGE.read_text()


def test_devices_are_those_of_the_page() -> None:
    page = PAGE.read_text()
    for name, d in DEVICES.items():
        speeds = f"{d.flops / 1e12:.0f} TFLOP/s | {d.memory / 1e9:.0f} GB, {d.stream / 1e12:g} TB/s"
        links = f"{d.inside / 1e9:g}, {d.outside / 1e9:g} GB/s"
        assert f"| {name} | {speeds} | {d.node} | {links} | {d.source} |" in page
