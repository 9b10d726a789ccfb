"""Dataclasses with terms as plain JSON, and back. Decoding trusts nothing.

A value becomes what its fields and types say. Its terms become positions in a list of nodes,
``terms``, kids before parents. A node is ``[kind, attributes, kids]``; kids are positions of
earlier nodes. Floats that JSON has no number for are the texts "nan", "inf" and "-inf".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec

from lumc.graph.expr import Expr, bound_axes, make, subterms
from lumc.graph.ops import BINARY, UNARY, DType
from lumc.kernel.term import NAME

T = TypeVar("T")

MAX_NODES = 1 << 20
_UNARY = {op.value for op in UNARY}
_BINARY = {op.value for op in BINARY} | {"eq", "sel", "or"}
_DTYPES = {d.value: d for d in DType}
_INDEX = frozenset({"axis", "dim", "num", "lin", "div", "mod", "dyn"})


def to_plain(value: Any) -> Any:
    """A dataclass as JSON types."""
    roots: dict[Expr, int] = {}
    _plain(value, lambda e: roots.setdefault(e, 0))
    nodes, positions = encode(list(roots))
    body = _plain(value, dict(zip(roots, positions, strict=True)).__getitem__)
    return {**body, "terms": nodes} if nodes else body


def _plain(value: Any, position: Callable[[Expr], int]) -> Any:
    if isinstance(value, Expr):
        return position(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name), position) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _plain(v, position) for k, v in value.items()}
    return [_plain(v, position) for v in value] if isinstance(value, list | tuple) else value


def from_plain(kind: type[T], data: Any) -> T:
    """The value of ``to_plain``; raises ValueError, TypeError or LookupError for anything else."""
    terms = decode(data.get("terms", []) if is_dataclass(kind) else [])
    body = {k: v for k, v in data.items() if not terms or k != "terms"}
    try:
        value = msgspec.convert(body, kind, dec_hook=lambda _, at: pick(terms, at))
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from None
    if to_plain(value) != data:
        raise ValueError(f"unknown or missing fields of a {kind.__name__}")
    return value


def encode(roots: Sequence[Expr]) -> tuple[list[Any], list[int]]:
    """The nodes of several terms, shared ones once, and the position of every root."""
    position: dict[Expr, int] = {}
    nodes: list[Any] = []
    for root in roots:
        for e in subterms(root):
            if e not in position:
                position[e] = len(nodes)
                attr = [list(a) if isinstance(a, tuple) else _finite(a) for a in e.attr]
                nodes.append([e.kind, attr, [position[k] for k in e.kids]])
    return nodes, [position[root] for root in roots]


def _finite(a: Any) -> Any:
    return str(a) if isinstance(a, float) and not math.isfinite(a) else a


def decode(nodes: Any) -> list[Expr]:
    """The terms at every position; raises ValueError or TypeError for anything malformed."""
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise ValueError("the terms are not a list of nodes")
    out: list[Expr] = []
    for kind, attr, kids in nodes:
        if not all(type(k) is int and 0 <= k < len(out) for k in kids):
            raise ValueError("a kid of a term lies outside the terms before it")
        below = tuple(out[k] for k in kids)
        attrs = _attributes(kind, attr, below)
        out.append(make(kind, attrs, below, bound_axes(make(kind, attrs, below))))
    return out


def pick(terms: Sequence[Expr], at: Any) -> Expr:
    """The decoded term at a position."""
    if type(at) is not int or not 0 <= at < len(terms):
        raise ValueError(f"no term {at!r}")
    return terms[at]


def _attributes(kind: str, attr: list[Any], kids: tuple[Expr, ...]) -> tuple[Any, ...]:
    """The attributes of a node, checked with the number and sort of its kids."""
    names = [k.kind in _INDEX for k in kids]
    match kind, attr:
        case (("axis" | "dim"), [str(name)]) if not kids:
            return (_name(name),)
        case "num", [int(value)] if not kids:
            return (_integer(value),)
        case "lin", [int(constant), list(coefs)] if all(names) and len(coefs) == len(kids) > 0:
            return _integer(constant), tuple(_integer(c) for c in coefs)
        case (("div" | "mod"), [int(divisor)]) if names == [True] and _integer(divisor) > 0:
            return (divisor,)
        case "dyn", [] if names == [False]:
            return ()
        case "load", [str(buffer), str(dtype)] if all(names):
            return _name(buffer), _DTYPES[dtype].value
        case "const", [str(dtype), value] if not kids:
            return dtype, _constant(_DTYPES[dtype], value)
        case "iota", [str(dtype)] if names == [True]:
            return (_DTYPES[dtype].value,)
        case "cast", [str(dtype)] if names == [False]:
            return (_DTYPES[dtype].value,)
        case "guard", [int(lo), int(hi)] if names == [True, False]:
            return _integer(lo), _integer(hi)
        case "un", [str(op)] if names == [False] and op in _UNARY:
            return (op,)
        case "bin", [str(op)] if names == [False, False] and op in _BINARY:
            return (op,)
        case "red", ["sum" | "max" as op, list(axes)] if names == [False] and axes:
            return op, tuple(_name(a) for a in axes)
        case "wsum", [str(axis)] if names == [False, False]:
            return (_name(axis),)
    raise ValueError(f"malformed term of kind {kind!r}")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError(f"{value!r} is not a 64-bit integer")
    return value


def _constant(dtype: DType, value: Any) -> float | int | bool:
    if dtype is DType.BOOL and type(value) is bool:
        return value
    if dtype.is_int:
        return _integer(value)
    if dtype.is_float and (type(value) is float or value in ("nan", "inf", "-inf")):
        return float(value)
    raise ValueError(f"{value!r} is not a constant of {dtype.value}")
