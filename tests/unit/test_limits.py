"""What a pass may take: time of the processor, and memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from commands import Lumc
from lumc.errors import LumcError
from lumc.limits import LIMITS, LOOK_S, Limits, limited
from lumc.process import resident


@pytest.fixture
def limits() -> Iterator[None]:
    token = LIMITS.set(Limits())
    yield
    LIMITS.reset(token)


def stubborn() -> None:
    """Whatever comes is a failed candidate to it."""
    end = time.process_time() + 20
    while time.process_time() < end:
        with suppress(Exception):
            sum(range(1000))


def test_time_of_the_processor(limits: None) -> None:
    LIMITS.set(Limits(seconds=0.2))
    start = time.process_time()
    with (
        pytest.raises(LumcError, match=r"search takes more than 0\.3 s") as e,
        limited("search", 0.1),
    ):
        stubborn()
    assert e.value.code == "E0206" and 0.2 < time.process_time() - start < 3


def test_waiting_costs_nothing(limits: None) -> None:
    LIMITS.set(Limits(seconds=0.2))
    with limited("profile"):
        time.sleep(0.5)


def test_memory(limits: None) -> None:
    LIMITS.set(Limits(nbytes=1 << 20))
    with (
        pytest.raises(LumcError, match=r"codegen needs more than 0\.000977 GB"),
        limited("codegen"),
    ):
        stubborn()
    with pytest.raises(LumcError, match="codegen needs more memory"), limited("codegen"):
        raise MemoryError


def test_memory_that_was_held_before_is_not_counted(limits: None) -> None:
    """Nor that of the program before this one, of which its peak tells."""
    held = bytearray(256 << 20)
    held[:: 1 << 12] = bytes(len(range(0, len(held), 1 << 12)))  # every page
    del held
    LIMITS.set(Limits(nbytes=resident() + (128 << 20)))
    with limited("search", 10.0):
        end = time.process_time() + 3 * LOOK_S
        while time.process_time() < end:
            pass


def test_all_is_as_it_was(limits: None) -> None:
    before = signal.getsignal(signal.SIGPROF)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), limited("link"):
            raise error
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    assert signal.getsignal(signal.SIGPROF) == before


def test_the_command_line(limits: None, lumc: Lumc) -> None:
    lines = [f"t{i} f32[i:8] = add x[i], {i}.5\noutput y{i} = t{i}" for i in range(800)]
    text = "lumc graph 1\ninput x f32[8]\n" + "\n".join(lines) + "\n"
    (lumc.folder / "m.lg").write_text(text)
    said = lumc.fails(1, "--max-seconds", "0.1", "search", "m.lg", "-o", "m.ls")
    assert said.startswith("E0206 ") and "--max-seconds" in said
    assert not (lumc.folder / "m.ls").exists()


LATE = """
import os, signal
from lumc.limits import limited
with limited("it"):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])  # as threads that do not run are
    os.kill(os.getpid(), signal.SIGPROF)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
"""


def test_a_look_that_comes_late_does_not_end_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", LATE]).returncode == 0
