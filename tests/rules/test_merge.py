"""The law of merged axes: a kernel with axes that are read side by side as one computes the same.
Sound on random kernels, against numpy in f64, and the check kills wrong ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Map
from lumc.errors import LumcError
from lumc.graph.expr import Expr, add, axis, floordiv, mod, mul, num, subterms
from lumc.graph.ops import DType
from lumc.kernel import merge
from lumc.kernel.machines import resolve_target
from lumc.kernel.merge import merge_axes
from lumc.kernel.normal import normalize
from lumc.kernel.term import Buffer, Kernel, Root, binary, guard, iota, load, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.legal import check_kernel

KIND = DType.F64


class Drawing:
    """A random kernel over i, j, k, with reads of many forms."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.extent = {a: self.rng.choice((2, 3, 4, 5)) for a in "ijkrs"}
        self.ranges = {a: (0, n - 1) for a, n in self.extent.items()}
        self.buffers: list[Buffer] = []

    def read(self, axes: str) -> Expr:
        """A load at these axes: each in a dim, two of them in one, in another order, or apart."""
        n, rng = self.extent, self.rng
        index, shape, left = list[Expr](), list[int](), list(axes)
        if rng.random() < 0.1:
            rng.shuffle(left)
        while left:
            a, form = left.pop(0), rng.random()
            if left and form < 0.3:  # side by side in one dim, now and then with a gap
                b = left.pop(0)
                width, step = n[b] + (rng.random() < 0.15), rng.choice((1, 1, 2))
                index.append(mul(add(mul(axis(a), width), axis(b)), step))
                shape.append(step * n[a] * width)
            elif form < 0.33:
                index += [floordiv(axis(a), 2, self.ranges), mod(axis(a), 2, self.ranges)]
                shape += [n[a], 2]
            else:
                index.append(axis(a))
                shape.append(n[a] + (rng.random() < 0.1))
            if rng.random() < 0.1:
                index.append(num(0))
                shape.append(rng.choice((1, 2)))
        buffer = Buffer(f"b{len(self.buffers)}", KIND, tuple(shape))
        self.buffers.append(buffer)
        return load(buffer.name, KIND, *index)

    def term(self) -> Expr:
        rng = self.rng
        inner = self.read(rng.choice(("ijrs", "rs", "krs", "ijkrs")))
        if rng.random() < 0.5:
            inner = binary("mul", inner, self.read(rng.choice(("rs", "ijrs", "r"))))
        outer = self.read(rng.choice(("ijk", "ij", "jk", "k", "i")))
        if rng.random() < 0.3:
            outer = guard(rng.choice("ijk"), 1, 9, outer)
        if rng.random() < 0.2:
            outer = binary("mul", outer, iota(rng.choice("ij"), KIND))
        return binary("add", outer, reduce(rng.choice(("sum", "max")), "r s", inner))

    def kernel(self) -> Kernel:
        value, out = self.term(), tuple(self.extent[a] for a in "ijk")
        index: tuple[Expr, ...] = tuple(map(axis, "ijk"))
        if self.rng.random() < 0.2:  # stored turned
            index, out = (index[2], index[0], index[1]), (out[2], out[0], out[1])
        buffers = (*self.buffers, Buffer("out", KIND, out))
        return normalize(
            Kernel("k", ("i", "j", "k"), self.extent, (Root("out", index, value),), buffers)
        )


def agrees(kernel: Kernel) -> bool:
    rng = np.random.default_rng(3)
    values = {
        b.name: rng.permutation(int(np.prod(b.shape))).reshape(b.shape) / 7 - 3
        for b in kernel.buffers
    }
    want = evaluate_kernel(kernel, {n: v for n, v in values.items() if n != "out"})["out"]
    try:
        merged = merge_axes(kernel)
        check_kernel(merged)
        given = {b.name: values[b.name].reshape(b.shape) for b in merged.buffers if b.name != "out"}
        got = evaluate_kernel(merged, given)["out"].reshape(want.shape)
    except (ValueError, IndexError, KeyError, LumcError):
        return False
    return bool(np.allclose(got, want, rtol=1e-12, atol=1e-12, equal_nan=True))


def test_law_is_sound() -> None:
    merged = 0
    for seed in range(300):
        kernel = Drawing(seed).kernel()
        assert agrees(kernel), seed
        after = merge_axes(kernel)
        merged += len(after.extent) < len(kernel.extent)
        assert merge_axes(after) == after and normalize(after).roots == after.roots
    assert merged > 60  # the law was tried


def _anywhere(kernel: Kernel, i: str, j: str) -> dict[str, tuple[int, int]]:
    """The dims of one access of every buffer, whatever lies between them."""
    out = {}
    for name, index in merge._accesses(kernel):
        found = [[d for d, e in enumerate(index) if a in e.free] for a in (i, j)]
        if all(found):
            out[name] = found[0][0], found[1][0]
    return out


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "guards are not asked": (merge, "_are_free", lambda kernel, axes: True),
    "dims may lie anywhere": (merge, "_joined_dims", _anywhere),
    "gaps are nothing": (merge._Pair, "refused", property(lambda self: False, lambda *_: None)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name], raising=False)
    assert not all(agrees(Drawing(seed).kernel()) for seed in range(300))


def test_pixels_are_one_axis() -> None:
    """A pointwise product over an image, and the mean of all of it."""
    read = load("x", KIND, "c", "y", "x")
    product = reduce("sum", "c", binary("mul", load("w", KIND, "o", "c"), read))
    mean = reduce("sum", "c y x", read)
    shapes = {"x": (3, 4, 5), "w": (2, 3), "out": (2, 4, 5)}
    extent = {"o": 2, "y": 4, "x": 5, "c": 3}
    buffers = tuple(Buffer(n, KIND, s) for n, s in shapes.items())
    root = Root("out", tuple(map(axis, "oyx")), product)
    k = merge_axes(Kernel("k", ("o", "y", "x"), extent, (root,), buffers))
    assert k.axes == ("o", "y_x") and k.extent["y_x"] == 20
    assert k.buffer("x").shape == (3, 1, 20) and k.buffer("out").shape == (2, 1, 20)
    whole = (Buffer("x", KIND, (3, 4, 5)), Buffer("out", KIND, ()))
    k = merge_axes(Kernel("k", (), extent, (Root("out", (), mean),), whole))
    (stage,) = k.stages
    assert [k.extent[a] for a in stage.attr[1]] == [60]


def blocks(seed: int) -> Kernel:
    """A map over rows r and n*i + j, with reads of many forms."""
    rng = random.Random(seed)
    n, extent = rng.choice((2, 3, 5)), {"r": rng.choice((1, 3)), "i": rng.choice((1, 2, 4))}
    extent["j"], whole = n, extent["i"] * n
    place, shapes = add(mul(axis("i"), n), axis("j")), dict[str, tuple[int, ...]]()

    def read(*index: Expr | str, shape: tuple[int, ...]) -> Expr:
        name = f"b{len(shapes)}"
        shapes[name] = shape
        return load(name, KIND, *index)

    near = guard(add(place, -2), 0, 3, read("r", add(place, -2), shape=(3, 3)))
    forms = [
        read("r", place, shape=(3, whole)),
        near,
        read("i", shape=(4,)),
        iota(place, KIND),
        guard(place, 1, whole, read("i", shape=(5,))),
        *([read("j", shape=(5,))] if rng.random() < 0.1 else []),
        *([read("r", "i", shape=(3, 4))] if rng.random() < 0.1 else []),
        *([guard("j", 1, 5, read("i", shape=(4,)))] if rng.random() < 0.1 else []),
    ]
    value = rng.choice(forms)
    for form in rng.sample(forms, 3):
        value = binary(rng.choice(("add", "mul")), value, form)
    turned = rng.random() < 0.1  # and stored apart
    index = (axis("r"), axis("i"), axis("j")) if turned else (axis("r"), place)
    out = (extent["r"], extent["i"], n) if turned else (extent["r"], whole)
    every = (*(Buffer(b, KIND, s) for b, s in shapes.items()), Buffer("out", KIND, out))
    used = {e.attr[0] for e in subterms(value) if e.kind == "load"} | {"out"}
    buffers = tuple(b for b in every if b.name in used)
    return normalize(Kernel("k", ("r", "i", "j"), extent, (Root("out", index, value),), buffers))


def test_blocks_of_the_last_axis_are_one_with_it() -> None:
    joined = 0
    for seed in range(300):
        kernel = blocks(seed)
        assert agrees(kernel), seed
        after = merge_axes(kernel)
        joined += len(after.axes) < len(kernel.axes)
        assert merge_axes(after) == after
    assert joined > 100


def test_a_mutant_of_blocks_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All elements of a block are its first one."""
    monkeypatch.setattr(merge, "mod", lambda e, n, ranges: num(0))
    monkeypatch.setattr(merge, "_are_blocks", lambda *_: True)
    assert not all(agrees(blocks(seed)) for seed in range(300))


def test_what_blocks_read_is_read_once_for_all_rows() -> None:
    """Lanes along the channels, six in a group; what they share lies in a row of its own."""
    n, place = 6, add(mul(axis("i"), 6), axis("j"))
    value = binary("mul", load("x", DType.F32, "r", place), load("g", DType.F32, "i"))
    shapes = {"x": (64, 192), "g": (32,), "out": (64, 192)}
    buffers = tuple(Buffer(b, DType.F32, s) for b, s in shapes.items())
    extent = {"r": 64, "i": 32, "j": n}
    root = Root("out", (axis("r"), place), value)
    k = merge_axes(normalize(Kernel("k", ("r", "i", "j"), extent, (root,), buffers)))
    assert [k.extent[a] for a in k.axes] == [64, 192]
    target = resolve_target("cpu:x86-64-v4")
    (row, *_), *_ = [lower(k, default_schedule(k, target), target).body]
    assert isinstance(row, Map) and row.axes == k.axes[1:]
