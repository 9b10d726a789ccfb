"""Graphs with dims known at run time, as code: one compile for all lengths, against the oracle."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np

import launching
from kernels import PLAIN, native
from live import ATTENTION, MOVED, NORM, SOFTMAX, Dims, case, part, roomy
from lumc.artifacts.bodies import code_from_json, code_to_json
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.codegen.tile.verify import verify
from lumc.graph.text import parse_graph
from lumc.profile.choose import estimate
from lumc.search import search
from searching import error, random_values

POINTS = {
    NORM: [{"s": 40}, {"s": 1}, {"s": 17}, {"s": 40}],
    SOFTMAX: [{"s": 40}, {"s": 1}, {"s": 13}],
    MOVED: [{"s": 1, "u": 12}, {"s": 12, "u": 5}, {"s": 3, "u": 3}],
    ATTENTION: [{"p": 24, "s": 16}, {"p": 0, "s": 1}, {"p": 3, "s": 5}, {"p": 0, "s": 16}],
}
PARTS = 3
TARGET = replace(native(), threads=2)


def compiled(text: str) -> Code:
    return generate(estimate(search(parse_graph(text), TARGET, inside=True)), verify)


def call(lib: ctypes.CDLL, prefix: str, code: Code, dims: Dims) -> None:
    """In memory that is full of NaN where nothing is, as is all that is written."""
    (entry,) = code.entries
    given, want = case(code.graph, dims)
    m = launching.Memory(code, entry, random_values, PARTS)
    for v in entry.values:
        if v.place in ("input", "state"):
            m.arrays[v.name][...] = roomy(given[v.name], v.shape)
        if v.place == "dim":
            m.arrays[v.name][...] = dims[v.name]
    launching.launch(
        lib, prefix, code, entry, lambda n: m.arrays[n].ctypes.data, m.scratch.ctypes.data, PARTS
    )
    after = m.after()
    for name, right in want.items():
        if name in after:
            got, inside = after[name], part(right.shape)
            assert error(got[inside], right) < 1e-5, (name, dims)
            got[inside] = np.nan
            assert np.isnan(got).all(), f"{name} is written beyond its length, {dims}"


def test_one_compile_serves_all_lengths(tmp_path: Path) -> None:
    codes = [compiled(text) for text in POINTS]
    lib = ctypes.CDLL(str(launching.library(tmp_path, codes, PLAIN)))
    for i, (code, points) in enumerate(zip(codes, POINTS.values(), strict=True)):
        assert code_from_json(code_to_json(code), code.graph) == code
        for dims in points:
            call(lib, f"g{i}_", code, dims)
