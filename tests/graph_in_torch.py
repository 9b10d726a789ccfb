"""A graph computed by torch, node by node, so that torch.autograd differentiates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graph_places import Loops, counted, inside, places, sizes
from lumc.graph.graph import Iota, Node, Operand, Read, Scalar
from lumc.graph.ops import DType, Op

KINDS = {
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}


def kind(dtype: DType) -> torch.dtype:
    """All floats are f64."""
    return torch.float64 if dtype.is_float else KINDS[dtype]


def computed(nodes: Sequence[Node], leaves: Mapping[Node, torch.Tensor]) -> dict[Node, Any]:
    """The values of nodes, in order, from those of leaves."""
    values: dict[Node, Any] = dict(leaves)
    for n in nodes:
        values[n] = _applied(n, [_loaded(o, n.loops, values) for o in n.operands])
    return values


def _loaded(o: Operand, loops: Loops, values: Mapping[Node, Any]) -> torch.Tensor:
    shape = sizes(loops)
    if isinstance(o, Read):
        source = values[o.source].reshape(-1)
        flat = torch.from_numpy(places(o, loops))
        found = source[flat] if source.numel() else _nothing(source, shape)
    elif isinstance(o, Iota):
        found = torch.from_numpy(counted(o, loops)).to(kind(o.dtype))
    else:
        assert isinstance(o, Scalar)
        found = torch.full(shape, o.value, dtype=kind(o.dtype))
    holds = torch.from_numpy(inside(o, loops))
    return torch.where(holds, found, torch.zeros((), dtype=found.dtype))


def _nothing(source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Zeros that depend on a tensor without elements."""
    return (
        source.any().expand(shape)
        if source.dtype == torch.bool
        else source.sum(dtype=source.dtype).expand(shape)
    )


def _applied(n: Node, args: Sequence[torch.Tensor]) -> torch.Tensor:
    a, b = args[0], args[-1]
    is_bool = a.dtype == torch.bool
    match n.op:
        case Op.LOG2:
            return torch.log2(a)
        case Op.EXP2:
            return torch.exp2(a)
        case Op.SIN:
            return torch.sin(a)
        case Op.SQRT:
            return torch.sqrt(a)
        case Op.RECIP:
            return torch.reciprocal(a)
        case Op.ADD:
            return a | b if is_bool else a + b
        case Op.MUL:
            return torch.where(a, b, torch.zeros((), dtype=b.dtype)) if is_bool else a * b
        case Op.MOD if not a.dtype.is_floating_point:
            rest = torch.fmod(a, torch.where(b == 0, torch.ones_like(b), b))
            return torch.where(b == 0, torch.zeros_like(a), rest)
        case Op.MOD:
            return torch.fmod(a, b)
        case Op.LT:
            return a < b
        case Op.SUM:
            return a.sum(-1, dtype=a.dtype)
        case Op.MAX:
            return a.any(-1) if is_bool else torch.amax(a, -1)
    return a != 0 if n.dtype is DType.BOOL else a.to(kind(n.dtype))
