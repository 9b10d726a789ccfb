"""Schedules for GPUs: the guesses lower, the space holds them, samples are what they say."""

import random
from collections.abc import Callable, Iterator

import pytest

from drawing import a_path
from kernel_zoo import (
    FAMILIES,
    byte_matmul,
    column_sum,
    layernorm,
    matmul,
    mixed_linear,
    moments,
    scalar_add,
    softmax,
    transpose,
    typed_matmul,
)
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.program import steps_of
from lumc.codegen.tile.lower import lower
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.kernel.key import kernel_key
from lumc.kernel.machines import GPUS, resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule import choices
from lumc.schedule.first_blocks import guesses
from lumc.schedule.moves import neighbours, structures
from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar, Path

TARGETS = [resolve_target(f"{kind}:{arch}") for kind, archs in GPUS.items() for arch in archs]
H200, M1 = resolve_target("cuda:sm_90"), resolve_target("metal")
TF32 = resolve_target("cuda:sm_90+tf32")


@pytest.mark.parametrize("target", [H200, M1], ids=lambda t: t.arch)
def test_guesses_lower_and_deal_to_all_threads(target) -> None:
    for family, shapes in FAMILIES.items():
        for shape in shapes:
            k = family(*shape)
            for schedule in guesses(k, target):
                lower(k, schedule, target)
                threads = schedule.threads
                assert threads and threads.count & (threads.count - 1) == 0
                for p in (p for p in schedule.stages if p.form == "contract"):
                    units = 1 if p.fragment == "simt" else 32
                    assert p.grid[0] * p.grid[1] * units == threads.count


@pytest.mark.parametrize("target", [H200, M1], ids=lambda t: t.arch)
@pytest.mark.parametrize("family", [softmax, layernorm, moments])
def test_every_warp_has_rows(family: Callable[[int, int], Kernel], target: Target) -> None:
    """Threads along a short row leave some for other rows, also where results lie along it."""
    k = family(64, 100)
    schedule = next(iter(guesses(k, target)))
    threads, program = schedule.threads, lower(k, schedule, target)
    assert threads and schedule.tile == {"m": threads.count // threads.row}
    for step in steps_of(distribute(program, threads).body):
        assert step.points.across_warps([None], 32) == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.arch)
def test_samples_lower_and_have_their_path(target) -> None:
    for i, (family, shapes) in enumerate(FAMILIES.items()):
        g = Grammar(family(*shapes[i % len(shapes)]), target)
        rng = random.Random(i)
        counted = target in (H200, M1)  # which takes longest
        assert not counted or g.size() > 1000 or not g.kernel.axes
        for _ in range(3):
            path = g.sample(rng) if counted else a_path(g, rng)
            schedule = g.build(path)
            assert g.path(schedule) == path
            assert Schedule.from_json(schedule.to_json()) == schedule
            lower(g.kernel, schedule, target)


def every(g: Grammar, path: Path = ()) -> Iterator[Path]:
    """All paths."""
    if len(path) == len(g.names):
        yield path
    for value in g.options(path) if len(path) < len(g.names) else ():
        yield from every(g, (*path, value))


@pytest.mark.parametrize("k", [scalar_add(), column_sum(3, 4), transpose(3, 5), matmul(1, 3, 2)])
def test_the_size_is_the_number_of_paths(k, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"threads": (32, 64), "row": (4,), "vector": (1,), "ring": (1, 2), "pad": (0,)}
    few |= {"resident": (1,), "bulk": (0,)}
    rows = [
        row._replace(values=lambda _, __, ___, some=few[row.name]: some) if row.name in few else row
        for row in choices.CHOICES
    ]
    monkeypatch.setattr(choices, "CHOICES", rows)
    g = Grammar(k, H200)
    found = list(every(g))
    assert len(found) == len(set(found)) == g.size()


@pytest.mark.parametrize(
    ("k", "target", "fragments"),
    [
        (typed_matmul(64, 64, 64, DType.F32), H200, ()),
        (typed_matmul(64, 64, 64, DType.F32), TF32, ("mma",)),
        (typed_matmul(64, 64, 64, DType.BF16), H200, ("wgmma", "mma")),
        (mixed_linear(64, 64, 64, DType.F16), H200, ("wgmma", "mma")),
        (byte_matmul(64, 64, 64), H200, ("mma",)),
        (typed_matmul(64, 64, 64, DType.I8), H200, ()),
        (typed_matmul(64, 64, 64, DType.F32), M1, ("simdgroup",)),
        (mixed_linear(64, 64, 64, DType.BF16), M1, ("simdgroup",)),
        (typed_matmul(64, 64, 64, DType.I32), M1, ()),
        (byte_matmul(64, 64, 64), M1, ()),
    ],
)
def test_what_matrix_units_multiply(k, target, fragments) -> None:
    """Guessed first, and in the space; f32 on tensor cores only if rounding is asked for."""
    found = [p.fragment for s in guesses(k, target) for p in s.stages if p.form == "contract"]
    assert found[:1] == [*fragments[:1]] or not fragments
    assert {*found} <= {"simt", *fragments}
    g, rng = Grammar(k, target), random.Random(1)
    drawn = {p.fragment for _ in range(90) for p in g.build(g.sample(rng)).stages}
    assert drawn == {"simt", *fragments}


def test_a_feature_of_a_target() -> None:
    assert TF32.name == resolve_target("cuda+tf32").name == "cuda:sm_90+tf32"
    assert TF32.flags == ("tf32",) and TF32.generation == H200.generation == 90
    k = matmul(64, 64, 64)
    assert kernel_key(k, TF32) != kernel_key(k, H200)
    for name in ("cuda:sm_90+fp8", "cpu+tf32", "metal:apple8+tf32", "cuda:sm_90+"):
        with pytest.raises(LumcError, match="has no feature") as e:
            resolve_target(name)
        assert e.value.code == "E0401" and "cuda:sm_90+tf32" in e.value.fix


def test_steps_through_the_space_stay_inside() -> None:
    g = Grammar(matmul(64, 96, 64), H200)
    found = structures(g)
    assert len(found) > 4 and all(g.path(s) for s in found)
    near = neighbours(g, found[0])
    assert len(near) > 50 and all(g.path(s) for s in near)
