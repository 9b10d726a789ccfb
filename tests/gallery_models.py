"""Networks of the gallery as texts (bench/gallery/texts.py): models with weights drawn anew, that
``onnx_suite`` runs through compiled C, compared with onnxruntime and with the oracle."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from lumc.frontend.onnx.load import source_of
from lumc.frontend.onnx.specialise import specialised
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parent / "models" / "gallery"
NAMES = sorted(p.stem for p in FOLDER.glob("*.onnxtxt"))
ALWAYS = [n for n in NAMES if n.startswith("small") or n in ("graph_network", "tabular")]
WORDS = 20  # ids are below it: rows of every table
LIMITS = (1e-4, 1e-5)  # relative L2 errors, against onnxruntime and the oracle


@dataclass
class Case:
    """A network, as ``onnx_suite`` runs one."""

    name: str
    kind: str = "gallery"
    rtol: float = 0.0
    atol: float = 0.0
    model: Any = field(init=False)
    sets: list[tuple[list[Array], list[int]]] = field(init=False)
    references: tuple[list[Array], ...] = ()

    def __post_init__(self) -> None:
        self.model = onnx.parser.parse_model((FOLDER / f"{self.name}.onnxtxt").read_text())
        graph = self.model.graph
        inputs = [i for i in graph.input if i.name.startswith("in")]
        for value in graph.input:
            if value not in inputs:
                graph.initializer.append(numpy_helper.from_array(drawn(value, self.name)))
                graph.initializer[-1].name = value.name
        del graph.input[:]
        graph.input.extend(inputs)
        self.sets = [([drawn(i, self.name) for i in inputs], list(range(len(graph.output))))]

    def compare(self, got: Array, place: int) -> None:
        """Raises AssertionError where an output is zero, or off by too much."""
        self.references = self.references or (self.by_onnxruntime(), self.by_oracle())
        for limit, reference in zip(LIMITS, self.references, strict=True):
            want = reference[place].astype("f8")
            assert got.shape == want.shape and want.any() and got.any()
            off = float(np.linalg.norm(got - want) / np.linalg.norm(want))
            assert off < limit, f"output {place}: relative error {off:.1e}"

    def by_onnxruntime(self) -> list[Array]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [i.name for i in self.model.graph.input]
        return list(session.run(None, dict(zip(names, self.sets[0][0], strict=True))))

    def by_oracle(self) -> list[Array]:
        names = [i.name for i in self.model.graph.input]
        arrays = dict(zip(names, self.sets[0][0], strict=True))
        imported = specialised(source_of(self.model, Path("model.onnx")), arrays)
        feed = {str(imported.inputs[n]): a for n, a in arrays.items()}
        model = imported.model
        return list(evaluate(model.graph(), "main", feed, model.read_weight)[0].values())


def drawn(value: Any, network: str) -> Array:
    """Random numbers for an input or a weight: ids, masks, positive vectors, normal matrices with
    columns of about the length 1."""
    rng = np.random.default_rng(zlib.crc32(f"{network} {value.name}".encode()))
    tensor = value.type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    if tensor.elem_type == TensorProto.BOOL:
        return np.tril(np.ones(shape, bool))
    if tensor.elem_type == TensorProto.INT64:
        return rng.integers(0, WORDS, shape)
    if value.name.startswith("in"):
        return rng.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        return rng.uniform(0.5, 1.5, shape).astype("f4")
    return (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype("f4")
