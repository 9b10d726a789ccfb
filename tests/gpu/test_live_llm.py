"""Language models that are given a text in parts, planned for GPUs: every kernel on the emulators,
race-checked, in memory that is NaN beyond what there is; against transformers and the values of
quantised weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_launching
import launching
from gguf_files import Tensor, tensor
from gpu_bundles import python_environment
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.disk.gguf import read_gguf
from lumc.frontend.api.model import Model
from lumc.frontend.models.cache import Cache
from lumc.frontend.models.gguf import import_gguf
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search
from shorter import shorter
from unit.frontend.models.test_gguf import INNER, D, named, quantised, shapes, write

Array = np.ndarray[Any, Any]
TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
in_short = pytest.mark.parametrize("target", shorter(TARGETS), ids=lambda t: t.kind)
SIZES = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 31, "max_position_embeddings": 40,
    "attn_implementation": "eager", "rope_theta": 500.0,
}  # fmt: skip
TEXT = np.array([3, 7, 12, 4, 4, 9, 2, 11, 5, 8, 1, 10, 8, 6])
CACHE = Cache(24, 6)
PARTS = [6, 1, 3, 1], [1, 5, 2, 6]


def llama(folder: Path) -> Array:
    """A folder with random weights, and the logits [s, words] of transformers."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(7)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        network.save_pretrained(folder)
        found = network.double()(torch.as_tensor(TEXT)[None]).logits[0]
    return np.asarray(found.numpy())


def planned(model: Model, folder: Path, target: Target) -> Code:
    model.save(folder / "m.lg")
    graph = parse_graph((folder / "m.lg").read_text(), path=lambda p: str(folder / p))
    return generate(estimate(search(graph, target, inside=True)))


def logits(model: Model, code: Code, sizes: Sequence[int], built: Path, order: str) -> list[Array]:
    """Those behind every part of the text."""
    kernels = gpu_launching.module(built, [code], checked=True)
    entries = {e.name: e for e in code.entries}
    states = {s.name: np.full(s.sizes, np.nan, s.dtype.numpy) for s in code.graph.states}
    out, p = list[Array](), 0
    for s in sizes:
        entry = entries["decode" if s == 1 else "prefill"]
        m = launching.Memory(code, entry, partial(value, model), 1)
        for v in entry.values:
            if v.place == "input":
                m.arrays[v.name].reshape(-1)[:] = -1  # ids that there are not
                m.arrays[v.name].reshape(-1)[:s] = TEXT[p : p + s]
            elif v.place == "dim":
                m.arrays[v.name][...] = {"p": p, "s": s}[v.name]
            elif v.place == "state":
                m.arrays[v.name][...] = states[v.name]
        after = gpu_launching.launched(kernels, "g0_", code, entry, m, order)
        out.append(after.pop("logits").reshape(-1))
        states |= after
        p += s
    for state in states.values():  # and nothing is written behind the text
        assert np.isnan(state[:, p:]).all() and np.isfinite(state[:, :p]).all()
    return out


def value(model: Model, node: Any) -> Array:
    """A weight; inputs and states are written later."""
    if node.op == "weight":
        return np.asarray(model.read_weight(node))
    return np.zeros(node.sizes, node.dtype.numpy)


def off(got: Sequence[Array], want: Array, sizes: Sequence[int]) -> float:
    """The greatest relative L2 of the last row of a part."""
    ends = np.cumsum(sizes) - 1
    pairs = [(g, want[i]) for g, i in zip(got, ends, strict=True)]
    return max(float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in pairs)


@by_target
def test_a_llama_is_that_of_transformers(target: Target, tmp_path: Path, built: Path) -> None:
    want = llama(tmp_path)
    model = import_folder(tmp_path, CACHE)
    code = planned(model, tmp_path, target)
    sizes = PARTS[target.kind == "metal"]
    assert off(logits(model, code, sizes, built, "random"), want, sizes) < 5e-6


@in_short
def test_weights_of_four_bits(target: Target, tmp_path: Path, built: Path) -> None:
    """Levels, scales and minima, made to numbers inside of products; against f64 on what the
    package of ggml makes of the file."""
    package = pytest.importorskip("gguf")
    file = {
        named(key): tensor(np.ones(shape)) if len(shape) == 1 else quantised(shape, "q4_1")
        for key, shape in shapes("llama", D, 4, 2, INNER).items()
    }
    path = write(tmp_path / "q.gguf", "llama", file)
    opened = dict[str, Tensor](file)
    for key, found in read_gguf(path).tensors.items():
        if found.layout:
            rows = np.frombuffer(file[key].data, "u1").reshape(*found.shape[:-1], -1)
            kind = package.GGMLQuantizationType.Q4_1
            opened[key] = tensor(package.quants.dequantize(rows, kind))
    plain = import_gguf(write(tmp_path / "f.gguf", "llama", opened), Cache(24, 6, every=True))
    dims, given = {"p": 0, "s": 6}, {"input_ids": TEXT[:6]}
    states = {s.name: np.full(s.sizes, np.nan) for s in plain.graph().states}
    want = evaluate(plain.graph(), "prefill", given, plain.read_weight, states, dims=dims)[0]
    model = import_gguf(path, CACHE)
    code = planned(model, tmp_path, target)
    assert {p.bits for p in code.packings.values()} == {4}
    sizes = [1, 4, 1]
    assert off(logits(model, code, sizes, built, "reverse"), want["logits"], sizes) < 1e-5


PROGRAM = """
import json, sys
import numpy as np
import lumc
text = json.loads(sys.argv[1])
with lumc.load("m.lb", device="cuda") as model:
    for sizes in json.loads(sys.argv[2]):
        p = 0
        for s in sizes:
            entry, ids = "decode" if s == 1 else "prefill", np.array(text[p : p + s])
            out = model.run({"input_ids": ids}, entry, dims={"p": p})
            p += s
            print(json.dumps(out["logits"].tolist()))
"""


def test_a_bundle_from_the_commands(tmp_path: Path) -> None:
    """`lumc import --context`, `lumc compile`, and a run by the driver, whose graphs were captured
    once."""
    want = llama(tmp_path / "hf")
    compiler = f"{sys.executable} {Path(__file__).parents[1] / 'fake_nvcc.py'}"
    env = python_environment()

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "lumc", "import", "hf", "--context", "24", "--rows", "6", "-o", "m.lg")
    how = ("--target", "cuda:sm_90", "--nvcc", compiler, "--estimate")
    run("-m", "lumc", "compile", "m.lg", *how, "-o", "m.lb")
    said = run("-c", PROGRAM, json.dumps(TEXT.tolist()), json.dumps(PARTS))
    rows = [np.array(json.loads(line)) for line in said.splitlines()]
    for sizes in PARTS:
        here, rows = rows[: len(sizes)], rows[len(sizes) :]
        assert off(here, want, sizes) < 5e-6, sizes
