"""Candidates on several machines: who measures what, and what is lost with a machine. The machines
are of a fake pool; what they say went through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernels import CC, native
from lumc.artifacts.bodies import plan_to_json
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.target import Target
from lumc.lab.lock import Busy
from lumc.process import CRASH
from lumc.profile import cluster
from lumc.profile.cluster import LOST, VALUE, WHY, Answer, Cluster, Kind, Remote
from lumc.profile.ledger import Ledger, Options
from lumc.profile.measure import Bench, Job
from lumc.profile.phases import profile
from lumc.profile.records import Records, Trial, read_lines
from lumc.profile.session import Session
from lumc.profile.tune import batch
from lumc.schedule.moves import structures
from lumc.schedule.space import Grammar
from lumc.voice import saying
from measuring import SETTING, FakeBench, kernel_of, product, space_of, tools, two

Fault = Callable[[str, Job], Answer | None]


class FakePool:
    """Machines that answer last come, first served; ``fault`` may answer for one of them."""

    def __init__(self, *names: str, fault: Fault = lambda *_: None) -> None:
        self.names, self.busy, self.fault = list(names), dict[str, Any](), fault
        self.given, self.closed = list[tuple[str, str]](), False

    @property
    def count(self) -> int:
        return len(self.names)

    def free(self) -> list[str]:
        return [name for name in self.names if name not in self.busy]

    def give(self, machine: str, job: Any) -> None:
        assert machine in self.free()
        self.busy[machine] = json.loads(json.dumps(job, allow_nan=False))

    def heard(self, seconds: float) -> list[tuple[str, Answer]]:
        if not self.busy:
            return []
        machine, said = self.busy.popitem()
        job = from_plain(Job, said)
        self.given.append((machine, key_of(job)))
        fine = {VALUE: to_plain(Trial(job.schedule, FakeBench().us(job), 10, 0.01))}
        fault = self.fault(machine, job)
        return [(machine, json.loads(json.dumps(fine if fault is None else fault)))]

    def drop(self, machine: str) -> None:
        self.names.remove(machine)

    def close(self) -> None:
        self.closed = True


def key_of(job: Job) -> str:
    return json.dumps([job.plan.key, job.schedule.to_json()])


def here(_: Bench, jobs: list[Job]) -> Iterator[Trial]:
    """What this machine measures."""
    return (Trial(j.schedule, FakeBench().us(j), 10, 0.01) for j in jobs)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FakePool], Cluster]]:
    """Benches with these pools; nothing is compiled."""
    monkeypatch.setattr(Bench, "_set_up", lambda _: None)
    monkeypatch.setattr(Bench, "measure", here)
    made = list[Cluster]()

    def opened(pool: FakePool) -> Cluster:
        made.append(Cluster(lambda: pool, native(), tools()))
        return made[-1]

    yield opened
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    plan = kernel_of(product)
    found = list(structures(Grammar(plan.kernel, native())))[:7]
    assert len(found) == 7
    return [Job(plan, s, best_us=3.5, yardstick=Trial(plan.schedule, 4.0)) for s in found]


def measured(bench: Cluster, jobs: list[Job]) -> dict[str, Trial]:
    """Every trial by its candidate, none of which was measured twice."""
    found = [(key_of(job), trial) for job, trial in bench.as_completed(jobs)]
    assert len(dict(found)) == len(found)
    for job, trial in bench.as_completed([]):
        raise AssertionError((job, trial))
    return dict(found)


def test_candidates_are_shared_and_arrive_as_they_are_made(
    opened: Callable[[FakePool], Cluster], jobs: list[Job]
) -> None:
    pool = FakePool("a", "b", "c")
    found = measured(bench := opened(pool), jobs)
    assert found == {key_of(j): Trial(j.schedule, FakeBench().us(j), 10, 0.01) for j in jobs}
    assert list(found) != [key_of(j) for j in jobs], "in the order of arrival"
    assert bench.made == {name: [m for m, _ in pool.given].count(name) for name in bench.made}
    assert sum(bench.made.values()) == len(jobs) and len(bench.made) == 3


def test_the_candidate_of_a_machine_that_is_lost_goes_to_another(
    opened: Callable[[FakePool], Cluster], jobs: list[Job]
) -> None:
    lost = list[str]()

    def once(machine: str, job: Job) -> Answer | None:
        if lost or key_of(job) != key_of(jobs[2]):
            return None
        pool.names.remove(machine)
        lost.append(machine)
        return {LOST: "its process ended"}

    said, pool = list[str](), FakePool("a", "b", fault=once)
    with saying(lambda _, text: said.append(text)):
        found = measured(opened(pool), jobs)
    assert len(found) == len(jobs) and all(t.us for t in found.values())
    assert [m for m, key in pool.given if key == key_of(jobs[2])] == [*lost, *pool.names]
    assert said == [
        f"warning: profile: {lost[0]} was lost (its process ended): its candidate goes to another "
        "machine"
    ]


def test_a_candidate_that_machines_are_lost_with_is_a_record(
    opened: Callable[[FakePool], Cluster], jobs: list[Job]
) -> None:
    bad = key_of(jobs[3])
    pool = FakePool("a", "b", fault=lambda _, job: {LOST: "x"} if key_of(job) == bad else None)
    found = measured(opened(pool), jobs)
    assert found[bad] == Trial(
        jobs[3].schedule, reason=CRASH, remark="2 machines were lost with it"
    )
    assert all(t.us for key, t in found.items() if key != bad) and len(found) == len(jobs)
    assert [key for _, key in pool.given].count(bad) == cluster.TRIES


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said, _: {WHY: "no space left on device"},
        lambda said, _: {},
        lambda said, _: {VALUE: None},
        lambda said, _: {VALUE: {**said, "us": -1.0}},
        lambda said, _: {VALUE: {**said, "us": "1"}},
        lambda said, _: {VALUE: {**said, "us": None}},
        lambda said, _: {VALUE: {**said, "samples": -1}},
        lambda said, _: {VALUE: {**said, "more": 1}},
        lambda said, other: {VALUE: {**said, "schedule": to_plain(other.schedule)}},
    ],
    ids=["why", "nothing", "null", "negative", "text", "none", "samples", "more", "other"],
)
def test_machines_that_do_not_measure_get_no_more(
    opened: Callable[[FakePool], Cluster], jobs: list[Job], spoil: Callable[..., Answer]
) -> None:
    def fault(machine: str, job: Job) -> Answer | None:
        other = jobs[0] if key_of(job) != key_of(jobs[0]) else jobs[1]
        fine = to_plain(Trial(job.schedule, 5.0, 10, 0.01))
        return spoil(fine, other) if machine == "a" else None

    pool, said = FakePool("a", "b", fault=fault), list[str]()
    with saying(lambda _, text: said.append(text)):
        found = measured(opened(pool), jobs)
    assert len(found) == len(jobs) and all(t.us not in (None, 5.0) for t in found.values())
    assert pool.names == ["b"] and len(said) == 1
    assert said[0].startswith("warning: profile: a measures no more: ")


def test_without_machines_this_one_measures(
    opened: Callable[[FakePool], Cluster], jobs: list[Job]
) -> None:
    pool = FakePool("a", fault=lambda *_: {WHY: "it is busy"})
    bench = opened(pool)
    assert len(measured(bench, jobs)) == len(jobs) and pool.count == 0
    assert bench.made == {"this machine": len(jobs)} and bench.machines == 1


def test_a_stop_waits_for_what_is_measured(
    opened: Callable[[FakePool], Cluster], jobs: list[Job]
) -> None:
    pool = FakePool("a", "b")
    bench = opened(pool)
    bench.stopped = lambda: len(pool.given) >= 2
    found = measured(bench, jobs)
    assert 2 <= len(found) <= 3 and not pool.busy
    assert set(found) == {key for _, key in pool.given}


def test_machines_that_never_answer_are_left(
    opened: Callable[[FakePool], Cluster], jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", -1.0)
    pool = FakePool("a")
    pool.heard = lambda _: []  # type: ignore[method-assign]
    assert len(measured(bench := opened(pool), jobs)) == len(jobs)
    assert bench.made == {"this machine": len(jobs)}


def test_a_failed_pool_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "_set_up", lambda _: None)
    folders = list[Path]()
    monkeypatch.setattr(Bench, "close", lambda b: (folders.append(b.folder), b._scratch.close()))

    def fails() -> FakePool:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        Cluster(fails, native(), tools())
    assert len(folders) == 1 and not folders[0].exists()


def test_a_search_on_a_cluster_is_on_record_and_gives_its_plan_again(
    opened: Callable[[FakePool], Cluster], tmp_path: Path
) -> None:
    """The plan that the records alone give is the same, though one machine was lost."""
    space, on_record = space_of(two), list[int]()
    wanted = Options(budget_s=60.0, trials=20, fraction=1.0)

    def count(machine: str, job: Job) -> Answer | None:
        on_record.append(sum(n["kind"] == "trial" for n in read_lines(tmp_path / "records.jsonl")))
        if len(on_record) == 9:
            pool.names.remove(machine)
            return {LOST: "its process ended"}
        return None

    pool = FakePool("a", "b", "c", fault=count)
    bench = opened(pool)
    for name in ("finals", "race", "speeds"):
        setattr(bench, name, getattr(FakeBench(), name))
    records = Records(tmp_path, SETTING)
    session = Session(Ledger(space, wanted, records), lambda: bench, clock=lambda: 0.0)
    plan = profile(session)
    records.close()
    trials = [n for n in read_lines(tmp_path / "records.jsonl") if n["kind"] == "trial"]
    assert len(trials) == len(on_record) - 1 == session.ledger.measured and pool.closed
    # each is on record before the next answer is heard, but for the one that was lost
    assert on_record == [*range(9), *range(8, len(trials))]

    again = Ledger(space, replace(wanted, frozen=True), Records(tmp_path, SETTING))
    frozen = profile(Session(again, lambda: pytest.fail("nothing is measured")))
    assert json.dumps(plan_to_json(frozen)) == json.dumps(plan_to_json(plan))


def test_batches_grow_with_the_machines(opened: Callable[[FakePool], Cluster]) -> None:
    session = Session(Ledger.__new__(Ledger), FakeBench)  # type: ignore[arg-type]
    for machines, size in ((1, 8), (4, 8), (5, 10), (16, 32)):
        session._bench = opened(FakePool(*map(str, range(machines))))
        assert batch(session) == size


# ---- the side of the machine


def test_a_machine_measures_what_json_says() -> None:
    """A real candidate, with its yardstick, beside the trial that this machine makes."""
    plan = kernel_of(product)
    first = Job(plan, plan.schedule)
    remote = Remote(json.loads(json.dumps(to_plain(native()))), CC)
    ask = lambda job: remote.measure(json.loads(json.dumps(to_plain(job))))  # noqa: E731
    trial = cluster.trial_of(json.loads(json.dumps(ask(first)))[VALUE], first)
    assert trial and trial.us and trial.samples and not trial.reason
    other = next(s for s in structures(Grammar(plan.kernel, native())) if s != plan.schedule)
    second = Job(plan, other, best_us=trial.us, yardstick=trial)
    found = cluster.trial_of(ask(second)[VALUE], second)
    assert found and found.us and found.beside > 0
    assert remote.bench
    remote.bench.close()


def test_what_keeps_a_machine_from_measuring_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(to_plain(native()), "no-such-compiler")
    assert remote.described() == {WHY: "E0701 no C compiler: tried no-such-compiler"}
    for error, said in ((Busy(), "other searches"), (OSError(28, "No space left"), "No space")):

        def fails(self: Bench, jobs: object, error: Exception = error) -> Iterator[Trial]:
            raise error
            yield

        monkeypatch.setattr(Bench, "_set_up", lambda _: None)
        monkeypatch.setattr(Bench, "measure", fails)
        plan = kernel_of(product)
        one = Remote(to_plain(native()), CC)
        assert said in one.measure(to_plain(Job(plan, plan.schedule)))[WHY]
        assert one.bench
        one.bench.close()


def test_machines_of_another_kind_are_told_apart() -> None:
    remote = Remote(to_plain(native()), CC)
    said = json.loads(json.dumps(remote.described()))[VALUE]
    own = replace(cluster.kind_here(native(), tools()), code=cluster.code_here())
    unlike = partial(cluster.unlike, here=own)
    assert unlike(said) == "" and from_plain(Kind, said) == own
    words = {**said["said"], "cores": 999}
    assert unlike({**said, "device": "d", "said": words}) == (
        f"cores 999 (here {own.said['cores']})"
    )
    words = {**said["said"], "compiler": "tcc 1"}
    assert unlike({**said, "tools": "t", "said": words}).startswith("compiler tcc 1 (here ")
    assert unlike({**said, "tools": "t"}) == "flags of the compiler"
    assert unlike({**said, "code": "c"}) == "other files of lumc"
    for wrong in (None, [], {}, {**said, "device": 1}, {**said, "more": 1}):
        assert unlike(wrong) == "another version of lumc"


def test_the_code_of_lumc_is_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "files", lambda _: tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_text("a")
    first = cluster.code_here()
    (tmp_path / "in" / "a.pyc").write_text("compiled")
    assert cluster.code_here() == first
    (tmp_path / "in" / "b.h").write_text("b")
    assert cluster.code_here() != first
    (tmp_path / "in" / "b.h").rename(tmp_path / "in" / "c.h")
    assert len({first, cluster.code_here()}) == 2


def test_a_target_crosses_as_json() -> None:
    assert from_plain(Target, json.loads(json.dumps(to_plain(native())))) == native()
