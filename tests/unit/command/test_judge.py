"""What verify calls right: docs/accuracy.md, "What verify allows"."""

from __future__ import annotations

import numpy as np
import pytest

from lumc.command.judge import Comparison, compare, cut_off
from lumc.frontend import Model
from lumc.graph.ops import DType
from lumc.oracle.graph import evaluate
from lumc.oracle.touched import touched

INF, NAN, MOST = np.inf, np.nan, 3.4028234663852886e38
F32, F16, BF16 = DType.F32, DType.F16, DType.BF16


def judged(got: list[float], want: list[float], dtype: DType = F32, **how: object) -> Comparison:
    kind = np.float32 if dtype is BF16 else dtype.numpy
    with np.errstate(over="ignore"):
        return compare("y", "oracle", np.array(got, kind), np.array(want), 1e-5, dtype, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "want", "dtype"),
    [
        (INF, 3.5e38, F32),  # it rounds to that
        (-INF, -1e300, F32),
        (INF, MOST * (1 - 1e-6), F32),  # nearer to the end than the tolerance
        (MOST, MOST * (1 + 1e-6), F32),
        (0.0, 1e-39, F32),  # no normal number
        (-1e-39, 1e-39, F32),
        (INF, 7e4, F16),
        (6e-8, 0.0, F16),
        (INF, 3.4e38, BF16),
        (NAN, NAN, F32),
    ],
)
def test_right(got: float, want: float, dtype: DType) -> None:
    assert judged([got], [want], dtype).ok


@pytest.mark.parametrize(
    ("got", "want", "dtype"),
    [
        (INF, 3e38, F32),
        (-INF, 3.5e38, F32),
        (MOST, INF, F32),
        (MOST, 1e39, F32),
        (NAN, 3.5e38, F32),
        (0.0, INF, F32),
        (NAN, INF, F32),
        (INF, NAN, F32),
        (0.0, NAN, F32),
        (0.0, 1e-37, F32),
        (INF, 6e4, F16),
        (1e-6, 2e-6, F16),
        (INF, 1e5, DType.F64),
    ],
)
def test_wrong(got: float, want: float, dtype: DType) -> None:
    assert not judged([got], [want], dtype).ok


def test_only_what_is_touched_is_pardoned() -> None:
    def here() -> dict[str, np.ndarray]:
        return {"y": np.array([True, False])}

    assert judged([INF, 2], [NAN, 2], touched=here).unjudged == 1
    assert judged([NAN, 2], [0, 2], touched=here).ok
    assert not judged([2, INF], [2, NAN], touched=here).ok
    assert not judged([3, 2], [2, 2], touched=here).ok  # finite, and wrong


def test_what_an_infinity_touches() -> None:
    g = Model()
    a, b = g.input("a", (5,)), g.input("b", (5,))
    outputs = {
        "sum": a + b,
        "end": (a * 0.0).reciprocal(),
        "below": (a < b) * b,
        "hidden": (b < 0.0) * a,
        "overflow": (b * 3e38) * 1e-38,
        "own": b * 3e38,
        "row": a.max().expand(5) * b,
        "kind": (a < b).to("i64") + 1,
    }
    for name, value in outputs.items():
        g.output(name, value)
    given = {"a": np.array([INF, NAN, -INF, 1, 2], "f4"), "b": np.array([1, 2, 1, 1, 3], "f4")}
    graph = g.graph()
    got = touched(graph, "main", given, g.read_weight)
    first = [True, True, True, False, False]
    assert {name: value.tolist() for name, value in got.items()} == {
        "sum": first,
        "end": first,
        "below": first,
        "hidden": [False] * 5,
        "overflow": [False, True, False, False, True],
        "own": [False] * 5,
        "row": [True] * 5,
        "kind": first,
    }
    plain = {name: np.ones(5, np.float32) for name in given}
    assert not any(v[:3].any() for v in touched(graph, "main", plain, g.read_weight).values())
    assert np.isinf(evaluate(graph, "main", plain, g.read_weight)[0]["end"]).all()


def test_sums_that_tensor_cores_cut_off() -> None:
    g = Model()
    x, w = g.input("x", (4, 8, 64), "f16"), g.input("w", (64, 3), "f16")
    g.output("y", (x.to("f32") @ w.to("f32")).sum(1))
    assert cut_off(g.graph(), "main") == 8 * 64 * 2.0**-24
    g = Model()
    g.output("y", g.input("x", (4, 4096)).sum(1))
    assert cut_off(g.graph(), "main") == 0
