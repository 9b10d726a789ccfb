"""What clients of OpenAI ask: vectors of texts, texts that go on, answers in conversations.

https://platform.openai.com/docs/api-reference. What is asked for and cannot be done is refused.
"""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from lumc.generate.sampling import Sampling
from lumc.serve.jobs import Piece
from lumc.serve.protocol import ENCODER
from lumc.serve.service import Service, refusal
from lumc.serve.spec import EMBEDS, WRITES, Prompt, Sentences
from lumc.serve.tensors import Refused, malformed
from lumc.serve.web import guarded, read_body, said

MOST_TEXTS = 2048
TEXT_BYTES = 1 << 20  # of a request, at least
Ids = list[Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]]
Stop = Annotated[list[Annotated[str, msgspec.Meta(max_length=1000)]], msgspec.Meta(max_length=16)]


class Embeddings(msgspec.Struct):
    """A request for vectors."""

    model: str
    input: str | list[str | Ids | int]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None  # -1, as vLLM has it: cut what is too long


class Usage(msgspec.Struct):
    include_usage: bool = False


class Part(msgspec.Struct):
    """Of a message."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct):
    role: str
    content: str | list[Part]


class Format(msgspec.Struct):
    type: Literal["text"] = "text"


class Wanted(msgspec.Struct, kw_only=True):
    """What both kinds of texts are asked for with. Fields that would change the text and are not
    supported have the one value that changes nothing."""

    model: str
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop: str | Stop | None = None
    stream: bool | None = False
    stream_options: Usage | None = None
    n: Literal[1] | None = 1
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None


class Completion(Wanted, kw_only=True):
    """A text that goes on."""

    prompt: str | list[str | Ids | int]
    echo: Literal[False] | None = False
    best_of: Literal[1] | None = 1
    logprobs: None = None
    suffix: None = None


class Chat(Wanted, kw_only=True):
    """A conversation."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: Literal[False] | None = False
    tools: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    response_format: Format | None = None


def routes(service: Service) -> list[Route]:
    """Those of this protocol."""
    asked = Asked(service)
    return [
        Route("/v1/models", asked.models, methods=["GET"]),
        Route("/v1/models/{model}", asked.model, methods=["GET"]),
        Route("/v1/embeddings", asked.of(Embeddings, asked.embeddings), methods=["POST"]),
        Route("/v1/completions", asked.of(Completion, asked.completion), methods=["POST"]),
        Route("/v1/chat/completions", asked.of(Chat, asked.chat), methods=["POST"]),
    ]


class Asked:
    """What is asked of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.since, self.count = service, int(time.time()), itertools.count(1)

    def of(self, kind: type[Any], answer: Callable[..., Any]) -> Callable[..., Any]:
        """A route that reads a request of a kind, and gives the answer."""
        decoder = msgspec.json.Decoder(kind)

        async def read(request: Request) -> Response:
            most = max(self.service.most, TEXT_BYTES)
            body = await read_body(request, most)
            try:
                wanted = decoder.decode(body)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
                raise malformed(f"no request: {e}") from None
            request.scope["model"] = wanted.model
            response: Response = await answer(wanted)
            return response

        async def route(request: Request) -> Response:
            return await guarded(self.service, request, read, through=True, error=error_of)

        return route

    # ---- models

    async def models(self, _: Request) -> Response:
        return said({"object": "list", "data": [self._model(n) for n in self.service.pool.specs]})

    async def model(self, request: Request) -> Response:
        async def answer(request: Request) -> Response:
            return said(self._model(self.service.spec(request.path_params["model"]).name))

        return await guarded(self.service, request, answer, error=error_of)

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.since, "owned_by": "lumc"}

    # ---- vectors

    async def embeddings(self, wanted: Embeddings) -> Response:
        spec = self.service.of_texts(wanted.model, EMBEDS)
        texts = texts_of(wanted.input)
        if not 0 < len(texts) <= MOST_TEXTS:
            raise malformed(f"{len(texts)} texts: 1 to {MOST_TEXTS} at once")
        truncate = wanted.truncate_prompt_tokens == -1
        vectors, counts = await self.service.pool.ask(Sentences(spec.name, texts, truncate))
        if wanted.dimensions not in (None, vectors.shape[1]):
            raise malformed(f"vectors have {vectors.shape[1]} dimensions")
        raw = wanted.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": base64.b64encode(v.tobytes()).decode() if raw else v.tolist(),
            }
            for i, v in enumerate(vectors)
        ]
        used = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        return said({"object": "list", "data": data, "model": spec.name, "usage": used})

    # ---- texts

    async def completion(self, wanted: Completion) -> Response:
        texts = texts_of(wanted.prompt)
        if len(texts) != 1:
            raise malformed(f"{len(texts)} prompts: one at a time")
        prompt = self._prompt(wanted, texts[0], (), wanted.max_tokens or 16)
        return await self._answer(prompt, wanted, "text_completion", text_choice)

    async def chat(self, wanted: Chat) -> Response:
        messages = tuple({"role": m.role, "content": joined(m.content)} for m in wanted.messages)
        count = wanted.max_completion_tokens or wanted.max_tokens or 0
        prompt = self._prompt(wanted, "", messages, count)
        return await self._answer(prompt, wanted, "chat.completion", chat_choice)

    def _prompt(
        self, w: Wanted, text: Any, messages: tuple[Mapping[str, str], ...], count: int
    ) -> Prompt:
        """Raises Refused, LumcError for numbers that mean nothing."""
        spec = self.service.of_texts(w.model, WRITES)
        for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
            if getattr(w, name):
                raise malformed(f"{name} is not supported")
        seed = time.time_ns() if w.seed is None else w.seed
        sampling = Sampling(
            temperature=1.0 if w.temperature is None else w.temperature,
            top_p=1.0 if w.top_p is None else w.top_p,
            top_k=w.top_k,
            min_p=w.min_p,
            repetition=w.repetition_penalty,
            seed=seed,
        )
        stops = (w.stop,) if isinstance(w.stop, str) else tuple(w.stop or ())
        return Prompt(spec.name, text, messages, sampling, count, stops)

    async def _answer(
        self, prompt: Prompt, wanted: Wanted, kind: str, choice: Callable[..., Any]
    ) -> Response:
        """All at once, or piece by piece; what is wrong with a prompt is said before the first."""
        head = {
            "id": f"{kind.partition('.')[0]}-{time.time_ns():x}-{next(self.count)}",
            "object": kind,
            "created": int(time.time()),
            "model": prompt.model,
        }
        pieces = self.service.pool.talk(prompt)
        first = await anext(pieces)
        if not wanted.stream:
            text, last = first.text, first
            while not last.ended:
                last = await anext(pieces)
                text += last.text
            choices = [choice(text, last.ended, False)]
            return said(head | {"choices": choices, "usage": usage(last)})
        usage_too = bool(wanted.stream_options and wanted.stream_options.include_usage)
        lines = self._lines(head, first, pieces, choice, usage_too)
        return StreamingResponse(lines, media_type="text/event-stream")

    async def _lines(
        self,
        head: dict[str, Any],
        first: Piece,
        pieces: AsyncIterator[Piece],
        choice: Callable[..., Any],
        usage_too: bool,
    ) -> AsyncIterator[bytes]:
        """Events of a stream. Inside of the gate, as the request is."""
        chunk = head | {"object": head["object"] + ".chunk" * (choice is chat_choice)}
        with self.service.gate.still():
            try:
                yield event(chunk | {"choices": [choice(first.text, first.ended, True, True)]})
                piece = first
                while not piece.ended:
                    piece = await anext(pieces)
                    yield event(chunk | {"choices": [choice(piece.text, piece.ended, True)]})
                if usage_too:
                    yield event(chunk | {"choices": [], "usage": usage(piece)})
                yield b"data: [DONE]\n\n"
            except Exception as e:
                why = refusal(e) or Refused(500, "the server failed")
                yield event(error_body(why))
            finally:
                await pieces.aclose()  # type: ignore[attr-defined]


def texts_of(value: Any) -> tuple[Any, ...]:
    """One text or several, as letters or as ids. Raises Refused."""
    if isinstance(value, str):
        return (value,)
    if value and all(isinstance(v, int) for v in value):
        return (tuple(value),)
    if any(isinstance(v, int) for v in value):
        raise malformed("ids of tokens among texts")
    return tuple(tuple(v) if isinstance(v, list) else v for v in value)


def joined(content: str | Sequence[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def text_choice(text: str, ended: str, stream: bool, first: bool = False) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": ended or None}


def chat_choice(text: str, ended: str, stream: bool, first: bool = False) -> dict[str, Any]:
    message = {"role": "assistant", "content": text} if first or not stream else {"content": text}
    named = {"delta" if stream else "message": message}
    return {"index": 0, **named, "logprobs": None, "finish_reason": ended or None}


def usage(last: Piece) -> dict[str, int]:
    return {
        "prompt_tokens": last.tokens,
        "completion_tokens": last.made,
        "total_tokens": last.tokens + last.made,
    }


def event(value: Any) -> bytes:
    return b"data: " + ENCODER.encode(value) + b"\n\n"


def error_body(e: Refused) -> dict[str, Any]:
    kind = "invalid_request_error" if e.status < 500 else "server_error"
    return {"error": {"message": e.why, "type": kind, "param": None, "code": None}}


def error_of(e: Refused) -> Response:
    return said(error_body(e), e.status)
