"""Long reductions in two steps: when, and what comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from differential import Case, check_compiled
from kernels import native
from live import DECODE
from lumc.codegen.tile.program import leaves, loads_of
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.machines import CPUS, resolve_target
from lumc.kernel.target import Target
from lumc.profile.candidates import programs_of
from lumc.profile.choose import choose
from lumc.profile.price import scheduled
from lumc.search import search
from splitting import decode, laws, product, slow, softmax, total

CUDA = resolve_target("cuda:sm_90")
ONE = CPUS["x86-64-v3"]
TWO = replace(ONE, threads=2)


def decode_so_far(keys: int) -> Graph:
    """One query of two heads beside as many keys as a run has, so many at most."""
    text = DECODE.replace("kk = update K[h, p, d] = k[h, d]\n", "").replace("kk[", "K[")
    return parse_graph(text.replace("1079", str(keys - 1)).replace("1080", str(keys)))


@pytest.mark.parametrize(
    ("graph", "target", "want"),
    [
        (total(10**7), CUDA, ["split-sum"]),
        (total(10**7), TWO, ["split-sum"]),
        (total(10**7), ONE, []),
        (total(10**7 + 19), CUDA, []),  # a prime number
        (total(1000), CUDA, []),
        (total(1000), TWO, []),
        (product(1, 131072, 64), CUDA, ["split-sum"]),
        (product(1, 131072, 64), TWO, ["split-sum"]),
        (product(128, 131072, 128), CUDA, ["split-sum"]),
        (product(1, 4096, 4096), CUDA, []),
        (product(1024, 1024, 1024), CUDA, []),
        pytest.param(product(1024, 1024, 1024), TWO, [], marks=pytest.mark.deep),  # as on a GPU
        (softmax(4096, 1024), CUDA, []),
        (decode(8, 16384, 64), CUDA, ["split-wsum"]),
        (softmax(4096, 1024), TWO, []),
        (decode_so_far(16384), CUDA, ["split-wsum"]),
        (decode_so_far(8640), replace(ONE, threads=16), ["split-wsum"]),
        pytest.param(decode_so_far(8640), ONE, [], marks=pytest.mark.deep),  # as sums on one thread
        (decode_so_far(64), TWO, []),
    ],
)
def test_what_is_split(graph: Graph, target: Target, want: list[str]) -> None:
    assert laws(graph, target) == want


def test_parts_of_weighted_sums_are_one_kernel() -> None:
    """Maxima, weights and sums come from one pass over the values."""
    space = search(decode(8, 16384, 64), CUDA, inside=True)
    parts, whole = choose(programs_of(space.regions[0], CUDA))
    assert [len(k.roots) for k in (parts, whole)] == [3, 1]
    kinds = [[s.kind for s in k.stages] for k in (parts, whole)]
    assert kinds == [["red", "red", "wsum", "wsum"], ["wsum", "wsum"]]
    made = list(leaves(scheduled(parts, CUDA)[1].body))
    assert sum("b1" in {e.attr[0] for e in loads_of(op)} for op in made) == 1, "scores, once"


def test_splitting_is_deterministic() -> None:
    space = search(decode(1, 4096, 64), CUDA, inside=True)
    one, two = (choose(programs_of(space.regions[0], CUDA)) for _ in range(2))
    assert one == two


SHORT = {
    "sum": total(129600),
    "product": product(1, 36000, 5),
    "softmax": softmax(1, 61440),
    "decode": decode(1, 17280, 3),
}


@pytest.mark.parametrize("name", SHORT)
def test_what_is_split_computes_the_same(name: str, tmp_path: Path) -> None:
    case = Case(SHORT[name], target=slow(replace(native(), threads=4)))
    case.prepare()
    assert case.plan
    assert any("_" in b.name for r in case.plan.regions.values() for b in r.local)
    case.check_plan()
    check_compiled(tmp_path, [case], [case.plan])
