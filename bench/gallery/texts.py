"""Networks of the gallery as texts for tests, that need no torch: tests/models/gallery.

    PYTHONPATH=bench python -m gallery.texts [NAME ..]

Weights become inputs, which tests draw anew; small constants stay.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from gallery.entry import networks
from zoo.case import export

FOLDER = Path(__file__).parents[2] / "tests" / "models" / "gallery"
SMALL = 24  # elements of a constant that is written out
NAMES = (  # of every kind of layer the networks that compile quickly
    "diffusion_transformer",
    "gpt_neox",
    "graph_network",
    "tabular",
    "transformer_encoder",
)


def text(model: Any) -> str:
    """The model with its weights as inputs."""
    graph = model.graph
    del graph.value_info[:], model.metadata_props[:]
    for node in graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    kept = [t for t in graph.initializer if _size(t) <= SMALL]
    for t in graph.initializer:
        if t not in kept:
            graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return str(onnx.printer.to_text(model))


def _size(tensor: Any) -> int:
    size = 1
    for n in tensor.dims:
        size *= n
    return size


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            export(networks()[name], Path(folder) / name)
            written = text(onnx.load(Path(folder) / name / "model.onnx"))
        (FOLDER / f"{name}.onnxtxt").write_text(f"{written.rstrip()}\n")
        print(f"{name}: {len(written):,} characters")


if __name__ == "__main__":
    main()
