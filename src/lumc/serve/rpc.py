"""gRPC: the same protocol as messages."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from lumc import __version__
from lumc.graph.ops import DType
from lumc.serve import protocol
from lumc.serve.messages import METHODS, SERVICE, classes
from lumc.serve.protocol import check_input, chosen, wanted_of
from lumc.serve.service import Service, refusal
from lumc.serve.spec import Array, Query, Spec
from lumc.serve.tensors import (
    NAMES,
    dtype_of,
    malformed,
    of_bytes,
    of_numbers,
    to_bytes,
    to_numbers,
)

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
CONTENTS = {
    DType.BOOL: "bool_contents",
    **dict.fromkeys((DType.I8, DType.I16, DType.I32), "int_contents"),
    DType.I64: "int64_contents",
    **dict.fromkeys((DType.U8, DType.U16, DType.U32), "uint_contents"),
    DType.U64: "uint64_contents",
    DType.F32: "fp32_contents",
    DType.F64: "fp64_contents",
}
MOST_EXTENT = 1 << 40


def server(service: Service, most: int) -> Any:
    """A server of the service's methods; ``most`` bytes of a message."""
    room = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", -1)]
    made = grpc.aio.server(options=[*room, ("grpc.so_reuseport", 0)])
    methods, known = Methods(service), classes()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            watched(service, name, getattr(methods, name)),
            request_deserializer=known[f"{name}Request"].FromString,
            response_serializer=known[f"{name}Response"].SerializeToString,
        )
        for name in METHODS
    }
    generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
    made.add_generic_rpc_handlers((generic,))
    return made


def watched(
    service: Service, name: str, method: Callable[[Any], Awaitable[Any]]
) -> Callable[[Any, Any], Awaitable[Any]]:
    """A method whose errors become codes, which is counted and logged."""

    async def call(request: Any, context: Any) -> Any:
        start, code, why = time.perf_counter(), grpc.StatusCode.OK, ""
        try:
            return await method(request)
        except Exception as e:
            refused = refusal(e)
            if refused is None:
                service.pool.heard.say(f"error: {type(e).__name__}: {e}")
            code = CODES.get(refused.status if refused else 500, grpc.StatusCode.INTERNAL)
            why = refused.why if refused else "the server failed"
        finally:
            seconds = time.perf_counter() - start
            model = getattr(request, "model_name", "")
            known = model if model in service.pool.specs else ""
            service.metrics.answered(known, "grpc", code.name, seconds)
            about = {"path": name, "status": code.name, "ms": round(seconds * 1e3, 3)}
            service.log(protocol="grpc", client=context.peer(), **about)
        await context.abort(code, why)

    return call


class Methods:
    """What the protocol has; each is given a message and makes one."""

    def __init__(self, service: Service) -> None:
        self.service, self.made = service, classes()

    async def ServerLive(self, _: Any) -> Any:
        return self.made["ServerLiveResponse"](live=True)

    async def ServerReady(self, _: Any) -> Any:
        return self.made["ServerReadyResponse"](ready=self.service.is_ready)

    async def ModelReady(self, request: Any) -> Any:
        self.service.spec(request.name, request.version)
        return self.made["ModelReadyResponse"](ready=self.service.is_ready)

    async def ServerMetadata(self, _: Any) -> Any:
        return self.made["ServerMetadataResponse"](name="lumc", version=__version__)

    async def ModelMetadata(self, request: Any) -> Any:
        spec = self.service.spec(request.name, request.version)
        return self.made["ModelMetadataResponse"](**protocol.metadata(spec))

    async def ModelInfer(self, request: Any) -> Any:
        with self.service.gate.pass_():
            spec = self.service.spec(request.model_name, request.model_version)
            query = read(request, spec)
            outputs = await self.service.run(query)
            return self._written(request, query, outputs, spec)

    def _written(self, request: Any, query: Query, outputs: dict[str, Array], spec: Spec) -> Any:
        """As bytes, where inputs came so or a dtype has no numbers there; else as numbers."""
        ports = {p.name: p for p in spec.entry(query.entry).outputs}
        answer = self.made["ModelInferResponse"](
            model_name=spec.name, model_version=protocol.VERSION, id=request.id
        )
        dtypes = [DType(ports[n].dtype) for n in query.outputs]
        raw = bool(request.raw_input_contents) or not all(d in CONTENTS for d in dtypes)
        for name, dtype in zip(query.outputs, dtypes, strict=True):
            array = outputs[name]
            new = answer.outputs.add(name=name, datatype=NAMES[dtype], shape=array.shape)
            if raw:
                answer.raw_output_contents.append(to_bytes(array))
            else:
                getattr(new.contents, CONTENTS[dtype]).extend(to_numbers(array, dtype))
        return answer


def read(request: Any, spec: Spec) -> Query:
    """What a message asks for. Raises Refused."""
    named = {k: value_of(v) for k, v in request.parameters.items()}
    entry, dims = chosen(named, spec)
    raw, inputs = request.raw_input_contents, dict[str, Array]()
    if raw and len(raw) != len(request.inputs):
        raise malformed(f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs")
    known = {p.name: p for p in entry.inputs}
    for i, given in enumerate(request.inputs):
        name, shape = given.name, list(given.shape)
        if not all(0 <= n <= MOST_EXTENT for n in shape):
            raise malformed(f"input {name[:100]!r}: shape {shape[:16]}")
        check_input(name, shape, known, inputs)
        dtype = dtype_of(given.datatype, name)
        if raw:
            inputs[name] = of_bytes(raw[i], dtype, shape, name)
        elif dtype in CONTENTS:
            numbers = list(getattr(given.contents, CONTENTS[dtype]))
            inputs[name] = of_numbers(numbers, dtype, shape, name)
        else:
            raise malformed(f"input '{name}': {given.datatype} travels as raw_input_contents only")
    wanted = wanted_of([o.name for o in request.outputs], entry)
    return Query(spec.name, entry.name, inputs, dims, wanted)


def value_of(parameter: Any) -> Any:
    """A parameter as Python has it."""
    which = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, which) if which else None
