"""Numbers of 4 bits that kernels of GPUs take out of words, on both emulators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import emulator
import msl
from kernel_zoo import byte_matmul
from lumc.bundle.packing import pack
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.gpu.words import number, words_of
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.packing import Packing
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel

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
    for kernel in (of_few(5), of_few(8), of_few(4, 7), byte_matmul(3, COLUMNS, ROWS)):
        assert not words(kernel)
