"""Requests as JSON and as bytes: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.serve import protocol, tensors
from lumc.serve.spec import EntrySpec, Port, Query, Spec
from lumc.serve.tensors import Refused
from serving import MALFORMED, X, binary, v2

SPEC = Spec(
    "small",
    {
        "main": EntrySpec(
            "main",
            (Port("x", "f32", (-1, 4), 32),),
            (Port("y", "f32", (-1, 3), 24), Port("z", "i64", (-1,), 8)),
            range(1, 9),
        ),
        "next": EntrySpec("next", (), (Port("z", "i64", (), 1),)),
    },
    ("b", "p"),
    False,
)
# what shapes and dtypes mean to a model, its bundle says
BY_BUNDLE = {
    "no rows",
    "too many rows",
    "no inputs",
    "integers",
    "a datatype that would lose something",
}


@pytest.mark.parametrize("name", [n for n in MALFORMED if n not in BY_BUNDLE])
def test_what_is_malformed_is_refused(name: str) -> None:
    given = MALFORMED[name]
    body, header = given if isinstance(given, tuple) else (given, None)
    with pytest.raises((Refused, LumcError)) as e:
        protocol.read(body, header, SPEC)
    assert getattr(e.value, "status", 400) == 400


def test_there_are_fifty() -> None:
    assert len(MALFORMED) >= 50


def test_numbers_in_lists_and_in_lists_of_lists() -> None:
    for data in ([1, 2, 3, 4, 5.5, -6, 7e3, 8], [[1, 2, 3, 4], [5.5, -6, 7e3, 8]]):
        body = v2(shape=[2, 4], data=data, id="a", parameters={"p": 3, "other": "x"})
        asked = protocol.read(body, None, SPEC)
        assert asked.id == "a" and asked.query.dims == {"p": 3}
        got = asked.query.inputs["x"]
        assert got.dtype == np.float32
        assert got.tolist() == [[1, 2, 3, 4], [5.5, -6, 7e3, 8]]
        assert asked.query.outputs == ("y", "z") and not asked.binary


def test_bytes() -> None:
    body, header = binary(outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    asked = protocol.read(body, header, SPEC)
    assert asked.query.inputs["x"].tobytes() == X
    assert asked.query.outputs == ("y",) and asked.binary == {"y"}


@pytest.mark.parametrize("name", [n for n in tensors.DTYPES if n != "BF16"])
def test_every_dtype_there_and_back(name: str) -> None:
    dtype = tensors.DTYPES[name]
    info: Any = np.iinfo(dtype.numpy) if dtype.is_int else None
    values = [info.min, info.max, 1] if info else [True, False, True]
    values = [0.5, -2.0, 1024.0] if dtype.is_float else values
    want = np.array(values, dtype.numpy)
    said = json.dumps(tensors.to_numbers(want, dtype)).encode()
    got = tensors.of_json(said, dtype, [3], "x")
    assert got.dtype == want.dtype and np.array_equal(got, want)
    got = tensors.of_bytes(tensors.to_bytes(want), dtype, [3], "x")
    assert got.dtype == want.dtype and np.array_equal(got, want)
    if info:
        for over in (int(info.min) - 1, int(info.max) + 1):
            with pytest.raises(Refused):
                tensors.of_json(json.dumps([over]).encode(), dtype, [1], "x")


def test_bf16_is_bytes_that_are_shown_as_numbers() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1.0, -2.0
    assert tensors.to_numbers(bits, DType.BF16) == [1.0, -2.0]
    assert np.array_equal(tensors.of_bytes(bits.tobytes(), DType.BF16, [2], "x"), bits)
    with pytest.raises(Refused, match="bytes"):
        tensors.of_json(b"[1.0]", DType.BF16, [1], "x")
    with pytest.raises(Refused, match="0 or 1"):
        tensors.of_bytes(b"\2", DType.BOOL, [1], "x")


def test_answers() -> None:
    out = {"y": np.array([[1, np.nan, 0.5]], np.float32), "z": np.array([7])}
    query = Query("small", "main", {}, {}, ("y", "z"))
    text, length = protocol.written(protocol.Asked(query, "7", frozenset()), out, SPEC)
    assert length is None
    assert json.loads(text) == {
        "model_name": "small",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1.0, None, 0.5]},
            {"name": "z", "datatype": "INT64", "shape": [1], "data": [7]},
        ],
    }
    text, length = protocol.written(protocol.Asked(query, "", frozenset({"y"})), out, SPEC)
    assert length and text[length:] == out["y"].tobytes()
    head = json.loads(text[:length])["outputs"]
    assert head[0]["parameters"] == {"binary_data_size": 12} and "data" not in head[0]
    assert head[1]["data"] == [7]


def test_what_is_said_of_a_model() -> None:
    assert protocol.metadata(SPEC) == {
        "name": "small",
        "versions": ["1"],
        "platform": "lumc",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "z", "datatype": "INT64", "shape": [-1]},
        ],
    }


def test_the_largest_body_holds_the_largest_request() -> None:
    x = np.full((8, 4), np.nextafter(-1, 0) * 1e-300)
    assert len(v2(shape=[8, 4], datatype="FP64", data=x.tolist())) < protocol.largest([SPEC])
