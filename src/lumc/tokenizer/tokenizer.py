"""A tokenizer as data: what a bundle has of it, and its file. The format is in docs/formats.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lumc.disk.artifact import compact
from lumc.errors import Exit, LumcError
from lumc.tokenizer.parts import LONGEST, Part, checked, encodable, text

SCHEMA = 1
MAX_TEXT = 1 << 27  # characters of a file
MAX_TOKENS = 1 << 21
MAX_TEMPLATE = 1 << 20  # characters
SPEECH = ("start", "transcribe", "translate", "no_timestamps")  # what a transcript begins with
SPECIAL = ("begin", "end", "turn", "unknown", "padding", *SPEECH)
MAX_LANGUAGES = 1 << 10
ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>", "<|return|>")
MARKS = ("special", "normalized", "lstrip", "rstrip", "single_word")  # of added tokens


@dataclass(frozen=True)
class Added:
    """A token that is found in a text before anything else is done with it."""

    id: int
    content: str
    special: bool = False  # a control token, which texts are shown without
    normalized: bool = False  # found in the text as the normalizer leaves it
    lstrip: bool = False  # with the spaces before it
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True)
class Tokenizer:
    """Texts as ids and back, and conversations as texts: as data, all of it checked."""

    model: Part  # with its type and flags
    tokens: Sequence[str | None]  # by id; None: there is none
    scores: Sequence[float]  # of each token; of Unigram only
    merges: Sequence[tuple[str, str]]  # of BPE only, the first ones before the others
    added: Sequence[Added]
    normalizer: Part | None
    pre_tokenizer: Part | None
    decoder: Part | None
    first: Sequence[int]  # around a whole text
    last: Sequence[int]
    special: Mapping[str, int]  # ids by the names of SPECIAL
    languages: Mapping[str, int]  # ids by codes such as "en", of a model of speech in several
    stops: Sequence[int]  # that end what is generated
    suppressed: Sequence[int]  # never generated
    not_first: Sequence[int]  # never generated as the first one
    template: str  # of conversations, or ""

    def name(self, which: str) -> str:
        """The text of a special token, or ""."""
        return self.text(self.special[which]) if which in self.special else ""

    def text(self, i: int) -> str:
        """A token as it is written, or ""."""
        known = {a.id: a.content for a in self.added}
        return known.get(i) or (self.tokens[i] if i < len(self.tokens) else "") or ""

    def id(self, content: str) -> int | None:
        """That of an added token."""
        return next((a.id for a in self.added if a.content == content), None)


def of_fields(body: Mapping[str, Any], where: str) -> Tokenizer:
    """What these fields say; E0343 where they contradict themselves, or ask for what there is
    not."""
    try:
        return _checked(body)
    except ValueError as e:
        raise refuse(where, str(e)) from None
    except (LookupError, TypeError, AttributeError, OverflowError) as e:
        said = f"missing field {e}" if isinstance(e, KeyError) else str(e)
        raise refuse(where, f"malformed: {said}") from None


def refuse(where: str, what: str) -> LumcError:
    return LumcError("E0343", what, where=where, exit=Exit.UNSUPPORTED)


def _checked(body: Mapping[str, Any]) -> Tokenizer:
    unknown = sorted(set(body) - {f.name for f in fields(Tokenizer)})
    if unknown:
        raise ValueError(f"unknown field {unknown[0][:40]!r}")
    tokens, added = body["tokens"], [_added(a) for a in body["added"]]
    model = checked("model", body["model"])
    if model is None:
        raise ValueError("there is no model")
    if not isinstance(tokens, list) or not 0 < len(tokens) + len(added) <= MAX_TOKENS:
        raise ValueError(f"expected 1 to {MAX_TOKENS} tokens")
    there = [t for t in tokens if t is not None]
    if not all(isinstance(t, str) and len(t) <= LONGEST and encodable(t) for t in there):
        raise ValueError(f"tokens: expected texts of up to {LONGEST} characters")
    if len(set(there)) < len(there) or len({a.id for a in added}) < len(added):
        raise ValueError("tokens: expected different ones")
    known = {i for i, t in enumerate(tokens) if t is not None} | {a.id for a in added}
    unigram, special, template = model["type"] == "Unigram", body["special"], body["template"]
    if not set(special) <= set(SPECIAL) or not all(i in known for i in special.values()):
        raise ValueError(f"special: expected tokens, by the names {', '.join(SPECIAL)}")
    languages = body["languages"]
    if len(languages) > MAX_LANGUAGES or not all(
        text(name) and i in known for name, i in languages.items()
    ):
        raise ValueError("languages: expected tokens by their names")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE or not encodable(template):
        raise ValueError(f"template: expected a text of up to {MAX_TEMPLATE} characters")
    if unigram and not 0 <= model.get("unk_id", 0) < len(tokens):
        raise ValueError("model Unigram: unk_id is none of its tokens")
    return Tokenizer(
        model=model,
        tokens=tokens,
        scores=_scores(body["scores"], len(tokens) if unigram else 0),
        merges=_merges(body["merges"], set(there), model) if model["type"] == "BPE" else (),
        added=added,
        normalizer=checked("normalizer", body["normalizer"]),
        pre_tokenizer=checked("pre_tokenizer", body["pre_tokenizer"]),
        decoder=checked("decoder", body["decoder"]),
        special=dict(special),
        languages=dict(languages),
        template=template,
        **{name: _ids(name, body[name], known) for name in
           ("first", "last", "stops", "suppressed", "not_first")},
    )  # fmt: skip


def _added(said: Any) -> Added:
    i, content = said["id"], said["content"]
    marks = {k: v for k, v in said.items() if k in MARKS}
    fits = isinstance(content, str) and 0 < len(content) <= LONGEST and encodable(content)
    if not fits or type(i) is not int or not 0 <= i < MAX_TOKENS or len(said) > 2 + len(marks):
        raise ValueError(f"added: {str(said)[:80]} is no token")
    if not all(isinstance(v, bool) for v in marks.values()):
        raise ValueError(f"added: expected true or false of {content[:40]!r}")
    return Added(i, content, **marks)


def _scores(said: Any, n: int) -> list[float]:
    numbers = all(type(v) in (int, float) and math.isfinite(v) for v in said)
    if not numbers or len(said) != n:
        raise ValueError(f"scores: expected {n} numbers, one for each token")
    return [float(v) for v in said]


def _merges(said: Any, known: set[str], model: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = [tuple(pair) for pair in said]
    if not all(len(pair) == 2 and known.issuperset(pair) for pair in pairs):
        raise ValueError("merges: expected two tokens in each")
    within = len(model.get("continuing_subword_prefix") or "")  # of a token that goes on a word
    for a, b in pairs:
        if a + b[within:] not in known:
            raise ValueError(f"merges: {a[:40]!r} and {b[:40]!r} make no token")
    return pairs


def _ids(name: str, said: Any, known: set[int]) -> list[int]:
    if len(said) > MAX_TOKENS or not all(type(i) is int and i in known for i in said):
        raise ValueError(f"{name}: expected tokens")
    return list(said)


# ---- files


def dump(tokenizer: Tokenizer) -> str:
    """The text of a file; equal ones have equal bytes."""
    lines = ['"lumc":"tokenizer"', f'"schema":{SCHEMA}']
    for field in sorted(f.name for f in fields(Tokenizer)):
        value = getattr(tokenizer, field)
        if field == "added":
            value = [{k: v for k, v in vars(a).items() if v is not False} for a in value]
        if isinstance(value, list | tuple) and value:
            rows = ",\n ".join(map(compact, value))
            lines.append(f'"{field}":[\n {rows}]')
        else:
            lines.append(f'"{field}":{compact(value)}')
    return "{" + ",\n".join(lines) + "}\n"


def parse(said: str, where: str) -> Tokenizer:
    """Of a file that may be a stranger's. Raises E0501, exit 5, where it is none; E0343."""
    try:
        if len(said) > MAX_TEXT:
            raise ValueError(f"more than {MAX_TEXT} characters")
        body = json.loads(said)
    except (ValueError, RecursionError) as e:
        raise _damaged(f"not a lumc tokenizer: {e}", where) from None
    if not isinstance(body, dict) or body.pop("lumc", None) != "tokenizer":
        raise _damaged("not a lumc tokenizer", where)
    if (schema := body.pop("schema", None)) != SCHEMA:
        said = f"schema {str(schema)[:20]} of a tokenizer is not supported (this is {SCHEMA})"
        raise _damaged(said, where)
    return of_fields(body, where)


def _damaged(what: str, where: str) -> LumcError:
    fix = "import the model again"
    return LumcError("E0501", what, where=where, fix=fix, exit=Exit.CORRUPT)
