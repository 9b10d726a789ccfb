"""Whole graphs for Metal, from the text of the graph to the outputs of the runtime: the samples,
planned by estimate, against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fake_metal
from gpu import address_spaces
from gpu.msl_lint import lint
from lumc.codegen.generate import generate
from lumc.graph.bind import bind_dims
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.link.link import metal_text
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.runtime.metal import Bundle
from lumc.search.explore import search
from searching import error, random_inputs, random_values

GRAPHS = Path(__file__).parents[2] / "graphs"
SAMPLES: dict[str, dict[str, int]] = {
    "mlp": {},
    "causal_attention": {},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in fake_metal.environment().items():
        monkeypatch.setenv(key, value)
    graph = bind_dims(parse_graph((GRAPHS / f"{name}.lg").read_text()), SAMPLES[name])
    code = generate(estimate(search(graph, resolve_target("metal:apple7"))))
    text = metal_text(code)
    assert lint(text, "apple7") == []
    if address_spaces.clang():
        assert address_spaces.check(text) == []
    inputs = random_inputs(graph, graph.entries[0].name)
    want, _ = evaluate(graph, graph.entries[0].name, inputs, random_values, {})
    path = fake_metal.link(code, tmp_path / "m.lb", tmp_path)
    with Bundle.open(path, library=fake_metal.library()) as b:
        got = b.run(inputs)
    for output, values in want.items():
        assert error(got[output], np.asarray(values)) < 2e-6, output
