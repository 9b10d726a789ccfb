"""Every class of kernel as Metal text: on the emulator against float64, and through the checks that
need no Mac."""

from __future__ import annotations

from pathlib import Path

import pytest

import msl
from dealing import dealt, refusal, run
from gpu import address_spaces
from gpu.msl_lint import lint
from kernel_zoo import FAMILIES, random_inputs
from kernels import assert_close
from lumc.codegen.gpu.metal import Metal
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.text.headers import header_of
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule

Case = tuple[Kernel, Schedule]


def metal() -> Target:
    return resolve_target("metal:apple7")


def kernels() -> list[Kernel]:
    """One of every family that Metal has the types for."""
    every = [family(*shapes[len(shapes) // 2]) for family, shapes in FAMILIES.items()]
    return [k for k in every if DType.F64 not in {b.dtype for b in k.buffers}]


def check(cases: list[Case], folder: Path, checked: bool, order: str = "forward") -> None:
    """Compile these cases as one text, look at it in every way, run them, compare."""
    printed = [
        print_kernel(dealt(k, s, metal()), Metal(), f"k{i}") for i, (k, s) in enumerate(cases)
    ]
    source = "\n".join([header_of("metal"), *(text for text, _ in printed)])
    assert lint(source, "apple7") == []
    if address_spaces.clang():
        assert address_spaces.check(source) == []
    module = msl.build(source, folder, checked)
    for i, (k, s) in enumerate(cases):
        inputs = random_inputs(k, i)
        got = run(module, f"k{i}", k, printed[i][1], inputs, order)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


@pytest.mark.parametrize("part", range(4))
def test_guesses(part: int, tmp_path: Path) -> None:
    """What is planned for a kernel when nothing is searched."""
    cases = [
        (k, next(s for s in guesses(k, metal()) if not refusal(k, s, metal())))
        for k in kernels()[part::4]
    ]
    check(cases, tmp_path, checked=True, order=("forward", "random")[part % 2])
