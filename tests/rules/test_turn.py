"""The law of kernels on turned copies: the parts compute the same. Against numpy in f64, and the
check kills wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from differential import Case, check_compiled
from kernels import native
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.graph.expr import Expr, add, axis
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
from lumc.search import search, turn
from lumc.search.cuts import assemble
from lumc.search.turn import turned

KIND = DType.F64
Turn = Callable[[Kernel, str], list[Kernel]]


def kernel(extent: Mapping[str, int], place: Sequence[str]) -> Kernel:
    """A padded window of every channel times weights, beside another value; results over
    ``place``, an order of the channels c and the pixels y and x."""
    shape = {a: extent[a] for a in "cyx"}
    y, x = add("y", "u", -1), add("x", "v", -1)
    seen = guard(y, 0, shape["y"], guard(x, 0, shape["x"], load("b0", KIND, "c", y, x)))
    weighted = binary("mul", load("b1", KIND, "c", "u", "v"), seen)
    value = binary("add", reduce("sum", ["u", "v"], weighted), load("b2", KIND, "y", "c", "x"))
    buffers = (
        Buffer("b0", KIND, tuple(shape.values())),
        Buffer("b1", KIND, (extent["c"], extent["u"], extent["v"]), constant=True),
        Buffer("b2", KIND, tuple(shape[a] for a in "ycx")),
    )
    out = Buffer("out", KIND, tuple(shape[a] for a in place))
    root = Root("out", tuple(map(axis, place)), value)
    return assemble("whole", tuple(place), (root,), extent, buffers, (out,))


def run(kernels: Sequence[Kernel], values: Mapping[str, np.ndarray]) -> np.ndarray:
    known = dict(values)
    for k in kernels:
        check_kernel(k)
        assert not escape(k)
        read = (b for b in k.buffers if b.name not in k.stored)
        known |= evaluate_kernel(k, {b.name: known[b.name].reshape(b.shape) for b in read})
    return known["out"]


def agrees(k: Kernel, last: str, law: Turn = turned) -> bool | None:
    """Whether the parts compute what the kernel does; None where the law says nothing."""
    rng = np.random.default_rng(7)
    read = [b for b in k.buffers if b.name not in k.stored]
    values = {b.name: rng.permutation(prod(b.shape)).reshape(b.shape) / 7 - 3 for b in read}
    parts = law(k, last)
    if not parts:
        return None
    want = run([k], values)
    try:
        got = run(parts, values)
    except (AssertionError, LookupError, ValueError, LumcError):
        return False
    return np.allclose(got.reshape(want.shape), want, rtol=1e-9, atol=1e-9)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Kernel, str]:
    extent = {a: draw(st.sampled_from((1, 2, 3, 5))) for a in "cyx"}
    extent |= {a: draw(st.integers(1, 3)) for a in "uv"}
    extent["c"] += 1
    k = kernel(extent, draw(st.permutations("cyx")))
    return k, draw(st.sampled_from(k.axes))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=cases())
def test_law_is_sound(case: tuple[Kernel, str]) -> None:
    assert agrees(*case) is not False


SIZES = {"c": 5, "y": 2, "x": 3, "u": 3, "v": 3}


def test_it_says_something() -> None:
    k = kernel(SIZES, "cyx")
    assert agrees(k, "c") and agrees(k, "y") is None  # an index along y is one of the window
    assert len(turned(k, "c")) == 4  # b0, b2, the result on these, and back
    assert [b.name for b in turned(k, "c")[2].buffers if b.constant] == ["b1"]


def test_a_part_of_a_state_is_not_turned() -> None:
    """Turning it back would write all of the state."""
    k = kernel(SIZES, "cyx")
    (root,), out = k.roots, k.buffer("out")
    for place in (root.index, (add("c", 2), *root.index[1:])):
        longer = replace(out, shape=(out.shape[0] + 2, *out.shape[1:]))
        known = tuple(b for b in k.buffers if b is not out)
        part = Root("out", place, root.value)
        made = assemble("part", k.axes, (part,), k.extent, known, (longer,))
        assert not turned(made, "c")


def mutant(name: str) -> Turn:
    def changed(k: Kernel, last: str) -> list[Kernel]:
        *copies, main, back = turned(k, last)
        if name == "operands stay":
            copies = [replace(c, roots=(straight(c),)) for c in copies]
        elif name == "the result stays":
            back = replace(back, roots=(straight(back),))
        elif name == "another operand":
            copies[0] = replace(copies[1], roots=(replace(copies[1].roots[0], buffer="out_0"),))
        return [*copies, main, back]

    return changed


def straight(k: Kernel) -> Root:
    """A copy, one element after the other."""
    (root,) = k.roots
    index = tuple(sorted(root.value.kids, key=str))
    value: Expr = load(root.value.attr[0], KIND, *index)
    return replace(root, index=tuple(sorted(root.index, key=str)), value=value)


@pytest.mark.parametrize("name", ["operands stay", "the result stays", "another operand"])
def test_mutants_are_killed(name: str) -> None:
    assert agrees(kernel({**SIZES, "y": 4}, "cyx"), "c", mutant(name)) is False


@pytest.mark.parametrize("wrong", ["dims", "loads"])
def test_faults_in_the_law_are_killed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong == "dims":
        monkeypatch.setattr(turn, "to_end", lambda items, n: tuple(items))
    else:
        monkeypatch.setattr(turn, "relaid_value", lambda value, dims: value)
    assert agrees(kernel(SIZES, "cyx"), "c") is False


# ---- when it is chosen


def depthwise(channels: int, at: int, size: int, constant: bool = True) -> Graph:
    g = Model()
    x = g.input("real_x", (1, channels, at, at))
    shape = (channels, 1, size, size)
    weights = np.random.default_rng(1).normal(size=shape).astype("f4")
    w = g.constant(weights, "w") if constant else g.input("real_w", shape)
    y = x.conv(w, padding=size // 2, groups=channels)
    g.output("y", y)
    return g.graph()


@pytest.mark.parametrize(
    ("graph", "target", "parts"),
    [
        (depthwise(768, 7, 7), CPUS["x86-64-v4"], 3),  # rows of 7 fill no vector
        (depthwise(16, 112, 3), CPUS["x86-64-v4"], 1),
        (depthwise(768, 7, 7), resolve_target("cuda:sm_90"), 1),
    ],
)
def test_when_a_kernel_is_turned(graph: Graph, target: Target, parts: int) -> None:
    space = search(graph, target, inside=True)
    plan = estimate(space)
    (region,) = plan.regions.values()
    assert len(region.steps) == parts
    _, laws = variant_of(space.regions[0], region, target)
    assert ("turn" in laws) == (parts > 1)


def test_turned_kernels_compute_the_same(tmp_path: Path) -> None:
    case = Case(depthwise(768, 7, 7, constant=False), target=native())
    case.prepare()
    assert case.plan and any("_" in b.name for r in case.plan.regions.values() for b in r.local)
    case.check_plan()
    check_compiled(tmp_path, [case], [case.plan])
