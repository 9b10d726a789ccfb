"""The fake Metal, compiled once, what it needs to run; and bundles of Metal kernels by hand."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import compiling
import msl
from bundles import build, mlp, simple
from compiling import STRICT, WARNINGS
from lumc.codegen.code import Code, EntryPlan, KernelCode, Launch, Value
from lumc.codegen.gpu.grid import Grid
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.link import link as bundle
from lumc.link import runners
from lumc.link.link import metal_text
from msl_kernels import HEADER
from once import folder_of

TESTS = Path(__file__).parent
F32 = DType.F32
_folder = TemporaryDirectory(prefix="lumc-fake-metal-")  # removed at exit


@cache
def library() -> str:
    """The path of libobjc and Metal in one."""

    def make(folder: Path) -> None:
        flags = ("-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS)
        source, out = TESTS / "gpu" / "fake_metal.cpp", folder / "libmetal.so"
        subprocess.run(["g++", *flags, str(source), "-o", str(out), "-ldl"], check=True)

    return str(folder_of("fake-metal", make) / "libmetal.so")


def kept() -> Path:
    """Where the fake finds texts that were compiled before."""
    return Path(_folder.name)


def environment(family: int = 9) -> dict[str, str]:
    """What the fake reads: how to compile a text, and the family of its GPU."""
    source = Path(bundle.__file__).parents[2]
    command = ["env", f"PYTHONPATH={source}:{TESTS}", sys.executable, str(TESTS / "msl.py")]
    return {
        "LUMC_FAKE_METAL_BUILD": shlex.join(command),
        "LUMC_FAKE_METAL_FAMILY": str(family),
        msl.KEPT: _folder.name,
    }


def runner(out: Path, flags: Sequence[str] = ()) -> Path:
    """lumc-run whose Metal is the fake."""
    return compiling.link((*runners.LIBRARY, "main"), ("-O0", *STRICT, *flags, *faked()), out)


def faked() -> list[str]:
    """Flags of a compiler: the frameworks are those of the fake."""
    return [f'-D{name}="{library()}"' for name in ("METAL_OBJC", "METAL_FRAMEWORK")]


def run(
    *command: object, code: int = 0, family: int = 9, **more: str
) -> subprocess.CompletedProcess[str]:
    """A program that sees the fake; checks its exit code."""
    mine = Path(_folder.name, "suppressions")  # what the emulator keeps to the end is no leak
    mine.write_text("leak:lumc_emu::run\n")
    leaks = {"LSAN_OPTIONS": f"suppressions={mine}:print_suppressions=0"}
    env = {**os.environ, **environment(family), **leaks, **more}
    words = [str(c) for c in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done


# ---- bundles


def link(code: Code, out: Path, base: Path, **more: Any) -> Path:
    """A bundle; its kernels are compiled here already, where one object of the emulator serves
    many texts. What does not compile is left to the fake."""
    path = build(code, out, base, **more)
    for made in (code, *more.get("others", ())):
        if made.target.kind == "metal":
            with suppress(AssertionError):
                msl.build(metal_text(made), kept())
    return path


def metal_kernel(symbol: str, n: int, body: str, inputs: Sequence[str]) -> KernelCode:
    """A kernel whose body computes element ``i`` of ``out``; one thread for each of n elements."""
    names = [*(f"device const float *B_{b}" for b in inputs), "device float *B_out"]
    buffers = ", ".join(f"{p} [[buffer({i})]]" for i, p in enumerate(names))
    position = "uint tid [[thread_index_in_threadgroup]]"
    block = "uint3 block [[threadgroup_position_in_grid]]"
    source = f"""kernel void {symbol}({buffers}, {position}, {block})
{{
    int i = int(block.x) * 32 + int(tid);
    if (i < {n}) {{
{body}
    }}
}}
"""
    grid = Grid(-(-n // 32), 32)
    return KernelCode(f"key of {symbol}", symbol, symbol, source, (*inputs, "out"), 0, 0, 1, grid)


def matmul(symbol: str, m: int, n: int, k: int) -> KernelCode:
    body = f"""        float sum = 0.0f;
        for (int l = 0; l < {k}; ++l) sum += B_b0[i / {n} * {k} + l] * B_b1[l * {n} + i % {n}];
        B_out[i] = sum;"""
    return metal_kernel(symbol, m * n, body, ("b0", "b1"))


def metal_mlp(base: Path, target: str = "metal:apple7") -> tuple[Code, Code, Any]:
    """``bundles.mlp`` for a GPU and for the CPU, and the function that numpy computes."""
    m, k, n, o = 5, 11, 13, 3
    cpu, reference = mlp(base, m, k, n, o)
    bias = metal_kernel("k1_bias", m * n, f"    B_out[i] = B_b0[i] + B_b1[i % {n}];", ("b0", "b1"))
    kernels = (matmul("k0_matmul", m, n, k), bias, matmul("k2_matmul", m, o, n))
    shapes = {"w1": (k, n), "b1": (n,), "w2": (n, o)}
    room = -(-m * n * 4 // 64) * 64
    values = (
        Value("x", F32, (m, k), "input", 0),
        Value("t4", F32, (m, o), "output", 0),
        *(Value(name, F32, shape, "weight") for name, shape in shapes.items()),
        Value("t1", F32, (m, n), "arena", 0),
        Value("t2", F32, (m, n), "arena", room),
    )
    launches = (
        Launch("k0_matmul", ("x", "w1", "t1")),
        Launch("k1_bias", ("t1", "b1", "t2")),
        Launch("k2_matmul", ("t2", "w2", "t4")),
    )
    entry = EntryPlan("main", values, ("y",), launches, 2 * room, 2 * room)
    code = Code(cpu.graph, resolve_target(target), HEADER, kernels, {}, (entry,))
    return code, cpu, reference


def counter() -> Code:
    """y = s + x, then s = y: a state of eight numbers."""
    add = metal_kernel("k0_add", 8, "        B_out[i] = B_b0[i] + B_b1[i];", ("b0", "b1"))
    copy = metal_kernel("k1_copy", 8, "        B_out[i] = B_b0[i];", ("b0",))
    values = [
        Value("x", F32, (8,), "input", 0),
        Value("y", F32, (8,), "output", 0),
        Value("s", F32, (8,), "state", 0),
    ]
    launches = [Launch("k0_add", ("s", "x", "y")), Launch("k1_copy", ("y", "s"))]
    target = resolve_target("metal:apple7")
    code = simple([add, copy], values, launches, 0, [("s", F32, (8,))], target)
    return replace(code, header=HEADER)


def with_source(code: Code, old: str, new: str) -> Code:
    """A code whose kernels have another text."""
    kernels = [replace(k, source=k.source.replace(old, new)) for k in code.kernels]
    return replace(code, kernels=tuple(kernels))
