"""What a node leaves out has the value that the standard says, at every opset."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from lumc.frontend.onnx import ops_norm, tables  # noqa: E402
from lumc.frontend.onnx.registry import OPERATORS, Row, find  # noqa: E402

assert tables  # registers the operators
# (operator, attribute): what else a row may have, and why
MEANT: dict[tuple[str, str], Any] = {
    ("GridSample", "mode"): "linear",  # as opset 20 calls it
    ("GRU", "direction"): "forward",  # opset 1 has a misprint
    ("Clip", "min"): None,  # no bound, where opset 6 has the least number of f32
    ("Clip", "max"): None,
    ("Dropout", "ratio"): None,  # of training
    ("RNN", "activations"): (),  # Tanh, in each direction that there is
}


def plain(value: Any) -> Any:
    """A default as the onnx package has it, in Python's types; floats are f32."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return np.float32(value)
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def defaults() -> Iterator[tuple[str, int, str, Any, Any]]:
    """Operator, opset, attribute, its value by the standard, and by the row."""
    for schema in onnx.defs.get_all_schemas_with_history():
        row = find(schema.domain, schema.name, schema.since_version)
        if row is None or schema.deprecated:
            continue
        named = inspect.signature(row.function).parameters
        for name, attribute in schema.attributes.items():
            if name in named and attribute.default_value.type:
                said = plain(onnx.helper.get_attribute_value(attribute.default_value))
                ours = plain(named[name].default)
                yield schema.name, schema.since_version, name, said, ours


def wrong() -> list[tuple[str, int, str, Any, Any]]:
    nothing = object()
    return [
        found
        for found in defaults()
        if found[3] != found[4] and MEANT.get((found[0], found[2]), nothing) != found[4]
    ]


def test_defaults_are_those_of_the_standard() -> None:
    assert wrong() == []
    assert sum(1 for _ in defaults()) > 500


def test_a_wrong_default_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selu's of opset 1 in all opsets."""
    row = Row("", "Selu", 1, ops_norm.selu_1)
    monkeypatch.setitem(OPERATORS, ("", "Selu"), [row])
    assert {w[:3] for w in wrong()} == {
        ("Selu", opset, name) for opset in (6, 22) for name in ("alpha", "gamma")
    }
