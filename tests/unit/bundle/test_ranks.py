"""Parts of weights: one after the other in the file, and where a rank finds its own."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import mutating
from lumc.bundle import ranks
from lumc.codegen.code import Value
from lumc.codegen.tile.memory import aligned
from lumc.graph.collective import Part, Stage
from lumc.graph.graph import Node
from lumc.graph.ops import DType

MESH = {"a": 2, "b": 3, "c": 2, "pp": 3}
PARTS = {
    "whole": (),
    "one": (Part(1, "b", 3),),
    "two": (Part(1, "b", 3), Part(0, "a", 2)),
    "same": (Part(0, "c", 2), Part(0, "a", 2)),
    "first": (Part(0, "a", 2),),
    "second": (),
    "other": (Part(2, "b", 3),),
}
STAGES = {"first": 0, "second": 1, "other": 1}  # the others are on all


def leaf_of(v: Value) -> Node:
    at = STAGES.get(v.name)
    stage = None if at is None else Stage(at, "pp", 3)
    axes = tuple(f"d{i}" for i in range(3))
    return Node(v.name, "weight", v.dtype, axes, v.shape, parts=PARTS[v.name], stage=stage)


def agrees(folder: Path) -> None:
    """Every rank has its part of every constant, by the segments alone."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=(8, 6, 3)).astype("f4") for n in PARTS}

    def shape(parts: tuple[Part, ...]) -> tuple[int, ...]:
        out = [8, 6, 3]
        for p in parts:
            out[p.dim] //= p.ranks
        return tuple(out)

    values = [Value(n, DType.F32, shape(p), "weight") for n, p in PARTS.items()]
    leaves = {v.name: leaf_of(v) for v in values}

    def read(v: Value, place: ranks.Place) -> np.ndarray:
        return ranks.part(arrays[v.name], PARTS[v.name], place)

    layout, segments = ranks.write(folder / "w", values, lambda v: leaves[v.name], [*MESH], read)
    data = (folder / "w").read_bytes()[layout.start :]
    assert len(data) == sum(s.nbytes * s.parts for s in segments)
    sizes = {v.name: aligned(v.nbytes) for v in values}
    common = sum(size for name, size in sizes.items() if name not in STAGES)
    assert layout.nbytes == common + max(sizes["first"], sizes["second"] + sizes["other"])
    for at in product(*(range(n) for n in MESH.values())):
        place = dict(zip(MESH, at, strict=True))
        memory = bytearray(layout.nbytes)
        for s in segments:
            if s.stage not in (0, 1 + place["pp"]):
                continue
            own = sum(i * step for i, step in zip(at, s.steps, strict=True))
            assert own < s.parts
            start = s.start + own * s.nbytes
            memory[s.to : s.to + s.nbytes] = data[start : start + s.nbytes]
        for v in (v for v in values if STAGES.get(v.name, place["pp"]) == place["pp"]):
            there = np.frombuffer(memory, "f4", int(np.prod(v.shape)), layout.offsets[v.name])
            want = arrays[v.name]
            for p in PARTS[v.name]:  # by slices
                size = want.shape[p.dim] // p.ranks
                which = slice(place[p.mesh] * size, (place[p.mesh] + 1) * size)
                want = want[(slice(None),) * p.dim + (which,)]
            assert np.array_equal(there.reshape(v.shape), want), (v.name, place)
    for name, parts in PARTS.items():
        blocks = [ranks.part(arrays[name], parts, place) for place in ranks.places(parts)]
        assert np.array_equal(ranks.whole(blocks.__getitem__, parts), arrays[name])


def test_every_rank_finds_its_parts(tmp_path: Path) -> None:
    agrees(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for p in reversed(own):", "for p in own:"),
        ("steps[p.mesh], count = count, count * p.ranks", "steps[p.mesh] = count"),
        ("    for p in reversed(parts):\n        every", "    for p in parts:\n        every"),
        ("np.split(array, p.ranks, p.dim)", "np.split(array, p.ranks, 0)"),
        ("segments.append(Segment(*where, word_of(leaf(v))))", "segments.append(Segment(*where))"),
        ("overlaid((v.name, v.nbytes, word_of(leaf(v)))", "overlaid((v.name, v.nbytes, 0)"),
        (
            "np.concatenate(blocks[i : i + p.ranks], p.dim)",
            "np.concatenate(blocks[i : i + p.ranks])",
        ),
    ],
)
def test_mutants_die(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(ranks, old, new, monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        agrees(tmp_path)
