"""Faults at random, of bytes, of texts and of plain JSON."""

from __future__ import annotations

import copy
import random
from typing import Any

from spoiling import JUNK

ODD = (0, 1, 2, 7, 63, 64, 65, 255, 1 << 31, 1 << 32, 1 << 45, 1 << 46, 1 << 61, 1 << 63, -1)
MORE: list[Any] = [0, 1, 2, 64, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 1e308, 0.0, False, "*/", "a"]
CHARACTERS = "0[]{}()-*/%,:\"'=\n \0é\u2028\ud8009ik.+e"
WORDS = ("f32", "i64", "bool", "bf16", "add", "mul", "sum", "max", "contiguous", "lt", "mod", "inf")


def damaged(data: bytes, draw: random.Random, near_the_end: float = 0.0) -> bytes:
    """Bits, bytes, words and blocks that are changed, moved, repeated or lost."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        start = len(out) - min(len(out), 1500) if draw.random() < near_the_end else 0
        at = draw.randrange(start, len(out)) if out else 0
        n = draw.randint(1, 32)
        match draw.randrange(8):
            case 0 if out:
                out[at] ^= 1 << draw.randrange(8)
            case 1 if out:
                out[at] = draw.randrange(256)
            case 2:
                word = draw.choice(ODD) & ((1 << 64) - 1)
                out[at // 8 * 8 : at // 8 * 8 + 8] = word.to_bytes(8, "little")
            case 3:
                del out[at : at + n]
            case 4:
                out[at:at] = out[at : at + n] * draw.choice((1, 1, 2, 50))
            case 5:
                del out[at:]
            case 6:
                other = draw.randrange(len(out)) if out else 0
                out[at : at + n] = out[other : other + n]
            case 7:
                out[at:at] = draw.choice(CHARACTERS).encode("utf-8", "surrogatepass")
    return bytes(out)


def text_damaged(text: str, draw: random.Random) -> str:
    """Characters, words, numbers and lines that are changed, moved, repeated or lost."""
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    words = lines[at].split(" ")
    which = draw.randrange(len(words))
    match draw.randrange(9):
        case 0:
            draw.shuffle(words)
        case 1:
            words[which] = draw.choice(draw.choice(lines).split(" "))
        case 2:
            words[which] = draw.choice(WORDS)
        case 3:
            lines.insert(at, draw.choice(lines))
            return "\n".join(lines)
        case 4:
            del lines[at]
            return "\n".join(lines)
        case 5:
            words[which] = "".join(
                str(draw.choice((0, 1, 2, 9, 1 << 31, 1 << 62, 1 << 64))) if c.isdigit() else c
                for c in words[which]
            )
        case 6:
            words[which] *= draw.choice((2, 3, 2000))
        case _:
            line = list(lines[at])
            spot = draw.randrange(len(line) + 1)
            line[spot : spot + draw.randrange(3)] = draw.choice(CHARACTERS)
            words = ["".join(line)]
    lines[at] = " ".join(words)
    return "\n".join(lines)


def spoiled(value: Any, draw: random.Random) -> Any:
    """The value with some part replaced, moved, repeated, dropped, or a little different."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2))):
        holder, key = _place(value, draw)
        if holder is None:
            continue
        old = holder[key]
        match draw.randrange(8):
            case 0:
                holder[key] = draw.choice(JUNK)
            case 1:
                holder[key] = draw.choice(MORE)
            case 2:
                del holder[key]
            case 3 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(old))
            case 3:
                holder[str(key) + draw.choice(("", "x", " ", "0"))] = copy.deepcopy(old)
            case 4:
                other, there = _place(value, draw)
                if other is not None:
                    holder[key] = copy.deepcopy(other[there])
            case 5 if isinstance(holder, list):
                other = draw.randrange(len(holder))
                holder[key], holder[other] = holder[other], old
            case _:
                holder[key] = nudged(old, draw)
    return value


def nudged(old: Any, draw: random.Random) -> Any:
    """Nearly the same."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return draw.choice((old - 1, old + 1, -old, old * 2, old * 64, old // 2))
    if isinstance(old, float):
        return draw.choice((old * 2, -old, 0.0, old * 1e30))
    if isinstance(old, str) and old:
        return text_damaged(old, draw)
    if isinstance(old, list):
        return draw.choice((old * 2, old[:-1], old[::-1], [*old, 0]))
    return draw.choice(JUNK)


def _place(value: Any, draw: random.Random) -> tuple[Any, Any]:
    """A container somewhere in a value, and a key or position in it."""
    holder, key = None, None
    while isinstance(value, dict | list) and value:
        holder = value
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        value = holder[key]
        if draw.random() < 0.15:
            break
    return holder, key
