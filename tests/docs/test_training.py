"""docs/training.md: its scripts and commands, one after the other, and what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from commands import Lumc

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
PICTURE = PAGE.with_name("losses.svg")


def calls(kind: str, text: str, folder: Path) -> list[list[str]]:
    """What a block runs: a script, or its commands."""
    if kind == "python":
        name = text.splitlines()[0].removeprefix("# ")
        (folder / name).write_text(text)
        return [[sys.executable, name]]
    return [shlex.split(line, comments=True) for line in text.splitlines()]


def test_the_page_from_its_first_line_to_its_last(lumc: Lumc, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    printed, said = list[str](), list[str]()
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if kind == "text":
            said.append(text)
            continue
        for call in calls(kind, text, tmp_path):
            if call[0] == "lumc":  # starts of Python less
                lumc(*call[1:])
                continue
            done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0, f"{call}: {done.stderr}"
            if kind == "python" and done.stdout:
                printed.append(done.stdout)
    assert printed == said
    assert PICTURE.read_text().startswith("<svg") and (tmp_path / "losses.svg").exists()
    assert len(load_file(tmp_path / "trained.safetensors")) == 3 * 4 + 1
