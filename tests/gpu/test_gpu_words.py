"""Numbers of 4 bits that kernels of GPUs take out of words, on the emulators."""

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
from device import in_hip
from kernel_zoo import byte_matmul, kernel, levels, random_inputs, times, x
from kernels import TOLERANCE, worst
from lumc.bundle.packing import pack
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu import distribute, neighbours, writer
from lumc.codegen.gpu.common import Common, common
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.words import as_float, parted, shifted, taken, words_of
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.packing import Packing
from lumc.disk.blocks import part_of
from lumc.disk.stored import Stored
from lumc.frontend import Model
from lumc.frontend.models.blocks import read_where_it_lies
from lumc.graph.expr import Expr, add, num
from lumc.graph.graph import WeightFile
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, cast, dyn, guard, load
from lumc.oracle.term import evaluate_kernel
from lumc.profile.choose import estimate
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule, Threads
from lumc.search import search
from lumc.search.saturate import Limits
from shorter import shorter

ROWS, COLUMNS = 5, 24
CUDA = """#include "lumc_dev.h"
extern "C" __global__ void k(const lumc_u32 *W, lumc_i32 *y, float *z, float *each)
{{ int i = threadIdx.x; y[i] = {}; z[i] = {}; each[i] = {}; }}
LUMC_EXPORT(k)
"""
METAL = """kernel void k(device const lumc_u32 *W [[buffer(0)]], device lumc_i32 *y [[buffer(1)]],
    device float *z [[buffer(2)]], device float *each [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]])
{{ int i = tid; y[i] = {}; z[i] = {}; each[i] = {}; }}
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


def every_number(least: int) -> np.ndarray:
    """Each of the 16 at each place of a word, among others at random."""
    values = np.random.default_rng(0).integers(least, least + 16, (128, 8))
    at = np.arange(128)
    values[at, at % 8] = least + at // 8
    return values.reshape(32, 32)


@pytest.mark.parametrize(("kind", "least"), [(DType.U8, 0), (DType.I8, -8)])
@pytest.mark.parametrize("language", ["cuda", "metal", "hip"])
def test_numbers_come_out_of_words(language: str, kind: DType, least: int, tmp_path: Path) -> None:
    """As integers, as floats by an index, and by one that compilers know: the same, bit for bit."""
    values = every_number(least)
    ((_, how),) = words(of_few(4, 32, 32)).items()
    packed = pack(values.astype(kind.numpy), kind, how).view(np.uint32)
    known = "0"
    for n in range(8):
        known = f"i % 8 == {n} ? {as_float('W[i / 8]', str(n), kind)} : {known}"
    front = shifted("W[i / 8]", "i", how)
    said = taken("W[i / 8]", "i", how, kind), as_float(front, "0", kind), known
    if language == "metal":
        module = msl.build(header_of("metal") + METAL.format(*said), tmp_path, True)
    else:
        text = (CUDA if language == "cuda" else in_hip(CUDA)).format(*said)
        module = emulator.build(text, tmp_path, True)
    whole, loose, fixed = np.zeros(1024, np.int32), *np.full((2, 1024), np.nan, np.float32)
    assert module.launch("k", Grid(1, 1024), [packed, whole, loose, fixed]) == ""
    assert np.array_equal(whole, values.reshape(-1))
    want = values.reshape(-1).astype(np.float32).view(np.uint32)
    assert np.array_equal(loose.view(np.uint32), want)
    assert np.array_equal(fixed.view(np.uint32), want)


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
TARGETS = [*map(resolve_target, ("cuda:sm_90", "metal:apple7", "hip:gfx942"))]
MANY = [Threads(64, 64, 16), Threads(64, 64, 8), Threads(128, 32, 4), Threads(64, 4, 2)]
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)


def given(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; rows of tables are theirs."""
    inputs = random_inputs(kernel, seed)
    if "row" in inputs:
        rows = np.random.default_rng(seed).integers(0, inputs["levels"].shape[0], 5)
        inputs["row"] = rows.astype(np.int64)
    return inputs


def compiled(
    made: Sequence[tuple[Kernel, Schedule]], target: Target, folder: Path, checked: bool
) -> tuple[Any, list[Grid]]:
    """Kernels ``k0``.. on an emulator, and how they are launched."""
    dialect = DIALECTS[target.kind]
    printed = [print_kernel(dealt(k, s, target), dialect, f"k{i}") for i, (k, s) in enumerate(made)]
    source = "\n".join(text for text, _ in printed)
    grids = [grid for _, grid in printed]
    if target.kind == "metal":
        return msl.build(header_of("metal") + source, folder, checked), grids
    warps = {"lanes": target.gpu.warp} if target.kind == "hip" and target.gpu else {}
    return emulator.build(source, folder, checked, **warps), grids


def error(made: Sequence[tuple[Kernel, Schedule]], target: Target, folder: Path) -> float:
    """The greatest error of kernels on an emulator, race-checked, in that which is allowed;
    infinite where it stops."""
    module, grids = compiled(made, target, folder, True)
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
        said = module.launch(f"k{i}", grids[i], arrays, ("forward", "random")[i % 2], i)
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


# ---- weights of GGUF files


def of_file(layout: str, n: int, k: int, target: Target) -> tuple[Kernel, Schedule]:
    """One row by a weight as a GGUF file has it."""
    g, file = Model(), WeightFile("weights.gguf", 1, "0" * 64)
    w = read_where_it_lies(g, "w", file, Stored("w", None, (n, k), 0, 1, layout))
    g.output("y", g.input("x", (1, k)) @ w.permute(1, 0))
    plan = estimate(search(g.graph(), target, Limits()))
    (only,) = plan.kernels.values()
    return only.kernel, only.schedule


@pytest.mark.parametrize("checked", shorter([True, False]), ids=["checked", "plain"])
@by_target
def test_values_are_those_of_ggml(target: Target, checked: bool, built: Path) -> None:
    """A row of zeros but for one 1 picks a column of the weight, bit for bit."""
    gguf = pytest.importorskip("gguf")
    n, k, rng = 16, 96, np.random.default_rng(5)
    scales = rng.integers(0, 1 << 16, (n, k // 32, 1), np.uint16)
    scales[scales & 0x7C00 == 0x7C00] = 0x8001  # a denormal one for those that are not finite
    bits = rng.integers(0, 256, (n, k // 32, 16), np.uint8)
    raw = np.concatenate([scales.view(np.uint8), bits], -1).reshape(n, -1)
    want = gguf.dequantize(raw.copy(), gguf.GGMLQuantizationType.Q4_0)
    kernel, first = of_file("q4_0", n, k, target)
    found = [first, *(replace(first, tile={"i": 8}, threads=t) for t in MANY)]
    made = [(kernel, s) for s in found if not refusal(kernel, s, target)]
    assert len(made) == len(found)
    module, grids = compiled(made, target, built, checked)
    packed, parts = words(kernel), {"levels": DType.I8, "scales": DType.F16}
    for row in range(k):
        x = np.zeros((1, k), np.float32)
        x[0, row] = 1
        for i, grid in enumerate(grids):
            out = np.full((1, n), np.nan, np.float32)
            arrays = list[np.ndarray]()
            for b in kernel.buffers:
                if b.name in kernel.stored:
                    arrays.append(out)
                elif not b.constant:
                    arrays.append(x)
                else:
                    part = next(p for p, kind in parts.items() if kind is b.dtype)
                    values = part_of("q4_0", part, raw)
                    how = packed.get(b.name)
                    arrays.append(pack(values, b.dtype, how) if how else values)
            assert module.launch(f"k{i}", grid, arrays) == ""
            assert np.array_equal(out[0], want[:, row])


# ---- mutants


def other_words(index: Expr, steps: int) -> tuple[Expr, Expr]:
    whole, rest = parted(index, steps)
    return whole, add(rest, num(steps))


MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "the next word": ("one row", writer, "parted", other_words),
    "the front of the word": ("short blocks", neighbours, "shifted", lambda word, *_: word),
    "the same number": ("one row", writer, "as_float", lambda w, _, kind: as_float(w, "0", kind)),
    "the least of others": (
        *("one row of signed ones", writer, "as_float"),
        lambda w, at, _: as_float(w, at, DType.U8),
    ),
    "a common factor twice": (
        *("one row", distribute, "common"),
        lambda o, a: (c := common(o, a)) and Common(c.factor, o.term),
    ),
}
IN_THE_HEADER = {
    "numbers in order": ("(at & 3) * 8", "(at & 3) * 4"),
    "no room in the fraction": ("low > 16", "low > 20"),
    "another exponent": ("(150 - p)", "(151 - p)"),
    "what stands before": ("(23 - p)) + least", "(23 - p)) - least"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_noticed(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, where, function, wrong = MUTANTS[name]
    monkeypatch.setattr(where, function, wrong)
    assert not error([planned(kernel, TARGETS[0])], TARGETS[0], built) < 1


@pytest.mark.parametrize("name", IN_THE_HEADER)
def test_mistakes_of_the_header_are_noticed(
    name: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old, new), right, header = IN_THE_HEADER[name], emulator.build, header_of("cuda")
    assert old in header
    wrong = tmp_path / "wrong.h"
    wrong.write_text(header.replace(old, new))

    def build(source: str, folder: Path, checked: bool) -> emulator.Module:
        return right(source.replace("lumc_dev.h", str(wrong)), folder, checked)

    monkeypatch.setattr(emulator, "build", build)
    assert not error([planned("one row of signed ones", TARGETS[0])], TARGETS[0], built) < 1
