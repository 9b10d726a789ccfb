"""Values of a walk that a later walk over the same axis reads: computed once where they are still
there, again where weights have taken their place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import lumc.codegen.tile.program as ir
from drawing import random_schedule
from kernel_zoo import c, greatest, kernel, plus, random_inputs, split_attention, times, total, x
from kernels import QUICK, assert_close, compile_programs, native, run
from lumc.codegen.tile import lower as lowering
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.verify import verify
from lumc.graph.expr import Expr
from lumc.kernel.term import Kernel, binary, unary, wsum
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule

HEADS, ROWS, KEYS, D = 2, 5, 37, 16


def scores() -> Expr:
    return total("e", times(x("Q", "h", "q", "e"), x("K", "h", "j", "e")))


def two_results(first: Expr, second: Expr) -> Kernel:
    roots = [(x("o", "h", "q", "d"), first), (x("t", "h", "q"), second)]
    keys, rows = (HEADS, KEYS, D), (HEADS, ROWS)
    shapes = {"Q": (*rows, D), "K": keys, "V": keys, "o": (*rows, D), "t": rows}
    extent = {"h": HEADS, "q": ROWS, "j": KEYS, "e": D, "d": D}
    return kernel("read_again", "h q d", extent, roots, shapes)


def after_a_maximum() -> Kernel:
    """Weights of scores that their own maximum decides about."""
    top = greatest("j", scores())
    some = binary("sel", binary("lt", c(-1e30), top), scores())
    return two_results(wsum("j", some, x("V", "h", "j", "d")), top)


def after_weights() -> Kernel:
    """A sum of the scores, which needs the sum of their weights."""
    weights = wsum("j", scores(), c(1.0))
    mean = total("j", times(scores(), unary("recip", plus(weights, 1))))
    return two_results(wsum("j", scores(), x("V", "h", "j", "d")), mean)


def before_and_after() -> Kernel:
    """The maximum, weights, and what both of them scale."""
    top, weights = greatest("j", scores()), wsum("j", scores(), c(1.0))
    by = unary("recip", plus(plus(weights, times(top, top)), 1))
    value = wsum("j", scores(), times(x("V", "h", "j", "d"), by))
    return two_results(value, total("j", times(scores(), plus(top, by))))


KERNELS = {f.__name__: f for f in (after_a_maximum, after_weights, before_and_after)}


def check(made: Sequence[tuple[Kernel, Schedule]], folder: Path) -> None:
    programs = [lower(k, s, native(), verify) for k, s in made]
    lib = compile_programs(folder, programs, QUICK)
    for i, (k, s) in enumerate(made):
        inputs = random_inputs(k, i)
        assert_close(k, run(lib, i, programs[i], inputs, 2), evaluate_kernel(k, inputs), s)


def test_values_are_what_they_were(tmp_path: Path) -> None:
    made = [(k, default_schedule(k, native())) for k in (f() for f in KERNELS.values())]
    rng = random.Random(5)
    made += [(k, random_schedule(k, native(), rng)) for k, _ in made for _ in range(4)]
    check(made, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", KERNELS)
def test_values_are_what_they_were_in_many_schedules(name: str, tmp_path: Path) -> None:
    kernel, rng = KERNELS[name](), random.Random(name)
    check([(kernel, random_schedule(kernel, native(), rng)) for _ in range(25)], tmp_path)


@pytest.mark.parametrize(("name", "products"), [("after_a_maximum", 2), ("after_weights", 3)])
def test_scores_are_computed_once_while_they_are_there(name: str, products: int) -> None:
    """And the values, which weights multiply."""
    k = KERNELS[name]()
    program = lower(k, default_schedule(k, native()), native())
    assert sum(isinstance(op, ir.Contract) for op in ir.leaves(program.body)) == products


def test_what_the_first_tile_made_is_there_for_the_others(tmp_path: Path) -> None:
    """The maxima of parts are scores of the last sum: its weights may not take their place."""
    k = split_attention(2, 3, 3, 17, 5)
    usual = replace(default_schedule(k, native()), order=("h", "q", "d"), parallel=3)
    check([(k, replace(usual, tile={"d": tile})) for tile in (1, 2)], tmp_path)


def test_weights_that_are_taken_for_scores_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "_read", lambda e: set())
    k = after_weights()
    with pytest.raises(AssertionError):
        check([(k, default_schedule(k, native()))], tmp_path)
