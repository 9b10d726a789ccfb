"""What is said, and how: -q, --log-json, --dry-run, wrong calls, a reader that leaves, a crash."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import SQUARE, Lumc
from lumc.report import log

SEARCHED = "search: 1 regions, 1 unique"


def lumc_process(*args: str, **how: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lumc", *args]
    return subprocess.run(command, **{"capture_output": True, "text": True, **how})


@pytest.fixture
def folder(lumc: Lumc) -> Path:
    (lumc.folder / "m.lg").write_text(SQUARE)
    return lumc.folder


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    lumc, graph, space, plan = Lumc(folder), *(folder / f"m.{kind}" for kind in ("lg", "ls", "lp"))
    graph.write_text(SQUARE)
    assert lumc.raw("search", graph, "-o", space).stderr == f"{SEARCHED}\n"
    lumc("profile", "--estimate", space, "-o", plan)
    return plan


def test_quiet_leaves_what_went_wrong(lumc: Lumc, folder: Path, plan: Path) -> None:
    assert lumc.raw("search", "m.lg", "-o", "m.ls", "-q").stderr == ""
    call = ("codegen", plan, "-o", "m.lk", "-v")
    assert "codegen" in lumc.raw(*call).stderr
    assert lumc.raw("-q", *call).stderr == lumc.raw(*call, "-q").stderr == ""
    assert "codegen" in lumc.raw(*call).stderr  # the next command says it again
    said = lumc_process("-q", "search", "nosuch.lg").stderr
    assert said.splitlines() == [
        "E0201 cannot read nosuch.lg: No such file or directory",
        "  fix:   Look at its name and at the folder where the command runs.",
    ]


def test_a_log_of_json(lumc: Lumc, folder: Path, plan: Path) -> None:
    said = lumc.raw("--log-json", "search", "m.lg", "-v", "-o", "m.ls").stderr
    lines = [json.loads(x) for x in said.splitlines()]
    assert {"level": "info", "message": SEARCHED}.items() <= lines[2].items()
    assert [x["level"] for x in lines[:3]] == ["debug", "debug", "info"]
    call = ("codegen", plan, "-o", "m.lk", "-v", "--log-json")
    lines = [json.loads(x) for x in lumc.raw(*call).stderr.splitlines()]
    assert [x["level"] for x in lines] == ["debug", "debug"]
    assert lumc.raw("-q", *call).stderr == ""
    (line,) = lumc_process("search", "nosuch.lg", "--log-json").stderr.splitlines()
    error = json.loads(line)
    assert (error["level"], error["code"], error["exit"]) == ("error", "E0201", 2)
    (line,) = lumc_process("--log-json", "bench").stderr.splitlines()
    assert json.loads(line)["code"] == "E0211"


def test_warnings_are_kept_and_have_their_level(capsys: pytest.CaptureFixture[str]) -> None:
    from lumc.voice import voice

    for message in ("warning: it is hot", "it is fine"):
        voice(quiet=True, log_json=True).say(0, message)
    (line,) = capsys.readouterr().err.splitlines()
    assert {"level": "warning", "message": "it is hot"}.items() <= json.loads(line).items()


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(lumc: Lumc, folder: Path) -> None:
    call = ("compile", "m.lg", "-o", "m.lb", "--cache", "records")
    said = lumc(*call, "--dry-run", "--target", "cpu:x86-64-v2,metal")
    assert "m.lb: would be written" in said and "metal:apple7: 1 regions" in said
    assert "1 kernels: 0 searched before (records of records), 1 would be measured in 60s" in said
    assert "1 kernels: chosen by estimate (only CPUs and NVIDIA GPUs are timed)" in said
    body = json.loads(lumc(*call, "--dry-run", "--estimate", "--json"))
    assert body["targets"][0]["estimated"] == "--estimate" and not body["replaces"]
    assert [p.name for p in folder.iterdir()] == ["m.lg"]
    assert "E0203" in lumc.fails(2, *call, "--dry-run", "--budget", "soon")
    assert "--json tells of a --dry-run" in lumc.fails(2, *call, "--json")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("bench",), "E0211 lumc bench: missing argument 'BUNDLE'"),
        (("nosuch",), "E0211 lumc: no such command 'nosuch'"),
        (("search", "--seed", "1", "m.lg"), "E0211 lumc search: no such option '--seed'"),
        (("bench", "m.lb", "--seconds", "0"), "E0211 lumc bench: invalid value for '--seconds'"),
        (("show", "a", "b"), "E0211 lumc show: got unexpected extra argument"),
    ],
)
def test_wrong_calls_have_a_code_and_a_way_out(
    lumc: Lumc, args: tuple[str, ...], said: str
) -> None:
    done = lumc_process(*args)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 2 and lines[0].startswith(said), done.stderr
    assert lines[1].startswith("  fix:   lumc") and lines[1].endswith(" --help")


@pytest.mark.parametrize("call", [("search", "m.lg"), ("profile", "m.ls"), ("codegen", "m.lp")])
def test_no_artifact_of_json_fills_a_terminal(folder: Path, call: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        done = lumc_process(*call, capture_output=False, stdout=terminal, stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.startswith("E0203 the artifact is no text")


def test_a_reader_that_leaves_is_no_error(folder: Path) -> None:
    """Of a text that is larger than what a pipe holds, too."""
    rows = "".join(f"t{i} f32[m:16] = add x[m], {i}.0\n" for i in range(2500))
    Path("long.lg").write_text(SQUARE.replace("t f32", f"{rows}t f32"))
    show = f"{sys.executable} -m lumc show"
    for file in ("m.lg", "long.lg"):
        shell = ["bash", "-o", "pipefail", "-c", f"{show} {file} | head -1"]
        done = subprocess.run(shell, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "lumc graph 1\n", "")


def test_every_locale_gets_utf8(square: Path) -> None:
    call = [sys.executable, "-m", "lumc", "bench", square / "m.lb", "--seconds", "0.01"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(call, capture_output=True, env=env, check=True)
    assert done.stdout.decode().startswith("entry main · device cpu · ")


CRASH = """import sys
import lumc.report.show
def crash(*_): raise KeyError("it")
lumc.report.show.read = crash
from lumc.__main__ import main
sys.argv = ["lumc", "show", "a file.lg"]
main()
"""


def test_a_crash_report_is_a_script_that_runs_the_command_again(folder: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    how: dict[str, Any] = {"capture_output": True, "text": True, "env": env}
    done = subprocess.run([sys.executable, "-c", CRASH], **how)
    assert done.returncode == 1 and "internal error: KeyError: 'it'" in done.stderr
    (report,) = (folder / "cache" / "lumc" / "crashes").iterdir()
    assert f"report: {report}" in done.stderr and f"again:  sh {report}" in done.stderr
    assert "KeyError" in report.read_text() and sorted(p.name for p in folder.iterdir()) == [
        "cache",
        "m.lg",
    ]
    again = subprocess.run(["sh", report], cwd="/", **how)
    assert again.returncode == 2 and "E0201 cannot read a file.lg" in again.stderr


def test_only_the_newest_crash_reports_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "user_folder", lambda: folder / "cache")
    for i in range(12):
        said = str(log.crash_report(ValueError(i), ["lumc", "show", str(i)]))
        name = said.partition("report: ")[2].partition(" (")[0]
        os.utime(name, (i, i))
    kept = {p.read_text().split()[-1] for p in (folder / "cache" / "crashes").iterdir()}
    assert kept == {str(i) for i in range(12 - log.CRASHES, 12)}


def test_a_crash_where_nothing_can_be_written_is_told_whole(folder: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": "/dev/null"}
    code = CRASH.replace("main()", "import tempfile; tempfile.tempdir = '/dev/null'; main()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 1 and "Traceback" in done.stderr and "m lumc show" in done.stderr
