"""Archives as torch.export.save writes them, made without torch."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = dict[str, tuple[dict[str, Any], bytes]]  # what is said of each, and its bytes
KINDS = {"f4": 7, "i8": 5}


def said(array: np.ndarray[Any, Any], file: str) -> dict[str, Any]:
    """What a config says of a tensor."""
    strides = [s // array.itemsize for s in array.strides]
    return {
        "path_name": file,
        "is_param": True,
        "use_pickle": False,
        "tensor_meta": meta(array.shape, strides, KINDS[array.dtype.str[1:]]),
    }


def meta(shape: Any, strides: Any, dtype: int = 7) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "sizes": [{"as_int": int(n)} for n in shape],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": int(n)} for n in strides],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def node(target: str, output: str, **arguments: Any) -> dict[str, Any]:
    return {
        "target": f"torch.ops.aten.{target}",
        "inputs": [{"name": n, "arg": a, "kind": 1} for n, a in arguments.items()],
        "outputs": [{"as_tensor": {"name": output}}],
        "metadata": {"stack_trace": 'File "/home/me/model.py", line 7, in forward\n    x @ w'},
        "name": output,
    }


def tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def net() -> tuple[dict[str, Any], Tensors]:
    """``relu(x @ w) + table[ids]``: the program, and its tensors."""
    w = np.arange(12, dtype="f4").reshape(4, 3)
    table = np.arange(15, dtype="f4").reshape(5, 3) / 7
    tensors: Tensors = {
        "w": (said(w, "weight_0"), w.tobytes()),
        "table": (said(table, "weight_1"), table.tobytes()),
    }
    nodes = [
        node("mm.default", "mm", self=tensor("x"), mat2=tensor("p_w")),
        node("relu.default", "relu", self=tensor("mm")),
        node("embedding.default", "rows", weight=tensor("p_table"), indices=tensor("ids")),
        node("add.Tensor", "sum", self=tensor("relu"), other=tensor("rows")),
    ]
    shapes = {"x": (2, 4), "p_w": (4, 3), "p_table": (5, 3), "mm": (2, 3), "relu": (2, 3),
              "rows": (2, 3), "sum": (2, 3)}  # fmt: skip
    values = {n: meta(s, (s[1], 1)) for n, s in shapes.items()} | {"ids": meta((2,), (1,), 5)}
    graph = {
        "inputs": [tensor(n) for n in ("p_w", "p_table", "x", "ids")],
        "outputs": [tensor("sum")],
        "nodes": nodes,
        "tensor_values": values,
        "sym_int_values": {},
    }
    inputs = [
        {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
        {"parameter": {"arg": {"name": "p_table"}, "parameter_name": "table"}},
        {"user_input": {"arg": tensor("x")}},
        {"user_input": {"arg": tensor("ids")}},
    ]
    outputs = [{"user_output": {"arg": tensor("sum")}}]
    signature = {"input_specs": inputs, "output_specs": outputs}
    calls = [{"fqn": "", "signature": {"out_spec": '[1, {"type": null, "context": null}]'}}]
    module = {"graph": graph, "signature": signature, "module_call_graph": calls}
    program = {
        "graph_module": module,
        "range_constraints": {},
        "schema_version": {"major": 8, "minor": 20},
    }
    return program, tensors


def archive(
    program: Any,
    tensors: Tensors,
    extra: Mapping[str, bytes] | None = None,
    byteorder: bytes = b"little",
    keep: str = "",
) -> bytes:
    """The bytes of an archive; a program may be bytes. ``keep``: a file that is there anyway."""
    out = io.BytesIO()
    text = program if isinstance(program, bytes) else json.dumps(program).encode()
    config = {"config": {name: meta for name, (meta, _) in tensors.items()}}
    files = {meta["path_name"]: data for meta, data in tensors.values()}
    if keep:
        files = {f"weight_{i}": data for i, (_, data) in enumerate(tensors.values())}
    with zipfile.ZipFile(out, "w") as z:
        for name, data in files.items():
            z.writestr(f"m/data/weights/{name}", data)
        z.writestr("m/data/weights/model_weights_config.json", json.dumps(config))
        z.writestr("m/models/model.json", text)
        for name, data in (extra or {}).items():
            z.writestr(f"m/{name}", data)
        z.writestr("m/archive_format", b"pt2")
        z.writestr("m/byteorder", byteorder)
    return out.getvalue()
