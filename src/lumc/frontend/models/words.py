"""Matrices of GPTQ and AWQ: words of eight numbers of 4 bits, a zero and a scale for each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lumc.disk.stored import Stored
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Derivation, WeightFile
from lumc.graph.ops import FLOATS, DType

EIGHT = 8  # numbers in a word
Found = Mapping[str, tuple[WeightFile, Stored]]
Wanted = Mapping[str, tuple[tuple[DType, ...], tuple[int, ...]]]  # dtypes, the usual first; shape


@dataclass(frozen=True)
class Words:
    """How the matrices of a folder are stored, all of them as [in, out]."""

    order: str  # of the numbers in a word: of graph.derive.WORDS
    axis: int  # along which the words of a matrix lie; those of zeros lie along ``out``
    group: int  # rows that share a zero and a scale; 0: all
    more: int  # what is added to zeros

    def tensors(self, shape: tuple[int, ...]) -> Wanted:
        """What belongs to a weight [out, in], with dtypes and shapes."""
        out, rows = shape
        groups = -(-rows // (self.group or rows))
        packed = (rows // EIGHT, out) if self.axis == 0 else (rows, out // EIGHT)
        return {
            "qweight": ((DType.I32,), packed),
            "qzeros": ((DType.I32,), (groups, out // EIGHT)),
            "scales": ((DType.F16, *FLOATS), (groups, out)),
        }

    def matrix(self, model: Model, name: str, found: Found) -> Tensor:
        """``(number - zero) * scale`` as [out, in]."""
        numbers = self._read(model, f"{name}.levels", *found["qweight"], self.axis)
        zeros = self._read(model, f"{name}.zeros", *found["qzeros"], 1)
        file, stored = found["scales"]
        assert stored.dtype is not None
        scales = model.weight(f"{name}.scales", stored.shape, stored.dtype, file, stored.key)
        rows = numbers.shape[0]
        assert isinstance(rows, int)
        each = self.group or rows
        zeros = zeros + self.more if self.more else zeros
        wide = [t.repeat_interleave(each, 0)[:rows] for t in (zeros, scales.to(DType.F32))]
        return ((numbers - wide[0]) * wide[1]).transpose(0, 1)

    def _read(self, model: Model, name: str, file: WeightFile, stored: Stored, axis: int) -> Tensor:
        shape = [n * EIGHT if i == axis else n for i, n in enumerate(stored.shape)]
        how = Derivation(DType.I32, self.order, axis, EIGHT)
        return model.weight(name, shape, DType.U8, file, stored.key, how).to(DType.F32)
