"""`lumc profile` and `compile` by measuring: budgets, records, killing, Ctrl-C."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import LONG, MATMUL, Lumc
from lumc.artifacts import files
from lumc.command.plan import why_untimed
from lumc.profile.ledger import Ledger, Options
from lumc.profile.records import Choice, Records, Setting

QUICK = ("--cache", "cache", "--trials", "4", "--target-fraction", "1")
KILLS, TRIALS = (50, 90) if os.environ.get("LUMC_FUZZ") else (3, 30)
STOPS = {"interrupted", "not measured", "converged", "exhausted", "bound"}


@pytest.fixture
def space(lumc: Lumc) -> Lumc:
    Path("m.lg").write_text(MATMUL)
    lumc("search", "m.lg", "-o", "m.ls")
    return lumc


def records() -> list[dict[str, object]]:
    """Every line but a torn last one."""
    path = Path("cache/records.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    whole = lines if not lines or lines[-1].endswith("}") else lines[:-1]
    return [json.loads(line) for line in whole if line]


def trials() -> list[str]:
    return [json.dumps([n["kernel"], n["schedule"]]) for n in records() if n["kind"] == "trial"]


def test_profile_measures_and_its_records_are_enough(space: Lumc) -> None:
    space("profile", "m.ls", "-o", "m.lp", *QUICK)
    plan = json.loads(space("show", "m.lp", "--json"))
    assert all(k["time_us"] > 0 and k["stop"] for k in plan["kernels"])
    said = space("show", "m.lp")
    assert "of the roofline" in said and "stop: " in said
    count = len(trials())
    assert count >= 4
    space("profile", "m.ls", "-o", "again.lp", *QUICK)
    space("profile", "m.ls", "-o", "frozen.lp", "--cache", "cache", "--frozen")
    assert Path("m.lp").read_bytes() == Path("again.lp").read_bytes()
    assert Path("m.lp").read_bytes() == Path("frozen.lp").read_bytes()
    assert len(trials()) == count
    space("compile", "m.lg", "-o", "m.lb", "--frozen", "--cache", "cache")
    assert json.loads(space("verify", "m.lb", "--json"))[0]["ok"]


def test_a_budget_in_which_nothing_is_measured_makes_no_plan(space: Lumc) -> None:
    none = ("--cache", "cache", "--budget", "0")
    assert "E0418 nothing was measured in 0" in space.fails(
        6, "profile", "m.ls", "-o", "m.lp", *none
    )
    assert "E0418" in space.fails(6, "compile", "m.lg", "-o", "m.lb", *none)
    assert not Path("m.lp").exists() and not Path("m.lb").exists()
    done = space.raw("profile", "m.ls", "-o", "m.lp", *none, "--allow-estimate")
    assert done.exit_code == 0
    assert done.stderr == "profile: nothing was measured in 0: the plan is an estimate\n"
    said = space("explain", "m.lp", "--cache", "cache")
    assert "origin     estimated: the search ended before its first trial" in said

    space("profile", "m.ls", "-o", "m.lp", *QUICK)
    known = space.raw("profile", "m.ls", "-o", "n.lp", *QUICK)
    assert known.stderr == "profile: all 1 kernels were searched before: nothing is measured\n"
    assert Path("m.lp").read_bytes() == Path("n.lp").read_bytes()
    late = space.raw("profile", "m.ls", "-o", "l.lp", *none, "--trials", "9")
    assert late.exit_code == 0 and "the plan is that of earlier searches" in late.stderr
    more = space.raw("profile", "m.ls", "-o", "l.lp", *QUICK[:2], "--trials", "9")
    assert more.exit_code == 0 and len(trials()) >= 9, "nothing is sealed by it"


def test_a_search_of_one_trial_is_told(space: Lumc) -> None:
    """Newcomer's 16: neither explain nor report found the records of it."""
    space("profile", "m.ls", "-o", "m.lp", "--cache", "cache", "--trials", "1")
    said = space("explain", "m.lp", "--cache", "cache")
    assert re.search(r"origin     measured: the fastest of 1 trial in [0-9.]+ s\n", said)
    assert "note: " not in said
    space("report", "m.lp", "--cache", "cache", "-o", "r.html")
    page = Path("r.html").read_text()
    assert "There are no" not in page and ">1 trial<" in page
    assert "measured: the fastest of 1 trial" in page
    space("explain", "m.lp", "--cache", "cache", "--best", "best.jsonl")
    space("cache", "merge", "best.jsonl", "--cache", "other")
    said = space("explain", "m.lp", "--cache", "other")
    assert "origin     from records: the fastest of 1 trial in " in said
    Path("no").mkdir()
    said = space("explain", "m.lp", "--cache", "no")
    assert (
        "note: no records of this plan" in said
        and "origin     from records; none of its trials" in said
    )


def test_frozen_without_records_fails(space: Lumc) -> None:
    assert "--frozen" in space.fails(6, "profile", "m.ls", "-o", "m.lp", "--frozen", *QUICK)
    assert not Path("m.lp").exists() and not Path("cache").exists()
    space("profile", "m.ls", "-o", "m.lp", *QUICK)
    space.fails(
        6, "profile", "m.ls", "-o", "n.lp", "--frozen", "--cache", "cache", "--threads", "2"
    )


def test_records_live_with_the_project_or_the_user(
    space: Lumc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LUMC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(space.folder / "home"))
    space("profile", "m.ls", "-o", "m.lp", "--trials", "1")
    assert Path("home/lumc/records.jsonl").exists()
    Path("kernels_cache").mkdir()
    space("profile", "m.ls", "-o", "m.lp", "--trials", "1")
    assert Path("kernels_cache/records.jsonl").exists()
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    space("profile", "../m.ls", "-o", "m.lp", "--frozen")
    assert space("cache", "list").endswith("1 kernels in ../kernels_cache\n")


def test_records_of_a_gpu_make_a_plan_without_one(lumc: Lumc) -> None:
    Path("m.lg").write_text(MATMUL)
    lumc("search", "m.lg", "--target", "cuda:sm_90", "-o", "m.ls")
    space, _ = files.space_from_text(Path("m.ls").read_text(), Path(), "m.ls")
    records = Records(Path("cache"), Setting("a100", "nvcc", 1), {"gpu": "A GPU"})
    book = Ledger(space, Options(), records)
    for key, plan in book.kernels.items():
        book.choose(key, Choice(plan.schedule, 5.0, "bound", 1, 0.0, 0))
    records.close()
    call = ("profile", "m.ls", "-o", "m.lp", "--cache", "cache")
    if why_untimed(space.target, None):
        assert "--device-records ID" in lumc.fails(7, *call, "--frozen")
    done = lumc.raw(*call, "--device-records", "a1")
    assert (done.exit_code, done.stderr) == (0, "profile: times of another machine, A GPU\n")
    assert "note: timed on another machine than this one: A GPU (device a100)" in lumc(
        "explain", "m.lp", "--cache", "cache"
    )


@pytest.mark.parametrize("budget", ["soon", "10x", "", "1m1", "-3", "nan"])
def test_a_budget_is_a_time(space: Lumc, budget: str) -> None:
    assert "--budget" in space.fails(2, "profile", "m.ls", "-o", "m.lp", "--budget", budget)


def test_two_threads_have_plans_of_their_own(space: Lumc) -> None:
    space("profile", "m.ls", "-o", "m.lp", *QUICK, "--threads", "2")
    assert {n["threads"] for n in records()} == {2}
    space("codegen", "m.lp", "-o", "m.lk")
    space("link", "m.lk", "-o", "m.lb")
    assert json.loads(space("verify", "m.lb", "--json", "--threads", "2"))[0]["ok"]


def start(*args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lumc", "profile", "m.ls", "-o", "m.lp", *args]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_killed_searches_go_on_where_they_were(space: Lumc) -> None:
    """kill -9 at random moments: nothing torn, no trial is made twice, none on record is lost."""
    many = ("--cache", "cache", "--trials", str(TRIALS), "--budget", "600s")
    many += ("--target-fraction", "1")
    if KILLS > 3:
        Path("m.lg").write_text(LONG)
        space("search", "m.lg", "-o", "m.ls")
    draw, before = random.Random(7), list[str]()
    for _ in range(KILLS):
        process = start(*many)
        try:
            process.wait(draw.uniform(0.8, 3.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        after = trials() if Path("cache/records.jsonl").exists() else []
        assert after[: len(before)] == before
        before = after
    space("profile", "m.ls", "-o", "m.lp", *many)
    assert len(trials()) == len(set(trials())) >= TRIALS
    space("profile", "m.ls", "-o", "frozen.lp", "--cache", "cache", "--frozen")
    assert Path("m.lp").read_bytes() == Path("frozen.lp").read_bytes()


def test_ctrl_c_writes_the_best_plan_so_far(lumc: Lumc) -> None:
    Path("m.lg").write_text(LONG)
    lumc("search", "m.lg", "-o", "m.ls")
    process = start("--cache", "cache", "--budget", "600s", "--target-fraction", "1")
    until = time.monotonic() + 60
    while not (Path("cache").exists() and trials()) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "stopping" in said
    plan = json.loads(lumc("show", "m.lp", "--json"))
    assert {k["stop"] for k in plan["kernels"]} <= STOPS
    assert any(k["time_us"] for k in plan["kernels"])


def test_a_second_ctrl_c_aborts(space: Lumc) -> None:
    process = start("--cache", "cache", "--budget", "120s", "--target-fraction", "1")
    until = time.monotonic() + 60
    while not Path("cache/records.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.1)
    for _ in range(40):
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (0, 130, -signal.SIGINT), said
    assert process.returncode == 0 or not Path("m.lp").exists()


def test_cache_commands(space: Lumc) -> None:
    space("profile", "m.ls", "-o", "m.lp", *QUICK)
    rows = json.loads(space("cache", "list", "--cache", "cache", "--json"))
    assert rows and all(r["us"] > 0 and r["stop"] and r["trials"] >= 1 for r in rows)
    assert rows[0]["kernel"] in space("cache", "list", "--cache", "cache")
    space("cache", "verify", "--cache", "cache")
    space("cache", "export", "--cache", "cache", "-o", "all.jsonl")
    space("cache", "merge", "all.jsonl", "cache", "--cache", "other")
    space("profile", "m.ls", "-o", "n.lp", "--cache", "other", "--frozen")
    assert Path("m.lp").read_bytes() == Path("n.lp").read_bytes()
    with Path("other/records.jsonl").open("a") as f:
        f.write('torn\n{"v": 1, "kind')
    assert "1 of" in space.fails(5, "cache", "verify", "--cache", "other")
    space("cache", "prune", "--cache", "other")
    space("cache", "verify", "--cache", "other")
    space("profile", "m.ls", "-o", "n.lp", "--cache", "other", "--frozen")
    assert Path("m.lp").read_bytes() == Path("n.lp").read_bytes()
    space.fails(2, "cache", "merge", "missing", "--cache", "other")
    assert "0 kernels" in space("cache", "list", "--cache", "none")
    assert "0 lines before, 0 now" in space("cache", "prune", "--cache", "none")
    space("cache", "verify", "--cache", "none")
