"""Rounded activations: against the definition in numpy, and which values are rounded."""

from pathlib import Path

import numpy as np
import pytest

from lumc.disk.weights import read_weight
from lumc.frontend import Model
from lumc.frontend.api.finish import with_weights
from lumc.frontend.precision import BLOCK, Precision, reduce_precision
from lumc.graph.graph import Graph
from lumc.graph.ops import DType, Op
from lumc.graph.text import print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from lumc.search.regions import partition

BOTH = Precision(None, "q8", "i8")
RNG = np.random.default_rng(0)
W = RNG.standard_normal((5, 64)).astype("f4")
X = (RNG.standard_normal((3, 64)) * 10.0 ** RNG.integers(-3, 3, (3, 1))).astype("f4")
X[1, :32] = 0


def saved(folder: Path, model: Model) -> Graph:
    graph = model.graph()
    return with_weights(graph, list(graph.weights), folder / "w.safetensors", model.read_weight)


def outputs(graph: Graph, inputs: dict) -> dict[str, np.ndarray]:
    return evaluate(graph, "main", inputs, lambda w: read_weight(w, Path.cwd()), None, False)[0]


def rounded(x: np.ndarray) -> np.ndarray:
    """The definition, in f64: of 32 neighbours the greatest is 127."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK).astype(np.float64)
    by = np.abs(blocks).max(-1, keepdims=True) / 127
    scaled = blocks / np.where(by, by, 1)
    codes = np.trunc(scaled + np.copysign(0.5, scaled))
    assert np.abs(codes).max() == 127
    return (codes * by).reshape(x.shape)


def two(folder: Path) -> Graph:
    """A product with quantised weights, the same once more, and a sum of its operand."""
    m = Model()
    x, w = m.input("x", (3, 64)), m.constant(W, "w")
    m.output("y", x @ w.transpose(0, 1))
    m.output("z", (w @ x.transpose(0, 1)).transpose(0, 1))
    m.output("s", x.sum(-1))
    return saved(folder, m)


def test_products_read_what_is_rounded(tmp_path: Path) -> None:
    graph = two(tmp_path)
    q8, new = (reduce_precision(graph, p) for p in (Precision(None, "q8"), BOTH))
    verify_graph(new)
    want, same = outputs(q8, {"x": rounded(X)}), outputs(q8, {"x": X})
    got = outputs(new, {"x": X})
    for name in ("y", "z"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-9)
        assert not np.allclose(got[name], same[name], rtol=1e-4)
    assert np.array_equal(got["s"], same["s"])


def test_one_rounding_serves_all_products(tmp_path: Path) -> None:
    new = reduce_precision(two(tmp_path), BOTH)
    (entry,) = new.entries
    assert sum(n.dtype is DType.I8 for n in entry.nodes) == 1
    assert sum(n.op is Op.MAX for n in entry.nodes) == 1


def test_again_it_changes_nothing(tmp_path: Path) -> None:
    once = reduce_precision(two(tmp_path), BOTH)
    assert print_graph(reduce_precision(once, BOTH)) == print_graph(once)


def test_other_weights_leave_activations_alone(tmp_path: Path) -> None:
    graph = two(tmp_path)
    assert reduce_precision(graph, Precision(None, None, "i8")) is graph


@pytest.mark.parametrize("split", [False, True])
def test_heads_side_by_side_are_rounded_as_one_row(tmp_path: Path, split: bool) -> None:
    """The operand is read through a view of two dims as one."""
    m = Model()
    x = m.input("x", (2, 3, 32))
    flat = x.permute(1, 0, 2).reshape(3, 64) if split else x.reshape(3, 64)
    m.output("y", flat @ m.constant(W, "w").transpose(0, 1))
    graph = saved(tmp_path, m)
    values = X.reshape(2, 3, 32)
    seen = values.transpose(1, 0, 2).reshape(3, 64) if split else X
    got = outputs(reduce_precision(graph, BOTH), {"x": values})["y"]
    levels = outputs(reduce_precision(two(tmp_path), Precision(None, "q8")), {"x": rounded(seen)})
    np.testing.assert_allclose(got, levels["y"], rtol=1e-9, atol=1e-9)


def test_codes_are_stored_as_bytes(tmp_path: Path) -> None:
    """Of a value that is scaled where it is read, memory holds what is scaled."""
    (entry,) = reduce_precision(two(tmp_path), BOTH).entries
    kept = {n.dtype for n in partition(entry)}
    assert DType.I8 in kept and len(partition(entry)) == 5  # codes, what scales them, results
