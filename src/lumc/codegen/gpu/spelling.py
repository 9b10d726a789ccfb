"""How values are spelled in the texts of GPUs."""

from __future__ import annotations

from lumc.codegen.gpu.program import Tile
from lumc.codegen.text.term import C, Spelling
from lumc.graph.ops import INTS, DType
from lumc.schedule.operands import HALF

_INTEGERS = {k: f"lumc_{k.value}" for k in INTS}
_TYPES = {**C.types, **_INTEGERS, DType.BOOL: "bool"}
_HALVES = {k: f"lumc_{k.value}" for k in HALF}
SPELLING = Spelling(  # of lumc_dev.h, which lumc_dev.metal shares
    types=_TYPES,
    stored={**_TYPES, **_HALVES, DType.BOOL: "lumc_u8"},
    nan="LUMC_NAN_F{bits}",
    inf="LUMC_INF_F{bits}",
    least="LUMC_MIN_I64",
    index="lumc_i32",
    counter="int",
    truncate="lumc_to_{kind}({value})",
)


def placed(at: str, tile: Tile) -> str:
    """Where an element of a shared tile lies, whose index among them is ``at``."""
    if tile.swizzle:
        return f"lumc_swizzle<{tile.swizzle.shift}, {tile.swizzle.mask}>({at})"
    return f"lumc_panel<{tile.panels}, {tile.size // tile.panels}>({at})" if tile.panels else at
