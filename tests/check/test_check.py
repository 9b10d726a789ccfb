"""The samples in graphs/*.lg: run what their headers say and look for what they promise.

# RUN: lumc search %s | lumc show        a command line; %s is the file, %t a path for output
# CHECK: stop: saturated                 this text, after the one that the last CHECK found
# CHECK-NOT: f32[64, 64]                 this text nowhere in the output
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from lumc.cli import commands
from lumc.frontend.script import import_script
from lumc.graph.text import parse_graph, print_graph

GRAPHS = Path(__file__).parents[2] / "graphs"
SAMPLES = sorted(p.stem for p in GRAPHS.glob("*.lg"))


def directives(text: str, word: str) -> list[str]:
    prefix = f"# {word}: "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def execute(line: str, file: Path, temp: Path) -> str:
    """Run a pipeline of lumc commands in this process; its output, with what went to stderr."""
    said, data = "", b""
    for part in line.split("|"):
        words = [w.replace("%s", str(file)).replace("%t", str(temp)) for w in shlex.split(part)]
        assert words[0] == "lumc", line
        result = CliRunner().invoke(commands, words[1:], input=data)
        if result.exception is not None:
            raise AssertionError(f"{part.strip()}: {result.exception}") from result.exception
        data, said = result.stdout_bytes, said + result.stderr
    return data.decode() + said


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str, tmp_path: Path) -> None:
    file = GRAPHS / f"{name}.lg"
    text = file.read_text()
    runs, checks = directives(text, "RUN"), directives(text, "CHECK")
    assert runs and checks, f"{name}.lg has no RUN or no CHECK"
    output = "\n".join(execute(line, file, tmp_path / name) for line in runs)
    at = 0
    for wanted in checks:
        found = output.find(wanted, at)
        assert found >= 0, f"CHECK: {wanted}\nis not in:\n{output[at:]}"
        at = found + len(wanted)
    for unwanted in directives(text, "CHECK-NOT"):
        assert unwanted not in output


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_what_its_builder_makes(name: str) -> None:
    text = (GRAPHS / f"{name}.lg").read_text()
    body = text[text.index("lumc graph 1") :]
    assert print_graph(import_script(f"{GRAPHS / 'samples.py'}:{name}").graph()) == body
    assert print_graph(parse_graph(text)) == body
