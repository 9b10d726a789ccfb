"""Files that round to eight bits while they run. Where a quotient lies next to a half, the last bit
of a sum decides which integer it becomes, and what follows is another result: not by rounding of
f32, but as much as a whole step of eight bits is.

``spread`` says how far that takes onnxruntime from itself. ``between`` takes the roundings out: a
model whose inputs are the codes that onnxruntime made, so that the rest can be held to the limits
of any other file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
ROUNDING = ("DynamicQuantizeLinear", "DynamicQuantizeLSTM")  # their first input is rounded
DRAWS = 32  # of 40 for one file, 6 were another result


def read(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "model.onnx")


def run(model: onnx.ModelProto, inputs: Arrays) -> dict[str, Array]:
    """What onnxruntime gives, node by node: a fused rounding would have no codes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    given = {i.name: inputs[i.name] for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


# ---- how far results move by themselves


def moved(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The model with each of its f32 constants as it is, or the next number below or above it."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    values = [a.t for n in other.graph.node if n.op_type == "Constant" for a in n.attribute]
    for tensor in [*other.graph.initializer, *values]:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            a = numpy_helper.to_array(tensor)
            side = rng.choice(np.array([-np.inf, 0, np.inf], "f4"), a.shape)
            near = np.where((side == 0) | (a == 0), a, np.nextafter(a, side))
            tensor.CopyFrom(numpy_helper.from_array(near.astype("f4"), tensor.name))
    return other


def spread(
    model: onnx.ModelProto,
    inputs: Arrays,
    error: Callable[[Sequence[Array], Sequence[Array]], float],
) -> float:
    """The greatest ``error`` of onnxruntime beside itself, of ``DRAWS`` models that differ from
    this one in the last bits of their constants."""
    wanted, rng = list(run(model, inputs).values()), np.random.default_rng(0)
    found = (list(run(moved(model, rng), inputs).values()) for _ in range(DRAWS))
    return max(error(got, wanted) for got in found)


# ---- without the roundings


def between(model: onnx.ModelProto, inputs: Arrays) -> tuple[onnx.ModelProto, Arrays, list[Array]]:
    """The model without the nodes that round: what these give are inputs, what they read are
    outputs beside its own; with the values of both as onnxruntime has them."""
    nodes = list(model.graph.node)
    rounding = [n for n in nodes if n.op_type in ROUNDING]
    rest = [n for n in nodes if n.op_type not in ROUNDING]
    codes = [o for n in rounding for o in n.output if o]
    made = {o for n in rest for o in n.output}
    ends = [n.input[0] for n in rounding] + [o.name for o in model.graph.output]
    ends = [n for n in dict.fromkeys(ends) if n in made]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    known = {o.name for o in whole.graph.output}
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=n) for n in [*codes, *ends] if n not in known
    )
    values = {**run(whole, inputs), **inputs}
    read = {i for n in rest for i in n.input}
    given = [n for n in [*inputs, *codes] if n in read]

    def declared(name: str) -> onnx.ValueInfoProto:
        a = values[name]
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )

    constants = [t for t in model.graph.initializer if t.name in read]
    graph = helper.make_graph(rest, "between", *(list(map(declared, n)) for n in (given, ends)))
    graph.initializer.extend(constants)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    part.graph.CopyFrom(graph)
    return part, {n: values[n] for n in given}, [values[n] for n in ends]


def save(folder: Path) -> None:
    """``model.onnx`` and its arrays in a folder, in place of the model that lies there."""
    model = read(folder)
    with np.load(folder / "inputs.npz") as stored:
        part, inputs, wanted = between(model, dict(stored))
    onnx.save(part, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **dict(inputs))
    np.savez(folder / "reference.npz", **{f"y{i}": y for i, y in enumerate(wanted)})
