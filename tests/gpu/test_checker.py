"""The checker reports a race exactly where two accesses are not ordered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from emulator import ORDERS, Module, build
from lumc.codegen.gpu.grid import Grid

# runs a program: steps of (kind, thread, element); the last two kinds are for all threads
READ, WRITE, WARP_SYNC, SYNC = range(4)
INTERPRETER = """#include "lumc_dev.h"
extern "C" __global__ void interpret(const int *B_steps, const int *B_count, float *B_y)
{
    LUMC_SHARED(lumc_u8, S);
    LUMC_TILE(float, S_x, S, 0, 4);
    float *x = B_count[1] ? B_y : S_x; /* global or shared memory */
    if (threadIdx.x < 4)
        x[threadIdx.x] = 0;
    lumc_sync();
    float sum = 0;
    for (int i = 0; i < B_count[0]; i++) {
        const int *step = B_steps + 3 * i;
        if (step[0] == 2)
            lumc_warp_sync();
        else if (step[0] == 3)
            lumc_sync();
        else if (step[1] == threadIdx.x && step[0] == 1)
            x[step[2]] = sum + i;
        else if (step[1] == threadIdx.x)
            sum += x[step[2]];
    }
    lumc_sync();
    if (threadIdx.x >= 4) /* sum is used */
        B_y[threadIdx.x] = sum;
}
LUMC_EXPORT(interpret)
"""
Step = tuple[int, int, int]


def races(program: Sequence[Step]) -> bool:
    """By the definition: two accesses of one element, one of them a write, by two threads, with
    no barrier between them and no synchronisation of the warp of both."""
    for i, j in combinations(range(len(program)), 2):
        (a, s, x), (b, t, y) = program[i], program[j]
        if max(a, b) != WRITE or s == t or x != y:
            continue
        between = [kind for kind, _, _ in program[i:j]]
        if SYNC not in between and not (WARP_SYNC in between and s // 32 == t // 32):
            return True
    return False


def verdict(module: Module, program: Sequence[Step], order: str, in_global: bool) -> str:
    steps = np.array(program, np.int32)
    count = np.array([len(program), in_global], np.int32)
    y = np.zeros(64, np.float32)
    return module.launch("interpret", Grid(1, 64, 16), [steps, count, y], order, seed=7)


def test_races_are_reported_and_nothing_else(built: Path) -> None:
    module, rng = build(INTERPRETER, built, checked=True), np.random.default_rng(9)
    seen = {False: 0, True: 0}
    for n in range(400):
        kinds = rng.choice(4, rng.integers(2, 12), p=[0.35, 0.25, 0.25, 0.15])
        threads = rng.choice([0, 1, 2, 31, 32, 40], len(kinds))
        elements = rng.integers(0, 2, len(kinds))
        program = [
            (int(k), int(t), int(e)) for k, t, e in zip(kinds, threads, elements, strict=True)
        ]
        want = races(program)
        seen[want] += 1
        report = verdict(module, program, ORDERS[n % 3], bool(n % 2))
        assert bool(report) == want, (program, report)
        assert not report or report.startswith("race: B_y[" if n % 2 else "race: S_x[")
    assert min(seen.values()) > 100


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (WRITE, READ, "read by thread 40 (warp 1) of block 0 after it is written"),
        (READ, WRITE, "overwritten by thread 40 (warp 1) of block 0 after it is read"),
        (WRITE, WRITE, "written by thread 40 (warp 1) of block 0 after it is written"),
    ],
)
def test_what_a_race_is_called(built: Path, first: int, second: int, said: str) -> None:
    module = build(INTERPRETER, built, checked=True)
    report = verdict(module, [(first, 3, 1), (second, 40, 1)], "forward", False)
    before = "by thread 3 (warp 0) of block 0 without a barrier between"
    assert report == f"race: S_x[1] is {said} {before}\n"


# the element types of memory, and how a kernel converts them to float and back
ELEMENTS = {
    "float": ("", "lumc_sqrt_f32"),
    "double": ("", "lumc_sqrt_f64"),
    "lumc_f16": ("lumc_from_f16", "lumc_to_f16"),
    "lumc_bf16": ("lumc_from_bf16", "lumc_to_bf16"),
    "lumc_i64": ("", "lumc_to_i64"),
    "lumc_i32": ("", "lumc_to_i32"),
    "lumc_i8": ("", "(lumc_i8)"),
    "lumc_u8": ("", "(lumc_u8)"),
    "bool": ("", "(bool)"),
}


def test_accesses_of_every_type_are_seen(built: Path) -> None:
    """A compiler must tell of them all: g++ is silent about structs that calls take and return."""
    text = '#include "lumc_dev.h"\n'
    for i, (element, (load, store)) in enumerate(ELEMENTS.items()):
        for name, line in (
            ("read", f"B_y[threadIdx.x] = {load}(S_x[63 - threadIdx.x]);"),
            ("write", f"S_x[7] = {store}(B_y[threadIdx.x]);"),
            ("copy", "S_x[threadIdx.x % 8] = S_x[threadIdx.x];"),
        ):
            text += f"""
extern "C" __global__ void {name}{i}(float *B_y)
{{
    LUMC_SHARED({element}, S);
    LUMC_TILE({element}, S_x, S, 0, 64);
    {line}
}}
LUMC_EXPORT({name}{i})
"""
    module, grid = build(text, built, checked=True), Grid(1, 64, 512)
    for i, element in enumerate(ELEMENTS):
        for name, said in (
            ("read", ["uninitialised: S_x[63] is read by thread 0 "]),
            ("write", ["race: S_x[7] is written by thread 1 "]),
            ("copy", ["uninitialised: S_x[", "race: S_x[0] is written by "]),
        ):
            report = module.launch(f"{name}{i}", grid, [np.zeros(64, np.float32)])
            assert all(s in report for s in said), (element, name, report)
