"""Long windows with their vectors written out: right for every rest of lanes, and in bounds."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import compiler
from kernel_zoo import kernel, times, total, windows, x
from kernels import assert_close, native, run_checked, together
from lumc.codegen.cpu import explicit
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program
from lumc.graph.expr import add, mul
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule

WIDTHS = [3, 7, 14, 16, 21, 40, 56]


def targets() -> list[Target]:
    """This machine, and the narrower vectors that it has as well."""
    narrower = ["cpu:x86-64-v2", "cpu:x86-64-v3"] if native().lanes == 16 else []
    return [native(), *map(resolve_target, narrower)]


def inner(n: int, step: int = 1) -> Kernel:
    """Windows of 5 x 5 without a border, so that they are read where they lie."""
    y, at = add("y", "u"), add(mul("x", step), "v")
    value = total("u v", times(x("x", "c", y, at), x("w", "c", "u", "v")))
    shapes = {"x": (3, 14, (n - 1) * step + 5), "w": (3, 5, 5)}
    return kernel("inner", "c y x", {"c": 3, "y": 10, "x": n, "u": 5, "v": 5}, value, shapes, "w")


def program(kernel: Kernel, target: Target) -> Program:
    return lower(kernel, default_schedule(kernel, target), target)


def drawn(kernel: Kernel) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    read = [b for b in kernel.buffers if b.name not in kernel.stored]
    return {b.name: rng.standard_normal(b.shape).astype("f4") for b in read}


def check(folder: Path, kernels: list[Kernel], target: Target) -> None:
    programs, inputs = [program(k, target) for k in kernels], [drawn(k) for k in kernels]
    found = run_checked(folder, programs, inputs)
    for k, got, given in zip(kernels, found, inputs, strict=True):
        assert_close(k, got, evaluate_kernel(k, given), target.name)


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.arch)
def test_results_are_right_and_in_bounds(target: Target, tmp_path: Path) -> None:
    kernels = [of(n) for n in WIDTHS for of in (inner, lambda n: windows(3, 10, n, 5, 1, False))]
    written = ["lumc_f32x" in together([program(k, target)]) for k in kernels]
    assert all(written[2:])  # 3 lanes are too few where they are copied
    check(tmp_path, kernels, target)


def test_the_rest_is_a_part_of_a_vector() -> None:
    text = together([program(inner(14), resolve_target("cpu:x86-64-v3"))])
    assert "lumc_put_f32x8(" in text
    assert ", 6);" in text
    assert "omp simd" not in text


@pytest.mark.parametrize(
    ("arch", "lanes"), [("v2", 4), ("v3", 4), ("v3", 8), ("v4", 8), ("v4", 16)]
)
def test_a_part_of_a_vector_is_read_into_a_register(arch: str, lanes: int, tmp_path: Path) -> None:
    """What is put together on the stack first can be read from there only after 15 cycles."""
    if "x86_64" not in (tools := compiler()).machine:
        pytest.skip("this compiler makes code for another processor")
    header = Path(explicit.__file__).parent / "lumc_kernel" / "vectors.h"
    text, vector = f'#include <stdint.h>\n#include "{header}"\n', f"f32x{lanes}"
    for n in range(lanes // 2, lanes):
        text += (
            f"void f{n}(const float *p, lumc_{vector} *q) {{ *q = lumc_part_{vector}(p, {n}); }}\n"
        )
    flags = [f"-march=x86-64-{arch}", "-O3", "-Wno-psabi", "-S", "-xc", "-", "-o", "-"]
    done = subprocess.run([*tools.command, *flags], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"f{lanes - 1}:" in done.stdout and "(%rsp)" not in done.stdout


@pytest.mark.parametrize(
    "other",
    [
        windows(3, 10, 40, 3, 1, False, "max"),
        windows(3, 10, 40, 5, 1, False, "sum", DType.F64),
        windows(3, 10, 40, 5, 1, False, "sum", DType.I32),
        windows(1, 10, 40, 2, 1, False),  # short
    ],
    ids=lambda k: k.name,
)
def test_others_are_plain_loops(other: Kernel) -> None:
    assert " v_" in (text := together([program(other, native())]))
    assert "lumc_f32x" not in text


MUTANTS = {
    "the rest is a whole vector": ("_steps", lambda f: lambda w, o, v, n, _: f(w, o, v, n, n)),
    "the rest has a lane less": (
        "_steps",
        lambda f: lambda w, o, v, n, c: f(w, o, v, n, c - (c < n)),
    ),
    "whatever lies apart is read as a vector": ("_side_by_side", lambda _: lambda *_: True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(explicit, attribute, mutant(getattr(explicit, attribute)))
    kernels = [inner(21), inner(21, 2)]
    with pytest.raises(AssertionError):
        check(tmp_path, kernels, native())
