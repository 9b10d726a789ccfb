"""Every class of kernel, odd and aligned, default and random schedules, against float64."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from drawing import lawful, random_schedule, sane_schedule
from kernel_zoo import (
    FAMILIES,
    bias_gelu,
    gelu,
    kernel,
    layernorm,
    matmul,
    norm_of_gelu,
    random_inputs,
    softmax,
    x,
)
from kernels import (
    FLAGS,
    PLAIN,
    QUICK,
    aligned,
    arguments,
    assert_close,
    call,
    compile_programs,
    native,
    run,
    run_checked,
)
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Contract, Map, Par, Program, Reduce, Rows, When, leaves
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, cast
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.operands import NARROW
from lumc.schedule.schedule import Schedule, Stage

DRAWS = 16  # random schedules per family, shared by its shapes
FUZZ = bool(os.environ.get("LUMC_FUZZ"))
SOON = DRAWS if FUZZ else 10  # of these; all of them find the mutants
DEEP = 25  # and per shape, when looking for faults
NAMES = {family.__name__: family for family in FAMILIES}


def seed_of(name: str, i: int) -> random.Random:
    return random.Random(f"{name}{i}")


def programs_of(kernel: Kernel, schedules: list[Schedule]) -> list[Program]:
    return [lower(kernel, s, native()) for s in schedules]


@pytest.mark.parametrize("name", NAMES)
def test_default_schedules(name: str, tmp_path: Path) -> None:
    kernels = [NAMES[name](*shape) for shape in FAMILIES[NAMES[name]]]
    programs = [lower(k, default_schedule(k, native()), native()) for k in kernels]
    lib = compile_programs(tmp_path, programs, FLAGS)
    for i, (k, program) in enumerate(zip(kernels, programs, strict=True)):
        inputs = random_inputs(k, i)
        want = evaluate_kernel(k, inputs)
        for parts in (1, 3):
            assert_close(k, run(lib, i, program, inputs, parts), want, f"{parts} parts")


@pytest.mark.parametrize("name", NAMES)
def test_random_schedules(name: str, tmp_path: Path) -> None:
    shapes = FAMILIES[NAMES[name]]
    kernels = [NAMES[name](*shapes[i % len(shapes)]) for i in range(SOON)]
    draw = [random_schedule, random_schedule, sane_schedule]
    schedules = [
        draw[i % 3](k, native(), seed_of(name, i + int(os.environ.get("LUMC_SEED", 0))))
        for i, k in enumerate(kernels)
    ]
    programs = [lower(k, s, native()) for k, s in zip(kernels, schedules, strict=True)]
    # mutants are found without optimisation too, and default schedules are compiled with all of it
    lib = compile_programs(tmp_path, programs, QUICK if FUZZ else PLAIN)
    for i, (k, program) in enumerate(zip(kernels, programs, strict=True)):
        inputs = random_inputs(k, i)
        got = run(lib, i, program, inputs, 1 + i % 3)
        assert_close(k, got, evaluate_kernel(k, inputs), schedules[i])


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_many_random_schedules(name: str, tmp_path: Path) -> None:
    for shape in FAMILIES[NAMES[name]]:
        k = NAMES[name](*shape)
        inputs = random_inputs(k, 5)
        want = evaluate_kernel(k, inputs)
        rng = [seed_of(f"deep{name}{shape}", i) for i in range(DEEP)]
        schedules = [random_schedule(k, native(), r) for r in rng]
        programs = programs_of(k, schedules)
        lib = compile_programs(tmp_path, programs, FLAGS)
        for i, program in enumerate(programs):
            assert_close(k, run(lib, i, program, inputs, 1 + i % 3), want, schedules[i])


def test_sanitizers(tmp_path: Path) -> None:
    """One shape and schedule of every family at -O0 under address and undefined sanitizers."""
    check_with_sanitizers(tmp_path, 1)


def test_streaming_prefetching_and_skewing_change_no_bit(tmp_path: Path) -> None:
    """Wherever the result starts; and nothing beside it is touched."""
    half = cast(DType.F16, gelu(x("x", "m", "n")))
    narrow = kernel("narrow", "m n", {"m": 5, "n": 333}, half, {"x": (5, 333)})
    kernels = [
        softmax(9, 300),
        softmax(4, 1000),
        layernorm(9, 256),
        norm_of_gelu(7, 300),
        bias_gelu(5, 999),
        narrow,
    ]
    for k in kernels:
        plain = replace(default_schedule(k, native()), stream=False, prefetch=False)
        walks = [  # in pieces of several sizes
            replace(p, streams=4 if s.attr[0] == "max" else 2)
            for s, p in zip(normalize(k).stages, plain.stages, strict=True)
        ]
        plain = replace(plain, stages=tuple(walks))
        flags = product((False, True), repeat=3)
        schedules = [replace(plain, skew=a, stream=b, prefetch=c) for a, b, c in flags]
        schedules += [replace(s, tile={}) for s in schedules]
        schedules.append(replace(schedules[-1], keep=False))
        programs = programs_of(k, [lawful(normalize(k), s, native()) for s in schedules])
        assert "lumc_stream(" in print_kernel(programs[-1], "k")
        lib, inputs, seen = compile_programs(tmp_path, programs), random_inputs(k, 3), set()
        for i, program in enumerate(programs):
            for offset in (64, 68, 80, 126 if k is narrow else 124):
                arrays = arguments(program, inputs, 2)
                at = [b.name for b in k.buffers].index("out")
                n = arrays[at].nbytes
                memory = aligned((n + 256,), np.dtype(np.uint8))
                memory[:] = 0x55
                arrays[at] = memory[offset : offset + n]
                call(lib, i, arrays, 2)
                assert (memory[:offset] == 0x55).all() and (memory[offset + n :] == 0x55).all()
                seen.add(arrays[at].tobytes())
        assert len(seen) == 1


@pytest.mark.parametrize("stage_b", ["none", "inner", "hoist"])
def test_partial_panels_at_odd_shapes(stage_b: str, tmp_path: Path) -> None:
    """Whole and partial panels in every order, at the last rows too."""
    plan = Stage("contract", "m", "n", 8, 3, stage_b=stage_b, panels_first=False)
    jobs = []
    for m, n, k in ((3, 49, 33), (13, 100, 32), (50, 147, 48), (97, 151, 31)):
        product = matmul(m, n, k, weight=False)
        for order, tile in ((("m", "n"), {"m": 16, "n": 96}), (("n", "m"), {"n": 96, "k": 16})):
            schedule = Schedule(order, 1, tile, (plan,))
            jobs.append((product, lower(product, schedule, native()), random_inputs(product, 3)))
    lib = compile_programs(tmp_path, [program for _, program, _ in jobs])
    for i, (product, program, inputs) in enumerate(jobs):
        got, want = run(lib, i, program, inputs, 1 + i % 2), evaluate_kernel(product, inputs)
        assert_close(product, got, want, i)


@pytest.mark.deep
def test_sanitizers_deep(tmp_path: Path) -> None:
    check_with_sanitizers(tmp_path, 12)


def check_with_sanitizers(folder: Path, draws: int) -> None:
    kernels, schedules = [], []
    for family, shapes in FAMILIES.items():
        for i in range(draws):
            k = family(*shapes[i % len(shapes)])
            rng = seed_of(f"checked{family.__name__}", i)
            kernels.append(k)
            schedules.append(random_schedule(k, native(), rng))
    programs = [lower(k, s, native()) for k, s in zip(kernels, schedules, strict=True)]
    inputs = [random_inputs(k, i) for i, k in enumerate(kernels)]
    results = run_checked(folder, programs, inputs)
    for k, data, got, s in zip(kernels, inputs, results, schedules, strict=True):
        assert_close(k, got, evaluate_kernel(k, data), s)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v2", "cpu:generic"])
def test_other_targets(target: str, tmp_path: Path) -> None:
    """Narrower vectors: other panels, edges and register tiles."""
    t = resolve_target(target)
    names = ["linear_gelu", "masked_attention", "conv", "layernorm", "transpose", "typed_matmul"]
    for name in names:
        k = NAMES[name](*FAMILIES[NAMES[name]][1])
        inputs, rng = random_inputs(k, 3), seed_of(name, 0)
        draws = [default_schedule(k, t), *(random_schedule(k, t, rng) for _ in range(2))]
        programs = [lower(k, s, t) for s in draws]
        lib = compile_programs(tmp_path, programs, QUICK)
        for i, program in enumerate(programs):
            got = run(lib, i, program, inputs, 2)
            assert_close(k, got, evaluate_kernel(k, inputs), draws[i])


def features(program: Program) -> set[str]:
    """What a program exercises."""
    out = set()

    def nests(body: list) -> None:
        for op in body:
            if isinstance(op, Par | Rows | When):
                part_start = isinstance(op, When) and op.part_start
                out.add("Once" if part_start else type(op).__name__)
            nests(getattr(op, "body", []))

    nests(program.body)
    for op in leaves(program.body):
        if isinstance(op, Contract):
            out |= {op.stage.form, *(["panels outside"] if op.stage.panels_outside else [])}
            out |= {"adds"} if op.overwrite is None else {"first"} if op.overwrite else set()
            kinds = [program.places[e.attr[0]].dtype for e in (op.a, op.b)]
            out |= {f"{k} {op.stage.form}" for k in kinds if k in NARROW}
        if isinstance(op, Map):
            out |= {"turn"} if op.turn else set()
            place = op.dst.attr[0]
            out |= {place.partition(".")[0]} if "." in place else set()
            out |= {"panel"} if program.places[place].panel else set()
            out |= {"stream"} if op.stream else set()
        if isinstance(op, Reduce):
            out |= {"lanes " + op.lanes, f"streams {op.streams}"}
            out |= {"stores"} if op.stores else set()
            out |= {f"runs along {op.lanes}"} if op.runs else set()
        out |= {"ahead"} if getattr(op, "ahead", ()) else set()
    return out | ({"packed"} if program.packed else set())


def test_random_schedules_reach_every_feature() -> None:
    """All draws of ``test_random_schedules``, without compiling."""
    count: Counter[str] = Counter()
    for family, shapes in FAMILIES.items():
        for i in range(DRAWS):
            k = family(*shapes[i % len(shapes)])
            rng = seed_of(family.__name__, i)
            count.update(features(lower(k, random_schedule(k, native(), rng), native())))
    wanted = "contract dot first adds turn panel packed copy scale stores Par Once Rows"
    least = dict.fromkeys(wanted.split(), 10)
    least |= {f"{k} {form}": 1 for k in NARROW[:3] for form in ("contract", "dot")}
    least |= {"window": 4, "lanes kept": 5, "streams 4": 20, "panels outside": 20, "When": 1}
    least |= {"stream": 20, "ahead": 20, "runs along reduced": 5, "runs along kept": 2}
    missing = {f: count[f] for f, n in least.items() if count[f] < n}
    assert not missing, (missing, count)
