"""Sentence embeddings: what modules.json of sentence-transformers adds after the encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.frontend.api.join import concat
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.weights import read_any_json, read_json
from lumc.graph.ops import DType


def sentence_embedding(model: Model, folder: Path, hidden: Tensor, mask: Tensor) -> None:
    """Add the output ``sentence_embedding`` f32[b, d] when the folder says how it is made."""
    path = folder / "modules.json"
    if not path.exists():
        return
    model.origin = "sentence_embedding"
    pooled: Tensor | None = None
    for kind, place in _modules(path):
        if kind == "Transformer":
            continue
        if kind == "Pooling" and pooled is None:
            config = folder / place / "config.json"
            pooled = pool(read_json(config), config, hidden, mask)
        elif kind == "Normalize" and pooled is not None:
            pooled = pooled.normalize(-1)
        else:
            raise _unsupported(path, f"module {kind} is not supported")
    if pooled is not None:
        model.output("sentence_embedding", pooled)


def _unsupported(path: Path, what: str) -> LumcError:
    fix = "supported: Transformer, Pooling (cls, mean, max, sqrt length), Normalize"
    return LumcError("E0324", what, where=str(path), fix=fix, exit=Exit.UNSUPPORTED)


def _modules(path: Path) -> list[tuple[str, str]]:
    """(type, folder) of every module, in order."""
    modules = read_any_json(path)
    try:
        pairs = [(str(m["type"]).rsplit(".", 1)[-1], str(m["path"])) for m in modules]
    except (TypeError, KeyError) as e:
        what = f"not a list of modules: {e}"
        raise LumcError("E0321", what, where=str(path), exit=Exit.CORRUPT) from None
    for kind, place in pairs:
        plain = Path(place).name == place and place != ".." and (kind + place).isprintable()
        if not plain:
            raise LumcError("E0321", f"path {place!r} is not a folder beside it",
                            where=str(path), exit=Exit.CORRUPT)  # fmt: skip
    return pairs


def pool(config: dict[str, Any], path: Path, hidden: Tensor, mask: Tensor) -> Tensor:
    """[b, s, d] -> [b, d]; several modes side by side, in the order of sentence-transformers."""
    real = mask.to(DType.BOOL)[:, :, None]
    parts = [f(hidden, real) for mode, f in POOLINGS.items() if config.get(mode) is True]
    other = [k for k, v in config.items() if k.startswith("pooling_mode_") and v is True]
    unknown = [k for k in other if k not in POOLINGS]
    if unknown or not parts:
        raise _unsupported(path, f"pooling {', '.join(unknown) or 'without a mode'}")
    return concat(parts, -1)


def _first(hidden: Tensor, real: Tensor) -> Tensor:
    return hidden[:, 0]


def _greatest(hidden: Tensor, real: Tensor) -> Tensor:
    return hidden.masked_fill(~real, -1e9).max(1)


def _length(real: Tensor) -> Tensor:
    """The number of real tokens [b, 1], at least 1e-9."""
    return real.to(DType.F32).sum(1).maximum(1e-9)


def _mean(hidden: Tensor, real: Tensor) -> Tensor:
    return (real * hidden).sum(1) / _length(real)


def _mean_sqrt(hidden: Tensor, real: Tensor) -> Tensor:
    return (real * hidden).sum(1) / _length(real).sqrt()


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pooling_mode_cls_token": _first,
    "pooling_mode_max_tokens": _greatest,
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_mean_sqrt_len_tokens": _mean_sqrt,
}
