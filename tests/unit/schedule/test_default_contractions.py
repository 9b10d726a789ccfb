"""Defaults of contractions: staging of b, register tiles, equal shares of the parts."""

from dataclasses import replace

import pytest

from kernel_zoo import (
    conv,
    kernel,
    matmul,
    times,
    total,
    turned_matmul,
    x,
)
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.cpu.micro import AHEAD
from lumc.codegen.tile.lower import lower
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.legal import check_schedule
from shares import largest_share

TARGET = resolve_target("cpu:x86-64-v4")


@pytest.mark.parametrize(("n", "stage_b"), [(256, "none"), (512, "none"), (1024, "hoist")])
def test_b_is_copied_where_its_rows_outgrow_the_cache(n: int, stage_b: str) -> None:
    (stage,) = default_schedule(matmul(n, n, n, weight=False), TARGET).stages
    assert stage.stage_b == stage_b


@pytest.mark.parametrize(("k", "panels_first"), [(64, True), (512, False)])
def test_rows_go_first_where_a_panel_of_b_outgrows_the_first_cache(
    k: int, panels_first: bool
) -> None:
    schedule = default_schedule(matmul(256, 256, k, weight=False), TARGET)
    assert schedule.stages[0].panels_first is panels_first


@pytest.mark.parametrize(("m", "order"), [(1024, ("m", "n")), (256, ("n", "m"))])
def test_threads_with_enough_rows_copy_b_for_themselves(m: int, order: tuple[str, str]) -> None:
    target = replace(TARGET, threads=2)
    schedule = default_schedule(matmul(m, 2048, 1024, weight=False), target)
    assert schedule.order == order and schedule.stages[0].stage_b == "hoist"
    assert schedule.tile.get("m", m) == (512 if order[0] == "m" else m)


@pytest.mark.parametrize(
    ("m", "n", "k", "lane"),
    [
        (128, 512, 784, "m"),  # 128 x 784 elements and the result instead of 512 x 784
        (512, 128, 784, "n"),
        (512, 512, 64, "n"),  # as many elements, and the result would be turned too
        (128, 512, 96, "n"),  # 128 x 96 elements are few, but the result has more than it saves
    ],
)
def test_lanes_lie_where_little_is_turned(m: int, n: int, k: int, lane: str) -> None:
    (stage,) = default_schedule(turned_matmul(m, n, k), TARGET).stages
    assert (stage.lane_axis, stage.stage_b) == (lane, "hoist")


@pytest.mark.parametrize(("channels", "lane"), [(1, "x"), (2, "x"), (24, "o"), (64, "o")])
def test_results_of_short_sums_are_not_turned(channels: int, lane: str) -> None:
    (stage,) = default_schedule(conv(16, channels, 80, 80), TARGET).stages
    assert stage.lane_axis == lane


def test_whole_rows_of_results_are_stored_where_all_of_b_fits() -> None:
    assert "x" not in default_schedule(conv(16, 1, 40, 1600), TARGET).tile
    assert default_schedule(matmul(1024, 4096, 1024, weight=False), TARGET).tile["n"] < 4096


@pytest.mark.parametrize(
    ("m", "threads", "rows"),
    [(128, 1, 64), (128, 2, 64), (512, 1, 64), (512, 2, 1024)],  # smaller: b would be copied again
)
def test_results_that_are_turned_wait_in_the_first_cache(m: int, threads: int, rows: int) -> None:
    schedule = default_schedule(turned_matmul(m, 4 * m, 784), replace(TARGET, threads=threads))
    assert schedule.stages[0].lane_axis == "m" and schedule.tile["n"] == rows


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [
        (128, 3072, (8, 3)),  # nothing is left over
        (56, 64, (8, 3)),  # a panel of 16 columns is no worse than shorter tiles (47 kernels: 1.01)
        (1024, 1024, (8, 3)),  # one narrow panel of 22 is cheap
    ],
)
def test_register_tiles_leave_little_over(rows: int, columns: int, tile: tuple[int, int]) -> None:
    (stage,) = default_schedule(matmul(rows, columns, 64), TARGET).stages
    assert (stage.mr, stage.nv) == tile


@pytest.mark.parametrize(
    ("k", "first", "second"),
    [
        (conv(64, 64, 56, 56), (28, 1), (14, 2)),  # rows of a window
        (matmul(128, 3072, 768), (8, 3), (8, 3)),
        (conv(512, 64, 7, 7), (7, 3), (7, 3)),  # no row is left over
    ],
)
def test_register_tiles_follow_the_multipliers(
    k: Kernel, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """As many loads as multiply-adds in a cycle do not bring both operands of 28 x 1."""
    for fmas, tile in ((1, first), (2, second)):
        (stage,) = default_schedule(k, replace(TARGET, fmas=fmas)).stages
        assert (stage.mr, stage.nv) == tile


def test_lanes_are_whole_vectors_where_half_a_vector_takes_as_long() -> None:
    """Eight pixels of a row, or 512 channels."""
    (stage,) = default_schedule(conv(512, 512, 8, 8), replace(TARGET, fmas=2)).stages
    assert stage.lane_axis == "o" and stage.rows_axis == "x"


@pytest.mark.parametrize(("channels", "tile"), [(64, None), (512, 128)])
def test_weights_of_windows_lie_in_the_second_cache(channels: int, tile: int | None) -> None:
    schedule = default_schedule(conv(512, channels, 7, 7), TARGET)
    assert schedule.tile.get("c") == tile


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("n", [768, 1024, 2048, 2816, 3072, 4096])
def test_parts_get_equal_shares(n: int, threads: int) -> None:
    target = replace(TARGET, threads=threads)
    for k in (matmul(128, n, 768), matmul(n, n, n, weight=False)):
        schedule = default_schedule(k, target)
        assert schedule.parallel
        counts = [-(-k.extent[a] // schedule.tile.get(a, k.extent[a])) for a in schedule.order]
        tiles = 1
        for count in counts[: schedule.parallel]:
            tiles *= count
        assert -(-tiles // threads) / (tiles / threads) < 1.25


@pytest.mark.parametrize(
    ("k", "most"),
    [
        (turned_matmul(49, 3072, 768), 0.51),  # 32 rows and 17 would be dealt as they are
        (matmul(49, 3072, 768), 0.51),
        (matmul(197, 1536, 384), 0.52),
        (conv(512, 512, 7, 7), 0.54),  # rows of pixels by four and three
        (conv(256, 64, 17, 17), 0.54),
    ],
)
def test_no_thread_waits_for_a_short_last_tile(k: Kernel, most: float) -> None:
    s = default_schedule(k, replace(TARGET, threads=2))
    assert largest_share(k, s) < most


def _text(k: Kernel) -> str:
    schedule = default_schedule(k, TARGET)
    check_schedule(normalize(k), schedule, TARGET)
    return print_kernel(lower(k, schedule, TARGET), "k")


def test_weights_are_fetched_a_panel_ahead() -> None:
    assert "__builtin_prefetch" in _text(matmul(64, 96, 32))
    assert "__builtin_prefetch" in _text(conv(64, 4, 16, 16))
    assert "__builtin_prefetch" not in _text(matmul(64, 96, 32, weight=False))  # it lies there
    assert "__builtin_prefetch" not in _text(matmul(64, 48, 32))  # there is no other panel
    few = _text(matmul(4, 96, 32))  # which read every panel once: what comes much later is fetched
    assert [few.count(f" + {AHEAD + n}") for n in (0, 64, 128)] == [1, 1, 0]
    k = matmul(64, 96, 32)
    schedule = default_schedule(k, TARGET)
    never = replace(schedule, stages=(replace(schedule.stages[0], next_panel=False),))
    assert "__builtin_prefetch" not in print_kernel(lower(k, never, TARGET), "k")


@pytest.mark.parametrize(("index", "stage_a"), [("m k", "none"), ("k m", "link")])
def test_weights_whose_steps_lie_apart_are_packed(index: str, stage_a: str) -> None:
    """As the left operand: their rows go along the result, the lanes are those of the input."""
    shapes = {"w": (384, 1536) if index == "m k" else (1536, 384), "x": (1536, 1500)}
    product = total("k", times(x("w", *index.split()), x("x", "k", "n")))
    k = kernel("left", "m n", {"m": 384, "n": 1500, "k": 1536}, product, shapes, "w")
    (stage,) = default_schedule(k, TARGET).stages
    assert (stage.rows_axis, stage.lane_axis, stage.stage_a) == ("m", "n", stage_a)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_share_a_cache_copy_rows_that_lie_apart(threads: int) -> None:
    (stage,) = default_schedule(matmul(128, 384, 512), replace(TARGET, threads=threads)).stages
    assert (stage.mr, stage.nv, stage.stage_b) == (8, 3, "link")
    assert stage.stage_a == ("none" if threads == 1 else "hoist")


def test_rows_of_a_window_make_tall_tiles() -> None:
    """28 rows of one vector: every element of a is an operand in memory of one product."""
    (stage,) = default_schedule(conv(64, 64, 56, 56), TARGET).stages
    assert (stage.rows_axis, stage.mr, stage.nv, stage.stage_a) == ("x", 28, 1, "hoist")


def test_windows_share_no_elements_of_a_between_steps_of_tall_tiles() -> None:
    text = _text(conv(64, 64, 56, 56))
    assert '__asm__("" : "+r"(A2));' in text
    assert "const long i2 = 2;" in text  # every step of the last axis is written out
    assert '"+r"' not in _text(matmul(64, 96, 512))


def test_threads_get_equal_shares() -> None:
    """Channels in tiles of 192 and 128 are no halves; four tiles of rows are. Few rows stay inside:
    all weights would be read for each of them."""
    two = replace(resolve_target("cpu:x86-64-v4"), threads=2, fmas=2)
    many, few = (default_schedule(conv(320, 320, n, n), two) for n in (32, 4))
    assert many.tile["o"] == 192 and many.order[:2] == ("y", "o")
    assert few.order[:1] == ("o",)
