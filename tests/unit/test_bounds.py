"""What a pass may take: time of the processor, and memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from commands import Lumc
from lumc.bounds import BOUNDS, Bounds, bounded
from lumc.errors import LumcError


@pytest.fixture
def bounds() -> Iterator[None]:
    token = BOUNDS.set(Bounds())
    yield
    BOUNDS.reset(token)


def stubborn() -> None:
    """Whatever comes is a failed candidate to it."""
    end = time.process_time() + 20
    while time.process_time() < end:
        with suppress(Exception):
            sum(range(1000))


def test_time_of_the_processor(bounds: None) -> None:
    BOUNDS.set(Bounds(seconds=0.2))
    start = time.process_time()
    with (
        pytest.raises(LumcError, match=r"search takes more than 0\.3 s") as e,
        bounded("search", 0.1),
    ):
        stubborn()
    assert e.value.code == "E0206" and 0.2 < time.process_time() - start < 3


def test_waiting_costs_nothing(bounds: None) -> None:
    BOUNDS.set(Bounds(seconds=0.2))
    with bounded("profile"):
        time.sleep(0.5)


def test_memory(bounds: None) -> None:
    BOUNDS.set(Bounds(nbytes=1 << 20))
    with (
        pytest.raises(LumcError, match=r"codegen needs more than 0\.000977 GB"),
        bounded("codegen"),
    ):
        stubborn()
    with pytest.raises(LumcError, match="codegen needs more memory"), bounded("codegen"):
        raise MemoryError


def test_all_is_as_it_was(bounds: None) -> None:
    before = signal.getsignal(signal.SIGPROF)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), bounded("link"):
            raise error
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    assert signal.getsignal(signal.SIGPROF) == before


def test_the_command_line(bounds: None, lumc: Lumc) -> None:
    lines = [f"t{i} f32[i:8] = add x[i], {i}.5\noutput y{i} = t{i}" for i in range(800)]
    text = "lumc graph 1\ninput x f32[8]\n" + "\n".join(lines) + "\n"
    (lumc.folder / "m.lg").write_text(text)
    lumc("search", "m.lg", "-o", "m.ls")
    said = lumc.fails(1, "--max-seconds", "0.1", "profile", "--estimate", "m.ls", "-o", "m.lp")
    assert said.startswith("E0206 ") and "--max-seconds" in said
    assert not (lumc.folder / "m.lp").exists()
