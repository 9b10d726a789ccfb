"""A graph with every collective, and what processes make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import running_ranks as ranks
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.ranks import evaluate_mesh


def no_weights(_: object) -> Any:
    raise AssertionError


# every collective, by each axis of a mesh, of axes that are not the first; a value that is reduced
# where it lies, and one that is needed after
EVERY = """lumc graph 1
mesh a 2
mesh b 2
input x f32[6, 5, 8] part 0 by a, 2 by b
input n i32[7] part 0 by b
input h f16[6, 4] part 0 by a, 1 by b
state kept f32[6, 5, 8] part 0 by a, 2 by b
state deep f32[3, 5] part 0 by b, 0 by a
deeper f32[i:3, j:5] = add deep[i, j], deep[i, j]
twice f32[i:6, j:5, k:8] = add x[i, j, k], x[i, j, k]
sum f32[i:6, j:5, k:8] = all_reduce sum by b of twice[i, j, k]
thrice f32[i:6, j:5, k:8] = add twice[i, j, k], x[i, j, k]
most f32[i:6, j:5, k:8] = all_reduce max by a of thrice[i, j, k]
again f32[i:6, j:5, k:8] = add thrice[i, j, k], kept[i, j, k]
own f32[i:6, j:5, k:4] = reduce_scatter sum split k by b of again[i, j, k]
whole f32[i:6, j:5, k:16] = all_gather concat k by b of again[i, j, k]
long f32[i:12, j:5, k:8] = all_gather concat i by a of kept[i, j, k]
turned f32[i:3, j:5, k:16] = all_to_all split i concat k by b of again[i, j, k]
back f32[i:12, j:5, k:4] = all_to_all split k concat i by a of again[i, j, k]
mine f32[i:6, j:5, k:4] = all_slice split k by b of again[i, j, k]
count i32[i:7] = all_reduce sum by b of n[i]
half f16[i:6, j:4] = all_reduce max by b of h[i, j]
output sum = sum part 0 by a
output most = most part 2 by b
output own = own part 0 by a, 2 by b
output whole = whole part 0 by a
output long = long part 2 by b
output turned = turned part 0 by a, 0 by b
output back = back part 2 by b, 2 by a
output mine = mine part 0 by a, 2 by b
output count = count
output half = half part 0 by a
update kept[i, j, k] = again[i, j, k]
update deep[i, j] = deeper[i, j]
"""


# what is sent both ways, and past a stage; values that some stages need, and all; states of one
# stage, in parts too, and of all; lengths that runs choose
STAGES = """lumc graph 1
dim n in 1..40
mesh a 2
mesh pp 3
state one f32[4, 6] part 1 by a on 0 by pp
state two f32[6] on 1 by pp
state three f32[6, 4] on 2 by pp
state same f32[6]
input x f32[n, 6] part 1 by a
mask f32[i:6] = exp2 f32(i)
low f32[i:6] = mul mask[i], 0.5
half f32[i:n, j:6] = mul x[i, j], low[j]
t0 f32[i:n, j:6] = mul half[i, j], one[2, j]
s0 f32[i:n, j:6] = send 0 to 1 by pp of t0[i, j]
t1 f32[i:n, j:6] = add s0[i, j], two[j]
s1 f32[i:n, j:6] = send 1 to 2 by pp of t1[i, j]
past f32[i:n, j:6] = send 0 to 2 by pp of t0[i, j]
t2 f32[i:n, j:6] = mul s1[i, j], past[i, j]
t3 f32[i:n, j:6] = mul t2[i, j], mask[j]
t4 f32[i:n, k:4, j:6] = mul t3[i, j], three[j, k]
t5 f32[i:n, k:4] = sum j:6 of t4[i, k, j]
t6 f32[i:n, k:4] = all_reduce sum by a of t5[i, k]
most f32[k:4] = max i:n of t6[i, k]
back f32[k:4] = send 2 to 0 by pp of most[k]
t7 f32[k:4, j:6] = add one[k, j], back[k]
all f32[k:4] = broadcast 2 by pp of most[k]
t8 f32[j:6] = add same[j], all[0]
t9 f32[j:6] = max i:n of t1[i, j]
sum f32[j:6] = all_reduce sum by a of t9[j]
output y = t6
output x = t2 part 1 by a
output all = all
output low = low
output two = two
update one[k, j] = t7[k, j]
update two[j] = sum[j]
update same[j] = t8[j]
"""


# sums, maxima, parts of outer and inner axes in time; what is computed once before and after
# micro-batches, in stages and between ranks; states that they read and that are new after them
BATCHES = """lumc graph 1
mesh t 4 in time
mesh a 2
mesh pp 2
state w f32[6] on 0 by pp
state far f32[3] part 0 by a on 1 by pp
state n f32[6]
state seen f32[6] on 1 by pp
input x f32[3, 6] part 0 by t, 1 by a
input z f32[3, 12]
input k i32[3, 6] part 0 by t
p0 f32[i:6, j:6, l:12] = mul z[i // 2, l], z[j // 2, l]
p1 f32[i:6, j:6] = sum l:12 of p0[i, j, l]
p2 f32[i:6] = max j:6 of p1[i, j]
early f32[i:6] = all_reduce sum by a of p2[i]
own f32[i:3, j:3] = all_slice split j by t of z[i, j]
u0 f32[i:3, j:6] = mul x[i, j], w[j]
u1 f32[i:3, j:6] = add u0[i, j], early[j]
u2 f32[i:3, j:6] = add u1[i, j], own[i, j // 2]
u3 f32[i:3, j:6] = add u2[i, j], n[j]
u4 f32[i:3, j:6] = send 0 to 1 by pp of u3[i, j]
v0 f32[i:3, l:3, j:6] = mul u4[i, j], far[l]
v1 f32[i:3, l:3] = sum j:6 of v0[i, l, j]
v2 f32[i:3, l:6] = all_gather concat l by a of v1[i, l]
v3 f32[l:6] = sum i:3 of v2[i, l]
grad f32[l:6] = all_reduce sum by t of v3[l]
v4 f32[l:6] = max i:3 of v2[i, l]
most f32[l:6] = all_reduce max by t of v4[l]
k0 i32[j:6] = sum i:3 of k[i, j]
count i32[j:6] = all_reduce sum by t of k0[j]
back f32[l:6] = send 1 to 0 by pp of grad[l]
b0 f32[l:6] = mul back[l], 0.01
b1 f32[l:6] = add w[l], b0[l]
s0 f32[l:6] = add seen[l], most[l]
step f32[j:6] = add n[j], 1.0
columns f32[i:3, j:12] = all_gather concat j by t of own[i, j]
output v = v2 part 0 by t
output most = most
output count = count
output columns = columns
output grad = grad
update w[j] = b1[j]
update n[j] = step[j]
update seen[j] = s0[j]
"""


def every_collective(folder: Path) -> None:
    """Processes have what the oracle has of all ranks."""
    exchanging(ranks.linked(parse_graph(EVERY), folder), folder)


def exchanging(path: Path, folder: Path, nan: bool = True) -> None:
    """What the bundle of that graph computes, with NaN or without."""
    graph = parse_graph(EVERY)
    verify_graph(graph)
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.normal(size=(12, 5, 16)).astype("f4"),
        "n": rng.integers(-9, 9, 14).astype("i4"),
        "h": rng.normal(size=(12, 8)).astype("f2"),
    }
    if nan:
        inputs["h"][3, 2] = np.nan
        inputs["h"].view("u2")[4, 6] = 0xFE00  # NaN with a sign, of another rank
    states = {"kept": rng.normal(size=(12, 5, 16)).astype("f4")}
    states["deep"] = rng.normal(size=(12, 5)).astype("f4")
    outputs, after = evaluate_mesh(graph, "main", inputs, no_weights, states)
    got, left = ranks.run(path, inputs, states, folder)
    assert np.array_equal(got.pop("half"), outputs.pop("half").astype("f2"), equal_nan=True)
    assert np.array_equal(got.pop("count"), outputs.pop("count"))
    assert ranks.off(got, outputs) < 1e-6 and ranks.off(left, after) < 1e-6


def every_stage(folder: Path, target: str = ranks.NATIVE) -> Path:
    """Processes leave what the oracle has, for one state and the next."""
    graph = parse_graph(STAGES)
    verify_graph(graph)
    path, rng = ranks.linked(graph, folder, target), np.random.default_rng(0)
    sizes = {"one": (4, 12), "two": (6,), "three": (6, 4), "same": (6,)}
    states = {n: rng.normal(size=s).astype("f4") for n, s in sizes.items()}
    for n in (1, 17):
        inputs = {"x": rng.normal(size=(n, 12)).astype("f4")}
        states = agrees(graph, path, inputs, states, folder)
    return path


def agrees(
    graph: Graph, path: Path, inputs: ranks.Arrays, states: ranks.Arrays, folder: Path
) -> ranks.Arrays:
    """That processes leave what the oracle has of all ranks; the states after, to go on with."""
    outputs, after = evaluate_mesh(graph, graph.entries[0].name, inputs, no_weights, states)
    got, left = ranks.run(path, inputs, states, folder)
    assert ranks.off(got, outputs) < 1e-6 and ranks.off(left, after) < 1e-6
    return {name: np.asarray(value, "f4") for name, value in after.items()}
