"""Bundles of CUDA kernels written by hand, for the tests of link and of the GPU runtimes.

The compiler is the emulator's: its images are shared objects for the CPU, which the fake driver
runs. ``tests/gpu/conftest.py`` has the folder that they are compiled into.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from bundles import mlp, simple
from fake_gpu import environment, fake_fatbin
from lumc.codegen.code import Code, EntryPlan, KernelCode, Launch, Value
from lumc.codegen.gpu.grid import Grid
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target

DOUBLE = Path(__file__).parent / "gpu" / "pycuda_double"
HEADER = "/* the text that every kernel includes is the emulator's own */\n#pragma once\n"
F32 = DType.F32


compiling = Lock()  # the second image of a text is that of the first


@dataclass(frozen=True)
class Emulator:
    """A CUDA compiler whose images the fake driver runs. Their text knows what they are for:
    ``ARCH`` is 90 in the image for sm_90."""

    version: str = "emulator"

    def image(self, folder: Path, source: str, arch: str, output: str, seconds: float = 0) -> None:
        number = arch.partition("_")[2].rstrip("a")
        text = (folder / source).read_text()
        # images of a text that does not ask are the same
        text = f"#define ARCH {number}\n{text}" if "ARCH" in text else text
        with compiling:
            (folder / output).write_bytes(fake_fatbin([text]))


def gpu_kernel(
    symbol: str, n: int, body: str, inputs: Sequence[str], types: str = "float", threads: int = 32
) -> KernelCode:
    """A kernel whose body computes element ``i`` of ``out``; one thread for each of n elements."""
    parameters = [*(f"const {types} *__restrict__ B_{b}" for b in inputs), f"{types} *B_out"]
    source = f"""#include "lumc_dev.h"
extern "C" __global__ void __launch_bounds__({threads}, 1) {symbol}({", ".join(parameters)})
{{
    int i = blockIdx.x * {threads} + threadIdx.x;
    if (i < {n}) {{
{body}
    }}
}}
LUMC_EXPORT({symbol})
"""
    grid = Grid(max(1, -(-n // threads)), threads)
    args = (*inputs, "out")
    return KernelCode(f"key of {symbol}", symbol, symbol, source, args, 0, 0, 1, grid)


def matmul(symbol: str, m: int, n: int, k: int) -> KernelCode:
    body = f"""        float sum = 0;
        for (int l = 0; l < {k}; ++l) sum += B_b0[i / {n} * {k} + l] * B_b1[l * {n} + i % {n}];
        B_out[i] = sum;"""
    return gpu_kernel(symbol, m * n, body, ("b0", "b1"))


def gpu_mlp(base: Path, target: str = "cuda:sm_90", m: int = 5) -> tuple[Code, Code, Any]:
    """``bundles.mlp`` for a GPU and for the CPU, and the function that numpy computes."""
    k, n, o = 11, 13, 3
    cpu, reference = mlp(base, m, k, n, o)
    kernels = (
        matmul("k0_matmul", m, n, k),
        gpu_kernel("k1_bias", m * n, f"        B_out[i] = B_b0[i] + B_b1[i % {n}];", ("b0", "b1")),
        matmul("k2_matmul", m, o, n),
    )
    room = -(-m * n * 4 // 64) * 64
    values = (
        Value("x", F32, (m, k), "input", 0),
        Value("t4", F32, (m, o), "output", 0),
        *(
            Value(w.name, F32, tuple(int(str(e)) for e in w.shape), "weight")
            for w in cpu.graph.weights
        ),
        Value("t1", F32, (m, n), "arena", 0),
        Value("t2", F32, (m, n), "arena", room),
    )
    launches = (
        Launch("k0_matmul", ("x", "w1", "t1")),
        Launch("k1_bias", ("t1", "b1", "t2")),
        Launch("k2_matmul", ("t2", "w2", "t4")),
    )
    entry = EntryPlan("main", values, ("y",), launches, 2 * room, 2 * room)
    gpu = Code(cpu.graph, resolve_target(target), HEADER, kernels, {}, (entry,))
    return gpu, cpu, reference


def counter(target: str = "cuda:sm_90") -> Code:
    """y = s + x, then s = y: a state of eight numbers."""
    add = gpu_kernel("k0_add", 8, "        B_out[i] = B_b0[i] + B_b1[i];", ("b0", "b1"))
    copy = gpu_kernel("k1_copy", 8, "        B_out[i] = B_b0[i];", ("b0",))
    values = [
        Value("x", F32, (8,), "input", 0),
        Value("y", F32, (8,), "output", 0),
        Value("s", F32, (8,), "state", 0),
    ]
    launches = [Launch("k0_add", ("s", "x", "y")), Launch("k1_copy", ("y", "s"))]
    code = simple([add, copy], values, launches, 0, [("s", F32, (8,))], resolve_target(target))
    return replace(code, header=HEADER)


def says_arch(target: str = "cuda:sm_90", shared_bytes: int = 0) -> Code:
    """y = the architecture that the image was made for."""
    body = "        B_out[i] = ARCH + 0 * B_b0[i];"
    kernel = gpu_kernel("k0_arch", 1, body, ("b0",))
    kernel = replace(kernel, grid=Grid(1, 32, shared_bytes))
    values = [Value("x", F32, (1,), "input", 0), Value("y", F32, (1,), "output", 0)]
    code = simple([kernel], values, [Launch("k0_arch", ("x", "y"))], target=resolve_target(target))
    return replace(code, header=HEADER)


def python_environment(bindings: bool = False, **settings: object) -> dict[str, str]:
    """The environment of a Python process with the fake driver and pycuda, the real one if it is
    installed; or with cuda-bindings alone."""
    out = environment(**settings)
    if find_spec("pycuda") is None and not bindings:
        out["PYTHONPATH"] = os.pathsep.join([str(DOUBLE), *sys.path])
    else:
        out["PYTHONPATH"] = os.pathsep.join(sys.path)
    return out
