"""Layouts that no price tells apart: what is measured decides, and stays on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumc.artifacts.bodies import plan_to_json
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.profile.ledger import Ledger
from lumc.profile.measure import Job
from lumc.profile.phases import profile
from lumc.profile.session import Session
from lumc.schedule.plan import Plan
from measuring import FakeBench, fake
from searching import weight


def convolutions(g: Model) -> Tensor:
    x = g.input("x", (1, 16, 12, 12))
    for i in range(3):
        x = x.conv2d(weight(g, f"w{i}", 16, 16, 3, 3), padding=1).relu()
    return x


def kernels_in(book: Ledger, number: int) -> set[str]:
    """Those of one layout only."""
    every = [
        {s.kernel for plans in laid.lists.values() for p in plans for s in p.steps}
        for laid in book.layouts
    ]
    return every[number].difference(*(e for n, e in enumerate(every) if n != number))


def opened(
    folder: Path, device: FakeBench, monkeypatch: pytest.MonkeyPatch, **options: object
) -> Session:
    monkeypatch.setattr("lumc.search.layout.NEAR", 100.0)  # both are near enough
    return fake(convolutions, folder, device, trials=3, **options)


@pytest.mark.parametrize("fast", [0, 1])
def test_the_layout_that_is_faster_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: int
) -> None:
    """Whole runs say so, whatever kernels took that were timed one after the other."""
    device, again = FakeBench(), FakeBench()
    search = opened(tmp_path, device, monkeypatch)
    book, plain = search.ledger, FakeBench.us
    assert len(book.layouts) == 2
    other = kernels_in(book, 1 - fast)
    tried = list[str]()

    def us(device: FakeBench, job: Job) -> float:
        tried.append(job.plan.key)
        return plain(device, job) * (0.5 if job.plan.key in other else 1.0)

    def race(device: FakeBench, plans: list[Plan], *_: object) -> list[float]:
        device.races += 1
        same = [{i.region for i in p.instances} == {*book.layouts[fast].lists} for p in plans]
        return [900.0 if ours else 1000.0 for ours in same] if device.races == 1 else []

    monkeypatch.setattr(FakeBench, "us", us)
    monkeypatch.setattr(FakeBench, "race", race)
    plan = profile(search)
    assert {i.region for i in plan.instances} == {*book.layouts[fast].lists}
    assert other & {*tried}  # it was looked at, once each
    assert all(tried.count(key) == 1 for key in other & {*tried})
    for options in ({}, {"frozen": True}):
        same = profile(opened(tmp_path, again, monkeypatch, **options))
        assert json.dumps(plan_to_json(same)) == json.dumps(plan_to_json(plan))
    assert again.jobs == again.races == 0


def test_the_first_layout_stays_where_others_were_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that is stopped before: prices decide."""
    search = opened(tmp_path, FakeBench(), monkeypatch, allow_estimate=True)
    search.stopped = lambda: True
    first = {*search.ledger.layouts[0].lists}
    assert {i.region for i in profile(search).instances} == first
