"""What a folder says of its model: config.json, and the tensors of its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lumc.disk.stored import Stored
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import ACTIVATIONS, Scope
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.models.blocks import read_where_it_lies, unpaired
from lumc.frontend.models.words import Words
from lumc.graph.derive import LAYOUTS
from lumc.graph.graph import WeightFile

MAX_BATCH = 1024
LARGEST = 1 << 24  # of any number in a config
MAX_LAYERS = 1 << 12
MAX_PROBLEMS, SHOWN = 200, 20  # tensors that do not fit: when to give up, how many to name


@dataclass(frozen=True)
class Config:
    """config.json, read field by field with checks; every error names the field."""

    values: dict[str, Any]
    path: Path
    keys: Mapping[str, str] = field(default_factory=dict)  # fields that the file calls otherwise
    slowed: tuple[float, ...] = ()  # by how much each rotary pair turns slower than its formula

    def shown(self, name: str, value: object) -> str:
        """A field and its value, as the file calls it."""
        return f"{self.keys.get(name, name)} = {value!r}"

    def error(self, what: str) -> LumcError:
        return LumcError("E0324", what, where=str(self.path), exit=Exit.UNSUPPORTED)

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST
    ) -> int:
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            raise self.error(f"{self.shown(name, value)}; expected an integer in {least}..{most}")
        return value

    def layers(self) -> int:
        return self.integer("num_hidden_layers", most=MAX_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or value is None or not 0 < value < 1e12:
            raise self.error(f"{self.shown(name, value)}; expected a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} = {value!r}; expected true or false")
        return value

    def heads(self, hidden: int, name: str = "num_attention_heads") -> int:
        n = self.integer(name)
        if hidden % n:
            raise self.error(f"{self.shown(name, n)} does not divide the width {hidden}")
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
    """The tensors of a model; what is missing or misshaped is collected and told at once."""

    place: Path
    tensors: dict[str, tuple[WeightFile, Stored]]
    config: str = "config.json"  # what says which tensors there are
    paired: Mapping[str, int] = field(default_factory=dict)  # heads of those stored in ``pairs``
    words: Words | None = None  # how weights of 4 bits lie in words, if there are any
    made: dict[str, Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def weight(self, model: Model, key: str, shape: tuple[int, ...]) -> Tensor:
        if key in self.made and model.is_here(self.made[key]):
            return self.made[key]
        if len(self.problems) >= MAX_PROBLEMS:
            raise self.misfit()
        found = self._found(key)
        stem = key.removesuffix(".weight")
        if found is None and self.words and f"{stem}.qweight" in self.tensors:
            self.made[key] = self._of_words(self.words, model, stem, shape)
            return self.made[key]
        if found is None:
            self.problems.append(f"{key} {list(shape)} is missing")
            return model.zeros(*shape)  # stands in, so that every problem is found
        file, stored = found
        if stored.shape != shape:
            self.problems.append(f"{key} is {list(stored.shape)}, expected {list(shape)}")
        elif not (stored.layout in LAYOUTS or (stored.dtype and stored.dtype.is_float)):
            self.problems.append(f"{key} has a dtype that is not supported: {stored}")
        else:
            made = read_where_it_lies(model, plain(key), file, stored)
            made = unpaired(made, self.paired[key]) if key in self.paired else made
            self.made[key] = made
            return made
        return model.zeros(*shape)

    def _of_words(self, words: Words, model: Model, stem: str, shape: tuple[int, ...]) -> Tensor:
        """A matrix of numbers of 4 bits; zeros where a tensor of it does not fit."""
        wanted = words.tensors(shape)
        for part, (kinds, fits) in wanted.items():
            _, stored = self.tensors.get(f"{stem}.{part}", (None, None))
            if stored is None or stored.dtype not in kinds or stored.shape != fits:
                said = f"{stem}.{part} is {stored or 'missing'}"
                self.problems.append(f"{said}, expected {kinds[0]}{list(fits)}")
                return model.zeros(*shape)
        found = {part: self.tensors[f"{stem}.{part}"] for part in wanted}
        return words.matrix(model, plain(stem), found)

    def _found(self, key: str) -> tuple[WeightFile, Stored] | None:
        """Checkpoints converted from TensorFlow say gamma and beta."""
        old = key.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta")
        return self.tensors.get(key) or self.tensors.get(old)

    def misfit(self) -> LumcError:
        many, shown = len(self.problems), self.problems[:SHOWN]
        shown += [f"and {many - SHOWN} more"] if many > SHOWN else []
        what = f"{many} tensors do not fit {self.config}: {'; '.join(shown)}"
        fix = f"take {self.config} and the weights from the same model"
        return LumcError("E0325", what, where=str(self.place), fix=fix, exit=Exit.UNSUPPORTED)


def plain(key: str) -> str:
    """The name of a tensor as one that a weight may have."""
    return re.sub(r"[^A-Za-z0-9_.]|^(?=[^A-Za-z_])", "_", key)


def below(w: Scope, name: str, known: str) -> Scope:
    """The scope whose weights have no prefix, or the one of a model with a head."""
    source = w.source
    tensors = getattr(source, "tensors", {})
    if known not in tensors and f"{name}.{known}" in tensors:
        return w / name
    return w
