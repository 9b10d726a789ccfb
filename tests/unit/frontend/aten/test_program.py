"""Programs that write into tensors: what is made of them without writes is what torch computes, or
they are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.frontend.api.model import Model  # noqa: E402
from lumc.frontend.aten import program as module  # noqa: E402
from lumc.frontend.aten import tables  # noqa: E402, F401
from lumc.frontend.aten.lower import Lowering  # noqa: E402
from lumc.frontend.aten.program import (  # noqa: E402
    Node,
    Program,
    Ref,
    Writes,
    functional,
    needed,
)
from lumc.oracle.graph import evaluate  # noqa: E402

MAKES = {"mul.Tensor": {"other": 2.0}, "add.Tensor": {"other": 0.5}}
VIEWS: dict[str, dict[str, Any]] = {
    "select.int": {"dim": 0, "index": 1},
    "slice.Tensor": {"dim": 0, "start": 1, "end": 3},
    "t": {},
    "view": {"size": [-1]},
    "alias": {},
}
WRITES: dict[str, dict[str, Any]] = {
    "mul_.Tensor": {"other": 3.0},
    "add_.Tensor": {"other": 1.0},
    "relu_": {},
    "neg_": {},
    "clamp_": {"max": 1.5},
}


def drawn(seed: int) -> Program:
    """Some operations on one tensor: new ones, views, writes; and two results."""
    draw, names, nodes = random.Random(seed), ["x"], list[Node]()
    for i in range(draw.randint(3, 8)):
        kinds = draw.choice((MAKES, VIEWS, VIEWS, WRITES, WRITES))
        target = draw.choice(sorted(kinds))
        first = draw.choice(names[-4:])
        if i == 0:
            kinds, target, first = MAKES, "mul.Tensor", "x"
        nodes.append(
            Node(f"n{i}", f"aten.{target}", {"self": Ref(first), **kinds[target]}, [f"n{i}"])
        )
        names.append(f"n{i}")
    outputs = {f"y{k}": Ref(draw.choice(names[1:])) for k in range(2)}
    return Program("test", nodes, outputs)


def by_torch(program: Program, x: Any) -> list[Any]:
    """As it is written, with its writes."""
    values = {"x": x.clone()}
    for node in program.nodes:
        name, _, kind = node.target.removeprefix("aten.").partition(".")
        inputs = {k: values[v.name] if isinstance(v, Ref) else v for k, v in node.inputs.items()}
        first = inputs.pop("self")
        operator = getattr(getattr(torch.ops.aten, name), kind or "default")
        values[node.outputs[0]] = operator(first, **inputs)
    return [values[r.name].clone() for r in program.outputs.values()]


def by_lumc(program: Program, x: Any) -> list[Any]:
    model = Model()
    lowering = Lowering(model, program)
    found, _ = lowering.run({"x": model.input("x", tuple(x.shape))})
    for name, value in found.items():
        model.output(name, value)
    got = evaluate(model.graph(), "main", {"x": x.numpy()}, model.read_weight)[0]
    return [got[name] for name in found]


def verdict(seed: int) -> str:
    """What comes of a program: equal, refused, wrong, or that torch refuses it."""
    program, x = drawn(seed), torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
    try:
        want = by_torch(program, x)
    except (RuntimeError, IndexError, NotImplementedError):
        return "torch"
    try:
        got = by_lumc(program, x)
    except LumcError as e:
        assert e.exit is Exit.UNSUPPORTED and "it writes into" in str(e), e
        return "refused"
    near = all(np.allclose(g, w, atol=1e-5) for g, w in zip(got, want, strict=True))
    return "equal" if near else "wrong"


def verdicts(count: int) -> list[str]:
    return [verdict(seed) for seed in range(count)]


def test_random_programs_are_equal_or_refused() -> None:
    found = verdicts(300)
    assert found.count("wrong") == 0
    assert found.count("equal") > 60 and found.count("refused") > 60


def no_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VIEWS", frozenset())


def nothing_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(dict[str, int]):
        def __missing__(self, name: str) -> int:
            return -1

    monkeypatch.setattr(module, "_last_reads", lambda program: Never())


def writes_are_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "changes", property(lambda node: False))


@pytest.mark.parametrize("mutant", [no_views, nothing_read_later, writes_are_calls])
def test_mutants_are_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert "wrong" in verdicts(120)


def node(target: str, output: str, *refs: str) -> Node:
    inputs = {f"a{i}": Ref(r) for i, r in enumerate(refs)}
    return Node(output, f"aten.{target}", inputs, [output])


def test_buffers_may_be_written_whole_and_inputs_may_not() -> None:
    nodes = [node("add_.Tensor", "n0", "total", "x"), node("mul.Tensor", "n1", "total", "x")]
    program = Program("test", nodes, {"y": Ref("n1")}, {}, frozenset({"total"}))
    found = functional(program)
    assert found.writes == {"total": Ref("n0")}
    assert found.nodes[1].inputs == {"a0": Ref("n0"), "a1": Ref("x")}
    with pytest.raises(Writes, match="it writes into 'total'"):
        functional(Program("test", nodes, {"y": Ref("n1")}))
    part = [node("select.int", "row", "total"), node("add_.Tensor", "n0", "row", "x")]
    with pytest.raises(Writes, match="it writes into a part of 'total'"):
        functional(Program("test", part, {"y": Ref("n0")}, {}, frozenset({"total"})))


def test_only_what_results_need_is_kept() -> None:
    nodes = [node("relu", "a", "x"), node("exp", "b", "z"), node("neg", "c", "a")]
    kept, wanted = needed(Program("test", nodes, {"y": Ref("c")}))
    assert [n.name for n in kept] == ["a", "c"] and "z" not in wanted
