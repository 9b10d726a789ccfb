"""``lumc serve`` of models of texts, as clients of OpenAI ask them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from serving import PACKAGES, Answer, Server, served
from text_models import CONTEXT, SENTENCES, encoder, writer

for package in (*PACKAGES, "tokenizers", "jinja2"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("texts")
    encoder(made)
    writer(made)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(folder, folder / "encoder.lb", folder / "writer.lb", grpc=False) as found:
        yield found


def post(server: Server, path: str, **body: Any) -> Answer:
    return server.ask(f"/v1/{path}", json.dumps(body).encode())


def reference(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    """What transformers makes of the same folder: the mean over tokens, of unit length."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer.from_file(str(folder / "encoder" / "tokenizer.json"))
    model = transformers.BertModel.from_pretrained(folder / "encoder", add_pooling_layer=False)
    out = []
    for text in texts:
        with torch.inference_mode():
            hidden = model.eval()(torch.tensor([words.encode(text).ids])).last_hidden_state
        out.append(torch.nn.functional.normalize(hidden.mean(1), dim=1)[0].numpy())
    return np.stack(out)


# ---- vectors


def test_vectors_are_those_of_transformers(server: Server, folder: Path) -> None:
    answer = post(server, "embeddings", model="encoder", input=SENTENCES)
    assert answer.status == 200, answer.body
    said = answer.json
    got = np.array([one["embedding"] for one in said["data"]], np.float32)
    assert [one["index"] for one in said["data"]] == list(range(len(SENTENCES)))
    assert said["usage"] == {"prompt_tokens": 30, "total_tokens": 30}
    assert np.allclose(got, reference(folder, SENTENCES), atol=1e-5)
    raw = post(server, "embeddings", model="encoder", input=SENTENCES[0], encoding_format="base64")
    (one,) = raw.json["data"]
    assert np.allclose(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), got[0], atol=1e-6)
    ids = post(server, "embeddings", model="encoder", input=[[2, 4, 3], [2, 5, 6, 3]])
    assert np.allclose([one["embedding"] for one in ids.json["data"]], got[:2], atol=1e-6)


def test_texts_that_are_too_long(server: Server) -> None:
    long = "a " * 20
    answer = post(server, "embeddings", model="encoder", input=["a", long])
    assert answer.status == 400 and "22 tokens" in answer.json["error"]["message"]
    cut = post(server, "embeddings", model="encoder", input=long, truncate_prompt_tokens=-1)
    whole = post(server, "embeddings", model="encoder", input="a " * 7)
    assert cut.json["data"] == whole.json["data"] and cut.json["usage"]["total_tokens"] == 9


def test_a_text_that_is_too_long_takes_no_other_with_it(server: Server) -> None:
    answers = dict[int, Answer]()

    def ask(n: int) -> None:
        text = "a " * 20 if n % 4 == 3 else "a b"
        answers[n] = post(server, "embeddings", model="encoder", input=text)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: a.status for n, a in answers.items()} == {
        n: 400 if n % 4 == 3 else 200 for n in range(16)
    }


# ---- texts


def generated(folder: Path, *arguments: object) -> str:
    said = Lumc(folder)("generate", folder / "writer.lb", "--json", *arguments)
    return str(json.loads(said.splitlines()[-1])["text"])


def test_a_text_is_that_of_generate(server: Server, folder: Path) -> None:
    for temperature, seed in ((0, 1), (1.0, 5)):
        wanted = {"model": "writer", "prompt": "abc", "max_tokens": 9}
        answer = post(server, "completions", **wanted, temperature=temperature, seed=seed)
        assert answer.status == 200, answer.body
        (choice,) = answer.json["choices"]
        same = [
            "--temperature",
            temperature,
            "--seed",
            seed,
            "--top-p",
            1,
            "--top-k",
            0,
            "--min-p",
            0,
        ]
        want = generated(folder, "--prompt", "abc", "--tokens", 9, *same)
        assert choice["text"] == want
        used = answer.json["usage"]
        assert used["prompt_tokens"] == 3 and 0 < used["completion_tokens"] <= 9
        assert choice["finish_reason"] in ("length", "stop")


def events(answer: Answer) -> list[Any]:
    lines = [line for line in answer.body.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_a_conversation_at_once_and_in_pieces(server: Server, folder: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}
    ]
    for seed in range(40):  # the first conversation that does not end at once
        wanted = {"model": "writer", "messages": messages, "temperature": 2, "seed": seed}
        whole = post(server, "chat/completions", **wanted).json
        (choice,) = whole["choices"]
        assert choice["message"]["role"] == "assistant"
        if len(choice["message"]["content"]) > 3:
            break
    same = ["--temperature", 2, "--seed", seed, "--top-p", 1, "--top-k", 0, "--min-p", 0]
    want = generated(folder, "--chat", "--prompt", "abc", *same, "--tokens", 100)
    assert choice["message"]["content"] == want
    usage = {"include_usage": True}
    pieces = events(post(server, "chat/completions", **wanted, stream=True, stream_options=usage))
    assert pieces[0]["object"] == "chat.completion.chunk"
    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
    texts = [p["choices"][0]["delta"]["content"] for p in pieces[:-1]]
    assert "".join(texts) == choice["message"]["content"] and len(texts) > 2
    assert pieces[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert pieces[-1]["usage"] == whole["usage"]


def test_words_that_end_a_text(server: Server) -> None:
    wanted = {"model": "writer", "prompt": "abc", "max_tokens": 12, "temperature": 0}
    whole = post(server, "completions", **wanted).json["choices"][0]["text"]
    word = whole[len(whole) // 2]
    cut = post(server, "completions", **wanted, stop=[word]).json["choices"][0]
    assert cut["text"] == whole.partition(word)[0] and cut["finish_reason"] == "stop"


def test_several_at_once_take_turns(server: Server) -> None:
    """Each has its own text; vectors come between the pieces."""
    found = dict[int, Any]()

    def write(n: int) -> None:
        prompt = "abcdefgh"[n] * 3
        answer = post(
            server, "completions", model="writer", prompt=prompt, max_tokens=15, temperature=0
        )
        found[n] = answer.json["choices"][0]["text"]

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    assert post(server, "embeddings", model="encoder", input="a").status == 200
    for thread in threads:
        thread.join()
    alone = dict(found)
    for n in range(8):
        write(n)
    assert found == alone


def test_a_worker_that_ends_in_the_middle_of_a_text(folder: Path, tmp_path: Path) -> None:
    import http.client

    with served(tmp_path, folder / "writer.lb", grpc=False) as server:
        wanted: dict[str, Any] = {
            "model": "writer",
            "prompt": "abc",
            "max_tokens": 20,
            "temperature": 0,
        }
        whole = post(server, "completions", **wanted).json["choices"][0]["text"]
        connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(wanted | {"stream": True}))
        answer = connection.getresponse()
        first = answer.readline()
        (worker,) = server.workers
        os.kill(worker, signal.SIGKILL)
        rest = first + answer.read()
        got = "".join(p["choices"][0]["text"] for p in events(Answer(200, rest, {})))
        assert got == whole


# ---- what is refused

BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no model": ("completions", {"model": None}),
    "another model": ("completions", {"model": "other"}),
    "an encoder that is to write": ("completions", {"model": "encoder"}),
    "a writer that is to encode": ("embeddings", {"model": "writer", "input": "a"}),
    "no prompt": ("completions", {"prompt": None}),
    "two prompts": ("completions", {"prompt": ["a", "b"]}),
    "an empty prompt": ("completions", {"prompt": ""}),
    "no ids": ("completions", {"prompt": []}),
    "ids of no tokens": ("completions", {"prompt": [3, 99]}),
    "a long prompt": ("completions", {"prompt": "a" * (CONTEXT + 1)}),
    "n": ("completions", {"n": 2}),
    "logprobs": ("completions", {"logprobs": 1}),
    "no tokens": ("completions", {"max_tokens": 0}),
    "a cold temperature": ("completions", {"temperature": -1}),
    "no probability": ("completions", {"top_p": 0}),
    "a penalty": ("completions", {"frequency_penalty": 1.0}),
    "a stop that is a number": ("completions", {"stop": 3}),
    "a seed that is too large": ("completions", {"seed": 1 << 65}),
    "no messages": ("chat/completions", {"messages": []}),
    "a message without a role": ("chat/completions", {"messages": [{"content": "a"}]}),
    "an image": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ),
    "tools": ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}),
    "no input": ("embeddings", {"model": "encoder"}),
    "no texts": ("embeddings", {"model": "encoder", "input": []}),
    "numbers and texts": ("embeddings", {"model": "encoder", "input": ["a", 1]}),
    "ids that are no tokens": ("embeddings", {"model": "encoder", "input": [[1, 77]]}),
    "other dimensions": ("embeddings", {"model": "encoder", "input": "a", "dimensions": 3}),
    "another encoding": ("embeddings", {"model": "encoder", "input": "a", "encoding_format": "x"}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(server: Server, name: str) -> None:
    path, change = BAD[name]
    body = {"model": "writer", "prompt": "a", **change}
    answer = post(server, path, **{k: v for k, v in body.items() if v is not None})
    assert 400 <= answer.status < 500, answer
    assert answer.json["error"]["message"] and "Traceback" not in server.log.read_text()


def test_a_writer_is_not_run_as_it_is(server: Server) -> None:
    body = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1], "data": [1]}]}
    answer = server.ask("/v2/models/writer/infer", json.dumps(body).encode())
    assert answer.status == 400


def test_the_client_of_openai(server: Server) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.http}/v1", api_key="none")
    assert [m.id for m in client.models.list()] == ["encoder", "writer"]
    found = client.embeddings.create(model="encoder", input=SENTENCES)
    assert len(found.data) == len(SENTENCES) and len(found.data[0].embedding) == 12
    answer = client.chat.completions.create(
        model="writer", messages=[{"role": "user", "content": "abc"}], temperature=0, max_tokens=8
    )
    stream = client.chat.completions.create(
        model="writer", messages=[{"role": "user", "content": "abc"}], temperature=0, max_tokens=8,
        stream=True,
    )  # fmt: skip
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == answer.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")


def test_a_tokenizer_that_is_named(folder: Path, tmp_path: Path) -> None:
    """Of a bundle that was compiled of the folder without it."""
    plain = shutil.copytree(folder / "encoder", tmp_path / "plain")
    (plain / "tokenizer.json").unlink()
    lumc = Lumc(tmp_path)
    lumc("import", plain, "--dim", "b=1", "--dim", "s=9", "-o", tmp_path / "m.lg")
    lumc("compile", tmp_path / "m.lg", "--estimate", "-o", tmp_path / "m.lb")
    with served(tmp_path, tmp_path / "m.lb", grpc=False) as server:
        assert post(server, "embeddings", model="m", input="a").status == 400
    named = ["--tokenizer", folder / "encoder"]
    with served(tmp_path, tmp_path / "m.lb", *named, grpc=False) as server:
        answer = post(server, "embeddings", model="m", input=["a b", "c"])  # filled up to 9
        got = [one["embedding"] for one in answer.json["data"]]
        assert np.allclose(got, reference(folder, ["a b", "c"]), atol=1e-5)
