"""Whole models planned for GPUs: every kernel on the emulators, race-checked, and the native runner
on the fake driver; against the oracle and onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import fake_hip
import fake_metal
import gpu_launching
from bundles import build
from checkpoints import BERT, bert_shapes, random_weights, write_folder
from fake_clang import Emulator as Clang
from fake_gpu import environment
from gpu_bundles import Emulator
from lumc.artifacts.files import read_graph
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.command.bundles import complete
from lumc.command.spaces import make_space
from lumc.disk.weights import read_weight
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.graph import Graph, Node
from lumc.kernel.machines import resolve_target
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.runtime import metal
from lumc.search.space import Space
from shorter import shorter

GRAPHS = Path(__file__).parents[2] / "graphs"
DIMS = {"b": 3, "s": 20, "n": 17}  # of the samples, where they are symbolic
TARGETS = ("cuda:sm_90", "metal:apple7", "hip:gfx942", "hip:gfx1100")
EXPORTS = {  # and the dims of their inputs
    "bert.torchscript": {"b": 2, "s": 9},
    "llama.torchscript": {"b": 1, "s": 7},
    "resnet.torchscript": {"b": 1},
}
# a MiniLM of two layers: all of its layers are equal
MINILM = {**BERT, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
MINILM |= {"vocab_size": 64, "max_position_embeddings": 32}
ERROR = 1e-5  # relative L2


class Model(NamedTuple):
    """A graph, the folder of its weights, its code for a GPU, and the search."""

    graph: Graph
    base: Path
    code: Code
    space: Space


def planned(graph: Graph, base: Path, targets: Sequence[str] = TARGETS) -> list[Model]:
    """For every target; they share the search, which knows of none."""
    space = make_space(graph, targets[0], 20_000)
    spaces = [replace(space, target=resolve_target(name)) for name in targets]
    return [Model(graph, base, generate(estimate(s)), space) for s in spaces]


def sample(path: Path, targets: Sequence[str]) -> list[Model]:
    graph = read_graph(str(path), {})
    bound = {d: DIMS[d] for d in graph.dims}
    return planned(read_graph(str(path), bound), path.parent, targets)


def exported(name: str, folder: Path) -> list[Model]:
    """An export of a small network, with random weights."""
    onnx_models = pytest.importorskip("onnx_models", exc_type=ImportError)
    from lumc.frontend.onnx import import_onnx

    onnx_models.with_weights(name, folder / f"{name}.onnx")
    lg = folder / f"{name}.lg"
    import_onnx(folder / f"{name}.onnx", dims=EXPORTS[name]).save(str(lg), {})
    return planned(read_graph(str(lg), {}), folder)


def inputs_and_outputs(m: Model) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs, and what the oracle makes of them in f64."""
    entry = m.graph.entries[0].name
    inputs = complete(m.graph, entry, {}, 0)
    want, _ = evaluate(m.graph, entry, inputs, lambda n: read_weight(n, m.base))
    return inputs, want


def assert_near(got: dict[str, np.ndarray], want: dict[str, np.ndarray], about: object) -> None:
    for name, value in want.items():
        known = ~np.isnan(value)  # the root of a negative variance is none
        assert np.array_equal(known, ~np.isnan(got[name])), f"{about}, {name}: NaN elsewhere"
        error = np.linalg.norm((got[name] - value)[known]) / np.linalg.norm(value[known])
        assert error < ERROR, f"{about}, {name}: relative error {error:.1e}"


def emulate(models: Sequence[Model], built: Path) -> None:
    """All kernels in one text, race-checked."""
    kernels = gpu_launching.module(built, [m.code for m in models], checked=True)
    for i, m in enumerate(models):
        inputs, want = inputs_and_outputs(m)

        def leaf(n: Node, m: Model = m, inputs: dict[str, np.ndarray] = inputs) -> np.ndarray:
            return inputs[n.name] if n.name in inputs else read_weight(n, m.base)

        entry = m.graph.entries[0].name
        got = gpu_launching.run(kernels, f"g{i}_", m.code, entry, leaf)
        assert_near(got, want, entry)


@pytest.mark.parametrize("target", shorter(TARGETS, 2))  # HIP: test_hip_kernels
def test_sample_graphs(target: str, built: Path) -> None:
    emulate([m for p in sorted(GRAPHS.glob("*.lg")) for m in sample(p, [target])], built)


@pytest.mark.deep
def test_exported_networks(built: Path, tmp_path: Path) -> None:
    every = [exported(name, tmp_path) for name in EXPORTS]
    for models in zip(*every, strict=True):
        emulate(models, built)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """The sentence encoder for every target."""
    folder = tmp_path_factory.mktemp("minilm")
    weights = random_weights(bert_shapes(MINILM), 0.05)
    imported = import_folder(write_folder(folder / "hf", MINILM, weights))
    imported.save(str(folder / "m.lg"), {"b": 1, "s": 16})
    return planned(read_graph(str(folder / "m.lg"), {}), folder)


@pytest.mark.deep
def test_a_sentence_encoder(encoder: list[Model], built: Path) -> None:
    for m in encoder:
        emulate([m], built)


def test_a_bundle_for_metal_in_python_and_in_c(
    encoder: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = encoder[1]
    for key, value in fake_metal.environment().items():
        monkeypatch.setenv(key, value)
    path = fake_metal.link(m.code, tmp_path / "m.lb", m.base)
    inputs, want = inputs_and_outputs(m)
    with metal.Bundle.open(path, library=fake_metal.library()) as bundle:
        assert_near(bundle.run(inputs), want, "Python")
    given = [x for n in inputs for x in ("--input", f"{n}={tmp_path}/{n}.npy")]
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
    runner = fake_metal.runner(tmp_path / "lumc-run")
    fake_metal.run(runner, path, "--device", "metal", *given, "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as got:
        assert_near(dict(got), want, "C")


def by_runner(bundle: Path, device: str, m: Model, env: dict[str, str]) -> None:
    """``lumc-run`` on random inputs."""
    folder = bundle.parent
    inputs, want = inputs_and_outputs(m)
    given = [x for n in inputs for x in ("--input", f"{n}={folder}/{n}.npy")]
    for name, value in inputs.items():
        np.save(folder / f"{name}.npy", value)
    command = [bundle / "bin" / "lumc-run", bundle, "--device", device, *given]
    command += ["-o", f"{folder}/out.npz"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as got:
        assert_near(dict(got), want, device)


def test_the_runner_runs_a_network_on_the_driver(encoder: list[Model], tmp_path: Path) -> None:
    bundle = build(encoder[0].code, tmp_path / "m.lb", encoder[0].base, cuda=Emulator())
    by_runner(bundle, "cuda", encoder[0], environment())


PROGRAM = """
import sys
import numpy as np
from lumc.runtime import hip

inputs = {name: np.load(f"{name}.npy") for name in sys.argv[1:]}
with hip.Bundle.open("m.lb") as b:
    np.savez("out.npz", **b.run(inputs))
"""


def test_a_bundle_of_four_kinds(encoder: list[Model], tmp_path: Path) -> None:
    """For CUDA, Metal and HIP, where it runs by both runners, with waves of 64 and of 32; the CPU's
    plan is beside them. All read nearly the same weights."""
    cpu = generate(estimate(replace(encoder[0].space, target=resolve_target("cpu:native"))))
    others = [m.code for m in encoder]
    tools = {"cuda": Emulator(), "hip": Clang()}
    path = build(cpu, tmp_path / "m.lb", encoder[0].base, others=others, **tools)
    alone = build(cpu, tmp_path / "cpu.lb", encoder[0].base)
    few, all_of_them = ((p / "weights.safetensors").stat().st_size for p in (alone, path))
    assert all_of_them <= 1.15 * few
    for m, gfx in zip(encoder[2:], ("gfx942", "gfx1102"), strict=True):
        env = fake_hip.environment(gfx=gfx)
        by_runner(path, "hip", m, env)
        inputs, want = inputs_and_outputs(m)
        (tmp_path / "out.npz").unlink()
        command = [sys.executable, "-c", PROGRAM, *inputs]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        with np.load(tmp_path / "out.npz") as got:
            assert_near(dict(got), want, f"Python on {gfx}")
