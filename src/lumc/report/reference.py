"""Run the original of an imported model with the framework that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.graph.graph import Node

Arrays = Mapping[str, np.ndarray]


def run_original(
    model: str,
    inputs: Arrays,
    entry: str,
    allowed: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
) -> dict[str, Arrays]:
    """``{framework: outputs}`` for an ONNX file, an archive of torch.export, a Hugging Face folder
    or a graph, whose weights may lie in the folders that are allowed.

    Raises E0605 for anything else, E0608 when the framework does not take the inputs.
    """
    path = Path(model)
    if path.suffix == ".lg":
        return {path.name: _float64(path, inputs, entry, allowed, dims or {})}
    try:
        if path.suffix == ".onnx" and path.is_file():
            return {"onnxruntime": _onnxruntime(path, inputs)}
        if path.suffix == ".pt2" and path.is_file():
            return {"torch": _exported(path, inputs)}
        if (path / "config.json").is_file():
            return {"torch": _transformers(path, inputs)}
    except LumcError:
        raise
    except Exception as e:  # whatever a framework raises
        said = str(e).strip().splitlines()
        what = f"--source {model} does not run: {said[0] if said else type(e).__name__}"
        fix = "name the model that the bundle was made from"
        raise LumcError("E0608", what, fix=fix, exit=Exit.USAGE) from e
    what = f"--source {model}: neither a .lg, an .onnx, a .pt2 nor a Hugging Face folder"
    raise LumcError("E0605", what, exit=Exit.USAGE)


def _float64(
    path: Path, inputs: Arrays, entry: str, allowed: Sequence[str], dims: Mapping[str, int]
) -> Arrays:
    from lumc.artifacts.files import read_graph, require_near
    from lumc.disk.weights import read_weight
    from lumc.oracle.graph import evaluate

    graph = read_graph(str(path), {})
    require_near(graph, str(path), allowed)
    own = {name: value for name, value in dims.items() if name in graph.dims}

    def read(leaf: Node) -> np.ndarray:
        return read_weight(leaf, Path.cwd())

    first = {s.name: read(s) for s in graph.states if s.file}
    return evaluate(graph, entry, inputs, read, first, dims=own)[0]


def _onnxruntime(path: Path, inputs: Arrays) -> Arrays:
    try:
        import onnxruntime as ort
    except ImportError:
        raise _missing("onnxruntime", "onnxruntime") from None
    from lumc.frontend.onnx.names import clean

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    theirs = {clean(i.name): i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    results = session.run(names, {theirs[k]: v for k, v in inputs.items() if k in theirs})
    return dict(zip(map(clean, names), results, strict=True))


def _exported(path: Path, inputs: Arrays) -> Arrays:
    from lumc.report.aten import run_archive

    try:
        return run_archive(path, inputs)
    except ImportError:
        raise _missing("torch", "torch") from None


def _transformers(path: Path, inputs: Arrays) -> Arrays:
    try:
        import torch
        import transformers
    except ImportError:
        raise _missing("torch and transformers", "torch transformers") from None
    from lumc.frontend.models.huggingface import class_of

    kind = getattr(transformers, class_of(path))
    how = {"attn_implementation": "eager", "use_safetensors": True, "local_files_only": True}
    network = kind.from_pretrained(str(path), **how).eval()  # never a pickle, never the net
    with torch.inference_mode():
        out = network(**{k: torch.from_numpy(np.array(v)) for k, v in inputs.items()})
    return {k: v.numpy() for k, v in out.items() if isinstance(v, torch.Tensor)}


def _missing(what: str, packages: str) -> LumcError:
    fix = f"pip install {packages}"
    return LumcError("E0606", f"--source needs {what}", fix=fix, exit=Exit.TOOLCHAIN)
