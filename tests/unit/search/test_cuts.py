"""Cut values below guards are stored where they are read, and nowhere else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from lumc.errors import Exit, LumcError
from lumc.frontend.api.join import concat
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import Expr, add, axis, index_value, mul, subterms
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.term import Buffer, Kernel, binary, guard, load, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.profile import lowered
from lumc.profile.candidates import programs_of
from lumc.profile.choose import estimate
from lumc.search import search
from lumc.search.cuts import Frame, Splitting, cut_points, spans
from lumc.search.layout import relaid
from lumc.search.saturate import Stats
from lumc.search.space import Region, Variant
from searching import TARGET, error, oracle, random_inputs, run_plan, weight
from zoo import build, model

F32 = DType.F32


def pyramid(g: Model) -> Tensor:
    """Pools of pools beside each other, then a product over all their channels."""
    every = [g.input("x", (1, 8, 6, 6))]
    for _ in range(3):
        every.append(every[-1].max_pool(5, stride=1, padding=2))
    return concat(every, 1).conv(weight(g, "w", 16, 32, 1, 1))


def padded_sums(g: Model) -> Tensor:
    """A sum over rows of which a later stage sees a padded part."""
    sums = (g.input("x", (5, 7)) * 0.5).exp2().sum(1)
    return sums.pad([(2, 4)]) * g.input("y", (11,)) + sums.slice(0, 1, 5).pad([(3, 4)])


def programs(value: Expr, frame: Frame) -> Iterator[list[Kernel]]:
    cuts = cut_points(value)
    split = Splitting(frame, value, cuts)
    for n in range(len(cuts) + 1):
        yield from map(split.kernels, itertools.combinations(range(len(cuts)), n))


@pytest.mark.parametrize("function", [pyramid, padded_sums])
def test_every_set_of_cuts_stays_inside(function: object) -> None:
    for region in search(build(function), TARGET, inside=True).regions:  # type: ignore[arg-type]
        for variant in region.variants:
            for kernels in programs(variant.value, region.frame):
                assert not any(map(escape, kernels))


def test_a_cut_has_the_channels_that_are_read() -> None:
    """8 of the 32 channels of the pyramid are those of the last pool."""
    last = search(build(pyramid), TARGET, inside=True).regions[-1]
    (variant,) = last.variants
    split = Splitting(last.frame, variant.value, variant.cuts)
    assert split.stored[0].buffer.shape == (6, 6, 8)


def guarded_sum(draw: random.Random) -> tuple[Expr, Frame]:
    """Sums over rows of b0 at moved places, below guards that keep them there."""
    extent = {"i": 9, "k": 4}
    value, buffers = None, []
    for n in range(draw.randint(1, 3)):
        step, rows = draw.choice((-1, 1, 1, 2)), draw.randint(1, 6)
        first = step * draw.randrange(9) - draw.randrange(rows)  # somewhere the guard holds
        index = add(mul(axis("i"), step), -first)
        buffers.append(Buffer(f"b{n}", F32, (rows, 4)))
        part = reduce("sum", "k", load(f"b{n}", F32, index, "k"))
        if draw.random() < 0.5:
            part = binary("mul", part, part)
        part = guard(index, 0, rows, part)
        value = part if value is None else binary("add", value, part)
    assert value
    out = Buffer("out", F32, (9,))
    return value, Frame(tuple(buffers), out, ("i",), (axis("i"),), extent)


def test_random_guarded_cuts_compute_the_same() -> None:
    for seed in range(80):
        value, frame = guarded_sum(random.Random(seed))
        rng = np.random.default_rng(seed)
        inputs = {b.name: rng.normal(size=b.shape).astype(np.float32) for b in frame.inputs}
        found = []
        for kernels in programs(value, frame):
            known = dict(inputs)
            for k in kernels:
                assert not escape(k), (seed, k)
                known |= evaluate_kernel(
                    k, {b.name: known[b.name] for b in k.buffers if b.name in known}
                )
            found.append(known["out"])
        assert all(np.array_equal(found[0], other) for other in found[1:]), seed


def test_spans_hold_every_point_that_is_read() -> None:
    """A mutant with a span one shorter is found, as ends are read."""
    tight = 0
    for seed in range(80):
        value, frame = guarded_sum(random.Random(seed))
        known = spans(value, frame.extent)
        read: dict[Expr, set[int]] = {}
        for i in range(9):
            for e in _read(value, {"i": i}):
                read.setdefault(e, set()).add(i)
        for e, points in read.items():
            if "i" in e.free:
                first, last = known[e]["i"]
                assert first <= min(points) and max(points) <= last
                tight += (first, last) == (min(points), max(points))
    assert tight > 400


def _read(e: Expr, at: dict[str, int]) -> Iterator[Expr]:
    """The terms that are needed at a point."""
    yield e
    if e.kind == "guard":
        if e.attr[0] <= index_value(e.kids[0], at) < e.attr[1]:
            yield from _read(e.kids[1], at)
    elif e.kind != "load":
        for k in e.kids:
            yield from _read(k, at)


def test_invalid_candidates_are_dropped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a region with a cut that may not be made, the others are left; of none, an error."""
    graph, said = build(pyramid), list[str]()
    lower, refused = lowered.scheduled, []

    def refuse(kernel: Kernel, target: object) -> object:
        maxima = [s for s in kernel.stages if s.attr[0] == "max"]
        if maxima and len(kernel.stages) > 1:
            refused.append(kernel)
            raise LumcError("E0411", "refused here")
        return lower(kernel, target)  # type: ignore[arg-type]

    monkeypatch.setattr(lowered, "scheduled", refuse)
    plan = estimate(search(graph, TARGET, inside=True), said.append)
    assert refused and any("E0411 refused here" in line for line in said)
    inputs = random_inputs(graph, "main")
    want, _ = oracle(graph, "main", inputs)
    got = run_plan(plan, "main", inputs)
    assert error(got[plan.outputs["main"][0][1]], want["y"]) < 1e-9

    def never(kernel: Kernel, target: object) -> object:
        raise LumcError("E0411", "refused always")

    monkeypatch.setattr(lowered, "scheduled", never)
    region = search(model("mlp"), TARGET, inside=True).regions[0]
    with pytest.raises(LumcError, match=r"E0415 .*refused always") as raised:
        programs_of(region, TARGET)
    assert raised.value.exit is Exit.UNSUPPORTED, "no budget helps"


def test_cuts_that_are_read_everywhere_keep_their_axes() -> None:
    region = search(model("block"), TARGET, inside=True).regions[0]
    for variant in region.variants:
        split = Splitting(region.frame, variant.value, variant.cuts)
        names = {e.attr[0] for e in subterms(variant.value) if e.kind == "axis"}
        assert all({*part.axes} <= names for part in split.stored)


def test_cuts_that_another_layout_makes_alike_are_one() -> None:
    """Two sums over the same axes, in two orders: laid out anew both walk one axis innermost, and
    are equal but for the name of their free one."""
    x = load("b0", DType.F32, axis("j"), axis("k"), axis("l"))
    y = load("b0", DType.F32, axis("m"), axis("k"), axis("l"))
    first, second = reduce("sum", ("k", "l"), x), reduce("sum", ("l", "k"), y)
    value = binary("add", first, reduce("max", ("m",), second))
    extent = {"j": 4, "m": 4, "k": 3, "l": 5}
    buffers = Buffer("b0", DType.F32, (4, 3, 5)), Buffer("out", DType.F32, (4,))
    frame = Frame(buffers[:1], buffers[1], ("j",), (axis("j"),), extent)
    cuts = cut_points(value)
    assert {first, second} <= set(cuts)
    region = Region("r", 1, frame, (Variant(value, cuts),), Stats())
    laid = relaid(region, {"b0": 1})
    (variant,) = laid.variants
    assert len(variant.cuts) < len(cuts)
    split = Splitting(laid.frame, variant.value, variant.cuts)
    for n in range(len(variant.cuts) + 1):
        for chosen in itertools.combinations(range(len(variant.cuts)), n):
            assert len(split.kernels(chosen)) == n + 1
