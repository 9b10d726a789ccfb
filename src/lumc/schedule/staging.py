"""How operands of contractions may come to the register tile: in place, or as which copies."""

from __future__ import annotations

from dataclasses import replace

from lumc.graph.expr import Expr, subterms
from lumc.kernel.access import gathers
from lumc.kernel.term import REDUCTIONS, Kernel, dtype
from lumc.schedule.levels import (
    AS_LEVELS,
    OF_BYTES,
    levels_of,
    multiplies_digits,
    multiplies_integers,
)
from lumc.schedule.operands import (
    VECTOR,
    Pair,
    loaded,
    loads,
    operand_of,
    readable,
    split_operands,
)
from lumc.schedule.schedule import Stage


def in_place(kernel: Kernel, stage: Expr, p: Stage, side: str, gpu: bool = False) -> bool:
    """May ``p`` say that this operand is not staged? The threads of a GPU read one by one."""
    split = split_operands(stage, p)
    assert split is not None
    operand = split[side == "b"]
    if side == "a" and (stage.kind == "wsum" or operand.kind == "red"):
        return stage.kind == "wsum" or p.form == "contract"  # a wsum lowers to more than a load
    computes = VECTOR[dtype(stage)]
    load = loaded(operand, computes)
    if gpu:
        return load.kind == "load"
    if load.kind != "load" or not loads(dtype(load), computes, p, side):
        return False
    return readable(kernel.access(load), stage, p, side)


def staging_modes(kernel: Kernel, stage: Expr, p: Stage, side: str, gpu: bool = False) -> list[str]:
    """The ways to bring an operand to the register tile that are possible."""
    operand = operand_of(stage, (p.rows_axis, p.lane_axis or ""), side)
    bare = replace(p, stage_a="none") if side == "a" and p.stage_a != "none" else p
    own = side == "a" and p.stage_b in OF_BYTES  # bytes, and what they are multiplied with
    modes = ["none"] if not own and in_place(kernel, stage, bare, side, gpu) else []
    if stage.kind == "wsum" and side == "a":
        return modes  # the weights are computed where they are used
    modes.append("inner")
    if all(e.free <= set(kernel.axes) for e in subterms(operand) if e.kind in REDUCTIONS):
        modes.append("hoist")
    if has_levels(kernel, stage, p, side) and not gpu:
        lane = p.lane_axis or ""
        modes += ["narrow"]
        modes += ["integers"] * multiplies_integers(kernel, stage, lane)
        modes += ["digits"] * multiplies_digits(kernel, stage, lane)
    computes = VECTOR[dtype(stage)]
    load = loaded(operand, computes)
    if (
        load.kind == "load"
        and kernel.buffer(load.attr[0]).constant
        and not (gpu or gathers(operand))
    ):
        modes.append("link")
        if dtype(load) is not computes and loads(dtype(load), computes, p, side):
            modes += ["narrow"] if "narrow" not in modes else []
    return modes


def has_levels(kernel: Kernel, stage: Expr, p: Stage, side: str) -> bool:
    """May a register tile compute this operand from levels as they are stored?"""
    found = side == "b" and p.form == "contract" and levels_of(kernel, stage, p.lane_axis or "")
    return bool(found)


def reads_levels(kernel: Kernel, stage: Expr, p: Stage) -> bool:
    """Does it do so?"""
    return p.stage_b in AS_LEVELS and has_levels(kernel, stage, p, "b")


def can_link(kernel: Kernel, stage: Expr, pair: Pair) -> bool:
    """Is b a weight, which may be packed when the program is linked?"""
    return "link" in staging_modes(kernel, stage, Stage("contract", *pair), "b")
