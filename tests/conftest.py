"""Options and fixtures of every test."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

# A thread of numpy's that waits for the next product spins for 20 ms, in every process of the tests
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pytest

from commands import Lumc
from kept import keep_workers
from lumc.link import runners
from once import SHARED, compile_once

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected files")


def pytest_configure(config: pytest.Config) -> None:
    """Each of several workers reads other files first: they are compiled, and their asserts written
    out, once and not by each."""
    if WORKERS > 1 and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        files = sorted(map(str, Path(__file__).parent.rglob("test_*.py")))
        first = len(files) * int(os.environ["PYTEST_XDIST_WORKER"][2:]) // WORKERS
        config.args = files[first:] + files[:first]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests in the order that all workers know; what takes long is left out."""
    if WORKERS > 1:
        items.sort(key=lambda item: item.path)
    if os.environ.get("LUMC_FUZZ"):
        return
    later = {item for item in items if "deep" in item.keywords}
    if WORKERS > 1:  # a skip takes milliseconds of two processes, and there are thousands
        config.hook.pytest_deselected(items=[*later])
        items[:] = [item for item in items if item not in later]
    for item in later:
        item.add_marker(pytest.mark.skip(reason="takes long: make test-deep"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What stays for the whole run is not looked at again for cycles, nor, below, is all at its
    end, which pytest does five times."""
    gc.freeze()


keep_workers()
compile_once()
gc.set_threshold(10_000, 20, 20)  # the compiler makes few cycles: looking for them takes 3 %

# What one test compiled is there for all of this run: objects, and bytecode of the commands that
# tests start, whether or not Python is told to keep it. That stands beside the sources, where that
# of packages is which ``make setup`` compiled.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["LUMC_OBJECTS"] = tempfile.mkdtemp(prefix="lumc-objects.")
    os.environ[SHARED] = tempfile.mkdtemp(prefix="lumc-shared.")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.freeze()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for name in ("LUMC_OBJECTS", SHARED):
            shutil.rmtree(os.environ[name], ignore_errors=True)


@pytest.fixture
def lumc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lumc:
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Lumc(tmp_path)


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the runner's sources that bundles are linked with."""
    folder = tmp_path / "lumc.link" / "runner"
    folder.mkdir(parents=True)
    for source in (resources.files("lumc.link") / "runner").iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(runners, "files", lambda name: tmp_path / name)
    runners.compile_runner.cache_clear()
    yield folder
    runners.compile_runner.cache_clear()
