"""What the space offers is legal; what is illegal is refused with every reason."""

import random
from dataclasses import replace

import pytest

from drawing import random_schedule, sane_schedule
from kernel_zoo import (
    FAMILIES,
    add_in_place,
    attention,
    conv,
    gemv,
    kernel,
    matmul,
    plus,
    rms_linear_residual,
    softmax,
    times,
    total,
    typed_matmul,
    x,
)
from lumc.errors import LumcError
from lumc.graph.expr import add
from lumc.graph.ops import DType
from lumc.kernel.machines import CPUS, resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.legal import check_kernel, check_schedule
from lumc.schedule.operands import lanes, pairs
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.staging import staging_modes

TARGETS = [resolve_target(f"cpu:{arch}") for arch in CPUS]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.arch)
def test_everything_drawn_is_legal(target) -> None:
    for i, (family, shapes) in enumerate(FAMILIES.items()):
        for shape in shapes[:2]:
            k = normalize(family(*shape))
            rng = random.Random(i)
            draws = [random_schedule(k, target, rng), sane_schedule(k, target, rng)]
            for schedule in [default_schedule(k, target), *draws]:
                check_schedule(k, schedule, target)


def test_pairs_of_a_matmul() -> None:
    (stage,) = normalize(matmul(4, 5, 6)).stages
    assert pairs(stage) == (("n", "m"), (None, "m"), ("m", "n"), (None, "n"))


def test_only_vector_dtypes_contract() -> None:
    found = {
        k: bool(pairs(normalize(typed_matmul(4, 5, 6, k)).stages[0]))
        for k in DType
        if k is not DType.BOOL
    }
    some = {DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32}
    assert found == {k: k in some for k in found}
    v4 = resolve_target("cpu:x86-64-v4")
    assert [lanes(v4, k) for k in (DType.F32, DType.F16, DType.F64, DType.I64)] == [16, 16, 8, 8]


def test_staging_depends_on_where_the_operand_lies() -> None:
    k = normalize(matmul(4, 50, 6))
    stage, p = k.stages[0], Stage("contract", "m", "n", 4, 1)
    assert staging_modes(k, stage, p, "a") == ["none", "inner", "hoist"]
    assert staging_modes(k, stage, p, "b") == ["none", "inner", "hoist", "link"]
    turned = Stage("contract", "n", "m", 4, 1)
    assert staging_modes(k, stage, turned, "b") == ["inner", "hoist"]
    k = normalize(conv(8, 4, 16, 16))
    stage = k.stages[0]
    assert "none" not in staging_modes(k, stage, Stage("contract", "o", "x"), "b")


def test_the_default_contracts_attention_and_packs_weights() -> None:
    v4 = resolve_target("cpu:x86-64-v4")
    k = normalize(attention(4, 64, 64, 32))
    forms = [p.form for p in default_schedule(k, v4).stages]
    assert forms.count("contract") == 2
    k = normalize(rms_linear_residual(128, 96, 64))
    contraction = default_schedule(k, v4).stages[1]
    assert (contraction.stage_a, contraction.stage_b) == ("hoist", "link")


def refused(k: Kernel, schedule: Schedule, *reasons: str) -> None:
    with pytest.raises(LumcError) as e:
        check_schedule(normalize(k), schedule, resolve_target("cpu:x86-64-v4"))
    assert e.value.code == "E0411"
    for reason in reasons:
        assert reason in str(e.value)


def test_illegal_schedules_are_refused() -> None:
    k = matmul(40, 50, 60)
    p = Stage("contract", "m", "n", 8, 3, stage_b="link")
    good = Schedule(("m", "n"), 2, {"n": 48}, (p,))
    check_schedule(normalize(k), good, resolve_target("cpu:x86-64-v4"))
    refused(k, replace(good, order=("m",)), "does not list the axes")
    refused(k, replace(good, parallel=3), "axes that every root has")
    refused(k, replace(good, tile={"n": 32}), "tile 32 of axis n: whole panels")
    refused(k, replace(good, tile={"z": 4}), "axis z")
    refused(k, replace(good, stages=()), "0 stages for 1 reductions")
    refused(
        k,
        replace(good, stages=(replace(p, rows_axis="n"),)),
        "lane_axis n",
        "the lanes of a contraction",
    )
    refused(k, replace(good, stages=(replace(p, stage_a="link"),)), "stage_a link")
    dot = replace(p, form="dot", stage_b="none")
    refused(k, replace(good, tile={}, stages=(dot,)), "stage_b none")
    sums = Schedule(("m", "n"), 0, {}, (Stage(), Stage(lanes="kept")))
    check_schedule(normalize(softmax(4, 9)), sums, resolve_target("cpu:x86-64-v4"))


def test_illegal_kernels_are_refused() -> None:
    def fails(k: Kernel, reason: str) -> None:
        with pytest.raises(LumcError) as e:
            check_kernel(k)
        assert e.value.code == "E0410" and reason in str(e.value)

    check_kernel(add_in_place(3, 4))
    shifted = plus(x("x", add("m", 1)), x("y", "m"))
    shapes = {"x": (9,), "y": (9,)}
    roots = [(x("x", "m"), shifted)]
    fails(kernel("k", "m", {"m": 8}, roots, shapes), "updated and read elsewhere")
    roots = [(x("x", "m"), x("y", "m")), (x("y", "m"), x("x", "m"))]
    fails(kernel("k", "m", {"m": 8}, roots, shapes), "'x' is updated and read elsewhere")
    roots = [(x("x", "m"), x("y", "m")), (x("x", "m"), x("y", "m"))]
    fails(kernel("k", "m", {"m": 8}, roots, shapes), "two roots store")
    fails(kernel("k", "m", {"m": 8}, [(x("x", "m"), x("y", "n"))], shapes), "depends on axis n")
    fails(kernel("k", "m;", {"m;": 8}, x("y", "m;"), {"y": (8,)}), "'m;' is not a name")


@pytest.mark.parametrize(
    ("size", "turned", "form", "stage_b"),
    [
        (2048, True, "contract", "link"),  # in panels, which are one stream from memory
        (2048, False, "contract", "link"),
        (500, True, "dot", "none"),  # it stays in the cache
        (100, False, "contract", "link"),
    ],
)
def test_one_row_reads_a_matrix_in_streams(
    size: int, turned: bool, form: str, stage_b: str
) -> None:
    k = normalize(gemv(size, size, turned))
    target = resolve_target("cpu:x86-64-v4")
    schedule = default_schedule(k, target)
    check_schedule(k, schedule, target)
    (stage,) = schedule.stages
    assert (stage.form, stage.stage_b) == (form, stage_b)
    assert stage.nv > 1 and stage.next_panel == (form == "contract")
    assert schedule.parallel == (size > 100)


def test_a_row_is_computed_once_for_all_columns() -> None:
    """sum_k (q c)[h, k] (y[h, j, k] + z[h, k]): neither operand is a tensor."""
    row, matrix = (
        times(x("q", "h", "k"), x("c", "k")),
        plus(x("y", "h", "j", "k"), x("z", "h", "k")),
    )
    shapes = {"q": (4, 64), "c": (64,), "y": (4, 200, 64), "z": (4, 64)}
    extent = {"h": 4, "j": 200, "k": 64}
    k = normalize(kernel("scores", "h j", extent, total("k", times(row, matrix)), shapes))
    (stage,) = default_schedule(k, resolve_target("cpu:x86-64-v4")).stages
    assert (stage.form, stage.stage_a, stage.stage_b) == ("dot", "hoist", "inner")


def test_few_rows_are_computed_once_and_a_cache_is_read_in_place() -> None:
    """sum_k (q c)[h, i, k] y[h, j, k]: to turn y would take longer than to multiply it."""
    rows, cache = times(x("q", "h", "i", "k"), x("c", "k")), x("y", "h", "j", "k")
    shapes = {"q": (4, 3, 64), "c": (64,), "y": (4, 2048, 64)}
    extent = {"h": 4, "i": 3, "j": 2048, "k": 64}
    k = normalize(kernel("scores", "h i j", extent, total("k", times(rows, cache)), shapes))
    (stage,) = default_schedule(k, resolve_target("cpu:x86-64-v4")).stages
    assert (stage.form, stage.mr, stage.stage_a, stage.stage_b) == ("dot", 3, "hoist", "none")


@pytest.mark.parametrize(("rows", "vectors"), [(1, 4), (3, 4), (12, 2), (64, 2)])
def test_few_weighted_rows_read_whole_rows_of_values(rows: int, vectors: int) -> None:
    k = normalize(attention(4, rows, 512, 64))
    stages = default_schedule(k, resolve_target("cpu:x86-64-v4")).stages
    (weighted,) = (p for p in stages if p.lane_axis == "d")
    assert weighted.nv == vectors
