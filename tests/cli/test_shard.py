"""``lumc shard``: graphs for a mesh, from files and pipes, and who refuses them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import SQUARE, Lumc
from lumc.artifacts.files import read_graph
from lumc.errors import LumcError
from lumc.oracle import ranks as oracle
from schemas import check

SCRIPT = """
import numpy as np
from lumc import Model

def build():
    rng, m = np.random.default_rng(0), Model()
    x, kept = m.input("x", (32, 64)), m.state("kept", (64,))
    w = m.constant(rng.normal(0, 0.1, (64, 64)).astype("f4"), "w")
    y = x @ w + kept
    m.update(kept, kept + y.sum(0))
    m.output("y", y)
    m.output("z", y.exp())
    return m
"""


@pytest.fixture
def model(lumc: Lumc) -> str:
    (lumc.folder / "m.py").write_text(SCRIPT)
    lumc("import", "m.py:build", "-o", "m.lg")
    return "m.lg"


def test_a_rank_has_its_part_and_the_check_compares_all(lumc: Lumc, model: str) -> None:
    done = lumc.raw("shard", model, "--mesh", "tp=4", "--check", "-v", "-o", "r.lg")
    assert "check: all outputs and states are those of the whole graph, " in done.output
    said = "shard: 4 ranks (tp 4); collectives: none; a rank holds 0.00416 of 0.0166 MB"
    assert said in done.output
    assert "  weight w f32[64, 16] part 1 by tp\n" in done.output
    graph = read_graph("r.lg", {}, mesh=True)
    assert graph.mesh == {"tp": 4} and graph.states[0].shape == (16,)
    assert graph.entries[0].parts["y"] == ((1, "tp", 4),)
    assert lumc("show", "r.lg").startswith("lumc graph 1\nmesh tp 4\n")


def test_outputs_are_whole_on_demand_and_axes_follow_one_another(lumc: Lumc, model: str) -> None:
    lumc("shard", model, "--mesh", "tp=4", "--whole", "y", "--check", "-o", "r.lg")
    lumc("shard", "r.lg", "--mesh", "dp=2", "--whole", "y", "--check", "-o", "r2.lg")
    graph = read_graph("r2.lg", {}, mesh=True)
    assert graph.mesh == {"tp": 4, "dp": 2} and graph.entries[0].parts.keys() == {"z"}


DEEP = """
import numpy as np
from lumc import Model

def build():
    rng, m = np.random.default_rng(0), Model()
    x = m.input("x", (32, 64))
    for i in range(3):
        x = (x @ m.constant(rng.normal(0, 0.1, (64, 64)).astype("f4"), f"w{i}")).relu()
    m.output("y", x)
    return m
"""


def test_the_ranks_along_pp_are_stages(lumc: Lumc) -> None:
    (lumc.folder / "d.py").write_text(DEEP)
    lumc("import", "d.py:build", "-o", "d.lg")
    done = lumc.raw("shard", "d.lg", "--mesh", "pp=3", "--check", "-v", "-o", "r.lg")
    assert "check: all outputs and states are those of the whole graph, " in done.output
    assert (
        "shard: 3 ranks (pp 3); collectives: 2 send; a rank holds 0.0164 of 0.0492" in done.output
    )
    assert "  weight w2 f32[64, 64] on 2 by pp\n" in done.output
    assert "  send 1 to 2 by pp: " in done.output
    assert "nothing is divided" not in done.output
    lumc("shard", "r.lg", "--mesh", "tp=2", "--check", "-o", "r2.lg")
    assert read_graph("r2.lg", {}, mesh=True).mesh == {"pp": 3, "tp": 2}
    how = "--mesh", "pp=3", "--batches", "4", "--check", "--timeline", "t.json"
    done = lumc.raw("shard", "d.lg", *how, "-o", "b.lg")
    assert "shard: 3 ranks (pp 3), 4 micro-batches; collectives: 2 send" in done.output
    assert "mesh batches 4 in time\n" in lumc("show", "b.lg")
    events = [
        e for e in json.loads((lumc.folder / "t.json").read_text())["traceEvents"] if "dur" in e
    ]
    turns = [(e["tid"], e["args"]["micro-batch"]) for e in events]
    assert {(s, k) for s in range(3) for k in range(4)} <= {*turns}
    lumc("show", "b.lg", "--timeline", "t2.json")
    assert (lumc.folder / "t2.json").read_bytes() == (lumc.folder / "t.json").read_bytes()
    assert "E0203 --timeline: there are no stages" in lumc.fails(
        2, "show", "d.lg", "--timeline", "t.json"
    )
    odd = lumc.fails(4, "shard", "d.lg", "--mesh", "pp=3", "--batches", "5", "-o", "b.lg")
    assert "E0144 no input can be divided into 5 micro-batches" in odd
    late = lumc.fails(2, "shard", "r.lg", "--mesh", "tp=2", "--batches", "4", "-o", "b.lg")
    assert "E0203 --batches 4: the graph is for 3 ranks (pp 3) already" in late
    same = lumc.fails(2, "shard", "d.lg", "--mesh", "batches=2", "--batches", "4", "-o", "b.lg")
    assert "axis 'batches' is theirs" in same
    many = lumc.fails(4, "shard", "d.lg", "--mesh", "pp=4", "-o", "r.lg")
    assert "E0143 4 stages of 3 weights" in many and "at most pp=3" in many
    twice = lumc.fails(2, "shard", "r.lg", "--mesh", "pp=2", "-o", "r3.lg")
    assert "E0203" in twice


def test_what_is_wrong_is_said(lumc: Lumc, model: str) -> None:
    for mesh in ("tp", "tp=1", "tp=0", "tp=4,tp=2", "=4", "tp=4,", "tp=-2", "tp=9999999"):
        assert "Invalid value for '--mesh'" in lumc.fails(2, "shard", model, "--mesh", mesh)
    for link in ("3", "1GB/s", "xGB/s,1us", "0GB/s,1us", "1.1.1GB/s,1us", "1GB/s,1"):
        said = lumc.fails(2, "shard", model, "--mesh", "tp=2", "--link", link)
        assert "Invalid value for '--link'" in said
    said = lumc.fails(2, "shard", model, "--mesh", "tp=2", "--compute", "1GB/s,1GB/s")
    assert "expected a speed, such as 200GFLOP/s" in said
    assert "E0212 --whole q" in lumc.fails(2, "shard", model, "--mesh", "tp=2", "--whole", "q")
    assert "E0101 a mesh has at most" in lumc.fails(4, "shard", model, "--mesh", "a=9999,b=9999")
    lumc("shard", model, "--mesh", "tp=4", "-o", "r.lg")
    again = lumc.fails(2, "shard", "r.lg", "--mesh", "tp=2")
    assert "E0203 --mesh tp=2: the graph is for 4 ranks (tp 4) already" in again


def test_nothing_to_divide_is_said(lumc: Lumc, model: str) -> None:
    said = lumc.raw("shard", model, "--mesh", "tp=31", "-o", "r.lg").output
    assert "note: nothing is divided: every rank does all of it" in said


def test_passes_that_know_one_rank_refuse_a_mesh(lumc: Lumc, model: str) -> None:
    lumc("shard", model, "--mesh", "tp=4", "-o", "r.lg")
    calls = (
        ("search", "r.lg", "--target", "hip:gfx90a", "-o", "r.ls"),
        ("compile", "r.lg", "--estimate", "--target", "cpu:generic,metal", "-o", "r.lb"),
        ("compile", "r.lg", "--estimate", "--dtype", "bf16", "-o", "r.lb"),
        ("compile", "r.lg", "--estimate", "--emit", "c", "-o", "r"),
        ("grad", "r.lg", "--loss", "y", "--wrt", "x", "-o", "t.lg"),
        ("reduce", "r.lg", "--check", "false", "-o", "t.lg"),
    )
    for call in calls:
        said = lumc.fails(4, *call)
        assert "E0140" in said and "4 ranks (tp 4)" in said, call
    assert not (lumc.folder / "r.ls").exists()


def test_a_sharding_that_is_wrong_fails_its_check(
    lumc: Lumc, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_part = oracle.own_part
    monkeypatch.setattr(
        oracle, "own_part", lambda a, g, p, at: own_part(a, g, p, tuple(0 for _ in at))
    )
    with pytest.raises(LumcError) as e:
        lumc("shard", model, "--mesh", "tp=4", "--check", "-o", "r.lg")
    assert e.value.code == "E0141" and not (lumc.folder / "r.lg").exists()


STEP = """
from lumc import Model, gradients
from lumc.train import adam

def build(d=512, more=1):
    m, params = Model(), []
    x = m.input("x", (24, 8, d))
    for i in range(4):
        params.append(m.state(f"w{i}", (d, d * more)))
        x = (x @ params[-1]).relu() if more == 1 else x * (x @ params[-1]).sum(-1, keepdim=True)
    loss = (x * x).mean()
    m.output("loss", loss)
    adam(params, gradients(loss, params), m.input("lr", ()))
    return m

def huge():
    return build(16384, 64)
"""


def test_a_plan_lists_meshes_and_writes_a_timeline(lumc: Lumc) -> None:
    (lumc.folder / "s.py").write_text(STEP)
    lumc("import", "s.py:build", "-o", "s.lg")
    done = lumc.raw("shard", "s.lg", "--plan", "4xA100", "--dtype", "bf16", "--top", "3", "-v")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("plan: 4 A100, 24 rows in a step, ") and len(lines) == 5
    assert lines[1].split()[:5] == ["tp", "pp", "dp", "rows", "batches"]
    assert "  stage 0: w0 .. " in done.stderr
    assert "note: a model of data sheets, and nothing is measured" in done.stderr
    said = json.loads(
        lumc("shard", "s.lg", "--plan", "4xA100", "--top", "99", "--timeline", "t.json", "--json")
    )
    check("shard-plan", said)
    meshes = said["meshes"]
    assert [m["seconds"] for m in meshes] == sorted(m["seconds"] for m in meshes)
    assert all(len(m["stages"]) == m["pp"] for m in meshes)
    assert {m["tp"] * m["pp"] * m["dp"] for m in meshes} == {4}
    events = json.loads((lumc.folder / "t.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    first = meshes[0]
    assert len(spans) == 2 * first["pp"] * first["micro_batches"]
    assert {e["tid"] for e in spans} == set(range(first["pp"]))
    text = (lumc.folder / "s.lg").read_bytes()
    assert lumc.raw("shard", "-", "--plan", "2xH200", input=text).exit_code == 0


def test_what_cannot_be_planned_is_said(lumc: Lumc, model: str) -> None:
    for what in ("8", "8xZ80", "0xA100", "xA100", "8 A100", "-1xA100", "99999999xA100"):
        said = lumc.fails(2, "shard", model, "--plan", what)
        assert "expected devices such as 1024xH100, of V100, A100, H100" in said
    assert "name a --mesh, or devices to --plan for" in lumc.fails(2, "shard", model)
    both = lumc.fails(2, "shard", model, "--plan", "8xA100", "--mesh", "tp=2")
    assert "name a --mesh, or devices to --plan for" in both
    for more in (("--check",), ("--whole", "y"), ("--output", "r.lg"), ("--link", "1GB/s,1us")):
        said = lumc.fails(2, "shard", model, "--plan", "8xA100", *more)
        assert f"{more[0]} goes with --mesh" in said
    for more in (("--top", "3"), ("--dtype", "bf16"), ("--json",)):
        said = lumc.fails(2, "shard", model, "--mesh", "tp=2", *more)
        assert f"{more[0]} goes with --plan" in said
    lumc("shard", model, "--mesh", "tp=4", "-o", "r.lg")
    assert "E0140 --plan takes no graphs for a mesh" in lumc.fails(
        4, "shard", "r.lg", "--plan", "8xA100"
    )
    said = lumc.fails(4, "shard", model, "--plan", "7xA100")
    assert "E0142 32 rows are not divided by any mesh of 7 A100" in said
    (lumc.folder / "s.py").write_text(STEP)
    lumc("import", "s.py:huge", "-o", "h.lg")
    one = SQUARE.partition("\n")[2]
    (lumc.folder / "two.lg").write_text(f"lumc graph 1\nentry a\n{one}entry b\n{one}")
    several = lumc.fails(2, "shard", "two.lg", "--plan", "8xA100")
    assert "E0203 --plan takes a graph of one entry" in several and "a, b" in several
    said = lumc.fails(4, "shard", "h.lg", "--plan", "1xV100")
    assert "E0142 no mesh of 1 V100 holds a step: the least is " in said


def test_all_ranks_run_by_one_command(lumc: Lumc, model: str) -> None:
    """Whole arrays in and out, and states that go on with one process."""
    lumc("shard", model, "--mesh", "tp=4", "-o", "r.lg")
    lumc("search", "r.lg", "-o", "r.ls")  # the passes one by one; docs/mesh.md compiles at once
    lumc("profile", "r.ls", "--estimate", "-o", "r.lp")
    lumc("codegen", "r.lp", "-o", "r.lk")
    assert "exchange(" in lumc("show", "r.lk")
    lumc("link", "r.lk", "-o", "r.lb")
    lumc("compile", model, "--estimate", "-o", "m.lb")
    x = np.random.default_rng(1).normal(size=(32, 64)).astype("f4")
    np.save("x.npy", x)
    said = lumc("run", "r.lb", "--mesh", "--input", "x.npy")
    assert said.startswith("y float32[32, 64] min ")
    for bundle, more in (("r.lb", ["--mesh"]), ("m.lb", [])):
        for turn in range(2):
            out = f"{bundle}{turn}.npz"
            how = "--input", "x.npy", "--state", f"{bundle}.safetensors", "-o", out
            lumc("run", bundle, *more, *how)
            assert load_file(f"{bundle}.safetensors")["kept"].shape == (64,)
    for turn in range(2):
        with np.load(f"r.lb{turn}.npz") as got, np.load(f"m.lb{turn}.npz") as want:
            for name in ("y", "z"):
                np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=1e-5)
    lumc("run", "m.lb", "--input", "x.npy", "--state", "r.lb.safetensors", "-o", "on.npz")
    assert "this bundle is for 4 ranks (tp 4): start it with --mesh" in lumc.fails(
        2, "run", "r.lb", "--input", "x.npy"
    )
    assert "leave --mesh out" in lumc.fails(2, "run", "m.lb", "--mesh", "--input", "x.npy")
    assert "lumc-run BUNDLE --mesh --repeat" in lumc.fails(
        2, "run", "r.lb", "--mesh", "--input", "x.npy", "--trace", "t.json"
    )
    gpu = lumc.fails(7, "run", "r.lb", "--mesh", "--device", "cuda", "--input", "x.npy")
    assert "E0708 the bundle has no plan for cuda" in gpu
    np.save("x.npy", x[:3])
    assert "E0610" in lumc.fails(2, "run", "r.lb", "--mesh", "--input", "x.npy")
    rows = lumc("verify", "r.lb", "--mesh", "--source", model).splitlines()
    assert [row.split(":")[0] for row in rows] == [
        "ok   y against oracle",
        "ok   z against oracle",
        "ok   state kept against oracle",
        f"ok   y against {model}",
        f"ok   z against {model}",
    ]
    assert "start it with --mesh" in lumc.fails(2, "verify", "r.lb")
    assert "E0140 --bisect takes no graphs for a mesh" in lumc.fails(
        4, "verify", "r.lb", "--mesh", "--bisect"
    )
