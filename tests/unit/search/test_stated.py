"""egglog holds the term that it was told, or is told it again."""

from __future__ import annotations

import pytest

from lumc.graph.expr import axis
from lumc.graph.ops import DType
from lumc.kernel.term import binary, load, reduce
from lumc.search import saturate

EXTENT = {"i": 4, "k": 3}
X, W = (load(b, DType.F32, (axis("i"), axis("k"))) for b in ("b0", "b1"))
TERM = reduce("sum", "k", binary("mul", binary("add", X, W), binary("mod", X, W)))


def mistaken(how: str) -> type:
    """A session that takes one global for another, as egglog 13.2 does now and then: of the
    command that it was told first, or of whatever names two of its globals."""

    class Mistaken(saturate.Session):
        def run(self, command: str) -> list[object]:
            first = '(Bin "mod" ' in command and (how == "always" or "again" not in command)
            if first and command.startswith("(let"):
                a, b = saturate.GLOBAL.findall(command)[1:]
                command = command.replace(f"{a} {b}", f"{b} {b}")
            return super().run(command)

    return Mistaken


def terms() -> saturate.EGraph:
    return saturate.saturate(TERM, EXTENT, saturate.Limits())[0]


def test_a_term_is_read_back() -> None:
    graph = terms()
    assert saturate.differs(graph, TERM) is None
    for other in (binary("mod", W, X), reduce("sum", "k", X), reduce("max", "k", TERM.kids[0])):
        assert saturate.differs(graph, other) is not None


def test_what_was_mistaken_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    right = terms()
    monkeypatch.setattr(saturate, "Session", mistaken("once"))
    found = terms()
    assert saturate.differs(found, TERM) is None
    assert sorted(map(len, found.classes.values())) == sorted(map(len, right.classes.values()))


def test_no_term_is_searched_that_nobody_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturate, "Session", mistaken("always"))
    with pytest.raises(RuntimeError, match="another term"):
        terms()
