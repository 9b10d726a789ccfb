"""What the matrix units of GPUs multiply: one table for schedules, lowering and printers."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.target import Target
from lumc.kernel.term import dtype
from lumc.schedule.operands import computed, operands


class Product(NamedTuple):
    """One instruction, [rows, steps] @ [steps, lanes], on elements stored as ``operands`` say."""

    fragment: str  # as schedules call it
    kind: str  # of the target
    generation: int  # of the target, at least
    operands: tuple[DType, ...]
    sums: DType
    shape: tuple[int, int, int]  # rows, lanes, steps
    rate: float = 1.0  # in that of 16-bit operands
    feature: str = ""  # of the target, off unless asked for

    @property
    def word(self) -> int:
        """Elements in a register of an operand."""
        return 4 // self.operands[0].nbytes


_FLOATS = (DType.F32, DType.F16, DType.BF16)
PRODUCTS = (  # the first one that fits; tf32 rounds to 11 bits, more than 16-bit floats have
    Product("mma", "cuda", 80, (DType.F16,), DType.F32, (16, 8, 16)),
    Product("mma", "cuda", 80, (DType.BF16,), DType.F32, (16, 8, 16)),
    Product("mma", "cuda", 80, (DType.I8,), DType.I32, (16, 8, 32), 2.0),
    Product("mma", "cuda", 80, _FLOATS, DType.F32, (16, 8, 8), 0.5, "tf32"),
    Product("simdgroup", "metal", 7, _FLOATS, DType.F32, (8, 8, 8)),
)


def product_of(target: Target, kinds: Set[DType], sums: DType) -> Product | None:
    """How the matrix units of a target multiply operands that are stored so, if they can."""
    for p in PRODUCTS:
        here = p.kind == target.kind and p.generation <= target.generation
        asked = not p.feature or p.feature in target.flags
        if here and asked and kinds and kinds <= {*p.operands} and computed(sums) is p.sums:
            return p
    return None


def speed(target: Target, fragment: str, kinds: Set[DType], sums: DType) -> float:
    """How fast products in this fragment of operands that are stored so are: times (a ratio) the
    speed of f32 multiply-adds."""
    product = product_of(target, kinds, sums) if fragment != "simt" else None
    if product is None or target.gpu is None:
        return 1.0
    return target.gpu.tensor_gflops * product.rate / target.gflops


def multiplied(stage: Expr, lane: str, target: Target) -> Product | None:
    """How they multiply the operands of this stage with these lanes."""
    sums = dtype(stage)
    kinds = {dtype(as_stored(e, sums, target)) for e in operands(stage, lane) or ()}
    return product_of(target, kinds, sums)


def as_stored(operand: Expr, sums: DType, target: Target) -> Expr:
    """What an operand only widens to the dtype of the sums, if a matrix unit may read it so."""
    inner = operand.kids[0] if operand.kind == "cast" else operand
    known = ((k, p.sums) for p in PRODUCTS if p.kind == target.kind for k in p.operands)
    same = dtype(operand) in (dtype(inner), computed(sums))
    return inner if same and (dtype(inner), computed(sums)) in known else operand
