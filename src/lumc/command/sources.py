"""Models as they arrive: which frontend reads what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.report.log import Log

if TYPE_CHECKING:
    from lumc.frontend.models.cache import Cache

FOREIGN = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), "export the model: torch.onnx.export"),
    **dict.fromkeys((".h5", ".keras", ".pb", ".tflite"), "convert it to ONNX: tf2onnx"),
    ".safetensors": "name the folder with its config.json",
    ".py": "name a function of it that returns a Model: script.py:function",
}


def open_model(source: str, dims: Mapping[str, int], cache: Cache | None = None) -> Any:
    """The frontend that reads ``source``, by what it is."""
    path = Path(source)
    if (path / "manifest.json").is_file() and not (path / "config.json").is_file():
        what, fix = f"cannot import {source}: it is a bundle", f"lumc run {source}"
        raise LumcError("E0502", what, fix=fix, exit=Exit.CORRUPT)
    if path.is_dir() and (path / "config.json").exists():
        from lumc.frontend.models.huggingface import import_folder

        return import_folder(path, cache, say=lambda line: Log()(0, f"note: {line}"))
    if cache and path.suffix != ".gguf":
        what, fix = f"{source} has no context", "--context is for GGUF files and folders"
        raise LumcError("E0326", what, fix=fix, exit=Exit.USAGE)
    if path.suffix == ".onnx":
        from lumc.frontend.onnx import import_onnx

        return import_onnx(path, dims=dims)
    if path.suffix == ".gguf":
        from lumc.frontend.models.gguf import import_gguf

        return import_gguf(path, cache)
    if ".py:" in source:
        from lumc.frontend.script import import_script

        return import_script(source)
    if not path.exists():
        raise LumcError("E0201", f"cannot read {source}: there is no such file", exit=Exit.USAGE)
    if path.is_file():
        with path.open("rb") as f:
            if kind := artifact.kind_of(f.read(4096).decode(errors="replace")):
                raise artifact.unexpected("model", kind, source)
    what = f"cannot import {source}" + (": it has no config.json" if path.is_dir() else "")
    usual = "a folder with config.json, a .gguf or .onnx file, or script.py:function"
    fix = FOREIGN.get(path.suffix, usual)
    raise LumcError("E0205", what, fix=fix, exit=Exit.USAGE)
