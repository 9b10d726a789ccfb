"""A tokenizer of the package ``tokenizers``, made of a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lumc.disk.gguf import read_gguf
from lumc.errors import Exit, LumcError
from lumc.tokenizer.splits import SPLITS, Split
from lumc.tokenizer.vocabulary import CONTROL, UNKNOWN, USER, Vocabulary, refuse, vocabulary

BROKEN = "\ufffd"  # what stands for a part of a letter
SPACE = "\u2581"  # what a token of the model llama has for a space


@dataclass(frozen=True)
class Encoding:
    """Texts as ids and back."""

    vocabulary: Vocabulary
    inner: Any  # a tokenizers.Tokenizer
    begins: bool  # with the token that begins a text
    ends: bool  # with the one that ends it

    def encode(self, text: str, whole: bool = True, special: bool = True) -> list[int]:
        """The ids of a text. A ``whole`` one has the tokens around it that the file asks for. Where
        names of control tokens are not ``special``, they are letters: texts of strangers."""
        self.inner.encode_special_tokens = not special
        ids = list(self.inner.encode(text, add_special_tokens=False).ids)
        known = self.vocabulary.special
        first = [known["begin"]] if whole and self.begins and "begin" in known else []
        last = [known["end"]] if whole and self.ends and "end" in known else []
        return [*first, *ids, *last]

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


def encoding(path: str | Path) -> Encoding:
    """That of a GGUF file. Raises E0340, E0343; E0344 without the package."""
    known = vocabulary(read_gguf(Path(path)))
    rule = SPLITS.get(known.split, Split())
    spm = known.model == "llama"
    if not spm and known.split not in SPLITS:
        what = f"tokenizer.ggml.pre = {known.split!r}; supported: {', '.join(SPLITS)}"
        raise refuse(Path(path), what)
    needed()
    try:
        inner = _pieces(known) if spm else _pairs(known, rule)
        _add_special(known, inner)
    except Exception as e:  # of the package, which has no class for them
        raise refuse(Path(path), f"the vocabulary contradicts itself: {str(e)[:200]}") from e
    begins = known.flags.get("add_bos_token", spm or rule.begins)
    return Encoding(known, inner, begins, known.flags.get("add_eos_token", False))


def needed() -> Any:
    """The package; E0344."""
    try:
        import tokenizers
    except ImportError:
        what, fix = "the package tokenizers is not installed", "pip install 'lumc[llm]'"
        raise LumcError("E0344", what, fix=fix, exit=Exit.TOOLCHAIN) from None
    return tokenizers


def _pairs(known: Vocabulary, rule: Split) -> Any:
    """Bytes as letters, of which pairs are merged: the model gpt2."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {token: i for i, token in enumerate(known.tokens)}
    made = Tokenizer(models.BPE(ids, list(known.merges), ignore_merges=rule.whole))
    if rule.composed:
        made.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.digits else []
    if rule.pattern:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rule.pattern))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    return made


def _pieces(known: Vocabulary) -> Any:
    """Letters, of which the best pieces are made, and bytes for letters that are none: llama."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids = {token: i for i, token in enumerate(known.tokens)}
    unknown = known.name("unknown") or next(
        (t for t, kind in zip(known.tokens, known.kinds, strict=True) if kind == UNKNOWN), None
    )
    found = sorted(_merges(known), key=lambda m: m[:3], reverse=True)
    merges = [pair for *_, pair in found]
    made = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaced = known.flags.get("add_space_prefix", True)
    first: list[Any] = [normalizers.Prepend(SPACE)] if spaced else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last: list[Any] = [decoders.Strip(" ", 1, 0)] if spaced else []
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    made.decoder = decoders.Sequence(steps)
    return made


def _merges(known: Vocabulary) -> Iterator[tuple[float, int, int, tuple[str, str]]]:
    """Every way in which a token is made of two others; what sorts later is merged first."""
    plain = {t for t, kind in zip(known.tokens, known.kinds, strict=True) if kind != CONTROL}
    for token, score in zip(known.tokens, known.scores, strict=True):
        for cut in range(1, len(token)) if token in plain else ():
            a, b = token[:cut], token[cut:]
            if a in plain and b in plain:
                yield score, len(a), len(b), (a, b)


def _add_special(known: Vocabulary, made: Any) -> None:
    """Control tokens, and tokens of users, which are found in a text before it is split."""
    from tokenizers import AddedToken

    pairs = [*zip(known.tokens, known.kinds, strict=True)]
    made.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in pairs if kind == CONTROL]
    )
    made.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t, kind in pairs if kind == USER]
    )
