"""Networks of the gallery as texts for tests, that need no torch: tests/models/gallery.

    PYTHONPATH=bench:tests python -m gallery.texts [NAME ..]

Weights become inputs, which tests draw anew; small constants stay. Those called ``small_..`` are
architectures of the gallery in sizes that make test has time for (tests/torch_models.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from gallery.entry import networks
from zoo.case import Case, Ids, export

FOLDER = Path(__file__).parents[2] / "tests" / "models" / "gallery"
SMALL = 24  # elements of a constant that is written out
SMALLER = ("bert", "clip", "convnext", "deberta", "gpt2", "llama", "mamba", "resnet", "segformer",
           "swin", "t5", "vit", "wav2vec2", "whisper")  # fmt: skip
NAMES = (  # of every kind of layer the networks that compile quickly
    "diffusion_transformer",
    "gpt_neox",
    "graph_network",
    "tabular",
    "transformer_encoder",
    *(f"small_{name}" for name in SMALLER),
)


def case(name: str) -> Case:
    """A network of the gallery, or a small one."""
    kind, _, of = name.partition("_")
    if kind != "small":
        return networks()[name]
    import torch_models

    module, given = torch_models.made(of)
    inputs = (tuple(a.shape) if a.is_floating_point() else Ids(tuple(a.shape), 20) for a in given)
    return Case(name, lambda: module, tuple(inputs))


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
            export(case(name), Path(folder) / name)
            written = text(onnx.load(Path(folder) / name / "model.onnx"))
        (FOLDER / f"{name}.onnxtxt").write_text(f"{written.rstrip()}\n")
        print(f"{name}: {len(written):,} characters")


if __name__ == "__main__":
    main()
