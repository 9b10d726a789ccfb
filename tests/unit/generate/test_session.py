"""Texts that go on: what the model is given, when a text ends, and words that end it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.generate.sampling import Sampling
from lumc.generate.session import Session, Spent
from lumc.generate.stops import Stops

Array = np.ndarray[Any, Any]
GREEDY = Sampling(temperature=0)


@dataclass
class Counting:
    """Goes on with the sum of all that it has seen, modulo 11; says what it was given."""

    context: int = 20
    rows: int = 4
    kept: list[int] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)  # where, how many

    def step(self, ids: Sequence[int], first: int) -> Array:
        assert 0 < len(ids) <= self.rows and first <= len(self.kept)
        assert first + len(ids) <= self.context
        self.kept[first:] = ids
        self.given.append((first, len(ids)))
        return np.eye(11, dtype="f4")[sum(self.kept) % 11]


def goes_on(ids: Sequence[int], n: int) -> list[int]:
    text = list(ids)
    for _ in range(n):
        text.append(sum(text) % 11)
    return text[len(ids) :]


def test_a_prompt_is_read_in_parts() -> None:
    model = Counting()
    session, spent = Session(model), Spent()
    made = list(session.tokens([1, 2, 3, 4, 5, 6], GREEDY, 5, spent=spent))
    assert made == goes_on([1, 2, 3, 4, 5, 6], 5)
    assert model.given == [(0, 4), (4, 2), (6, 1), (7, 1), (8, 1), (9, 1)]
    assert (spent.prompt, spent.made, spent.ended) == (6, 5, "length")
    assert session.seen == model.kept == [1, 2, 3, 4, 5, 6, *made[:4]]


def test_what_is_known_is_not_read_again() -> None:
    model = Counting()
    session = Session(model)
    made = list(session.tokens([1, 2, 3], GREEDY, 3))
    model.given.clear()
    more = [1, 2, 3, *made, 9, 8]
    assert list(session.tokens(more, GREEDY, 2)) == goes_on(more, 2)
    assert model.given[0] == (5, 3)  # the last token had only been chosen
    model.given.clear()
    assert list(session.tokens([1, 2, 7], GREEDY, 1)) == goes_on([1, 2, 7], 1)
    assert model.given == [(2, 1)]
    model.given.clear()
    session.read([1, 2, 7])  # its logits are wanted again
    assert model.given == [(2, 1)]


def test_texts_end_at_stops_and_at_the_end_of_the_context() -> None:
    spent = Spent()
    want = goes_on([1, 2], 9)
    stop = want[5]
    made = list(Session(Counting()).tokens([1, 2], GREEDY, 99, {stop}, spent))
    assert made == want[: want.index(stop)] and spent.ended == "stop"
    model = Counting(context=6)
    made = list(Session(model).tokens([1, 2], GREEDY, 99, (), spent))
    assert made == want[:5] and spent.ended == "context" and len(model.kept) == 6
    for ids in ([], [1] * 7):
        with pytest.raises(LumcError, match="E0615"):
            Session(model).read(ids)


def until(words: Sequence[str], pieces: Sequence[str]) -> tuple[str, str]:
    stops = Stops(words)
    return "".join(stops.until(pieces)), stops.found


def test_words_that_end_a_text() -> None:
    assert until(["END"], ["so E", "N", "D of it"]) == ("so ", "END")
    assert until(["END"], ["so E", "N", "E"]) == ("so ENE", "")
    assert until(["\nUser:", "\n"], ["a\nU"]) == ("a", "\n")
    assert until(["ab", "abc"], ["xabc"]) == ("x", "ab")
    assert until(["bab", "ab"], ["xbab"]) == ("x", "bab")
    assert until([], ["a", "b"]) == ("ab", "") == until([""], ["a", "b"])


def test_nothing_is_taken_after_a_word_and_beginnings_are_held_back() -> None:
    taken = list[str]()

    def pieces() -> Iterator[str]:
        for piece in ("one ", "<|e", "nd", "|>", "never"):
            taken.append(piece)
            yield piece

    assert list(Stops(["<|end|>"]).until(pieces())) == ["one ", "", "", ""]
    assert taken[-1] == "|>"


def test_any_pieces_of_a_text_end_at_the_same_place() -> None:
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choices("ab", k=30))
        words = ["".join(draw.choices("ab", k=draw.randint(2, 6))) for _ in range(3)]
        cuts = [0, *sorted(draw.sample(range(30), 6)), 30]
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        found, word = until(words, pieces)
        assert (found, word) == until(words, text)
        if word:
            assert text.startswith(found + word)
            assert not any(w in found for w in words)
        else:
            assert found == text and not any(w in text for w in words)
