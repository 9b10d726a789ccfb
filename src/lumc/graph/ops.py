"""The twelve primitives and the dtypes: the whole vocabulary of a model."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt


class Op(Enum):
    """A primitive operation; the value is its name in the text form."""

    # ** unary, elementwise, float only
    LOG2 = "log2"
    EXP2 = "exp2"
    SIN = "sin"
    SQRT = "sqrt"
    RECIP = "recip"
    # ** binary, elementwise
    ADD = "add"  # or, on bool
    MUL = "mul"  # a bool operand selects: false * x = 0, even for inf and NaN
    MOD = "mod"  # C fmod: the sign of the dividend
    LT = "lt"  # gives bool; false when an operand is NaN
    # ** reductions over one axis
    SUM = "sum"  # empty: 0; f16 and bf16 accumulate in f32
    MAX = "max"  # empty: the least value (-inf); NaN propagates
    # ** layout
    CONTIGUOUS = "contiguous"  # materialise; carries the storage dtype, so it is also the cast


UNARY = (Op.LOG2, Op.EXP2, Op.SIN, Op.SQRT, Op.RECIP)
BINARY = (Op.ADD, Op.MUL, Op.MOD, Op.LT)
REDUCE = (Op.SUM, Op.MAX)


class DType(Enum):
    """Element types; the value is the name in the text form."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F64 = "f64"
    I64 = "i64"
    I32 = "i32"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"
    I16 = "i16"  # what came later stands behind: plans count dtypes
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"

    def __str__(self) -> str:
        return self.value

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether it is f32, f16, bf16 or f64."""
        return self in FLOATS

    @property
    def is_int(self) -> bool:
        """Whether it is i64, i32, i16, i8, u64, u32, u16 or u8; bool is no integer."""
        return self in INTS

    @property
    def greatest(self) -> float:
        """The greatest finite element that a float dtype can hold."""
        digits, exponent = {"f16": (11, 16), "bf16": (8, 128), "f32": (24, 128), "f64": (53, 1024)}[
            self.value
        ]
        return (2.0 - 2.0 ** (1 - digits)) * 2.0 ** (exponent - 1)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer dtype."""
        bits = 8 * self.nbytes
        if self in UNSIGNED:
            return 0, (1 << bits) - 1
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def number(self, value: int) -> float | int:
        """An integer as a value of this dtype; integers wrap."""
        lo, hi = self.limits
        return float(value) if self.is_float else (value - lo) % (hi - lo + 1) + lo

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype that holds it; bf16 travels as its uint16 bits."""
        return np.dtype(_NUMPY[self])


DTYPES = {d.value: d for d in DType}
FLOATS = (DType.F32, DType.F16, DType.BF16, DType.F64)
UNSIGNED = (DType.U64, DType.U32, DType.U16, DType.U8)
INTS = (DType.I64, DType.I32, DType.I16, DType.I8, *UNSIGNED)
_NUMPY = {
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "uint16",
    DType.F64: "float64",
    DType.I64: "int64",
    DType.I32: "int32",
    DType.I16: "int16",
    DType.I8: "int8",
    DType.U64: "uint64",
    DType.U32: "uint32",
    DType.U16: "uint16",
    DType.U8: "uint8",
    DType.BOOL: "bool",
}


def to_bf16(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint16]:
    """The bf16 bits of floats of any shape: by way of f32, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16).reshape(np.shape(values))


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The f32 values of bf16 bits of any shape."""
    return np.asarray(np.asarray(bits, np.uint32) << 16).view(np.float32)
