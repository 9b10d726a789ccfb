"""Language models as code, given a text in parts, without a bundle."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import launching
from kernels import PLAIN, native
from lumc.codegen.generate import generate
from lumc.frontend.api.model import Model
from lumc.graph.graph import Node
from lumc.profile.choose import estimate
from lumc.search import search

Array = np.ndarray[Any, Any]


class Stepping:
    """Both entries of a model on one copy of its states. All memory is NaN where nothing is."""

    def __init__(
        self, model: Model, folder: Path, flags: Sequence[str] = PLAIN, inside: bool = True
    ) -> None:
        self.graph, self.parts = model.graph(), 2
        space = search(self.graph, replace(native(), threads=self.parts), inside=inside)
        self.code = generate(estimate(space))
        self.lib = ctypes.CDLL(str(launching.library(folder, [self.code], flags)))

        def leaf(n: Node) -> Array:
            if n.op == "weight":
                return model.read_weight(n)
            return np.full(n.sizes, -1 if n.op == "input" else np.nan, n.dtype.numpy)

        self.memory = {
            e.name: launching.Memory(self.code, e, leaf, self.parts) for e in self.code.entries
        }
        self.states: dict[str, Array] = {}
        for e in self.code.entries:
            arrays = self.memory[e.name].arrays
            for v in e.place("state"):
                arrays[v.name] = self.states.setdefault(v.name, arrays[v.name])

    def forget(self) -> None:
        for array in self.states.values():
            array[...] = np.nan

    def step(self, ids: Sequence[int], p: int) -> Array:
        """The logits of a run."""
        name, s = ("decode" if len(ids) == 1 else "prefill"), len(ids)
        m = self.memory[name]
        m.arrays["input_ids"].reshape(-1)[:s] = ids
        for dim, value in (("p", p), ("s", s)):
            if dim in m.arrays:
                m.arrays[dim][...] = value
        address = {name: a.ctypes.data for name, a in m.arrays.items()}
        launching.launch(
            self.lib,
            "g0_",
            self.code,
            m.entry,
            address.__getitem__,
            m.scratch.ctypes.data,
            self.parts,
        )
        logits = m.after()["logits"]
        return logits[:s] if logits.ndim == 2 else logits
