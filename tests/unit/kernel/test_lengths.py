"""Axes of which the length is known when a kernel runs: what says so, and what tells them apart."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import kernel_zoo as zoo
from lumc.errors import LumcError
from lumc.graph.dim import Dim
from lumc.graph.expr import Expr, add, axis, dim, floordiv, mul, num, substitute
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.inside import escape
from lumc.kernel.key import canonical, kernel_key, renamed
from lumc.kernel.lengths import Lengths, values
from lumc.kernel.machines import resolve_target
from lumc.kernel.merge import merge_axes
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, guard
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.legal import check_kernel

TARGET = resolve_target("cpu:x86-64-v3")
S, U = Dim("s", 1, 12), Dim("u", 1, 12)
s, u = dim("s"), dim("u")


def live(kernel: Kernel, *dims: Dim, **lengths: Expr) -> Kernel:
    return replace(kernel, live=Lengths(dims, tuple(lengths.items())))


def key(kernel: Kernel) -> str:
    return kernel_key(canonical(kernel)[0], TARGET)


@pytest.mark.parametrize(
    ("e", "dims", "found"),
    [
        (s, [S], range(1, 13)),
        (add(s, 3), [S], range(4, 16)),
        (mul(s, 8), [S], range(8, 97, 8)),
        (add(mul(s, -2), 30), [S], range(6, 29, 2)),
        (add(s, u), [S, U], range(2, 25)),
        (s, [Dim("s", 3, 30, 8)], range(8, 25, 8)),
        (add(s, u), [Dim("s", 0, 12, 4), Dim("u", 1, 12, 6)], range(6, 25, 2)),
        (s, [Dim("s", 5, 5)], range(5, 6)),
        (floordiv(s, 4, {}), [S], range(0, 4)),
    ],
)
def test_values_of_an_expression(e: Expr, dims: list[Dim], found: range) -> None:
    assert values(e, dims) == found
    if e.kind != "div":  # and each of the dims' values gives one of them
        rng = random.Random(1)
        for _ in range(20):
            at = {dim(d.name): num(rng.choice(d.values)) for d in dims}
            assert substitute(e, at).attr[0] in found


def test_lengths_are_a_part_of_the_key() -> None:
    """Two dims of one greatest value are two things."""
    k = zoo.matmul(12, 12, 12, False, False)
    same = live(k, S, m=s)
    made = [
        k,
        same,
        live(k, S, n=s),
        live(k, S, m=s, n=s),
        live(k, S, U, m=s, n=u),
        live(k, U, m=u),
        live(k, Dim("s", 4, 12, 4), m=s),
    ]
    assert len({key(each) for each in made}) == len(made)
    names = renamed(same, {"m": "x", "n": "y"}, {"x": "q"})
    assert names.lengths.live == (("x", s),)
    assert key(names) == key(same)


def test_names_of_axes_are_none_of_dims() -> None:
    k = live(zoo.matmul(12, 12, 12), Dim("i", 1, 12), Dim("k12_1", 1, 12), m=dim("i"))
    made = canonical(k)[0]
    check_kernel(made)
    assert made.axes == ("i_axis", "j")


def test_files_of_static_kernels_say_nothing_of_lengths() -> None:
    k = zoo.matmul(12, 5, 7)
    assert "live" not in to_plain(k)
    for made in (k, live(k, S, m=s), live(k, S, U, m=s)):
        assert from_plain(Kernel, to_plain(made)) == made


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        (Lengths((S,), (("m", u),)), "not made of dims"),
        (Lengths((S,), (("m", axis("n")),)), "not made of dims"),
        (Lengths((S,), (("q", s),)), "a length of no axis"),
        (Lengths((S,), (("m", s), ("m", s))), "two of one"),
        (Lengths((S,), (("m", add(s, 1)),)), "axis m of extent 12 has 2 to 13 values"),
        (Lengths((Dim("s", 0, 12),), (("m", s),)), "axis m of extent 12 has 0 to 12 values"),
        (Lengths((Dim("s", 12, 12),), (("m", s),)), "axis m of extent 12 has 12 to 12 values"),
        (Lengths((Dim("m", 1, 12),), (("m", dim("m")),)), "one name"),
        (Lengths((S, S), (("m", s),)), "one name"),
        (Lengths((Dim("s", 5, 3),), (("m", s),)), "dim s has no values"),
        (Lengths((Dim("s", 1, 3, 0),), (("m", s),)), "dim s has no values"),
        (Lengths((Dim("s.0", 1, 12),), (("m", dim("s.0")),)), "is not a name"),
    ],
)
def test_wrong_lengths_are_refused(lengths: Lengths, what: str) -> None:
    with pytest.raises(LumcError, match=what) as e:
        check_kernel(replace(zoo.matmul(12, 5, 7), live=lengths))
    assert e.value.code == "E0410"


def test_dims_that_are_not_listed_are_refused() -> None:
    k = zoo.kernel("late", "i", {"i": 12}, zoo.x("x", add("i", s)), {"x": (24,)})
    with pytest.raises(LumcError, match="uses dim s, which the kernel lacks"):
        check_kernel(k)
    check_kernel(live(k, S))


def test_axes_side_by_side_are_one_if_the_inner_one_has_all_values() -> None:
    k = zoo.bias_gelu(12, 8)
    (root,) = k.roots
    plain = replace(k, roots=(replace(root, value=zoo.gelu(zoo.x("x", "m", "n"))),))
    made = merge_axes(normalize(live(plain, S, m=s)))
    assert made.axes == ("m_n",)
    assert made.lengths.live == (("m_n", mul(s, 8)),)
    check_kernel(made)
    assert merge_axes(normalize(live(plain, Dim("s", 1, 8), n=s))).axes == ("m", "n")


def test_a_guard_over_dims_stays_and_is_proof_enough() -> None:
    """Of an axis that ends with its length, the last element and what lies before it."""
    there = add(s, mul(axis("i"), -1), -1)
    k = zoo.kernel("flip", "i", {"i": 12}, zoo.x("x", there), {"x": (12,)})
    assert not escape(live(k, S, i=s))
    assert "not proven" in escape(live(k, S, U, i=u))
    asked = zoo.kernel("flip", "i", {"i": 12}, guard(there, 0, 12, zoo.x("x", there)), {"x": (12,)})
    assert not escape(live(asked, S, U, i=u))
    (root,) = normalize(live(asked, S, U, i=u)).roots
    assert root.value.kind == "guard"


def test_a_bound_kernel_reads_and_writes_a_part() -> None:
    k = live(zoo.matmul(12, 5, 12, False, False), S, U, m=s, k=u)
    inputs = zoo.random_inputs(k, 1)
    inputs["x"][3:], inputs["x"][:, 4:], inputs["w"][4:] = np.nan, np.nan, np.nan
    out = evaluate_kernel(k.bound({"s": 3, "u": 4}), inputs)["out"]
    np.testing.assert_allclose(out[:3], inputs["x"][:3, :4].astype("f8") @ inputs["w"][:4])
    assert not out[3:].any()
