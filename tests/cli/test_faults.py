"""Full disks and folders that cannot be written, as a user meets them: one clear message and the
right exit code, or a warning; never half a file, never an internal error."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import MATMUL, Lumc
from lumc.disk import artifact
from lumc.errors import LumcError


@pytest.fixture
def folder(lumc: Lumc) -> Path:
    (lumc.folder / "m.lg").write_text(MATMUL)
    return lumc.folder


def lumc_process(*args: str, **how: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lumc", *args]
    how = {"stderr": subprocess.PIPE, "text": True, "timeout": 120} | how
    if "preexec_fn" in how:  # bytecode would be cut off too, for all commands that come later
        how["env"] = {**(how.get("env") or os.environ), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, **how)


def at_most(nbytes: int) -> Callable[[], None]:
    """Files may not grow beyond this size: to a process, what a full disk is."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

    return limit


def is_refusal(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith(" ")]  # not its fix
    assert said[-1].startswith("E0202 cannot "), done.stderr
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("unbuffered", "command", "nbytes"), [("", "show", 99), ("1", "show", 99), ("1", "search", 999)]
)
def test_stdout_on_a_full_disk(folder: Path, unbuffered: str, command: str, nbytes: int) -> None:
    """Without a buffer a short write went unnoticed: exit code 0, and half of the file."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("out").open("w") as out:
        how = {"stdout": out, "env": env, "preexec_fn": at_most(nbytes)}
        is_refusal(lumc_process(command, "m.lg", **how))
    if command == "show":
        with Path("/dev/full").open("w") as full:
            is_refusal(lumc_process(command, "m.lg", stdout=full, env=env))


def test_stdout_that_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(LumcError, match="stdout: it is closed"):
        artifact.write_text("-", "text")


def test_an_output_on_a_full_disk(folder: Path) -> None:
    Path("m.ls").write_text("old")
    is_refusal(lumc_process("search", "m.lg", "-o", "m.ls", preexec_fn=at_most(999)))
    assert Path("m.ls").read_text() == "old"
    how = {"preexec_fn": at_most(9999)}
    is_refusal(lumc_process("compile", "m.lg", "--estimate", "-o", "m.lb", **how))
    assert sorted(p.name for p in folder.iterdir()) == ["m.lg", "m.ls"]


def test_arrays_on_a_full_disk(lumc: Lumc, folder: Path) -> None:
    """numpy says of a short write how many elements it wrote, and no reason."""
    import numpy as np

    from lumc.command.arrays import write_arrays

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("y.npy", "y.npz"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(LumcError, match=f"cannot write {name}") as e:
                write_arrays(name, {"y": np.ones(4096, np.float32)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert e.value.code == "E0202" and not Path(name).exists()
    assert [p.name for p in folder.iterdir()] == ["m.lg"]


def test_a_home_that_cannot_be_written(lumc: Lumc, folder: Path) -> None:
    """As in containers: no cache of records or objects, no place for the lock; the search goes on
    without, and says so."""
    lumc("search", "m.lg", "-o", "m.ls")
    left_out = ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "LUMC_CACHE", "LUMC_OBJECTS")
    env = {k: v for k, v in os.environ.items() if k not in left_out}
    args = ("profile", "m.ls", "-o", "m.lp", "--trials", "1", "--budget", "600s")
    done = lumc_process(*args, env={**env, "HOME": "/dev/null"})
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 2 and "no lock" in done.stderr and "records.jsonl" in done.stderr
    assert json.loads(lumc("show", "m.lp", "--json"))["kernels"][0]["time_us"] > 0
