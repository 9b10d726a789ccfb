"""The messages of the Open Inference Protocol over gRPC, as protobuf has them.

One row for a message: its fields in the order of their numbers, from 1. The rows are those of the
public definition, grpc_predict_v2.proto, which a test compares with the messages of its clients.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# ** a field is "name type"; "*type" is repeated, "{type}" a map by strings, "|type" one of a choice
ROWS = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready bool",
    "ModelReadyRequest": "name string, version string",
    "ModelReadyResponse": "ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name string, version string, extensions *string",
    "ModelMetadataRequest": "name string, version string",
    "ModelMetadataResponse.TensorMetadata": "name string, datatype string, shape *int64",
    "ModelMetadataResponse": "name string, versions *string, platform string, "
    "inputs *ModelMetadataResponse.TensorMetadata, outputs *ModelMetadataResponse.TensorMetadata",
    "InferParameter": "bool_param |bool, int64_param |int64, string_param |string",
    "InferTensorContents": "bool_contents *bool, int_contents *int32, int64_contents *int64, "
    "uint_contents *uint32, uint64_contents *uint64, fp32_contents *float, "
    "fp64_contents *double, bytes_contents *bytes",
    "ModelInferRequest.InferInputTensor": "name string, datatype string, shape *int64, "
    "parameters {InferParameter}, contents InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "name string, parameters {InferParameter}",
    "ModelInferRequest": "model_name string, model_version string, id string, "
    "parameters {InferParameter}, inputs *ModelInferRequest.InferInputTensor, "
    "outputs *ModelInferRequest.InferRequestedOutputTensor, raw_input_contents *bytes",
    "ModelInferResponse.InferOutputTensor": "name string, datatype string, shape *int64, "
    "parameters {InferParameter}, contents InferTensorContents",
    "ModelInferResponse": "model_name string, model_version string, id string, "
    "parameters {InferParameter}, outputs *ModelInferResponse.InferOutputTensor, "
    "raw_output_contents *bytes",
}
METHODS = (
    *("ServerLive", "ServerReady", "ModelReady"),
    *("ServerMetadata", "ModelMetadata", "ModelInfer"),
)
CHOICE = "parameter_choice"


class Field(NamedTuple):
    """A field as its row has it."""

    name: str
    type: str
    mark: str  # of "*", "{", "|" or ""


def fields_of(row: str) -> list[Field]:
    """The fields of a row."""
    out = list[Field]()
    for part in row.split(", ") if row else ():
        name, kind = part.split(" ")
        mark = kind[0] if kind[0] in "*{|" else ""
        out.append(Field(name, kind.strip("*{|}"), mark))
    return out


@cache
def classes() -> dict[str, Any]:
    """The classes of all messages, by name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()  # its own: a client in the same process has the same
    pool.Add(file_of())
    found = {n: pool.FindMessageTypeByName(f"{PACKAGE}.{n}") for n in ROWS}
    return {name: message_factory.GetMessageClass(d) for name, d in found.items()}


def file_of() -> Any:
    """All rows as protobuf describes a file."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="grpc_predict_v2.proto", package=PACKAGE, syntax="proto3"
    )
    made = dict[str, Any]()
    for name in sorted(ROWS, key=lambda n: n.count(".")):
        outer, _, own = name.rpartition(".")
        place = made[outer].nested_type if outer else file.message_type
        made[name] = place.add(name=own)
    for name, row in ROWS.items():
        for number, field in enumerate(fields_of(row), 1):
            add_field(made[name], name, number, field)
    return file


def add_field(message: Any, owner: str, number: int, field: Field) -> None:
    """A field of a message, and the message of its pairs if it is a map."""
    from google.protobuf import descriptor_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    new = message.field.add(name=field.name, number=number)
    new.label = kinds.LABEL_REPEATED if field.mark in ("*", "{") else kinds.LABEL_OPTIONAL
    kind = field.type
    if field.mark == "{":
        pair = message.nested_type.add(name=f"{field.name.title()}Entry")
        pair.options.map_entry = True
        add_field(pair, "", 1, Field("key", "string", ""))
        add_field(pair, "", 2, Field("value", kind, ""))
        kind = f"{owner}.{pair.name}"
    if field.mark == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name=CHOICE)
        new.oneof_index = 0
    if kind in ROWS or field.mark == "{":
        new.type, new.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        new.type = getattr(kinds, f"TYPE_{kind.upper()}")
