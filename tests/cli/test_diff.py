"""`lumc diff`: what differs between two artifacts, and nothing where nothing does."""

import json
from pathlib import Path

import pytest

from commands import Lumc

GRAPH = """lumc graph 1
input x f32[16]
t f32[m:16] = mul x[m], x[m]
u f32[m:16] = add t[m], x[m]
output y = u
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of one graph for two targets."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "a.lg").write_text(GRAPH)
    for name in ("x86-64-v2", "x86-64-v3"):
        made = ("-o", folder / f"{name}.lb", "--save-temps", folder)
        Lumc(folder)("compile", "--estimate", folder / "a.lg", "--target", f"cpu:{name}", *made)
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((), "no difference\n"),
        ((("t[", "v["), ("t f32", "v f32")), "no difference\n"),
        (
            (("mul x[m], x[m]", "mul x[m], 2.0"),),
            "- t f32[m:16] = mul x[m], x[m]\n+ t f32[m:16] = mul x[m], 2.0\n",
        ),
        (
            (("add t[m], x[m]", "add x[m], t[m]"),),
            "- u f32[m:16] = add t[m], x[m]\n+ u f32[m:16] = add x[m], t[m]\n",
        ),
        ((("output y = u", "output y = t"),), "- output y = u\n+ output y = t\n"),
        ((("output y", "output z"),), "- output y = u\n+ output z = u\n"),
    ],
)
def test_of_graphs_the_nodes_that_differ_whatever_they_are_called(
    lumc: Lumc, change: tuple[tuple[str, str], ...], said: str
) -> None:
    new = GRAPH
    for old, other in change:
        new = new.replace(old, other)
    Path("a.lg").write_text(GRAPH)
    Path("b.lg").write_text(new)
    done = lumc.raw("diff", "a.lg", "b.lg")
    assert done.stdout == said and done.exit_code == (0 if said.startswith("no") else 3)


def test_only_a_node_that_reads_another_one_differs_not_what_follows(lumc: Lumc) -> None:
    """A line that says the same about other nodes."""
    a = GRAPH.replace("output", "v f32[m:16] = sqrt u[m]\noutput").replace("= u", "= v")
    Path("a.lg").write_text(a)
    Path("b.lg").write_text(a.replace("add t[m], x[m]", "add t[m], t[m]"))
    said = lumc.raw("diff", "a.lg", "b.lg").stdout
    assert said == "- u f32[m:16] = add t[m], x[m]\n+ u f32[m:16] = add t[m], t[m]\n"


def test_of_the_others_their_fields(lumc: Lumc, two: Path) -> None:
    a, b = two / "x86-64-v2", two / "x86-64-v3"
    wanted = {
        "ls": "target: cpu:x86-64-v2 -> cpu:x86-64-v3\n",
        "lp": "  key: ",
        "lk": "other lines",
        "lb": "- targets cpu-x86-64-v2\n+ targets cpu-x86-64-v3\n",
    }
    for kind, said in wanted.items():
        done = lumc.raw("diff", f"{a}.{kind}", f"{b}.{kind}")
        assert said in done.stdout and done.exit_code == 3
        assert lumc("diff", f"{a}.{kind}", f"{a}.{kind}") == "no difference\n"
        found = json.loads(lumc.raw("diff", f"{a}.{kind}", f"{b}.{kind}", "--json").stdout)
        assert all(set(d) == {"where", "a", "b"} and d["a"] != d["b"] for d in found)


def test_two_kinds_are_not_compared(lumc: Lumc, two: Path) -> None:
    said = lumc.fails(2, "diff", two / "a.lg", two / "x86-64-v2.lp")
    assert "E0203 cannot compare a graph with a plan" in said
    assert "E0201" in lumc.fails(2, "diff", two / "a.lg", "nosuch.lg")
