"""Axes as ATen numbers them: a tensor without axes has one of extent 1 in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.registry import Unsupported
from lumc.graph.dim import Extent

MOST_PARTS = 1 << 14


def along(x: Tensor, dim: int) -> int:
    """One axis, as 0, 1, ..; 0 of a tensor without axes."""
    rank = max(x.ndim, 1)
    if not -rank <= dim < rank:
        raise ValueError(f"dim {dim} of {x.describe()}")
    return dim % rank


def axes(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Several axes in order; None and no numbers: all of them."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return list(range(x.ndim))
    each = [dim] if isinstance(dim, int) else dim
    found = sorted({along(x, d) for d in each})
    if len(found) != len(each):
        raise ValueError(f"dims {each} of {x.describe()}")
    return found if x.ndim else []


def over(function: Callable[[Tensor, int], Any], x: Tensor, dim: int) -> Any:
    """A function over an axis, also of a tensor without axes: its results, then, without one."""
    axis = along(x, dim)
    if x.ndim:
        return function(x, axis)
    found = function(x.unsqueeze(0), 0)
    return tuple(f.squeeze(0) for f in found) if isinstance(found, tuple) else found.squeeze(0)


def few(count: int, what: str, most: int = MOST_PARTS) -> int:
    """A number of parts, each of which is written out. Raises Unsupported."""
    if count > most:
        raise Unsupported(f"{count} {what}", f"at most {most}")
    return count


def static(extents: Sequence[Extent], what: str) -> list[int]:
    """Extents that are known at import. Raises Unsupported."""
    if not all(isinstance(e, int) for e in extents):
        raise Unsupported(f"{what} of {list(extents)}", "bind the dims with --dim")
    return [e for e in extents if isinstance(e, int)]
