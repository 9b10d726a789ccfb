"""Commands in a folder, whose kernels other machines measure."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

WAIT_S = 300.0  # for what a busy machine does in seconds


class Commands:
    """``env`` tells them where the machines are."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, {**env}

    def start(self, *words: str) -> subprocess.Popen[str]:
        call, pipe = [sys.executable, "-m", "lumc", *words], subprocess.PIPE
        return subprocess.Popen(call, cwd=self.folder, env=self.env, stderr=pipe, text=True)

    def lumc(self, *words: str) -> str:
        """What a command says; it succeeds."""
        return self.end(self.start(*words))

    def end(self, process: subprocess.Popen[str]) -> str:
        said = process.communicate(timeout=2 * WAIT_S)[1]
        assert process.returncode == 0, said
        return said

    def trials(self) -> list[str]:
        path = self.folder / "cache" / "records.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if '"kind":"trial"' in line and line.endswith("}")]

    def wait_for_trials(self, count: int, process: subprocess.Popen[str]) -> list[str]:
        end = time.monotonic() + WAIT_S
        while len(self.trials()) < count:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        return self.trials()

    def same_again(self, bundle: str) -> None:
        """Records alone give the same bytes."""
        self.lumc("compile", "m.lg", "-o", "again.lb", "--frozen", "--cache", "cache")
        first, again = self.folder / bundle, self.folder / "again.lb"
        names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
        assert names == sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
        assert names and all((first / n).read_bytes() == (again / n).read_bytes() for n in names)
