"""The tokenizer that a graph refers to: a file beside it, copied into the bundle as it is."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISREG

from lumc.disk.stored import unusable
from lumc.disk.weights import sha256_of
from lumc.graph.graph import WeightFile

NAME = "tokenizer.json"  # in a bundle
MAX_BYTES = 1 << 28


def read_attached(file: WeightFile, base: Path) -> bytes:
    """The bytes of the file that was imported; paths start at ``base``. Raises E0503."""
    if not Path(file.path).is_absolute() and ".." in Path(file.path).parts:
        what = "the tokenizer: a relative path may not leave the folder of the graph"
        raise unusable("E0503", what, file.path)
    path = base / file.path
    try:
        state = path.stat()
        plain = S_ISREG(state.st_mode) and state.st_size == file.size <= MAX_BYTES
    except (OSError, ValueError) as e:
        raise unusable("E0503", f"cannot read the tokenizer: {e}", path) from None
    if not plain or sha256_of(path) != file.sha256:
        raise unusable("E0503", "the tokenizer is not the one that was imported", path)
    return path.read_bytes()
