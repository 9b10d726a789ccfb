"""How far a search is: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from lumc.report.words import us

if TYPE_CHECKING:
    from lumc.profile.session import Progress
    from lumc.report.log import Log

EVERY_S = 10.0  # between plain lines


@contextmanager
def progress(
    log: Log,
    budget_s: float,
    stream: IO[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[Progress], None]]:
    """What to call after every batch of trials; the last word is said at the end."""
    said: list[Progress] = []
    stream = stream or sys.stderr
    shown = _live if stream.isatty() else _plain

    with shown(log, budget_s, stream, clock) as show:

        def hear(now: Progress) -> None:
            said.append(now)
            if log.trace:
                log.trace.count(now)
            show(now)

        yield hear
    if said:
        log(0, f"profile: {line(said[-1], budget_s)}")


@contextmanager
def _plain(
    log: Log, budget_s: float, _: IO[str], clock: Callable[[], float]
) -> Iterator[Callable[[Progress], None]]:
    last = [clock()]

    def show(now: Progress) -> None:
        if clock() - last[0] > EVERY_S:
            last[0] = clock()
            log(0, f"profile: {line(now, budget_s)}")

    yield show


@contextmanager
def _live(
    log: Log, budget_s: float, stream: IO[str], _: Callable[[], float]
) -> Iterator[Callable[[Progress], None]]:
    """A bar of the budget with the figures behind it; gone when the search ends."""
    from rich import progress as bars
    from rich.console import Console

    columns: list[Any] = [
        bars.TextColumn("profile"),
        bars.BarColumn(bar_width=24),
        bars.TextColumn("{task.description}"),
    ]
    with bars.Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=budget_s)

        def show(now: Progress) -> None:
            spent = min(now.seconds, budget_s)
            bar.update(task, completed=spent, description=line(now, budget_s))

        yield show


def line(now: Progress, budget_s: float) -> str:
    rate = f" ({now.trials / now.seconds:.1f}/s)" if now.trials and now.seconds else ""
    return (
        f"{now.seconds:.0f} of {budget_s:g} s, {now.trials} trials{rate}, {now.kernels} kernels, "
        f"{now.open} open, best {us(now.us)}, noise {now.noise:.1%}"
    )
