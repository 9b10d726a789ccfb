"""Whole networks as PTX of NVIDIA's compiler, on its interpreter: an encoder like MiniLM, and a
block of a Llama that is given a text in parts. In f32, and in 16 bits on the tensor cores; every
launch without a report, and the results beside the oracle's in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import emulator
import gpu_launching
import launching
import on_ptx
from checkpoints import bert_shapes, random_weights, write_folder
from gpu.ptx import module
from gpu.test_models import MINILM
from lumc.codegen.code import Code, EntryPlan
from lumc.codegen.generate import generate
from lumc.command.bundles import complete
from lumc.disk.weights import read_weight
from lumc.frontend.models.cache import Cache
from lumc.frontend.models.huggingface import import_folder
from lumc.frontend.precision import Precision, reduce_precision
from lumc.graph.graph import Graph, Node
from lumc.graph.ops import DType, from_bf16
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search

Array = np.ndarray[Any, Any]
Executed = Callable[[], Counter[str]]
pytestmark = pytest.mark.skipif(not module.compiler(), reason=module.WHY)
H100 = resolve_target("cuda:sm_90")
NEAR = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # relative L2: what verify allows


class Network(NamedTuple):
    """A graph, its code for an H100, and the folder of its weights."""

    graph: Graph
    code: Code
    base: Path

    def leaf(self, node: Node) -> Array:
        """A weight; inputs and states are written later."""
        if node.op == "weight":
            return np.asarray(read_weight(node, self.base))
        return np.zeros(node.sizes, node.dtype.numpy)


@pytest.fixture(autouse=True)
def executed(monkeypatch: pytest.MonkeyPatch) -> Executed:
    """How often each instruction was executed so far; kernels are built for the interpreter."""
    monkeypatch.setattr(emulator, "build", on_ptx.build)
    before = on_ptx.COUNTS.copy()
    return lambda: on_ptx.COUNTS - before


def planned(graph: Graph, kind: str, base: Path) -> Network:
    graph = reduce_precision(graph, Precision(None if kind == "f32" else kind))
    return Network(graph, generate(estimate(search(graph, H100, inside=True))), base)


def off(got: Array, want: Array) -> float:
    """Relative L2; bits are those of bf16."""
    got = from_bf16(got) if got.dtype == np.uint16 else got
    assert got.shape == want.shape and np.isfinite(got).all()
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def has_products(executed: Mapping[str, int], kind: str) -> bool:
    """Those of warps or warpgroups, of this kind."""
    return any(o.startswith(("mma", "wgmma.mma")) and f".{kind}." in o for o in executed)


# ---- an encoder

SMALL = {**MINILM, "hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 384}


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_an_encoder(kind: str, executed: Executed, tmp_path: Path, built: Path) -> None:
    """Two texts of 16 tokens, with a mask, a quarter as wide as MiniLM. As wide as that and in f32
    it is in ``test_models``, which runs on this interpreter too."""
    weights = random_weights(bert_shapes(SMALL), 0.1)
    model = import_folder(write_folder(tmp_path / "hf", SMALL, weights))
    model.save(str(tmp_path / "m.lg"), {"b": 2, "s": 16})
    n = planned(parse_graph((tmp_path / "m.lg").read_text()), kind, tmp_path)
    (entry,) = n.graph.entries
    inputs = complete(n.graph, entry.name, {}, 0)
    want, _ = evaluate(n.graph, entry.name, inputs, n.leaf)
    kernels = gpu_launching.module(built, [n.code])
    leaf = lambda x: inputs[x.name] if x.name in inputs else n.leaf(x)  # noqa: E731
    got = gpu_launching.run(kernels, "g0_", n.code, entry.name, leaf)
    assert got.keys() == want.keys() and want
    for name in want:
        assert off(got[name], want[name]) < NEAR[kind], name
    assert has_products(executed(), kind)


# ---- a block of a Llama

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 48,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
    "tie_word_embeddings": False,
}  # fmt: skip
CACHE = Cache(64, 24)
PARTS = [24, 1, 7, 1, 1]  # rows of a run: prefill, and decode where it is one


def llama_shapes() -> dict[str, tuple[int, ...]]:
    d, inner, words, q, kv = 64, 96, 48, 4 * 16, 2 * 16
    of = {
        "self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q), "mlp.gate_proj": (inner, d), "mlp.up_proj": (inner, d),
        "mlp.down_proj": (d, inner), "input_layernorm": (d,), "post_attention_layernorm": (d,),
    }  # fmt: skip
    outer = {"model.embed_tokens": (words, d), "model.norm": (d,), "lm_head": (words, d)}
    named = {**outer, **{f"model.layers.0.{k}": shape for k, shape in of.items()}}
    return {f"{k}.weight": shape for k, shape in named.items()}


def run_part(
    n: Network, kernels: Any, entry: EntryPlan, ids: Array, p: int, states: Mapping[str, Array]
) -> dict[str, Array]:
    """The outputs and states behind ``p`` rows and these; inputs have no ids beyond them."""
    m = launching.Memory(n.code, entry, n.leaf, 1)
    for v in entry.values:
        to = m.arrays[v.name]
        if v.place == "input":
            to.reshape(-1)[:] = -1
            to.reshape(-1)[: len(ids)] = ids
        elif v.place == "dim":
            to[...] = {"p": p, "s": len(ids)}[v.name]
        elif v.place == "state":
            to[...] = states[v.name]
    return gpu_launching.launched(kernels, "g0_", n.code, entry, m)


def nothing(node: Node) -> Array:
    """Bytes that nobody wrote: NaN."""
    out = np.empty(node.sizes, node.dtype.numpy)
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    return out


def texts(n: Network, sizes: Sequence[int], built: Path) -> Iterator[tuple[str, Array, Array]]:
    """Behind every part of a text: its entry, the logits of the interpreter, and the oracle's. What
    is behind the text in the states nobody writes."""
    kernels = gpu_launching.module(built, [n.code])
    entries = {e.name: e for e in n.code.entries}
    ids = np.random.default_rng(3).integers(0, 48, sum(sizes))
    states, right = ({s.name: f(s) for s in n.graph.states} for f in (nothing, nans))
    p = 0
    for s in sizes:
        name, now = "decode" if s == 1 else "prefill", ids[p : p + s]
        after = run_part(n, kernels, entries[name], now, p, states)
        given, dims = {"input_ids": now}, {"p": p, "s": s}
        want, right = evaluate(n.graph, name, given, n.leaf, right, dims=dims)
        yield name, after.pop("logits").reshape(-1), want["logits"].reshape(-1)
        states, p = after, p + s
        for state in n.graph.states:
            kept = states[state.name]
            kept = from_bf16(kept) if state.dtype is DType.BF16 else kept
            assert np.isnan(kept[:, p:]).all() and np.isfinite(kept[:, :p]).all()


def nans(node: Node) -> Array:
    return np.full(node.sizes, np.nan)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.deep] * (k != "bf16")) for k in NEAR]
)
def test_a_llama(kind: str, executed: Executed, tmp_path: Path, built: Path) -> None:
    """Heads that share keys, rotary positions, RMS norms, SwiGLU; a prefill, tokens one by one with
    what the cache has, another prefill behind them: one code for all lengths."""
    weights = random_weights(llama_shapes(), 0.2)
    model = import_folder(write_folder(tmp_path / "hf", LLAMA, weights), CACHE)
    model.save(tmp_path / "m.lg")
    graph = parse_graph((tmp_path / "m.lg").read_text())
    n = planned(graph, kind, tmp_path)
    found = list(texts(n, PARTS, built))
    assert [name for name, _, _ in found] == ["prefill", "decode", "prefill", "decode", "decode"]
    for name, got, want in found:
        assert off(got, want) < NEAR[kind], name
    assert has_products(executed(), kind) == (kind != "f32")
