"""Stored weights as tensors: quantised ones as primitives over the parts of their blocks."""

from __future__ import annotations

from lumc.disk.stored import Stored
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.derive import LAYOUTS
from lumc.graph.graph import Derivation, WeightFile
from lumc.graph.ops import DType


def read_where_it_lies(model: Model, name: str, file: WeightFile, stored: Stored) -> Tensor:
    """A weight in the dtype that it is stored in; f32 if it is quantised."""
    if stored.dtype is not None:
        return model.weight(name, stored.shape, stored.dtype, file, stored.key)
    parts, (*rows, row) = LAYOUTS[stored.layout].parts, stored.shape

    def part(which: str) -> Tensor:
        kind, n = parts[which].dtype, row // parts[which].each
        how = Derivation(kind, which, layout=stored.layout)
        read = model.weight(f"{name}.{which}", (*rows, n), kind, file, stored.key, how)
        return read.to(DType.F32)

    def spread(coarse: str, fine: str) -> Tensor:
        """The product of two parts, or the one that there is, for every element of a row."""
        value, each = part(coarse), parts[coarse].each
        if fine in parts:
            value = value.repeat_interleave(each // parts[fine].each, -1) * part(fine)
            each = parts[fine].each
        return value.repeat_interleave(each, -1)

    value = part("levels") * spread("scales", "factors")
    return value + spread("mins", "offsets") if "mins" in parts else value


def unpaired(x: Tensor, heads: int) -> Tensor:
    """Rows of heads whose rotary pairs lie side by side, as rows of two halves of a head."""
    pairs = x.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
