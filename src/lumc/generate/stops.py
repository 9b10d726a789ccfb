"""Words at which a text ends, in a text that becomes known piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass
class Stops:
    """Gives a text up to the first of these words. What may be the beginning of one is held back
    until it is known."""

    words: Sequence[str]
    found: str = ""  # the word that ended the text

    def until(self, pieces: Iterable[str]) -> Iterator[str]:
        """The text in pieces, up to a word; nothing more is taken of ``pieces`` then."""
        words, held = [w for w in self.words if w], ""
        for piece in pieces:
            held += piece
            ends = [(held.find(w) + len(w), -len(w), w) for w in words if w in held]
            if ends:  # the one that is complete first, whatever the pieces are
                at, _, self.found = min(ends)
                yield held[: at - len(self.found)]
                return
            keep = max((begun(held, w) for w in words), default=0)
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
        yield held


def begun(text: str, word: str) -> int:
    """How many letters at the end of a text are the first ones of a word."""
    return next(
        (n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0
    )
