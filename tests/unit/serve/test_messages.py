"""The messages of gRPC, beside those of clients."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")

from lumc.serve.messages import PACKAGE, ROWS, classes


def test_messages_are_those_of_the_triton_client() -> None:
    """Of the same names; it has more fields, behind these."""
    pytest.importorskip("grpc")
    service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
    for name, own in classes().items():
        theirs = service_pb2.DESCRIPTOR.pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
        mine = own.DESCRIPTOR
        for field in mine.fields:
            other = theirs.fields_by_number[field.number]
            for part in ("name", "type", "is_repeated"):
                assert getattr(field, part) == getattr(other, part), (name, field.name, part)
            if field.message_type:
                assert field.message_type.full_name == other.message_type.full_name
            assert bool(field.containing_oneof) == bool(other.containing_oneof)


def test_bytes_of_messages() -> None:
    """A field's tag is its number and how it travels: of the encoding of protobuf."""
    made = classes()
    assert set(made) == set(ROWS)
    request = made["ModelInferRequest"](model_name="m", raw_input_contents=[b"\1\2"])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 300])
    request.parameters["p"].int64_param = 5
    want = b"\x0a\x01m" + b"\x22\x07\x0a\x01p\x12\x02\x10\x05"
    want += b"\x2a\x0e\x0a\x01x\x12\x04FP32\x1a\x03\x01\xac\x02" + b"\x3a\x02\x01\x02"
    assert request.SerializeToString(deterministic=True) == want
    assert made["ModelInferRequest"].FromString(want) == request
