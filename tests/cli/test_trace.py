"""`--trace`: the trace event format, of compiling, profiling and running; and search progress."""

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import MATMUL, Lumc
from lumc.doing import doing
from lumc.profile.session import Progress
from lumc.report import log as log_module
from lumc.report import progress
from lumc.report.log import Log
from lumc.report.trace import Trace
from lumc.voice import VOICE, Voice

QUICK = ("--cache", "cache", "--trials", "3", "--target-fraction", "1")
EVERY = {"name": str, "pid": int, "tid": int, "args": dict}
FIELDS = {
    "X": {**EVERY, "cat": str, "ts": float | int, "dur": float | int},
    "C": {**EVERY, "ts": float | int},
    "M": EVERY,
}


def events(file: str) -> list[dict[str, Any]]:
    """The events of a file, checked against the format."""
    body = json.loads(Path(file).read_text())
    assert set(body) == {"traceEvents", "displayTimeUnit"}
    assert body["displayTimeUnit"] in ("ms", "ns")
    for event in body["traceEvents"]:
        fields = FIELDS[event["ph"]]
        assert set(event) == {"ph", *fields}
        assert all(isinstance(event[name], kind) for name, kind in fields.items()), event
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(v, int | float) for v in event["args"].values())
    named = {e["tid"] for e in body["traceEvents"] if e["name"] == "thread_name"}
    assert {e["tid"] for e in body["traceEvents"] if e["ph"] == "X"} <= named
    return list(body["traceEvents"])


def within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    end = outer["ts"] + outer["dur"] + 0.01
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= end)


def spans(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [e for e in found if e["ph"] == "X" and e["cat"] == kind]


def test_compile_profile_and_run_leave_a_trace(lumc: Lumc) -> None:
    Path("m.lg").write_text(MATMUL)
    lumc("compile", "m.lg", "-o", "m.lb", *QUICK, "--trace", "c.json", "--save-temps", ".")
    found = events("c.json")
    passes = {e["name"]: e for e in spans(found, "pass")}
    assert list(passes) == ["read", "search", "profile", "codegen", "link"]
    trials, batches = spans(found, "trial"), spans(found, "compile")
    assert len(trials) >= 3 and batches
    assert all(within(e, passes["profile"]) for e in (*trials, *batches))
    records = [json.loads(n) for n in Path("cache/records.jsonl").read_text().splitlines()]
    times = {n["us"] for n in records if n["kind"] == "trial" and "us" in n}
    assert {e["args"]["us"] for e in trials if "us" in e["args"]} >= times
    assert [e for e in found if e["ph"] == "C" and e["name"] == "best plan, us"]

    lumc("profile", "m.ls", "-o", "again.lp", *QUICK, "--trace", "p.json")
    assert Path("again.lp").read_bytes() == Path("m.lp").read_bytes()
    assert not spans(events("p.json"), "trial")  # all of them are on record

    np.savez("in.npz", x=np.ones((16, 48), "f4"), w=np.ones((48, 32), "f4"))
    lumc("run", "m.lb", "--input", "in.npz", "-o", "y.npy", "--threads", "2", "--trace", "r.json")
    assert np.array_equal(np.load("y.npy"), np.full((16, 32), 48, "f4"))
    launches = spans(events("r.json"), "launch")
    assert launches and launches[0]["ts"] >= 0
    assert {e["args"]["launch"] for e in launches} == {0}


def test_a_failed_command_leaves_its_trace(lumc: Lumc) -> None:
    Path("m.lg").write_text(MATMUL)
    lumc.fails(
        6, "compile", "m.lg", "-o", "m.lb", "--cache", "none", "--frozen", "--trace", "t.json"
    )
    assert [e["name"] for e in spans(events("t.json"), "pass")] == ["read", "search", "profile"]


# ---- progress

STEPS = [
    Progress(seconds=1.0, kernels=3, open=2, trials=16, us=250.0, noise=0.02),
    Progress(seconds=4.0, kernels=3, open=1, trials=40, us=125.5, noise=0.03),
    Progress(seconds=20.0, kernels=3, open=0, trials=50, us=1250.0, noise=0.01),
]


def clock(*times: float) -> Iterator[float]:
    yield from times


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The step says the figures of the last batch when it is asked; the last word comes once."""
    log, times = Log(), clock(1.0, 4.0, 9.0, 20.0)
    with progress.progress(log, 60.0, io.StringIO(), lambda: next(times)) as say:
        for step in STEPS[:2]:
            say(step)
        rest = "40 trials (4.4/s), 3 kernels, 1 open, best 125.5 us, noise 3.0%"
        assert log.says(77.0) == f"9 of 60 s, {rest}"
        say(STEPS[2])
    assert capsys.readouterr().err.splitlines() == [
        "profile: 20 of 60 s, 50 trials (2.5/s), 3 kernels, 0 open, best 1.25 ms, noise 1.0%",
    ]


def test_a_step_that_takes_long_says_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "EVERY_S", 0.05)
    said = list[str]()
    token = VOICE.set(Voice(lambda _, line: said.append(line), bars=True))
    try:
        log = Log()
        log.target = "cuda:sm_90"
        with log.step("search"):
            doing("soon done")
        said.clear()
        with log.step("link"):
            doing("compiling 3 files")
            wait_for(lambda: len(said) >= 3)
        doing("nobody hears it")
        count = len(said)
        time.sleep(0.2)
        assert len(said) == count
        assert all(re.fullmatch(r"link cuda:sm_90: \d s, compiling 3 files", s) for s in said[1:])
        said.clear()
        with log.step("profile"), progress.progress(log, 8.0, io.StringIO()) as say:
            say(STEPS[0])
            wait_for(lambda: said)
        assert said[-1].startswith("profile cuda:sm_90: ")
        assert re.search(r"\d of 8 s, 16 trials", said[-1])
        said.clear()
        with log.step("profile"):
            with progress.progress(log, 8.0, Terminal()) as say:
                say(STEPS[0])
                time.sleep(0.2)
            time.sleep(0.2)  # the step goes on, and its figures were said
        assert sum("trials" in line for line in said) <= 1, "the bar shows it"
    finally:
        VOICE.reset(token)


def wait_for(come: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not come() and time.monotonic() < end:
        time.sleep(0.01)
    assert come()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A live bar with the same figures; counters in the trace; the last word stays."""
    terminal, trace = Terminal(), Trace("lumc profile")
    with progress.progress(Log(0, trace), 60.0, terminal) as say:
        for step in STEPS:
            say(step)
    assert "profile" in terminal.getvalue()
    assert capsys.readouterr().err.startswith("profile: 20 of 60 s, 50 trials")
    curve = [e["args"] for e in trace.events if e["name"] == "best plan, us"]
    assert curve == [{"best plan, us": s.us} for s in STEPS]
