"""Sizes: integers that may depend on symbolic dims, and arithmetic with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lumc.frontend.api.model import Model
from lumc.frontend.api.symbols import Arithmetic, Undecided
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import factors, times
from lumc.frontend.aten.axes import along
from lumc.frontend.aten.program import Meta
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr


@aten("sym_size.int", halves=True)
def sym_size(self: Tensor, dim: int) -> Extent:
    return self.shape[along(self, dim)]


@aten("sym_numel", "numel", halves=True)
def sym_numel(self: Tensor) -> Extent:
    return _product(self.shape)


@aten("sym_stride.int", halves=True, note="of a tensor without gaps")
def sym_stride(self: Tensor, dim: int, meta: Meta | None = None) -> Extent:
    axis = along(self, dim)
    known = meta.strides[axis] if meta is not None and meta.strides else None
    if known is not None:
        return known
    raise Unsupported("a stride that depends on symbolic dims", "bind the dims with --dim")


def _product(shape: Any) -> Extent:
    whole, symbols = factors(shape)
    if len(symbols) > 1:
        raise Unsupported("the product of several symbolic dims", "bind them with --dim")
    return times(symbols[0], whole) if symbols else whole


def _binary(name: str, method: str, plain: Callable[[Any, Any], Any]) -> None:
    @aten(name, halves=True)
    def row(model: Model, a: Any, b: Any) -> Any:
        if isinstance(a, Expr) or isinstance(b, Expr):
            if not all(isinstance(v, int | Expr) for v in (a, b)):
                raise Undecided(f"{name} of {a} and {b}")
            return getattr(Arithmetic(model.dims), method)(a, b)
        found = plain(a, b)
        if isinstance(found, int) and abs(found) >= 1 << 63:
            raise ValueError(f"{name} is beyond 64 bits")
        return found


for _name, _method, _plain in (
    ("_operator.add", "add", lambda a, b: a + b),
    ("_operator.sub", "sub", lambda a, b: a - b),
    ("_operator.mul", "mul", lambda a, b: a * b),
    ("_operator.floordiv", "div", lambda a, b: a // b),
    ("_operator.mod", "mod", lambda a, b: a % b),
    ("torch.sym_max", "max", max),
    ("torch.sym_min", "min", min),
):
    _binary(_name, _method, _plain)


@aten("_operator.neg", halves=True)
def neg(model: Model, a: Any) -> Any:
    return Arithmetic(model.dims).mul(a, -1) if isinstance(a, Expr) else -a


@aten("_operator.truediv", halves=True)
def truediv(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) or isinstance(b, Expr):
        raise Undecided(f"{a} / {b}")
    return a / b


@aten("_operator.pow", halves=True)
def power(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) or isinstance(b, Expr):
        raise Undecided(f"{a} to the power of {b}")
    if abs(b) > 64:
        raise ValueError(f"a power of {b}")
    return a**b


@aten("torch.sym_float", halves=True)
def sym_float(a: Any) -> Any:
    if isinstance(a, Expr):
        raise Undecided(f"{a} as a float")
    return float(a)


def _rounded(name: str, function: Callable[[Any], int]) -> None:
    @aten(name, halves=True)
    def row(x: Any) -> Any:
        return x if isinstance(x, Expr) else function(x)


_rounded("torch.sym_int", int)
_rounded("math.ceil", math.ceil)
_rounded("math.floor", math.floor)
_rounded("math.trunc", math.trunc)
