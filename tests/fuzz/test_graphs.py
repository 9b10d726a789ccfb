"""Random graphs through all passes, against the oracle; and the graphs that once failed.

A failure prints a reduced graph and the seed of its values: put it into ``found`` with a first line
``# seed N`` and it is a test.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from differential import Case, check_compiled, check_sanitized
from lumc.command.shrink import Search
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph, print_graph
from random_graphs import Profile, random_graph

F32, F64 = DType.F32, DType.F64
MOVES = ("moves", "joins", "reductions", "lookups", "selects", "arithmetic", "comparisons")
PRODUCTS = ("matmuls", "contractions", "attention", "convolutions", "functions", "scaled", "moves")
PROFILES = {
    "any": Profile(),
    "large": Profile(steps=(8, 25)),
    "wide": Profile(wide=True, steps=(1, 6)),
    "products": Profile(only=PRODUCTS, steps=(2, 6)),
    "moves": Profile(only=MOVES, steps=(2, 8)),
    "integers": Profile(dtypes=(DType.I32, DType.I64, DType.I8, DType.U8)),
    "unsigned": Profile(dtypes=(DType.U64, DType.U32, DType.U16, DType.I16)),
    "halves": Profile(dtypes=(DType.F16, DType.BF16)),
    "special": Profile(special=True, dtypes=(F32, F32, F64)),
}
GRAPHS = 9  # of every profile
SOON = 9 if os.environ.get("LUMC_FUZZ") else 5  # of these
SANITIZED = SOON // 3  # of these
DRAWS = 3  # of every graph that once failed
DEEP = float(os.environ.get("LUMC_FUZZ_SECONDS", "60"))  # per profile
FOUND = sorted((Path(__file__).parent / "found").glob("*.lg"))
SECONDS = 20.0  # of the processor, for the passes up to the plan of one graph


def check(folder: Path, cases: Sequence[Case], sanitized: int = 0) -> None:
    """Everything of several graphs, compiled at once."""
    for case in cases:
        start = time.process_time()
        case.prepare()
        case.check_plan()
        if time.process_time() - start > SECONDS:
            case.fail("slow")
    plans = [c.plan for c in cases if c.plan]
    check_compiled(folder / "compiled", cases, plans)
    if sanitized:
        check_sanitized(folder / "sanitized", cases[:sanitized])


def explain(folder: Path, cases: Sequence[Case], sanitized: int) -> None:
    """Find the graph that fails, and make it small."""
    for i, case in enumerate(cases):
        if error := failure(folder, case, i < sanitized):

            def fails(graph: Graph, case: Case = case, error: str = error, i: int = i) -> bool:
                smaller = Case(graph, case.seed)
                return failure(folder, smaller, i < sanitized)[:20] == error[:20]

            small = Search(case.graph, fails).run()
            pytest.fail(f"{error}\n# seed {case.seed}\n{print_graph(small)}", pytrace=False)


def failure(folder: Path, case: Case, sanitized: bool) -> str:
    """What is wrong with one graph, or nothing."""
    try:
        check(folder, [Case(case.graph, case.seed)], int(sanitized))
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\ngraph:")[0]
    return ""


def checked(folder: Path, cases: Sequence[Case], sanitized: int) -> None:
    try:
        check(folder, cases, sanitized)
    except Exception:
        explain(folder / "reducing", cases, sanitized)
        raise


seeds = st.lists(st.integers(0, 1 << 40), min_size=GRAPHS, max_size=GRAPHS, unique=True)


@pytest.mark.parametrize("name", PROFILES)
@given(seeds=seeds)
@settings(  # a batch is one example: gcc is slow, and ``explain`` reduces what fails
    max_examples=1,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_random_graphs(name: str, seeds: list[int], tmp_path: Path) -> None:
    cases = [Case(random_graph(seed, PROFILES[name]), seed) for seed in seeds[:SOON]]
    checked(tmp_path / str(seeds[-1]), cases, SANITIZED)  # a library is known by its path


def test_graphs_that_failed(tmp_path: Path) -> None:
    """With the values and schedules that failed, with sanitizers too."""
    first, *_ = zip(*map(read_cases, FOUND), strict=True)
    checked(tmp_path, first, len(first))


@pytest.mark.deep
def test_graphs_that_failed_with_other_values(tmp_path: Path) -> None:
    _, *others = zip(*map(read_cases, FOUND), strict=True)
    checked(tmp_path, [*chain(*others)], 0)


def read_cases(path: Path) -> list[Case]:
    """The graph with several seeds: each draws other values, and other schedules."""
    text = path.read_text()
    seed = re.match(r"# seed (\d+)\n", text)
    assert seed, path
    return [Case(parse_graph(text), int(seed[1]) + i) for i in range(DRAWS)]


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", PROFILES)
def test_many_random_graphs(name: str, tmp_path: Path) -> None:
    """For a while, with seeds of the moment."""
    end, seeds = time.monotonic() + DEEP, random.Random()
    count = 0
    while time.monotonic() < end:
        seed = seeds.randrange(1 << 40)
        profile = PROFILES[name]
        cases = [Case(random_graph(seed + i, profile), seed + i) for i in range(GRAPHS)]
        checked(tmp_path / str(count), cases, SANITIZED)
        count += 1
