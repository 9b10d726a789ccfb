"""The parts of a tokenizer that a file may ask for, with their fields: all others are refused.

Names and fields are those of ``tokenizer.json`` of the package tokenizers, which runs them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

LONGEST = 1 << 10  # characters of a token, and of a text of a part
MAX_PATTERN = 1 << 12  # characters
MAX_REPEATS = 256  # that a pattern may count
MOST_REPEATS, MOST_GROUPS = 8, 16  # in an alternative of a pattern, open at once
MAX_CHARSMAP = 1 << 22  # characters of base64
MOST_PARTS, DEEPEST = 32, 4  # of a sequence

Part = dict[str, Any]
Check = Callable[[Any], bool]


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and encodable(value)


def count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LONGEST


def encodable(value: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_of(*allowed: str) -> Check:
    return lambda value: value in allowed


def charsmap(value: Any) -> bool:
    """A table in base64."""
    if not isinstance(value, str) or len(value) > MAX_CHARSMAP:
        return False
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        return False
    return True


def pattern(value: Any) -> bool:
    """``{"String": text}``, or ``{"Regex": text}`` that cannot take long."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, said),) = value.items()
    return text(said) if kind == "String" else kind == "Regex" and is_plain(said)


QUANTIFIER = re.compile(r"([*+?])[+?]?|\{(\d*),?(\d*)\}\??")  # of a {1,9} no + makes it possessive
GROUP = re.compile(r"\((\?(:|>|=|!|[ims]+:))?(?!\?)")  # not x, with which # begins a comment
ESCAPE = re.compile(r"\\([pPx]\{\^?\w{1,40}\}|[^1-9kg])", re.S)


def is_plain(said: Any) -> bool:
    """Whether a regular expression repeats only what matches in one way, at most 8 times in each of
    its alternatives, and looks neither behind nor at its own groups again: its time is no
    exponential of a text."""
    if not isinstance(said, str) or len(said) > MAX_PATTERN or not encodable(said):
        return False
    varied, repeats = [False], 0  # of open groups: may they match in several ways? of this one
    last, at = False, 0  # whether what stands before may
    while at < len(said):
        if found := ESCAPE.match(said, at):
            last, at = False, found.end()
        elif said[at] == "[":
            last, at = False, end_of_class(said, at)
        elif said[at] == "(":
            found = GROUP.match(said, at)
            if found is None or len(varied) > MOST_GROUPS:
                return False
            varied.append(False)
            last, at = False, found.end()
        elif said[at] == ")":
            if len(varied) == 1:
                return False
            last, at = varied.pop(), at + 1
            varied[-1] |= last
        elif found := QUANTIFIER.match(said, at):
            repeats += 1
            once = found[1] == "?"
            counts = [int(n[:6]) for n in (found[2], found[3]) if n]
            if repeats > MOST_REPEATS or max(counts, default=0) > MAX_REPEATS:
                return False
            if last and not once:
                return False
            last, at = True, found.end()
            varied[-1] = True
        elif said[at] == "\\":
            return False
        else:
            if said[at] == "|":
                varied[-1] = True
                repeats = repeats if len(varied) > 1 else 0
            last, at = False, at + 1
    return at == len(said) and len(varied) == 1


def end_of_class(said: str, at: int) -> int:
    """Where a class of characters ends, which may have others in it; beyond the end if nowhere."""
    depth, first = 0, at
    while at < len(said):
        if said[at] == "\\":
            at += 1
        elif said[at] == "[":
            depth += 1
        elif said[at] == "]" and at > first + 1:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(said) + 1


BYTES = {"add_prefix_space": flag, "trim_offsets": flag, "use_regex": flag}
META = {
    "replacement": text,
    "add_prefix_space": flag,
    "prepend_scheme": one_of("always", "never", "first"),
    "str_rep": text,
    "split": flag,
}
BEHAVIOUR = one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
REPLACE = {"pattern": pattern, "content": text}
SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
PARTS: Mapping[str, Mapping[str, Mapping[str, Check]]] = {
    "normalizer": {
        "NFC": {},
        "NFD": {},
        "NFKC": {},
        "NFKD": {},
        "Lowercase": {},
        "StripAccents": {},
        "Strip": {"strip_left": flag, "strip_right": flag},
        "Replace": REPLACE,
        "Prepend": {"prepend": text},
        "Precompiled": {"precompiled_charsmap": charsmap},
        "BertNormalizer": dict.fromkeys(
            ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), flag
        ),
    },
    "pre_tokenizer": {
        "ByteLevel": BYTES,
        "Metaspace": META,
        "Digits": {"individual_digits": flag},
        "Split": {"pattern": pattern, "behavior": BEHAVIOUR, "invert": flag},
        "Punctuation": {"behavior": BEHAVIOUR},
        "Whitespace": {},
        "WhitespaceSplit": {},
        "BertPreTokenizer": {},
    },
    "decoder": {
        "ByteLevel": BYTES,
        "Metaspace": META,
        "ByteFallback": {},
        "Fuse": {},
        "Strip": {"content": text, "start": count, "stop": count},
        "Replace": REPLACE,
        "WordPiece": {"prefix": text, "cleanup": flag},
        "BPEDecoder": {"suffix": text},
    },
    "model": {
        "BPE": {
            "unk_token": text,
            "continuing_subword_prefix": text,
            "end_of_word_suffix": text,
            "fuse_unk": flag,
            "byte_fallback": flag,
            "ignore_merges": flag,
        },
        "Unigram": {"unk_id": lambda v: type(v) is int and v >= 0, "byte_fallback": flag},
        "WordPiece": {
            "unk_token": text,
            "continuing_subword_prefix": text,
            "max_input_chars_per_word": count,
        },
    },
}


def checked(kind: str, part: Any, depth: int = 0) -> Part | None:
    """A part of this kind (normalizer, pre_tokenizer, decoder, model) with the fields that it has;
    None for none. Raises ValueError."""
    if part is None:
        return None
    name = part.get("type") if isinstance(part, dict) else None
    if not isinstance(name, str):
        raise ValueError(f"{kind} is no object with a type")
    if name == "Sequence" and kind in SEQUENCES:
        inner = part.get(SEQUENCES[kind])
        if not isinstance(inner, list) or len(inner) > MOST_PARTS or depth == DEEPEST:
            raise ValueError(f"{kind}: a sequence of too many parts, or of none")
        return {"type": name, SEQUENCES[kind]: [checked(kind, p, depth + 1) for p in inner]}
    if name not in PARTS[kind]:
        known = ", ".join(PARTS[kind])
        raise ValueError(f"{kind} {name[:40]!r} is not supported; supported: {known}")
    fields, out = PARTS[kind][name], {"type": name}
    for field, value in part.items():
        if field == "type" or value is None:
            continue
        if field not in fields or not fields[field](value):
            said = repr(value)[:60]
            raise ValueError(f"{kind} {name}: {field[:40]} = {said} is not supported")
        out[field] = value
    return out
