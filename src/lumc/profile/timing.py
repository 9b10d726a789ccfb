"""How long a kernel takes: the minimum of samples of about 100 us.

The minimum is what other processes cannot make larger; a mean or a median ranks noise. What slows
the whole machine for a while - its clock, a neighbour in the same cache - shows in a yardstick: a
schedule of the same kernel that is timed in turn. Fast samples of both are compared, as neighbours
slow some schedules more than others. ``Sample`` runs a candidate: ``sample(inner, n)`` gives n
times the microseconds of one of ``inner`` runs, and ``sample(1, n, slices)`` estimates that of long
ones from a slice of the tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

Sample = Callable[..., list[float]]

# "measured" without a number: the table in docs/profile.md, under "Samples"
SAMPLE_US = 100.0  # measured: least error; few are interrupted
DROP = 1.5  # times the best: two samples are enough; measured: minima of three err by 12 % at worst
PROMISING = 1.12  # times the best: more patience; measured: as above
PATIENCE = (4, 30)  # samples without progress, promising ones 30; measured: 5 do, 40 under load
PROGRESS = 0.005  # measured: what the minimum of 5 samples of 50 us errs by
SLOW_US = 1000.0  # measured: 2 % of samples of 120 us are interrupted, 19 % of 2 ms
LONG_US = 20_000.0  # while searching, slices of such kernels are timed; derived: 4 slices
SLICE_US = 5_000.0  # measured: slices of an eighth rank schedules like the whole (Spearman 0.94)
FINAL_US = 60_000.0  # of one candidate in the finals, of one plan in whole runs; a guess
ROUNDS = 100  # of them at most; measured: from 40 on minima are within 0.2 %
LUCKY = 2  # fastest samples that do not count, where there are many; a guess
LONGER = 10  # times as many while it waits for a calm moment; a guess, wait_us ends it before
MORE = 5  # rounds in calm moments; measured: 5 in turn rank what is 0.5 % apart
ASTRAY = 1.2  # so far off, moments differ; derived: noise is 7 %, half a core 100 % (measured)
CALM = 1.05  # times its least time; measured: medians are 2 % above it, busy 3 to 7 %
WIN = (0.01, 0.02)  # what counts as faster: usually, among slow samples; measured
SURE = 0.003  # at least, however little fast samples differ; derived: both err by 0.1 to 0.2 %


@dataclass(frozen=True)
class Timing:
    """The minimum in microseconds, and how much larger the median was."""

    us: float
    samples: int
    noise: float
    slices: int = 0
    beside: float = 0.0  # microseconds of the yardstick in turn; 0: there was none


def inner_runs(once_us: float) -> int:
    """Runs in one sample."""
    return max(1, min(100_000, round(SAMPLE_US / max(once_us, 1e-3))))


def measure(
    sample: Sample,
    best_us: float | None,
    whole: bool = False,
    beside: tuple[Sample, float] | None = None,
    floor_us: float = 0.0,
) -> tuple[Timing, int]:
    """Screen, then sample until the minimum stays; also the runs per sample. Of long kernels it
    takes slices, unless the ``whole`` is asked for. ``beside``: a yardstick, and its least time.
    Less than ``floor_us`` is believed where it is seen."""
    known = best_us is not None and best_us > LONG_US
    once = best_us if known and best_us else sample(1, 1)[0]
    slices = round(once / SLICE_US) if once > LONG_US and not whole else 0
    of = (slices,) if slices else ()
    once = min(sample(1, 2, *of)) if slices or known else min(once, *sample(1, 1))
    if once < SAMPLE_US:
        once = min(sample(inner_runs(once), 2))
    inner = inner_runs(once)
    yardstick, usual = beside or (None, 1.0)
    part = (round(usual / SLICE_US),) if usual > LONG_US else ()

    def another(n: int) -> tuple[list[float], list[float]]:
        """More samples, of both."""
        own = sample(inner, n, *of)
        return own, yardstick(inner_runs(usual), n, *part) if yardstick else [usual]

    seen, yard = another(2)
    seen += [] if yardstick else [once]
    target = math.inf if best_us is None else best_us
    if min(seen) <= DROP * target * min(yard) / usual:
        stale = 0
        while True:
            low, pace = min(seen), min(yard)
            hoped = min(low, compared([yard, seen])[1]) if yardstick else low
            limit = PATIENCE[hoped <= PROMISING * target * pace / usual]
            spent = stale * low / max(1, slices)
            if stale >= limit or (low > SLOW_US and spent > FINAL_US):
                break
            new = another(1)
            seen, yard = seen + new[0], yard + new[1]
            better = seen[-1] < low * (1 - PROGRESS) or yard[-1] < pace * (1 - PROGRESS)
            stale = 0 if better else stale + 1
    found = replace(timing(seen), slices=slices)
    if yardstick:
        found = replace(found, us=compared([yard, seen])[1], beside=min(yard))
        if _is_doubtful(found.us * usual / found.beside, seen, floor_us):
            found = replace(found, us=min(seen), beside=usual)
    return found, inner


def finals(
    samples: Sequence[Sample],
    inner: Sequence[int],
    first: Sequence[float],
    least: Sequence[float],
    wait_us: float = 0.0,
    floors_us: Sequence[float] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> list[Timing]:
    """All candidates in turn, round after round. ``first`` are their minima so far, ``least`` what
    they take when nothing slows the machine: up to ``wait_us`` it waits for such a moment, unless
    it is ``stopped``. Less than ``floors_us`` is believed where it is seen."""
    rounds = max(5, min(ROUNDS, int(FINAL_US / max(SAMPLE_US, *first))))
    seen: list[list[float]] = [[] for _ in samples]
    spent, calm = 0.0, 0
    most = rounds * (1 + (wait_us > 0) * LONGER)
    while len(seen[0]) < rounds or (len(seen[0]) < most and spent < wait_us and calm < MORE):
        if stopped() and len(seen[0]) > MORE:
            break
        for one, runs, out in zip(samples, inner, seen, strict=True):
            out += one(runs, 1)
            spent += out[-1] * runs
        calm += _is_calm(seen, least)
    floors = floors_us or [0.0] * len(samples)
    return [
        replace(timing(s), us=min(s) if _is_doubtful(us, s, floor) else us, noise=_spread(s))
        for s, us, floor in zip(seen, compared(seen), floors, strict=True)
    ]


def _is_doubtful(us: float, seen: Sequence[float], floor_us: float) -> bool:
    """Whether a comparison says less than anything should take, and no sample says so."""
    return us < floor_us <= min(seen)


def _is_calm(seen: Sequence[Sequence[float]], least: Sequence[float]) -> bool:
    """Whether half of the candidates were nearly as fast as they ever were."""
    met = [_low(s) < CALM * us for s, us in zip(seen, least, strict=True)]
    return 2 * sum(met) >= len(met)


def compared(seen: Sequence[Sequence[float]]) -> list[float]:
    """What each would take in the fastest moment of the first."""
    return [min(seen[0]) * _ratio(own, seen[0]) for own in seen]


def _ratio(own: Sequence[float], first: Sequence[float]) -> float:
    """Of fast samples; but a machine that is half as fast at times may have been so for all but
    one of them, and then the slow ones know better, if one of them may be an interruption. Where
    both met calm moments they do not: a neighbour on the same core slows some schedules less."""
    parts = (_low, partial(_part, 0.5), partial(_part, 0.75))
    fast, *others = (of(own) / max(of(first), 1e-9) for of in parts)
    usual = median((fast, *others)) if len(own) > 2 else fast
    agreed = usual / ASTRAY < fast < usual * ASTRAY
    return fast if agreed or (_met_calm(own) and _met_calm(first)) else usual


def _met_calm(seen: Sequence[float]) -> bool:
    """Whether several samples were about as fast as the fastest."""
    return len(seen) > 2 * LUCKY and sorted(seen)[2 * LUCKY] < CALM * min(seen)


def _part(share: float, seen: Sequence[float]) -> float:
    """The sample that is above such a share of all."""
    return sorted(seen)[int(share * len(seen))]


def _low(seen: Sequence[float]) -> float:
    """Of fast samples, not the fastest: a single one may have met a moment that no other met."""
    return sorted(seen)[min(LUCKY, len(seen) // 8)]


def _spread(seen: Sequence[float]) -> float:
    """How far the fast samples lie apart: up to the first quartile, as a share."""
    return _part(0.25, seen) / max(_low(seen), 1e-9) - 1


def timing(seen: Sequence[float]) -> Timing:
    return Timing(min(seen), len(seen), median(seen) / max(min(seen), 1e-9) - 1)


def is_faster(us: float, than_us: float, noise: float = 1.0) -> bool:
    """By more than two minima usually differ, or than the ``noise`` of fast samples of both."""
    return us < than_us * (1 - min(WIN[than_us > SLOW_US], max(SURE, noise)))
