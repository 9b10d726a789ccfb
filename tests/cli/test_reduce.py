"""``lumc reduce``: a large graph with a planted fault becomes one of a few lines."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from commands import Lumc
from fuzz import texts
from lumc.artifacts.files import read_graph
from lumc.cli import commands
from lumc.command.shrink import Search
from lumc.disk.weights import read_weight
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

CHECK = "grep -q exp2 $1 && grep -q sum $1 && exit 7\nexit 0\n"
GRAPH = Path(__file__).parent.parent / "fuzz" / "found" / "rotary_attention.lg"


@pytest.fixture
def check(lumc: Lumc) -> str:
    Path("check.sh").write_text(CHECK)
    return "sh check.sh"


def test_a_fault_in_a_large_graph(lumc: Lumc, check: str) -> None:
    runs = [CliRunner().invoke(commands, ["reduce", str(GRAPH), "--check", check]) for _ in "ab"]
    assert [r.exit_code for r in runs] == [0, 0] and runs[0].stdout == runs[1].stdout
    small = runs[0].stdout
    assert len(small.split("\n")) <= 7 and "exp2" in small and "sum" in small
    verify_graph(parse_graph(small))
    said = runs[0].stderr
    assert "the check ends with 7" in said and "reduce: 45 statements" in said and " -> " in said
    assert [p.name for p in lumc.folder.iterdir()] == ["check.sh"]


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


def test_every_smaller_graph_is_legal() -> None:
    """Of random graphs, with states, several outputs and guards: any statement may be the fault."""
    for seed in range(12):
        text = texts.together([texts.parts_of(f"reduce {seed}")], texts_file())
        graph = parse_graph(text)
        kept = graph.entries[0].nodes[-1].op
        seen = []

        def fails(smaller: Graph, kept: object = kept, seen: list[str] = seen) -> bool:
            seen.append(print_graph(smaller))
            verify_graph(parse_graph(seen[-1]))
            return any(n.op is kept for e in smaller.entries for n in e.nodes)

        small = Search(graph, fails).run()
        assert len(seen) == len(set(seen))
        assert len(small.entries[0].nodes) == 1 and not small.states and not small.weights


UPDATES = """lumc graph 1
state s f32[4]
input x f32[4]

t f32[a:4] = add x[a], s[a]
u = update s[a] = t[a]
w f32[a:4] = mul u[a], x[a]

output y = w
update s[a] = w[a]
"""


def test_an_update_keeps_a_value_to_write() -> None:
    def fails(smaller: Graph) -> bool:
        return any(n.op == "update" for e in smaller.entries for n in e.nodes)

    (entry,) = Search(parse_graph(UPDATES), fails).run().entries
    assert [n.op for n in entry.nodes] == [entry.nodes[0].op, "update"] and not entry.outputs


def texts_file() -> str:
    return f'file "weights.safetensors" size 8 sha256 {"0" * 64}'


def test_an_interrupt_leaves_the_smallest_graph_so_far(lumc: Lumc) -> None:
    Path("check.sh").write_text("touch began; sleep 0.05; exit 3\n")
    command = [sys.executable, "-m", "lumc", "reduce", str(GRAPH), "--check", "sh check.sh"]
    child = subprocess.Popen([*command, "-o", "small.lg"], stderr=subprocess.PIPE, text=True)
    while not Path("began").exists():
        assert child.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    said = child.communicate()[1]
    assert child.returncode == 130 and "E0210 reduce was stopped" in said, said
    verify_graph(parse_graph(Path("small.lg").read_text()))
    assert sorted(p.name for p in lumc.folder.iterdir()) == ["began", "check.sh", "small.lg"]


def test_weights_stay_where_they_are(lumc: Lumc) -> None:
    """Candidates lie beside the graph, so that they name its weights as it does."""
    save_file({"w": np.ones((3, 4), "f4")}, "w.safetensors")
    digest = hashlib.sha256(Path("w.safetensors").read_bytes()).hexdigest()
    size = Path("w.safetensors").stat().st_size
    Path("m.lg").write_text(
        f'lumc graph 1\nfile "w.safetensors" size {size} sha256 {digest}\n'
        'weight w f32[3, 4] "w.safetensors" "w"\ninput x f32[3, 4]\n'
        "t f32[i:3, j:4] = mul x[i, j], w[i, j]\ns f32[i:3] = sum j:4 of t[i, j]\noutput y = s\n"
    )
    Path("check.sh").write_text("grep -q 'file \"w.safetensors\"' $1 && exit 3\nexit 0\n")
    Path("sub").mkdir()
    lumc("reduce", "m.lg", "--check", "sh check.sh", "-o", "small.lg")
    lumc("reduce", "m.lg", "--check", "sh check.sh", "-o", "sub/small.lg")
    for small in ("small.lg", "sub/small.lg"):
        graph = read_graph(small, {})
        (weight,) = graph.weights
        assert read_weight(weight, Path.cwd()).shape == (3, 4)
        assert not graph.entries[0].nodes
