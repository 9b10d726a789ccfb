"""Every node of every class of saturated sample models has the value of its class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumc.graph.bind import bind_dims
from lumc.graph.expr import Expr
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel import term
from lumc.oracle.term import evaluate_term
from lumc.search.egraph import EGraph, ENode, build
from lumc.search.explore import find_regions
from lumc.search.saturate import Limits, rule_files, saturate
from lumc.search.translate import Body
from searching import random_values
from zoo import ATTENTIONS, MODELS, attention, model

SAMPLES = sorted((Path(__file__).parents[2] / "graphs").glob("*.lg"))
LIMITS = Limits(nodes=4000)
Array = np.ndarray[Any, Any]


class Classes:
    """The values of the classes of an e-graph, by one node of each."""

    def __init__(self, graph: EGraph, body: Body) -> None:
        self.graph = graph
        self.arrays: dict[str, Array] = {
            b.name: random_values(s).reshape(b.shape)
            for b, s in zip(body.inputs, body.sources, strict=True)
        }
        self.values: dict[int, Array] = {}
        self.loads: dict[int, Expr] = {}
        todo = dict(graph.classes)
        while todo:
            ready = {c: n for c, ns in todo.items() for n in ns[::-1] if self.known(n)}
            assert ready, "a class has no node that can be evaluated"
            for c, node in ready.items():
                e = self.term(node)
                axes = tuple(sorted(graph.free[c]))
                self.values[c] = self.over(e, axes)
                self.arrays[f"c{c}"] = self.values[c]
                self.loads[c] = term.load(f"c{c}", term.dtype(e), *axes)
                del todo[c]

    def known(self, node: ENode) -> bool:
        return all(k in self.values for k in node.below)

    def term(self, node: ENode) -> Expr:
        index = tuple(i if isinstance(i, Expr) else term.dyn(self.loads[i]) for i in node.index)
        return build(node, index, [self.loads[k] for k in node.kids], node.axis)

    def over(self, e: Expr, axes: Sequence[str]) -> Array:
        value, own = evaluate_term(e, self.graph.extent, self.arrays)
        assert set(own) <= set(axes)
        shape = [self.graph.extent[a] if a in own else 1 for a in axes]
        return np.broadcast_to(value.reshape(shape), [self.graph.extent[a] for a in axes])


def wrong_nodes(graph: Graph, rules: Sequence[str] = ()) -> tuple[int, int]:
    """How many nodes were evaluated and how many differ from their class."""
    done = wrong = 0
    for found in find_regions(graph.entries[0]):
        egraph, _ = saturate(found.body.value, found.body.extent, LIMITS, rules)
        classes = Classes(egraph, found.body)
        for c, nodes in egraph.classes.items():
            axes = tuple(sorted(egraph.free[c]))
            for node in nodes:
                got = classes.over(classes.term(node), axes)
                # beside a guard a load may lie outside its buffer: NaN, whatever the class is
                either = (
                    np.isnan(got) | np.isnan(classes.values[c]) if got.dtype.kind == "f" else False
                )
                same = np.isclose(got, classes.values[c], rtol=1e-9, atol=1e-9)
                done, wrong = done + 1, wrong + int(not (same | either).all())
    return done, wrong


@pytest.mark.parametrize("name", MODELS)
def test_nodes_of_models(name: str) -> None:
    done, wrong = wrong_nodes(model(name))
    assert done >= 4
    assert wrong == 0


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_nodes_of_samples(path: Path) -> None:
    graph = parse_graph(path.read_text(), path.name)
    done, wrong = wrong_nodes(bind_dims(graph, dict.fromkeys(graph.dims, 3)))
    assert done >= 4
    assert wrong == 0


@pytest.mark.parametrize("name", ["scaled", "biased", "with sink", "causal", "soft capped"])
def test_nodes_of_attention(name: str) -> None:
    done, wrong = wrong_nodes(attention(ATTENTIONS[name]))
    assert done > 30
    assert wrong == 0


def test_an_unsound_rule_is_found() -> None:
    loose = '(rewrite (Red "sum" k (Bin "mul" a b)) (Bin "mul" a (Red "sum" k b)) :ruleset laws)'
    assert wrong_nodes(model("gated"), [*rule_files().values(), loose])[1] > 0
