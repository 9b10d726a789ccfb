"""Which reductions are found to follow from one another, and what is not taken for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_zoo import F32, c, kernel, plus, running, total, x
from lumc.graph.expr import Expr, add, axis, mul
from lumc.graph.ops import DType
from lumc.kernel.bound import least_work
from lumc.kernel.machines import CPUS
from lumc.kernel.normal import normalize
from lumc.kernel.running import Running
from lumc.kernel.running import running as found
from lumc.kernel.term import Kernel, binary, cast, const, guard, iota, reduce
from lumc.schedule.first import default_schedule


def run_of(value: Expr, i: int = 9, k: int = 9) -> Running | None:
    shapes = {"x": (i, k), "y": (k,)}
    made = normalize(kernel("k", "i", {"i": i, "k": k}, value, shapes))
    return found(made, made.stages[0])


def before(shift: int = 0) -> Expr:
    return binary("lt", iota("k"), iota(add(axis("i"), shift)))


def chosen(condition: Expr, value: Expr | None = None) -> Expr:
    return total("k", binary("sel", condition, value or x("y", "k")))


def negated(condition: Expr) -> Expr:
    return binary("lt", condition, const(True, DType.BOOL))


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("how", ["up", "up before", "down", "down before"])
@pytest.mark.parametrize("said", ["", "guard"])
def test_every_way_to_say_it(op: str, how: str, said: str) -> None:
    made = normalize(running(3, 17, 5, how, op, F32, said))
    run = found(made, made.stages[0])
    assert run is not None and (run.along, run.over) == ("i", "k")
    assert run.backward == how.startswith("down")
    assert (run.empty, run.steps) == ((1, 16) if how.endswith("before") else (0, 17))
    assert run.term is x("x", "m", "k", "j")


def test_steps_that_are_shifted() -> None:
    late = run_of(chosen(before(-2)))
    assert late is not None and (late.empty, late.steps, late.backward) == (3, 6, False)
    rest = run_of(chosen(negated(before(2))))
    assert rest is not None and (rest.empty, rest.steps, rest.backward) == (2, 7, True)
    more = run_of(chosen(before(0)), i=9, k=20)
    assert more is not None and (more.empty, more.steps) == (1, 8)
    ahead = run_of(guarded(2, 20), i=9, k=20)  # k - i >= 2
    assert ahead is None  # the last result would not start with the last element alone


def guarded(lo: int, hi: int, by: int = 1) -> Expr:
    distance = add(mul(axis("k"), by), mul(axis("i"), -by))
    return total("k", guard(distance, lo, hi, x("y", "k")))


def test_guards_with_a_factor() -> None:
    run = run_of(guarded(-100, 1, 3))  # 3 * (k - i) < 1
    assert run is not None and (run.empty, run.backward) == (0, False)
    assert run_of(guarded(-100, 0, 2)) == replace(run, empty=1, steps=8)


NOT = {
    "the value depends on i": chosen(before(), x("x", "i", "k")),
    "a window": guarded(-2, 1),
    "a condition of one axis": total("k", guard("k", 0, 4, x("y", "k"))),
    "two different conditions": chosen(before(), binary("sel", before(-1), x("y", "k"))),
    "another step": chosen(binary("lt", iota(mul(axis("k"), 2)), iota("i"))),
    "something left": total("k", plus(binary("sel", before(), x("y", "k")), c(1.0))),
    "elements after i": chosen(before(3)),
    "data": chosen(binary("lt", x("y", "k"), cast(F32, iota("i")))),
    "indices that wrap": chosen(binary("lt", iota("k", DType.I8), iota("i", DType.I8))),
}


@pytest.mark.parametrize("name", NOT)
def test_what_is_none(name: str) -> None:
    extent = 200 if "wrap" in name else 9
    assert run_of(NOT[name], extent, extent) is None


def test_what_is_left_out_of_a_maximum_may_be_any_constant() -> None:
    rest = binary("sel", negated(before()), c(-3.0))
    run = run_of(reduce("max", "k", plus(binary("sel", before(), x("y", "k")), rest)))
    assert run is not None and run.start is c(-3.0) and not run.last
    whole = run_of(reduce("max", "k", binary("sel", before(1), x("y", "k"))))
    assert whole is not None and whole.last  # nothing is left out of the last one


def test_the_bound_is_linear() -> None:
    made = running(3, 1000, 5)
    assert least_work(normalize(made)).flops == 3 * 1000 * 5
    assert least_work(normalize(made)).nbytes == 2 * 4 * 3 * 1000 * 5


@pytest.mark.parametrize(("shape", "tiles"), [((1, 1000, 640), 2), ((8, 100, 64), 8)])
def test_other_axes_are_dealt(shape: tuple[int, int, int], tiles: int) -> None:
    made: Kernel = normalize(running(*shape))
    schedule = default_schedule(made, replace(CPUS["x86-64-v3"], threads=2))
    assert schedule.parallel and "i" not in schedule.tile
    assert schedule.order[-1] == "i" and schedule.stages[0].lanes == "kept"


def test_a_factor_that_vanishes_hides_nothing() -> None:
    """0 times infinity is NaN."""
    made = normalize(running(3, 17, 5, "up", "sum", F32, "mask"))
    assert found(made, made.stages[0]) is None
