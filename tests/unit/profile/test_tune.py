"""The search: the same records give the same plan, and a budget of any kind ends it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import native
from lumc.artifacts.bodies import plan_from_json, plan_to_json
from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.kernel.bound import least_work
from lumc.kernel.target import Speeds
from lumc.lab.lock import Busy
from lumc.profile.candidates import programs_of
from lumc.profile.choose import estimate, shortlist
from lumc.profile.ledger import least_us
from lumc.profile.measure import Job
from lumc.profile.phases import profile, try_defaults
from lumc.profile.records import NAME, Records, Trial, read_lines, text_of
from lumc.profile.rivals import is_over
from lumc.profile.session import Session
from lumc.profile.walk import PATIENCE, Walk
from lumc.schedule.moves import carried, structures
from lumc.schedule.plan import Plan
from lumc.schedule.space import Grammar
from measuring import SETTING, FakeBench, fake, kernel_of, product, space_of, tuning, two
from searching import TARGET, weight


class Drifting(FakeBench):
    """Slower from batch to batch, and fast again."""

    def measure(self, jobs: list[Job]) -> list[Trial]:
        pace = 1 + 0.2 * (self.jobs // 8 % 5)
        found = [replace(t, us=t.time * pace) for t in super().measure(jobs)]
        yards = [replace(j, schedule=j.yardstick.schedule) if j.yardstick else None for j in jobs]
        beside = [self.us(y) * pace if y else 0.0 for y in yards]
        return [replace(t, beside=b) for t, b in zip(found, beside, strict=True)]


def body(search: Session) -> str:
    return json.dumps(plan_to_json(profile(search)))


@pytest.mark.parametrize("write", [product, two], ids=lambda f: f.__name__)
def test_a_search_and_its_records_give_the_same_plan(tmp_path: Path, write: object) -> None:
    first, again, other = FakeBench(), FakeBench(), FakeBench()
    plan = body(fake(write, tmp_path, first, trials=40))
    assert first.jobs >= 40
    assert body(fake(write, tmp_path, again, trials=40)) == plan
    assert body(fake(write, tmp_path, again, frozen=True)) == plan
    assert again.jobs == 0
    assert body(fake(write, tmp_path / "elsewhere", other, trials=40)) == plan


def chain(g: Model) -> Tensor:
    """Two regions: products of which neither is part of the other's kernel."""
    y = (g.input("x", (64, 96)) @ weight(g, "v", 96, 80)).relu()
    return (y @ weight(g, "w", 80, 72)).relu()


def test_whole_runs_decide_between_rivals(tmp_path: Path) -> None:
    device, again = FakeBench(), FakeBench()
    plan = profile(fake(chain, tmp_path, device, trials=40))
    assert device.races == 1 and len(plan.kernels) == 2
    choices = [n for n in read_lines(tmp_path / NAME) if n["kind"] == "choice"]
    first = {n["kernel"]: n for n in reversed(choices)}
    second = choices[len(first) :]
    assert second  # a rival took the place of a winner
    for line in second:
        assert line["schedule"] != first[line["kernel"]]["schedule"]
        # though alone it was slower: else other programs would come back, and a bound be missed
        assert line["us"] <= first[line["kernel"]]["us"]
        assert plan.kernels[line["kernel"]].schedule.to_json() == line["schedule"]
    assert body(fake(chain, tmp_path, again, trials=40)) == json.dumps(plan_to_json(plan))
    assert again.jobs == again.races == 0


def test_plans_that_cannot_be_linked_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights are elsewhere: there are no whole runs, and kernels decide alone."""
    monkeypatch.setattr(FakeBench, "race", lambda *_: [])
    search = fake(chain, None, FakeBench(), trials=40)
    plan = profile(search)
    assert len(plan.kernels) == 2 and any(search.ledger.rivals.values())
    for key, kernel in plan.kernels.items():
        best = search.ledger.choice(key)
        assert best and (kernel.schedule, kernel.time_us) == (best.schedule, best.us)


def test_a_winner_that_is_not_near_its_bound_does_not_say_so(tmp_path: Path) -> None:
    """The best of the trials came near enough, another one won: an equal search goes no further."""

    class Turning(FakeBench):
        def finals(self, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
            return [Trial(j.schedule, 2000.0 - self.us(j) / 2, 20, 0.0) for j in jobs]

    first, again = Turning(), Turning()
    found = fake(product, tmp_path, first)
    (key,) = found.ledger.kernels
    fraction = found.ledger.bounds[key] / 1040  # reached by some schedules, not by the first
    plan = body(fake(product, tmp_path, first, fraction=fraction))
    (line,) = (n for n in read_lines(tmp_path / NAME) if n["kind"] == "choice")
    assert (line["us"] * fraction <= found.ledger.bounds[key]) is (line["stop"] == "bound")
    assert body(fake(product, tmp_path, again, fraction=fraction)) == plan
    assert again.jobs == 0


def test_candidates_come_with_the_least_time_that_is_believed(tmp_path: Path) -> None:
    """Nearly the bound from the measured peak; in trials as in finals."""
    floors = set[float]()

    class Noting(FakeBench):
        def measure(self, jobs: list[Job]) -> list[Trial]:
            floors.update(job.floor_us for job in jobs)
            return super().measure(jobs)

        def finals(self, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
            floors.update(job.floor_us for job in jobs)
            return super().finals(jobs, wait_s)

    plan = profile(fake(product, tmp_path, Noting(), trials=16))
    (kernel,) = plan.kernels.values()
    assert kernel.bound_us and [*floors] == [pytest.approx(0.95 * kernel.bound_us)]


def test_kernels_that_take_next_to_nothing_have_no_final(tmp_path: Path) -> None:
    """Their choice is on record all the same, so the plan is settled."""
    names = set[str]()

    class Uneven(FakeBench):
        def us(self, job: Job) -> float:
            return super().us(job) * (1e-4 if "sum96" in job.plan.kernel.name else 1.0)

        def finals(self, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
            names.update(job.plan.kernel.name for job in jobs)
            return super().finals(jobs, wait_s)

    plan = profile(fake(chain, tmp_path, Uneven(), trials=16))
    assert {k.kernel.name[:5] for k in plan.kernels.values()} == {"sum96", "sum80"}
    heavy = {name[:5] for name in names}
    assert "sum80" in heavy and "sum96" not in heavy
    again = FakeBench()
    assert body(fake(chain, tmp_path, again, trials=16)) == json.dumps(plan_to_json(plan))
    assert again.jobs == 0


def test_a_machine_that_drifts_changes_nothing(tmp_path: Path) -> None:
    steady = fake(product, tmp_path / "a", FakeBench(), trials=48)
    drifting = fake(product, tmp_path / "b", Drifting(), trials=48)
    assert body(steady) == body(drifting)
    for tried in (steady, drifting):
        assert len(next(iter(tried.ledger.records.trials.values()))) >= 48
    times = [[t.us for t in known.values()] for known in steady.ledger.records.trials.values()]
    again = [[t.us for t in known.values()] for known in drifting.ledger.records.trials.values()]
    assert [pytest.approx(t) for t in times] == again


def test_kernels_of_a_kind_learn_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is best for one product is tried for the other, though each has its own axes."""
    us = FakeBench.us
    monkeypatch.setattr(FakeBench, "us", lambda self, job: us(self, job) - 950.0)
    search = fake(chain, None, FakeBench(), trials=40)
    pair = list(profile(search).kernels)
    assert search.ledger.walks[pair[0]].kind == search.ledger.walks[pair[1]].kind
    assert search.ledger.carried
    for key in search.ledger.carried:
        best = search.ledger.walks[key].best
        (other,) = (search.ledger.walks[k] for k in pair if k != key)
        assert best
        schedule = carried(other.grammar, best.schedule, search.ledger.walks[key].grammar.axes)
        assert text_of(schedule) in other.seen


@pytest.mark.parametrize(("pace", "won"), [(1.0, True), (1.5, False)], ids=["calm", "not calm"])
def test_what_was_not_calm_is_doubted(
    monkeypatch: pytest.MonkeyPatch, pace: float, won: bool
) -> None:
    """Rivals are 5 % faster than the default: that counts where nothing slows the machine."""
    search = fake(product, None, FakeBench(), trials=40)

    def finals(_: FakeBench, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
        default = next(iter(search.ledger.records.trials[jobs[0].plan.key, False]))
        us = [1100.0 if text_of(j.schedule) == default else 1045.0 for j in jobs]
        return [Trial(j.schedule, pace * t, 20) for j, t in zip(jobs, us, strict=True)]

    monkeypatch.setattr(FakeBench, "finals", finals)
    monkeypatch.setattr(FakeBench, "race", lambda *_: [])
    (kernel,) = profile(search).kernels.values()
    (known,) = search.ledger.records.trials.values()
    assert (text_of(kernel.schedule) != next(iter(known))) == won


def test_seeds_differ_and_more_trials_never_lose(tmp_path: Path) -> None:
    def best(folder: str, **options: object) -> float:
        plan = profile(fake(product, tmp_path / folder, FakeBench(), **options))
        return sum(k.time_us or 0.0 for k in plan.kernels.values())

    few, many = best("a", trials=8), best("a", trials=80)
    assert many <= few
    best("b", trials=40, seed=1)
    texts = [
        [text_of_line(n) for n in read_lines(tmp_path / f / NAME) if n["kind"] == "trial"]
        for f in "ab"
    ]
    assert texts[0][:40] != texts[1][:40]


def text_of_line(line: dict[str, object]) -> str:
    return json.dumps(line["schedule"], sort_keys=True)


def test_a_larger_budget_goes_on_and_a_smaller_one_does_not(tmp_path: Path) -> None:
    profile(fake(product, tmp_path, FakeBench(), trials=10))
    device = FakeBench()
    profile(fake(product, tmp_path, device, trials=10, budget_s=5.0))
    assert device.jobs == 0
    profile(fake(product, tmp_path, device, trials=20))
    assert 0 < device.jobs <= 8


def test_walks_end() -> None:
    """Of nothing new, of the bound, of patience."""
    plan = profile(fake(product, None, FakeBench(), budget_s=600.0))
    (kernel,) = plan.kernels.values()
    assert kernel.stop in ("converged", "exhausted") and kernel.time_us
    plan = profile(fake(product, None, FakeBench(), fraction=1e-9))
    assert {k.stop for k in plan.kernels.values()} == {"bound"}


def test_no_walk_ends_at_a_time_that_nothing_took() -> None:
    """The yardstick corrects what was timed in a slow moment, but it may be wrong."""
    plan = kernel_of(product)
    for seen, stop in ((0.0, "bound"), (55.0, ""), (51.0, "bound")):
        walk = Walk(plan, TARGET, 49.0, 0, [])
        walk.observe(Trial(plan.schedule, 50.0, 10, beside=60.0, seen=seen))
        assert walk.stop(0.95, 0) == stop


def test_proposals_are_new_and_legal() -> None:
    from lumc.schedule.legal import check_schedule

    plan = kernel_of(two)
    walk, seen = Walk(plan, native(), 0.0, 0, []), []
    while len(seen) < 3 * PATIENCE and not walk.exhausted:
        for s in walk.propose(8):
            check_schedule(plan.kernel, s, native())
            seen.append(text_of(s))
            walk.observe(Trial(s, 100.0 + len(seen) % 7))
    assert len(set(seen)) == len(seen) > 20
    assert seen[0] == text_of(plan.schedule)


def test_hints_of_other_machines_come_first() -> None:
    plan = kernel_of(product)
    hint = structures(Grammar(plan.kernel, native()))[5]
    walk = Walk(plan, native(), 0.0, 0, [hint])
    assert walk.propose(9) == [plan.schedule]
    walk.observe(Trial(plan.schedule, 5.0))
    assert walk.propose(9)[0] == hint


def test_frozen_without_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LumcError) as e:
        profile(fake(product, tmp_path, FakeBench(), frozen=True))
    assert e.value.exit == 6 and e.value.code == "E0413"


def test_no_valid_candidate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LumcError) as e:
        profile(fake(product, tmp_path, FakeBench("wrong"), trials=10))
    assert e.value.exit == 6 and "wrong" in str(e.value)


def test_a_stop_before_anything_takes_the_estimate(tmp_path: Path) -> None:
    search = fake(two, tmp_path, FakeBench())
    search.stopped = lambda: True
    plan = profile(search)
    assert [k.schedule for k in plan.kernels.values()]
    assert all(k.time_us is None and k.stop == "not measured" for k in plan.kernels.values())


def test_the_shortlist_holds_the_estimate() -> None:
    space = space_of(two)
    wanted = set(estimate(space).kernels)
    for region in space.regions:
        assert 1 <= len(shortlist(programs_of(region, native()))) <= 4
    search = fake(two, None, FakeBench())
    assert wanted <= set(search.ledger.kernels)


def test_a_better_program_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels are taken where one of all the work takes longer."""
    search = fake(two, None, FakeBench(), trials=1)
    (plans,) = search.ledger.lists.values()
    if len(plans) < 2:
        pytest.skip("the region has one program on this target")
    target = {s.kernel for s in plans[1].steps}
    monkeypatch.setattr(FakeBench, "us", lambda _, job: 1.0 if job.plan.key in target else 1000.0)
    plan = profile(search)
    assert set(plan.kernels) == target


def test_programs_are_compared_by_what_they_take_in_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster program was timed while the machine was slow; in turn it shows, and stays so."""
    search = fake(two, tmp_path, FakeBench(), trials=1)
    (plans,) = search.ledger.lists.values()
    first, second = ({s.kernel for s in p.steps} for p in plans[:2])
    us = {k: 1000.0 / len(first) for k in first} | {k: 1200.0 / len(second) for k in second}
    slow = {k: 1.6 if k in first else 1.0 for k in us}
    monkeypatch.setattr(FakeBench, "us", lambda _, job: us.get(job.plan.key, 9000.0))
    monkeypatch.setattr(FakeBench, "race", lambda *_: [])

    def measure(self: FakeBench, jobs: list[Job]) -> list[Trial]:
        self.jobs += len(jobs)
        return [Trial(j.schedule, self.us(j) * slow.get(j.plan.key, 1.0), 10, 0.01) for j in jobs]

    monkeypatch.setattr(FakeBench, "measure", measure)
    plan = profile(search)
    assert set(plan.kernels) == first
    again = FakeBench()
    assert body(fake(two, tmp_path, again, trials=1)) == json.dumps(plan_to_json(plan))
    assert again.jobs == 0


def test_the_search_goes_on_where_another_program_turns_out_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In turn the second one is faster once the kernels of the first are tuned."""
    search = fake(two, None, FakeBench())
    (plans,) = search.ledger.lists.values()
    first, second = ({s.kernel for s in p.steps} for p in plans[:2])
    us = {k: 1000.0 / len(first) for k in first} | {k: 1250.0 / len(second) for k in second}
    monkeypatch.setattr(FakeBench, "us", lambda _, job: us.get(job.plan.key, 9000.0))
    trials, after = Counter[str](), Counter[str]()
    plain = FakeBench.measure

    def measure(self: FakeBench, jobs: list[Job]) -> list[Trial]:
        trials.update(j.plan.key for j in jobs)
        return plain(self, jobs)

    def finals(self: FakeBench, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
        tuned = all(trials[k] > 1 for k in first)
        if tuned and not after:
            after.update(trials)
        gain = {k: 0.5 if tuned and k in second - first else 1.0 for k in us}
        return [Trial(j.schedule, self.us(j) * gain.get(j.plan.key, 1.0), 20) for j in jobs]

    monkeypatch.setattr(FakeBench, "measure", measure)
    monkeypatch.setattr(FakeBench, "finals", finals)
    monkeypatch.setattr(FakeBench, "race", lambda *_: [])
    profile(search)
    assert after and all(trials[k] > after[k] for k in second - first)


def test_whole_runs_decide_between_near_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took longer kernel by kernel is taken when it is faster side by side, and stays so."""
    search = fake(two, tmp_path, FakeBench(), trials=1)
    (plans,) = search.ledger.lists.values()
    assert len(plans) > 1
    first, second = ({s.kernel for s in p.steps} for p in plans[:2])
    us = {k: 1000.0 / len(first) for k in first} | {k: 1050.0 / len(second) for k in second}
    monkeypatch.setattr(FakeBench, "us", lambda _, job: us.get(job.plan.key, 9000.0))
    plan = profile(search)
    assert set(plan.kernels) == second
    assert sum(k.time_us or 0.0 for k in plan.kernels.values()) < 1000.0
    again = FakeBench()
    assert body(fake(two, tmp_path, again, trials=1)) == json.dumps(plan_to_json(plan))
    assert again.jobs == again.races == 0


def biased(g: Model) -> Tensor:
    """Two regions of which programs have one kernel or more."""
    y = (weight(g, "v", 576, 96) @ g.input("x", (96, 196)) + weight(g, "b", 576, 1)).relu()
    return (weight(g, "w", 96, 576) @ y + weight(g, "c", 96, 1)).relu()


@pytest.mark.parametrize("whole", [1250.0, 2400.0], ids=["as told", "much longer"])
def test_whole_runs_tell_what_kernels_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: float
) -> None:
    """By its kernels a program with fewer of them takes 1.7 times as long; it is tried where whole
    runs of the best take much longer than all of its kernels."""
    search = fake(biased, tmp_path, FakeBench(), trials=1)
    del search.ledger.layouts[1:]
    lists = search.ledger.lists.values()
    fewest = {s.kernel for plans in lists for s in min(plans, key=lambda p: len(p.steps)).steps}
    more = {s.kernel for plans in lists for s in plans[1].steps}
    us = dict.fromkeys(fewest, 1000.0) | dict.fromkeys(more, 300.0)
    monkeypatch.setattr(FakeBench, "us", lambda _, job: us.get(job.plan.key, 9000.0))
    races = list[list[int]]()

    def race(_: FakeBench, plans: list[Plan], *__: object) -> list[float]:
        races.append([len(p.kernels) for p in plans])
        return [whole, 2100.0][: len(plans)] if len(races) < 3 else []

    monkeypatch.setattr(FakeBench, "race", race)
    plan = profile(search)
    if whole == 2400.0:
        assert races[:2] == [[4], [4, 2]] and set(plan.kernels) == fewest
    else:
        assert races[0] == [4] and [4, 2] not in races and set(plan.kernels) == more


@pytest.mark.parametrize("together", [900.0, 1000.0], ids=["faster", "not faster"])
def test_programs_with_the_fewest_kernels_are_tried_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: float
) -> None:
    """Each is a bit slower by its kernels; whole runs decide for all regions at once."""
    search = fake(biased, tmp_path, FakeBench(), trials=1)
    del search.ledger.layouts[1:]  # whole runs of those come first
    lists = search.ledger.lists.values()
    fewest = {s.kernel for plans in lists for s in min(plans, key=lambda p: len(p.steps)).steps}
    more = {s.kernel for plans in lists for s in plans[1].steps}
    assert len(fewest) == len(lists) == 2 and len(more) == 4 and not fewest & more
    us = dict.fromkeys(fewest, 1000.0) | dict.fromkeys(more, 480.0)
    monkeypatch.setattr(FakeBench, "us", lambda _, job: us.get(job.plan.key, 9000.0))
    races = list[list[int]]()

    def race(_: FakeBench, plans: list[Plan], *__: object) -> list[float]:
        races.append([len(p.kernels) for p in plans])
        return [1000.0, together] if len(races) == 1 else []

    monkeypatch.setattr(FakeBench, "race", race)
    plan = profile(search)
    assert races[0] == [4, 2]
    assert set(plan.kernels) == (fewest if together < 1000.0 else more)
    again = FakeBench()
    assert body(fake(biased, tmp_path, again, trials=1)) == json.dumps(plan_to_json(plan))
    assert again.jobs == 0


@pytest.mark.parametrize(
    ("write", "seconds", "over"),
    [(product, 7.5, False), (biased, 6.9, False), (biased, 7.5, True), (product, 8.1, True)],
)
def test_trials_leave_time_for_finals(write: object, seconds: float, over: bool) -> None:
    """More where more kernels have one; all of a budget of nothing."""
    search = fake(write, None, FakeBench(), budget_s=10.0)
    try_defaults(search)
    search.clock = lambda: seconds
    assert is_over(search) is over
    search.ledger.options = replace(search.ledger.options, budget_s=0.0)
    assert is_over(search)


def test_a_real_search_of_a_small_product(tmp_path: Path) -> None:
    search = tuning(space_of(product), tmp_path, trials=10)
    plan = profile(search)
    (kernel,) = plan.kernels.values()
    assert kernel.time_us and kernel.bound_us > 0 and kernel.stop
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan))), plan.graph) == plan
    trials = [n for n in read_lines(tmp_path / NAME) if n["kind"] == "trial"]
    assert len({text_of_line(n) for n in trials}) == len(trials) >= 10


def siblings(g: Model) -> Tensor:
    """Two statistics of the same rows, which are more than any cache holds."""
    x = g.input("x", (40000, 3000))
    g.output("other", (x * x).sum(1))
    return x.sum(1)


@pytest.mark.parametrize("faster", [0, -1], ids=["apart", "side by side"])
def test_siblings_are_fused_if_that_was_measured_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: int
) -> None:
    """The programs of a joint region are those of its members, then the fused ones."""
    search = fake(siblings, tmp_path, FakeBench(), trials=1)
    (plans,) = search.ledger.lists.values()
    assert len(plans[0].steps) == 2 and len(plans[-1].steps) == 1
    target = {s.kernel for s in plans[faster].steps}
    monkeypatch.setattr(FakeBench, "us", lambda _, job: 1e6 if job.plan.key in target else 1e8)
    plan = profile(search)
    assert set(plan.kernels) == target
    (joint,) = plan.instances
    assert len(joint.outputs) == 2 and set(plan.regions) == {joint.region}
    again = FakeBench()
    assert body(fake(siblings, tmp_path, again, frozen=True)) == json.dumps(plan_to_json(plan))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan))), plan.graph) == plan


def test_a_peak_that_was_measured_in_a_slow_moment_ends_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every search measures it again; the greatest on record counts, or what is usual."""
    monkeypatch.setattr(FakeBench, "speeds", lambda _: Speeds(1e-3, 1.0, 0.1))
    slow = fake(product, tmp_path, FakeBench(), trials=10)
    profile(slow)
    assert slow.ledger.records.speeds == Speeds(1e-3, 1.0, 0.1)
    usual = [replace(k, bound_us=0.0) for k in slow.ledger.kernels.values()]
    cache_bytes, gflops = slow.ledger.options.cache_bytes, slow.ledger.space.target.gflops
    assert [slow.ledger.bounds[k.key] for k in usual] == [
        least_us(least_work(k.kernel), 1, cache_bytes, Speeds(gflops, 1.0, 0.1)) for k in usual
    ]
    monkeypatch.undo()
    again = fake(product, tmp_path, FakeBench(), trials=20)
    profile(again)
    assert (
        Records(tmp_path, SETTING).speeds
        == again.ledger.records.speeds
        == Speeds(100.0, 200.0, 20.0)
    )


class Waiting(FakeBench):
    """Another process uses the device for longer than the budget, again and again."""

    def measure(self, jobs: list[Job]) -> list[Trial]:
        self.lock.waited_s += 1000.0
        return super().measure(jobs)


class Kept(FakeBench):
    """Another process keeps the device after the first trials."""

    def measure(self, jobs: list[Job]) -> list[Trial]:
        if self.jobs:
            raise Busy
        return super().measure(jobs)

    def finals(self, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
        raise Busy


def test_waiting_for_the_device_is_no_search() -> None:
    device = Waiting()
    search = fake(product, None, device, trials=30, budget_s=5.0)
    search.clock = lambda: device.lock.waited_s
    profile(search)
    assert device.jobs >= 30 and search.spent() == 0.0


def test_a_device_that_is_kept_by_others_ends_the_search_as_ctrl_c_does(tmp_path: Path) -> None:
    """What was measured gives the plan; nothing is on record as searched."""
    plan = profile(fake(product, tmp_path, Kept(), trials=40))
    (kernel,) = plan.kernels.values()
    assert kernel.time_us and kernel.stop == "interrupted"
    device = FakeBench()
    profile(fake(product, tmp_path, device, trials=40))
    assert device.jobs > 20, "the next search goes on"
