"""The script for the day on which there is a GPU, on the fakes: what it reports, and that tests of
a GPU that is not there are skipped with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import fake_gpu
import fake_hip

ROOT = Path(__file__).parents[2]
FAKE_NVCC = f"{sys.executable} {ROOT / 'tests' / 'fake_nvcc.py'}"
FAKES = {
    "nvidia": lambda: fake_gpu.environment() | {"NVCC": FAKE_NVCC},
    "amd": lambda: fake_hip.environment(gfx="gfx942"),
    "apple": lambda: dict(os.environ),
}


def day(gpu: str, folder: Path, env: Mapping[str, str], **words: str) -> tuple[int, list[str]]:
    """The exit code and the lines of the report; of the tests those of doctor."""
    more = {"GPU": gpu, "PYTHON": sys.executable, "JOBS": "0", "PYTEST_ADDOPTS": "-k test_doctor"}
    done = subprocess.run(
        [ROOT / "bench" / "gpu_day.sh", folder],
        env={**env, **more, **words},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, (folder / "report.txt").read_text().splitlines()


# its steps of AMD: test_what_fails_is_counted; their tests on that fake: test_on_amd
@pytest.mark.parametrize("gpu", ["nvidia", pytest.param("amd", marks=pytest.mark.deep), "apple"])
def test_a_day(gpu: str, tmp_path: Path) -> None:
    code, lines = day(gpu, tmp_path, FAKES[gpu](), STEPS="doctor bundles")
    assert code == 0
    names = [line.split()[0] for line in lines]
    assert names == ["doctor", "bundles"] and all("s  ok " in line for line in lines)
    assert ("1 skipped" if gpu == "apple" else "1 passed") in (tmp_path / "bundles.txt").read_text()


def test_what_fails_is_counted(tmp_path: Path) -> None:
    """Without a runtime of AMD there is no target to time."""
    code, lines = day("amd", tmp_path, dict(os.environ), STEPS="times")
    assert code == 1 and lines[0].split()[3:5] == ["FAILED", "(1)"]


def test_an_unknown_gpu(tmp_path: Path) -> None:
    code, lines = day("none", tmp_path, dict(os.environ))
    assert (code, lines) == (2, [])
