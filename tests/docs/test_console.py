"""The console sessions of docs/*.md are run; what they show must be what is printed.

A block starts with ```console; `$ ` starts a command, the lines below it are its output, in which
`...` stands for anything. Blocks of one page share a folder. `--update-golden` rewrites the outputs
but for those that match with their `...`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import BESIDE

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in (ROOT / "docs").glob("*.md") if "```console" in p.read_text())
SLOW = re.compile(r"[a-z]+( [\w:-]+)?: \d+ s(, .*)?")  # what a step says that takes ten seconds
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(block: str) -> list[tuple[str, str]]:
    """``(command, expected output)`` of a block."""
    out: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            out.append((line[2:], []))
        elif line.startswith("> ") and not out[-1][1]:  # the command goes on
            out[-1] = (out[-1][0] + "\n" + line[2:], [])
        else:
            out[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in out]


def matches(expected: str, got: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, got, re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_console_sessions_are_true(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    binary = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": binary + os.pathsep + os.environ["PATH"], "ROOT": str(ROOT)}
    folder, temporary = tmp_path / "a folder", tmp_path / "for a while"
    for place in (folder, temporary):
        place.mkdir()
    env["TMPDIR"] = str(temporary)
    (folder / "graphs").symlink_to(ROOT / "graphs")
    text = page.read_text()
    for block in BLOCK.findall(text):
        new = []
        for command, expected in commands(block):
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True
            )
            said = (done.stdout + done.stderr).splitlines()
            beside = [n for n in said if n.startswith(BESIDE) or SLOW.fullmatch(n)]
            got = "\n".join(line for line in said if line not in beside)
            keep = "..." in expected and matches(expected, got)
            shown = [expected if keep else got] if got else []
            new += ["$ " + command.replace("\n", "\n> "), *shown]
            if not request.config.getoption("--update-golden"):
                assert matches(expected, got), f"{page.name}: $ {command}\n{got}"
        text = text.replace(block, "\n".join(new) + "\n")
    if request.config.getoption("--update-golden"):
        page.write_text(text)
