"""Training as a bundle for GPUs: whole steps of the dense network of graphs/digits.py, with
optimizer and states, on the fake CUDA and the fake Metal, from Python and by lumc-run; each beside
the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fake_metal
from fake_gpu import environment
from gpu_bundles import Emulator, python_environment
from kernels import native
from learning import LEARN, Array, rates
from lumc.artifacts.files import read_graph
from lumc.codegen.generate import generate
from lumc.kernel.machines import resolve_target
from lumc.profile.choose import estimate
from lumc.runtime import cpu, metal
from lumc.search import search

pytest.importorskip("sklearn")
STEPS, ASKED = 4, 5
NEAR = 1e-5  # relative L2: what verify allows f32 (docs/accuracy.md)
TARGETS = ("metal:apple9", "cuda:sm_90")
PROGRAM = """
import numpy as np
from safetensors.numpy import save_file
from lumc.runtime import cpu, cuda
given = np.load("given.npz")
batch = ("x", "label", "lr")
with {opener} as b:
    losses = [b.run({{n: given[n][s] for n in batch}})["loss"] for s in range({steps})]
    digit = b.run({{"x": given["asked"]}}, entry="predict")["digit"]
    save_file({{**b.state(), "losses": np.array(losses), "digit": digit}}, "by-python.safetensors")
"""


class Made(NamedTuple):
    """The folder of m.lb and of its batches, and what the CPU makes of them: losses, the states
    after the last step, and the digits that it sees in some pictures then."""

    base: Path
    want: dict[str, Array]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    base = tmp_path_factory.mktemp("training")
    LEARN.DIGITS.mlp().save(base / "m.lg")
    graph = read_graph(str(base / "m.lg"), {})
    targets = (*map(resolve_target, TARGETS), native())
    apple, *others = (generate(estimate(search(graph, t, inside=True))) for t in targets)
    fake_metal.link(apple, base / "m.lb", base, others=others, cuda=Emulator())
    (x, label), (held, _) = LEARN.pictures()
    batches = LEARN.batches((x, label), STEPS)
    given = {"x": np.stack([x for x, _ in batches]), "label": np.stack([y for _, y in batches])}
    given |= {"lr": np.array(rates(STEPS, 2)), "asked": held[:ASKED]}
    np.savez(base / "given.npz", **given)
    save_file({n: given[n] for n in ("x", "label", "lr")}, base / "fed.safetensors")
    with cpu.Bundle.open(base / "m.lb", device="cpu") as bundle:
        return Made(base, trained(bundle, given))


def trained(bundle: cpu.Bundle | metal.Bundle, given: Mapping[str, Array]) -> dict[str, Array]:
    losses = [
        bundle.run({n: given[n][s] for n in ("x", "label", "lr")})["loss"] for s in range(STEPS)
    ]
    digit = bundle.run({"x": given["asked"]}, entry="predict")["digit"]
    return {**bundle.state(), "losses": np.array(losses), "digit": digit}


def assert_near(got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, w in want.items():
        off = np.linalg.norm(got[name].astype("f8") - w) / max(
            np.linalg.norm(w.astype("f8")), 1e-30
        )
        assert off < NEAR, f"{name}: {off:.1e}"


def test_the_loss_falls_and_every_state_changes(made: Made) -> None:
    losses, states = made.want["losses"], made.want
    assert losses[-1] < losses[0] and states["adam.steps"] == STEPS
    first = LEARN.DIGITS.begin(LEARN.DIGITS.MLP)
    assert all(np.abs(states[n] - value).max() > 1e-4 for n, value in first.items())
    assert all(np.abs(states[f"{n}{k}"]).max() > 0 for n in first for k in (".m", ".v"))


@pytest.mark.parametrize(
    "opener", ['cuda.Bundle.open("m.lb")', 'cpu.Bundle.open("m.lb", device="cuda")']
)
def test_on_cuda(opener: str, made: Made) -> None:
    command = [sys.executable, "-c", PROGRAM.format(opener=opener, steps=STEPS)]
    env = python_environment()
    done = subprocess.run(
        command, cwd=made.base, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert_near(load_file(made.base / "by-python.safetensors"), made.want)


def test_on_metal(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)
    with metal.Bundle.open(made.base / "m.lb", library=fake_metal.library()) as bundle:
        assert_near(trained(bundle, np.load(made.base / "given.npz")), made.want)


def looped(made: Made, out: Path, command: Path, device: str) -> dict[str, Array]:
    """The states and losses of a loop of lumc-run."""
    words = [command, made.base / "m.lb", "--device", device, "--steps", STEPS]
    words += ["--feed", made.base / "fed.safetensors", "--save", out / "o.safetensors"]
    words += ["--losses", out / "l.csv"]
    if device == "metal":
        fake_metal.run(*words)
    else:
        done = subprocess.run(
            [*map(str, words)], env=environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    rows = (out / "l.csv").read_text().splitlines()[1:]
    losses = np.array([float(row.split(",")[1]) for row in rows], "f4")
    return {**load_file(out / "o.safetensors"), "losses": losses}


@pytest.mark.parametrize("device", ["cuda", "metal"])
def test_a_loop_without_python(device: str, made: Made, tmp_path: Path) -> None:
    on_metal = device == "metal"
    command = made.base / "m.lb" / "bin" / "lumc-run"
    command = fake_metal.runner(tmp_path / "lumc-run") if on_metal else command
    want = {n: v for n, v in made.want.items() if n != "digit"}
    assert_near(looped(made, tmp_path, command, device), want)
