"""--dtype and --weights: where they stand, what they cost, and what is said about it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from commands import Lumc

SCRIPT = """
import numpy as np
from lumc.frontend import Model

def build():
    g, rng = Model(), np.random.default_rng(3)
    x = g.input("x", (3, 64))
    w1 = g.constant(rng.standard_normal((96, 64)).astype("f4") / 8, "w1")
    w2 = g.constant(rng.standard_normal((40, 96)).astype("f4") / 8, "w2")
    g.output("y", (x @ w1.transpose(0, 1)).relu() @ w2.transpose(0, 1))
    return g

def huge():
    g = Model()
    w = g.constant(np.array([[1, 2], [7e4, -1e9]], "f4"), "w")
    g.output("y", g.input("x", (3, 2)) @ w)
    return g
"""
LIMITS = {"--dtype=bf16": 1e-2, "--dtype=f16": 2e-3, "--weights=q8": 2e-2}


@pytest.fixture
def model(lumc: Lumc) -> Lumc:
    Path("m.py").write_text(SCRIPT)
    lumc("import", "m.py:build", "-o", "m.lg")
    return lumc


@pytest.mark.parametrize("option", LIMITS)
def test_import_search_and_compile_agree(model: Lumc, option: str) -> None:
    model("import", "m.py:build", option, "-o", "n.lg")
    model("search", "n.lg", "-o", "a.ls")
    model("search", "m.lg", option, "-o", "b.ls")
    model("compile", "m.lg", option, "--estimate", "--save-temps", "t", "-o", "m.lb")
    bodies = [json.loads(Path(p).read_text()) for p in ("a.ls", "b.ls", "t/m.ls")]
    assert bodies[0]["input"] == bodies[1]["input"] == bodies[2]["input"]
    assert bodies[0]["graph"] == bodies[1]["graph"] == bodies[2]["graph"]


@pytest.mark.parametrize("option", LIMITS)
def test_the_error_is_shown_and_bounded(model: Lumc, option: str) -> None:
    model("compile", "m.lg", option, "--estimate", "-o", "m.lb")
    rows = json.loads(model("verify", "m.lb", "--source", "m.lg", "--json"))
    assert [r["against"] for r in rows] == ["oracle", "m.lg"]
    assert 1e-5 < rows[1]["relative_l2"] < LIMITS[option]
    said = model.fails(3, "verify", "m.lb", "--source", "m.lg", "--tolerance", "1e-6")
    assert "FAIL y against m.lg: relative L2" in said


def test_the_bundle_holds_what_is_read_in_the_dtype_that_is_read(model: Lumc) -> None:
    """A single row is memory: its weights stay as they are stored."""
    Path("m.py").write_text(SCRIPT.replace("(3, 64)", "(1, 64)"))
    for option, kinds in (("--dtype=bf16", {"BF16"}), ("--weights=q8", {"I8", "F32"})):
        model("import", "m.py:build", option, "-o", "row.lg")
        model("compile", "row.lg", "--estimate", "-o", "row.lb")
        with safe_open("row.lb/weights.safetensors", "numpy") as f:
            found = {
                f.get_slice(k).get_dtype()
                for k in f.keys()  # noqa: SIM118
                if not k.startswith("__pad")
            }
        assert found == kinds
        model("verify", "row.lb")


def test_values_beyond_f16_are_inf_and_said(lumc: Lumc) -> None:
    Path("m.py").write_text(SCRIPT)
    lumc("import", "m.py:huge", "-o", "m.lg")
    result = lumc.raw("compile", "m.lg", "--dtype=f16", "--estimate", "-o", "m.lb")
    assert result.exit_code == 0
    assert "warning: 2 values of weight 'w' are infinite in f16" in result.output
    np.save("x.npy", np.ones((3, 2), "f4"))
    lumc("run", "m.lb", "--input", "x.npy", "-o", "y.npy")
    np.testing.assert_array_equal(np.load("y.npy"), [[np.inf, -np.inf]] * 3)
    result = lumc.raw("compile", "m.lg", "--dtype=bf16", "--estimate", "-o", "m.lb")
    assert "warning" not in result.output


@pytest.mark.parametrize("command", ["import", "search", "compile"])
@pytest.mark.parametrize("option", ["--dtype=f8", "--dtype=f32", "--weights=q4", "--dtype="])
def test_unknown_choices_are_usage_errors(model: Lumc, command: str, option: str) -> None:
    source = "m.py:build" if command == "import" else "m.lg"
    assert "Invalid value" in model.fails(2, command, source, option, "-o", "out")
    assert not Path("out").exists()


def test_states_and_inputs_keep_working(lumc: Lumc) -> None:
    """A file for the f32 input, a state of 16 bits on disk."""
    Path("s.lg").write_text(
        "lumc graph 1\nstate s f32[4]\ninput x f32[4]\nt f32[i] = add x[i], s[i]\n"
        "output y = t\nupdate s[i] = t[i]\n"
    )
    lumc("compile", "s.lg", "--dtype=bf16", "--estimate", "-o", "s.lb")
    x = np.array([1, 0.5, -3, 1 / 3], "f4")
    np.save("x.npy", x)
    for i in (1, 2):
        lumc("run", "s.lb", "--input", "x.npy", "--state", "s.npz", "-o", "y.npy")
        np.testing.assert_allclose(np.load("y.npy"), i * x, rtol=4e-3)
    assert np.load("s.npz")["s"].dtype == np.uint16
