"""Loops that compilers make vectors of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels import CC
from lumc.codegen.generate import generate
from lumc.codegen.text.headers import NAMES, header_of
from lumc.frontend import Model
from lumc.grad import gradients
from lumc.kernel.machines import resolve_target
from lumc.link.toolchain import KERNEL_FLAGS
from lumc.profile.choose import estimate
from lumc.search import search

LEAST = "lumc_least[0]"


def divisions(folder: Path, header: str) -> list[str]:
    """The divisions in the machine code of the way back of a GELU."""
    m = Model()
    x = m.input("x", (64, 1024))
    loss = (x.gelu("tanh") * m.input("g", (64, 1024))).sum()
    m.output("d", gradients(loss, [x])[0])
    target = resolve_target("cpu:x86-64-v3")
    code = generate(estimate(search(m.graph(), target)))
    (folder / NAMES["cpu"]).write_text(header)
    (folder / "kernels.c").write_text("\n".join(k.source for k in code.kernels))
    command = [CC, *KERNEL_FLAGS, *target.flags, "-S", "kernels.c", "-o", "kernels.s"]
    subprocess.run(command, cwd=folder, check=True)
    words = (folder / "kernels.s").read_text().split()
    return [w for w in words if w.startswith("vdiv")]


@pytest.mark.skipif("clang" in CC, reason="it is gcc that sees two branches")
def test_a_power_that_a_choice_reads_is_a_vector(tmp_path: Path) -> None:
    assert set(divisions(tmp_path, header_of("cpu"))) == {"vdivps"}


@pytest.mark.skipif("clang" in CC, reason="it is gcc that sees two branches")
def test_a_bound_that_gcc_knows_makes_branches(tmp_path: Path) -> None:
    header = header_of("cpu")
    assert LEAST in header
    if set(divisions(tmp_path, header.replace(LEAST, "-151.0f"))) == {"vdivps"}:
        pytest.skip("this gcc makes vectors of it all the same")
