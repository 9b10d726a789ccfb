"""Task heads of the BERT family with random weights, against transformers and in numpy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import BERT, Array, bert_shapes, random_weights, write_folder
from lumc.command import sources
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import Random, Scope
from lumc.frontend.models.config import Config
from lumc.frontend.models.heads import HEADS, Encoded, left_out
from lumc.frontend.models.huggingface import import_folder
from lumc.graph.bind import bind_dims
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from lumc.report.reference import run_original

IDS = np.array([[3, 7, 1, 9, 2], [4, 2, 11, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
KINDS = np.array([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]])
GIVEN = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": KINDS}
# every value that has a default has another one here; 3 labels, of an answer 2
LIKE_BERT = {
    "vocab_size": 13,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 9,
    "layer_norm_eps": 1e-3,
    "hidden_act": "relu",
    "pad_token_id": 1,
}
LIKE_DISTILBERT = {
    "vocab_size": 13,
    "dim": 12,
    "n_heads": 3,
    "n_layers": 2,
    "hidden_dim": 20,
    "max_position_embeddings": 9,
    "activation": "relu",
}
NAMES = {"QuestionAnswering": ["start_logits", "end_logits"]}


def saved(folder: Path, name: str, **said: Any) -> Path:
    """A folder that transformers wrote: random weights, of norms and biases too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    family, _, task = name.partition("For")
    like = LIKE_DISTILBERT if family == "DistilBert" else LIKE_BERT
    labels = {"num_labels": 2 if task == "QuestionAnswering" else 3}
    config = getattr(transformers, f"{family}Config")(**like | labels | said)
    torch.manual_seed(26)
    network = getattr(transformers, name)(config)
    with torch.no_grad():
        for p in network.parameters():
            p.normal_(0, 0.4)
    network.save_pretrained(folder)
    return folder


def outputs(folder: Path) -> dict[str, Array]:
    """The outputs of the imported model, by the oracle in f64."""
    model = import_folder(folder)
    graph = model.graph()
    verify_graph(graph)
    given = {n.name: GIVEN[n.name] for n in graph.entries[0].inputs}
    return evaluate(bind_dims(graph, {"b": 2, "s": 5}), "main", given, model.read_weight)[0]


def compare(folder: Path) -> dict[str, Array]:
    """The outputs, after they were found equal to those of transformers."""
    got = outputs(folder)
    given = {n.name: GIVEN[n.name] for n in import_folder(folder).graph().entries[0].inputs}
    want = run_original(str(folder), given, "main")["torch"]
    for name, value in got.items():
        assert value.shape == want[name].shape
        assert np.linalg.norm(value - want[name]) < 1e-5 * np.linalg.norm(want[name])
    return got


@pytest.mark.parametrize("name", HEADS)
def test_a_head(tmp_path: Path, name: str) -> None:
    got = compare(saved(tmp_path / "m", name))
    assert list(got) == NAMES.get(name.partition("For")[2], ["logits"])


def test_only_safetensors_of_this_folder_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = saved(tmp_path / "m", "BertForSequenceClassification"), dict[str, Any]()
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")

    def from_pretrained(_: str, **how: Any) -> None:
        asked.update(how)
        raise OSError("seen")

    kind = transformers.BertForSequenceClassification
    monkeypatch.setattr(kind, "from_pretrained", from_pretrained)
    with pytest.raises(LumcError, match="seen"):
        run_original(str(folder), dict(GIVEN), "main")
    assert asked["use_safetensors"] is asked["local_files_only"] is True
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(LumcError, match=r"no model\.safetensors"):
        run_original(str(folder), dict(GIVEN), "main")


@pytest.mark.parametrize("labels", [1, 2, 5])
def test_the_number_of_labels(tmp_path: Path, labels: int) -> None:
    folder = saved(tmp_path / "m", "BertForSequenceClassification", num_labels=labels)
    assert compare(folder)["logits"].shape == (2, labels)


def test_the_inputs(tmp_path: Path) -> None:
    """Those of the tokenizer: types of tokens only where there are several."""
    for name, types, want in [
        ("BertForSequenceClassification", 2, list(GIVEN)),
        ("BertForTokenClassification", 1, list(GIVEN)[:2]),
        ("RobertaForSequenceClassification", 2, list(GIVEN)[:2]),
    ]:
        folder = saved(tmp_path / name, name, type_vocab_size=types)
        assert [n.name for n in import_folder(folder).graph().entries[0].inputs] == want
        compare(folder)


@pytest.mark.parametrize("name", [n for n in HEADS if n.endswith("MaskedLM")])
def test_a_decoder_of_its_own(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "m", name, tie_word_embeddings=False)
    weights = {w.key for w in import_folder(folder).graph().weights}
    assert any(k.endswith(("decoder.weight", "projector.weight")) for k in weights)
    compare(folder)


def test_the_usual_activation(tmp_path: Path) -> None:
    compare(saved(tmp_path / "b", "BertForMaskedLM", hidden_act="gelu"))
    compare(saved(tmp_path / "d", "DistilBertForMaskedLM", activation="gelu"))


# ---- the heads in numpy, where no framework is installed


def in_numpy(name: str, w: dict[str, Array], x: Array) -> list[Array]:
    """The outputs from hidden states f64[b, s, d]."""

    def linear(at: str, x: Array) -> Array:
        return x @ w[f"{at}.weight"].T + w[f"{at}.bias"]

    def norm(at: str, x: Array, eps: float) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
        return x * w[f"{at}.weight"] + w[f"{at}.bias"]

    def relu(x: Array) -> Array:
        return np.maximum(x, 0)

    def gelu(x: Array) -> Array:
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

    first, words = x[:, 0], w.get("body.embeddings.word_embeddings.weight", np.zeros((1, 1))).T
    cls = "cls.predictions"
    if name.endswith("TokenClassification"):
        return [linear("classifier", x)]
    if name.endswith("QuestionAnswering"):
        return list(np.moveaxis(linear("qa_outputs", x), -1, 0))
    if name == "BertForSequenceClassification":
        return [linear("classifier", np.tanh(linear("body.pooler.dense", first)))]
    if name == "RobertaForSequenceClassification":
        return [linear("classifier.out_proj", np.tanh(linear("classifier.dense", first)))]
    if name == "DistilBertForSequenceClassification":
        return [linear("classifier", relu(linear("pre_classifier", first)))]
    if name == "BertForMaskedLM":
        h = relu(linear(f"{cls}.transform.dense", x))
        return [norm(f"{cls}.transform.LayerNorm", h, 1e-3) @ words + w[f"{cls}.bias"]]
    if name == "RobertaForMaskedLM":
        h = gelu(linear("lm_head.dense", x))
        return [norm("lm_head.layer_norm", h, 1e-3) @ words + w["lm_head.bias"]]
    h = norm("vocab_layer_norm", relu(linear("vocab_transform", x)), 1e-12)
    return [h @ words + w["vocab_projector.bias"]]


@pytest.mark.parametrize("name", [n for n in HEADS if n.startswith(("Bert", "Rob", "Distil"))])
def test_a_head_in_numpy(name: str) -> None:
    model, labels = Model(), 2 if name.endswith("Answering") else 3
    w = Scope(model, Random(np.random.default_rng(26), 0.4))
    hidden, mask = model.input("hidden", (2, 5, 12)), model.input("mask", (2, 5), "i64")
    config = Config(LIKE_BERT | LIKE_DISTILBERT | {"num_labels": labels}, Path("config.json"))
    for key, value in HEADS[name].make(config, w, Encoded(hidden, mask, w / "body")).items():
        model.output(key, value)
    x = np.random.default_rng(5).standard_normal((2, 5, 12))
    got = evaluate(model.graph(), "main", {"hidden": x, "mask": MASK}, model.read_weight)[0]
    weights = {k: v.astype(np.float64) for k, v in model.constants.items()}
    for mine, want in zip(got.values(), in_numpy(name, weights, x), strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-6)


# ---- heads that are left out; these folders are ours, so that no framework is needed


def headed(folder: Path, name: str, *more: tuple[str, tuple[int, ...]], **said: Any) -> Path:
    shapes = {f"bert.{k}": v for k, v in bert_shapes().items()} | dict(more)
    return write_folder(folder, BERT | {"architectures": [name]} | said, random_weights(shapes))


CLASSIFIER = [
    ("bert.pooler.dense.weight", (12, 12)),
    ("bert.pooler.dense.bias", (12,)),
    ("classifier.weight", (2, 12)),
    ("classifier.bias", (2,)),
]


def imported(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the outputs and what was said."""
    said: list[str] = []
    model = import_folder(folder, say=said.append)
    return [name for name, _ in model.graph().entries[0].outputs], said


def test_a_head_that_is_known_is_imported_silently(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "BertForSequenceClassification", *CLASSIFIER)
    assert imported(folder) == (["logits"], [])


def test_an_unknown_head_is_named(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "BertForMultipleChoice", *CLASSIFIER)
    said = "the head of BertForMultipleChoice is left out: it is not supported"
    assert imported(folder) == (["last_hidden_state"], [said])


def test_the_command_says_it_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources.open_model(str(headed(tmp_path / "m", "BertForMultipleChoice")), {})
    out, err = capsys.readouterr()
    said = "the head of BertForMultipleChoice is left out: it is not supported"
    assert (out, err) == ("", f"note: {said}\n")


@pytest.mark.parametrize(
    "name,said",
    [
        ("LlamaForCausalLM", ""),
        ("LlamaModel", ""),
        ("GPT2LMHeadModel", ""),
        (
            "LlamaForSequenceClassification",
            "the head of LlamaForSequenceClassification is left out: it is not supported",
        ),
    ],
)
def test_heads_of_decoders(tmp_path: Path, name: str, said: str) -> None:
    config = Config({"architectures": [name]}, tmp_path / "config.json")
    assert left_out(config, (), decoder=True) == said


def test_a_head_without_its_weights_is_named(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "BertForSequenceClassification")
    why = "the folder has no classifier.weight"
    said = f"the head of BertForSequenceClassification is left out: {why}"
    assert imported(folder) == (["last_hidden_state"], [said])


def test_half_a_head_is_an_error(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "BertForSequenceClassification", *CLASSIFIER[1:])
    with pytest.raises(LumcError, match=r"bert\.pooler\.dense\.weight \[12, 12\] is missing") as e:
        import_folder(folder)
    assert e.value.exit == Exit.UNSUPPORTED


def test_modules_say_what_follows_the_encoder(tmp_path: Path) -> None:
    folder = headed(tmp_path / "m", "BertForSequenceClassification", *CLASSIFIER)
    modules = [
        {"path": p, "type": f"models.{t}"} for t, p in (("Transformer", ""), ("Pooling", "p"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "p").mkdir()
    (folder / "p" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert imported(folder) == (["last_hidden_state", "sentence_embedding"], [])


@pytest.mark.parametrize("named", [None, "BertForX", [None, 3], {}, ["BertModel", "Longformer"]])
def test_architectures_without_a_head(tmp_path: Path, named: Any) -> None:
    folder = headed(tmp_path / "m", "", architectures=named)
    assert imported(folder) == (["last_hidden_state"], [])


@pytest.mark.parametrize(
    "said", [{"id2label": {}}, {"id2label": "two"}, {"id2label": [1, 2]}, {"num_labels": 0}]
)
def test_hostile_labels(tmp_path: Path, said: dict[str, Any]) -> None:
    folder = headed(tmp_path / "m", "BertForSequenceClassification", *CLASSIFIER, **said)
    with pytest.raises(LumcError, match=next(iter(said))) as e:
        import_folder(folder)
    assert e.value.exit == Exit.UNSUPPORTED


def test_an_answer_has_two_ends(tmp_path: Path) -> None:
    ends = [("qa_outputs.weight", (3, 12)), ("qa_outputs.bias", (3,))]
    folder = headed(tmp_path / "m", "BertForQuestionAnswering", *ends, num_labels=3)
    with pytest.raises(LumcError, match="3 labels"):
        import_folder(folder)
