"""Hugging Face folders: config.json and safetensors, by model type.

Weights are referenced where they lie. Nothing of the folder is run, and nothing in it is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lumc.disk.weights import Stored
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import ACTIVATIONS, Scope
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.weights import open_checkpoint, read_json
from lumc.frontend.models import bert, gpt2, llama
from lumc.frontend.models.heads import Encoded, architecture, head_of, left_out, stored_names
from lumc.frontend.models.sentence import sentence_embedding
from lumc.graph.graph import WeightFile

# a family declares inputs and dims, and outputs unless it returns what a head or a pooling needs
Family = Callable[[Model, "Config", Scope], Encoded | None]
FAMILIES: dict[str, Family] = {
    "bert": bert.bert,
    "camembert": bert.roberta,
    "distilbert": bert.distilbert,
    "gpt2": gpt2.gpt2,
    "llama": llama.llama,
    "mistral": llama.mistral,
    "phi3": llama.phi3,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
    "roberta": bert.roberta,
    "xlm-roberta": bert.roberta,
}
LARGEST = 1 << 24  # of any number in a config
MAX_PROBLEMS, SHOWN = 200, 20  # tensors that do not fit: when to give up, how many to name


@dataclass(frozen=True)
class Config:
    """config.json, read field by field with checks; every error names the field."""

    values: dict[str, Any]
    path: Path

    def error(self, what: str) -> LumcError:
        return LumcError("E0324", what, where=str(self.path), exit=Exit.UNSUPPORTED)

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.error(f"{name} = {value!r}; expected an integer in {least}..{LARGEST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or value is None or not 0 < value < 1e12:
            raise self.error(f"{name} = {value!r}; expected a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} = {value!r}; expected true or false")
        return value

    def heads(self, hidden: int, name: str = "num_attention_heads") -> int:
        n = self.integer(name)
        if hidden % n:
            raise self.error(f"{name} = {n} does not divide the width {hidden}")
        return n

    def activation(self, usual: str, name: str = "hidden_act") -> Callable[[Tensor], Tensor]:
        value = self.values.get(name)
        value = usual if value is None else value
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.error(f"{name} = {value!r}; supported: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def names(self, name: str, part: str) -> bool:
        """Whether some text of a list of texts contains ``part``."""
        value = self.values.get(name)
        return isinstance(value, list) and any(part in v for v in value if isinstance(v, str))

    def labels(self) -> int:
        """How many classes a head tells apart: ``id2label`` has a name for each."""
        named = self.values.get("id2label")
        if named is None:
            return self.integer("num_labels", 2)
        if not isinstance(named, dict) or not 1 <= len(named) <= LARGEST:
            raise self.error(f"id2label = {named!r}; expected a name for every class")
        return len(named)

    def refuse(self, name: str, *allowed: Any) -> None:
        """The field has to be missing, null or one of these values."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            said = ", ".join(map(repr, allowed)) or "null"
            raise self.error(f"{name} = {value!r} is not supported; supported: {said}")


@dataclass
class Checkpoint:
    """The tensors of a folder; what is missing or misshaped is collected and told at once."""

    folder: Path
    tensors: dict[str, tuple[WeightFile, Stored]]
    made: dict[str, Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def weight(self, model: Model, key: str, shape: tuple[int, ...]) -> Tensor:
        if key in self.made:
            return self.made[key]
        if len(self.problems) >= MAX_PROBLEMS:
            raise self.misfit()
        found = self._found(key)
        if found is None:
            self.problems.append(f"{key} {list(shape)} is missing")
            return model.zeros(*shape)  # stands in, so that every problem is found
        file, stored = found
        if stored.shape != shape:
            self.problems.append(f"{key} is {list(stored.shape)}, expected {list(shape)}")
        elif stored.dtype is None or not stored.dtype.is_float:
            self.problems.append(f"{key} has a dtype that is not supported")
        else:
            plain = re.sub(r"[^A-Za-z0-9_.]|^(?=[^A-Za-z_])", "_", key)
            made = model.weight(plain, shape, stored.dtype, file, stored.key)
            return self.made.setdefault(key, made)
        return model.zeros(*shape)

    def _found(self, key: str) -> tuple[WeightFile, Stored] | None:
        """Checkpoints converted from TensorFlow say gamma and beta."""
        old = key.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta")
        return self.tensors.get(key) or self.tensors.get(old)

    def misfit(self) -> LumcError:
        many, shown = len(self.problems), self.problems[:SHOWN]
        shown += [f"and {many - SHOWN} more"] if many > SHOWN else []
        what = f"{many} tensors do not fit config.json: {'; '.join(shown)}"
        fix = "take config.json and the weights from the same model"
        return LumcError("E0325", what, where=str(self.folder), fix=fix, exit=Exit.UNSUPPORTED)


def import_folder(path: str | Path, say: Callable[[str], None] = lambda line: None) -> Model:
    """The model of a folder. E0320 .. E0325; exit 4 when it is not supported, 5 when damaged.

    ``say`` is told in a line what of the folder is left out.
    """
    folder = Path(path)
    config = Config(read_json(folder / "config.json"), folder / "config.json")
    kind = config.values.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        known = ", ".join(FAMILIES)
        raise LumcError("E0320", f"model_type {kind!r} is not supported", where=str(config.path),
                        fix=f"supported: {known}", exit=Exit.UNSUPPORTED)  # fmt: skip
    checkpoint = Checkpoint(folder, open_checkpoint(folder))
    model = Model()
    model.origin = folder.name
    w = Scope(model, checkpoint)
    encoded = family(model, config, w)
    if encoded is not None:
        _finish(model, config, w, encoded)
    if checkpoint.problems:
        raise checkpoint.misfit()
    if note := left_out(config, checkpoint.tensors, decoder=encoded is None):
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
