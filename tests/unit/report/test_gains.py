"""How far kernels are from their bounds, and which causes the tile program shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernel_zoo import bias_gelu, kernel, matmul, sum_of_all, transpose, x
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program
from lumc.graph.expr import axis, mul
from lumc.kernel.machines import CPUS
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.report.gains import causes, gain, number
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule, Stage

ONE = CPUS["x86-64-v4"]
TWO = replace(ONE, threads=2)
Change = Callable[[Schedule], Schedule]


def lowered(k: Kernel, target: Target = ONE, change: Change = lambda s: s) -> Program:
    return lower(k, change(default_schedule(k, target)), target)


def told(k: Kernel, target: Target = ONE, change: Change = lambda s: s) -> dict[str, str]:
    return {c["cause"]: c["said"] for c in causes(lowered(k, target, change), None)}


def product(m: int) -> Kernel:
    return matmul(m, 256, 256, weight=False)


def strided(n: int) -> Kernel:
    return kernel("strided", "i", {"i": n}, x("x", mul(axis("i"), 3)), {"x": (3 * n,)})


def copied(s: Schedule) -> Schedule:
    (stage,) = s.stages
    return replace(s, stages=(replace(stage, stage_b="inner"),))


def by_rows(s: Schedule) -> Schedule:
    return replace(s, stages=(Stage(),))


@pytest.mark.parametrize("k", [product(64), bias_gelu(64, 256)], ids=lambda k: k.name)
def test_what_is_well_made_has_no_cause(k: Kernel) -> None:
    assert told(k) == told(k, TWO) == {}


def test_vectors_that_are_not_full() -> None:
    assert told(bias_gelu(64, 40))["lanes"] == (
        "20% of it in vectors that are not full: n:40 in 16 lanes"
    )
    assert told(bias_gelu(64, 7))["lanes"].startswith("100% of it")
    assert "lanes" not in told(bias_gelu(64, 4000))


def test_values_that_are_moved() -> None:
    assert told(transpose(512, 512)) == {"turned": "turns 262k elements through registers"}
    assert told(product(64), change=copied) == {}
    assert told(product(4), change=copied) == {
        "copies": "copies 65.5k elements of operands before it reads them"
    }
    assert told(strided(999))["apart"] == "reads x along i element by element"


def test_products_without_a_register_tile() -> None:
    said = told(product(64), change=by_rows)["sums"]
    assert said == "no contraction: products are summed over k row by row"


def test_threads_without_work() -> None:
    assert "parts" not in told(sum_of_all(300, 300))
    assert told(sum_of_all(300, 300), TWO)["parts"] == "1 part for 2 threads"
    uneven = told(product(66), TWO, lambda s: replace(s, tile={"m": 22}, parallel=1))
    assert uneven["parts"] == "3 parts for 2 threads"


def test_what_is_done_again() -> None:
    (found,) = causes(lowered(product(64)), {"flops": 1.0, "loads": 2.0})
    assert found == {"cause": "repeats", "said": "1.0x its operations, 2.0x its loads"}
    assert causes(lowered(product(64)), {"flops": 1.2, "loads": 1.1}) == []


def test_gains_are_of_all_launches() -> None:
    program = lowered(product(64))
    found = gain(program, 50.0, 40.0, "memory", 3)
    assert found == {"over": 1.25, "gain_us": 30.0, "bound_by": "memory bandwidth"}
    assert gain(program, 30.0, 40.0, "caches", 3)["gain_us"] == 0
    assert gain(program, 1.5, 0.3, "arithmetic", 1)["bound_by"] == "launch"


def test_numbers_are_short() -> None:
    assert [number(n) for n in (7, 1234, 65536, 2.5e6, 3e9)] == [
        "7",
        "1.23k",
        "65.5k",
        "2.5M",
        "3G",
    ]
