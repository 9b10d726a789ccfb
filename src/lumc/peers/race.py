"""Prompts and tokens of several engines, in turn, so that all meet the same moods of a machine."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from lumc.errors import Exit, LumcError

ROUNDS = 3  # at least
LOW = 16  # ids below are often marks, which some engines treat apart

# ``prompt`` or ``generate`` and what Engine says of their arguments -> seconds, or what went wrong
Ask = Callable[..., "float | str"]


@dataclass(frozen=True)
class Test:
    """``pp`` computes n tokens of a prompt at once, ``tg`` generates n after ``depth`` others."""

    name: str
    kind: str
    n: int
    depth: int = 0

    def seconds(self, ask: Ask, ids: list[int]) -> float | str:
        """With the first of these tokens, which are enough of them."""
        if self.kind == "pp":
            return ask("prompt", ids[: self.n])
        return ask("generate", ids[: self.depth], self.n)


@dataclass
class Cell:
    """What one engine did in one test."""

    test: Test
    engine: str
    threads: int
    seconds: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def best(self) -> float:
        """Tokens per second of the fastest time."""
        return self.test.n / min(self.seconds)

    @property
    def usual(self) -> float:
        return self.test.n / median(self.seconds)


def parse(text: str) -> list[Test]:
    """Tests as llama-bench names them: ``pp512``, ``tg32``, ``tg32@512``. Raises E0203."""
    return [_parsed(word.strip()) for word in text.split(",") if word.strip()]


def _parsed(word: str) -> Test:
    found = re.fullmatch(r"(pp)([1-9]\d{0,6})|(tg)([1-9]\d{0,6})(?:@(\d{1,7}))?", word)
    if not found:
        fix = "pp512 is a prompt of 512 tokens, tg32@512 are 32 tokens after 512"
        raise LumcError("E0203", f"'{word}' is no test", fix=fix, exit=Exit.USAGE)
    prompt, n, tokens, more, depth = found.groups()
    return Test(word, prompt or tokens, int(n or more), int(depth or 0))


def race(
    tests: Sequence[Test],
    engines: Mapping[str, Ask],
    threads: int,
    seconds: float,
    vocabulary: int,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Cell]]:
    """The cells of a test, then those of the next. All engines are asked once before one is asked
    again, each round another one first, for ``seconds`` a test and ``ROUNDS`` at least.

    Every round has tokens of its own: an engine that keeps the last prompt gains nothing. One that
    fails in a test is not asked again there."""
    names = list(engines)
    for at, test in enumerate(tests):
        cells = {name: Cell(test, name, threads) for name in names}
        end, done = clock() + seconds, 0
        while done < ROUNDS or clock() < end:
            rng = random.Random(f"{at} {done}")
            ids = [
                rng.randrange(min(LOW, vocabulary // 2), vocabulary)
                for _ in range(max(test.n, test.depth))
            ]
            for name in names[done % len(names) :] + names[: done % len(names)]:
                if cells[name].failed:
                    continue
                taken = test.seconds(engines[name], ids)
                if isinstance(taken, str):
                    cells[name].failed = taken
                else:
                    cells[name].seconds.append(taken)
            done += 1
            if all(c.failed for c in cells.values()):
                break
        yield list(cells.values())
