"""The normal form of kernels."""

import numpy as np

from kernel_zoo import FAMILIES, c, greatest, kernel, padded_sum, plus, random_inputs, total, x
from lumc.graph.expr import add, subterms
from lumc.kernel.normal import normalize
from lumc.kernel.term import guard, unary, wsum
from lumc.oracle.term import evaluate_kernel


def test_it_computes_the_same_and_is_stable() -> None:
    for family, shapes in FAMILIES.items():
        k = family(*shapes[0])
        new, inputs = normalize(k), random_inputs(k, 1)
        assert normalize(new).roots == new.roots
        want, got = evaluate_kernel(k, inputs), evaluate_kernel(new, inputs)
        for name in want:
            assert np.allclose(got[name], want[name], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_single_axes_and_nested_sums_go() -> None:
    e = total("u", total("c", total("v", x("x", add("y", "u"), "c", "v"))))
    extent = {"y": 3, "u": 1, "c": 4, "v": 5}
    k = normalize(kernel("k", "y", extent, e, {"x": (3, 4, 5)}))
    assert [s.attr for s in k.stages] == [("sum", ("c", "v"))]
    assert k.roots[0].value.kids[0] is x("x", "y", "c", "v")


def test_a_sum_that_is_used_twice_stays() -> None:
    inner = total("j", x("x", "m", "j"))
    value = plus(inner, total("i", total("j", x("x", "i", "j"))))
    inner_of_both = plus(total("m", inner), inner)
    k = normalize(kernel("k", "m", {"m": 3, "i": 3, "j": 4}, value, {"x": (3, 4)}))
    assert [s.attr[1] for s in k.stages] == [("j",), ("i", "j")]
    k = normalize(kernel("k", "m", {"m": 3, "j": 4}, inner_of_both, {"x": (3, 4)}))
    assert [s.attr[1] for s in k.stages] == [("j",), ("m",)]


def test_empty_reductions_are_constants() -> None:
    read = x("x", "m", "j")
    values = {0.0: total("j", read), -np.inf: greatest("j", read)}
    values[0.0] = wsum("j", read, c(1.0))
    for value, e in values.items():
        k = normalize(kernel("k", "m", {"m": 3, "j": 0}, e, {"x": (3, 0)}))
        assert not k.stages and k.roots[0].value is c(value)
    assert not normalize(kernel("k", "m", {"m": 0}, x("x", "m"), {"x": (0,)})).roots


def test_guards_reach_their_loads() -> None:
    k = normalize(padded_sum(9, 17, 5))
    (stage,) = k.stages
    read = [e for e in subterms(stage) if e.kind == "load" and e.attr[0] == "x"]
    guarded = [e.kids[1] for e in subterms(stage) if e.kind == "guard"]
    assert read == guarded and k.roots[0].value.kind == "guard"


def test_guards_that_say_nothing_go() -> None:
    e = guard("m", 0, 9, guard(add("m", -1), 0, 9, unary("sin", x("x", add("m", -1)))))
    value = normalize(kernel("k", "m", {"m": 9}, e, {"x": (9,)})).roots[0].value
    assert [g.attr for g in subterms(value) if g.kind == "guard"] == [(0, 9), (0, 9)]
    never = guard("m", 20, 30, x("x", "m"))
    assert normalize(kernel("k", "m", {"m": 9}, never, {"x": (9,)})).roots[0].value is c(0.0)
