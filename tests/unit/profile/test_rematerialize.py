"""Graphs that hand on less: the same values to the last bit, within the bound, for little work."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mutating
from lumc import train
from lumc.errors import Exit, LumcError
from lumc.frontend import Model
from lumc.grad import gradients
from lumc.graph.again import repeated
from lumc.graph.graph import Graph
from lumc.graph.ops import Op
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.kernel.machines import resolve_target
from lumc.limits import AGAIN
from lumc.oracle.graph import evaluate
from lumc.profile import rematerialize
from lumc.profile.choose import estimate
from lumc.profile.memory import between, needs_of
from lumc.profile.rematerialize import Lean, can_copy, made_again
from lumc.search import search, siblings
from lumc.search.saturate import Limits
from lumc.search.siblings import families

TARGET = resolve_target("cpu:x86-64-v3")
GRAPHS = Path(__file__).parents[3] / "graphs"
Arrays = Mapping[str, np.ndarray]
OLD = "steps_of(entry, found)"
PARTS = (0.6, 0.85)  # of what is between regions: bounds
FEW = Limits(iterations=3, nodes=500)  # where only regions are looked at


def random_step(seed: int) -> tuple[Graph, Arrays, Arrays]:
    """A network of layers at random, with residuals, its gradients and AdamW; inputs and states in
    f64."""
    rng, m = np.random.default_rng(seed), Model()
    rows, width = int(rng.integers(8, 40)), int(rng.integers(4, 12))
    x, y = m.input("x", (rows, width)), m.input("y", (rows, width))
    inputs = {n: rng.standard_normal((rows, width)) for n in "xy"}
    states = dict[str, np.ndarray]()
    w, h, before = [], x, x
    for i in range(int(rng.integers(2, 5))):
        states[f"w{i}"] = rng.standard_normal((width, width)) * width**-0.5
        w.append(m.state(f"w{i}", (width, width)))
        kinds = (
            lambda h: h.gelu("tanh"),
            lambda h: h.relu(),
            lambda h: h.layer_norm(),
            lambda h: h.softmax(),
            lambda h: h.tanh() * before,  # noqa: B023
        )
        h, before = kinds[rng.integers(len(kinds))](h @ w[-1]), h
        h = h + before if rng.random() < 0.5 else h
    loss = ((h - y) * (h - y)).mean()
    slopes = gradients(loss, w)
    for i, slope in enumerate(slopes):
        m.output(f"slope{i}", slope)
    if seed % 2:
        train.sgd(w, slopes, 0.1)
    m.output("loss", loss)
    return m.graph(), inputs, states


def leanest(graph: Graph, limit: int) -> Lean:
    """Within the limit, or within the least that is said if that is more."""
    try:
        found = rematerialize.lean(graph, AGAIN, limit, TARGET)
        assert between(found.graph, found.level) == found.nbytes <= limit
        return found
    except LumcError as e:
        assert (e.code, e.exit) == ("E0419", Exit.BUDGET)
        (least,) = re.findall(r"take ([\d,]+) bytes at least", e.what)
        assert limit < int(least.replace(",", ""))
        found = rematerialize.lean(graph, AGAIN, int(least.replace(",", "")), TARGET)
        assert between(found.graph, found.level) <= int(least.replace(",", ""))
        return found


def agrees(seed: int, parts: Sequence[float] = PARTS) -> int:
    """The nodes that were made again, in bounds of so many sizes."""
    graph, inputs, states = random_step(seed)
    want, count, most = evaluate(graph, "main", inputs, {}, states), 0, between(graph, AGAIN)
    for part in parts:
        found = leanest(graph, int(most * part))
        assert found.nbytes <= found.before == most
        verify_graph(found.graph)
        again = parse_graph(print_graph(found.graph))
        assert print_graph(again) == print_graph(found.graph)
        got = evaluate(found.graph, "main", inputs, {}, states)
        for ours, theirs in zip(got, want, strict=True):
            assert ours.keys() == theirs.keys()
            for n in theirs:  # a product with one reader more or less is summed in another order
                np.testing.assert_allclose(ours[n], theirs[n], rtol=1e-12, atol=1e-14)
        names, share = made_again(found.graph)
        assert {*found.again} >= {*names} and 0 <= share < 1 and found.more >= 0
        count += len(found.again)
    return count


@pytest.mark.parametrize(("seed", "part"), [(2, 0.6), (0, 0.85)])
def test_random_graphs(seed: int, part: float) -> None:
    assert agrees(seed, [part]) or seed  # some of the first are made again, but by mutants


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_many_random_graphs() -> None:
    assert sum(agrees(seed) > 0 for seed in range(106)) > 50


def graph_of(file: str, name: str) -> Graph:
    """A step of training of the samples, without entries that use what was learned."""
    spec = importlib.util.spec_from_file_location(name, GRAPHS / file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    graph = getattr(module, name)().graph()
    return replace(graph, entries=graph.entries[:1])


@pytest.mark.deep
@pytest.mark.parametrize(
    ("file", "name", "part", "most"),
    [("gpt.py", "gpt", 0.5, 0.3), ("digits.py", "mlp", 0.65, 0.5), ("digits.py", "cnn", 0.6, 0.3)],
)
def test_samples_in_less_memory(file: str, name: str, part: float, most: float) -> None:
    """Bytes and operations; a convolution and a product leave less to choose from."""
    graph = graph_of(file, name)
    limit = int(between(graph, AGAIN) * part)
    found = rematerialize.lean(graph, AGAIN, limit, TARGET)
    assert found.nbytes <= limit and 0 < found.more <= most


def attention() -> tuple[Graph, Arrays]:
    """Its gradients, as they follow from products and a softmax; inputs in f64."""
    rng, m = np.random.default_rng(0), Model()
    q, k, v, dy = (m.input(n, (2, 64, 16)) for n in ("q", "k", "v", "dy"))
    y = (q @ k.transpose()).softmax() @ v
    for name, slope in zip("qkv", gradients((y * dy).sum(), [q, k, v]), strict=True):
        m.output(f"d{name}", slope)
    m.output("y", y)
    return m.graph(), {n: rng.standard_normal((2, 64, 16)) for n in ("q", "k", "v", "dy")}


@pytest.mark.parametrize("mutant", [False, True])
def test_what_rows_are_reduced_to_is_kept(mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are made again for each of their readers, in no more memory than a few rows take;
    their maxima are not. The mutant makes these again too."""
    if mutant:
        mutating.replace(rematerialize, "steps_of(entry, found, fine=True)", OLD, monkeypatch)
    graph, inputs = attention()
    scores = 2 * 64 * 64 * 4
    assert between(graph, AGAIN) >= 2 * scores
    found = rematerialize.lean(graph, AGAIN, scores // 4, TARGET)
    (entry,) = found.graph.entries
    maxima = [n for n in entry.nodes if n.op is Op.MAX]
    assert (len(maxima) > 1) == mutant
    got, want = (evaluate(g, "main", inputs, {}, {})[0] for g in (found.graph, graph))
    for n in want:
        np.testing.assert_allclose(got[n], want[n], rtol=1e-12, atol=1e-14)


def test_where_all_fits_nothing_changes() -> None:
    graph, *_ = random_step(1)
    most = between(graph, AGAIN)
    assert rematerialize.lean(graph, AGAIN, most, TARGET) == Lean(graph, AGAIN, most, most)
    less = rematerialize.lean(graph, AGAIN, most - 1, TARGET)
    assert less.nbytes < most == less.before and less.graph is not graph


@pytest.mark.parametrize("mutant", [False, True])
def test_what_no_choice_can_meet(mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant takes what is a value too large."""
    if mutant:
        old, new = "if all(nbytes <= limit for", "if all(nbytes <= limit + 4096 for"
        mutating.replace(rematerialize, old, new, monkeypatch)
    graph, *_ = random_step(1)
    most = between(graph, AGAIN)
    monkeypatch.setitem(rematerialize.lean.__globals__, "LEVELS", (AGAIN,))
    monkeypatch.setitem(rematerialize.lean.__globals__, "can_copy", lambda _: False)
    if mutant:
        assert rematerialize.lean(graph, AGAIN, most - 1, TARGET).nbytes > most - 1
        return
    with pytest.raises(LumcError) as e:
        rematerialize.lean(graph, AGAIN, most - 1, TARGET)
    assert (e.value.code, e.value.exit) == ("E0419", Exit.BUDGET)
    assert f"{most:,} bytes at least" in e.value.what


def test_entries_that_read_states_after_an_update_stay() -> None:
    m = Model()
    x, s = m.input("x", (64,)), m.state("s", (64,))
    m.output("y", (m.updated(s, x + s) + x).tanh())
    (entry,) = m.graph().entries
    assert can_copy(random_step(1)[0].entries[0]) and not can_copy(entry)


@pytest.mark.deep
def test_the_plan_takes_what_was_said() -> None:
    """Where regions need nothing for themselves, exactly."""
    graph, *_ = random_step(5)
    found = leanest(graph, int(between(graph, AGAIN) * 0.8))
    space = search(found.graph, TARGET, inside=True, again=found.level)
    plan = estimate(space, most=0)
    if not any(r.local for r in plan.regions.values()):
        assert needs_of(plan).arena == found.nbytes


def test_what_is_made_again_is_not_made_early() -> None:
    """As it would be beside the value itself: a joint kernel would keep both."""
    graph, *_ = random_step(1)
    found = leanest(graph, int(between(graph, AGAIN) * 0.6))
    target = resolve_target("cuda:sm_90")
    space = search(found.graph, target, FEW, inside=True, again=found.level)
    copies = {n.name for e in found.graph.entries for n in repeated(e)}
    for _, places in families(space):
        late = [at for at in places if space.instances[at].outputs[0] in copies]
        assert late in ([], [places[0]])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("new[n] = node", "pass"),
        ("(name, first.get(n, n)) for", "(name, n) for"),
        ("if is_copy or key not in self.known:", "if key not in self.known:"),
        ("lambda s: new.get(s, s)", "lambda s: s"),
    ],
)
def test_mutants_die(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that read what they were made of before, or that are none: nothing is made again."""
    mutating.replace(rematerialize, old, new, monkeypatch)
    with pytest.raises(Exception):  # noqa: B017
        assert agrees(0, [0.85])


def test_same_twice() -> None:
    graph, *_ = random_step(2)
    limit = int(between(graph, AGAIN) * 0.8)
    twins = (replace(graph, entries=tuple(map(replace, graph.entries))) for _ in range(2))
    one, two = (leanest(twin, limit) for twin in twins)
    assert print_graph(one.graph) == print_graph(two.graph)


def test_siblings_are_those_of_before_where_nothing_is_made_again() -> None:
    graph, *_ = random_step(1)
    assert not [n for e in graph.entries for n in repeated(e)]
    assert siblings.repeated(graph.entries[0]) == {}
