"""What the clock of a search counts."""

from types import SimpleNamespace
from typing import Any, cast

from lumc.lab.lock import DeviceLock
from lumc.profile.ledger import Ledger
from lumc.profile.measure import Bench
from lumc.profile.session import Session


def test_opening_the_device_and_waiting_for_it_are_no_search() -> None:
    now = [100.0]
    bench: Any = SimpleNamespace(lock=DeviceLock(), stopped=None)

    def opened() -> Bench:
        now[0] += 75.0  # as long as a compiler takes that builds its own libraries first
        return cast(Bench, bench)

    options = SimpleNamespace(options=SimpleNamespace(budget_s=60.0))
    session = Session(cast(Ledger, options), opened, clock=lambda: now[0])
    now[0] += 2.0
    assert session.spent() == 2.0
    assert session.bench.lock.patience_s == 60.0
    assert session.spent() == 2.0 and not session.is_over()
    bench.lock.waited_s, now[0] = 30.0, now[0] + 40.0
    assert session.spent() == 12.0
    now[0] += 50.0
    assert session.is_over()
