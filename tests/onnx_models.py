"""ONNX models for tests: exports of small torch modules, and models of one operator.

``models/*.onnxtxt`` are real exports (torch 2.13, TorchScript and torch.export exporters) in ONNX's
text form. Their weights became inputs; ``with_weights`` gives them random values again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from lumc.frontend.onnx import import_onnx
from lumc.graph.bind import bind_dims
from lumc.oracle.graph import evaluate

FOLDER = Path(__file__).parent / "models"
EXPORTS = sorted(p.name.removesuffix(".onnxtxt") for p in FOLDER.glob("*.onnxtxt"))
DATA = ("ids", "mask", "x")  # inputs that are no weights, when they have a dynamic dim
Array = np.ndarray[Any, Any]


def with_weights(name: str, path: Path) -> list[Any]:
    """Save an export with random weights; gives the inputs that are left."""
    model = onnx.parser.parse_model((FOLDER / f"{name}.onnxtxt").read_text())
    kept = []
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in DATA and any(d.dim_param for d in dims):
            kept.append(value)
        else:
            model.graph.initializer.append(_weight(name, value, [d.dim_value for d in dims]))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.save(model, path)
    return kept


def _weight(model: str, value: Any, shape: list[int]) -> Any:
    rng = np.random.default_rng(zlib.crc32(f"{model.split('.')[0]} {value.name}".encode()))
    kind = value.type.tensor_type.elem_type
    if kind == onnx.TensorProto.BOOL:
        array: Array = np.tril(np.ones(shape, bool))
    elif kind == onnx.TensorProto.INT64:
        array = np.arange(int(np.prod(shape))).reshape(shape)
    else:
        array = (rng.standard_normal(shape) * 0.4).astype(np.float32)
    return numpy_helper.from_array(array, value.name)


def feeds(inputs: Sequence[Any], dims: dict[str, int], seed: int) -> dict[str, Array]:
    """Random inputs; token ids below 20, masks of 0 and 1 that keep the first token."""
    rng, out = np.random.default_rng(seed), {}
    for value in inputs:
        tensor = value.type.tensor_type
        shape = [dims[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            out[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            out[value.name] = rng.integers(0, 2 if value.name == "mask" else 20, shape)
            out[value.name][:, 0] |= value.name == "mask"
    return out


def one_node(
    op: str,
    inputs: dict[str, Array | None],
    outputs: int = 1,
    opset: int = 17,
    domain: str = "",
    constants: Sequence[str] = (),
    **attributes: Any,
) -> Any:
    """A model of one node; ``constants`` are inputs that become initializers."""
    names = [name if value is not None else "" for name, value in inputs.items()]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="it", domain=domain, **attributes)
    given = {n: np.asarray(v) for n, v in inputs.items() if v is not None}
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in given.items()
        if n not in constants
    ]
    graph = helper.make_graph(
        [node],
        "g",
        declared,
        [helper.make_empty_tensor_value_info(r) for r in results],
        [numpy_helper.from_array(given[n], n) for n in constants if n in given],
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    if not domain:
        return onnx.shape_inference.infer_shapes(model)
    for output in model.graph.output:  # another domain's types are not known to onnx
        output.type.CopyFrom(declared[0].type)
    return model


def onnxruntime(path: Path, inputs: dict[str, Array]) -> list[Array]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def of_microsoft(
    folder: Path,
    op: str,
    inputs: dict[str, Array | None],
    outputs: int = 1,
    constants: Sequence[str] = (),
    **attributes: Any,
) -> tuple[list[Array], list[Array]]:
    """What the oracle and onnxruntime give for a node of com.microsoft."""
    path, wanted = saved_node(folder, op, inputs, outputs, constants, **attributes)
    feed = {n: v for n, v in inputs.items() if v is not None and n not in constants}
    return oracle(path, feed, declared=True), wanted


def saved_node(
    folder: Path,
    op: str,
    inputs: dict[str, Array | None],
    outputs: int = 1,
    constants: Sequence[str] = (),
    **attributes: Any,
) -> tuple[Path, list[Array]]:
    """A file with a node of com.microsoft, and what onnxruntime gives for it."""
    model = one_node(op, inputs, outputs, 21, "com.microsoft", constants, **attributes)
    model.ir_version = 10
    for output in model.graph.output:
        output.ClearField("type")
    path = folder / "m.onnx"
    onnx.save(model, path)
    feed = {n: v for n, v in inputs.items() if v is not None and n not in constants}
    wanted = onnxruntime(path, feed)
    for output, w in zip(model.graph.output, wanted, strict=True):
        number = helper.np_dtype_to_tensor_dtype(w.dtype)
        output.type.CopyFrom(helper.make_tensor_type_proto(number, w.shape))
    onnx.save(model, path)
    return path, wanted


def oracle(
    path: Path,
    inputs: dict[str, Array],
    dims: dict[str, int] | None = None,
    late: bool = False,
    declared: bool = False,
) -> list[Array]:
    """Import and evaluate; ``late`` imports with symbolic dims and binds them in the graph."""
    model = import_onnx(path, {} if late else dims)
    graph = bind_dims(model.graph(), dims or {}) if late else model.graph()
    names = [i.name for i in graph.entries[0].inputs]
    feed = dict(zip(names, inputs.values(), strict=True))
    found, _ = evaluate(graph, "main", feed, model.read_weight, declared=declared)
    return list(found.values())
