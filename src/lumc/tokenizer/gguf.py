"""The tokenizer of a GGUF file, from its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lumc.disk.gguf import Gguf
from lumc.tokenizer.splits import SPLITS, Split
from lumc.tokenizer.tokenizer import ENDS, Tokenizer, of_fields
from lumc.tokenizer.vocabulary import CONTROL, UNKNOWN, USER, Vocabulary, refuse, vocabulary

SPACE = "\u2581"  # what a token of the model llama has for a space


def of_gguf(file: Gguf) -> Tokenizer:
    """Raises E0343 where a file has none, or one of a kind that is not known."""
    known = vocabulary(file)
    spm, flags, special = known.model == "llama", known.flags, known.special
    rule = SPLITS.get(known.split, Split())
    if not spm and known.split not in SPLITS:
        what = f"tokenizer.ggml.pre = {known.split!r}; supported: {', '.join(SPLITS)}"
        raise refuse(Path(file.path), what)
    begins, ends = flags.get("add_bos_token", spm or rule.begins), flags.get("add_eos_token", False)
    body: dict[str, Any] = {
        "tokens": list(known.tokens),
        "scores": [],
        "added": [*_added(known, CONTROL), *_added(known, USER)],
        "first": [special["begin"]] if begins and "begin" in special else [],
        "last": [special["end"]] if ends and "end" in special else [],
        "special": dict(special),
        "stops": sorted(_stops(known)),
        "suppressed": [],
        "not_first": [],
        "languages": {},
        "template": known.template,
        **(_pieces(known) if spm else _pairs(known, rule)),
    }
    return of_fields(body, str(file.path))


def _stops(known: Vocabulary) -> set[int]:
    """Names are those of control tokens: a text may have the same letters."""
    named = {i for i, t in enumerate(known.tokens) if t in ENDS and known.kinds[i] == CONTROL}
    return named | {known.special[n] for n in ("end", "turn") if n in known.special}


def _added(known: Vocabulary, wanted: int) -> Iterator[dict[str, Any]]:
    """Control tokens, or tokens of users, which are found in a text before it is split."""
    for i, (token, kind) in enumerate(zip(known.tokens, known.kinds, strict=True)):
        if kind == wanted:
            yield {"id": i, "content": token, "special": kind == CONTROL}


def _pairs(known: Vocabulary, rule: Split) -> dict[str, Any]:
    """Bytes as letters, of which pairs are merged: the model gpt2."""
    steps: list[Any] = [{"type": "Digits", "individual_digits": True}] if rule.digits else []
    if rule.pattern:
        pattern = {"Regex": rule.pattern}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    split = {"add_prefix_space": False, "trim_offsets": True, "use_regex": not rule.pattern}
    return {
        "model": {"type": "BPE", "ignore_merges": rule.whole},
        "merges": known.merges,
        "normalizer": {"type": "NFC"} if rule.composed else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, {"type": "ByteLevel", **split}],
        },
        "decoder": {"type": "ByteLevel", **split},
    }


def _pieces(known: Vocabulary) -> dict[str, Any]:
    """Letters, of which the best pieces are made, and bytes for letters that are none: llama."""
    unknown = known.name("unknown") or next(
        (t for t, kind in zip(known.tokens, known.kinds, strict=True) if kind == UNKNOWN), None
    )
    found = sorted(_merges(known), key=lambda m: m[:3], reverse=True)
    spaced = known.flags.get("add_space_prefix", True)
    first: list[Any] = [{"type": "Prepend", "prepend": SPACE}] if spaced else []
    last: list[Any] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    to_text = [_replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *last]
    flags = {"fuse_unk": True, "byte_fallback": True}
    return {
        "model": {"type": "BPE", "unk_token": unknown, **flags},
        "merges": [pair for *_, pair in found],
        "normalizer": {"type": "Sequence", "normalizers": [*first, _replace(" ", SPACE)]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": to_text},
    }


def _replace(what: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": what}, "content": by}


def _merges(known: Vocabulary) -> Iterator[tuple[float, int, int, tuple[str, str]]]:
    """Every way in which a token is made of two others; what sorts later is merged first."""
    plain = {t for t, kind in zip(known.tokens, known.kinds, strict=True) if kind != CONTROL}
    for token, score in zip(known.tokens, known.scores, strict=True):
        for cut in range(1, len(token)) if token in plain else ():
            a, b = token[:cut], token[cut:]
            if a in plain and b in plain:
                yield score, len(a), len(b), (a, b)
