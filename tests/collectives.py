"""A graph with every collective, and what processes make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import running_ranks as ranks
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


def every_collective(folder: Path) -> None:
    """Processes have what the oracle has of all ranks."""
    graph = parse_graph(EVERY)
    verify_graph(graph)
    path = ranks.linked(graph, folder)
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.normal(size=(12, 5, 16)).astype("f4"),
        "n": rng.integers(-9, 9, 14).astype("i4"),
        "h": rng.normal(size=(12, 8)).astype("f2"),
    }
    inputs["h"][3, 2] = np.nan
    inputs["h"].view("u2")[4, 6] = 0xFE00  # NaN with a sign, of another rank
    states = {"kept": rng.normal(size=(12, 5, 16)).astype("f4")}
    states["deep"] = rng.normal(size=(12, 5)).astype("f4")
    outputs, after = evaluate_mesh(graph, "main", inputs, no_weights, states)
    got, left = ranks.run(path, inputs, states, folder)
    assert np.array_equal(got.pop("half"), outputs.pop("half").astype("f2"), equal_nan=True)
    assert np.array_equal(got.pop("count"), outputs.pop("count"))
    assert ranks.off(got, outputs) < 1e-6 and ranks.off(left, after) < 1e-6
