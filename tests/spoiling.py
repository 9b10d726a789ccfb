"""Damage plain JSON at random, for tests of readers."""

from __future__ import annotations

import random
from typing import Any

JUNK: list[Any] = [None, -1, 10**30, "", "x", "b0", 1.5, True, [], {}, [[]], "nan", 7]


def spoil(value: Any, draw: random.Random) -> Any:
    """The value with one random part replaced or dropped."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: spoil(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        i = draw.randrange(len(value))
        if draw.random() < 0.1:
            return value[:i] + value[i + 1 :]
        return [*value[:i], spoil(value[i], draw), *value[i + 1 :]]
    return draw.choice(JUNK)
