"""Gradients of several batches as one: an entry adds them up, another one takes the mean."""

from __future__ import annotations

from collections.abc import Sequence

from lumc.frontend.api.model import Model
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Read
from lumc.graph.ops import DType


class Sums:
    """Sums of gradients: states ``w.sum`` for every parameter ``w``, ``NAME.count`` of how many.
    The entry of a batch adds its gradients, that of the step takes their means.
    """

    def __init__(self, params: Sequence[Tensor], name: str = "sums") -> None:
        if not params:
            raise refuse("E0126", "sums of no gradients", fix="give it a list of states")
        model = params[0].model
        assert isinstance(model, Model)
        self.model = model
        self.sums = list[Tensor]()
        for p in params:
            assert isinstance(p.operand, Read)
            dtype = DType.F64 if p.dtype is DType.F64 else DType.F32
            self.sums.append(model.state(f"{p.operand.source.name}.sum", p.shape, dtype))
        self.count = model.state(f"{name}.count", (), "i64")

    def add(self, grads: Sequence[Tensor]) -> None:
        """In this entry: add the gradients of a batch."""
        if len(grads) != len(self.sums):
            raise refuse("E0120", f"{len(self.sums)} parameters and {len(grads)} gradients")
        for total, grad in zip(self.sums, grads, strict=True):
            self.model.update(total, total + grad.to(total.dtype))
        self.model.update(self.count, self.count + 1)

    def take(self) -> list[Tensor]:
        """In this entry: the means of what was added, after which the sums begin with zeros."""
        part = self.count.to(DType.F32).reciprocal()
        means = [total * part.to(total.dtype) for total in self.sums]
        for total in (*self.sums, self.count):
            self.model.update(total, self.model.full(total.shape, 0, total.dtype))
        return means
