"""Graphs whose dims each run chooses, on both emulators and from bundles: one code for all lengths,
against the oracle, with NaN, or what a longer run left, beyond them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import compiling
import fake_metal
import gpu_launching
import launching
from gpu_bundles import Emulator, python_environment
from live import (
    LONG,
    NAMES,
    POINTS,
    Dims,
    case,
    part,
    roomy,
)
from lumc.artifacts.bodies import code_from_json, code_to_json
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.link import runners
from lumc.profile.choose import estimate
from lumc.search import search
from searching import error, random_values
from splitting import slow

TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]
TEXTS = {name: text for text, name in NAMES.items()}
BUNDLES = ("attention", "cube")  # without weights, which these tests have no files for
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)


@cache
def compiled(text: str, target: Target) -> Code:
    return generate(estimate(search(parse_graph(text), target, inside=True)))


# ---- kernels, race-checked


def call(kernels: object, prefix: str, code: Code, dims: Dims, order: str) -> None:
    """In memory that is full of NaN where nothing is, as is all that is written."""
    (entry,) = code.entries
    given, want = case(code.graph, dims)
    m = launching.Memory(code, entry, random_values, 1)
    for v in entry.values:
        if v.place in ("input", "state"):
            m.arrays[v.name][...] = roomy(given[v.name], v.shape)
        if v.place == "dim":
            m.arrays[v.name][...] = dims[v.name]
    after = gpu_launching.launched(kernels, prefix, code, entry, m, order)
    for name, right in want.items():
        if name in after:
            got, inside = after[name], part(right.shape)
            assert error(got[inside], right) < 1e-5, (name, dims)
            got[inside] = np.nan if got.dtype.kind == "f" else 85
            beyond = np.isnan(got) if got.dtype.kind == "f" else (got == 85) | (got == -1)
            assert beyond.all(), f"{name} is written beyond its length, {dims}"


@by_target
def test_one_code_serves_all_lengths(target: Target, built: Path) -> None:
    codes = [compiled(text, target) for text in POINTS]
    kernels = gpu_launching.module(built, codes, checked=True)
    for i, (code, points) in enumerate(zip(codes, POINTS.values(), strict=True)):
        assert code_from_json(code_to_json(code), code.graph) == code
        for k, dims in enumerate(points):
            call(kernels, f"g{i}_", code, dims, ("forward", "reverse", "random")[k % 3])


@cache
def in_parts(text: str, target: Target) -> Code:
    plan = estimate(search(parse_graph(text), slow(target), inside=True))
    names = [b.name for r in plan.regions.values() for b in r.local]
    assert any("_" in name for name in names), "nothing is done in two steps"
    return generate(plan)


@by_target
def test_long_reductions_in_two_steps(target: Target, built: Path) -> None:
    """Few results of many values: parts of these, a part for each block, whatever the length."""
    codes = [in_parts(text, target) for text in LONG]
    kernels = gpu_launching.module(built, codes, checked=True)
    for i, (code, points) in enumerate(zip(codes, LONG.values(), strict=True)):
        for k, dims in enumerate(points):
            call(kernels, f"g{i}_", code, dims, ("forward", "reverse", "random")[k % 3])


# ---- bundles


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundles for both GPUs, and liblumc.so whose Metal is the fake one."""
    folder = tmp_path_factory.mktemp("live")
    for name in BUNDLES:
        cuda, apple = (compiled(TEXTS[name], t) for t in TARGETS)
        fake_metal.link(apple, folder / f"{name}.lb", folder, others=[cuda], cuda=Emulator())
    library({}, folder / "liblumc.so")
    return folder


def library(changes: Mapping[str, tuple[str, str]], out: Path) -> None:
    """The native library with its Metal as in tests, some of its files changed."""
    flags = ("-shared", "-fPIC", "-O0", "-std=gnu11", *fake_metal.faked())
    compiling.link(runners.LIBRARY, flags, out, changes)


OPENERS = {
    "cuda in Python": "cuda.Bundle.open(path)",
    "cuda in C": 'cpu.Bundle(path, manifest.read(path), library, "cuda")',
    "metal in Python": "metal.Bundle.open(path, library=fake_metal.library())",
    "metal in C": 'cpu.Bundle(path, manifest.read(path), library, "metal")',
}
PROGRAM = """
import ctypes, sys
from pathlib import Path
import fake_metal
from live import NAMES, POINTS, worst
from lumc.bundle import manifest
from lumc.graph.text import parse_graph
from lumc.runtime import cpu, cuda, dims, gpu, metal, objc
library = cpu._declare(ctypes.CDLL(sys.argv[2]))
{mistake}
for text, name in NAMES.items():
    path = Path(sys.argv[1], name + ".lb")
    if path.exists():
        with {opener} as b:
            print(worst(b, parse_graph(text), POINTS[text], 1))
"""


def errors(folder: Path, opener: str, lib: Path, mistake: str = "") -> list[float]:
    """The largest error of each bundle, in a process that sees the fake devices."""
    env = python_environment() | fake_metal.environment()
    program = PROGRAM.format(opener=OPENERS[opener], mistake=mistake)
    command = [sys.executable, "-c", program, str(folder), str(lib)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("opener", OPENERS)
def test_one_bundle_runs_every_length(opener: str, made: Path) -> None:
    found = errors(made, opener, made / "liblumc.so")
    assert len(found) == len(BUNDLES) and max(found) < 1e-5, found


IN_C: dict[str, tuple[str, str, str, str]] = {  # the opener, the file, what stands there, a mistake
    "cuda: dims that are not sent again": (
        "cuda in C",
        "gpu_memory",
        "m->values[i] = m->plan->dims[i].value;",
        "if (!m->values[i]) m->values[i] = m->plan->dims[i].value;",
    ),
    "cuda: a dim that is one less": (
        "cuda in C",
        "gpu_memory",
        "m->values[i] = m->plan->dims[i].value;",
        "m->values[i] = m->plan->dims[i].value - (m->plan->dims[i].value > 1);",
    ),
    "cuda: another dim": (
        "cuda in C",
        "gpu_memory",
        "return m->dims + a->index * sizeof",
        "return m->dims + (m->plan->n_dims - 1 - a->index) * sizeof",
    ),
    "cuda: an input that ends too early": (
        "cuda in C",
        "live",
        "last += (size_t)(now->shape[i] - 1) * step;",
        "last += (size_t)(now->shape[i] - 1) * step / (i ? 1 : 2);",
    ),
    "metal: dims that are not sent again": (
        "metal in C",
        "metal",
        "memcpy(contents(m->dims) + i * ALIGN",
        "if (!contents(m->dims)[i * ALIGN]) memcpy(contents(m->dims) + i * ALIGN",
    ),
    "metal: another dim": (
        "metal in C",
        "metal",
        "offset = a->index * ALIGN;",
        "offset = (m->plan->n_dims - 1 - a->index) * ALIGN;",
    ),
}


@pytest.mark.parametrize("name", IN_C)
def test_mistakes_in_c_are_noticed(name: str, made: Path, tmp_path: Path) -> None:
    opener, file, old, new = IN_C[name]
    library({file: (old, new)}, tmp_path / "liblumc.so")
    assert not max(errors(made, opener, tmp_path / "liblumc.so")) < 1e-5


IN_PYTHON = {  # the opener, and what is done to it
    "cuda: dims that are not sent again": ("cuda in Python", "cuda", "once"),
    "metal: dims that are not sent again": ("metal in Python", "metal", "once"),
    "metal: a dim that is one less": ("metal in Python", "metal", "less"),
}
HOW = """
def sent(b, values, send={kind}.Bundle._set_dims):
    if "{how}" == "less":
        send(b, [v - (v > 1) for v in values])
    elif not hasattr(b, "sent"):
        b.sent = True
        send(b, values)
{kind}.Bundle._set_dims = sent
"""


@pytest.mark.parametrize("name", IN_PYTHON)
def test_mistakes_in_python_are_noticed(name: str, made: Path) -> None:
    opener, kind, how = IN_PYTHON[name]
    mistake = HOW.format(kind=kind, how=how)
    assert not max(errors(made, opener, made / "liblumc.so", mistake)) < 1e-5
