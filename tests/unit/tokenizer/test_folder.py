"""Tokenizers of Hugging Face folders, against transformers, on such as are trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors as post
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from lumc.errors import Exit, LumcError
from lumc.tokenizer.encoding import Encoding, encoding
from lumc.tokenizer.sources import of_source
from lumc.tokenizer.tokenizer import dump, parse
from unit.tokenizer.test_encoding import CORPUS, LLAMA3, ODD, drawn

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_end|>"]


def trained(kind: str) -> Tokenizer:
    """Pipelines as the models of these kinds have them."""
    common = {"special_tokens": SPECIAL, "show_progress": False}
    around = [("<s>", 1), ("</s>", 2)]
    if kind in ("gpt2", "llama3", "o200k"):
        made = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
        if kind == "gpt2":
            made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
            made.post_processor = post.ByteLevel(trim_offsets=False)
        else:
            split = pre.Split(Regex(LLAMA3 if kind == "llama3" else O200K), "isolated")
            bytes_ = pre.ByteLevel(add_prefix_space=False, use_regex=False)
            made.pre_tokenizer = pre.Sequence([split, bytes_])
            single = post.TemplateProcessing(single="<s> $A", special_tokens=around)
            made.post_processor = post.Sequence([post.ByteLevel(trim_offsets=False), single])
        made.decoder = decoders.ByteLevel()
        trainer: Any = BpeTrainer(
            vocab_size=500, initial_alphabet=pre.ByteLevel.alphabet(), **common
        )
    elif kind == "metaspace":  # Llama 2, Mistral
        made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        made.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
             decoders.Strip(" ", 1, 0)]
        )  # fmt: skip
        made.post_processor = post.TemplateProcessing(single="<s> $A", special_tokens=around)
        common["special_tokens"] = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(256))]
        trainer = BpeTrainer(vocab_size=600, **common)
    elif kind == "unigram":  # T5, XLM-R
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        made.pre_tokenizer = pre.Metaspace()
        made.decoder = decoders.Metaspace()
        made.post_processor = post.TemplateProcessing(single="$A </s>", special_tokens=around)
        trainer = UnigramTrainer(vocab_size=300, unk_token="<unk>", **common)
    else:
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre.BertPreTokenizer()
        made.decoder = decoders.WordPiece(prefix="##")
        made.post_processor = post.BertProcessing(("</s>", 2), ("<s>", 1))
        trainer = WordPieceTrainer(vocab_size=400, **common)
    made.train_from_iterator(CORPUS * 3, trainer)
    if kind == "metaspace":  # bytes are no control tokens
        said = json.loads(made.to_str())
        said["added_tokens"] = said["added_tokens"][: len(SPECIAL)]
        made = Tokenizer.from_str(json.dumps(said))
    made.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    made.add_special_tokens([AddedToken("<|late|>", lstrip=True, special=True)])
    return made


def saved(folder: Path, made: Tokenizer, **more: Any) -> Path:
    transformers = pytest.importorskip("transformers")
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **more
    )
    whole.save_pretrained(folder)
    return folder


def opened(folder: Path) -> Encoding:
    """That of a folder, through its file."""
    known = of_source(str(folder))
    text = dump(known)
    again = parse(text, "t")
    assert dump(again) == text and again == known
    return encoding(again, "t")


KINDS = ["gpt2", "llama3", "o200k", "metaspace", "unigram", "wordpiece"]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = saved(tmp_path / "t", trained(kind))
    theirs, ours = transformers.PreTrainedTokenizerFast.from_pretrained(folder), opened(folder)
    more = ["a<tool>b", "x  <|late|> y", "</s>", "hello <|im_end|>"]
    for text in (*CORPUS, *ODD, *drawn(100), *more):
        want = theirs.encode(text)
        assert ours.encode(text) == want, text
        assert ours.encode(text, whole=False) == theirs.encode(text, add_special_tokens=False)
        for special in (True, False):
            right = theirs.decode(
                want, skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
            assert ours.decode(want, special) == right, text
    for text in (*CORPUS, *drawn(40)) if kind != "wordpiece" else ():
        ids = ours.encode(text)
        assert "".join(ours.stream(ids)) == ours.decode(ids), text
    assert (ours.tokenizer.name("begin"), ours.tokenizer.name("end")) == ("<s>", "</s>")
    assert ours.tokenizer.id("<tool>") == theirs.convert_tokens_to_ids("<tool>")


def test_what_other_files_add(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    folder = saved(tmp_path / "t", trained("gpt2"), chat_template=template)
    known = of_source(str(folder))
    assert known.template == template and known.stops == [2, 3]
    ids = {
        "eos_token_id": [2, 7, 1 << 20],
        "suppress_tokens": [9, -1],
        "begin_suppress_tokens": [5],
    }
    (folder / "generation_config.json").write_text(json.dumps(ids))
    known = of_source(str(folder))
    assert (known.stops, known.suppressed, known.not_first) == ([2, 3, 7], [9], [5])
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 8}))
    assert of_source(str(folder)).stops == [2, 3, 8]
    config = folder / "tokenizer_config.json"
    said = json.loads(config.read_text())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    two = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    config.write_text(json.dumps({**said, "chat_template": two}))
    assert of_source(str(folder)).template == "b"
    config.unlink()
    assert of_source(str(folder)).name("end") == ""


def changed(folder: Path, change: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    for key, value in change.items():
        *above, last = key.split(".")
        inner = said
        for name in above:
            inner = inner[name]
        inner[last] = value
    path.write_text(json.dumps(said))
    return folder


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model.type": "WordLevel"}, "model 'WordLevel'; supported: BPE"),
    "chance": ({"model.dropout": 0.5}, "dropout"),
    "a part": ({"normalizer": {"type": "Python"}}, "normalizer 'Python' is not supported"),
    "a field": (
        {"pre_tokenizer.trim": 1},
        "pre_tokenizer ByteLevel: trim = 1 is not supported",
    ),
    "a type": ({"pre_tokenizer.use_regex": "yes"}, "use_regex = 'yes'"),
    "an around": ({"post_processor": {"type": "Mine"}}, "post_processor 'Mine'"),
    "two texts": (
        {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {}}] * 2}},
        "with several",
    ),
    "an id of two": ({"model.vocab.b": 9}, "two tokens have the id 9"),
    "an id that is far": ({"model.vocab.b": 1 << 40}, "ids up to"),
    "an id below": ({"model.vocab.b": -1}, "ids up to"),
    "a merge": ({"model.merges": [["q", "nothing"]]}, "expected two tokens"),
    "a merge of three": ({"model.merges": [["a", "b", "c"]]}, "expected two tokens"),
    "an added id": ({"added_tokens": [{"id": 3, "content": "<s>"}]}, "contradicts itself"),
    "an added text": ({"added_tokens": [{"id": 3, "content": ""}]}, "is no token"),
    "no vocabulary": ({"model.vocab": None}, "malformed"),
    "a number": ({"model": 3}, "malformed"),
    "half a letter": ({"added_tokens": [{"id": 3, "content": "\ud800"}]}, "is no token"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, case: str) -> None:
    change, said = WRONG[case]
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(trained("gpt2").to_str())
    with pytest.raises(LumcError) as e:
        opened(changed(folder, change))
    assert (e.value.code, e.value.exit) == ("E0343", Exit.UNSUPPORTED)
    assert said in e.value.what, e.value.what


def test_a_folder_without_one(tmp_path: Path) -> None:
    with pytest.raises(LumcError, match=r"has no tokenizer\.json"):
        of_source(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(LumcError, match="not a JSON object"):
        of_source(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(LumcError) as e:
        of_source(str(tmp_path))
    assert e.value.code == "E0321"
