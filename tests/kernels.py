"""Printed kernels in tests: compile several at once, run them on numpy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.text.headers import NAMES, header_of
from lumc.codegen.tile.memory import PAGE
from lumc.codegen.tile.packing import Packing
from lumc.codegen.tile.program import Program
from lumc.graph.ops import DType, to_bf16
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, load
from lumc.link.toolchain import GCC_ONLY
from lumc.oracle.term import evaluate_term, widen

CC = os.environ.get("CC", "gcc")
EXACT = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp-simd"]
EXACT += GCC_ONLY * ("clang" not in CC)
FLAGS = ["-O3", *EXACT]
# a third of the compile time: the loops are still vectorised; what is left out, of how addresses
# step and which bits are constant, takes longest
QUICK = ["-O1", "-fno-ivopts", "-fno-tree-ccp", *EXACT]
PLAIN = ["-O0"]
LAST = list[str]()  # flags behind all others: tests of mutants, which are compiled often, set PLAIN
CHECKED = ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
WARN = ["-Wall", "-Wno-unknown-pragmas", "-Wno-psabi", "-Wno-maybe-uninitialized"]
# gcc unrolls loops over whole pieces of a tile beyond the tile, and says what would happen there
COMMON = ["-std=gnu11", "-shared", "-fPIC", *WARN, "-Wno-aggressive-loop-optimizations"]
TOLERANCE = {DType.F16: 1e-3, DType.BF16: 8e-3, DType.F64: 1e-12}  # of the greatest value


@cache
def native() -> Target:
    return resolve_target("cpu:native")


def has_flag(flag: str) -> bool:
    """Has the processor this one?"""
    file = Path("/proc/cpuinfo")
    return file.exists() and flag in file.read_text().split()


def with_flag(name: str, flag: str) -> ParameterSet:
    """A target as a parameter of tests, skipped where the processor lacks this flag."""
    return pytest.param(name, marks=pytest.mark.skipif(not has_flag(flag), reason=f"no {flag}"))


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A C array that starts on a cache line."""
    n = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype).reshape(shape)


def together(programs: Sequence[Program]) -> str:
    """One C file with the functions k0, k1, .. of these programs (of one target)."""
    texts = [
        print_kernel(p, f"k{i}").replace("micro_", f"k{i}_micro_") for i, p in enumerate(programs)
    ]
    guarded, header = "#define LUMC_GUARDED\n", f'#include "{NAMES["cpu"]}"\n'
    before = texts[0].partition(header)[0].replace(guarded, "")
    # what one of them says before the header, it says for all
    head = before + guarded * any(guarded in t for t in texts) + header
    return head + "\n".join(t.partition(header)[2] for t in texts)


def build(folder: Path, programs: Sequence[Program], flags: Sequence[str] = FLAGS) -> Path:
    """A shared object of these programs. A warning of the compiler is a failure."""
    return build_text(folder, together(programs), (*flags, *programs[0].target.flags))


def build_text(folder: Path, source: str, flags: Sequence[str]) -> Path:
    """A shared object of a text that includes the header of kernels."""
    name = hashlib.sha256("".join([source, *flags, *LAST]).encode()).hexdigest()[:16]
    out, file = folder / f"{name}.so", folder / f"{name}.c"
    (folder / NAMES["cpu"]).write_text(header_of("cpu"))
    file.write_text(source)
    command = [CC, *COMMON, *flags, *LAST, str(file), "-lm", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode and not done.stderr, f"{file}\n{done.stderr[:4000]}"
    return out


def compile_programs(
    folder: Path, programs: Sequence[Program], flags: Sequence[str] = FLAGS
) -> ctypes.CDLL:
    return ctypes.CDLL(str(build(folder, programs, flags)))


def pack(packed: Packing, kernel: Kernel, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """A packed operand made from its description, as link does."""
    source = kernel.buffer(packed.weight)
    term = load(source.name, source.dtype, *packed.index)
    value, names = evaluate_term(term, dict(packed.axes), inputs)
    value = np.transpose(value, [names.index(a) for a, _ in packed.axes])
    if packed.panel is not None:
        at, width = packed.panel
        value = np.moveaxis(value, at, -1)
        value = in_words(value, packed.bits) if packed.bits else value
        value = np.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, -value.shape[-1] % width)])
        value = np.moveaxis(value.reshape(*value.shape[:-1], -1, width), -2, 0)
    out = aligned((packed.size,), packed.dtype.numpy)
    flat = value.reshape(-1)
    out[:] = to_bf16(flat) if packed.dtype is DType.BF16 else flat
    return out


def in_words(value: np.ndarray, bits: int) -> np.ndarray:
    """Numbers [.., steps, lanes], four bytes in a word, or of 4 bits, eight steps in a word: in its
    byte b those of step b, and above them those of step b + 4. Signed ones count from the least."""
    *others, steps, n = value.shape
    value = value.astype(int) + (1 << bits - 1) * (value.dtype == np.int8)
    if bits == 8:
        value = value.reshape(*others, steps // 4, 4, n)
    else:
        low, high = np.split(value.reshape(*others, steps // 8, 2, 4, n), 2, -3)
        value = (low + 16 * high)[..., 0, :, :]
    found = np.moveaxis(value.astype(np.uint8), -2, -1)
    return np.ascontiguousarray(found).view("<i4")[..., 0]


def arguments(program: Program, inputs: Mapping[str, np.ndarray], parts: int) -> list[np.ndarray]:
    """What a kernel is called with: its buffers (results full of NaN, or 0x55 where there is none),
    packed operands, scratch."""
    out = []
    for b in program.kernel.buffers:
        array = aligned(b.shape, b.dtype.numpy)
        if b.name in inputs:
            array[...] = inputs[b.name]
        elif b.dtype.is_float and b.dtype is not DType.BF16:
            array[...] = np.nan
        else:
            array.reshape(-1).view(np.uint8)[...] = 0xFF if b.dtype is DType.BF16 else 0x55
        out.append(array)
    out += [pack(p, program.kernel, inputs) for p in program.packed.values()]
    scratch = -(-program.scratch_bytes // PAGE) * PAGE * parts
    out.append(aligned((scratch // 4,), np.dtype(np.float32)))
    out[-1][...] = np.nan
    return out


def call(lib: ctypes.CDLL, position: int, arrays: Sequence[np.ndarray], parts: int) -> None:
    args = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    for part in range(parts):
        lib[f"k{position}"](args, ctypes.c_long(part), ctypes.c_long(parts))


def run(
    lib: ctypes.CDLL,
    position: int,
    program: Program,
    inputs: Mapping[str, np.ndarray],
    parts: int = 1,
) -> dict[str, np.ndarray]:
    """The stored buffers after the kernel."""
    arrays = arguments(program, inputs, parts)
    call(lib, position, arrays, parts)
    names = [b.name for b in program.kernel.buffers]
    return {name: arrays[names.index(name)] for name in program.kernel.stored}


def run_checked(
    folder: Path, programs: Sequence[Program], inputs: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """The same in a process of its own under the address and undefined-behaviour sanitizers."""
    arrays = [arguments(p, i, 2) for p, i in zip(programs, inputs, strict=True)]
    job = folder / "job.npz"
    np.savez(job, **{f"{i}_{j}": a for i, each in enumerate(arrays) for j, a in enumerate(each)})
    asan = subprocess.run([CC, "-print-file-name=libasan.so"], capture_output=True, text=True)
    env = {**os.environ, "LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    code = "import kernels; kernels.checked_job()"
    command = [sys.executable, "-c", code, str(build(folder, programs, CHECKED)), str(job)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert not done.returncode, done.stderr[:4000]
    with np.load(job) as after:
        return [
            {
                b.name: after[f"{i}_{j}"]
                for j, b in enumerate(p.kernel.buffers)
                if b.name in p.kernel.stored
            }
            for i, p in enumerate(programs)
        ]


def checked_job() -> None:
    """In the other process: the arrays of the job in blocks of their own from malloc, so that
    every access outside of one is seen."""
    lib, job = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    with np.load(job) as data:
        arrays = dict(data)
    memory = {name: libc.malloc(a.nbytes) for name, a in arrays.items()}
    for name, a in arrays.items():
        ctypes.memmove(memory[name], a.ctypes.data, a.nbytes)
    kernels = dict.fromkeys(name.partition("_")[0] for name in arrays)
    for i in kernels:
        mine = [memory[name] for name in arrays if name.startswith(f"{i}_")]
        args = (ctypes.c_void_p * len(mine))(*mine)
        for part in range(2):
            lib[f"k{i}"](args, ctypes.c_long(part), ctypes.c_long(2))
    for name, a in arrays.items():
        ctypes.memmove(a.ctypes.data, memory[name], a.nbytes)
    np.savez(job, **arrays)


def worst(got: np.ndarray, want: np.ndarray, kind: DType) -> float:
    """The greatest error relative to the greatest value; infinite if NaN or infinities differ."""
    got, want = widen(got, kind).astype(np.float64), want.astype(np.float64)
    if kind.is_float:  # beyond its range
        far = np.abs(want) > kind.greatest * (1 + 2.0**-8)
        want = np.where(far, np.copysign(np.inf, want), want)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(want[finite]).max()), 1e-30)
    with np.errstate(all="ignore"):
        error = float(np.abs(got[finite] - want[finite]).max()) / scale
    return error if error == error else np.inf


def assert_close(
    kernel: Kernel, got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], about: object
) -> None:
    for name, array in got.items():
        kind = kernel.buffer(name).dtype
        limit = TOLERANCE.get(kind, 2e-5 if kind.is_float else 0)
        error = worst(array, want[name], kind)
        assert error <= limit, f"{kernel.name} '{name}': error {error:.2e}, {about}"
