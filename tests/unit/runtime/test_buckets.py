"""Bundles with several buckets: at every length, and what is left of another run is never read."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import lumc
from bundles import NATIVE, build
from live import ATTENTION, Array
from lumc.bundle import planfile
from lumc.bundle.reader import decode
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.graph.bind import bind_dims
from lumc.graph.buckets import with_points
from lumc.graph.text import parse_graph
from lumc.link import trial
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search
from searching import random_values

ENDS = (1, 4, 7, 16)
TIMEOUT_S = 10.0
# of both dims: the ends of buckets, and the values beside them
LENGTHS = [(p, s) for s in (1, 2, 3, 4, 5, 6, 7, 8, 15, 16) for p in (0, 5, 6, 7, 24)]


@cache
def code(text: str = ATTENTION) -> Code:
    tuned = with_points(parse_graph(text), {"s": ENDS[:-1], "p": (6,)})
    return generate(estimate(search(tuned, NATIVE, inside=True)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return build(code(), folder / "m.lb", folder)


def case(p: int, s: int) -> tuple[dict[str, Array], Array, Array]:
    """Inputs, the state before, and y."""
    graph = parse_graph(ATTENTION)
    sizes = {"q": (4, s, 8), "k": (2, s, 8), "v": (2, p + s, 8)}
    given = {
        n.name: random_values(n)[tuple(slice(size) for size in sizes[n.name])].astype(np.float32)
        for n in graph.entries[0].inputs
    }
    states = {n.name: random_values(n).astype(np.float32) for n in graph.states}
    dims = {"p": p, "s": s}
    out, _ = evaluate(graph, "main", given, random_values, states, dims=dims)
    states["K"][:, p + s :] = np.nan
    return given, states["K"], out["y"]


def test_every_length_after_a_run_that_leaves_nan_everywhere(made: Path) -> None:
    with lumc.load(made) as model:
        for p, s in LENGTHS:
            model.set_state({"K": np.full((2, 40, 8), np.nan, np.float32)})
            shapes = {"q": (4, 16, 8), "k": (2, 16, 8), "v": (2, 40, 8)}
            spoilt = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
            model.run(spoilt, dims={"p": 24})
            given, before, want = case(p, s)
            model.set_state({"K": before})
            got = model.run(given, dims={"p": p})["y"]
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=f"p={p} s={s}")
            after = model.state()["K"]
            np.testing.assert_array_equal(after[:, p : p + s], given["k"])
            assert np.isnan(after[:, p + s :]).all()


def test_a_list_for_each_bucket(made: Path) -> None:
    (plan,) = (made / "plan").glob("*.bin")
    (entry,) = decode(plan.read_bytes()).entries
    assert [e.bounds for e in entry.lists] == [(p, s) for p in (6, 24) for s in ENDS]
    assert [e.shapes[0] for e in entry.lists[:4]] == [(4, s, 8) for s in ENDS]
    assert [e.shapes[2][1] for e in entry.lists] == [p + s for p in (6, 24) for s in ENDS]
    said = subprocess.run([made / "bin/lumc-run", made, "--list"], capture_output=True, text=True)
    assert "  tuned  p=6 s=1\n  tuned  p=6 s=4\n" in said.stdout
    subprocess.run([made / "bin/lumc-run", made, "--check"], check=True)


def test_a_bucket_of_one_value_is_the_static_graph(made: Path, tmp_path: Path) -> None:
    """Its kernels are those of a graph that has this value, byte for byte."""
    graph = bind_dims(parse_graph(ATTENTION), {"s": 1})
    fixed = generate(estimate(search(graph, NATIVE, inside=True)))
    (entry,) = fixed.entries
    one = next(e for e in code().entries if e.name == "main@p24.s1")
    keys = [{k.symbol: k.key for k in c.kernels} for c in (fixed, code())]
    assert [keys[0][x.kernel] for x in entry.launches] == [keys[1][x.kernel] for x in one.launches]
    (tmp_path / "m.lg").write_text(ATTENTION)
    given, before, _ = case(24, 1)
    with lumc.load(made) as model, lumc.load(build(fixed, tmp_path / "1.lb", tmp_path)) as static:
        for each in (model, static):
            each.set_state({"K": before})
        got, want = (each.run(given, dims={"p": 24})["y"] for each in (model, static))
    np.testing.assert_array_equal(got, want)


# ---- mutants


def runs_right(bundle: Path, folder: Path) -> bool:
    """A few lengths, by the runner of the bundle in processes of their own."""
    for p, s in ((0, 2), (5, 5), (24, 8), (6, 16)):
        given, _, _ = case(p, s)
        given = {name: np.nan_to_num(v) for name, v in given.items()}
        command: list[str | Path] = [bundle / "bin/lumc-run", bundle, "--dim", f"p={p}"]
        for name, value in given.items():
            np.save(folder / f"{name}.npy", value)
            command += ["--input", f"{name}={folder / name}.npy"]
        out = folder / "y.npy"
        out.unlink(missing_ok=True)
        try:
            subprocess.run([*command, "-o", out], check=True, timeout=TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
        zeros = {"K": np.zeros((2, 40, 8), np.float32)}
        dims = {"p": p, "s": s}
        graph = parse_graph(ATTENTION)
        want = evaluate(graph, "main", given, random_values, zeros, dims=dims)[0]["y"]
        got = np.load(out)
        if got.shape != want.shape or not np.allclose(got, want, rtol=2e-5, atol=2e-6):
            return False
    return True


MUTANTS = [
    ("live.c", ".value <= p->lists[i].bounds[k]", ".value <= p->lists[i].bounds[k] + 1"),
    ("live.c", "  d->value = value;\n  update(v);", "  d->value = value;"),
    ("model.c", "*list = live_list(&m->live, e);", "*list = e->first_list;"),
    (
        "live.c",
        "const lumc_tensor *most = &l->inputs[i];",
        "const lumc_tensor *most = &e->inputs[i];",
    ),
]


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=["bound", "stale", "first", "room"])
def test_runners_that_choose_or_copy_wrong_die(
    patched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    """Kernels may not end where there is more than they are for."""
    monkeypatch.setattr(trial, "TIMEOUT_S", TIMEOUT_S)
    text = (patched / name).read_text()
    assert text.count(old) == 1
    (patched / name).write_text(text.replace(old, new))
    try:
        bundle = build(code(), tmp_path / "m.lb", tmp_path)
    except lumc.Error as e:
        assert e.code == "E0709"
    else:
        assert not runs_right(bundle, tmp_path)


def test_launches_of_another_bucket_die(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs_right(made, tmp_path)
    right = planfile.lists_of

    def turned(code: planfile.Code, entry: str) -> list[tuple[planfile.EntryPlan, planfile.Entry]]:
        lists = right(code, entry)
        return [(lists[0][0] if i == 1 else plan, e) for i, (plan, e) in enumerate(lists)]

    monkeypatch.setattr(planfile, "lists_of", turned)
    with pytest.raises(lumc.Error, match="a list has no room for its lengths"):
        build(code(), tmp_path / "m.lb", tmp_path)
