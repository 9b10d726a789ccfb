"""How far a search is: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumc.pipeline import Log
    from lumc.profile.tune import Progress

EVERY_S = 10.0  # between plain lines


@contextmanager
def progress(log: Log) -> Iterator[Callable[[Progress], None]]:
    """What to call after every batch of trials; the last word is said at the end."""
    said: list[Progress] = []
    start = [time.monotonic()]
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("profile: starting") as status:

            def live(now: Progress) -> None:
                said.append(now)
                status.update(f"profile: {line(now)}")

            yield live
    else:

        def plain(now: Progress) -> None:
            said.append(now)
            if time.monotonic() - start[0] > EVERY_S:
                start[0] = time.monotonic()
                log(1, f"profile: {line(now)}")

        yield plain
    if said:
        log(0, f"profile: {line(said[-1])}")


def line(now: Progress) -> str:
    rate = f" ({now.trials / now.seconds:.1f}/s)" if now.trials and now.seconds else ""
    return (
        f"{now.seconds:.0f} s, {now.trials} trials{rate}, {now.kernels} kernels, {now.open} open, "
        f"best {now.us:.1f} us, noise {now.noise:.1%}"
    )
