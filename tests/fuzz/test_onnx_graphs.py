"""Random ONNX graphs through compiled C: a hundred here, without optimisation by the C compiler; as
many as there is time, and with it, in make fuzz."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx_suite  # noqa: E402
from fuzz import onnx_graphs  # noqa: E402
from fuzz.onnx_draw import Rejected, Worlds  # noqa: E402
from lumc.frontend.onnx.registry import OPERATORS  # noqa: E402

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
COUNT = 100


@pytest.fixture(scope="module")
def results() -> list[onnx_suite.Result]:
    cases = onnx_graphs.cases(2026, 0, COUNT)
    return onnx_suite.run(cases, batch=COUNT, how=onnx_graphs.HASTY)


def test_nothing_is_wrong_and_nothing_fails(results: list[onnx_suite.Result]) -> None:
    bad = {r.name: r.detail[:500] for r in results if r.verdict in onnx_graphs.BAD}
    assert bad == {}


def test_most_are_compiled(results: list[onnx_suite.Result]) -> None:
    """A graph is refused for a reason that is known; results are not all fixed at import."""
    refused = [r for r in results if r.verdict == "refused"]
    assert len(refused) <= COUNT // 20
    assert [r.name for r in refused if onnx_suite.reason(r.detail) == "other"] == []
    assert sum(r.kernels > 0 for r in results) > 0.85 * COUNT


def test_what_was_found_stays_right() -> None:
    cases = [onnx_graphs.load(p.read_text(), p.stem) for p in FOUND]
    found = onnx_suite.run(cases)
    assert {r.name: r.detail for r in found if r.verdict not in onnx_suite.PASSED} == {}
    assert len(found) == len(FOUND) >= 4


def test_everything_is_drawn() -> None:
    graphs = [onnx_graphs.drawn(f"all {i}") for i in range(400)]
    nodes = [n for g in graphs for n in g.model.graph.node]
    operators = Counter(n.op_type for n in nodes)
    assert len(operators) > 100 and sum(operators.values()) > 3 * len(graphs)
    types = {i.type.tensor_type.elem_type for g in graphs for i in g.model.graph.input}
    assert len(types) >= 11
    judged = [w for g in graphs[:60] for w in g.wanted]
    assert sum(sure_share(w) for w in judged) > 0.9 * len(judged)


def sure_share(worlds: Worlds) -> float:
    """How many elements are judged more closely than to a thousandth of the greatest."""
    if worlds[0].dtype.kind != "f" or not worlds[0].size:
        return float(np.mean([w == worlds[0] for w in worlds])) if worlds[0].size else 1.0
    spread = np.max([np.abs(w - worlds[0]) for w in worlds], 0) * onnx_graphs.SPREADS
    limit = 1e-3 if worlds[0].dtype != "f2" else 3e-2
    return float(np.mean(spread <= limit * np.abs(worlds[0]).max()))


def test_a_graph_follows_from_its_seed() -> None:
    a, b = (onnx_graphs.drawn("again 7") for _ in "ab")
    assert a.model.SerializeToString() == b.model.SerializeToString()
    again = onnx_graphs.load(onnx_graphs.dump(a), a.name)
    assert again.model.SerializeToString() == a.model.SerializeToString()
    for name, value in a.inputs.items():
        assert again.inputs[name].dtype == value.dtype
        np.testing.assert_array_equal(again.inputs[name], value)


def test_what_is_wrong_is_seen_and_what_is_rounded_is_not() -> None:
    exact = np.array([1.0, -2.0, 1e-9], "f4")
    worlds = (exact, exact * np.float32(1 + 1e-6), exact * np.float32(1 - 1e-6))
    assert not onnx_graphs.differs(exact * np.float32(1 + 2e-6), exact, worlds)
    for wrong in (exact * np.float32(1.0001), exact[:2], exact.astype("f8"), exact + np.nan):
        assert onnx_graphs.differs(wrong, exact, worlds)
    whole, other = np.array([3, 4]), np.array([3, 5])
    assert onnx_graphs.differs(other, whole, (whole, whole))
    assert not onnx_graphs.differs(other, whole, (whole, other))  # a step


def test_positions_of_a_resize_are_rounded() -> None:
    """A cubic one whose terms cancel, where both references are 2e-6 from the result in f64."""
    case = onnx_graphs.load((FOUND[0].parent / "cubic_that_cancels.json").read_text())
    (wanted,) = case.wanted[0][:1]
    right = wanted.copy()
    right[0, 0, 7, 8] = 0.032674456  # with positions in f64
    case.compare(right, 0)
    with pytest.raises(AssertionError, match="of 81 differ"):
        case.compare(wanted + np.float32(3e-5), 0)


def graph_with(operator: str) -> onnx_graphs.Case:
    """A graph of several nodes, one of which is this."""
    for i in range(4000):
        case = onnx_graphs.drawn(f"small {i}")
        names = [n.op_type for n in case.model.graph.node]
        if len(names) > 3 and operator in names:
            return case
    raise AssertionError(operator)


@pytest.mark.deep
def test_a_fault_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a row of the importer that is wrong; the graph that is kept has few nodes."""
    case = graph_with("Softsign")
    assert list(onnx_graphs.failures([case])) == []
    row = OPERATORS["", "Softsign"][-1]  # of the newest opset
    function: Any = row.function
    wrong = type(row)(row.domain, row.name, row.since, lambda input: function(input) + 1.0)
    monkeypatch.setitem(OPERATORS, ("", "Softsign"), [wrong])
    ((_, verdict, said),) = onnx_graphs.failures([case])
    small = onnx_graphs.shrunk(case, verdict, said)
    assert [n.op_type for n in small.model.graph.node] == ["Softsign"]
    onnx_graphs.keep(tmp_path, "it", small, said)
    again = onnx_graphs.load((tmp_path / "it.json").read_text())
    assert [v for _, v, _ in onnx_graphs.failures([again])] == ["wrong"]


def test_a_case_without_a_meaning_is_rejected() -> None:
    """A logarithm of what is negative says nothing."""
    text = '<ir_version: 10, opset_import: ["": 22]> g (float[2] x) => (float[2] y) { y = Log(x) }'
    case = onnx_graphs.Case("it", onnx.parser.parse_model(text), {"x": np.array([-1, 1], "f4")})
    with pytest.raises(Rejected, match="tame"):
        assert case.wanted
