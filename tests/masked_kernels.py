"""Reductions under masks, said in every way, and what they are in numpy's float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernel_zoo import c, kernel, plus, reduce, times, total, x
from lumc.graph.expr import Expr, add, mul
from lumc.graph.ops import DType
from lumc.kernel.term import Kernel, binary, cast, const, guard, iota, unary, where, wsum

Array = np.ndarray
LEAST, FAR = -math.inf, 1 << 20
FORMS = ("added", "chosen", "both", "not before", "shifted", "guarded")


@dataclass(frozen=True)
class Window:
    """Row q sees the steps ``first + q <= j < end + q``; None: there is no such bound."""

    first: int | None = None
    end: int | None = 1

    def seen(self, m: int, n: int) -> Array:
        q, j = np.arange(m)[:, None], np.arange(n)[None, :]
        late = j >= q + self.end if self.end is not None else np.zeros((m, n), bool)
        return ~late if self.first is None else ~late & (j >= q + self.first)

    def hidden(self, how: str = "added") -> list[Expr]:
        """The conditions of which none may hold."""
        out = []
        if self.end is not None:
            out.append(less(add("q", self.end - 1), "j", how))
        if self.first is not None:
            out.append(less("j", add("q", self.first), how))
        return out


def less(a: Expr | str, b: Expr | str, how: str) -> Expr:
    """``a < b`` of two indices: also as not ``b < a + 1``, or of numbers that something is added
    to."""
    below, above = iota(a), iota(b)
    if how == "not before":
        later = binary("lt", above, iota(add(a, 1)))
        return binary("lt", later, const(True, DType.BOOL))
    if how == "shifted":
        return binary("lt", plus(below, const(5, DType.I64)), plus(above, const(5, DType.I64)))
    return binary("lt", below, above)


def masked(score: Expr, window: Window, how: str) -> Expr:
    """The score, of a hidden step -inf."""
    hidden, least = window.hidden(how), c(LEAST)
    if how == "guarded":  # one where it holds
        lo = FAR * -1 if window.first is None else window.first
        inside = guard(add("j", mul("q", -1)), lo, FAR if window.end is None else window.end, c(1))
        return where(cast(DType.BOOL, inside), score, least)
    if how == "added":
        for each in hidden:
            score = plus(score, binary("sel", each, least))
        return score
    if how == "both":
        every = hidden[0]
        for each in hidden[1:]:
            every = binary("or", every, each)
        return where(every, least, score)
    for each in hidden:
        score = where(each, least, score)
    return score


def attention(h: int, m: int, n: int, d: int, window: Window, how: str = "added") -> Kernel:
    extent = {"h": h, "q": m, "j": n, "e": d, "d": d}
    product = total("e", times(x("Q", "h", "q", "e"), x("K", "h", "j", "e")))
    s = masked(times(product, d**-0.5 * math.log2(math.e)), window, how)
    value = times(wsum("j", s, x("V", "h", "j", "d")), unary("recip", wsum("j", s, c(1.0))))
    shapes = {"Q": (h, m, d), "K": (h, n, d), "V": (h, n, d)}
    return kernel("attention", "h q d", extent, value, shapes)


def attended(inputs: Mapping[str, Array], window: Window) -> Array:
    """What attention is; NaN for rows that see nothing."""
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    s = np.where(window.seen(*s.shape[-2:]), s, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ v


def product(m: int, n: int, k: int, window: Window, op: str = "sum") -> Kernel:
    """Row q of a triangular or banded matrix times another one; or the greatest elements seen."""
    extent, value = {"q": m, "j": k, "n": n}, x("x", "q", "j")
    if op == "max":
        body = reduce("max", "j", masked(value, window, "added"))
        return kernel("greatest", "q", extent, body, {"x": (m, k)})
    for each in window.hidden():
        value = binary("sel", binary("lt", each, const(True, DType.BOOL)), value)
    body = total("j", times(value, x("w", "j", "n")))
    return kernel("banded", "q n", extent, body, {"x": (m, k), "w": (k, n)})


def multiplied(inputs: Mapping[str, Array], window: Window, op: str = "sum") -> Array:
    a = inputs["x"].astype(np.float64)
    seen = window.seen(*a.shape)
    if op == "max":
        return np.where(seen, a, -np.inf).max(-1)
    return np.where(seen, a, 0) @ inputs["w"].astype(np.float64)
