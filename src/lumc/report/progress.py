"""How far a search is: a live line on a terminal, elsewhere what its step says now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from lumc.report.log import seconds_of
from lumc.report.words import us

if TYPE_CHECKING:
    from lumc.profile.session import Progress
    from lumc.report.log import Log


@contextmanager
def progress(
    log: Log,
    budget_s: float,
    stream: IO[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[Progress], None]]:
    """What to call after every batch of trials; the last word is said at the end."""
    said: list[tuple[Progress, float]] = []
    stream = stream or sys.stderr

    def words(_: float) -> str:
        """Figures of the last batch, after the seconds of now."""
        now, since = said[-1]
        return line(replace(now, seconds=now.seconds + clock() - since), budget_s)

    bar = log.voice.bars and stream.isatty()
    with _live(log, budget_s, stream) if bar else nullcontext(_nowhere) as show:

        def hear(now: Progress) -> None:
            said.append((now, clock()))
            log.says = words
            if log.trace:
                log.trace.count(now)
            show(now)

        yield hear
        log.says = seconds_of("")  # the figures are said once more, below
    if said and said[-1][0].trials:
        log(0, f"{log.named('profile')}: {line(said[-1][0], budget_s)}")


def _nowhere(_: Progress) -> None:
    """Shows nothing."""


@contextmanager
def _live(log: Log, budget_s: float, stream: IO[str]) -> Iterator[Callable[[Progress], None]]:
    """A bar of the budget with the figures behind it; gone when the search ends."""
    from rich import progress as bars
    from rich.console import Console

    columns: list[Any] = [
        bars.TextColumn(log.named("profile")),
        bars.BarColumn(bar_width=24),
        bars.TextColumn("{task.description}"),
    ]
    with bars.Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=budget_s)

        def show(now: Progress) -> None:
            spent = min(now.seconds, budget_s)
            bar.update(task, completed=spent, description=line(now, budget_s))

        log.live = True
        try:
            yield show
        finally:
            log.live = False


def line(now: Progress, budget_s: float) -> str:
    rate = f" ({now.trials / now.seconds:.1f}/s)" if now.trials and now.seconds else ""
    return (
        f"{now.seconds:.0f} of {budget_s:g} s, {now.trials} trials{rate}, {now.kernels} kernels, "
        f"{now.open} open, best {us(now.us)}, noise {now.noise:.1%}"
    )
