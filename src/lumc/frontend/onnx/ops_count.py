"""Positions of what is found, whose number is given at import: the first ones, in ONNX's order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import stack
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_quantize import quotient
from lumc.frontend.onnx.ops_shape import integers
from lumc.frontend.onnx.refused import DATA_DEPENDENT
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.graph.dim import Extent
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

MOST_CHOSEN = 256  # boxes of a class, one after the other
COUNTED = "with `--count`; positions beyond what is found lie outside"
Place = tuple[Tensor, Extent]  # positions along an axis, and its extent


def count_of(call: Call, fix: str) -> int:
    """How many rows the caller wants of a node."""
    if call.name not in call.lowering.counts:
        raise Unsupported(DATA_DEPENDENT, f"{fix}, or say how many: --count NODE=N")
    call.lowering.counted.add(call.name)
    return call.lowering.counts[call.name]


def first_of(found: Tensor, places: Sequence[Place], count: int) -> Tensor:
    """i64[count, axes]: where the first ones of ``found`` bool[n] are, by positions i64[n]. Rows
    beyond the last one are the extents: lookups there give 0, and writes go nowhere."""
    rank = found.to(DType.I64).cumsum(0)
    row = found.model.arange(1, count + 1)[:, None]
    here = found[None, :] & (rank[None, :] == row)  # [count, n]
    there = here.any(-1)
    columns = [
        where(there, (here * place).sum(-1), found.model.size(extent, DType.I64))
        for place, extent in places
    ]
    return stack(columns, -1)


def grid(like: Tensor) -> list[Place]:
    """The positions of all elements along each axis, in order."""
    out = []
    for i, extent in enumerate(like.shape):
        line = like.model.arange(extent).reshape(-1, *[1] * (like.ndim - i - 1))
        out.append((line.expand(*like.shape).flatten(), extent))
    return out


@operator("NonZero", note=COUNTED)
def nonzero(call: Call, X: Tensor) -> Tensor:
    """i64[axes, count]."""
    count = count_of(call, "rewrite with TopK or a mask")
    if X.ndim == 0:
        raise Unsupported("of a tensor without axes", "give it one")
    found = X if X.dtype is DType.BOOL else X != 0
    return first_of(found.flatten(), grid(X), count).transpose()


# ---- boxes


def corners(boxes: Tensor, centred: bool) -> list[Tensor]:
    """Least and greatest y and x [b, n] each of boxes [b, n, 4]: two corners, or x, y, width and
    height."""
    a, b, c, d = (boxes[..., i] for i in range(4))
    if centred:
        return [b - d * 0.5, b + d * 0.5, a - c * 0.5, a + c * 0.5]
    return [a.minimum(c), a.maximum(c), b.minimum(d), b.maximum(d)]


def overlapping(own: Sequence[Tensor], all_: Sequence[Tensor], least: Tensor | float) -> Tensor:
    """bool[b, c, n]: boxes whose intersection over union with one of [b, c] is more than this."""
    one, each = [x.unsqueeze(-1) for x in own], [x.unsqueeze(1) for x in all_]
    tall = one[1].minimum(each[1]) - one[0].maximum(each[0])
    wide = one[3].minimum(each[3]) - one[2].maximum(each[2])
    areas = [(s[1] - s[0]) * (s[3] - s[2]) for s in (one, each)]
    shared = tall * wide
    union = areas[0] + areas[1] - shared
    real = (tall > 0.0) & (wide > 0.0) & (shared > 0.0) & (areas[0] > 0.0) & (areas[1] > 0.0)
    return real & (union > 0.0) & (quotient(shared, union) > least)


@operator(
    "NonMaxSuppression",
    since=10,
    known=["max_output_boxes_per_class"],
    note=f"{COUNTED}; at most {MOST_CHOSEN} of a class",
)
def non_max_suppression(
    call: Call,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Any = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """boxes [b, n, 4], scores [b, c, n] -> i64[count, (batch, class, box)]. Of each class the best
    box is chosen, and those that overlap with it are left out, again and again."""
    count = count_of(call, "do it after the model")
    model, n = boxes.model, boxes.shape[1]
    most = 0
    if max_output_boxes_per_class is not None:
        most = integers(max_output_boxes_per_class, "max_output_boxes_per_class")[0]
    steps = min(most, count, n) if isinstance(n, int) else min(most, count)
    if steps > MOST_CHOSEN:
        raise Unsupported(f"{steps} boxes of a class", f"choose at most {MOST_CHOSEN}")
    left = scores
    if score_threshold is not None:
        left = where(scores > score_threshold.reshape(()), scores, -math.inf)
    least = 0.0 if iou_threshold is None else iou_threshold.reshape(())
    sides, chosen = corners(boxes, bool(center_point_box)), list[tuple[Tensor, Tensor]]()
    for _ in range(steps):
        at = left.argmax(-1)  # i64[b, c]
        chosen.append((at, left.max(-1) > -math.inf))
        own = [side.gather(1, at) for side in sides]
        gone = overlapping(own, sides, least) | (model.arange(n) == at.unsqueeze(-1))
        left = where(gone, -math.inf, left)
    if not chosen:
        none = [model.size(e, DType.I64).expand(count) for e in (*scores.shape[:2], n)]
        return stack(none, -1)
    place, found = (stack(list(parts), -1) for parts in zip(*chosen, strict=True))  # [b, c, steps]
    batch, kind, _ = grid(found)
    return first_of(found.flatten(), [batch, kind, (place.flatten(), n)], count)
