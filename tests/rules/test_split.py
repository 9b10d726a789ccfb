"""The laws that do a reduction in two steps: sound on random instances, and the check kills wrong
ones. They say that an axis is c*j1 + j2, which rule files cannot, so they are written in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumc.graph.expr import Expr, add, axis, mul, substitute, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import binary, guard, load, reduce, wsum
from lumc.oracle.term import evaluate_term
from lumc.search.split import End, inner, outer

KIND = DType.F64
SPECIAL = [np.nan, np.inf, -np.inf]
Law = Callable[[Expr, Expr, Mapping[str, tuple[int, int]]], Expr]


def law(stage: Expr, at: Expr, ranges: Mapping[str, tuple[int, int]]) -> Expr:
    return outer(stage, "j1", inner(stage, "j", at, "j2", ranges))


def stages(kind: str) -> Expr:
    """A reduction over j of values that are read in several ways."""
    s = load("s", KIND, "i", "j")
    v = binary(
        "add", load("v", KIND, "j"), guard(add("j", -2), 0, 5, load("w", KIND, add("j", -2)))
    )
    if kind == "wsum":
        return wsum("j", s, v)
    return reduce(kind, ("j", "k"), binary("mul", s, binary("add", v, load("u", KIND, "k"))))


def arrays(rng: np.random.Generator, step: int, count: int) -> dict[str, np.ndarray]:
    """Distinct values and special ones: single ones, whole parts of -inf and whole rows of it."""
    n = step * count
    found = {name: rng.permutation(n).astype(float) / 3 - n / 7 for name in "vw"}
    found |= {"u": rng.permutation(3) - 0.7}
    s = rng.permutation(2 * n).reshape(2, n) / 5
    draw = rng.random()
    if draw < 0.4:
        at = rng.integers(count)
        s[:, at * step : (at + 1) * step] = -np.inf
    elif draw < 0.5:
        s[rng.integers(2)] = -np.inf
    if rng.random() < 0.4:
        target = s if rng.random() < 0.5 else found["v"]
        target.flat[rng.integers(target.size)] = rng.choice(SPECIAL)
    return {**found, "s": s}


def holds(law: Law, kind: str, step: int, count: int, seed: int) -> bool:
    stage = stages(kind)
    extent = {"i": 2, "k": 3, "j": step * count, "j1": count, "j2": step}
    values = arrays(np.random.default_rng(seed), step, count)
    at = add(mul(axis("j1"), step), "j2")
    ranges = {a: (0, n - 1) for a, n in extent.items()}
    (want, axes), (got, same) = (
        evaluate_term(e, extent, values) for e in (stage, law(stage, at, ranges))
    )
    assert axes == same
    return bool(np.isclose(got, want, rtol=1e-9, atol=1e-9, equal_nan=True).all())


KINDS = ("sum", "max", "wsum")


# ---- axes of which it is known only at run time how many values they have


LiveLaw = Callable[[Expr, Expr, End, Mapping[str, tuple[int, int]]], Expr]


def live_law(stage: Expr, at: Expr, end: End, ranges: Mapping[str, tuple[int, int]]) -> Expr:
    return outer(stage, "j1", inner(stage, "j", at, "j2", ranges, end))


def holds_live(
    law: LiveLaw, kind: str, step: int, length: int, most: int, read: bool, seed: int
) -> bool:
    """Parts of ``step`` values of an axis that has ``length`` of ``most``, with NaN beyond."""
    stage, count = stages(kind), -(-length // step)
    room = -(-most // step) * step if read else most
    full = arrays(np.random.default_rng(seed), 1, length)
    values = {**full, **{n: np.full((*full[n].shape[:-1], room), np.nan) for n in "vws"}}
    for name in "vws":
        values[name][..., :length] = full[name]
    extent = {"i": 2, "k": 3, "j": length, "j1": count, "j2": step}
    at = add(mul(axis("j1"), step), "j2")
    ranges = {a: (0, n - 1) for a, n in extent.items()}
    end = End(add(length, mul(at, -1)), most, read)
    want, axes = evaluate_term(stage, extent, values)
    got, same = evaluate_term(law(stage, at, end, ranges), extent, values)
    assert axes == same
    return bool(np.isclose(got, want, rtol=1e-9, atol=1e-9, equal_nan=True).all())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    step=st.integers(1, 9),
    length=st.integers(1, 30),
    more=st.sampled_from([0, 1, 5]),
    read=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_law_is_sound_where_an_axis_is_live(
    kind: str, step: int, length: int, more: int, read: bool, seed: int
) -> None:
    assert holds_live(live_law, kind, step, length, length + more, read, seed)


def moved(by: int) -> LiveLaw:
    return lambda s, at, end, r: live_law(s, at, replace(end, left=add(end.left, by)), r)


def endless(stage: Expr, at: Expr, end: End, r: Mapping[str, tuple[int, int]]) -> Expr:
    """Values are not guarded, scores are: their weights are zero, but they may be NaN."""
    found = live_law(stage, at, end, r)
    values = {t: wsum("j2", t.kids[0], t.kids[1].kids[1]) for t in subterms(found) if _is_inner(t)}
    return substitute(found, values)


def _is_inner(t: Expr) -> bool:
    return t.kind == "wsum" and t.attr == ("j2",) and t.kids[1].kind == "guard"


LIVE_MUTANTS: dict[str, tuple[str, LiveLaw]] = {
    "no end": ("sum", lambda s, at, end, r: law(s, at, r)),
    "no end of a maximum": ("max", lambda s, at, end, r: law(s, at, r)),
    "no end of scores": ("wsum", lambda s, at, end, r: law(s, at, r)),
    "one value too many": ("sum", moved(1)),
    "one value too few": ("sum", moved(-1)),
    "one maximum too many": ("max", moved(1)),
    "one maximum too few": ("max", moved(-1)),
    "one weight too many": ("wsum", moved(1)),
    "one weight too few": ("wsum", moved(-1)),
    "values beyond the end": ("wsum", endless),
    "a maximum of zeros beyond the end": (
        "max",
        lambda s, at, end, r: reduce(
            "max", ["j1"], reduce("max", ["j2", "k"], end.guarded(law(s, at, r).kids[0].kids[0]))
        ),
    ),
}


@pytest.mark.parametrize("name", LIVE_MUTANTS)
def test_mutant_of_a_live_axis_is_killed(name: str) -> None:
    kind, wrong = LIVE_MUTANTS[name]
    cases = ((3, 1 + seed % 8, 9, seed % 3 > 0, seed) for seed in range(200))
    assert not all(holds_live(wrong, kind, *case) for case in cases)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(step=st.integers(1, 7), count=st.integers(1, 7), seed=st.integers(0, 1 << 30))
def test_law_is_sound(kind: str, step: int, count: int, seed: int) -> None:
    assert holds(law, kind, step, count, seed)


def shown(e: Expr) -> Expr:
    """Without the select."""
    return substitute(e, {t: t.kids[1] for t in subterms(e) if t.attr[:1] == ("sel",)})


MUTANTS: dict[str, tuple[str, Law]] = {
    "other parts": ("sum", lambda s, at, r: law(s, add(at, mul(axis("j1"), -1)), r)),
    "one sum is a maximum": (
        "sum",
        lambda s, at, r: reduce("max", ["j1"], inner(s, "j", at, "j2", r)[0]),
    ),
    "one maximum is a sum": (
        "max",
        lambda s, at, r: reduce("sum", ["j1"], inner(s, "j", at, "j2", r)[0]),
    ),
    "the first part": ("max", lambda s, at, r: law(s, axis("j2"), r)),
    "a part of -inf is not shown as zeros": ("wsum", lambda s, at, r: shown(law(s, at, r))),
    "parts weigh the same": (
        "wsum",
        lambda s, at, r: reduce("sum", ["j1"], inner(s, "j", at, "j2", r)[0]),
    ),
    "maxima and sums swapped": (
        "wsum",
        lambda s, at, r: outer(s, "j1", inner(s, "j", at, "j2", r)[::-1]),
    ),
    "a part of -inf counts for nothing": (  # not even if it holds a NaN
        "wsum",
        lambda s, at, r: outer(s, "j1", dropped(*inner(s, "j", at, "j2", r))),
    ),
}


def dropped(sums: Expr, top: Expr) -> tuple[Expr, Expr]:
    (select,) = (t for t in subterms(sums) if t.attr[:1] == ("sel",))
    return binary("sel", select.kids[0], shown(sums)), top


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    kind, wrong = MUTANTS[name]
    assert not all(holds(wrong, kind, 3, 1 + seed % 5, seed) for seed in range(200))
