"""The law of layouts: regions on values in another order of dims compute the same. Sound on random
regions, against numpy in f64, and the check kills wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumc.errors import LumcError
from lumc.graph.expr import Expr, add, axis
from lumc.graph.ops import DType
from lumc.kernel.term import Buffer, binary, guard, load, reduce, unary
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.legal import check_kernel
from lumc.search.cuts import Frame, Splitting, cut_points
from lumc.search.layout import origin, relaid
from lumc.search.saturate import Stats, StopReason
from lumc.search.space import Region, Variant
from searching import Array

KIND = DType.F64
Last = Mapping[str, int]
Law = Callable[[Region, Last], Region]


def window(c: str, extent: Mapping[str, int]) -> Expr:
    """b0 around a point, padded with zeros."""
    y, x = add("y", "u", -1), add("x", "v")
    return guard(y, 0, extent["y"], load("b0", KIND, c, y, x))


def terms(extent: Mapping[str, int]) -> dict[str, Expr]:
    """Results over o, y and x, from b0[c, y, x], b1[o, c, u, v] and b2[o, y, x]."""
    weight, beside = load("b1", KIND, "o", "c", "u", "v"), load("b2", KIND, "o", "y", "x")
    product = binary("mul", window("c", extent), weight)
    sums = reduce("sum", ["c", "u", "v"], product)
    largest = reduce("max", ["c"], load("b0", KIND, "c", "y", "x"))
    return {
        "convolution": sums,
        "with residual": binary("add", unary("exp2", sums), beside),
        "two reductions": binary("mul", sums, binary("add", largest, beside)),
        "nested": reduce("max", ["c"], binary("add", load("b0", KIND, "c", "y", "x"), largest)),
        "map": binary("mul", beside, load("b0", KIND, 0, "y", "x")),
    }


def region(name: str, extent: Mapping[str, int]) -> Region:
    e = extent
    inputs = (
        Buffer("b0", KIND, (e["c"], e["y"], e["x"] + e["v"] - 1)),
        Buffer("b1", KIND, (e["o"], e["c"], e["u"], e["v"])),
        Buffer("b2", KIND, (e["o"], e["y"], e["x"])),
    )
    output, axes = Buffer("out", KIND, (e["o"], e["y"], e["x"])), ("o", "y", "x")
    frame = Frame(inputs, output, axes, tuple(map(axis, axes)), extent)
    value = terms(extent)[name]
    stats = Stats(0, 0, 0, StopReason.SATURATED, {})
    return Region("r", 1, frame, (Variant(value, cut_points(value)),), stats)


NAMES = tuple(terms(dict.fromkeys("coyxuv", 2)))


def results(r: Region, values: Mapping[str, Array], cuts: int) -> Array:
    """What the kernels of a region write, with the first so many of its cuts."""
    (variant,) = r.variants
    known = dict(values)
    for k in Splitting(r.frame, variant.value, variant.cuts).kernels(range(cuts)):
        check_kernel(k)
        read = (b for b in k.buffers if b.name not in k.stored)
        known |= evaluate_kernel(k, {b.name: known[b.name].reshape(b.shape) for b in read})
    return known["out"].reshape(r.frame.output.shape)  # kernels see merged dims


def moved(name: str, value: Array, last: Last) -> Array:
    return np.ascontiguousarray(np.moveaxis(value, last[name], -1)) if name in last else value


def agrees(r: Region, last: Last, law: Law = relaid, cuts: int = 0, seed: int = 0) -> bool:
    """Whether the region that the law gives computes the same, from moved values, moved."""
    rng = np.random.default_rng(seed)
    values = {b.name: rng.permutation(int(np.prod(b.shape))) / 7 - 3 for b in r.frame.inputs}
    values = {b.name: values[b.name].reshape(b.shape) for b in r.frame.inputs}
    want = moved("out", results(r, values, cuts), last)
    try:
        got = results(law(r, last), {n: moved(n, v, last) for n, v in values.items()}, cuts)
    except (LumcError, LookupError, ValueError, AssertionError):
        return False
    return got.shape == want.shape and np.allclose(got, want, rtol=1e-9, atol=1e-9)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Region, dict[str, int]]:
    extent = {a: draw(st.sampled_from((1, 2, 3, 5))) for a in "coyx"}
    extent |= {a: draw(st.integers(1, 3)) for a in "uv"}
    dims = {name: draw(st.integers(0, 2)) for name in ("b0", "b2", "out") if draw(st.booleans())}
    return region(draw(st.sampled_from(NAMES)), extent), dims


@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=cases(), cuts=st.integers(0, 2), seed=st.integers(0, 1 << 20))
def test_law_is_sound(case: tuple[Region, dict[str, int]], cuts: int, seed: int) -> None:
    r, last = case
    assert agrees(r, last, cuts=min(cuts, len(r.variants[0].cuts)), seed=seed)
    assert origin(relaid(r, last).key) == r.key


def test_a_sum_walks_along_what_is_contiguous() -> None:
    r = region("convolution", {"c": 4, "o": 5, "y": 3, "x": 2, "u": 3, "v": 3})
    (kernel,) = Splitting(r.frame, r.variants[0].value, ()).kernels()
    (other,) = Splitting((n := relaid(r, {"b0": 0})).frame, n.variants[0].value, ()).kernels()
    assert [k.stages[0].attr for k in (kernel, other)] == [
        ("sum", ("c", "u", "v")),
        ("sum", ("u", "v", "c")),
    ]
    assert relaid(r, {"out": 0}).frame.axes == ("y", "x", "o")


# ---- mutants


def mutant(name: str) -> Law:
    """The law with a mistake."""

    def changed(r: Region, last: Last) -> Region:
        if name == "loads stay":
            return replace(relaid(r, last), variants=r.variants)
        if name == "buffers stay":
            return replace(relaid(r, last), frame=r.frame)
        if name == "to the front":
            return relaid(r, dict.fromkeys(last, 0))
        if name == "only the first":
            return relaid(r, dict([*last.items()][:1]))
        result = relaid(r, last)
        assert name == "result stays"
        return replace(result, frame=replace(result.frame, index=r.frame.index))

    return changed


MUTANTS = ("loads stay", "buffers stay", "to the front", "only the first", "result stays")


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_killed(name: str) -> None:
    extent = {"c": 4, "o": 5, "y": 3, "x": 2, "u": 2, "v": 1}
    layouts = ({"b0": 1, "out": 0}, {"b2": 1, "out": 1})
    found = [agrees(region(n, extent), last, mutant(name)) for n in NAMES for last in layouts]
    assert not all(found)
    assert all(agrees(region(n, extent), last) for n in NAMES for last in layouts)
