"""Weights of strangers: known by their content, and read from the folder of the graph only."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from commands import Lumc
from lumc.artifacts.files import graph_digest, read_graph, require_near
from lumc.disk import weights
from lumc.disk.weights import read_weight, weight_file
from lumc.errors import Exit, LumcError

TEXT = """lumc graph 1
file "{path}" size {size} sha256 {digest}
weight w f32[4, 3] "{path}" "w"
input x f32[4, 3]
y f32[i:4, j:3] = add x[i, j], w[i, j]
output y = y
"""


def saved(folder: Path, first: float = 0.0, name: str = "w.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    values = np.arange(12, dtype="f4").reshape(4, 3)
    values[0, 0] = first
    save_file({"w": values}, folder / name)
    return folder / name


def graph_of(weights: Path, graph: Path, path: str = "") -> Path:
    """A .lg that calls its weights by the path."""
    file = weight_file(weights, graph.parent)
    said = TEXT.format(path=path or file.path, size=file.size, digest=file.sha256)
    graph.write_text(said)
    return graph


def test_other_values_are_another_model(tmp_path: Path) -> None:
    """Two files of one size and one header."""
    one, two = saved(tmp_path / "a", 1.0), saved(tmp_path / "b", 2.0)
    assert one.read_bytes()[:-48] == two.read_bytes()[:-48]
    graphs = [read_graph(str(graph_of(w, w.parent / "m.lg")), {}) for w in (one, two)]
    assert len({graph_digest(g) for g in graphs}) == 2


def test_values_that_changed_in_place_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path)
    graph = read_graph(str(graph_of(file, tmp_path / "m.lg")), {})
    (w,) = graph.weights
    assert read_weight(w, tmp_path)[0, 0] == 0
    saved(tmp_path, 42.0)
    with pytest.raises(LumcError, match="not the one that was imported") as e:
        read_weight(w, tmp_path)
    assert e.value.code == "E0503" and e.value.exit == Exit.CORRUPT


def test_a_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read_graph(str(graph_of(saved(tmp_path, 7.5), tmp_path / "m.lg")), {})
    weights._hashed.cache_clear()
    for _ in range(3):
        read_weight(graph.weights[0], tmp_path)
    assert weights._hashed.cache_info().misses == 1


@pytest.mark.parametrize("how", ["absolute", "upwards", "a link"])
def test_files_elsewhere_must_be_allowed(how: str, tmp_path: Path, lumc: Lumc) -> None:
    secret, home = saved(tmp_path / "a secret"), tmp_path / "stranger"
    home.mkdir()
    if how == "a link":
        (home / "w.safetensors").symlink_to(secret)
    paths = {
        "absolute": str(secret),
        "upwards": "../a secret/w.safetensors",
        "a link": "w.safetensors",
    }
    file = graph_of(secret, home / "m.lg", paths[how])
    said = lumc.fails(5, "compile", "--estimate", file, "-o", "out.lb")
    assert "E0506" in said and f"--allow-path '{secret.parent}'" in said
    assert not (tmp_path / "out.lb").exists()
    graph = read_graph(str(file), {})
    require_near(graph, str(file), [str(secret.parent)])
    with pytest.raises(LumcError, match="outside"):
        require_near(graph, str(file), [str(home)])
    os.chdir(secret.parent)
    require_near(graph, "-")  # of a pipe, the current folder


def test_kernels_of_a_stranger_too(tmp_path: Path, lumc: Lumc) -> None:
    """The path is in every artifact that is made of the graph."""
    secret, home = saved(tmp_path / "secret"), tmp_path / "stranger"
    home.mkdir()
    lumc("search", graph_of(secret, home / "m.lg", str(secret)), "-o", home / "m.ls")
    lumc("profile", "--estimate", home / "m.ls", "-o", home / "m.lp")
    lumc("codegen", home / "m.lp", "-o", home / "m.lk")
    assert "E0506" in lumc.fails(5, "link", home / "m.lk", "-o", "out.lb")
    lumc("link", home / "m.lk", "--allow-path", secret.parent, "-o", "out.lb")
    assert "E0506" in lumc.fails(5, "verify", "out.lb", "--source", home / "m.lg")
    lumc("verify", "out.lb", "--source", home / "m.lg", "--allow-path", secret.parent)
