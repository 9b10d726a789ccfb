"""`lumc generate`: a small model from a GGUF file to texts, as its graph and its vocabulary say."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import random_weights
from commands import Lumc
from gguf_files import gguf
from lumc.frontend.models.gguf import import_gguf
from lumc.graph.bind import bind_dims
from lumc.oracle.graph import evaluate
from schemas import check
from text_models import CONTEXT, TOKENS, writer_file
from unit.frontend.models.test_gguf import FIELDS, converted, floats, shapes

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with m.gguf and a bundle of it."""
    folder = tmp_path_factory.mktemp("generate")
    writer_file(folder / "m.gguf")
    lumc = Lumc(folder)
    lumc("import", folder / "m.gguf", "--context", CONTEXT, "--rows", 4, "-o", folder / "m.lg")
    lumc("compile", folder / "m.lg", "--estimate", "-o", folder / "m.lb")
    return folder


def next_of(folder: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    """The logits after a text, by the oracle, of the model that is given it whole."""
    model = import_gguf(folder / "m.gguf")
    graph = bind_dims(model.graph(), {"b": 1, "s": len(ids)})
    out, _ = evaluate(graph, "main", {"input_ids": np.array([ids])}, model.read_weight)
    return out["logits"][0, -1]


def greedy(folder: Path, prompt: str, count: int) -> tuple[str, bool]:
    """The text that follows, and whether the model ended it."""
    ids, text = [TOKENS.index(c) for c in split(prompt)], ""
    for _ in range(count):
        ids.append(int(next_of(folder, ids).argmax()))
        if ids[-1] == 12:
            return text, True
        text += {10: " ", 11: ""}.get(ids[-1], TOKENS[ids[-1]])
    return text, False


def split(text: str) -> list[str]:
    out = list[str]()
    while text:
        token = next(t for t in (*TOKENS[11:], "gh", text[0]) if text.startswith(t))
        out.append(token.replace(" ", "\u0120"))
        text = text[len(token) :]
    return out


@pytest.fixture
def run(made: Path, lumc: Lumc) -> Any:
    return partial(lumc, "generate", made / "m.lb")


def test_the_most_probable_text(run: Any, made: Path) -> None:
    want, ended = greedy(made, "abc de", 9)
    said = json.loads(run("--prompt", "abc de", "--temperature", 0, "-n", 9, "--json"))
    check("generate", said)
    assert said["text"] == want and (said["ended"] == "stop") == ended
    assert said["prompt"]["tokens"] == 6
    assert run("--prompt", "abc de", "--temperature", 0, "-n", 9) == f"{want}\n"
    assert run("--temperature", 0, "-n", 9, input=b"abc de") == f"{want}\n"


def test_a_seed_is_a_text(run: Any) -> None:
    texts = [run("--prompt", "abc", "--temperature", 2, "--top-k", 0, "--top-p", 1, "--min-p", 0,
                 "-n", 12, "--seed", seed) for seed in (1, 1, 2, 3)]  # fmt: skip
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_texts_end_at_words_and_at_the_end_of_the_context(run: Any, made: Path) -> None:
    hot = ("--temperature", 3, "--top-k", 0, "--top-p", 1, "--min-p", 0, "--json", "--prompt", "ab")
    for seed in range(20):
        whole = json.loads(run(*hot, "--seed", seed, "-n", 99))
        if whole["ended"] == "context":
            break
    assert whole["ended"] == "context"
    assert whole["prompt"]["tokens"] + whole["generated"]["tokens"] == CONTEXT + 1
    word = whole["text"][5:7]
    said = json.loads(run(*hot, "--seed", seed, "-n", 99, "--stop", word))
    assert said["ended"] == "word" and whole["text"].startswith(said["text"] + word)


def test_a_chat_goes_on_with_what_it_has_seen(run: Any, made: Path) -> None:
    first = "<|im_start|>ab<|im_end|><|im_start|>"
    want, _ = greedy(made, first, 3)
    again = f"{first}{want}<|im_end|><|im_start|>cd<|im_end|><|im_start|>"
    more, _ = greedy(made, again, 3)
    lines = run("--chat", "--temperature", 0, "-n", 3, "--json", input=b"ab\ncd\n").splitlines()
    said = [json.loads(line) for line in lines]
    assert [s["text"] for s in said] == [want, more]
    assert said[0]["prompt"]["tokens"] == 5
    assert said[1]["prompt"]["tokens"] <= 7  # not the conversation again


def test_what_is_refused(run: Any, lumc: Lumc, made: Path) -> None:
    refused = partial(lumc.fails, 2, "generate", made / "m.lb")
    assert "E0615" in refused("--prompt", "a" * (CONTEXT + 1))
    assert "--chat" in refused("--prompt", "a", "--system", "b")
    assert "temperature" in refused("--prompt", "a", "--temperature", -1)
    text = "lumc graph 1\ninput x f32[2]\ny f32[i:2] = exp2 x[i]\noutput y = y\n"
    (made / "p.lg").write_text(text)
    lumc("compile", made / "p.lg", "--estimate", "-o", made / "p.lb")
    wrong = ("generate", made / "p.lb", "--tokenizer", made / "m.gguf", "--prompt", "a")
    assert "E0618" in lumc.fails(2, *wrong)


def test_the_tokenizer_travels_with_the_model(run: Any, lumc: Lumc, made: Path) -> None:
    """From pass to pass, as a file that the next one finds; the bundle has it, in one file too."""
    here = made / "passes"
    here.mkdir()
    lumc("import", made / "m.gguf", "--context", CONTEXT, "--rows", 4, "--copy-weights",
         "-o", here / "m.lg")  # fmt: skip
    words = (here / "m.tokenizer.json").read_bytes()
    assert 'tokenizer "m.tokenizer.json"' in (here / "m.lg").read_text()
    lumc("search", here / "m.lg", "--dtype", "bf16", "-o", here / "m.ls")
    lumc("profile", here / "m.ls", "--estimate", "-o", here / "m.lp")
    lumc("codegen", here / "m.lp", "-o", here / "m.lk")
    lumc("link", here / "m.lk", "-o", here / "m.lb")
    assert (here / "m.lb" / "tokenizer.json").read_bytes() == words
    lumc("link", here / "m.lk", "--zip", "-o", here / "m.zip.lb")
    how = ("--prompt", "abc", "--temperature", 0, "-n", 5)
    want = run(*how, "--tokenizer", made / "m.gguf")
    assert run(*how) == run(*how, "--tokenizer", here / "m.tokenizer.json") == want
    assert lumc("generate", here / "m.lb", *how) == lumc("generate", here / "m.zip.lb", *how)
    (here / "m.tokenizer.json").write_bytes(words.replace(b"template", b"templatE"))
    assert "E0503 the tokenizer is not the one" in lumc.fails(
        5, "link", here / "m.lk", "-o", here / "n.lb"
    )
    (here / "m.tokenizer.json").write_bytes(words)
    (here / "sub").mkdir()
    text = (here / "m.lk").read_text().replace("m.tokenizer", "../m.tokenizer")
    (here / "sub" / "m.lk").write_text(text)
    shutil.copy(here / "m.safetensors", here / "sub")
    assert "E0506" in lumc.fails(5, "link", here / "sub" / "m.lk", "-o", here / "n.lb")
    (here / "m.lb" / "tokenizer.json").write_bytes(words + b" ")
    assert "does not match its hash" in lumc.fails(5, "generate", here / "m.lb", *how)


def test_models_without_a_tokenizer(lumc: Lumc, made: Path) -> None:
    said = {f"llama.{k}": v for k, v in FIELDS.items()} | {"general.architecture": "llama"}
    weights = floats(converted(random_weights(shapes("llama")), "llama"))
    (made / "n.gguf").write_bytes(gguf(said, weights))
    lumc("import", made / "n.gguf", "--context", CONTEXT, "--rows", 4, "-o", made / "n.lg")
    assert not (made / "n.tokenizer.json").exists()
    lumc("compile", made / "n.lg", "--estimate", "-o", made / "n.lb")
    how = ("generate", made / "n.lb", "--prompt", "abc", "--temperature", 0, "-n", 5)
    assert "E0619" in lumc.fails(2, *how)
    assert lumc(*how, "--tokenizer", made / "m.gguf")
    assert "E0204" in lumc.fails(2, "import", made / "m.gguf", "--context", CONTEXT, "-o", "-")


def test_tokens_per_second(lumc: Lumc, made: Path) -> None:
    bench = partial(lumc, "bench", "--llm", made / "m.lb", "--seconds", 0.01)
    rows = json.loads(bench("--tests", "pp6,tg3@5,tg2,pp99", "--threads", "1,2", "--json"))
    check("bench-llm", rows)
    assert [(r["test"], r["threads"]) for r in rows] == [
        (t, n) for n in (1, 2) for t in ("pp6", "tg3@5", "tg2")
    ]
    assert all(r["engine"] == "lumc" and r["tokens_per_second"] > 0 for r in rows)
    assert ["of_memory" in r for r in rows[:3]] == [False, True, True]
    lines = bench("--tests", "pp6,pp99").splitlines()
    assert lines[2].startswith("| lumc ") and "| pp6 |" in lines[2]
    assert lines[3:] == [f"pp99: not run, the context has {CONTEXT} tokens"]


def test_what_tokens_per_second_refuse(lumc: Lumc, made: Path) -> None:
    refused = partial(lumc.fails, 2, "bench", made / "m.lb")
    assert "'tg' is no test" in refused("--llm", "--tests", "tg")
    assert "E0203 no test fits" in refused("--llm", "--tests", "pp99")
    assert "llama.cpp=FILE" in refused("--llm", "--peer", f"nobody={made / 'm.gguf'}")
    assert "E0201" in refused("--llm", "--peer", f"llama.cpp={made / 'none.gguf'}")
    assert "pip install onnxruntime-genai" in refused(
        "--llm", "--peer", f"onnxruntime-genai={made}"
    )
    assert "go with --llm" in refused("--tests", "pp6")
    assert "--llm goes with" in refused("--llm", "--entry", "decode")
