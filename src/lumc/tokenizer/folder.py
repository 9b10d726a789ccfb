"""The tokenizer of a Hugging Face folder: ``tokenizer.json``, and what other files add to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lumc.frontend.api.weights import read_any_json
from lumc.tokenizer.tokenizer import ENDS, MARKS, MAX_TEMPLATE, Tokenizer, of_fields, refuse

FILE = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
NAMES = {"begin": "bos_token", "end": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
VOCABULARIES = ("BPE", "WordPiece", "Unigram")
SPEECH = {
    "start": "<|startoftranscript|>",
    "transcribe": "<|transcribe|>",
    "translate": "<|translate|>",
    "no_timestamps": "<|notimestamps|>",
}
Said = Mapping[str, Any]


def has_tokenizer(folder: Path) -> bool:
    return (folder / FILE).is_file()


def of_folder(folder: Path) -> Tokenizer:
    """Raises E0321 for files that are no JSON, E0343 for a tokenizer that is not supported."""
    path = folder / FILE
    said, config = _object(path), _beside(folder, "tokenizer_config.json")
    try:
        body = _body(said, config, _generation(folder))
        body["template"] = _template(folder, config)
    except ValueError as e:
        raise refuse(str(path), str(e)) from None
    except (LookupError, TypeError, AttributeError, OverflowError) as e:
        kind = f"missing field {e}" if isinstance(e, KeyError) else str(e)
        raise refuse(str(path), f"malformed: {kind}") from None
    return of_fields(body, str(path))


def _object(path: Path) -> dict[str, Any]:
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise refuse(str(path), "not a JSON object")
    return value


def _beside(folder: Path, name: str) -> dict[str, Any]:
    return _object(folder / name) if (folder / name).is_file() else {}


def _generation(folder: Path) -> dict[str, Any]:
    """generation_config.json; models without one say in config.json what begins and ends a text."""
    said, config = _beside(folder, "generation_config.json"), _beside(folder, "config.json")
    for name in ("eos_token_id", "decoder_start_token_id"):
        if said.get(name) is None:
            said[name] = config.get(name)
    return said


def _body(said: Said, config: Said, generation: Said) -> dict[str, Any]:
    model = dict(said["model"])
    if model.get("type") not in VOCABULARIES:
        known = ", ".join(VOCABULARIES)
        raise ValueError(f"model {str(model.get('type'))[:40]!r}; supported: {known}")
    if model.pop("dropout", None):
        raise ValueError("model: dropout chooses at random")
    vocabulary, merges = model.pop("vocab"), model.pop("merges", [])
    tokens, scores = _tokens(vocabulary)
    added = [{k: v for k, v in a.items() if k in (*MARKS, "id", "content")}
             for a in said.get("added_tokens") or []]  # fmt: skip
    first, last = _around(said.get("post_processor"))
    special = _special(config, added, tokens)
    control = {a["content"]: a["id"] for a in added if a.get("special")}
    ends = generation.get("eos_token_id")
    stops = [*([ends] if type(ends) is int else ends or []), *special.get("end", [])]
    there = {a["id"] for a in added} | {i for i, t in enumerate(tokens) if t is not None}
    starts, languages = _starts(control, generation, there)
    return {
        "model": model,
        "tokens": tokens,
        "scores": scores,
        "merges": [m.split(" ", 1) if isinstance(m, str) else m for m in merges],
        "added": added,
        "normalizer": said.get("normalizer"),
        "pre_tokenizer": said.get("pre_tokenizer"),
        "decoder": said.get("decoder"),
        "first": first,
        "last": last,
        "special": {name: i for name, (i,) in special.items()} | starts,
        "languages": languages,
        "stops": sorted({*stops, *(i for t, i in control.items() if t in ENDS)} & there),
        "suppressed": _within(generation.get("suppress_tokens"), there),
        "not_first": _within(generation.get("begin_suppress_tokens"), there),
    }


def _starts(
    control: Mapping[str, int], generation: Said, known: set[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """What the text begins with that follows an encoded one, or sound; and the languages that a
    model of speech knows, if they are many."""
    special = {name: control[token] for name, token in SPEECH.items() if token in control}
    start = generation.get("decoder_start_token_id")
    if type(start) is int and start in known:
        special["start"] = start
    if "start" not in special or not generation.get("is_multilingual", True):
        return special, {}
    named = {t: re.fullmatch(r"<\|([a-z]{2,3})\|>", t) for t in control}
    return special, {found[1]: control[t] for t, found in named.items() if found}


def _within(ids: Any, known: set[int]) -> list[int]:
    """Those of a list that there are; others cannot be chosen anyway."""
    return [i for i in ids or [] if i in known]


def _tokens(vocabulary: Any) -> tuple[list[str | None], list[float]]:
    """By id, with holes where there is none; of pairs with scores the scores too."""
    if isinstance(vocabulary, list):
        return [t for t, _ in vocabulary], [s for _, s in vocabulary]
    n = max(vocabulary.values(), default=-1) + 1
    if min(vocabulary.values(), default=0) < 0 or n > 2 * len(vocabulary) + (1 << 10):
        raise ValueError(f"vocab: ids up to {n - 1} for {len(vocabulary)} tokens")
    tokens = list[str | None]([None]) * n
    for token, i in vocabulary.items():
        if tokens[i] is not None:
            raise ValueError(f"vocab: two tokens have the id {i}")
        tokens[i] = token
    return tokens, []


def _around(post: Any) -> tuple[list[int], list[int]]:
    """The ids before and after a text, as ``post_processor`` says."""
    kind = post["type"] if post is not None else "ByteLevel"
    if kind == "ByteLevel":
        return [], []
    if kind == "Sequence":
        pairs = [_around(p) for p in post["processors"]]
        return [i for a, _ in reversed(pairs) for i in a], [i for _, b in pairs for i in b]
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [post["cls"][1]], [post["sep"][1]]
    if kind != "TemplateProcessing":
        raise ValueError(f"post_processor {str(kind)[:40]!r} is not supported")
    around: tuple[list[int], list[int]] = [], []
    at = 0
    for piece in post["single"]:
        if "Sequence" in piece:
            at += 1
        else:
            around[min(at, 1)].extend(post["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    if at != 1:
        raise ValueError("post_processor: a template without the text, or with several")
    return around


def _special(
    config: Said, added: Sequence[Said], tokens: Sequence[str | None]
) -> dict[str, list[int]]:
    """The ids of special tokens that tokenizer_config.json names."""
    ids = {t: i for i, t in enumerate(tokens)} | {a["content"]: a["id"] for a in added}
    out = dict[str, list[int]]()
    for name, key in NAMES.items():
        value = config.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and content in ids:
            out[name] = [ids[content]]
    return out


def _template(folder: Path, config: Said) -> str:
    """That of a file of its own, or the default one of tokenizer_config.json."""
    path = folder / TEMPLATE
    if path.is_file():
        if path.stat().st_size > 4 * MAX_TEMPLATE:
            raise ValueError(f"{TEMPLATE} is too large")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{TEMPLATE} is no UTF-8") from None
    value = config.get("chat_template") or ""
    if isinstance(value, list):
        named = {one["name"]: one["template"] for one in value}
        value = named.get("default", "")
    return str(value)
