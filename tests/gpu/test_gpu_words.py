"""Numbers of 4 bits that kernels of GPUs take out of words, on both emulators."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
import msl
from dealing import dealt, narrowed, random_dealt, refusal
from kernel_zoo import byte_matmul, kernel, levels, random_inputs, times, x
from kernels import TOLERANCE, worst
from lumc.bundle.packing import pack
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu import neighbours
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.words import number, words_of
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.packing import Packing
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, cast, dyn, guard, load
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule

ROWS, COLUMNS = 5, 24
CUDA = """#include "lumc_dev.h"
extern "C" __global__ void k(const lumc_u32 *W, lumc_i32 *y) {{ int i = threadIdx.x; y[i] = {}; }}
LUMC_EXPORT(k)
"""
METAL = """kernel void k(device const lumc_u32 *W [[buffer(0)]], device lumc_i32 *y [[buffer(1)]],
    uint tid [[thread_index_in_threadgroup]]) {{ int i = tid; y[i] = {}; }}
"""


def of_few(bits: int, n: int = COLUMNS, k: int = ROWS) -> Kernel:
    """A product with a weight whose values so many bits tell apart."""
    kernel = byte_matmul(3, n, k)
    few = tuple(replace(b, few=bits) if b.constant else b for b in kernel.buffers)
    return replace(kernel, buffers=few)


def words(kernel: Kernel) -> Mapping[str, Packing]:
    return words_of(kernel)


def packing() -> Packing:
    ((name, found),) = words(of_few(4)).items()
    assert name == found.weight == "w" and found.size == ROWS * COLUMNS // 8
    return found


@pytest.mark.parametrize(("kind", "least"), [(DType.U8, 0), (DType.I8, -8)])
@pytest.mark.parametrize("language", ["cuda", "metal"])
def test_numbers_come_out_of_words(language: str, kind: DType, least: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(least, least + 16, (ROWS, COLUMNS))
    packed = pack(values.astype(kind.numpy), kind, packing()).view(np.uint32)
    text = (CUDA if language == "cuda" else METAL).format(number("W", "i", packing(), kind))
    if language == "metal":
        module = msl.build(header_of("metal") + text, tmp_path, True)
    else:
        module = emulator.build(text, tmp_path, True)
    got = np.zeros(values.size, np.int32)
    assert module.launch("k", Grid(1, values.size), [packed, got]) == ""
    assert np.array_equal(got.reshape(values.shape), values)


def test_only_whole_words_of_weights() -> None:
    for made in (of_few(5), of_few(8), of_few(4, 7), byte_matmul(3, COLUMNS, ROWS)):
        assert not words(made)


# ---- products and lookups of whole kernels


def lookup(rows: int, n: int, count: int) -> Kernel:
    """Rows of a table of numbers, each times its scale."""
    at = dyn(x("row", "i", kind=DType.I64))
    level = cast(DType.F32, load("levels", DType.U8, at, "n"))
    shapes = {"row": (count,), "levels": (rows, n), "scales": (rows,)}
    guarded = guard(at, 0, rows, times(load("scales", DType.F32, at), level))
    kinds = {"row": DType.I64, "levels": DType.U8}
    made = kernel("lookup", "i n", {"i": count, "n": n}, guarded, shapes, "levels scales", kinds)
    few = (replace(b, few=4) if b.name == "levels" else b for b in made.buffers)
    return replace(made, buffers=tuple(few))


PRODUCTS = {
    "one row": lambda: levels(1, 24, 5, 32, DType.U8, 4),
    "one row of signed ones": lambda: levels(1, 24, 6, 16, DType.I8, 4, "shifted"),
    "rows": lambda: levels(3, 40, 18, 32, DType.U8, 4, "nested"),
    "bare": lambda: levels(1, 9, 3, 8, DType.I8, 4, "bare"),
    "tiles": lambda: levels(17, 40, 3, 32, DType.U8, 4),
    "apart": lambda: levels(17, 40, 3, 32, DType.U8, 4, "turned"),
    "short blocks": lambda: levels(1, 6, 4, 4, DType.U8, 4),
    "table": lambda: lookup(11, 40, 5),
    "halves": lambda: narrowed(levels(40, 48, 4, 32, DType.U8, 4), DType.F16),
}
TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)


def given(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; rows of tables are theirs."""
    inputs = random_inputs(kernel, seed)
    if "row" in inputs:
        rows = np.random.default_rng(seed).integers(0, inputs["levels"].shape[0], 5)
        inputs["row"] = rows.astype(np.int64)
    return inputs


def error(made: Sequence[tuple[Kernel, Schedule]], target: Target, folder: Path) -> float:
    """The greatest error of kernels on an emulator, race-checked, in that which is allowed;
    infinite where it stops."""
    dialect = DIALECTS[target.kind]
    printed = [print_kernel(dealt(k, s, target), dialect, f"k{i}") for i, (k, s) in enumerate(made)]
    source = "\n".join(text for text, _ in printed)
    source = header_of("metal") + source if target.kind == "metal" else source
    module = (msl if target.kind == "metal" else emulator).build(source, folder, True)
    errors = [0.0]
    for i, (k, _) in enumerate(made):
        inputs, packed = given(k, i), words(normalize(k))
        want = evaluate_kernel(k, inputs)["out"]
        kind = k.buffer("out").dtype
        out = np.full(want.shape, np.nan, kind.numpy)
        arrays = [
            pack(inputs[b.name], b.dtype, packed[b.name])
            if b.name in packed
            else inputs.get(b.name, out)
            for b in normalize(k).buffers
        ]
        said = module.launch(f"k{i}", printed[i][1], arrays, ("forward", "random")[i % 2], i)
        limit = TOLERANCE.get(kind, 2e-5)
        errors.append(np.inf if said else worst(out, want, kind) / limit)
    return max(errors)


def planned(name: str, target: Target) -> tuple[Kernel, Schedule]:
    kernel = PRODUCTS[name]()
    return kernel, next(s for s in guesses(kernel, target) if not refusal(kernel, s, target))


@by_target
def test_products_of_words(target: Target, built: Path) -> None:
    assert error([planned(name, target) for name in PRODUCTS], target, built) < 1


@by_target
@pytest.mark.deep
def test_products_of_words_with_many_schedules(target: Target, built: Path) -> None:
    rng, made = random.Random(7), list[tuple[Kernel, Schedule]]()
    while len(made) < 40:
        kernel = PRODUCTS[rng.choice([*PRODUCTS])]()
        s = random_dealt(kernel, target, rng)
        if not refusal(kernel, s, target):
            made.append((kernel, s))
    assert error(made, target, built) < 1


@by_target
def test_a_word_is_read_once_for_its_numbers(target: Target) -> None:
    """Before the loop over them, where they lie along what a thread has side by side."""
    for name in ("one row", "one row of signed ones", "rows", "tiles", "halves"):
        text, _ = print_kernel(dealt(*planned(name, target), target), DIALECTS[target.kind], "k")
        reads = [line.strip() for line in text.split("\n") if "B_levels[" in line]
        assert len(reads) == text.count("lumc_u32 V_") > 0, text
        assert all(line.startswith("V_") for line in reads), reads
        assert ("lumc_store(&S_" in text) == (name in ("tiles", "halves"))


@by_target
@pytest.mark.parametrize("name", ["tiles", "halves"])
def test_tiles_walk_over_whole_blocks(target: Target, name: str) -> None:
    """These lie in memory one behind the other; of the same steps in every block nothing does."""
    _, s = planned(name, target)
    assert s.tile["o"] == 1 and "k" not in s.tile
    _, apart = planned("apart", target)
    assert apart.tile.get("o", 0) != 1 or "k" in apart.tile


MUTANTS = {
    "the next word": ("shifted", ">> {log}]", ">> {log} ^ 1]"),
    "the front of the word": ("shifted", " >> (", " >> 0 * ("),
    "the same number": ("taken", " >> (", " >> 0 * ("),
    "numbers in order": ("taken", "& 3) * 8", "& 3) * 4"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_noticed(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, old, new = MUTANTS[name]
    right, log = getattr(neighbours, function), packing().steps.bit_length() - 1

    def wrong(*args: Any) -> str:
        text = right(*args)
        assert old.format(log=log) in text
        return str(text.replace(old.format(log=log), new.format(log=log), 1))

    monkeypatch.setattr(neighbours, function, wrong)
    target = TARGETS[0]
    assert not error([planned("one row", target)], target, built) < 1
