"""Bundles with dims known at run time only: one for all lengths, from Python and natively, against
the oracle, where what is beyond a length is left from a longer run."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bundles import build
from compiling import link
from kernels import native
from live import (
    ATTENTION,
    CUBE,
    DECODE,
    MOVED,
    NAMES,
    NORM,
    POINTS,
    SOFTMAX,
    TOTALS,
    Dims,
    case,
    with_weights,
    worst,
)
from lumc.bundle import extents, manifest, planfile
from lumc.codegen.generate import generate
from lumc.errors import LumcError
from lumc.graph.expr import add
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.target import Target
from lumc.link import runners
from lumc.profile.choose import estimate
from lumc.runtime import cpu, opened
from lumc.runtime.cpu import Bundle
from lumc.search import search
from searching import error


def compiled(text: str, folder: Path, target: Target | None = None) -> Path:
    graph = with_weights(text, folder)
    plan = estimate(search(graph, target or replace(native(), threads=2), inside=True))
    in_steps = any("_" in b.name for r in plan.regions.values() for b in r.local)
    assert in_steps == (target is not None)
    return build(generate(plan), folder / f"{NAMES.get(text, 'm')}.lb", folder)


@pytest.fixture(scope="module", params=POINTS, ids=NAMES.values())
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Graph, list[Dims]]:
    text = request.param
    return compiled(text, tmp_path_factory.mktemp("m")), parse_graph(text), POINTS[text]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_bundle_runs_every_length(made: tuple[Path, Graph, list[Dims]], threads: int) -> None:
    path, graph, points = made
    with Bundle.open(path) as b:
        assert worst(b, graph, points, threads) < 1e-5


def test_more_dims_than_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "KEPT", 2)
    with Bundle.open(compiled(SOFTMAX, tmp_path)) as b:
        assert worst(b, parse_graph(SOFTMAX), POINTS[SOFTMAX], 1) < 1e-5
        assert len(POINTS[SOFTMAX]) > 2 >= len(b._met) > 0


@pytest.mark.parametrize("name", ["decode", "totals"])
def test_long_reductions_in_two_steps(name: str, tmp_path: Path) -> None:
    """More threads than there are results: parts of reductions, of any length."""
    text, points = {
        "decode": (DECODE.replace("1079", "8639").replace("1080", "8640"), (8639, 0, 1, 479, 480)),
        "totals": (TOTALS.replace("3607", "360700"), (360700, 1, 2, 30000)),
    }[name]
    path = compiled(text, tmp_path, replace(native(), threads=16))
    (dim,) = parse_graph(text).dims
    with Bundle.open(path) as b:
        for threads in (1, 3, 16):
            assert worst(b, parse_graph(text), [{dim: n} for n in points], threads) < 1e-5


def test_the_native_runner_finds_the_dims(
    made: tuple[Path, Graph, list[Dims]], tmp_path: Path
) -> None:
    path, graph, points = made
    if graph.states:  # it has no files for them
        pytest.skip("its states cannot be given")
    for dims in points:
        given, want = case(graph, dims)
        command = [str(path / "bin" / "lumc-run"), str(path), "-o", "out.npz", "--threads", "2"]
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
            command += ["--input", f"{name}={name}.npy"]
        subprocess.run(command, check=True, cwd=tmp_path)
        with np.load(tmp_path / "out.npz") as got:
            for name, right in want.items():
                assert got[name].shape == right.shape and error(got[name], right) < 1e-5


# ---- mutants


def one_less(row: Callable[..., int]) -> Callable[..., int]:
    return lambda lengths, e: row(lengths, e) and row(lengths, add(e, -1))


MUTANTS = {  # of live.c: text, another one, what it is noticed on
    "stale dims": ("d->value = value;", "if (d->value == d->hi) d->value = value;", SOFTMAX),
    "a length off by one": ("*to = a + b; break;", "*to = a + b - 1; break;", ATTENTION),
    "rows as far apart as they are long": (
        "size = step * (size_t)most->shape[at];",
        "size = step * (size_t)now->shape[at];",
        SOFTMAX,
    ),
    "planes as far apart as they are large": (
        "size *= (size_t)most->shape[i--]",
        "size *= (size_t)now->shape[i--]",
        CUBE,
    ),
    "as many elements as there may be": (
        "run = step * (size_t)now->shape[at];",
        "run = step * (size_t)now->shape[at] - (now->shape[at] < 13 ? step : 0);",
        SOFTMAX,
    ),
    "outputs that are not copied": (
        "if (!is_whole(now, &l->outputs[i])) copy",
        "if (0) copy",
        NORM,
    ),
}


def changed(name: str, folder: Path) -> ctypes.CDLL:
    """The library with a mistake."""
    old, new, _ = MUTANTS[name]
    flags = ("-shared", "-fPIC", "-O0", "-std=gnu11")
    out = link(runners.LIBRARY, flags, folder / "liblumc.so", {"live": (old, new)})
    return cpu._declare(ctypes.CDLL(str(out)))


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_of_the_runner_are_noticed(name: str, tmp_path: Path) -> None:
    text = MUTANTS[name][2]
    path, library = compiled(text, tmp_path), changed(name, tmp_path)
    with Bundle(path, manifest.read(path), library, "cpu") as b:
        try:
            found = worst(b, parse_graph(text), POINTS[text], 1)
        except LumcError:
            found = np.inf
    assert not found < 1e-5


def test_a_length_that_is_one_less_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents.Lengths, "word", one_less(extents.Lengths.word))
    with Bundle.open(compiled(SOFTMAX, tmp_path)) as b, pytest.raises(LumcError):
        worst(b, parse_graph(SOFTMAX), POINTS[SOFTMAX], 1)


def test_a_dim_of_another_place_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(value: planfile.Value, place: planfile.Loading) -> bytes:
        return words(
            replace(value, offset=1 - value.offset) if value.place == "dim" else value, place
        )

    words = planfile._argument
    monkeypatch.setattr(planfile, "_argument", exchanged)
    graph = parse_graph(MOVED)
    with Bundle.open(compiled(MOVED, tmp_path)) as b:
        assert not worst(b, graph, POINTS[MOVED], 1) < 1e-5


# ---- what is refused


def refusal(b: Bundle, dims: Dims | None = None, **arrays: np.ndarray) -> str:
    with pytest.raises(LumcError) as e:
        b.run(arrays, dims=dims or {})
    assert e.value.code == "E0610"
    return e.value.what


def test_dims_that_do_not_fit_are_told(tmp_path: Path) -> None:
    f = np.float32
    q, k, v = np.zeros((4, 5, 8), f), np.zeros((2, 5, 8), f), np.zeros((2, 8, 8), f)
    with Bundle.open(compiled(ATTENTION, tmp_path)) as b:
        assert refusal(b, q=q, k=k, v=v) == "dim 'p' has no value, which no shape of an input tells"
        assert "input 'v' must be f32[2, p + s, 8], here f32[2, 9, 8]" in refusal(
            b, {"p": 4}, q=q, k=k, v=v
        )
        assert "is not in 0..24" in refusal(b, {"p": 25}, q=q, k=k, v=v)
        assert "dim s=17 is not in 1..16" in refusal(
            b, {"p": 3}, q=np.zeros((4, 17, 8), f), k=k, v=v
        )
        assert refusal(b, {"z": 1}, q=q, k=k, v=v) == "no dim 'z'"
        said = refusal(b, {"p": 3, "s": 4}, q=q, k=k, v=v)
        assert said == "dim 's' is 5 in the shape of 'q', but 4 by name"
        assert b.run({"q": q, "k": k, "v": v}, dims={"p": 3, "s": 5})["y"].shape == (4, 5, 8)
