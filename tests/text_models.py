"""Small models of texts with random weights, compiled: an encoder of sentences, and a model that
writes."""

from __future__ import annotations

import json
from pathlib import Path

from checkpoints import BERT, bert_shapes, random_weights, write_folder
from commands import Lumc
from gguf_files import Array, gguf
from unit.frontend.models.test_gguf import FIELDS, converted, floats, shapes

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdef", "##b", "##c", "."]
SENTENCES = ["a", "b c", "ab", "a b c d", "f e d", "abc", "z"]
TOKENS = [*"abcdefghi", "gh", "\u0120", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>"
VOCABULARY = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": Array(8, TOKENS),
    "token_type": Array(5, [1] * 11 + [3, 3]),
    "merges": Array(8, ["g h"]),
    "eos_token_id": 12,
}
CONTEXT = 24


def encoder_folder(folder: Path) -> Path:
    """A Hugging Face folder: BERT, its tokenizer, a mean over the tokens of unit length."""
    write_folder(folder, BERT, random_weights(bert_shapes()))
    special = {i: t for i, t in enumerate(WORDS) if t.startswith("[")}
    around = {"[CLS]": 2, "[SEP]": 3}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": t, "special": True, **plain} for i, t in special.items()
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in around.items()},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {t: i for i, t in enumerate(WORDS)},
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{k}"}
        for i, (k, p) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def encoder(folder: Path) -> Path:
    """A bundle of that: up to 4 rows of up to 9 tokens."""
    lumc, made = Lumc(folder), encoder_folder(folder / "encoder")
    lumc("import", made, "--dim", "b=1..4", "-o", folder / "encoder.lg")
    lumc("compile", folder / "encoder.lg", "--estimate", "--tune", "b=4", "--tune", "s=9",
         "-o", folder / "encoder.lb")  # fmt: skip
    return folder / "encoder.lb"


def writer_file(path: Path) -> None:
    """A GGUF file of a Llama, with words."""
    said = {f"llama.{k}": v for k, v in FIELDS.items()}
    words = {f"tokenizer.ggml.{k}": v for k, v in VOCABULARY.items()}
    said |= {"general.architecture": "llama", "tokenizer.chat_template": TEMPLATE, **words}
    weights = floats(converted(random_weights(shapes("llama")), "llama"))
    path.write_bytes(gguf(said, weights))


def writer(folder: Path) -> Path:
    """A bundle of that, with a context of CONTEXT tokens."""
    writer_file(folder / "writer.gguf")
    lumc, graph = Lumc(folder), folder / "writer.lg"
    lumc("import", folder / "writer.gguf", "--context", CONTEXT, "--rows", 4, "-o", graph)
    lumc("compile", graph, "--estimate", "-o", folder / "writer.lb")
    return folder / "writer.lb"
