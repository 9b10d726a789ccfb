"""Random graphs, planned for a GPU and run on its emulator, against the oracle."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from differential import Case, check_emulated
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.profile.choose import estimate
from lumc.search import search
from random_graphs import Profile, random_graph

F32, HALVES = DType.F32, (DType.F16, DType.BF16)
INTEGERS = (DType.I32, DType.I64, DType.I8, DType.U8)
PRODUCTS = ("matmuls", "contractions", "attention", "convolutions", "functions", "scaled", "moves")
PROFILES = {
    "any": Profile(dtypes=(F32, F32, *HALVES, *INTEGERS)),
    "products": Profile(only=PRODUCTS, steps=(2, 6), dtypes=(F32,)),
    "halves": Profile(dtypes=HALVES),
    "integers": Profile(dtypes=INTEGERS),
    "unsigned": Profile(dtypes=(DType.U64, DType.U32, DType.U16, DType.I16)),
    "special": Profile(special=True, dtypes=(F32,)),
}
DOUBLES = Profile(wide=True, dtypes=(F32, DType.F64), steps=(1, 6))  # which Metal lacks
GRAPHS = 3  # of every profile
DEEP = float(os.environ.get("LUMC_FUZZ_SECONDS", "60"))  # per target
FOUND = sorted((Path(__file__).parents[1] / "fuzz/found").glob("*.lg"))
TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]


def draw(target: Target, rng: random.Random, each: int) -> list[Case]:
    profiles = [*PROFILES.values(), *([DOUBLES] if target.kind == "cuda" else [])]
    seeds = [(p, rng.randrange(1 << 40)) for p in profiles for _ in range(each)]
    cases = [Case(random_graph(seed, p), seed, target=target) for p, seed in seeds]
    return [c for c in cases if target.kind == "cuda" or not has_doubles(c.graph)]


def has_doubles(graph: Graph) -> bool:
    """On the way, perhaps: the mean of integers."""
    return any(n.dtype is DType.F64 for e in graph.entries for n in e.nodes)


def check(folder: Path, cases: Sequence[Case], checked: bool) -> None:
    for case in cases:
        case.prepare()
    check_emulated(folder, cases, checked)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
def test_random_graphs(target: Target, built: Path) -> None:
    check(built, draw(target, random.Random(5), GRAPHS), checked=True)


@pytest.mark.parametrize(
    "target",
    [TARGETS[0], pytest.param(TARGETS[1], marks=pytest.mark.deep)],  # what differs fails elsewhere
    ids=lambda t: t.kind,
)
def test_graphs_that_failed(target: Target, built: Path) -> None:
    """Here or on CPUs."""
    texts = [path.read_text() for path in FOUND]
    cases = [Case(parse_graph(t), int(t.split()[2]), target=target) for t in texts]
    check(built, [c for c in cases if target.kind == "cuda" or not has_doubles(c.graph)], True)


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
def test_many_random_graphs(target: Target, tmp_path: Path) -> None:
    """For a while, with seeds of the moment."""
    end, rng, count = time.monotonic() + DEEP, random.Random(), 0
    while time.monotonic() < end:
        cases = draw(target, rng, 1)
        check(tmp_path / str(count), cases, checked=count % 2 == 0)
        count += len(cases)
    print(f"{count} graphs")


def test_metal_has_no_f64_on_the_way_either() -> None:
    text = """lumc graph 1
input x i32[64]
t0 f64[i:64] = contiguous x[i]
t1 f64[i:64] = mul t0[i], 0.3333333333333333
y i32[i:64] = contiguous t1[i]
output y = y
"""
    space = search(parse_graph(text), resolve_target("metal:apple7"), inside=True)
    with pytest.raises(LumcError, match="no f64"):
        estimate(space)
