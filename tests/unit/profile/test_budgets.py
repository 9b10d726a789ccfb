"""What was spent on a kernel is on record, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kernels import native
from lumc.command.plan import ProfileOptions, say_origin
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.text import parse_graph
from lumc.profile.choose import estimate
from lumc.profile.ledger import Ledger, Options
from lumc.profile.measure import Job
from lumc.profile.phases import profile
from lumc.profile.records import NAME, Records, Trial, read_lines
from lumc.profile.session import Session
from lumc.report.log import Log
from lumc.schedule.plan import Plan
from lumc.search import search
from measuring import BUCKETS, SETTING, FakeBench, fake, product, space_of
from searching import weight


class Slow(FakeBench):
    """Every candidate takes a second."""

    now = 0.0

    def measure(self, jobs: list[Job]) -> list[Trial]:
        self.now += len(jobs)
        return super().measure(jobs)


def timed(write: object, folder: Path, device: Slow, **options: object) -> Session:
    search = fake(write, folder, device, **options)
    search.clock = lambda: device.now
    return search


def late(write: object, folder: Path, **options: object) -> Session:
    """A search whose budget is spent before it begins, as by a lock that somebody held."""
    search = fake(write, folder, FakeBench(), **options)
    search.clock = lambda: 1e6
    return search


def products(*sizes: int) -> Callable[[Model], Tensor]:
    """A chain of products, each a region and a kernel of its own."""

    def write(g: Model) -> Tensor:
        y = g.input("x", (64, sizes[0]))
        for i, (n, m) in enumerate(pairwise(sizes)):
            y = (y @ weight(g, f"w{i}", n, m)).relu()
        return y

    return write


def choices(folder: Path) -> dict[str, dict[str, float]]:
    return {n["kernel"]: n for n in read_lines(folder / NAME) if n["kind"] == "choice"}


def test_a_search_that_measured_nothing_ends_no_search(tmp_path: Path) -> None:
    """Newcomer's worst: the lock was held for all of a longer budget."""
    profile(timed(product, tmp_path, Slow(), budget_s=10.0))
    before = choices(tmp_path)
    trials = len(Records(tmp_path, SETTING).trials)
    plan = profile(late(product, tmp_path, budget_s=40.0))
    assert choices(tmp_path) == before and len(Records(tmp_path, SETTING).trials) == trials
    assert all(k.time_us for k in plan.kernels.values()), "what is on record is the plan"
    again = Slow()
    profile(timed(product, tmp_path, again, budget_s=40.0))
    assert again.jobs > 8
    once_more = Slow()
    profile(timed(product, tmp_path, once_more, budget_s=40.0))
    assert once_more.jobs == 0


def test_a_search_that_was_stopped_at_once_changes_no_choice(tmp_path: Path) -> None:
    profile(timed(products(96, 80, 72), tmp_path, Slow(), budget_s=40.0))
    before = choices(tmp_path)
    search = late(products(96, 80, 72), tmp_path, budget_s=80.0)
    search.stopped = lambda: True
    profile(search)
    assert before.items() <= choices(tmp_path).items()


def test_kernels_share_a_budget(tmp_path: Path) -> None:
    """Their times add up to less; so one of them alone is searched for longer."""
    profile(timed(products(96, 80, 72), tmp_path, Slow(), budget_s=40.0))
    spent = [n["spent_s"] for n in choices(tmp_path).values()]
    assert len(spent) > 1 and min(spent) > 0 and sum(spent) <= 40.0 + 8
    again = Slow()
    profile(timed(products(96, 80, 72), tmp_path, again, budget_s=40.0))
    assert again.jobs == 0
    one = Slow()
    profile(timed(products(96, 80), tmp_path, one, budget_s=40.0))
    assert one.jobs > 0


def test_a_kernel_that_had_its_share_is_left_alone(tmp_path: Path) -> None:
    """In another model, where each kernel has less."""
    (known,) = profile(timed(products(96, 80), tmp_path, Slow(), budget_s=40.0)).kernels
    assert choices(tmp_path)[known]["spent_s"] >= 10.0
    other = Slow()
    search = timed(products(96, 80, 72), tmp_path, other, budget_s=20.0)
    profile(search)
    assert search.ledger.asked.share_s == 10.0
    assert other.jobs > 0 and known in search.ledger.kernels and known not in search.ledger.spent


def test_small_buckets_get_their_share_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the other one takes a hundred times as long, and has as much more to gain."""
    space = search(parse_graph(BUCKETS), native(), inside=True)
    pace, device = dict[str, float](), Slow()
    ledger = Ledger(space, Options(budget_s=100.0, fraction=1.0), Records(None, SETTING))
    session = Session(ledger, lambda: device, clock=lambda: device.now)  # type: ignore[arg-type, return-value]
    for plans, us in zip(ledger.lists.values(), (1.0, 100.0), strict=True):
        pace |= {step.kernel: us for plan in plans for step in plan.steps}
    plain = FakeBench.us
    monkeypatch.setattr(FakeBench, "us", lambda self, job: plain(self, job) * pace[job.plan.key])
    profile(session)
    trials = {us: sum(len(ledger.trials(k)) for k in pace if pace[k] == us) for us in (1.0, 100.0)}
    assert min(trials.values()) >= 24, trials


# ---- what is said of a plan


def asked(allow: bool = False) -> ProfileOptions:
    rest = (0, 0.95, 0, 1, False, None, None, Path())
    return ProfileOptions(False, allow, "2s", *rest)


def plan_of(timed: int) -> Plan:
    """Of two kernels."""
    plan = estimate(space_of(products(96, 80, 72)))
    assert len(plan.kernels) == 2
    kernels = {
        key: replace(k, time_us=9.0 if i < timed else None)
        for i, (key, k) in enumerate(plan.kernels.items())
    }
    return replace(plan, kernels=kernels)


@pytest.mark.parametrize(
    ("timed", "measured", "allow", "said"),
    [
        (2, 40, False, ""),
        (2, None, False, "profile: all 2 kernels were searched before: nothing is measured"),
        (2, 0, False, "profile: nothing was measured in 2s: the plan is that of earlier searches"),
        (1, 40, False, "profile: 1 of 2 kernels were never measured: they run as estimated"),
        (1, 0, False, "profile: 1 of 2 kernels were never measured: they run as estimated"),
        (0, 0, True, "profile: nothing was measured in 2s: the plan is an estimate"),
    ],
)
def test_what_was_not_measured_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], timed: int, measured: int | None, allow: bool, said: str
) -> None:
    say_origin(plan_of(timed), measured, asked(allow), False, Log())
    assert capsys.readouterr().err.splitlines() == [said][: bool(said)]


def test_an_estimate_is_no_plan_unless_it_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LumcError) as e:
        say_origin(plan_of(0), 0, asked(), False, Log())
    assert (e.value.code, e.value.exit) == ("E0418", Exit.BUDGET)
    with pytest.raises(KeyboardInterrupt):
        say_origin(plan_of(0), 0, asked(), True, Log())
    assert "no plan is written" in capsys.readouterr().err
    say_origin(plan_of(0), 0, asked(allow=True), True, Log())
    assert "the plan is an estimate" in capsys.readouterr().err


@pytest.mark.parametrize(("reason", "taken"), [("compiler", True), ("wrong", False)])
def test_invalid_candidates_and_the_estimate(tmp_path: Path, reason: str, taken: bool) -> None:
    """A default that nobody could compile in time may be right; one that was wrong is not."""
    search = fake(product, tmp_path, FakeBench(reason), trials=10, allow_estimate=True)
    if taken:
        assert all(k.stop == "not measured" for k in profile(search).kernels.values())
        return
    with pytest.raises(LumcError, match="wrong") as e:
        profile(search)
    assert e.value.exit == Exit.BUDGET
