"""Every pass on its own, in pipes and in a row; options, exit codes, and what is left behind."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import MATMUL, Lumc
from lumc.codegen.tile import passes as tile_passes
from lumc.codegen.tile.program import Program


@pytest.fixture
def matmul(lumc: Lumc) -> Lumc:
    Path("m.lg").write_text(MATMUL)
    return lumc


def save_inputs(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((16, 48)), rng.standard_normal((48, 32))
    np.save("x.npy", x.astype(np.float32))
    np.save("w.npy", w.astype(np.float32))
    return x.astype(np.float32), w.astype(np.float32)


def tree(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_byte_order_mark_is_skipped(matmul: Lumc) -> None:
    """Some editors write one."""
    Path("n.lg").write_bytes(b"\xef\xbb\xbf" + Path("m.lg").read_bytes())
    matmul("search", "m.lg", "-o", "m.ls")
    matmul("search", "n.lg", "-o", "n.ls")
    assert Path("n.ls").read_bytes() == Path("m.ls").read_bytes()


def test_single_passes_and_compile_give_the_same_bundle(matmul: Lumc) -> None:
    matmul("search", "m.lg", "-o", "m.ls")
    matmul("profile", "--estimate", "m.ls", "-o", "m.lp")
    matmul("codegen", "m.lp", "-o", "m.lk")
    matmul("link", "m.lk", "-o", "m.lb")
    matmul("compile", "--estimate", "m.lg", "-o", "n.lb", "--save-temps", "temps")
    assert tree("m.lb") == tree("n.lb")
    assert {p.name for p in Path("temps").iterdir()} >= {"n.ls", "n.lp", "n.lk"}
    assert Path("temps/n.lk").read_text() == Path("m.lk").read_text()


def test_pipes_give_the_same_bundle_in_any_folder_and_hash_seed(matmul: Lumc) -> None:
    """The whole pipe as processes, in two folders and with two values of PYTHONHASHSEED."""
    found = []
    for seed in ("1", "2"):
        folder = Path(f"place{seed}")
        folder.mkdir()
        shutil.copy("m.lg", folder)
        lumc = f"{sys.executable} -m lumc"
        passes = ("profile --estimate", "codegen", "link -o m.lb")
        pipe = " | ".join(f"{lumc} {p}" for p in ("search m.lg", *passes))
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(
            ["bash", "-c", f"set -e -o pipefail; {pipe}"], cwd=folder, env=env, check=True
        )
        found.append(tree(str(folder / "m.lb")))
    assert found[0] == found[1]


def test_run_verify_bench_and_the_native_runner(matmul: Lumc) -> None:
    matmul("compile", "--estimate", "m.lg", "-o", "m.lb")
    x, w = save_inputs()
    matmul(
        "run", "m.lb", "--input", "x=x.npy", "--input", "w=w.npy", "-o", "y.npy", "--threads", "2"
    )
    assert np.allclose(np.load("y.npy"), x @ w, atol=1e-4)
    np.savez("in.npz", x=x, w=w)
    matmul("run", "m.lb", "--input", "in.npz", "-o", "out.npz")
    assert np.allclose(np.load("out.npz")["y"], x @ w, atol=1e-4)
    rows = json.loads(matmul("verify", "m.lb", "--json"))
    assert rows[0]["output"] == "y" and rows[0]["ok"] and rows[0]["relative_l2"] < 1e-6
    figures = json.loads(matmul("bench", "m.lb", "--json", "--seconds", "0.05", "--threads", "2"))
    assert figures["threads"] == 2 and 0 < figures["min_us"] <= figures["median_us"]
    assert figures["median_us"] <= figures["p90_us"] and figures["iterations"] > 0
    native = [
        "m.lb/bin/lumc-run",
        "m.lb",
        "--input",
        "x=x.npy",
        "--input",
        "w=w.npy",
        "-o",
        "y=z.npy",
    ]
    subprocess.run(native, check=True, capture_output=True)
    assert np.array_equal(np.load("z.npy"), np.load("y.npy"))


def test_show_says_what_the_bundle_holds(matmul: Lumc) -> None:
    matmul("compile", "--estimate", "m.lg", "-o", "m.lb")
    body = json.loads(matmul("show", "m.lb", "--json"))
    assert body["inputs"] == [
        {"name": "x", "dtype": "f32", "shape": [16, 48]},
        {"name": "w", "dtype": "f32", "shape": [48, 32]},
    ]
    assert body["outputs"] == [{"name": "y", "dtype": "f32", "shape": [16, 32]}]
    assert len(body["kernels"]) == 1 and body["kernels"][0]["regions"] == 1
    for field in ("targets", "arena_bytes", "arena_bytes_without_reuse", "weight_bytes"):
        assert field in body
    assert "void " in matmul("show", "m.lb", "--kernel", body["kernels"][0]["name"])


def test_tile_programs_are_shown(matmul: Lumc) -> None:
    matmul("search", "m.lg", "--target", "cpu:generic", "-o", "m.ls")
    matmul("profile", "--estimate", "m.ls", "-o", "m.lp")
    text = matmul("show", "--tile", "m.lp")
    assert text.startswith("tile program '") and "contract " in text
    assert matmul("show", "--tile", "m.lp", "--kernel", "sum") == text
    said = matmul.raw("codegen", "-vv", "--check-tiles", "m.lp", "-o", "m.lk").stderr
    assert text.strip() in said and "lower:\ntile program" in said and ": as before" in said
    assert "only plans have tile programs" in matmul.fails(2, "show", "--tile", "m.lg")


def test_a_wrong_tile_program_is_told(matmul: Lumc, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(program: Program) -> Program:
        return replace(program, body=program.body[1:])

    step = next(p for p in tile_passes.PASSES if p.name == "finish windows")
    changed = [p._replace(run=forgets) if p is step else p for p in tile_passes.PASSES]
    monkeypatch.setattr(tile_passes, "PASSES", tuple(changed))
    matmul("search", "m.lg", "--target", "cpu:generic", "-o", "m.ls")
    matmul("profile", "--estimate", "m.ls", "-o", "m.lp")
    said = matmul.fails(1, "codegen", "--check-tiles", "m.lp", "-o", "m.lk")
    assert "E0417 after 'finish windows' the tile program is wrong: " in said


@pytest.mark.parametrize("kind", ["lg", "ls", "lp", "lk", "lb"])
def test_show_prints_and_draws_every_artifact(matmul: Lumc, kind: str) -> None:
    matmul("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    assert len(matmul("show", f"m.{kind}").splitlines()) > 2
    assert json.loads(matmul("show", f"m.{kind}", "--json"))
    assert matmul("show", f"m.{kind}", "--dot", "-").startswith("digraph")
    matmul("show", f"m.{kind}", "--svg", "m.svg")
    assert Path("m.svg").read_text().startswith("<svg")


def test_symbolic_dims_are_bound_or_those_of_each_run(lumc: Lumc) -> None:
    text = MATMUL.replace("lumc graph 1", "lumc graph 1\ndim b in 1..64").replace("16", "b")
    Path("m.lg").write_text(text.replace("m:b", "m:b"))
    lumc("compile", "--estimate", "m.lg", "--dim", "b=3", "-o", "m.lb")
    (row,) = json.loads(lumc("verify", "m.lb", "--json"))
    assert row["ok"] and "dims" not in row
    lumc.fails(2, "compile", "m.lg", "--dim", "b", "-o", "n.lb")
    assert "65" in lumc.fails(2, "compile", "m.lg", "--dim", "b=65", "-o", "n.lb")
    assert "1..65" in lumc.fails(2, "compile", "m.lg", "--dim", "b=1..65", "-o", "n.lb")
    assert not Path("n.lb").exists()
    lumc("compile", "--estimate", "m.lg", "--dim", "b=4..48:4", "-o", "n.lb", "--save-temps", "t")
    rows = json.loads(lumc("verify", "n.lb", "--json"))
    assert all(r["ok"] for r in rows)
    assert sorted(r["dims"] for r in rows) == ["b=20", "b=36", "b=4", "b=48", "b=8"]
    said = json.loads(lumc("bench", "n.lb", "--dim", "b=8", "--seconds", "0.01", "--json"))
    assert said["dims"] == "b=8"
    np.save("x.npy", np.ones((12, 48), "f4"))
    np.save("w.npy", np.ones((48, 32), "f4"))
    given = ("--input", "x=x.npy", "--input", "w=w.npy")
    lumc("run", "n.lb", *given, "-o", "y.npy")
    assert np.load("y.npy").shape == (12, 32)
    assert "12 in the shape" in lumc.fails(2, "run", "n.lb", *given, "--dim", "b=8")
    np.save("x.npy", np.ones((13, 48), "f4"))
    assert "multiple 4" in lumc.fails(2, "run", "n.lb", *given)
    assert "dim b in 4..48 multiple 4" in Path("n.lb/graph.lg").read_text()
    lumc("link", "t/n.lk", "--emit", "c", "-o", "c")
    assert "DIM_B_MOST 48" in Path("c/include/c.h").read_text()


@pytest.mark.parametrize(
    ("exit", "args"),
    [
        (2, ("compile", "m.lg")),
        (2, ("search", "missing.lg")),
        (2, ("run", "missing.lb")),
        (2, ("compile", "m.lg", "-o", "m.lb", "--target", "cpu:z80")),
        (7, ("compile", "m.lg", "-o", "m.lb", "--cc", "no-such-compiler")),
        (5, ("profile", "m.lg")),
        (5, ("codegen", "torn.lp")),
        (5, ("search", "binary.lg")),
        (2, ("import", "nothing-here")),
        (2, ("show", "m.lg", "--kernel", "k")),
        (1, ("import", "m.lg", "-o", ".")),
        (1, ("compile", "m.lg", "-o", "none/m.lb")),
        (2, ("compile", "m.lg", "-o", "m.lg")),
        (5, ("run", "m.lg")),
    ],
)
def test_wrong_usage_is_one_message_with_the_right_code(
    matmul: Lumc, exit: int, args: tuple[str, ...]
) -> None:
    Path("torn.lp").write_text('{"lumc":"plan","schema":1,\n"inp')
    Path("binary.lg").write_bytes(bytes(range(256)))
    before = sorted(os.listdir("."))
    said = matmul.fails(exit, *args)
    assert "Traceback" not in said
    assert sorted(os.listdir(".")) == before


def test_a_graph_where_an_artifact_belongs_is_called_one(matmul: Lumc) -> None:
    said = matmul.fails(5, "codegen", "m.lg")
    assert "but a graph" in said and "'lumc import'" in said and "'lumc profile'" in said


def test_an_output_that_cannot_be_is_refused_before_the_work(matmul: Lumc) -> None:
    assert "search:" not in matmul.fails(1, "compile", "m.lg", "-o", "none/m.lb")
    assert "search:" not in matmul.fails(2, "compile", "m.lg", "-o", "m.lg")
    assert "search:" not in matmul.fails(2, "compile", "m.lg", "-o", "m.lb", "--budget", "soon")


@pytest.mark.parametrize(
    ("exit", "said", "args"),
    [
        (2, b"nothing to read on stdin", ("search",)),
        (1, b"cannot use m.lg/x", ("compile", "m.lg", "-o", "m.lb", "--save-temps", "m.lg/x")),
    ],
)
def test_what_the_system_refuses_is_one_message(
    matmul: Lumc, exit: int, said: bytes, args: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "lumc", *args]
    process = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert (process.returncode, said in process.stderr) == (exit, True), process.stderr
    assert os.listdir(".") == ["m.lg"]


def test_inputs_that_do_not_fit_are_named(matmul: Lumc) -> None:
    matmul("compile", "--estimate", "m.lg", "-o", "m.lb")
    save_inputs()
    assert "w" in matmul.fails(2, "run", "m.lb", "--input", "x=x.npy")
    assert "which input" in matmul.fails(2, "run", "m.lb", "--input", "x.npy")
    said = matmul.fails(2, "run", "m.lb", "--input", "x=w.npy", "--input", "w=w.npy")
    assert "[16, 48]" in said and "[48, 32]" in said
    matmul.fails(2, "run", "m.lb", "--input", "q=x.npy")
    assert "not an .npy" in matmul.fails(5, "run", "m.lb", "--input", "x=m.lg")


def test_verify_ends_with_3_on_a_difference(matmul: Lumc) -> None:
    """A bundle whose kernel subtracts: compiled from a wrong source, hashes and all right."""
    matmul("search", "m.lg", "-o", "m.ls")
    wrong = Path("m.lg").read_text().replace("mul x[m, k], w[k, n]", "add x[m, k], w[k, n]")
    Path("w.lg").write_text(wrong)
    matmul("compile", "--estimate", "w.lg", "-o", "w.lb", "--save-temps", ".")
    matmul("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    from lumc.disk import artifact

    right = artifact.parse(Path("m.lk").read_text(), "kernels", "", Path())
    other = artifact.parse(Path("w.lk").read_text(), "kernels", "", Path())
    body = {**other.body, "graph": right.body["graph"]}
    Path("bad.lk").write_text(artifact.dump("kernels", right.input, body))
    matmul("link", "bad.lk", "-o", "bad.lb")
    assert "FAIL" in matmul.fails(3, "verify", "bad.lb")


def test_an_update_of_nothing(lumc: Lumc) -> None:
    update = "update s[a + 9, b + 6] = x[a, b]"
    text = f"lumc graph 1\nstate s f32[13, 48]\ninput x f32[0, 17]\n{update}\n"
    Path("m.lg").write_text(text)
    lumc("search", "m.lg", "-o", "m.ls")
    lumc("profile", "--estimate", "m.ls", "-o", "m.lp")
    lumc("codegen", "m.lp", "-o", "m.lk")
    assert json.loads(Path("m.lk").read_text())["entries"][0]["launches"] == []


def test_interrupted_commands_leave_no_torn_file(matmul: Lumc) -> None:
    """Killed after a while, over and over: a file is absent, old or complete, never half."""
    matmul("compile", "--estimate", "m.lg", "-o", "whole.lb")
    whole = tree("whole.lb")
    command = [sys.executable, "-m", "lumc", "compile", "--estimate", "m.lg", "-o", "m.lb"]
    for tenths in (1, 2, 3, 4, 5, 7, 9, 12):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            process.wait(tenths / 10)
        except subprocess.TimeoutExpired:
            process.send_signal(2 if tenths % 2 else 9)
            process.wait()
        if Path("m.lb").exists():
            assert tree("m.lb") == whole


def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'lumc.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "lumc", "--version"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")
