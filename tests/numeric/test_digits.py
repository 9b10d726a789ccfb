"""Floats multiplied with levels as integers, digit by digit, against numpy in float64."""

from __future__ import annotations

import re
from ctypes import CDLL
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kernels
import lumc.codegen.cpu.map as maps
import lumc.codegen.tile.digits as made
import mutating
from kernel_zoo import I8, U8, levels, random_inputs
from kernels import compile_programs, has_flag, native, run, with_flag
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Contract, Program, leaves
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.schedule.first import default_schedule

HERE = "cpu:x86-64-v4+vnni"
SHAPES = (
    (1, 64, 3, 32, U8, 4, "shifted"),
    (7, 130, 2, 16, I8, 4, ""),
    (3, 37, 3, 12, I8, 0, ""),  # bytes, and no whole vector of them
    (12, 192, 4, 32, U8, 4, "nested"),
    (20, 100, 5, 32, I8, 0, "shifted"),
    (2, 70, 2, 128, U8, 4, "shifted"),  # whose sums of three digits do not fit 32 bits
    (5, 33, 4, 16, I8, 4, "turned"),
    (4, 48, 2, 8, U8, 4, "bare"),
)
Shape = tuple[int, int, int, int, DType, int, str]
KERNELS = [normalize(levels(*shape)) for shape in SHAPES]


def weights(inputs: dict[str, np.ndarray], form: str) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel of the zoo multiplies with, and the part of it that its levels are."""
    level = inputs["levels"].astype(np.float64)
    each = level.shape[1] // inputs["scales"].shape[1] if "scales" in inputs else 1

    def part(name: str) -> np.ndarray:
        return np.repeat(inputs[name].astype(np.float64), each, axis=1)

    scaled = level if form == "bare" else part("scales") * level
    if form == "nested":
        scaled = part("factors") * scaled
        return scaled + part("mins") * part("offsets"), scaled
    return (scaled + part("mins") if form == "shifted" else scaled), scaled


def errors(lib: CDLL, i: int, program: Program, seed: int, shape: Shape) -> np.ndarray:
    """Of every result, as a share of what half a part of the greatest of each block makes."""
    k, (_, _, _, block, kind, bits, form) = KERNELS[i], shape
    inputs = random_inputs(k, seed)
    x = inputs["x"] * 10.0 ** np.random.default_rng(seed).integers(-3, 4, inputs["x"].shape)
    inputs["x"] = np.ascontiguousarray(x.astype(np.float32))
    x = inputs["x"].astype(np.float64)
    if form == "turned":
        x = x.transpose(0, 2, 1).reshape(len(x), -1)
    got = run(lib, i, program, inputs, 2)["out"]
    w, scaled = weights(inputs, form)
    least = (1 << (bits or 8) - 1) if kind is I8 else 0  # stored levels are above that
    each = np.abs(scaled / np.where(inputs["levels"], inputs["levels"], 1))
    above = np.abs(scaled) + each * least
    most = np.abs(x.reshape(len(x), -1, block)).max(2).repeat(block, 1)
    room = most @ above.T * 2.0**-22 + np.abs(x) @ np.abs(w).T * 2.0**-22
    return np.abs(got - x @ w.T) / room


def check(folder: Path, target: Target, some: int = len(SHAPES)) -> None:
    programs = [lower(k, default_schedule(k, target), target) for k in KERNELS[:some]]
    lib = compile_programs(folder, programs, kernels.QUICK)
    for i, (shape, program) in enumerate(zip(SHAPES[:some], programs, strict=True)):
        (op,) = (op for op in leaves(program.body) if isinstance(op, Contract))
        assert op.stage.stage_b == "digits" and program.places[op.a.attr[0]].digits
        for seed in range(3):
            assert errors(lib, i, program, seed, shape).max() < 1, shape


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        with_flag("cpu:x86-64-v4+vnni", "avx512_vnni"),
        with_flag("cpu:x86-64-v3+vnni", "avx_vnni"),
    ],
)
def test_errors_are_those_of_f32(tmp_path: Path, name: str) -> None:
    """Without the instructions the same integers come from plain C."""
    plain = replace(native(), name="cpu:native+vnni")
    check(tmp_path, plain if name == "plain" else resolve_target(name))


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    """Blocks of zeros, of one huge and one tiny number, with an infinity, with a NaN."""
    k = normalize(levels(6, 64, 3, 32, U8, 4))
    target = (
        resolve_target(HERE)
        if has_flag("avx512_vnni")
        else replace(native(), name="cpu:native+vnni")
    )
    program = lower(k, default_schedule(k, target), target)
    inputs = random_inputs(k, 5)
    x, w = inputs["x"], weights(inputs, "")[0]
    x[0], x[1, 3], x[2] = 0.0, 1e30, x[2] * np.float32(1e-36)
    x[3, 40], x[4, 70], x[5, 0] = np.inf, np.nan, -np.inf
    got = run(compile_programs(tmp_path, [program], kernels.QUICK), 0, program, inputs, 1)["out"]
    exact = x[:3].astype(np.float64) @ w.T
    assert np.array_equal(got[0], np.zeros(64, np.float32)) and not np.isfinite(got[3:]).any()
    for row, most in ((1, 1e30), (2, max(np.abs(x[2]).max(), 1e-30))):
        room = most * np.abs(w).sum(1) * 2.0**-22
        assert (np.abs(got[row] - exact[row]) <= room).all(), row


def test_levels_that_are_multiplied_so() -> None:
    """Sums of two digits fit 32 bits; activations that are bytes already stay so."""
    target = resolve_target(HERE)
    modes = {
        (k, bits, form): {p.stage_b for p in default_schedule(each, target).stages if p.lane_axis}
        for k, bits, form in (
            (32, 4, ""),
            (256, 0, ""),
            (264, 0, ""),
            (4360, 4, ""),
            (32, 4, "bytes"),
        )
        for each in [normalize(levels(4, 64, 1 if k > 300 else 2, k, U8, bits, form))]
    }
    assert modes == {
        (32, 4, ""): {"digits"},
        (256, 0, ""): {"digits"},
        (264, 0, ""): {"narrow"},
        (4360, 4, ""): {"narrow"},
        (32, 4, "bytes"): {"integers"},
    }


MUTANTS = [
    (made, "PARTS = 2.0**FINE - 1", "PARTS = 2.0 ** (FINE + 1) - 1"),
    (made, 'where(binary("lt", value, const(0.0)), _times(value, -1.0), value)', "value"),
    (made, "_times(count, 0.0)", "const(0.0)"),
    (made, "const(LEAST)", "const(0.0)"),
    (maps, "+ {at}, {w.names.place(row)} + {at});", ", {w.names.place(row)} + {at});"),
]
TEXT_MUTANTS = [  # of a product of the zoo
    (r"\* 65536\.0f", "* 256.0f"),
    (r"<< 8\) \+ t1", "<< 7) + t1"),
    (r"<< 8\) \+ t0", "<< 7) + t0"),
    (r"(t0_\w+ = )\{0\}", r"\1{1}"),
    (r"lumc_four\((.*) \+ (\d*)1\)", r"lumc_four(\1 + \g<2>2)"),
    (r"- 8\.0f", "- 7.0f"),
]
HEADER_MUTANTS = [
    ("+ 12582912.0f;", "+ 12582911.0f;"),
    ("- 0x4b400000 + 0x808080;", "- 0x4b400000 + 0x800080;"),
    ("whole ^ 0x808080)", "whole ^ 0x8080)"),
    ("at + 2, at + 6,", "at + 6, at + 2,"),
]


@pytest.mark.parametrize(("module", "old", "new"), MUTANTS)
def test_mutants_die(
    tmp_path: Path, module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(module, old, new, monkeypatch)
    with pytest.raises(AssertionError):
        everything(tmp_path, monkeypatch)


@pytest.mark.parametrize(("old", "new"), TEXT_MUTANTS)
def test_mutants_of_the_text_die(
    tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = list[int]()

    def mutated(program: Program, symbol: str) -> str:
        text, count = re.subn(old, new, print_kernel(program, symbol))
        changed.append(count)
        return text

    monkeypatch.setattr(kernels, "print_kernel", mutated)
    with pytest.raises(AssertionError):
        everything(tmp_path, monkeypatch)
    assert any(changed)


@pytest.mark.parametrize(("old", "new"), HEADER_MUTANTS)
def test_mutants_of_the_header_die(
    tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = header_of("cpu")
    assert text.count(old) == 1, old
    monkeypatch.setattr(kernels, "header_of", lambda _: text.replace(old, new))
    with pytest.raises(AssertionError):
        everything(tmp_path, monkeypatch)


def test_without_optimisation_all_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mutants are compiled."""
    everything(tmp_path, monkeypatch)


def everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What most mutants die of first."""
    monkeypatch.setattr(kernels, "LAST", kernels.PLAIN)
    check(folder, replace(native(), name="cpu:native+vnni"), 3)
    test_what_is_no_number_stays_none(folder)
    test_errors_are_those_of_f32(folder, "plain")
