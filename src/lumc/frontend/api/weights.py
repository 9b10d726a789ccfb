"""Weights of checkpoints: safetensors files, single or sharded, referenced where they lie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lumc.disk.stored import Stored
from lumc.disk.weights import read_header, weight_file
from lumc.errors import Exit, LumcError
from lumc.graph.graph import WeightFile

MAX_JSON = 100 << 20  # bytes


def reference(path: Path) -> WeightFile:
    """A file by its absolute path; ``save`` makes it relative where it can."""
    return replace(weight_file(path, path.parent), path=path.resolve().as_posix())


def open_checkpoint(folder: Path) -> dict[str, tuple[WeightFile, Stored]]:
    """All tensors of ``model.safetensors``, or of the shards of its index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return _open(single)
    if not index.exists():
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        fix = "save it with safetensors (save_pretrained does)" if pickled else ""
        what = "no model.safetensors and no model.safetensors.index.json"
        raise LumcError("E0323", what, where=str(folder), fix=fix, exit=Exit.UNSUPPORTED)
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
        raise LumcError("E0321", "weight_map is missing", where=str(index), exit=Exit.CORRUPT)
    names = sorted(set(shards.values()))
    for name in names:
        if Path(name).name != name or "\0" in name or name in ("", ".", ".."):
            what = f"shard {name!r} is not a file name in the folder"
            raise LumcError("E0321", what, where=str(index), exit=Exit.CORRUPT)
    opened = {name: _open(folder / name) for name in names}
    return {key: opened[v][key] for key, v in shards.items() if key in opened[v]}


def _open(path: Path) -> dict[str, tuple[WeightFile, Stored]]:
    file = reference(path)
    return {key: (file, stored) for key, stored in read_header(path).items()}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of strangers; E0321 when it is none."""
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise LumcError("E0321", "not a JSON object", where=str(path), exit=Exit.CORRUPT)
    return value


def read_any_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_JSON:
            raise LumcError("E0321", "too large", where=str(path), exit=Exit.CORRUPT)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise LumcError("E0201", f"cannot read {path}: {e.strerror}", exit=Exit.USAGE) from None
    except (ValueError, RecursionError) as e:
        raise LumcError("E0321", f"not JSON: {e}", where=str(path), exit=Exit.CORRUPT) from None
