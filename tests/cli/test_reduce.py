"""``lumc reduce``: a large graph with a planted fault becomes one of a few lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands import Lumc
from fuzz import texts
from lumc.cli import commands
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

# its fault: an exp2 somewhere below a sum
CHECK = """import re, sys
text = open(sys.argv[1]).read()
known = dict(re.findall(r"(t\\w+) \\w+\\[.*?\\] = (.*)", text))
def below(name):
    names = re.findall(r"(t\\w+)\\[", known.get(name, ""))
    return {name}.union(*map(below, names))
for name, op in known.items():
    if op.startswith("sum") and any(known[n].startswith("exp2") for n in below(name) if n in known):
        sys.exit(7)
"""
GRAPH = Path(__file__).parent.parent / "fuzz" / "found" / "rotary_attention.lg"


@pytest.fixture
def check(lumc: Lumc) -> str:
    Path("check.py").write_text(CHECK)
    return f"{sys.executable} check.py"


def test_a_fault_in_a_large_graph(lumc: Lumc, check: str) -> None:
    runs = [CliRunner().invoke(commands, ["reduce", str(GRAPH), "--check", check]) for _ in "ab"]
    assert [r.exit_code for r in runs] == [0, 0] and runs[0].stdout == runs[1].stdout
    small = runs[0].stdout
    assert len(small.split("\n")) <= 7 and "exp2" in small and "sum" in small
    verify_graph(parse_graph(small))
    said = runs[0].stderr
    assert "the check ends with 7" in said and "reduce: 45 statements" in said and " -> " in said
    assert [p.name for p in lumc.folder.iterdir()] == ["check.py"]


def test_what_is_no_fault(lumc: Lumc) -> None:
    Path("m.lg").write_text("lumc graph 1\ninput x f32[3]\noutput y = x\n")
    assert "shows no fault" in lumc.fails(2, "reduce", "m.lg", "--check", "true")
    assert "cannot run" in lumc.fails(2, "reduce", "m.lg", "--check", "./there-is-none")
    for bad in ("", "'"):
        assert "--check" in lumc.fails(2, "reduce", "m.lg", "--check", bad)
    assert [p.name for p in lumc.folder.iterdir()] == ["m.lg"]


def test_a_check_that_does_not_end(lumc: Lumc) -> None:
    """Neither does what it started: a hang is a fault like others."""
    Path("m.lg").write_text("lumc graph 1\ninput x f32[3]\ninput q f32[9]\noutput y = x\n")
    Path("hang.sh").write_text("grep -q 'x f32' $1 && sleep 60\nexit 0\n")
    said = lumc.raw("reduce", "m.lg", "--check", "sh hang.sh {}", "--timeout", "0.2")
    assert said.exit_code == 0 and "no end" in said.stderr and "q" not in said.stdout


def test_every_smaller_graph_is_legal(lumc: Lumc, check: str) -> None:
    """Of random graphs, with states, several outputs and guards: any statement may be the fault."""
    from lumc.command.shrink import Search

    for seed in range(12):
        text = texts.together([texts.parts_of(f"reduce {seed}")], texts_file())
        graph = parse_graph(text)
        kept = graph.entries[0].nodes[-1].op
        seen = []

        def fails(smaller: object, kept: object = kept, seen: list[str] = seen) -> bool:
            seen.append(print_graph(smaller))  # type: ignore[arg-type]
            verify_graph(parse_graph(seen[-1]))
            return any(n.op is kept for e in smaller.entries for n in e.nodes)  # type: ignore[attr-defined]

        small = Search(graph, fails).run()
        assert len(seen) == len(set(seen))
        assert len(small.entries[0].nodes) == 1 and not small.states and not small.weights


def texts_file() -> str:
    return f'file "weights.safetensors" size 8 sha256 {"0" * 64}'
