"""Graphs with dims known at run time, in memory that is made for the greatest ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from lumc.disk.weights import weight_file
from lumc.graph.dim import bind
from lumc.graph.graph import Graph, Node
from lumc.graph.text import parse_graph
from lumc.kernel.lengths import Lengths
from lumc.oracle.graph import evaluate
from lumc.runtime.opened import Opened
from searching import error, random_values

Array = np.ndarray[Any, Any]
Dims = Mapping[str, int]

NORM = f"""lumc graph 1
dim s in 1..40
file "weights.safetensors" size 8 sha256 {"0" * 64}
weight g f32[24] "weights.safetensors" "g"
input x f32[s, 24]
q f32[s, c:24] = mul x[s, c], x[s, c]
t f32[s] = sum c of q[s, c]
m f32[s] = mul t[s], 0.041666666
e f32[s] = add m[s], 1e-5
r f32[s] = sqrt e[s]
i f32[s] = recip r[s]
n f32[s, c:24] = mul x[s, c], i[s]
y f32[s, c:24] = mul n[s, c], g[c]
output y = y
"""
SOFTMAX = """lumc graph 1
dim s in 1..40
input x f32[7, s]
m f32[b:7] = max s of x[b, s]
k f32[b:7] = mul m[b], -1
d f32[b:7, s] = add x[b, s], k[b]
p f32[b:7, s] = exp2 d[b, s]
t f32[b:7] = sum s of p[b, s]
i f32[b:7] = recip t[b]
y f32[b:7, s] = mul p[b, s], i[b]
output y = y
"""
# rows of new keys into a cache, then attention of the new rows to all rows so far, causal
ATTENTION = """lumc graph 1
dim p in 0..24
dim s in 1..16
state K f32[2, 40, 8]
input q f32[4, s, 8]
input k f32[2, s, 8]
input v f32[2, p + s, 8]
kk f32[h:2, j:p + s, d:8] = contiguous K[h, j, d]
a f32[h:4, i:s, j:p + s, d:8] = mul q[h, i, d], kk[h // 2, j, d]
c f32[h:4, i:s, j:p + s] = sum d:8 of a[h, i, j, d]
late bool[i:s, j:p + s] = lt i64(i + p), i64(j)
mask f32[i:s, j:p + s] = mul late[i, j], f32(-1e30)
z f32[h:4, i:s, j:p + s] = add c[h, i, j], mask[i, j]
m f32[h:4, i:s] = max j:p + s of z[h, i, j]
w f32[h:4, i:s] = mul m[h, i], -1
e f32[h:4, i:s, j:p + s] = add z[h, i, j], w[h, i]
x f32[h:4, i:s, j:p + s] = exp2 e[h, i, j]
t f32[h:4, i:s] = sum j:p + s of x[h, i, j]
r f32[h:4, i:s] = recip t[h, i]
o f32[h:4, i:s, j:p + s] = mul x[h, i, j], r[h, i]
b f32[h:4, i:s, d:8, j:p + s] = mul o[h, i, j], v[h // 2, j, d]
y f32[h:4, i:s, d:8] = sum j:p + s of b[h, i, d, j]
output y = y
update K[h, p + i, d] = k[h, i, d]
"""
# two dims of one greatest value; pads and reversals that need guards; a sum without its axis
MOVED = """lumc graph 1
dim s in 1..12
dim u in 1..12
input x f32[s, 5]
input z f32[u, 5]
flip f32[i:s, c:5] = contiguous x[s - 1 - i, c]
pad f32[i:s + 2, c:5] = add x[i - 1, c] if 0 <= i - 1 < s, f32(i + s)
a f32[i:s, j:u, c:5] = mul x[i, c], z[j, c]
xz f32[i:s, j:u] = sum c of a[i, j, c]
down f32[j:u] = sum i:s of xz[i, j]
same f32[c:5] = sum j:u of x[0, c]
output flip = flip
output pad = pad
output xz = xz
output down = down
output same = same
"""

# lengths between other axes; outputs that are leaves
CUBE = """lumc graph 1
dim s in 1..6
dim u in 2..10 multiple 2
input x f32[2, s, 3, u]
input i i64[u, 2]
y f32[a:2, k:s, b:3, j:u] = add x[a, s - 1 - k, b, j], x[a, k, b, u - 1 - j]
output y = y
output same = x
output i = i
"""
# long reductions, and little else to do side by side: one query beside all keys so far; a sum and a
# maximum of lengths that no part divides
DECODE = """lumc graph 1
dim p in 0..1079
state K f32[2, 1080, 24]
input q f32[2, 24]
input k f32[2, 24]
input V f32[2, p + 1, 24]
kk = update K[h, p, d] = k[h, d]
a f32[h:2, j:p + 1, d:24] = mul q[h, d], kk[h, j, d]
c f32[h:2, j:p + 1] = sum d:24 of a[h, j, d]
m f32[h:2] = max j:p + 1 of c[h, j]
w f32[h:2] = mul m[h], -1
e f32[h:2, j:p + 1] = add c[h, j], w[h]
x f32[h:2, j:p + 1] = exp2 e[h, j]
t f32[h:2] = sum j:p + 1 of x[h, j]
r f32[h:2] = recip t[h]
b f32[h:2, d:24, j:p + 1] = mul x[h, j], V[h, j, d]
o f32[h:2, d:24] = sum j:p + 1 of b[h, d, j]
y f32[h:2, d:24] = mul o[h, d], r[h]
output y = y
"""
TOTALS = """lumc graph 1
dim s in 1..3607
input x f32[2, s]
t f32[i:2] = sum j:s of x[i, j]
u f32[i:2] = max j:s of x[i, j]
output t = t
output u = u
"""
LONG: Mapping[str, list[Dims]] = {
    DECODE: [{"p": p} for p in (1079, 0, 1, 44, 45, 46, 700)],
    TOTALS: [{"s": s} for s in (3607, 1, 2, 151, 152, 1000)],
}
POINTS: Mapping[str, list[Dims]] = {
    NORM: [{"s": 40}, {"s": 1}, {"s": 17}, {"s": 39}, {"s": 40}],
    SOFTMAX: [{"s": 40}, {"s": 1}, {"s": 13}, {"s": 7}],
    MOVED: [{"s": 12, "u": 12}, {"s": 1, "u": 12}, {"s": 12, "u": 5}, {"s": 3, "u": 3}],
    ATTENTION: [{"p": 24, "s": 16}, {"p": 0, "s": 1}, {"p": 3, "s": 5}, {"p": 0, "s": 16}],
    CUBE: [{"s": 6, "u": 10}, {"s": 4, "u": 2}, {"s": 1, "u": 8}],
}
NAMES = dict(zip(POINTS, ("norm", "softmax", "moved", "attention", "cube"), strict=True))
BY_NAME = {"p"}  # no shape of an input tells it


def with_weights(text: str, folder: Path) -> Graph:
    """The graph of a text, its weights random and in this folder."""
    graph = parse_graph(text, path=lambda p: str(folder / p))
    weights = {w.name: random_values(w) for w in graph.weights}
    if weights:
        save_file(weights, folder / "weights.safetensors")
        file = weight_file(folder / "weights.safetensors", folder)
        text = text.replace("size 8", f"size {file.size}").replace("0" * 64, file.sha256)
        graph = parse_graph(text, path=lambda p: str(folder / p))
    return graph


def sizes(n: Node, dims: Dims) -> tuple[int, ...]:
    """The shape of a value where dims have these values."""
    return tuple(int(bind(e, dims)) for e in n.shape)  # type: ignore[call-overload]


def part(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(n) for n in shape)


def roomy(array: Array, most: Sequence[int]) -> Array:
    """The array in memory for the greatest shape; beyond it there is nothing that may be read."""
    out = np.full(most, np.nan if array.dtype.kind == "f" else 85, array.dtype)
    out[part(array.shape)] = array
    return out


def case(graph: Graph, dims: Dims) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and states for these dims, and the outputs and states of the oracle."""
    (entry,) = graph.entries
    given = {n.name: random_values(n)[part(sizes(n, dims))] for n in entry.inputs}
    states = {s.name: random_values(s) for s in graph.states}
    out, after = evaluate(graph, entry.name, given, random_values, states, dims=dims)
    return given | states, out | after


def live(dims: Lengths, values: Dims) -> dict[str, int]:
    """Those of the values that a kernel names."""
    return {d.name: values[d.name] for d in dims.dims}


def poison(b: Opened, graph: Graph) -> None:
    """A run of the greatest lengths on NaN: what later runs find beyond theirs."""
    arrays = {
        n.name: np.full(n.sizes, np.nan if n.dtype.is_float else 85, n.dtype.numpy)
        for n in graph.entries[0].inputs
    }
    most = {d.name: d.values[-1] for d in graph.dims.values()}
    b.run(arrays, dims={n: v for n, v in most.items() if n in BY_NAME}, threads=2)


def worst(b: Opened, graph: Graph, points: list[Dims], threads: int) -> float:
    """The largest error of all points, one after the other in one open bundle."""
    errors = [0.0]
    for dims in points:
        poison(b, graph)
        given, want = case(graph, dims)
        states = {s.name: given.pop(s.name) for s in graph.states}
        b.set_state(states)
        given = {name: np.ascontiguousarray(a) for name, a in given.items()}
        got = b.run(given, threads=threads, dims={n: v for n, v in dims.items() if n in BY_NAME})
        got |= b.state()
        assert {n: a.shape for n, a in got.items()} == {n: a.shape for n, a in want.items()}
        errors += [error(got[name], right) for name, right in want.items()]
    return max(e if e == e else np.inf for e in errors)
