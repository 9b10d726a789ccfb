"""The lock of the device: whose it is is said, and nobody is waited for in silence or for ever."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumc.lab import lock
from lumc.lab.lock import Busy, DeviceLock

HOLDER = """
import time
from lumc.lab.lock import DeviceLock
with DeviceLock().held():
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "cache" / "lumc"


@pytest.fixture
def holder(home: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", HOLDER, "some", "words"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def test_it_lies_with_the_user(home: Path, tmp_path: Path) -> None:
    with DeviceLock().held():
        (path,) = home.iterdir()
    assert path.name.startswith("device-") and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert path.read_text().startswith(f"{os.getpid()} ")


def test_who_holds_it_is_said_within_a_second(
    holder: "subprocess.Popen[str]", capfd: pytest.CaptureFixture[str]
) -> None:
    waiting, start = DeviceLock(), time.monotonic()
    waiting.stopped = lambda: time.monotonic() > start + 0.9
    with pytest.raises(Busy), waiting.held():
        pass
    said = capfd.readouterr().err
    assert f"waiting for process {holder.pid} (-c some words)" in said and said.count("\n") == 1
    assert 0.8 < waiting.waited_s < 5


def test_a_stopped_holder_is_not_waited_for_longer_than_the_budget(
    holder: "subprocess.Popen[str]", capfd: pytest.CaptureFixture[str]
) -> None:
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(Busy), DeviceLock(patience_s=0.2).held():
        pass
    assert "it is stopped) did not let go in 0.2 s" in capfd.readouterr().err


def test_a_holder_that_runs_has_its_turn(
    holder: "subprocess.Popen[str]",
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock, "TURN_S", 0.4)
    waiting = DeviceLock(patience_s=0.0)
    with pytest.raises(Busy), waiting.held():
        pass
    assert waiting.waited_s >= 0.4 and "did not let go" in capfd.readouterr().err
    holder.kill()
    holder.wait()
    with waiting.held():  # who is dead holds nothing
        pass


def test_without_a_cache_it_lies_with_the_session(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.parent.write_text("no folder")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with DeviceLock().held():
        assert len([*(tmp_path / "run" / "lumc").iterdir()]) == 1
    (tmp_path / "run" / "lumc").chmod(0o777)
    with pytest.warns(UserWarning, match="no lock"), DeviceLock().held():
        pass


def test_a_planted_lock_is_not_opened(home: Path, tmp_path: Path) -> None:
    """A link to a file that the user would not want to be written."""
    with DeviceLock().held():
        (path,) = home.iterdir()
    (tmp_path / "mine").write_text("mine")
    path.unlink()
    path.symlink_to(tmp_path / "mine")
    with pytest.warns(UserWarning, match="no lock"), DeviceLock().held():
        pass
    assert (tmp_path / "mine").read_text() == "mine"
