"""Whatever the search offers may run: default and random schedules of the kernels of random graphs
are legal for every target, and no kernel leaves its buffers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drawing import random_schedule, sane_schedule
from lumc.codegen.tile.lower import lower
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.inside import escape
from lumc.kernel.key import canonical, kernel_key
from lumc.kernel.machines import CPUS
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.operands import pairs
from lumc.search import search
from lumc.search.cuts import Splitting
from lumc.search.saturate import Limits
from random_graphs import Profile, random_graph
from zoo import MODELS, model

GRAPHS = 100 if os.environ.get("LUMC_FUZZ") else 12
PROFILES = {
    "any": Profile(),
    "large": Profile(steps=(8, 25)),
    "moves": Profile(only=("moves", "joins", "reductions", "lookups", "selects"), steps=(2, 8)),
    "products": Profile(
        only=("matmuls", "contractions", "attention", "convolutions", "moves"), steps=(2, 6)
    ),
}
TARGETS = [replace(t, threads=n) for t in CPUS.values() for n in (1, 4)]
FOUND = {  # with values that products read once they are normalised, and pools of padded pools
    name: (Path(__file__).parents[2] / "fuzz" / "found" / f"{name}.lg").read_text()
    for name in ("rotary_attention", "pools_of_pools")
}
SMALL = Limits(nodes=600)


def kernels_of(graph: Graph, rng: random.Random) -> Iterator[Kernel]:
    """Of all variants, without cuts, with every one and with some."""
    seen = set()
    for region in search(graph, TARGETS[0], SMALL, inside=True).regions:
        for variant in region.variants if 0 not in region.frame.output.shape else ():
            every = tuple(range(len(variant.cuts)))
            some = tuple(sorted(rng.sample(every, rng.randint(0, len(every)))))
            split = Splitting(region.frame, variant.value, variant.cuts)
            for kernel in (k for cuts in {(), every, some} for k in split.kernels(cuts)):
                key = kernel_key(canonical(normalize(kernel))[0], TARGETS[0])
                if key not in seen:
                    seen.add(key)
                    yield kernel


def check(kernel: Kernel, target: Target, rng: random.Random) -> None:
    drawn = [draw(kernel, target, rng) for draw in (random_schedule, sane_schedule)]
    for schedule in (default_schedule(kernel, target), *drawn):
        try:
            lower(kernel, schedule, target)
        except LumcError as e:
            pytest.fail(f"{target.arch} x{target.threads}: {e}\n{kernel}\n{schedule}")


@pytest.mark.parametrize("name", PROFILES)
def test_schedules_of_random_graphs_are_legal(name: str) -> None:
    count = contractions = 0
    for seed in range(GRAPHS):
        rng = random.Random(f"{name}{seed}")
        for kernel in kernels_of(random_graph(seed, PROFILES[name]), rng):
            check(kernel, rng.choice(TARGETS), rng)
            count += 1
            contractions += any(map(pairs, normalize(kernel).stages))
    assert count >= 2 * GRAPHS and (name != "products" or contractions >= GRAPHS)


@pytest.mark.parametrize("name", [*MODELS, *FOUND])
def test_schedules_of_models_are_legal_and_proven(name: str) -> None:
    """With every set of cuts that is drawn: none of them has remainders in guards, of which
    intervals do not say enough."""
    rng = random.Random(name)
    for kernel in kernels_of(model(name) if name in MODELS else parse_graph(FOUND[name]), rng):
        assert not escape(kernel), name
        for target in TARGETS[::3]:
            check(kernel, target, rng)
