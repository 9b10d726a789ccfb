"""docs/lengths.md on the model that README makes: its commands, one after the other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / "lengths.md").read_text(), re.M | re.S)
    lines = [n for kind, text in blocks if not kind for n in text.splitlines() if "bert.lb" in n]
    assert len(lines) > 3
    subprocess.run([sys.executable, DOCS / "demo" / "bert.py"], cwd=tmp_path, env=env, check=True)
    for line in lines:
        call = [sys.executable, "-m", *shlex.split(line, comments=True)]
        done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    with np.load(tmp_path / "out.npz") as found:
        assert [a.shape for a in found.values()] == [(1, 128, 128)]
