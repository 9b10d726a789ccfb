"""The law of kernels on compact copies: the parts compute the same. Against numpy in f64, and the
check kills wrong ones."""

from __future__ import annotations

import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from differential import Case, check_compiled
from kernels import native
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import Expr, add, axis, mul
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.machines import CPUS, resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Root, binary, guard, load, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.profile.choose import estimate
from lumc.report.derivation import variant_of
from lumc.schedule.legal import check_kernel
from lumc.search import compact, search
from lumc.search.compact import compacts
from lumc.search.cuts import assemble
from zoo import build

KIND = DType.F64
CPU = CPUS["x86-64-v4"]
Laws = ModuleType | SimpleNamespace


def drawn(seed: int) -> Kernel:
    """``out[j, k, i]``: a product of weights and of every c-th pixel of a part of an image, which
    may begin at its end and may be read under guards, beside another value."""
    rng = random.Random(seed)
    extent = {"j": rng.randint(1, 4), "k": rng.randint(1, 4), "i": 3, "c": 4}
    index, shape = list[Expr](), list[int]()
    pad = rng.choice((0, 0, 0, 1))
    for a in "jk":
        step, first, n = rng.choice((1, 2, 2, 3, -1)), rng.randint(0, 2), extent[a]
        first += (n - 1) * (step < 0) - pad
        index.append(add(mul(axis(a), step), first))
        last = max(first, first + step * (n - 1))
        shape.append(max(1, last + 1 + rng.randint(0, 1) - pad * rng.randint(0, 2)))
    if rng.random() < 0.1:  # both in one dim
        index[0] = add(index[0], "k")
        shape[0] += extent["k"] - 1
    image = load("b0", KIND, *index, "c")
    for i, n in zip(index, shape, strict=True):
        image = guard(i, 0, n, image) if pad else image
    total = reduce("sum", "c", binary("mul", image, load("b1", KIND, "i", "c")))
    other = load("b2", KIND, "j", *rng.choice(((mul(axis("k"), 2), "i"), ("k", "i"), ("j", "j"))))
    buffers = (
        Buffer("b0", KIND, (*shape, 4)),
        Buffer("b1", KIND, (3, 4), constant=True),
        Buffer("b2", KIND, (4, 8, 4)),
    )
    out = Buffer("out", KIND, tuple(extent[a] for a in "jki"))
    root = Root("out", tuple(map(axis, "jki")), binary("add", total, other))
    return assemble("whole", (*"jki",), (root,), extent, buffers, (out,))


def run(kernels: Sequence[Kernel], values: dict[str, np.ndarray]) -> np.ndarray:
    known = dict(values)
    for k in kernels:
        check_kernel(k)
        assert not escape(k)
        read = [b for b in k.buffers if b.name not in k.stored]
        known |= evaluate_kernel(k, {b.name: known[b.name].reshape(b.shape) for b in read})
    return known["out"]


def agrees(k: Kernel, laws: Laws = compact) -> bool | None:
    """Whether the parts compute what the kernel does; None where the law says nothing."""
    rng = np.random.default_rng(7)
    read = [b for b in k.buffers if b.name not in k.stored]
    values = {b.name: rng.permutation(prod(b.shape)).reshape(b.shape) / 7 - 3 for b in read}
    try:
        parts = laws.compacted(k)
        got = run(parts, values) if len(parts) > 1 else None
    except (AssertionError, LookupError, ValueError, LumcError):
        return False
    want = run([k], values)
    return None if got is None else np.allclose(got.reshape(want.shape), want)


def test_law_is_sound() -> None:
    said = [agrees(drawn(seed)) for seed in range(300)]
    assert False not in said and said.count(True) > 150 and None in said


def test_pixels_become_rows() -> None:
    every = [[*compacts(drawn(seed), CPU)] for seed in range(300)]
    merged = [parts for ways in every for parts in ways]
    assert 20 < len(merged) < 200
    for *copies, made in merged:
        assert len(made.axes) < 3 and all(not c.stages for c in copies)
        assert not [*compacts(made, CPU)]  # all of it is read


def test_nothing_is_said_of_sums_and_for_gpus() -> None:
    seed = next(s for s in range(300) if [*compacts(drawn(s), CPU)])
    k = drawn(seed)
    assert not [*compacts(k, resolve_target("cuda:sm_90"))]
    (root,), (stage,) = k.roots, k.stages
    alone = reduce("sum", stage.attr[1], stage.kids[0].kids[0])
    roots = (replace(root, value=binary("add", alone, root.value.kids[1])),)
    assert not [*compacts(replace(k, roots=roots), CPU)]


MUTANTS = {
    "straight": (
        "tuple(map(axis, axes)), e)",
        "tuple(map(axis, axes)), load(e.attr[0], dtype(e), *axes))",
    ),
    "all under guards": ("all(0 <= lo <= hi < n for lo, hi, n in spans)", "True"),
    "below zero": ("0 <= lo <= hi < n", "hi < n"),
    "beyond": ("0 <= lo <= hi < n", "0 <= lo"),
    "read in another order": ("to.dtype, *axes)", "to.dtype, *axes[::-1])"),
    "one copy": ("_{len(copies)}", "_0"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_killed(name: str, tmp_path: Path) -> None:
    source, path = Path(compact.__file__).read_text(), tmp_path / "mutant.py"
    old, new = MUTANTS[name]
    assert old in source
    path.write_text(source.replace(old, new))
    wrong = SimpleNamespace(**runpy.run_path(str(path)))
    assert False in [agrees(drawn(seed), wrong) for seed in range(300)]


# ---- when it is chosen


def strided(
    channels: int, at: int, to: int, size: int = 1, stride: int = 2, constant: bool = True
) -> Graph:
    def write(g: Model) -> Tensor:
        shape = (to, channels, size, size)
        weights = np.random.default_rng(1).normal(size=shape).astype("f4")
        w = g.constant(weights, "w") if constant else g.input("real_w", shape)
        return g.input("real_x", (1, channels, at, at)).conv(w, stride=stride)

    return build(write)


@pytest.mark.parametrize(
    ("graph", "target", "used"),
    [
        (strided(1024, 14, 2048), CPU, True),
        (strided(1024, 14, 2048), replace(CPUS["x86-64-v3"], threads=2), True),
        (strided(64, 56, 128), CPU, False),  # rows are long and weights small
        (strided(512, 14, 512, 3), CPU, False),  # windows overlap
        (strided(512, 7, 512, stride=1), CPU, False),
    ],
)
def test_when_copies_are_compact(graph: Graph, target: Target, used: bool) -> None:
    space = search(graph, target, inside=True)
    plan = estimate(space)
    region = space.regions[0]
    _, laws = variant_of(region, plan.regions[region.key], target)
    assert ("compact" in laws) == used


def test_compact_kernels_compute_the_same(tmp_path: Path) -> None:
    case = Case(strided(1024, 14, 1024, constant=False), target=native())
    case.prepare()
    assert case.plan and any("_" in b.name for r in case.plan.regions.values() for b in r.local)
    case.check_plan()
    check_compiled(tmp_path, [case], [case.plan])
