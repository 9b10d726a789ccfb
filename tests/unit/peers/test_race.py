"""Engines in turn: every round with tokens of its own, another one first."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count

import pytest

from lumc.errors import LumcError
from lumc.peers.race import ROUNDS, Ask, Cell, parse, race


def engine(name: str, log: list[tuple[str, list[int]]], seconds: float) -> Ask:
    def ask(method: str, ids: list[int], n: int = 0) -> float:
        log.append((name, ids))
        return seconds * (n or len(ids))

    return ask


def ticking() -> Callable[[], float]:
    ticks = count()
    return lambda: float(next(ticks))


def raced(tests: str, **engines: Ask) -> list[dict[str, Cell]]:
    found = race(parse(tests), engines, 2, 0.0, 100, ticking())
    return [{c.engine: c for c in cells} for cells in found]


def test_names_of_tests() -> None:
    found = [(t.name, t.kind, t.n, t.depth) for t in parse("pp16, tg32,tg8@2048")]
    assert found == [("pp16", "pp", 16, 0), ("tg32", "tg", 32, 0), ("tg8@2048", "tg", 8, 2048)]
    for wrong in ("pp", "pp0", "tg-1", "pp16@4", "tg@5", "pp99999999", "x", "tg1@"):
        with pytest.raises(LumcError, match=re.escape(f"'{wrong}' is no test")):
            parse(wrong)


def test_engines_take_turns() -> None:
    log: list[tuple[str, list[int]]] = []
    (cells,) = raced("pp4", a=engine("a", log, 0.5), b=engine("b", log, 0.25))
    assert [name for name, _ in log] == ["a", "b", "b", "a", "a", "b"]
    assert cells["a"].best == 2 and cells["b"].usual == 4
    asked = [ids for _, ids in log]
    assert asked[0] == asked[1] and asked[0] != asked[2]  # a round, the next one
    assert all(len(ids) == 4 and min(ids) >= 16 and max(ids) < 100 for ids in asked)


def test_tokens_after_others() -> None:
    log: list[tuple[str, list[int]]] = []
    (cells,) = raced("tg3@5", a=engine("a", log, 0.5))
    assert [len(ids) for _, ids in log] == [5] * ROUNDS
    assert cells["a"].best == 2


def test_what_fails_is_left_out_of_its_test_only() -> None:
    log: list[tuple[str, list[int]]] = []

    def fails(method: str, *arguments: object) -> float | str:
        return "no memory" if method == "generate" else 1.0

    prompts, tokens = raced("pp2,tg2", a=fails, b=engine("b", log, 1.0))
    assert prompts["a"].best == 2 and tokens["a"].failed == "no memory"
    assert len(tokens["b"].seconds) == ROUNDS


def test_a_test_that_all_fail_ends() -> None:
    (cells,) = raced("pp2", a=lambda *_: "broken")
    assert cells["a"].failed == "broken" and not cells["a"].seconds
