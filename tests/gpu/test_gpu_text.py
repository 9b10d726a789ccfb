"""The texts of both languages: Metal on the emulator and against its rules, CUDA by nvcc."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import emulator
import msl
from dealing import arguments, cuda, dealt, narrowed, random_dealt, refusal, schedule
from gpu.msl_lint import problems
from kernel_zoo import (
    FAMILIES,
    attention,
    layernorm,
    linear_gelu,
    matmul,
    random_inputs,
    softmax,
    transpose,
    turned_matmul,
    typed_rows,
)
from kernels import assert_close
from lumc.codegen import cuda as cuda_text
from lumc.codegen import metal as metal_text
from lumc.codegen.mathlib import header_of
from lumc.graph.ops import DType
from lumc.kernel.schedule import Schedule, Stage
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.targets import resolve_target
from test_distribute import flash, tiled
