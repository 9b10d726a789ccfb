"""Reading protobuf messages: attributes, what a node needs, the bodies of standard functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumc.frontend.api.symbols import Symbolic
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.coded import Coded
from lumc.frontend.onnx.load import require_onnx
from lumc.frontend.onnx.values import NUMBERS


def plain(value: Any) -> Any:
    """Attribute strings are bytes in the file; lists become plain lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(v) for v in value]
    return value


def needed(nodes: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
    """The nodes that the wanted names depend on, in the order given."""
    names, kept = set(wanted), []
    for node in reversed(nodes):
        if names.intersection(node.output):
            kept.append(node)
            names.update(node.input)
            names.update(captured(node))
    return kept[::-1]


def captured(node: Any) -> list[str]:
    """Names that the subgraphs of a node may read from around it."""
    graphs = [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]
    found: list[str] = []
    for graph in graphs:
        found += [o.name for o in graph.output]
        for inner in graph.node:
            found += [*inner.input, *captured(inner)]
    return found


def schema_function(proto: Any, opset: int, inputs: Sequence[Any] | None) -> Any:
    """The function body of a standard operator at an opset, or None.

    Some bodies depend on the types of the inputs; without inputs any body will do.
    """
    onnx = require_onnx()
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        fitting = [v for v in schema.function_opset_versions if v <= opset]
        version = max(fitting, default=schema.function_opset_versions[0])
        body.ParseFromString(schema.get_function_with_opset_version(version))
    elif schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        version = max([v for v in versions if v <= opset], default=versions[0])
        if inputs is None:
            return body
        types = [value_type(onnx, v).SerializeToString() for v in inputs]
        data = schema.get_context_dependent_function_with_opset_version(
            version, proto.SerializeToString(), types
        )
        body.ParseFromString(data)
    return body if body.node else None


def value_type(onnx: Any, value: Any) -> Any:
    """The TypeProto of a value, as function bodies that depend on types ask for it."""
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):  # its elements may differ in shape
        number = onnx_dtype(onnx, value[0]) if value else onnx.TensorProto.FLOAT
        inner = onnx.helper.make_tensor_type_proto(number, None)
        return onnx.helper.make_sequence_type_proto(inner)
    shape = value.shape if not isinstance(value, Symbolic) else value.array.shape
    known = [n if isinstance(n, int) else str(n) for n in shape]
    return onnx.helper.make_tensor_type_proto(onnx_dtype(onnx, value), known)


def onnx_dtype(onnx: Any, value: Any) -> int:
    """The ONNX data type number of a value."""
    if isinstance(value, Coded):
        return value.number
    if isinstance(value, Tensor):
        return NUMBERS[value.dtype]
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)))
