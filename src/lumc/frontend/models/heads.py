"""Task heads of BERT and its relatives: what ``..For..`` of transformers computes at the end.

A head is known by its architecture in config.json; the outputs have the names of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass

from lumc.frontend.api.nn import Scope, layer_norm, linear, width
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.config import Config


@dataclass(frozen=True)
class Encoded:
    """What an encoder gives to the head or the pooling after it."""

    hidden: Tensor  # f32[b, s, d]
    mask: Tensor  # i64[b, s]
    body: Scope  # the weights of the encoder


Outputs = dict[str, Tensor]
Make = Callable[["Config", Scope, Encoded], Outputs]


@dataclass(frozen=True)
class Head:
    """``stored`` is a weight that a checkpoint with this head has."""

    stored: str
    make: Make


def architecture(config: Config) -> str:
    """The first architecture with a head (``..For..``) that config.json names, or nothing."""
    named = config.values.get("architectures")
    texts = [v for v in named if isinstance(v, str)] if isinstance(named, list) else []
    return next((v for v in texts if re.search("For[A-Z]", v)), "")


def head_of(config: Config, stored: Container[str]) -> Head | None:
    """The head after the encoder, if it is known and the checkpoint has it.

    Beside a modules.json there is none: that says itself what follows the encoder.
    """
    head = HEADS.get(architecture(config))
    if head is None or head.stored not in stored or _has_modules(config):
        return None
    return head


def left_out(config: Config, stored: Container[str], decoder: bool) -> str:
    """What to say of a head that is named but not imported; nothing if there is none.

    Decoders have the head of ``ForCausalLM`` and no other.
    """
    name = architecture(config)
    imported = name.endswith("ForCausalLM") if decoder else head_of(config, stored) is not None
    if not name or imported or _has_modules(config):
        return ""
    head = None if decoder else HEADS.get(name)
    why = f"the folder has no {head.stored}" if head else "it is not supported"
    return f"the head of {name} is left out: {why}"


def _has_modules(config: Config) -> bool:
    return (config.path.parent / "modules.json").exists()


# ---- one logit for every class, of the first token


def _bert_sequence(config: Config, w: Scope, e: Encoded) -> Outputs:
    x = linear(e.body / "pooler" / "dense", e.hidden[:, 0], width(e.hidden)).tanh()
    return {"logits": linear(w / "classifier", x, config.labels())}  # [b, labels]


def _roberta_sequence(config: Config, w: Scope, e: Encoded) -> Outputs:
    w = w / "classifier"
    x = linear(w / "dense", e.hidden[:, 0], width(e.hidden)).tanh()
    return {"logits": linear(w / "out_proj", x, config.labels())}  # [b, labels]


def _distilbert_sequence(config: Config, w: Scope, e: Encoded) -> Outputs:
    x = linear(w / "pre_classifier", e.hidden[:, 0], width(e.hidden)).relu()
    return {"logits": linear(w / "classifier", x, config.labels())}  # [b, labels]


# ---- of every token


def _tokens(config: Config, w: Scope, e: Encoded) -> Outputs:
    return {"logits": linear(w / "classifier", e.hidden, config.labels())}  # [b, s, labels]


def _answer(config: Config, w: Scope, e: Encoded) -> Outputs:
    if config.labels() != 2:
        raise config.error(f"{config.labels()} labels; an answer has a start and an end")
    both = linear(w / "qa_outputs", e.hidden, 2)
    return {"start_logits": both[:, :, 0], "end_logits": both[:, :, 1]}  # [b, s]


def _bert_words(config: Config, w: Scope, e: Encoded) -> Outputs:
    w, eps = w / "cls" / "predictions", config.number("layer_norm_eps", 1e-12)
    x = config.activation("gelu")(linear(w / "transform" / "dense", e.hidden, width(e.hidden)))
    x = layer_norm(w / "transform" / "LayerNorm", x, eps)
    return {"logits": _words(config, w / "decoder", e, x, w)}


def _roberta_words(config: Config, w: Scope, e: Encoded) -> Outputs:
    w, eps = w / "lm_head", config.number("layer_norm_eps", 1e-12)
    x = linear(w / "dense", e.hidden, width(e.hidden)).gelu()
    return {"logits": _words(config, w / "decoder", e, layer_norm(w / "layer_norm", x, eps), w)}


def _distilbert_words(config: Config, w: Scope, e: Encoded) -> Outputs:
    act = config.activation("gelu", "activation")
    x = act(linear(w / "vocab_transform", e.hidden, width(e.hidden)))
    x, last = layer_norm(w / "vocab_layer_norm", x, 1e-12), w / "vocab_projector"
    return {"logits": _words(config, last, e, x, last)}


def _words(config: Config, decoder: Scope, e: Encoded, x: Tensor, bias: Scope) -> Tensor:
    """x [b, s, d] -> [b, s, words]. Weights that the decoder does not have are shared: the table
    with the embedding, unless ``tie_word_embeddings`` is false, and the bias with ``bias``."""
    words = config.integer("vocab_size")
    tied = config.flag("tie_word_embeddings", True) and not _has(decoder, "weight")
    table = e.body / "embeddings" / "word_embeddings" if tied else decoder
    own = decoder if _has(decoder, "bias") else bias
    return x @ table.tensor("weight", words, width(x)).T + own.tensor("bias", words)


def _has(w: Scope, name: str) -> bool:
    return (w / name).prefix in stored_names(w)


def stored_names(w: Scope) -> Container[str]:
    """The names of all weights of the checkpoint behind a scope."""
    names: Container[str] = getattr(w.source, "tensors", ())
    return names


BERT = {
    "SequenceClassification": Head("classifier.weight", _bert_sequence),
    "TokenClassification": Head("classifier.weight", _tokens),
    "QuestionAnswering": Head("qa_outputs.weight", _answer),
    "MaskedLM": Head("cls.predictions.transform.dense.weight", _bert_words),
}
ROBERTA = BERT | {
    "SequenceClassification": Head("classifier.dense.weight", _roberta_sequence),
    "MaskedLM": Head("lm_head.dense.weight", _roberta_words),
}
DISTILBERT = BERT | {
    "SequenceClassification": Head("pre_classifier.weight", _distilbert_sequence),
    "MaskedLM": Head("vocab_transform.weight", _distilbert_words),
}
FAMILIES = {
    "Bert": BERT,
    "Camembert": ROBERTA,
    "DistilBert": DISTILBERT,
    "Roberta": ROBERTA,
    "XLMRoberta": ROBERTA,
}
HEADS = {f"{f}For{task}": head for f, tasks in FAMILIES.items() for task, head in tasks.items()}
