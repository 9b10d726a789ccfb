"""What is known of a search follows from the records; every phase can be run alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import native
from lumc.errors import LumcError
from lumc.graph.text import parse_graph
from lumc.profile import rivals as programs
from lumc.profile.ledger import Ledger, Options, kernels_of
from lumc.profile.phases import require_choices, try_defaults
from lumc.profile.records import Choice, Records, Trial
from lumc.profile.rivals import compare_rivals, rivals
from lumc.profile.tune import open_kernels
from lumc.search import search
from measuring import BUCKETS, SETTING, FakeBench, fake, product, space_of, two


def ledger(write: object = product, folder: Path | None = None, **options: object) -> Ledger:
    space = space_of(write)  # type: ignore[arg-type]
    return Ledger(space, Options(**options), Records(folder, SETTING))  # type: ignore[arg-type]


def test_an_empty_ledger_has_the_estimate() -> None:
    book = ledger(two)
    assert book.best() == {} and book.missing(bool) == list(book.lists)
    assert set(book.costs().values()) == {0.0}
    plan = book.plan()
    assert {k.stop for k in plan.kernels.values()} == {"not measured"}
    assert [p.steps for p in plan.regions.values()] == [p[0].steps for p in book.lists.values()]


def test_times_are_those_of_the_moment_in_turn() -> None:
    """A choice counts before trials, and the yardstick scales both."""
    book = ledger()
    (key,) = book.kernels
    schedule = book.kernels[key].schedule
    book.add(key, Trial(schedule, 80.0, noise=0.4))
    assert (book.time(key), book.measured, book.noise) == (80.0, 1, pytest.approx(0.02))
    book.set_turn(key, 100.0, alone=80.0)
    assert book.time(key) == 100.0
    book.choose(key, Choice(schedule, 60.0, "time", 1, 5.0, 0))
    assert book.time(key) == 75.0
    (cost,) = book.costs().values()
    assert cost == 75.0 and book.plan().kernels[key].time_us == 60.0


def test_what_is_settled_depends_on_what_may_be_spent() -> None:
    for budget_s, near, settled in ((5.0, 0.0, True), (6.0, 0.0, False), (6.0, 1.0, True)):
        book = ledger(budget_s=budget_s, fraction=near)
        (key,) = book.kernels
        us, stop = (book.bounds[key], "bound") if near else (50.0, "time")
        spent = 1.0, book.asked.among
        book.choose(key, Choice(book.kernels[key].schedule, us, stop, 1, 5.0, 0, *spent))
        assert book.is_settled(key) is settled
        assert book.missing(book.is_settled) == [key][settled:] and not book.missing(book.choice)


def test_refuted_kernels_are_avoided_or_named() -> None:
    book = ledger(two)
    ((first, *_), *_) = book.lists.values()
    for key in kernels_of([first]):
        book.add(key, Trial(book.kernels[key].schedule, reason="wrong", remark="at [0]"))
    others = [p for plans in book.lists.values() for p in plans if p is not first]
    assert others and first.steps not in [p.steps for p in book.plan().regions.values()]
    with pytest.raises(LumcError, match=r"wrong: at \[0\]"):
        book.plan([first])


def test_weights_are_cold_if_no_cache_holds_them() -> None:
    for nbytes, cold in ((40 * 33 * 4, 0), (40 * 33 * 4 - 1, int(1.25 * (40 * 33 * 4 - 1)))):
        book = ledger(cache_bytes=nbytes)
        (key,) = book.kernels
        assert book.cold_bytes(key) == cold and book.at(key) == (key, cold > 0)


def test_phases_run_alone() -> None:
    """Defaults first; then rivals in turn; then there is something to gain."""
    device = FakeBench()
    search = fake(two, None, device)
    book = search.ledger
    with pytest.raises(LumcError, match="--frozen"):
        require_choices(book)
    try_defaults(search)
    assert device.jobs == book.measured == len(book.walks) > 1
    assert {len(book.trials(key)) for key in book.walks} == {1}
    assert not book.records.turns
    compare_rivals(search)
    assert {key for key, _ in book.records.turns} == set(rivals(book)) and book.records.turns
    gains = open_kernels(book)
    assert gains.keys() <= book.walks.keys() and all(gains.values())


def test_runs_of_all_buckets_count_as_if_they_took_equally_long() -> None:
    space = search(parse_graph(BUCKETS), native(), inside=True)
    book = Ledger(space, Options(), Records(None, SETTING))
    (one,), (many,) = ([s.kernel for s in plans[0].steps] for plans in book.lists.values())
    book.add(one, Trial(book.kernels[one].schedule, 10.0))
    near = book.weights()["main@s1"] * 10.0  # the other one takes what its bound says
    assert near == pytest.approx((10.0 + book.floor(many)) / 2)
    book.add(many, Trial(book.kernels[many].schedule, 990.0))
    assert book.weights() == {"main@s1": 50.0, "main@s64": pytest.approx(500 / 990)}
    assert [*book.costs().values()] == [pytest.approx(500.0)] * 2
    alone = ledger()
    (key,) = alone.kernels
    alone.add(key, Trial(alone.kernels[key].schedule, 7.3))
    assert alone.weights() == {"main": 1.0}


def test_finals_hold_as_many_kernels_as_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of rival programs of a region are compared, so they stay together."""
    book = ledger(two)
    space = search(parse_graph(BUCKETS), native(), inside=True)
    buckets = Ledger(space, Options(cache_bytes=1 << 20), Records(None, SETTING))
    one, many = buckets.kernels
    assert [buckets.nbytes(k) for k in (one, many)] == [
        4 * (40 * 33 + n * 40 + n * 33) for n in (1, 64)
    ]
    assert programs.grouped(buckets, [many, one]) == [[many, one]]
    monkeypatch.setattr(programs, "ROOM", buckets.nbytes(many))
    assert programs.grouped(buckets, [many, one]) == [[one], [many]]
    assert programs.grouped(buckets, [many]) == [[many]] and programs.grouped(buckets, []) == []
    monkeypatch.setattr(programs, "ROOM", 0)
    assert len(book.lists) == 1 and len(book.kernels) > 1
    assert programs.grouped(book, [*book.kernels]) == [[*book.kernels]]


def test_weights_that_no_cache_holds_have_copies() -> None:
    read = 12 * 40 * 4 + 12 * 33 * 4
    for cache_bytes, copies in (
        (1 << 20, 40 * 33 * 4),
        (40 * 33 * 4 - 1, 1.25 * (40 * 33 * 4 - 1)),
    ):
        book = ledger(cache_bytes=cache_bytes)
        (key,) = book.kernels
        assert book.nbytes(key) == read + 40 * 33 * 4 + int(copies)
