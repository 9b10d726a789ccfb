"""What bench/compile_time.py says that has a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.deep
def test_a_plan_of_a_large_model_takes_little() -> None:
    """Llama 3.1 8B, shapes only: 30 s of a processor and 1,000 MB for both passes."""
    command = [sys.executable, str(ROOT / "bench" / "compile_time.py"), "--plan"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [s.strip("| ").split(" | ") for s in done.stdout.splitlines()[2:]]
    assert [name for name, _, _ in rows] == ["search", "profile"]
    assert sum(float(cpu_s) for _, cpu_s, _ in rows) < 30
    assert max(float(mb) for _, _, mb in rows) < 1000
