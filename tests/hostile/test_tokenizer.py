"""Tokenizers of strangers: files that are damaged, and patterns that would take long."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from fuzz.damage import damaged
from lumc.errors import Exit, LumcError
from lumc.tokenizer.parts import is_plain
from lumc.tokenizer.splits import SPLITS
from lumc.tokenizer.tokenizer import dump, of_fields, parse

BODY: dict[str, Any] = {
    "model": {"type": "BPE", "unk_token": "<s>"},
    "tokens": ["<s>", "a", None, "b", "ab"],
    "scores": [],
    "merges": [["a", "b"]],
    "added": [{"id": 0, "content": "<s>", "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": None,
    "decoder": {"type": "Fuse"},
    "first": [0],
    "last": [],
    "special": {"begin": 0},
    "stops": [4],
    "suppressed": [],
    "not_first": [1],
    "languages": {"en": 1},
    "template": "{{ messages }}",
}


def deep(kind: str, field: str, n: int) -> Any:
    part: Any = {"type": "NFC"}
    for _ in range(n):
        part = {"type": "Sequence", field: [part]}
    return {kind: part}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a field more": ({"other": 1}, "unknown field 'other'"),
    "a field less": ({"first": ...}, "missing field 'first'"),
    "no tokens": ({"tokens": [], "added": []}, "expected 1 to"),
    "tokens of another type": ({"tokens": "ab"}, "expected 1 to"),
    "numbers as tokens": ({"tokens": [1, 2]}, "texts of up to"),
    "a long token": ({"tokens": ["a" * 2000]}, "texts of up to"),
    "a token twice": ({"tokens": ["a", "a"]}, "different ones"),
    "half a letter": ({"tokens": ["\ud800"]}, "texts of up to"),
    "an added one twice": ({"added": [{"id": 0, "content": "x"}] * 2}, "different ones"),
    "an added one that is large": ({"added": [{"id": 1 << 40, "content": "x"}]}, "is no token"),
    "an added one with more": ({"added": [{"id": 0, "content": "x", "y": 1}]}, "is no token"),
    "a mark": ({"added": [{"id": 0, "content": "x", "special": 1}]}, "true or false"),
    "a merge of nothing": ({"merges": [["a", "c"]]}, "two tokens"),
    "a merge that makes nothing": ({"merges": [["b", "a"]]}, "make no token"),
    "merges that are none": ({"merges": 3}, "malformed"),
    "a first that is none": ({"first": [2]}, "first: expected tokens"),
    "a stop that is none": ({"stops": [True]}, "stops: expected tokens"),
    "a name that is none": ({"special": {"other": 0}}, "by the names"),
    "a special one that is none": ({"special": {"end": 9}}, "special: expected tokens"),
    "a language that is none": ({"languages": {"en": 2}}, "languages: expected tokens"),
    "a template": ({"template": 3}, "template: expected"),
    "a long template": ({"template": "x" * (1 << 21)}, "template: expected"),
    "no model": ({"model": None}, "no model"),
    "a part": ({"decoder": {"type": "Code"}}, "decoder 'Code' is not supported"),
    "a deep part": (deep("normalizer", "normalizers", 9), "too many parts"),
    "a wide part": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 99}},
        "too many parts",
    ),
    "a table": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}},
        "precompiled_charsmap = '?'",
    ),
    "scores": ({"scores": [1.0]}, "expected 0 numbers"),
    "a pattern": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a*)*"}, "behavior": "Isolated"}},
        "pattern = ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case: str) -> None:
    change, said = CASES[case]
    body = {k: v for k, v in (BODY | change).items() if v is not ...}
    with pytest.raises(LumcError) as e:
        of_fields(body, "t.json")
    assert (e.value.code, e.value.exit, e.value.where) == ("E0343", Exit.UNSUPPORTED, "t.json")
    assert said in e.value.what, e.value.what


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"lumc":"plan"}', '{"lumc":"tokenizer","schema":2}',
             "[" * 100_000, '"\ud800"']
)  # fmt: skip
def test_what_is_no_file_of_a_tokenizer(text: str) -> None:
    with pytest.raises(LumcError) as e:
        parse(text, "t.json")
    assert (e.value.code, e.value.exit) == ("E0501", Exit.CORRUPT)


def test_damaged_files_end_in_one_error() -> None:
    good, draw, read = dump(of_fields(BODY, "t")).encode(), random.Random(3), 0
    for _ in range(3000):
        try:
            parse(damaged(good, draw).decode(errors="replace"), "t")
            read += 1
        except LumcError as e:
            assert e.code in ("E0343", "E0501")
    assert read


# ---- patterns

SLOW = [
    "(a*)*", "(a+)+", "(a|a)*", "(a|ab|b)+", "((a)+)+", "(a?){30}", "(a+){2}", "(?:a*)+",
    "([ab]+c?)*",
    "a?a?a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaa", "(a)\\1", "(?<=a)b", "(?<n>a)\\k<n>", "\\g<0>", "a**",
    "a{1,9999}", "a{99999999999999999999}", "(" * 20 + ")" * 20, "(?#x)", "(a",
    "a)", "[a", "a\\", "(?P<n>a)", "(?x:#(\n(a*)#)\n*b)", "a{1,9}+b", "x" * 5000, "\ud800",
]  # fmt: skip
FINE = [
    "", "a|b", "(?i:'s|'t)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r"\s+(?!\S)|\s+", " {2,}",
    "[[:alpha:]]+", "[]a]+", r"(?:\r\n)+", r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+", "a++", "[^\\]]*",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_that_are_refused(pattern: str) -> None:
    assert not is_plain(pattern)


@pytest.mark.parametrize("pattern", [*FINE, *(s.pattern for s in SPLITS.values())])
def test_patterns_that_are_not(pattern: str) -> None:
    assert is_plain(pattern)


def test_what_is_not_refused_ends() -> None:
    """Patterns at random that are fine, on texts that make others take for ever."""
    tokenizers = pytest.importorskip("tokenizers")
    draw, tried = random.Random(7), 0
    pieces = [*"ab|()*+?#\n", "[ab]", "(?x:", "(?:", "a", "{2}", "{1,9}", "(?!b)"]
    for _ in range(4000):
        pattern = "".join(draw.choices(pieces, k=draw.randint(3, 14)))
        if not is_plain(pattern):
            continue
        try:
            rule = tokenizers.Regex(pattern)
        except Exception:
            continue
        tried += 1
        split, start = tokenizers.pre_tokenizers.Split(rule, "isolated"), time.process_time()
        split.pre_tokenize_str("a" * 40 + "b" * 3 + "ab" * 20 + "!")
        assert time.process_time() - start < 1, pattern
    assert tried > 100


def test_the_file_of_a_bundle_that_was_changed(tmp_path: Path) -> None:
    text = dump(of_fields(BODY, "t"))
    assert json.loads(text)["schema"] == 1 and parse(text, "t") == of_fields(BODY, "t")
