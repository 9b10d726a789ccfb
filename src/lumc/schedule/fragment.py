"""What the matrix units of GPUs multiply: one table for schedules, lowering and printers."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.schedule.operands import computed, operands, pairs


class Product(NamedTuple):
    """One instruction, [rows, steps] @ [steps, lanes], on elements stored as ``operands`` say."""

    fragment: str  # as schedules call it
    kind: str  # of the target
    generations: range  # of the target
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
_AMPERE, _HOPPER, _APPLE = range(80, 1000), range(90, 91), range(7, 100)
_CDNA, _RDNA = range(0x90A, 0xA00), range(0x1100, 0x1300)
SIXTEENS = ("mfma", "wmma")  # of AMD: 16 rows, 16 lanes and 16 steps
# The first one of a fragment that fits; tf32 rounds to 11 bits, more than 16-bit floats have. On
# Hopper the products of single warps have 63 % of the rate of the tensor cores.
PRODUCTS = (
    Product("mma", "cuda", _HOPPER, (DType.F16,), DType.F32, (16, 8, 16), 0.63),
    Product("mma", "cuda", _HOPPER, (DType.BF16,), DType.F32, (16, 8, 16), 0.63),
    Product("mma", "cuda", _HOPPER, (DType.I8,), DType.I32, (16, 8, 32), 1.26),
    Product("mma", "cuda", _HOPPER, _FLOATS, DType.F32, (16, 8, 8), 0.31, "tf32"),
    Product("mma", "cuda", _AMPERE, (DType.F16,), DType.F32, (16, 8, 16)),
    Product("mma", "cuda", _AMPERE, (DType.BF16,), DType.F32, (16, 8, 16)),
    Product("mma", "cuda", _AMPERE, (DType.I8,), DType.I32, (16, 8, 32), 2.0),
    Product("mma", "cuda", _AMPERE, _FLOATS, DType.F32, (16, 8, 8), 0.5, "tf32"),
    Product("wgmma", "cuda", _HOPPER, (DType.F16,), DType.F32, (64, 64, 16)),
    Product("wgmma", "cuda", _HOPPER, (DType.BF16,), DType.F32, (64, 64, 16)),
    Product("mfma", "hip", _CDNA, (DType.F16,), DType.F32, (16, 16, 16)),
    Product("mfma", "hip", _CDNA, (DType.BF16,), DType.F32, (16, 16, 16)),
    Product("wmma", "hip", _RDNA, (DType.F16,), DType.F32, (16, 16, 16)),
    Product("wmma", "hip", _RDNA, (DType.BF16,), DType.F32, (16, 16, 16)),
    Product("simdgroup", "metal", _APPLE, _FLOATS, DType.F32, (8, 8, 8)),
)


def products_of(target: Target, kinds: Set[DType], sums: DType) -> dict[str, Product]:
    """How the matrix units of a target multiply operands that are stored so, by fragment."""
    found = dict[str, Product]()
    for p in PRODUCTS:
        here = p.kind == target.kind and target.generation in p.generations
        asked = not p.feature or p.feature in target.flags
        if here and asked and kinds and kinds <= {*p.operands} and computed(sums) is p.sums:
            found.setdefault(p.fragment, p)
    return found


def speed(target: Target, fragment: str, kinds: Set[DType], sums: DType) -> float:
    """How fast products in this fragment of operands that are stored so are: times (a ratio) the
    speed of f32 multiply-adds."""
    product = products_of(target, kinds, sums).get(fragment)
    if product is None or target.gpu is None:
        return 1.0
    return target.gpu.tensor_gflops * product.rate / target.gflops


def multiplied(stage: Expr, lane: str, target: Target) -> dict[str, Product]:
    """How they multiply the operands of this stage with these lanes, by fragment."""
    sums = dtype(stage)
    kinds = {dtype(as_stored(e, sums, target)) for e in operands(stage, lane) or ()}
    return products_of(target, kinds, sums)


def matrix_speed(kernel: Kernel, target: Target) -> float:
    """How much faster than f32 multiply-adds matrix units can do some product of a kernel: times (a
    ratio); 1.0 where they do none."""
    if target.gpu is None:
        return 1.0
    found = (
        speed(target, fragment, {*p.operands[:1]}, p.sums)
        for stage in kernel.stages
        for lane in dict.fromkeys(lane for rows, lane in pairs(stage) if rows)
        for fragment, p in multiplied(stage, lane, target).items()
    )
    return max(found, default=1.0)


def as_stored(operand: Expr, sums: DType, target: Target) -> Expr:
    """What an operand only widens to the dtype of the sums, if a matrix unit may read it so."""
    inner = operand.kids[0] if operand.kind == "cast" else operand
    known = ((k, p.sums) for p in PRODUCTS if p.kind == target.kind for k in p.operands)
    same = dtype(operand) in (dtype(inner), computed(sums))
    return inner if same and (dtype(inner), computed(sums)) in known else operand
