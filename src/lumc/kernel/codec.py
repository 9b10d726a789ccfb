"""Dataclasses with terms as plain JSON, and back. Decoding trusts nothing.

A value becomes what its fields and types say. Its terms become positions in a list of nodes,
``terms``, kids before parents. A node is ``[kind, attributes, kids]``; kids are positions of
earlier nodes. Floats that JSON has no number for are the texts "nan", "inf" and "-inf".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from lumc.graph.expr import Expr, bound_axes, make, subterms
from lumc.graph.ops import BINARY, UNARY, DType
from lumc.kernel.term import INDEX_KINDS, Name

T = TypeVar("T")
MAX_NODES = 1 << 20


def one_of(*words: str) -> msgspec.Meta:
    """A text that is one of these words, for msgspec."""
    return msgspec.Meta(pattern=rf"\A({'|'.join(words)})\Z")


MOST = (1 << 63) - 1
Integer = Annotated[int, msgspec.Meta(ge=-MOST - 1, le=MOST)]
Word = Annotated[int, msgspec.Meta(ge=-MOST - 1)]  # of u64, too
Divisor = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Kind = Annotated[str, one_of(*(d.value for d in DType))]
Unary = Annotated[str, one_of(*(op.value for op in UNARY))]
Binary = Annotated[str, one_of(*(op.value for op in BINARY), "eq", "sel", "or")]
Some = Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
# the attributes of every kind of node, and the sorts of its kids: i is an index, v a value
FORMS: Mapping[str, tuple[Any, str]] = {
    "axis": (tuple[Name], ""),
    "dim": (tuple[Name], ""),
    "num": (tuple[Integer], ""),
    "lin": (tuple[Integer, tuple[Integer, ...]], "i+"),
    "div": (tuple[Divisor], "i"),
    "mod": (tuple[Divisor], "i"),
    "dyn": (tuple[()], "v"),
    "load": (tuple[Name, Kind], "i*"),
    "const": (tuple[Kind, bool | Word | float | Literal["nan", "inf", "-inf"]], ""),
    "iota": (tuple[Kind], "i"),
    "cast": (tuple[Kind], "v"),
    "guard": (tuple[Integer, Integer], "iv"),
    "un": (tuple[Unary], "v"),
    "bin": (tuple[Binary], "vv"),
    "where": (tuple[()], "vvv"),
    "red": (tuple[Literal["sum", "max"], Some], "v"),
    "wsum": (tuple[Name], "vv"),
}


def to_plain(value: Any) -> Any:
    """A dataclass as JSON types: its fields by name, and ``terms`` if there are any."""
    position: dict[Expr, int] = {}
    nodes: list[Any] = []
    text = msgspec.json.encode(value, enc_hook=lambda e: _add(e, position, nodes))
    body = msgspec.json.decode(text)
    return {**body, "terms": nodes} if nodes else body


def from_plain(kind: type[T], data: Any) -> T:
    """The value of ``to_plain``; raises ValueError, TypeError or LookupError for anything else."""
    terms = decode(data.get("terms", []) if isinstance(data, dict) else [])
    body = {k: v for k, v in data.items() if k != "terms"} if terms else data
    value: T = _converted(body, kind, dec_hook=lambda _, at: pick(terms, at))
    if to_plain(value) != data:
        raise ValueError(f"unknown fields of a {kind.__name__}")
    return value


def _converted(data: Any, kind: Any, **how: Any) -> Any:
    try:
        return msgspec.convert(data, kind, **how)
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from None


def encode(roots: Sequence[Expr]) -> tuple[list[Any], list[int]]:
    """The nodes of several terms, shared ones once, and the position of every root."""
    position: dict[Expr, int] = {}
    nodes: list[Any] = []
    return nodes, [_add(root, position, nodes) for root in roots]


def _add(root: Expr, position: dict[Expr, int], nodes: list[Any]) -> int:
    """The position of a term, whose nodes are added if they are new."""
    for e in subterms(root) if root not in position else ():
        if e not in position:
            position[e] = len(nodes)
            attr = [list(a) if isinstance(a, tuple) else _finite(a) for a in e.attr]
            nodes.append([e.kind, attr, [position[k] for k in e.kids]])
    return position[root]


def _finite(a: Any) -> Any:
    return str(a) if isinstance(a, float) and not math.isfinite(a) else a


def decode(nodes: Any) -> list[Expr]:
    """The terms at every position; raises ValueError, TypeError or LookupError for anything
    malformed."""
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise ValueError("the terms are not a list of nodes")
    out: list[Expr] = []
    for kind, attr, kids in nodes:
        below = tuple(pick(out, k) for k in kids)
        attrs = _attributes(kind, attr, below)
        out.append(make(kind, attrs, below, bound_axes(make(kind, attrs, below))))
    return out


def pick(terms: Sequence[Expr], at: Any) -> Expr:
    """The decoded term at a position; raises ValueError where there is none."""
    if type(at) is not int or not 0 <= at < len(terms):
        raise ValueError(f"no term {at!r} before")
    return terms[at]


def _attributes(kind: str, attr: Any, kids: tuple[Expr, ...]) -> tuple[Any, ...]:
    """The attributes of a node, checked with the number and sort of its kids."""
    form, sorts = FORMS[kind]
    found: tuple[Any, ...] = _converted(attr, form)
    said = "".join("i" if k.kind in INDEX_KINDS else "v" for k in kids)
    if not re.fullmatch(sorts, said) or (kind == "lin" and len(found[1]) != len(kids)):
        raise ValueError(f"malformed term of kind {kind!r}")
    return (found[0], _constant(*found)) if kind == "const" else found


def _constant(kind: str, value: Any) -> float | int | bool:
    dtype = DType(kind)
    if dtype.is_float and type(value) in (float, str):
        return float(value)
    if type(value) is bool and dtype is DType.BOOL:
        return value
    most = dtype.limits[1] if dtype is DType.U64 else MOST
    if type(value) is int and dtype.is_int and value <= most:
        return value
    raise ValueError(f"{value!r} is not a constant of {kind}")
