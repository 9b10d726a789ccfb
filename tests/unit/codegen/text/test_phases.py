"""Loops over lanes in phases: what is kept, what is read again, and quotients."""

from kernel_zoo import softmax
from lumc.codegen.text.levels import Levels
from lumc.codegen.text.phases import Phase, has_calls, phases, quotients
from lumc.codegen.text.statements import Let, Simple, bare, quoted
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.lower import lower
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import const, load, unary
from lumc.schedule.first import default_schedule


def v(n: int, value: str, op: str = "", *of: int, type: str = "float") -> Let:
    """A value; ``of`` the values with these numbers."""
    return Let(type, quoted(f"v_{n}"), value, op, tuple(quoted(f"v_{i}") for i in of))


LOAD = v(1, "`B_x`[`i`]", "load")
GELU: list[Simple] = [
    LOAD,
    v(2, "(`v_1` * 0.5f)", "mul"),
    v(3, "lumc_exp2_ftz_f32(`v_2`)", "exp2_ftz_f32", 2),
    v(4, "(`v_3` + 1.0f)"),
    v(5, "(`v_4` * `v_1`)", "mul", 4, 1),
    "`B_out`[`i`] = `v_5`;",
]


def cut(
    steps: list[Simple], count: int | str, most: int, lanes: int = 16
) -> tuple[list[str], list[Phase]]:
    arrays, parts = phases(steps, "`l`", count, most, lanes)
    return [bare(a) for a in arrays], [Phase(p.steps, bare(p.call)) for p in parts]


def test_a_call_takes_all_lanes_at_once() -> None:
    arrays, parts = cut(GELU, 64, 0)
    assert arrays == [
        "float p_2[64] __attribute__((aligned(64)));",
        "float p_3[64] __attribute__((aligned(64)));",
    ]
    assert parts == [
        Phase([*GELU[:2], "`p_2`[`l`] = `v_2`;"], "lumc_exp2_ftz_n_f32(p_3, p_2, 64);"),
        Phase([LOAD, v(3, "`p_3`[`l`]"), *GELU[3:]]),
    ]


def test_a_part_of_a_piece_fills_whole_vectors() -> None:
    for count, most in ((17, 0), ("n - at", 20)):
        arrays, parts = cut(GELU, count, most)
        assert arrays[0] == "float p_2[32] __attribute__((aligned(64))) = {0};"
        assert parts[0].call == f"lumc_exp2_ftz_n_f32(p_3, p_2, {count});"


def test_steps_without_a_call_stay_as_they_are() -> None:
    plain = [LOAD, v(3, "lumc_exp2_f32(`v_1`)", "exp2_f32", 1), "`B_out`[`i`] = `v_3`;"]
    assert not has_calls(plain, 16) and has_calls(GELU, 16)
    assert cut(plain, "n", 64) == ([], [Phase(plain)])


def test_a_call_of_a_constant_is_none() -> None:
    k, target = softmax(4, 64), resolve_target("cpu:x86-64-v4")
    levels = Levels(Writer(lower(k, default_schedule(k, target), target)), ())
    for argument in (const(-1.0, DType.F32), load(k.buffers[0].name, DType.F32, "m", "i")):
        levels.value(unary("decay", argument))
    assert [has_calls([s], 16) for s in levels.at[0]] == [False, False, True]


def test_logarithms_are_calls_where_tables_fit_in_a_vector() -> None:
    steps = [LOAD, v(3, "lumc_log2_f32(`v_1`)", "log2_f32", 1), "`B_out`[`i`] = `v_3`;"]
    assert has_calls(steps, 16) and not has_calls(steps, 8)
    assert cut(steps, 64, 0)[1][0].call == "lumc_log2_n_f32(p_3, p_1, 64);"
    assert cut(steps, 64, 0, 8) == ([], [Phase(steps)])


def test_what_is_computed_once_is_kept_for_later_phases() -> None:
    steps: list[Simple] = [
        LOAD,
        v(2, "lumc_add_i64(`v_9`, 1)", type="int64_t"),
        v(3, "(`v_1` * `v_1`)", "mul", 1, 1),
        v(4, "lumc_decay_f32(`v_3`)", "decay_f32", 3),
        v(5, "(`v_4` + `v_3`)"),
        v(6, "lumc_decay_f32(`v_5`)", "decay_f32", 5),
        v(7, "`B_x`[`v_2`]", "load"),
        "`B_out`[`i`] = (`v_6` + `v_7`) * `v_3`;",
        "`B_two`[`i`] = `v_4`;",
    ]
    arrays, parts = cut(steps, 16, 0)
    assert [a.split("[")[0] for a in arrays] == [f"float p_{i}" for i in (3, 4, 5, 6)]
    assert parts[0] == Phase(
        [steps[0], steps[2], "`p_3`[`l`] = `v_3`;"], "lumc_decay_n_f32(p_4, p_3, 16);"
    )
    again = [v(3, "`p_3`[`l`]"), v(4, "`p_4`[`l`]")]
    assert parts[1].steps == [*again, steps[4], "`p_5`[`l`] = `v_5`;"]
    assert parts[2].steps == [steps[1], *again, v(6, "`p_6`[`l`]"), *steps[6:]]


def test_one_array_may_feed_two_calls() -> None:
    steps = [
        LOAD,
        v(2, "lumc_decay_f32(`v_1`)", "decay_f32", 1),
        v(3, "lumc_exp2_ftz_f32(`v_1`)", "exp2_ftz_f32", 1),
        "`B_out`[`i`] = (`v_2` + `v_3`);",
    ]
    _, parts = cut(steps, 16, 0)
    assert [p.call for p in parts[:2]] == [
        "lumc_decay_n_f32(p_2, p_1, 16);",
        "lumc_exp2_ftz_n_f32(p_3, p_1, 16);",
    ]
    assert parts[0].steps == [LOAD, "`p_1`[`l`] = `v_1`;"]


def test_a_product_with_a_reciprocal_is_a_quotient() -> None:
    made, used = v(2, "lumc_recip_f32(`v_1`)", "recip_f32", 1), v(3, "(`v_0` * `v_2`)", "mul", 0, 2)
    assert quotients([made, used, "`B_out`[`i`] = `v_3`;"]) == [
        v(3, "(`v_0` / `v_1`)"),
        "`B_out`[`i`] = `v_3`;",
    ]
    kept: list[list[Simple]] = [
        [made, used, "`B_out`[`i`] = (`v_3` + `v_2`);"],  # read twice
        [used, "`B_out`[`i`] = `v_3`;"],  # made in an outer loop
        [made, v(3, "(`v_2` * `v_2`)", "mul", 2, 2)],
        [made, v(3, "(`v_2` + `v_0`)")],
    ]
    assert all(quotients(steps) == steps for steps in kept)
