"""Walks side by side: which lags they get, what is kept for later rows, and what stays as it is."""

from dataclasses import replace

import pytest

from kernel_zoo import kernel, layernorm, norm_of_gelu, softmax, x
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program, Rows
from lumc.errors import LumcError
from lumc.graph.expr import add
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule

TARGET = resolve_target("cpu:x86-64-v4")


def skewed(k: Kernel, **flags: object) -> tuple[Program, Rows]:
    plain = replace(default_schedule(k, TARGET), stream=True, prefetch=False, skew=True)
    program = lower(k, replace(plain, **flags), TARGET)
    body = program.body
    while not isinstance(body[0], Rows):
        body = body[0].body
    (rows,) = body
    return program, rows


def slots(program: Program) -> dict[str, int]:
    """How many rows are held of what all rows share."""
    first = {n: p.dims[0] for n, p in program.places.items() if p.dims}
    return {n.partition(".")[0]: d.size for n, d in first.items() if d.label == "slot"}


def test_every_walk_is_one_row_behind_what_it_reads() -> None:
    program, rows = skewed(softmax(64, 512))
    assert rows.lags == (0, 1, 2)  # maximum, sum of the exponentials, quotients
    assert slots(program) == {"stage": 2, "kept": 2}
    kept = next(p for p in program.places.values() if p.name.startswith("kept"))
    assert kept.strides[0] * 4 % 4096 == 4096 - 64  # a line earlier in its page


def test_what_is_read_two_rows_later_has_a_third_slot() -> None:
    program, rows = skewed(softmax(64, 512), keep=False)  # the maximum is read by the quotients
    assert rows.lags == (0, 1, 2)
    sizes = [p.dims[0].size for p in program.places.values() if p.name.startswith("stage")]
    assert sorted(sizes) == [2, 3]


@pytest.mark.parametrize("k", [layernorm(64, 512), norm_of_gelu(64, 512)])
def test_statistics_and_results_are_a_row_apart(k: Kernel) -> None:
    _, rows = skewed(k)
    assert max(rows.lags) >= 1 and sorted(rows.lags) == list(rows.lags)


def test_what_is_prefetched_is_ahead_of_the_first_walk() -> None:
    _, rows = skewed(softmax(64, 512), prefetch=True)
    (ahead,) = (op.ahead for op in rows.body if op.ahead)
    assert ahead == (x("x", add("m", 5), "j"),)  # 8 KiB, and one row that it is behind


@pytest.mark.parametrize(
    "k, flags",
    [
        (softmax(64, 512), {"stream": False}),  # the row of the result holds two values in turn
        (softmax(64, 512), {"fuse_rows": False}),
        (softmax(64, 512), {"tile": {"m": 2}}),  # never three rows at once
    ],
)
def test_other_rows_stay_as_they_are(k: Kernel, flags: dict[str, object]) -> None:
    plain = replace(default_schedule(k, TARGET), **{"stream": True, **flags})
    a, b = (lower(k, replace(plain, skew=s), TARGET) for s in (False, True))
    assert print_kernel(a, "k") == print_kernel(b, "k")


def test_one_walk_is_behind_nothing() -> None:
    """Nor is a row that no piece is shorter than: it is refused, not ignored."""
    copy = kernel("copy", "m n", {"m": 64, "n": 512}, x("x", "m", "n"), {"x": (64, 512)})
    for k in (copy, softmax(64, 200)):
        with pytest.raises(LumcError, match="skew True: of rows of 256 elements or more") as e:
            lower(k, replace(default_schedule(k, TARGET), skew=True), TARGET)
        assert e.value.code == "E0411"


def test_a_schedule_that_is_not_skewed_is_written_as_before() -> None:
    plain = default_schedule(softmax(64, 512), TARGET)
    assert "skew" not in plain.to_json() and replace(plain, skew=True).to_json()["skew"] is True
    assert Schedule.from_json(replace(plain, skew=True).to_json()).skew


def test_large_results_of_much_arithmetic_are_skewed_by_default() -> None:
    default = default_schedule(softmax(4096, 1024), TARGET)
    assert default.skew and max(s.streams for s in default.stages) == 2  # registers are shared
    assert not default_schedule(layernorm(4096, 1024), TARGET).skew  # memory is all it waits for
    assert not default_schedule(softmax(64, 512), TARGET).skew
