"""The vocabulary of a GGUF file: its metadata, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lumc.disk.gguf import Gguf
from lumc.errors import Exit, LumcError

MODELS = ("gpt2", "llama")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
LONGEST = 1 << 10  # characters of a token; of all that are known: 128
MAX_TEMPLATE = 1 << 20  # characters
PREFIX = "tokenizer.ggml."
SPECIAL = {
    "begin": "bos_token_id",
    "end": "eos_token_id",
    "turn": "eot_token_id",  # the end of what one side says
    "unknown": "unknown_token_id",
    "padding": "padding_token_id",
}
FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix")


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens."""

    model: str  # of MODELS
    split: str  # by which rule texts are split into words
    tokens: Sequence[str]
    kinds: Sequence[int]  # of each token: NORMAL .. BYTE
    scores: Sequence[float]  # of each token, of the model llama
    merges: Sequence[tuple[str, str]]  # of the model gpt2
    special: Mapping[str, int]  # ids by the names of SPECIAL
    flags: Mapping[str, bool]  # add_bos_token, add_eos_token, add_space_prefix, where they are said
    template: str  # of conversations; "" where there is none

    def name(self, which: str) -> str:
        """The text of a special token, or ""."""
        return self.tokens[self.special[which]] if which in self.special else ""


def vocabulary(file: Gguf) -> Vocabulary:
    """Raises E0343 where it is missing, contradicts itself or is of a model that is not known."""
    return _Fields(file.fields, file.path).vocabulary()


def refuse(path: Path, what: str) -> LumcError:
    return LumcError("E0343", what, where=str(path), exit=Exit.UNSUPPORTED)


@dataclass(frozen=True)
class _Fields:
    values: Mapping[str, Any]
    path: Path

    def vocabulary(self) -> Vocabulary:
        model = self.values.get(f"{PREFIX}model")
        if model not in MODELS:
            shown = repr(model)[:80] if isinstance(model, str) else "missing"
            what = f"{PREFIX}model is {shown}; supported: {', '.join(MODELS)}"
            raise refuse(self.path, what)
        tokens = self.texts("tokens")
        if len(set(tokens)) != len(tokens) or max(map(len, tokens), default=0) > LONGEST:
            raise self.wrong("tokens", f"expected different texts of up to {LONGEST} characters")
        n, spm = len(tokens), model == "llama"
        return Vocabulary(
            model=model,
            split=self.text("pre", "default"),
            tokens=tokens,
            kinds=self.numbers("token_type", n, "iu", default=NORMAL),
            scores=self.numbers("scores", n, "f") if spm else (),
            merges=() if spm else self.merges(),
            special={name: i for name in SPECIAL for i in self.special(name, n)},
            flags={name: flag for name in FLAGS for flag in self.flag(name)},
            template=self.template(),
        )

    def wrong(self, name: str, what: str) -> LumcError:
        return refuse(self.path, f"{PREFIX}{name}: {what}")

    def text(self, name: str, default: str) -> str:
        value = self.values.get(f"{PREFIX}{name}", default)
        if not isinstance(value, str) or len(value) > LONGEST:
            raise self.wrong(name, "expected a short text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.values.get(f"{PREFIX}{name}")
        if not isinstance(value, list) or not value:
            raise self.wrong(name, "expected texts")
        return value

    def numbers(self, name: str, n: int, kinds: str, default: int | None = None) -> list[Any]:
        value = self.values.get(f"{PREFIX}{name}")
        if value is None and default is not None:
            return [default] * n
        fits = isinstance(value, np.ndarray) and value.dtype.kind in kinds and len(value) == n
        if isinstance(value, np.ndarray) and fits and np.isfinite(value).all():
            return list(value.tolist())
        raise self.wrong(name, f"expected {n} numbers, one for each token")

    def merges(self) -> list[tuple[str, str]]:
        found = [m.partition(" ") for m in self.texts("merges")]
        if not all(a and b and " " not in b for a, _, b in found):
            raise self.wrong("merges", "expected two tokens in each")
        return [(a, b) for a, _, b in found]

    def special(self, name: str, n: int) -> list[int]:
        """The id, if there is one."""
        value = self.values.get(f"{PREFIX}{SPECIAL[name]}")
        if value is None:
            return []
        if type(value) is not int or not 0 <= value < n:
            raise self.wrong(SPECIAL[name], f"expected one of {n} tokens")
        return [value]

    def flag(self, name: str) -> list[bool]:
        value = self.values.get(f"{PREFIX}{name}")
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "expected true or false")
        return [] if value is None else [value]

    def template(self) -> str:
        value = self.values.get("tokenizer.chat_template", "")
        if not isinstance(value, str) or len(value) > MAX_TEMPLATE:
            what = f"tokenizer.chat_template: expected a text of up to {MAX_TEMPLATE} characters"
            raise refuse(self.path, what)
        return value
