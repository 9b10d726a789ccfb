"""Temporaries of killed processes go; those of processes that live stay."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lumc.disk import artifact
from lumc.disk.scratch import prefix, scratch, sweep, temporary
from lumc.errors import LumcError
from lumc.link.link import staged

HOLDER = """
import sys, time
from pathlib import Path
from lumc.disk.scratch import scratch, temporary
with scratch(Path(sys.argv[1])) as folder:
    (folder / "in").mkdir()
    (folder / "in" / "it").write_text("something")
    temporary(Path(sys.argv[1]))
    print("ready", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    """A process that has a folder and a file in this one."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_the_next_one_removes_what_killed_processes_left(tmp_path: Path) -> None:
    killed, alive = holder(tmp_path), holder(tmp_path)
    assert len([*tmp_path.iterdir()]) == 4
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with scratch(tmp_path):
        assert len([*tmp_path.iterdir()]) == 3, "its own, and those of the other"
    assert len([*tmp_path.iterdir()]) == 2
    alive.kill()
    alive.wait()
    artifact.write_text(str(tmp_path / "a"), "a file that is written here")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_is_not_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = tmp_path / ".lumc-00000000-another.machine"
    link, target = tmp_path / f"{prefix()}link", tmp_path / "target"
    for folder in (others, target):
        folder.mkdir()
    link.symlink_to(target)
    os.mkfifo(tmp_path / f"{prefix()}pipe")
    sweep(tmp_path)
    assert others.exists() and target.exists() and link.is_symlink()
    (tmp_path / f"{prefix()}file").write_text("of another user")
    monkeypatch.setattr("lumc.disk.scratch.os.geteuid", lambda: os.getuid() + 1)
    sweep(tmp_path)
    assert (tmp_path / f"{prefix()}file").exists()


def test_writers_do_not_sweep_each_other(tmp_path: Path) -> None:
    def write(i: int) -> None:
        for _ in range(25):
            artifact.write_text(str(tmp_path / f"{i % 3}"), "whole" * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert {p.name for p in tmp_path.iterdir()} == {"0", "1", "2"}
    assert {p.read_text() for p in tmp_path.iterdir()} == {"whole" * 1000}


def test_no_room_for_temporaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("lumc.disk.scratch.tempfile.gettempdir", none)
    with pytest.raises(LumcError, match="no temporary folder can be made"), scratch():
        pass
    with pytest.raises(FileNotFoundError):
        temporary(tmp_path / "missing")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """That of temporary files, or that of the output: they are seldom the same."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(LumcError, match=r"temporary files in .*: No space"), scratch():
        raise full
    with (
        pytest.raises(LumcError, match=r"cannot write .*/m\.lb: No space"),
        staged(tmp_path / "m.lb", single=False),
    ):
        raise full
    assert not [*tmp_path.iterdir()]
