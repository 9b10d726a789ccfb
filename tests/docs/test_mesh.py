"""docs/mesh.md: its scripts and commands, one after the other, and what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Lumc

PAGE = Path(__file__).parents[2] / "docs" / "mesh.md"


@pytest.mark.timeout(900)  # it compiles five bundles
def test_the_page_from_its_first_line_to_its_last(lumc: Lumc, tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = ""
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if kind == "text":
            for line in text.splitlines():
                assert line in said, line
            continue
        if kind == "sh":
            continue  # several machines, and launchers: tests/numeric/test_mesh.py
        if kind == "lg":
            graph = (tmp_path / "ranks.lg").read_text().splitlines()
            assert set(text.splitlines()) <= set(graph)
            continue
        words = [shlex.split(line, comments=True) for line in text.splitlines()]
        calls = [w for w in words if w]
        if kind == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            calls = [[sys.executable, name]]
        for call in calls:
            if call[0] == "lumc":  # thirty starts of Python less
                found = lumc.raw(*call[1:])
                assert found.exit_code == 0, f"{call}: {found.exception} {found.stderr}"
                said += re.sub(r", \S+ apart", "", found.stderr) + found.stdout
                continue
            done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0, f"{call}: {done.stderr}"
            said += done.stdout
    ranks, also = ((tmp_path / n).read_text() for n in ("ranks8.lg", "also8.lg"))
    assert "mesh dp 2\nmesh tp 4\n" in ranks and "mesh tp 4\nmesh dp 2\n" in also
