"""The law of reductions over blocks of rows, ``split-block``: sound on random kernels, against
numpy in f64, and the check kills a wrong one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import Expr, add, axis, mul
from lumc.graph.ops import DType
from lumc.kernel.machines import CPUS
from lumc.kernel.normal import normalize
from lumc.kernel.term import Buffer, Kernel, Root, binary, const, guard, iota, load, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.legal import check_kernel
from lumc.search import split
from lumc.search.split import blocks_apart
from splitting import laws

KIND = DType.F64


def drawn(seed: int) -> Kernel:
    """Sums and maxima over rows and the places of blocks, with reads of many forms."""
    rng = random.Random(seed)
    n, count, rows = rng.choice((2, 3, 5)), rng.choice((1, 2, 4)), rng.choice((0, 1, 3))
    extent = {"b": rng.choice((1, 2)), "i": count, "r": rows, "q": rng.choice((1, 2)), "k": n}
    place, whole = add(mul(axis("i"), n), axis("k")), count * n
    shapes = {
        "x": (2, 3, 2, whole),
        "m": (2, count),
        "w": (whole,),
        "u": (n,),
        "v": (3, 2, n, count),
    }
    forms: list[Expr] = [
        load("m", KIND, "b", "i"),
        load("w", KIND, place),
        load("u", KIND, "k"),
        guard(add(place, -1), 0, 3, load("w", KIND, add(place, -1))),
        iota(place, KIND),
        load("v", KIND, "r", "q", "k", "i"),
    ]
    body = load("x", KIND, "b", "r", "q", place)
    for form in rng.sample(forms, 2):
        body = binary(rng.choice(("add", "mul")), body, form)
    over = rng.sample(["r", "q", "k"], 3)
    value = reduce(rng.choice(("sum", "max")), over, body)
    if rng.random() < 0.5:
        value = binary("mul", binary("add", value, load("m", KIND, "b", "i")), const(0.5, KIND))
    buffers = tuple(Buffer(name, KIND, s) for name, s in shapes.items())
    root = Root("out", (axis("b"), axis("i")), value)
    out = Buffer("out", KIND, (extent["b"], count))
    return normalize(Kernel("k", ("b", "i"), extent, (root,), (*buffers, out)))


def agrees(kernel: Kernel, seed: int = 3) -> bool:
    rng = np.random.default_rng(seed)
    known = {
        b.name: rng.permutation(int(np.prod(b.shape))).reshape(b.shape) / 7 - 3
        for b in kernel.buffers
        if b.name != "out"
    }
    want = evaluate_kernel(kernel, known)["out"]
    for parts in blocks_apart(kernel):
        values = dict(known)
        try:
            for part in parts:
                check_kernel(part)
                sizes = {b.name: b.shape for b in part.buffers if b.name not in part.stored}
                given = {name: values[name].reshape(s) for name, s in sizes.items()}
                values |= evaluate_kernel(part, given)
        except (ValueError, IndexError, KeyError, LumcError):
            return False
        got = values["out"].reshape(want.shape)
        if not np.allclose(got, want, rtol=1e-12, atol=1e-12, equal_nan=True):
            return False
    return True


def test_law_is_sound() -> None:
    assert all(agrees(drawn(seed), seed) for seed in range(200))
    assert sum(len([*blocks_apart(drawn(seed))]) for seed in range(200)) > 60  # it was tried


def test_mutant_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring blocks share a place."""
    monkeypatch.setattr(split, "mul", lambda e, n: mul(e, n - 1))
    assert not all(agrees(drawn(seed), seed) for seed in range(200))


def grouped(g: Model) -> Tensor:
    """The means of groups of six channels, which lie last."""
    return g.input("x", (64 * 64, 32, 6)).sum((0, 2))


def test_it_is_chosen_where_lanes_would_lie_apart() -> None:
    g = Model()
    g.output("y", grouped(g))
    assert laws(g.graph(), CPUS["x86-64-v4"]) == ["split-block"]
