"""Hugging Face folders: config.json and safetensors, by model type.

Weights are referenced where they lie. Nothing of the folder is run, and nothing in it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import Scope
from lumc.frontend.api.weights import open_checkpoint, read_json
from lumc.frontend.models import bert, gemma, gpt2, llama, t5, whisper
from lumc.frontend.models.cache import Cache
from lumc.frontend.models.config import Checkpoint, Config
from lumc.frontend.models.heads import Encoded, architecture, head_of, left_out, stored_names
from lumc.frontend.models.quantised import words_of
from lumc.frontend.models.sentence import sentence_embedding

# a family declares inputs and dims; decoders outputs too, encoders return what these are made of
Encoder = Callable[[Model, Config, Scope], Encoded]
Decoder = Callable[[Model, Config, Scope, Cache | None], None]
ENCODERS: dict[str, Encoder] = {
    "bert": bert.bert,
    "camembert": bert.roberta,
    "distilbert": bert.distilbert,
    "roberta": bert.roberta,
    "xlm-roberta": bert.roberta,
}
DECODERS: dict[str, Decoder] = {
    "gemma2": gemma.gemma2,
    "gemma3_text": gemma.gemma3,
    "gpt2": gpt2.gpt2,
    "llama": llama.llama,
    "mistral": llama.mistral,
    "phi3": llama.phi3,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
}
# with entries of their own for what they are given besides a text
PAIRS: dict[str, Decoder] = {"mt5": t5.t5, "t5": t5.t5, "whisper": whisper.whisper}


def import_folder(
    path: str | Path, cache: Cache | None = None, say: Callable[[str], None] = lambda line: None
) -> Model:
    """The model of a folder; with a ``cache`` to be given a text in parts. E0320 .. E0326; exit 4
    when it is not supported, 5 when damaged.

    ``say`` is told in a line what of the folder is left out.
    """
    folder = Path(path)
    config = Config(read_json(folder / "config.json"), folder / "config.json")
    kind = config.values.get("model_type")
    known = {**PAIRS, **DECODERS} if cache else {**ENCODERS, **PAIRS, **DECODERS}
    if not isinstance(kind, str) or kind not in known:
        what = f"model_type {kind!r} is not supported" + (" with a context" if cache else "")
        fix = f"supported: {', '.join(sorted(known))}"
        raise LumcError("E0320", what, where=str(config.path), fix=fix, exit=Exit.UNSUPPORTED)
    tensors = open_checkpoint(folder)
    checkpoint = Checkpoint(folder, tensors, words=words_of(config, tensors))
    model = Model()
    model.origin = folder.name
    w = Scope(model, checkpoint)
    if kind in ENCODERS:
        _finish(model, config, w, ENCODERS[kind](model, config, w))
    else:
        {**PAIRS, **DECODERS}[kind](model, config, w, cache)
    if checkpoint.problems:
        raise checkpoint.misfit()
    if kind not in PAIRS and (
        note := left_out(config, checkpoint.tensors, decoder=kind in DECODERS)
    ):
        say(note)
    return model


def _finish(model: Model, config: Config, w: Scope, encoded: Encoded) -> None:
    """The outputs after an encoder: of its head, or the hidden state and its pooling."""
    head = head_of(config, stored_names(w))
    if head is None:
        model.output("last_hidden_state", encoded.hidden)
        sentence_embedding(model, config.path.parent, encoded.hidden, encoded.mask)
        return
    model.origin = architecture(config)
    for name, value in head.make(config, w, encoded).items():
        model.output(name, value)


def class_of(folder: Path) -> str:
    """The class of transformers that computes what ``import_folder`` imports."""
    config = Config(read_json(folder / "config.json"), folder / "config.json")
    return architecture(config) if head_of(config, open_checkpoint(folder)) else "AutoModel"
