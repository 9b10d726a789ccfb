"""Vectors that cover the lanes of a register tile."""

from dataclasses import replace

import pytest

from kernel_zoo import kernel, matmul, sigmoid, times, total, x
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.cpu.micro import Piece, pieces
from lumc.codegen.tile.lower import lower
from lumc.kernel.machines import resolve_target
from lumc.schedule.first import default_schedule
from lumc.schedule.space import Grammar


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("whole", [False, True])
def test_every_lane_is_covered_once(lanes: int, whole: bool) -> None:
    for n in range(1, 4 * lanes):
        found = pieces(n, lanes, whole)
        assert [i for p in found for i in range(p.offset, p.offset + p.used)] == list(range(n))
        assert all(p.used <= p.width <= lanes for p in found)
        if whole:
            assert len(found) == -(-n // lanes)
            assert all(p.offset % lanes == 0 for p in found)


def test_a_rest_that_is_one_vector_stays_as_short_as_it_is() -> None:
    assert pieces(24, 16, True) == [Piece(0, 16, 16), Piece(16, 8, 8)]
    assert pieces(27, 16, True) == [Piece(0, 16, 16), Piece(16, 16, 11)]


@pytest.mark.parametrize(
    ("arch", "weight", "masked"),
    [
        ("x86-64-v4", True, "lumc_put_f32x16"),  # its rows are padded
        ("x86-64-v4", False, "lumc_part_f32x16(B"),  # in place: nothing beyond is read
        ("x86-64-v3", True, "lumc_put_f32x8"),
        ("x86-64-v3", False, ""),  # memory cannot be read in part
    ],
)
def test_the_last_vector_is_used_in_part(arch: str, weight: bool, masked: str) -> None:
    target = resolve_target(f"cpu:{arch}")
    kernel = matmul(64, 91, 32, weight=weight)
    schedule = default_schedule(kernel, target)
    (stage,) = schedule.stages
    schedule = replace(schedule, stages=(replace(stage, lane_axis="n", rows_axis="m"),))
    text = print_kernel(lower(kernel, schedule, target), "k")
    assert masked in text and ("lumc_put" in text) is bool(masked)


def test_short_steps_are_written_out_if_the_schedule_says_so() -> None:
    target, kernel = resolve_target("cpu:x86-64-v4"), matmul(64, 16, 512)
    schedule = default_schedule(kernel, target)
    (stage,) = schedule.stages
    texts = [
        print_kernel(lower(kernel, replace(schedule, stages=(each,)), target), "k")
        for each in (replace(stage, mr=8, nv=1, unroll=unroll) for unroll in (False, True))
    ]
    assert ["#pragma GCC unroll" in text for text in texts] == [False, True]
    grammar = Grammar(kernel, target)
    assert all(
        grammar.path(replace(schedule, stages=(replace(stage, unroll=u),))) for u in (False, True)
    )


def test_products_of_one_shape_share_their_functions() -> None:
    """Though each has an axis of its own, which the notes beside loops name."""
    target = resolve_target("cpu:x86-64-v4")
    a, b = (total(k, times(x("x", "m", k), x(f"w{k}", k, "n"))) for k in "jk")
    shapes = {"x": (37, 48), "wj": (48, 64), "wk": (48, 64)}
    extent = {"m": 37, "n": 64, "j": 48, "k": 48}
    two = kernel("two", "m n", extent, times(a, sigmoid(b)), shapes, "wj wk")
    both, one = (
        print_kernel(lower(k, default_schedule(k, target), target), "k").count(" void micro_")
        for k in (two, matmul(37, 64, 48))
    )
    assert both == one > 1
