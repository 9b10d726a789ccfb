"""The plugin that runs kernels of the tests on a GPU, on the fake driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fake_gpu import environment

TESTS = Path(__file__).parents[1]
BESIDE = '''
import numpy as np
import emulator
from lumc.codegen.gpu.grid import Grid

TEXT = """#include "lumc_dev.h"
extern "C" __global__ void k(float *B_x) { B_x[4 * blockIdx.x + threadIdx.x] = 1; }
LUMC_EXPORT(k)
"""

def test_a_write_past_an_end_is_reported():
    module, x = emulator.build(TEXT, None), np.zeros(8, np.float32)
    assert module.launch("k", Grid(2, 4), [x]) == "" and x.all()
    assert module.launch("k", Grid(2, 6), [x]) == "out of bounds: 8 bytes beside B_x are written"

def test_metal_has_no_place_here():
    assert False
'''


@pytest.mark.deep
def test_kernels_run_on_the_driver(tmp_path: Path) -> None:
    """Those of the tests; what is about Metal or the emulator is left out."""
    (tmp_path / "test_beside.py").write_text(BESIDE)
    compiler = f"{sys.executable} {TESTS / 'fake_nvcc.py'}"
    env = environment() | {"NVCC": compiler, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}"}
    command = [sys.executable, "-m", "pytest", "-p", "on_gpu", "-p", "no:cacheprovider", "-v"]
    command += ["tests/gpu/test_gpu_values.py::test_selects", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=TESTS.parent)
    assert "2 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
