"""docs/training.md: its scripts and commands, one after the other, and what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_page_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    printed, said = list[str](), list[str]()
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        calls = [["-m", *shlex.split(line, comments=True)] for line in text.splitlines()]
        if kind == "text":
            said.append(text)
            continue
        if kind == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            calls = [[name]]
        for call in calls:
            done = subprocess.run(
                [sys.executable, *call], cwd=tmp_path, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{call}: {done.stderr}"
            if kind == "python" and done.stdout:
                printed.append(done.stdout)
    assert printed == said
    found = sorted(p.name for p in tmp_path.iterdir())
    assert "trained.safetensors" in found and "train.lb" in found
