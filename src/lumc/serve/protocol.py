"""The Open Inference Protocol v2 over HTTP: requests and answers as JSON, with tensors in it or, by
the binary extension, as bytes behind it.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from lumc.graph.ops import DType
from lumc.serve.spec import Array, EntrySpec, Port, Query, Spec
from lumc.serve.tensors import (
    MOST_RANK,
    NAMES,
    dtype_of,
    malformed,
    of_bytes,
    of_json,
    to_bytes,
    to_numbers,
)

VERSION = "1"  # of every model
LENGTH = "inference-header-content-length"  # of the JSON, where bytes follow it
EXTENSIONS = ("binary_tensor_data",)
Extents = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]], msgspec.Meta(max_length=MOST_RANK)
]
Parameters = dict[str, bool | int | float | str | None]


class GivenTensor(msgspec.Struct):
    """An input of a request."""

    name: str
    shape: Extents
    datatype: str
    parameters: Parameters = {}
    data: msgspec.Raw = msgspec.Raw()


class WantedTensor(msgspec.Struct):
    """An output that is asked for."""

    name: str
    parameters: Parameters = {}


class Request(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[GivenTensor]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[WantedTensor] = []


DECODER = msgspec.json.Decoder(Request)
ENCODER = msgspec.json.Encoder()


class Asked(msgspec.Struct):
    """A request that was read: the run, and how its answer is written."""

    query: Query
    id: str
    binary: frozenset[str]  # outputs that go as bytes


def read(body: bytes, header: str | None, spec: Spec) -> Asked:
    """A request of a model; ``header`` is what says how long the JSON is. Raises Refused."""
    at = length_of(header, len(body))
    try:
        request = DECODER.decode(body[:at])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise malformed(f"no request: {e}") from None
    entry, dims = chosen(request.parameters, spec)
    known, inputs = {p.name: p for p in entry.inputs}, dict[str, Array]()
    for given in request.inputs:
        check_input(given.name, given.shape, known, inputs)
        dtype, size = dtype_of(given.datatype, given.name), given.parameters.get("binary_data_size")
        if size is None:
            inputs[given.name] = of_json(bytes(given.data), dtype, given.shape, given.name)
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(body) - at:
            raise malformed(f"input '{given.name}': binary_data_size of {size!r}")
        part = memoryview(body)[at : at + size]
        inputs[given.name] = of_bytes(part, dtype, given.shape, given.name)
        at += size
    if at != len(body):
        raise malformed(f"{len(body) - at} bytes behind the last input")
    wanted = wanted_of([o.name for o in request.outputs], entry)
    every = request.parameters.get("binary_data_output") is True
    chosen_so = {o.name: o.parameters.get("binary_data", every) for o in request.outputs}
    binary = frozenset(n for n in wanted if chosen_so.get(n, every) is True)
    return Asked(Query(spec.name, entry.name, inputs, dims, wanted), request.id, binary)


def length_of(header: str | None, most: int) -> int:
    """Of the JSON, in bytes."""
    if header is None:
        return most
    if not header.isascii() or not header.isdecimal() or int(header[:20]) > most:
        raise malformed(f"{LENGTH} is {header[:40]!r}, and there are {most} bytes")
    return int(header)


def chosen(parameters: Mapping[str, Any], spec: Spec) -> tuple[EntrySpec, dict[str, int]]:
    """The entry and the dims that parameters of a request name: ``{"entry": "decode", "p": 17}``.
    Raises Refused, LumcError."""
    entry, dims = parameters.get("entry", ""), dict[str, int]()
    if not isinstance(entry, str):
        raise malformed("the parameter entry is a name")
    for name in (n for n in spec.dims if n in parameters):
        value = parameters[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise malformed(f"dim {name} is a number")
        dims[name] = value
    return spec.entry(entry), dims


def check_input(
    name: str, shape: Iterable[int], known: Mapping[str, Port], there: Mapping[str, Any]
) -> None:
    """Raises Refused for what is no input, is given twice, or is of another rank or larger."""
    if name not in known:
        raise malformed(f"no input {name[:100]!r}; inputs: {', '.join(known)}")
    if name in there:
        raise malformed(f"input '{name}' is given twice")
    extents, port = list(shape), known[name]
    pairs = list(zip(extents, port.shape, strict=False))
    if len(extents) != len(port.shape) or any(b >= 0 and a > b for a, b in pairs):
        raise malformed(f"input '{name}' must be {list(port.shape)}, got {extents}")


def wanted_of(names: list[str], entry: EntrySpec) -> tuple[str, ...]:
    """The outputs that are asked for, all if none is. Raises Refused."""
    known = [p.name for p in entry.outputs]
    if unknown := [n for n in names if n not in known]:
        raise malformed(f"no output {unknown[0][:100]!r}; outputs: {', '.join(known)}")
    return tuple(dict.fromkeys(names)) or tuple(known)


def written(asked: Asked, outputs: Mapping[str, Array], spec: Spec) -> tuple[bytes, int | None]:
    """The body of an answer; the length of its JSON, if bytes follow. NaN and infinities, which
    JSON does not have, become null there."""
    dtypes = {p.name: DType(p.dtype) for p in spec.entry(asked.query.entry).outputs}
    said, parts = list[dict[str, Any]](), list[bytes]()
    for name in asked.query.outputs:
        array, dtype = outputs[name], dtypes[name]
        one: dict[str, Any] = {"name": name, "datatype": NAMES[dtype], "shape": array.shape}
        if name in asked.binary:
            parts.append(to_bytes(array))
            one["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            one["data"] = to_numbers(array, dtype)
        said.append(one)
    answer: dict[str, Any] = {"model_name": spec.name, "model_version": VERSION, "outputs": said}
    if asked.id:
        answer["id"] = asked.id
    text = ENCODER.encode(answer)
    return (b"".join((text, *parts)), len(text)) if asked.binary else (text, None)


def metadata(spec: Spec) -> dict[str, Any]:
    """What is said of a model: the inputs and outputs of its first entry."""
    entry = spec.entry()
    return {
        "name": spec.name,
        "versions": [VERSION],
        "platform": "lumc",
        "inputs": [tensor(p) for p in entry.inputs],
        "outputs": [tensor(p) for p in entry.outputs],
    }


def tensor(p: Port) -> dict[str, Any]:
    return {"name": p.name, "datatype": NAMES[DType(p.dtype)], "shape": list(p.shape)}


def largest(specs: Iterable[Spec]) -> int:
    """Bytes of the largest request that a model can need: as JSON, with room for its names."""
    sizes = [sum(p.most for p in e.inputs) for s in specs for e in s.entries.values()]
    return DIGITS * max(sizes, default=0) + HEAD


DIGITS = 32  # characters of a number, at most: -2.2250738585072014e-308, a comma, a space
HEAD = 1 << 16
