"""The file of records: what is written comes back, whatever else lies in it is skipped."""

from __future__ import annotations

import json
import os
import resource
import stat
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import native
from lumc.kernel.target import Speeds
from lumc.profile.records import (
    NAME,
    Asked,
    Choice,
    Records,
    Setting,
    Trial,
    compact,
    read_lines,
)
from lumc.schedule.moves import structures
from lumc.schedule.space import Grammar
from measuring import SETTING, kernel_of, product

SCHEDULES = structures(Grammar(kernel_of(product).kernel, native()))
TRIALS = [
    Trial(SCHEDULES[0], 12.5, 20, 0.01),
    Trial(SCHEDULES[1], 9.25, 18, 0.02),
    Trial(SCHEDULES[2], reason="crash", remark="exit code -11"),
]
CHOICE = Choice(SCHEDULES[1], 9.0, "converged", 3, 60.0, 0, 7.0, "these")


def write(folder: Path, setting: Setting = SETTING) -> Records:
    records = Records(folder, setting)
    records.set_speeds(Speeds(118.5, 190.0, 14.0))
    for trial in TRIALS:
        records.add("k", True, trial)
    records.choose("k", True, CHOICE)
    records.close()
    return records


def test_everything_comes_back(tmp_path: Path) -> None:
    before = write(tmp_path)
    after = Records(tmp_path, SETTING)
    assert list(after.trials["k", True].values()) == TRIALS
    assert after.trials == before.trials and after.choices == {("k", True): CHOICE}
    assert after.speeds == Speeds(118.5, 190.0, 14.0)


def test_the_least_time_of_a_schedule_counts(tmp_path: Path) -> None:
    write(tmp_path).add("k", True, replace(TRIALS[0], us=11.0))
    records = Records(tmp_path, SETTING)
    records.add("k", True, replace(TRIALS[0], us=13.0))
    assert next(iter(records.trials["k", True].values())).us == 11.0


def test_times_count_in_the_fastest_moment_of_the_yardstick(tmp_path: Path) -> None:
    """The first schedule with a time is the yardstick, now and when the file is read again."""
    records = Records(tmp_path, SETTING)
    records.add("k", False, Trial(SCHEDULES[0], reason="crash"))
    records.add("k", False, Trial(SCHEDULES[1], 10.0))
    slow = Trial(SCHEDULES[2], 16.0, beside=20.0)  # while everything took twice as long
    records.add("k", False, slow)
    assert [t.us for t in records.trials["k", False].values()] == [None, 10.0, 8.0]
    fast = Trial(SCHEDULES[3], 4.0, beside=5.0)  # twice as fast as ever before
    records.add("k", False, fast)
    times = [None, 5.0, 4.0, 4.0]
    assert [t.us for t in records.trials["k", False].values()] == times
    assert records.trials == Records(tmp_path, SETTING).trials
    raw = [line.get("us") for line in read_lines(tmp_path / NAME)]
    assert raw == [None, 10.0, 16.0, 4.0], "the file says what was measured"


def test_what_is_no_schedule_any_more_is_forgotten(tmp_path: Path) -> None:
    records = write(tmp_path)
    records.forget("k", lambda s: s != SCHEDULES[0])
    assert list(records.trials["k", True].values()) == TRIALS[1:] and records.choices
    records.forget("other", lambda _: False)
    records.forget("k", lambda s: s != SCHEDULES[1])
    assert list(records.trials["k", True].values()) == TRIALS[2:] and not records.choices


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / NAME
    whole = path.read_bytes()
    for cut in range(2, 200, 7):
        path.write_bytes(whole[:-cut])
        records = Records(tmp_path, SETTING)
        assert len(records.trials["k", True]) == 3 and not records.choices
        records.choose("k", True, CHOICE)  # on a line of its own
        records.close()
        assert Records(tmp_path, SETTING).choices == {("k", True): CHOICE}


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'{"v": 2, "kind": "trial"}\n',
        b'{"v": 2, "kind": "trial"}\n',
        b'{"v": 2, "kind": "trial", "kernel": "k", "device": [], "tools": 1, "threads": 1}\n',
        b'{"v": 2, "kind": "peak", "device": "here", "tools": "gcc", "threads": 1, "gflops": [], '
        b'"cached": 1}\n',
        json.dumps(
            {"kind": "peak", "v": 2, **SETTING.fields(), "gflops": 9, "cached": 0, "memory": 1}
        ).encode()
        + b"\n",
        b"nan\n" + b"[" * 10_000 + b"\n",
    ],
)
def test_foreign_lines_are_skipped(tmp_path: Path, line: bytes) -> None:
    write(tmp_path)
    with (tmp_path / NAME).open("ab") as f:
        f.write(line)
    after = Records(tmp_path, SETTING)
    assert len(after.trials["k", True]) == 3
    assert after.speeds is None or min(after.speeds) > 0


def test_bad_times_are_not_times(tmp_path: Path) -> None:
    write(tmp_path)
    good = next(n for n in read_lines(tmp_path / NAME) if n["kind"] == "trial")
    for us in (-1.0, float("nan"), "12", True, [1]):
        (tmp_path / NAME).write_text(json.dumps({**good, "us": us}) + "\n")
        assert not Records(tmp_path, SETTING).trials
        for kind in ("trial", "choice", "turn"):
            line = {**good, "kind": kind}
            assert compact([line, {**line, "us": us}]) == [line]


def test_other_settings_only_give_hints(tmp_path: Path) -> None:
    for other in (replace(SETTING, device="there"), replace(SETTING, threads=2)):
        write(tmp_path, other)
    records = Records(tmp_path, SETTING)
    assert not records.trials and not records.choices and records.speeds is None
    assert records.hints("k") == [SCHEDULES[1], SCHEDULES[0]]
    assert records.hints("other") == []


def test_compact_keeps_the_fastest_and_the_last(tmp_path: Path) -> None:
    write(tmp_path)
    records = write(tmp_path)
    records.add("k", True, replace(TRIALS[0], us=3.0))
    lines = compact(read_lines(tmp_path / NAME))
    kinds = [n["kind"] for n in lines]
    assert kinds.count("trial") == 3 and kinds.count("choice") == kinds.count("peak") == 1
    assert min(n["us"] for n in lines if n.get("us")) == 3.0


def test_what_kernels_took_in_turn(tmp_path: Path) -> None:
    records = write(tmp_path)
    for us in (5.0, 7.5):
        records.set_turn("k", True, us)
    records.set_turn("other", False, 2.0)
    records.close()
    lines = compact(read_lines(tmp_path / NAME))
    assert [n["us"] for n in lines if n["kind"] == "turn"] == [7.5, 2.0]
    with (tmp_path / NAME).open("a") as f:
        known = {"v": 2, "kind": "turn", "kernel": "k", "cold": True, **SETTING.fields()}
        f.write(json.dumps(known) + "\n" + json.dumps({**known, "us": -1.0}) + "\n")
    wanted = {("k", True): 7.5, ("other", False): 2.0}
    assert Records(tmp_path, SETTING).turns == wanted


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = Records(None, SETTING)
    records.add("k", False, TRIALS[0])
    assert records.trials and not list(tmp_path.iterdir())


def test_what_an_earlier_search_covers() -> None:
    """The same kernels with no more time; or this one, if it had its share."""

    def covers(choice: Choice, budget_s: float, limit: int = 0, among: str = "these") -> bool:
        return choice.covers(Asked(budget_s, limit, among, share_s=budget_s / 4))

    assert covers(CHOICE, 60.0) and covers(CHOICE, 10.0) and covers(CHOICE, 60.0, 5)
    assert not covers(CHOICE, 61.0)
    assert not covers(CHOICE, 60.0, among="others") and covers(CHOICE, 28.0, among="others")
    assert not covers(replace(CHOICE, among=""), 60.0), "of a record that does not say"
    few = replace(CHOICE, stop="trials", limit=10)
    assert covers(few, 60.0, 10) and not covers(few, 60.0, 11) and not covers(few, 60.0, 0)
    assert covers(few, 600.0, 10, "others"), "time would add nothing"
    assert not covers(replace(CHOICE, stop="interrupted"), 1.0, 1)
    assert covers(replace(CHOICE, stop="bound"), 600.0)


def test_records_that_do_not_say_what_was_spent_end_no_search(tmp_path: Path) -> None:
    """They are still good enough for --frozen."""
    write(tmp_path)
    lines = [*read_lines(tmp_path / NAME)]
    for line in lines:
        line.pop("spent_s", None)
        line.pop("among", None)
    (tmp_path / NAME).write_text("".join(json.dumps(n) + "\n" for n in lines))
    (choice,) = Records(tmp_path, SETTING).choices.values()
    assert choice == replace(CHOICE, spent_s=0.0, among="")
    assert not choice.covers(Asked(1.0, 0, "these", 1.0))


@pytest.mark.parametrize("size", [0, 200, 900])
def test_a_full_disk_costs_records_only(tmp_path: Path, size: int) -> None:
    """A file that may not grow is what a full disk is; a part of a line is taken without a word."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.warns(UserWarning, match="cannot write .*records.jsonl.*forgotten") as said:
            records = write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(said) == 1, "said once"
    assert list(records.trials["k", True].values()) == TRIALS
    known = list(Records(tmp_path, SETTING).trials.get(("k", True), {}).values())
    assert known == TRIALS[: len(known)], "whole lines are read, a torn one is not"
    write(tmp_path)
    assert list(Records(tmp_path, SETTING).trials["k", True].values()) == TRIALS


@pytest.mark.parametrize("spoilt", ["parent", "folder", "link", "pipe"])
def test_a_folder_of_no_use_costs_records_only(tmp_path: Path, spoilt: str) -> None:
    folder, victim = tmp_path / "records", tmp_path / "victim"
    victim.write_text("mine")
    if spoilt == "parent":
        folder.write_text("no folder")
    else:
        folder.mkdir()
        make = {"folder": Path.mkdir, "link": lambda p: p.symlink_to(victim), "pipe": os.mkfifo}
        make[spoilt](folder / NAME)
    with pytest.warns(UserWarning, match="cannot write"):
        assert list(write(folder).trials["k", True].values()) == TRIALS
    assert victim.read_text() == "mine"


def test_records_of_the_user_are_only_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a project keeps is as open as the project: records are data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for folder, open_ in ((tmp_path / "lumc", True), (tmp_path / "kernels_cache", False)):
        folder.mkdir()
        folder.chmod(0o777)
        with warnings.catch_warnings(record=True) as said:
            write(folder)
        assert (folder / NAME).exists() != open_ and len(said) == open_
    folder = tmp_path / "new" / "folder"
    write(folder)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent)] == [0o700] * 2
