"""SIGTERM is Ctrl-C: the best plan is written, else nothing is left; then the exit code is 143."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import LONG, Lumc
from lumc.disk import artifact

STOPPED = int(os.environ.get("LUMC_STOPS", "24"))  # of the deep test
SEARCH = ("--cache", "cache", "--budget", "600s", "--target-fraction", "1")


def start(*args: object, **env: str) -> "subprocess.Popen[str]":
    """A command in a group of its own, with a folder of its own for what is temporary."""
    Path("tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "lumc", *map(str, args)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(Path("tmp").resolve()), **env},
    )


def wait_for(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not ready() and time.monotonic() < until:
        time.sleep(0.05)


def litter() -> list[str]:
    """What a command left among temporary files, or beside its output."""
    here = [p.name for p in Path().iterdir() if p.name.startswith(".")]
    return here + [p.name for p in Path("tmp").iterdir() if not p.name.endswith(".lock")]


def measured() -> bool:
    """Whether a trial is on record."""
    path = Path("cache/records.jsonl")
    return path.exists() and '"kind":"trial"' in path.read_text()


def test_sigterm_writes_the_best_plan(lumc: Lumc) -> None:
    """Sent twice, to the process and to its group, as ``timeout`` does."""
    Path("m.lg").write_text(LONG)
    lumc("search", "m.lg", "-o", "m.ls")
    process = start("profile", "m.ls", "-o", "m.lp", *SEARCH)
    wait_for(measured)
    os.kill(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    plan = json.loads(lumc("show", "m.lp", "--json"))
    assert any(k["time_us"] for k in plan["kernels"]) and "stopping" in said
    assert litter() == []
    trials = [json.loads(n) for n in Path("cache/records.jsonl").read_text().splitlines()]
    assert not any(n.get("reason") == "crash" for n in trials), "the worker did not hear of it"


def test_sigterm_elsewhere_leaves_nothing(lumc: Lumc) -> None:
    """While a compiler runs, which ends too: it would take a minute."""
    Path("m.lg").write_text(LONG)
    slow = Path("slow.sh")
    slow.write_text(
        '#!/bin/sh\ncase "$*" in *--version*|*-dump*|*-dM*) exec gcc "$@";; esac\n'
        f"touch {Path('started').resolve()}\nsleep 60\n"
    )
    slow.chmod(0o755)
    command = ("compile", "--estimate", "m.lg", "-o", "m.lb", "--cc", slow.resolve())
    process = start(*command, LUMC_OBJECTS="")
    wait_for(Path("started").exists)
    before = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and "terminated" in said, said
    assert time.monotonic() - before < 10
    assert not Path("m.lb").exists() and litter() == []


COMPILING = """
import signal, time
from lumc.link import toolchain
from lumc.process import Terminated, terminate
signal.signal(signal.SIGTERM, terminate)
{make}
try: toolchain.side_by_side(make, {wanted})
except Terminated: raise SystemExit(143)
"""
# the stop arrives between the decision to compile a file and its compiler
STARTING = """
def make(name):
    if name == 'first': return toolchain.output_of(['sh', '-c', 'kill $PPID; sleep 30'])
    time.sleep(0.5)
    return toolchain.output_of(['sleep', '30'])
"""
# it comes just before the main thread sleeps; here another thread takes it
ASLEEP = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
def make(name):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return toolchain.output_of(['sh', '-c', 'sleep 0.5; kill $PPID; sleep 30'])
"""


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        pytest.param(STARTING, ["first", "second", "third", "fourth"], id="about to start"),
        pytest.param(ASLEEP, ["first"], id="does not wake"),
    ],
)
def test_compilers_end_when_the_command_is_stopped(make: str, wanted: list[str]) -> None:
    code = COMPILING.format(make=make, wanted=wanted)
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 143 and time.monotonic() - before < 20


def test_sigterm_in_a_text_that_is_executed() -> None:
    """As in dataclasses: Python ends by SIGINT after a KeyboardInterrupt there, whoever took it."""
    code = (
        "from lumc.process import Terminated, terminate\n"
        "try: exec('terminate()', {'terminate': terminate})\n"
        "except Terminated: raise SystemExit(143)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 143


def test_a_worker_whose_program_has_ended_says_nothing() -> None:
    """Stopped between the start of the worker and the first question."""
    theirs, mine = os.pipe()
    os.close(mine)
    code = f"from lumc.process import serve_at; serve_at({theirs})"
    how = {"capture_output": True, "pass_fds": [theirs], "timeout": 60}
    done = subprocess.run([sys.executable, "-c", code], **how)  # type: ignore[call-overload]
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stop_in_a_finalizer_comes_again(name: str) -> None:
    """Python drops what is raised there, and would go on."""
    code = (
        "import os, signal, sys, time\n"
        "from lumc.process import Terminated, hear_again, terminate\n"
        "class Last:\n"
        f"    def __del__(self): os.kill(os.getpid(), signal.{name}); time.sleep(0.1)\n"
        "signal.signal(signal.SIGTERM, terminate)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what & of a shell ignores
        "sys.unraisablehook = hear_again\n"
        "try: Last(); time.sleep(20)\n"
        "except (Terminated, KeyboardInterrupt) as e: raise SystemExit(type(e).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == {"SIGTERM": "Terminated", "SIGINT": "KeyboardInterrupt"}[name]


@pytest.mark.deep
def test_sigterm_at_any_moment(lumc: Lumc) -> None:
    """Profile and compile in turn: the right exit code, nothing torn, nothing left behind."""
    Path("m.lg").write_text(LONG)
    lumc("search", "m.lg", "-o", "m.ls")
    draw = random.Random(int(os.environ.get("LUMC_SEED", "5")))
    ends = dict[str, int]()
    left = list[str]()
    commands = {
        "m.lp": ("profile", "m.ls", "-o", "m.lp", *SEARCH),
        "m.lb": ("compile", "m.lg", "-o", "m.lb", *SEARCH),
        "e.lb": ("compile", "--estimate", "m.lg", "-o", "e.lb"),
    }
    for turn in range(STOPPED):
        out = Path(list(commands)[turn % len(commands)])
        before = out.stat().st_mtime_ns if out.exists() else 0
        process = start(*commands[out.name], LUMC_OBJECTS="")
        time.sleep(draw.uniform(0.2, 2.5 if out.name == "e.lb" else 4.0))
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        new = out.exists() and out.stat().st_mtime_ns != before
        end = f"{process.returncode} {'written' if new else 'nothing'}"
        ends[end] = ends.get(end, 0) + 1
        assert end in ("143 written", "143 nothing", "-15 nothing", "0 written"), said
        assert "Traceback" not in said and "internal error" not in said, said
        check(lumc, out)
        left += litter()
    print(ends, left)
    lumc("compile", "--estimate", "m.lg", "-o", "e.lb")
    assert json.loads(lumc("verify", "e.lb", "--json"))[0]["ok"]
    assert litter() == left == [] or len(left) <= STOPPED // 50, left


def check(lumc: Lumc, out: Path) -> None:
    """What is there is whole."""
    if out.suffix == ".lp" and out.exists():
        artifact.parse(out.read_text(), "plan", "", Path())
    elif out.exists():
        assert json.loads(lumc("verify", out, "--json"))[0]["ok"]
    if Path("cache/records.jsonl").exists():
        lines = Path("cache/records.jsonl").read_text().splitlines()
        assert all(json.loads(line) for line in lines)
