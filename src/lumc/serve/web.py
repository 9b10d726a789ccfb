"""HTTP: routes, limits, errors, the access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lumc import __version__
from lumc.serve import protocol
from lumc.serve.service import RETRY_S, Service, refusal
from lumc.serve.tensors import Refused

BODY_S = 30.0  # in which the body of a request arrives
MOST_DISCARDED = 1 << 24  # bytes that are read of a body that is refused
JSON = "application/json"
Message = MutableMapping[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


def said(value: Any, status: int = 200) -> Response:
    return Response(protocol.ENCODER.encode(value), status, media_type=JSON)


def application(service: Service, more: list[Route] | None = None) -> Any:
    """All routes, as an ASGI application. ``more`` are those of other protocols."""
    v2 = V2(service)
    model = "/v2/models/{model}"
    routes = []
    for path in (model, model + "/versions/{version}"):
        routes += [
            Route(path, v2.model, methods=["GET"]),
            Route(path + "/ready", v2.model_ready, methods=["GET"]),
            Route(path + "/infer", v2.infer, methods=["POST"]),
        ]
    routes += [
        Route("/v2", v2.server, methods=["GET"]),
        Route("/v2/models", v2.models, methods=["GET"]),
        Route("/v2/health/live", v2.live, methods=["GET"]),
        Route("/v2/health/ready", v2.ready, methods=["GET"]),
        Route("/metrics", v2.metrics, methods=["GET"]),
        *(more or ()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: unknown})
    app.router.redirect_slashes = False
    return Watched(app, service)


async def unknown(request: Request, e: Exception) -> Response:
    """No such route, or not this method."""
    assert isinstance(e, HTTPException)
    answer = said({"error": str(e.detail)}, e.status_code)
    answer.headers.update(e.headers or {})
    return answer


class V2:
    """The Open Inference Protocol."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def live(self, _: Request) -> Response:
        return said({"live": True})

    async def ready(self, _: Request) -> Response:
        ready = self.service.is_ready
        return said({"ready": ready}, 200 if ready else 503)

    async def server(self, _: Request) -> Response:
        extensions = list(protocol.EXTENSIONS)
        return said({"name": "lumc", "version": __version__, "extensions": extensions})

    async def models(self, _: Request) -> Response:
        return said({"models": list(self.service.pool.specs)})

    async def metrics(self, _: Request) -> Response:
        self.service.metrics.waiting.set(len(self.service.pool.queue))
        self.service.metrics.inside.set(self.service.gate.inside)
        text, kind = self.service.metrics.text()
        return Response(text, headers={"content-type": kind})

    async def model(self, request: Request) -> Response:
        return await guarded(self.service, request, self._model)

    async def _model(self, request: Request) -> Response:
        return said(protocol.metadata(self._spec(request)))

    async def model_ready(self, request: Request) -> Response:
        return await guarded(self.service, request, self._model_ready)

    async def _model_ready(self, request: Request) -> Response:
        ready = self.service.is_ready
        return said({"name": self._spec(request).name, "ready": ready}, 200 if ready else 503)

    async def infer(self, request: Request) -> Response:
        return await guarded(self.service, request, self._infer, through=True)

    async def _infer(self, request: Request) -> Response:
        spec = self._spec(request)
        body = await read_body(request, self.service.most)
        asked = protocol.read(body, request.headers.get(protocol.LENGTH), spec)
        outputs = await self.service.run(asked.query)
        text, length = protocol.written(asked, outputs, spec)
        if length is None:
            return Response(text, media_type=JSON)
        headers = {protocol.LENGTH: str(length), "content-type": "application/octet-stream"}
        return Response(text, headers=headers)

    def _spec(self, request: Request) -> Any:
        version = request.path_params.get("version", "")
        return self.service.spec(request.path_params["model"], version)


def error_v2(e: Refused) -> Response:
    return said({"error": e.why}, e.status)


async def guarded(
    service: Service,
    request: Request,
    answer: Handler,
    through: bool = False,
    error: Callable[[Refused], Response] = error_v2,
) -> Response:
    """The answer, or what is wrong with a request. What goes ``through`` the gate does so only
    where there is room."""
    try:
        if not through:
            return await answer(request)
        with service.gate.pass_():
            return await answer(request)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as e:
        why = refusal(e)
        if why is None:
            raise
        await discard(request)
        response = error(why)
        if why.status == 503:
            response.headers["retry-after"] = RETRY_S
        return response


async def discard(request: Request) -> None:
    """Read what is left of a body, as far as it is not endless: who still sends it would see a
    connection that is reset, and not the answer."""
    size = 0
    with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: all is read
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > MOST_DISCARDED:
                    return


async def read_body(request: Request, most: int) -> bytes:
    """All of it, if it is no larger and arrives in time. Raises Refused, ClientDisconnect."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "a body is sent as it is, without an encoding")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > most:
        raise Refused(413, f"a body has at most {most} bytes")
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, f"a body has at most {most} bytes")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive in {BODY_S:g} s") from None
    return b"".join(parts)


class Watched:
    """Counts and logs every request; while the server ends, tells clients not to come back; says
    500, and nothing of its insides, where its own code fails."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, size = time.perf_counter(), 0, 0

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.service.draining or status in (408, 413):
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as e:
            self.service.pool.heard.say(f"error: {type(e).__name__}: {e}")
            if not status:
                await said({"error": "the server failed"}, 500)(scope, receive, sending)
        seconds = time.perf_counter() - start
        model = scope.get("path_params", {}).get("model", "")
        self._note(scope, model, status, size, seconds)

    def _note(self, scope: Message, model: str, status: int, size: int, seconds: float) -> None:
        model = model or scope.get("model", "")
        known = model if model in self.service.pool.specs else ""
        self.service.metrics.answered(known, "http", str(status), seconds)
        client = scope.get("client") or ("", 0)
        self.service.log(
            protocol="http",
            client=client[0],
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            bytes=size,
            ms=round(seconds * 1e3, 3),
        )
