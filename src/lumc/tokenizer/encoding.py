"""Texts as ids and back, by the package ``tokenizers``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.tokenizer.tokenizer import Tokenizer, refuse

BROKEN = "\ufffd"  # what stands for a part of a letter


@dataclass(frozen=True)
class Encoding:
    """Texts as ids and back."""

    tokenizer: Tokenizer
    inner: Any  # a tokenizers.Tokenizer

    def encode(self, text: str, whole: bool = True, special: bool = True) -> list[int]:
        """The ids of a text. A ``whole`` one has the tokens around it that the file asks for. Where
        names of control tokens are not ``special``, they are letters: texts of strangers."""
        known = self.tokenizer
        self.inner.encode_special_tokens = not special
        with reported("", "the tokenizer fails on this text"):
            ids = self.inner.encode(text, add_special_tokens=False).ids
        return [*known.first, *ids, *known.last] if whole else list(ids)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of ids, with control tokens if they are ``special``."""
        return str(self.inner.decode(list(ids), skip_special_tokens=not special))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of ids as it becomes known: a letter may take several of them."""
        held, done = list[int](), 0  # ids that the next text depends on, letters of theirs given
        for i in ids:
            held.append(i)
            text = self.decode(held)
            if text.endswith(BROKEN):
                continue
            yield text[done:]
            last, done = self.decode(held[-1:]), len(text)
            if last and BROKEN not in last:
                held, done = held[-1:], len(last)
        yield self.decode(held)[done:]


def encoding(tokenizer: Tokenizer, where: str) -> Encoding:
    """Raises E0343 where a tokenizer contradicts itself; E0344 without the package."""
    package = needed()
    with reported(where, "the tokenizer contradicts itself"):
        inner = package.Tokenizer.from_str(json.dumps(pipeline(tokenizer)))
        for a in tokenizer.added:
            if inner.token_to_id(a.content) != a.id:
                raise ValueError(f"the id of {a.content[:40]!r}")
    return Encoding(tokenizer, inner)


@contextmanager
def reported(where: str, what: str) -> Iterator[None]:
    """What the package says of a tokenizer as E0343; a panic of it is no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        raise refuse(where, f"{what}: {str(e)[:200]}") from None


def pipeline(known: Tokenizer) -> dict[str, Any]:
    """The ``tokenizer.json`` of a tokenizer."""
    model = dict(known.model)
    if model["type"] == "Unigram":
        pairs = zip(known.tokens, known.scores, strict=True)
        model["vocab"] = [["" if token is None else token, score] for token, score in pairs]
    else:
        model["vocab"] = {t: i for i, t in enumerate(known.tokens) if t is not None}
    if model["type"] == "BPE":
        model["merges"] = [list(pair) for pair in known.merges]
    elif model["type"] == "WordPiece":
        model = {"unk_token": "[UNK]", "continuing_subword_prefix": "##"} | model
        model.setdefault("max_input_chars_per_word", 100)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [asdict(a) for a in sorted(known.added, key=lambda a: a.id)],
        "normalizer": known.normalizer,
        "pre_tokenizer": known.pre_tokenizer,
        "post_processor": None,
        "decoder": known.decoder,
        "model": model,
    }


def needed() -> Any:
    """The package; E0344."""
    try:
        import tokenizers
    except ImportError:
        what, fix = "the package tokenizers is not installed", "pip install 'lumc[llm]'"
        raise LumcError("E0344", what, fix=fix, exit=Exit.TOOLCHAIN) from None
    return tokenizers
