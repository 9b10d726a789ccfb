"""Completion completes, and the manual is complete and clean roff."""

import os
import shutil
import subprocess
import sys

import click
import pytest

from commands import Lumc
from lumc.cli import commands

LUMC = [sys.executable, "-m", "lumc"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("lumc comp", {"compile", "completion"}),
        ("lumc cache l", {"list"}),
        ("lumc bench --comp", {"--compare"}),
        ("lumc compile --dtype ", {"bf16", "f16"}),
    ],
)
def test_bash_completes(lumc: Lumc, words: str, wanted: set[str]) -> None:
    """As the function that bash is given asks for it."""
    assert "_LUMC_COMPLETE=bash_complete" in lumc("completion", "bash")
    n = words.count(" ")
    env = {"_LUMC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(n)}
    done = subprocess.run(LUMC, env={**os.environ, **env}, capture_output=True, text=True)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_take_what_they_are_given(lumc: Lumc, shell: str) -> None:
    said = lumc("completion", shell)
    assert "lumc" in said
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=said, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def every(group: click.Group, name: str) -> list[str]:
    out = list[str]()
    for n, command in group.commands.items():
        inner = every(command, f"{name} {n}") if isinstance(command, click.Group) else []
        out += [f"{name} {n}", *inner]
    return out


def test_the_manual_has_every_command_and_no_fault(lumc: Lumc) -> None:
    said = lumc("man")
    for name in every(commands, "lumc"):
        assert f".SS\n{name} [OPTIONS]" in said, name
    assert ".B 143\nterminated" in said and "\\-\\-fail\\-above" in said
    if shutil.which("groff"):
        groff = ["groff", "-man", "-Tutf8", "-ww", "-z"]
        done = subprocess.run(groff, input=said, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
