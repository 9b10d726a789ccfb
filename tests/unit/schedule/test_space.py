"""The schedule space: exact counts, only legal samples, and all that the search may propose."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import factorial

import pytest

from drawing import a_path
from kernel_zoo import FAMILIES, column_sum, conv, matmul, scores, softmax, transpose
from lumc.errors import LumcError
from lumc.kernel.machines import CPUS, resolve_target
from lumc.kernel.term import dtype
from lumc.schedule import case, choices, reductions
from lumc.schedule.applies import grain
from lumc.schedule.first_stages import contraction_stage
from lumc.schedule.legal import check_schedule
from lumc.schedule.moves import carried, neighbours, stroll, structures
from lumc.schedule.operands import lanes, operands
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.space import Grammar, Path

TARGETS = [resolve_target(f"cpu:{arch}") for arch in CPUS]
V4 = resolve_target("cpu:x86-64-v4")
STAGING = ("none", "inner", "hoist", "link", "narrow")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.arch)
def test_samples_are_legal_and_the_default_is_inside(target) -> None:
    for i, (family, shapes) in enumerate(FAMILIES.items()):
        rng = random.Random(i)
        for shape in shapes[1:2]:
            g = Grammar(family(*shape), target)
            assert g.path(g.default) is not None, family.__name__
            for _ in range(3):
                counted = target == V4 and (i % 2 == 0 or "LUMC_FUZZ" in os.environ)
                path = g.sample(rng) if counted else a_path(g, rng)  # which counts nothing
                schedule = g.build(path)
                check_schedule(g.kernel, schedule, target)
                assert g.path(schedule) == path


def every(g: Grammar, path: Path = ()) -> Iterator[Path]:
    """All paths."""
    if len(path) == len(g.names):
        yield path
    for value in g.options(path) if len(path) < len(g.names) else ():
        yield from every(g, (*path, value))


@pytest.mark.parametrize("k", [column_sum(3, 4), transpose(3, 17), softmax(1, 3)])
def test_the_size_is_the_number_of_different_schedules(k) -> None:
    g = Grammar(k, V4)
    found = [repr(g.build(path)) for path in every(g)]
    assert len(found) == len(set(found)) == g.size()


@pytest.mark.parametrize("l2", [1 << 20, 8])
@pytest.mark.parametrize("k", [matmul(32, 24, 40), scores(2, 20, 24, 12)])
def test_the_size_is_that_of_brute_force(k, l2, monkeypatch: pytest.MonkeyPatch) -> None:
    """All combinations of all values, and what of them is legal."""
    for name, value in {"SIZES": (16,), "EVEN": (1,)}.items():
        monkeypatch.setattr(case, name, value)
    rows = [
        row._replace(values=FEW.get(row.name, row.values))
        for row in choices.CHOICES
        if row.of != "kernel"
    ]
    monkeypatch.setattr(choices, "CHOICES", rows)
    monkeypatch.setattr(reductions, "REGISTER_TILES", {32: ((8, 1),)})
    g = Grammar(k, replace(V4, l2=l2))
    n = len(g.kernel.axes)
    orders = factorial(n) * (n + 1)  # its single root has every axis
    assert g.size() == orders * sum(tilings(g, p) for p in set(stages(g)))


FEW = {
    "streams": lambda _, __, state: (1, 2) if state.stage == Stage() else (1,),
    "window": lambda _, __, ___: (True,),
    "panels_outside": lambda _, __, ___: (False,),
    "panels_first": lambda _, __, ___: (True,),
}


def legal(g: Grammar, tile: dict[str, int], p: Stage) -> bool:
    try:
        check_schedule(g.kernel, Schedule(g.kernel.axes, 0, tile, (p,)), g.target)
    except LumcError:
        return False
    return True


def stages(g: Grammar) -> Iterator[Stage]:
    """Everything that is legal for the one reduction of a kernel."""
    (stage,), k, default = g.kernel.stages, g.kernel, g.default.stages[0]
    yield from (Stage(), Stage(streams=2), Stage(lanes="kept"))
    pairs = product(("contract", "dot"), (None, *k.axes), k.axes)
    for (form, rows, lane), a, b in product(pairs, STAGING, STAGING):
        if not legal(g, {}, Stage(form, rows, lane, 1, 1, a, b)):
            continue
        width = lanes(g.target, dtype(stage)) if form == "contract" else 1
        most = k.extent[rows] if rows else 1, -(-k.extent[lane] // width)
        tiles = [(8, 1)] if form == "contract" else reductions.DOT_TILES
        tiles = {(min(mr, most[0]), min(nv, most[1])) for mr, nv in tiles}
        if form == "contract":
            base = contraction_stage(k, stage, (rows, lane), g.target)
            tiles.add((base.mr, base.nv))
        if (form, rows, lane) == (default.form, default.rows_axis, default.lane_axis):
            tiles.add((default.mr, default.nv))
        for mr, nv in tiles:
            packed = form == "contract" and b in ("link", "narrow")
            for unroll in (False, True)[: 1 + (form == "contract")]:
                for fetch in (False, True)[: 1 + packed]:
                    p = Stage(form, rows, lane, mr, nv, a, b, unroll=unroll, next_panel=fetch)
                    yield p


def tilings(g: Grammar, p: Stage) -> int:
    """The ways to cut the axes around a stage that are legal and fit the caches."""
    extent, now, sizes = g.kernel.extent, g.default.tile, []
    for axis, n in extent.items():
        unit = grain(g.kernel, (p,), axis, g.target)
        wanted = {16, n, now.get(axis, n)}
        sizes.append(sorted({min(n, -(-w // unit) * unit) for w in wanted}))
    count = 0
    for sized in product(*sizes):
        tile = dict(zip(extent, sized, strict=True))
        cut = {a: t for a, t in tile.items() if t < extent[a]}
        count += legal(g, cut, p) and fits(g, p, tile)
    return count


def fits(g: Grammar, p: Stage, tile: dict[str, int]) -> bool:
    for side in "ab" if p.form != "rows" else "":
        axes = operands(g.kernel.stages[0], p.lane_axis)[side == "b"].free & set(tile)
        room = reductions.COPIES * g.target.l2 // 4
        room = max(room, cost(g.default.tile.get(a, g.kernel.extent[a]) for a in axes))
        if p.staging(side) in ("inner", "hoist") and cost(tile[a] for a in axes) > room:
            return False
    return True


def cost(sizes) -> int:
    out = 1
    for n in sizes:
        out *= 1 << (n - 1).bit_length()
    return out


def test_samples_are_uniform() -> None:
    g = Grammar(column_sum(2, 2), V4)
    rng, n = random.Random(0), g.size()
    seen = [g.sample(rng) for _ in range(40 * n)]
    counts = [seen.count(path) for path in every(g)]
    assert min(counts) > 10 and max(counts) < 90


@pytest.mark.parametrize("k", [matmul(40, 50, 60), conv(8, 4, 16, 16), softmax(17, 100)])
def test_the_space_holds_what_the_search_proposes(k) -> None:
    g, rng = Grammar(k, V4), random.Random(0)
    known = structures(g)
    assert known[0] == g.default and len(known) > 3
    found = [*known, *neighbours(g, g.default), *(stroll(g, known[-1], rng) for _ in range(5))]
    for schedule in found:
        check_schedule(g.kernel, schedule, V4)
        assert g.path(schedule) is not None
    assert g.default not in neighbours(g, g.default)


def test_schedules_are_carried_over_to_kernels_with_other_axes() -> None:
    """What is whole stays whole; tiles and panels are those that the other kernel has."""
    one, two = Grammar(matmul(64, 50, 1000), V4), Grammar(matmul(96, 700, 17), V4)
    rng = random.Random(0)
    for g, other in ((one, two), (two, one), (one, one)):
        for wanted in (g.default, *(stroll(g, g.default, rng) for _ in range(20))):
            schedule = carried(other, wanted, g.axes)
            check_schedule(other.kernel, schedule, V4)
            assert other.path(schedule) is not None
            place = dict(zip(g.axes, other.axes, strict=True))
            assert schedule.order == tuple(place[a] for a in wanted.order)
            (a,), (b,) = wanted.stages, schedule.stages
            assert (b.form, b.rows_axis and b.lane_axis) == (
                a.form,
                a.rows_axis and place[a.lane_axis],
            )
            assert other is not one or g is not one or schedule == wanted


@pytest.mark.parametrize("name", ["cuda:sm_90", "metal:apple7"])
def test_schedules_are_carried_over_on_gpus_too(name: str) -> None:
    target, rng = resolve_target(name), random.Random(0)
    for family, shapes in (
        (matmul, [(64, 50, 100), (1, 3, 17)]),
        (softmax, [(17, 100), (3, 1000)]),
    ):
        one, two = (Grammar(family(*shape), target) for shape in shapes)
        for g, other in ((one, two), (two, one)):
            for wanted in (g.default, *(stroll(g, g.default, rng) for _ in range(5))):
                schedule = carried(other, wanted, g.axes)
                check_schedule(other.kernel, schedule, target)
                assert other.path(schedule) is not None


def test_large_copies_are_left_out() -> None:
    k = matmul(512, 512, 2048)
    few, all_ = (Grammar(k, replace(V4, l2=l2)) for l2 in (1 << 12, 1 << 30))
    assert 0 < few.size() < all_.size() and few.path(few.default)
    rng = random.Random(0)
    draws = [all_.build(all_.sample(rng)) for _ in range(200)]
    assert 5 < sum(few.path(s) is None for s in draws) < 180


def test_a_path_goes_on_from_its_start() -> None:
    g = Grammar(matmul(40, 50, 60), V4)
    start = g.nearest(g.values(g.default))[:3]
    flags = 2  # copies may be turned
    assert g.count(0, g.starts[0]) * factorial(2) * 3 * flags == g.size()
    path = g.sample(random.Random(1), start)
    assert path[:3] == start and g.path(g.build(path)) == path


def test_streaming_kernels_try_every_way_to_memory() -> None:
    """Early, as a price does not know which one this machine likes."""
    rows = structures(Grammar(softmax(64, 256), V4))
    every = set(product((False, True), repeat=3))
    assert {(s.stream, s.prefetch, s.skew) for s in rows} == every
    contraction = structures(Grammar(matmul(64, 64, 64), V4))
    assert len({(s.stream, s.prefetch) for s in contraction}) < 4
