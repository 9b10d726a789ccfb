"""Values that are compared with other elements of themselves are stored: both sides of the
comparison have the same bits, whichever kernels compute them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from differential import Case, check_compiled
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.ops import Op
from lumc.search import regions
from lumc.search.regions import partition

Make = Callable[[Tensor], Tensor]
FOUND = Path(__file__).parents[2] / "fuzz" / "found" / "least_of_shares.json"


def shares(x: Tensor) -> Tensor:
    return x.softmax(1)


def stored(make: Make, dtype: str = "f32") -> int:
    """How many values are stored beside the result because of comparisons."""
    g = Model()
    g.output("y", make(g.input("x", (4, 3, 6), dtype)))
    (entry,) = g.graph().entries
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regions, "_compared", lambda sweep: set())
        before = partition(entry)
    return len(partition(entry)) - len(before)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda x: shares(x).argmax(0), 1),
        (lambda x: shares(x).argmin(0), 1),  # the shares, not their negation
        (lambda x: shares(x).abs().argmax(0), 1),
        (lambda x: (shares(x).argmax(0) + 1) * 2, 1),
        (lambda x: (shares(x) * 9).to("i64").argmax(0), 1),  # integers that rounding decides
        (lambda x: (shares(x)[:, :, :3] < shares(x)[:, :, 3:]).to("f32"), 1),
        (lambda x: (shares(x) < shares(x).mean(0, keepdim=True)).to("f32"), 1),
        (lambda x: x.argmax(0), 0),  # an input lies in memory
        (lambda x: x.max(1).argmax(0), 0),  # its elements are those of the input
        (lambda x: (-x).argmax(0), 0),
        (lambda x: shares(x).floor(), 0),
        (lambda x: (shares(x) < shares(x) * 2).to("f32"), 0),  # what is made of the same element
        (lambda x: shares(x).relu(), 0),
    ],
)
def test_what_is_stored(make: Make, count: int) -> None:
    assert stored(make) == count


def test_integers_are_what_they_are() -> None:
    assert stored(lambda x: (x * 3 + 1).argmax(0), "i32") == 0


def drawn(seed: int) -> Case:
    """Places of the greatest and least of values that take some rounding to compute."""
    g, size = Model(), 3 + seed
    x = g.input("real_x", (4, size, 2), "f64" if seed % 2 else "f32")
    made = [x.softmax(1), x.softmax(0) * x.sigmoid(), x.sum(1, keepdim=True) * x, x.sin() * x]
    for n, t in enumerate(made):
        for axis in (0, 1):
            for least in (False, True):
                at = t.argmin(axis) if least else t.argmax(axis)
                g.output(f"y{n}{axis}{int(least)}", at)
    return Case(g.graph(), seed)


def test_greatest_and_least_compiled(tmp_path: Path) -> None:
    cases = [drawn(seed) for seed in range(3)]
    for case in cases:
        case.prepare()
        case.check_plan()
    check_compiled(tmp_path, cases, [c.plan for c in cases if c.plan])


# ---- mutants


def test_the_finding_is_wrong_without(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_graphs = pytest.importorskip("fuzz.onnx_graphs")
    case = onnx_graphs.load(FOUND.read_text())
    assert list(onnx_graphs.failures([case])) == []
    monkeypatch.setattr(regions, "_compared", lambda sweep: set())
    ((_, verdict, _),) = onnx_graphs.failures([onnx_graphs.load(FOUND.read_text())])
    assert verdict == "wrong"


@pytest.mark.parametrize(
    "mutant",
    [
        {"_rounds": lambda node: False},
        {"_rounds": lambda node: True},
        {"_reaches": lambda other, one: other.source is one.source},
        {"_reaches": lambda other, one: True},
        {"BASES": 0},
        {"ABOVE": 1},
    ],
)
def test_mutants_die(mutant: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, new in mutant.items():
        monkeypatch.setattr(regions, name, new)
    counts = [stored(lambda x: shares(x).argmin(0)), stored(lambda x: x.max(1).argmax(0))]
    counts += [stored(lambda x: (shares(x) < shares(x) * 2).to("f32"))]
    g = Model()
    g.output("y", shares(g.input("x", (4, 3, 6))).argmin(0))
    cuts = partition(g.graph().entries[0])
    assert counts != [1, 0, 0] or not any(n.op is Op.MUL and len(n.reads) == 2 for n in cuts)


def test_the_finding_is_a_tie_of_nothing() -> None:
    """No two elements are near each other: it is no matter of rounding."""
    shape, values = json.loads(FOUND.read_text())["inputs"]["x1"][1:]
    x = np.exp(np.reshape(values, shape))
    least = np.sort(x / x.sum(1, keepdims=True), 0)
    assert (least[1] - least[0]).min() > 1e-2
