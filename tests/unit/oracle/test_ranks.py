"""What collectives mean: all ranks of a mesh in one process, against numpy on whole arrays."""

from __future__ import annotations

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from lumc.oracle.ranks import evaluate_mesh, run_ranks

A, B = 2, 3  # ranks along the axes of the mesh


def graph(lines: str) -> Graph:
    made = parse_graph(f"lumc graph 1\nmesh a {A}\nmesh b {B}\n{lines}")
    verify_graph(made)
    return made


def none(_: object) -> np.ndarray:
    raise AssertionError


def test_each_collective_along_the_second_axis_of_a_mesh() -> None:
    g = graph("""input x f32[6, 6] part 0 by a, 1 by b
sum f32[i:6, j:6] = all_reduce sum by b of x[i, j]
most f32[i:6, j:6] = all_reduce max by b of x[i, j]
own f32[i:6, j:2] = reduce_scatter sum split j by b of x[i, j]
whole f32[i:6, j:18] = all_gather concat j by b of x[i, j]
turned f32[i:2, j:18] = all_to_all split i concat j by b of x[i, j]
mine f32[i:2, j:18] = all_slice split i by b of whole[i, j]
output sum = sum part 0 by a
output most = most part 0 by a
output own = own part 0 by a, 1 by b
output whole = whole part 0 by a
output turned = turned part 0 by a, 0 by b
output mine = mine part 0 by a, 0 by b
""")
    x = np.random.default_rng(0).normal(size=(6 * A, 6 * B))
    got, _ = evaluate_mesh(g, "main", {"x": x}, none)
    blocks = x.reshape(12, B, 6)
    want = {"sum": blocks.sum(1), "most": blocks.max(1), "own": blocks.sum(1)}
    want |= {"whole": x, "turned": x, "mine": x}
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-15, err_msg=name)
    ranks = run_ranks(g, "main", {"x": x}, none)
    assert list(ranks) == [(i, j) for i in range(A) for j in range(B)]
    for (i, j), (outputs, _) in ranks.items():
        assert np.array_equal(outputs["turned"], x[6 * i + 2 * j : 6 * i + 2 * j + 2])


def test_blocks_of_one_dim_by_two_axes_are_blocks_of_blocks() -> None:
    g = graph("""state kept f32[2] part 0 by b, 0 by a
input x f32[2] part 0 by b, 0 by a
y f32[i:4] = all_gather concat i by a of x[i]
z f32[i:2] = add x[i], kept[i]
output y = y part 0 by b
update kept[i] = z[i]
""")
    x, kept = np.arange(12.0), np.arange(12.0)[::-1].copy()
    got, after = evaluate_mesh(g, "main", {"x": x}, none, {"kept": kept})
    assert np.array_equal(got["y"], x) and np.array_equal(after["kept"], np.full(12, 11.0))
    at = run_ranks(g, "main", {"x": x}, none)[1, 2][1]["kept"]
    assert np.array_equal(at, x[10:12])


def test_sums_wrap_and_maxima_keep_nan() -> None:
    g = graph("""input n i8[3] part 0 by b
input x f32[3] part 0 by b
input on bool[3] part 0 by b
s i8[i:3] = all_reduce sum by b of n[i]
m f32[i:3] = all_reduce max by b of x[i]
o bool[i:3] = all_reduce max by b of on[i]
output s = s
output m = m
output o = o
""")
    n = np.array([100, 1, 2, 100, 3, 4, 100, 5, 6], "i1")
    x = np.array([1, np.nan, -np.inf, 2, 0, -np.inf, 3, 1, -1], "f4")
    on = np.array([0, 0, 1, 0, 1, 1, 0, 0, 1], bool)
    got, _ = evaluate_mesh(g, "main", {"n": n, "x": x, "on": on}, none, declared=True)
    assert got["s"].dtype == np.int8 and list(got["s"]) == [44, 9, 12]
    assert np.array_equal(got["m"], np.array([3, np.nan, -1], "f4"), equal_nan=True)
    assert list(got["o"]) == [False, True, True]


def test_what_does_not_fit_is_refused() -> None:
    g = graph("input x f32[3] part 0 by b\noutput y = x part 0 by b\n")
    with pytest.raises(LumcError, match=r"input 'x' is f32\[9\], got \[8\]") as e:
        evaluate_mesh(g, "main", {"x": np.zeros(8)}, none)
    assert e.value.code == "E0113"
    with pytest.raises(LumcError) as e:
        evaluate_mesh(g, "main", {}, none)
    assert e.value.code == "E0113"
    with pytest.raises(LumcError) as e:
        evaluate(g, "main", {"x": np.zeros(9)}, none)
    assert e.value.code == "E0140"
