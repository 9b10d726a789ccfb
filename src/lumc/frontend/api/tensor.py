"""``Tensor``: a value of a model, seen through an index map. Reads like numpy and PyTorch.

The methods come from modules of one topic each: ``elementwise``, ``functions``, ``movement``,
``join``, ``reduce``, ``order``, ``norm``, ``contract`` and so on. All are compositions of the
twelve primitives:
``-x = x * -1``, ``a - b = a + b * -1``, ``a / b = a * recip(b)``, ``exp(x) = exp2(x * log2 e)``,
``a @ b = sum of a * b``, ``where(c, x, y) = c * x + ~c * y`` (mul by bool selects).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api import (
    contract,
    elementwise,
    functions,
    inverse,
    join,
    losses,
    movement,
    norm,
    order,
    reduce,
    sample,
    scatter,
)
from lumc.frontend.api.value import Value
from lumc.frontend.api.view import indices, is_proven, move
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr, is_large
from lumc.graph.graph import Bound
from lumc.graph.ops import DType, Op


class Tensor(Value):
    """A value of a model that is being written. Reads like numpy and PyTorch.

    Operators: ``+ - * / // % ** @``, comparisons, ``& | ^ ~`` of bools, ``x[1:, None, ..., ::2]``.
    Shapes broadcast as in numpy, dtypes meet as in PyTorch. What is wrong is said at the user's
    line, as it is written (E01xx).
    """

    # ``operand`` is written over the places ``_0, _1, ..`` of ``shape``

    # numpy must leave ``array + tensor`` to __radd__
    __array_ufunc__ = None

    def __repr__(self) -> str:
        return f"Tensor({self.describe()})"

    def __bool__(self) -> bool:
        raise self.refuse("E0127", "the truth of a tensor is not known while the graph is built")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.refuse("E0127", "the values of a tensor are known only when the model runs")

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise self.refuse("E0127", f"{self.describe()} has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    @property
    def T(self) -> Tensor:
        """All axes reversed."""
        return movement.reverse_axes(self)

    # ---- what the other modules are made of

    def view(
        self, shape: Sequence[Extent], env: Sequence[Expr], guards: Sequence[Bound] = ()
    ) -> Tensor:
        """A movement: ``env`` gives the old dimensions over the new places.

        Rarely guards and splits are too entangled for a proof, or their text would grow without
        end; then the tensor is copied first.
        """
        operand = move(self.operand, shape, env, self.model.dims, guards)
        if is_large(indices(operand)) or not is_proven(operand, shape, self.model.dims):
            operand = move(self.contiguous().operand, shape, env, self.model.dims, guards)
        return Tensor(self.model, operand, tuple(shape))

    def unary(self, op: Op) -> Tensor:
        """A primitive of one operand, in floats."""
        if not self.dtype.is_float:
            return self.to("f32").unary(op)
        return self.model.emit(op, [self])

    def reduced(self, op: Op, axis: int) -> Tensor:
        """``sum`` or ``max`` over one axis, which the result drops."""
        if self.shape[axis] == 1:
            return movement.squeeze(self, axis)
        return self.model.emit(op, [self], reduce=axis)

    def lift(self, value: Any, dtype: DType | None = None) -> Tensor:
        """A tensor, array or number as a tensor of this model.

        Numbers and f64 arrays - what numpy makes by default - take the dtype of this tensor.
        """
        if isinstance(value, Tensor):
            return value
        if isinstance(value, bool | int | float):
            return self.model.full((), value, dtype or elementwise.scalar_dtype(value, self.dtype))
        if self.dtype.is_float and getattr(value, "dtype", None) in (None, "float64"):
            return self.model.constant(value, dtype=self.dtype)
        return self.model.constant(value)

    def named(self, name: str) -> Tensor:
        """Give the node a name in the text form."""
        self.model.name(self, name)
        return self

    # ---- operators

    __add__ = __radd__ = elementwise.add
    __mul__ = __rmul__ = elementwise.mul
    __sub__ = elementwise.sub
    __rsub__ = elementwise.rsub
    __truediv__ = elementwise.div
    __rtruediv__ = elementwise.rdiv
    __floordiv__ = functions.floordiv
    __mod__ = elementwise.remainder
    __pow__ = functions.pow
    __rpow__ = functions.rpow
    __neg__ = elementwise.neg
    __abs__ = functions.abs
    __lt__ = elementwise.lt
    __gt__ = elementwise.gt
    __le__ = elementwise.le
    __ge__ = elementwise.ge
    __eq__ = elementwise.eq  # type: ignore[assignment]
    __ne__ = elementwise.ne  # type: ignore[assignment]
    __invert__ = elementwise.logical_not
    __and__ = __rand__ = elementwise.logical_and
    __or__ = __ror__ = elementwise.logical_or
    __xor__ = __rxor__ = elementwise.logical_xor
    __matmul__ = contract.matmul
    __rmatmul__ = contract.rmatmul
    __getitem__ = movement.index_tensor
    __hash__ = object.__hash__

    # ---- elementwise

    add, sub, mul, div, neg = (
        elementwise.add,
        elementwise.sub,
        elementwise.mul,
        elementwise.div,
        elementwise.neg,
    )
    pow, fmod, remainder = functions.pow, elementwise.fmod, elementwise.remainder
    exp, exp2, log, log2 = functions.exp, functions.exp2, functions.log, functions.log2
    expm1, log1p, sinh = functions.expm1, functions.log1p, functions.sinh
    sqrt, rsqrt, reciprocal = functions.sqrt, functions.rsqrt, elementwise.reciprocal
    sin, cos, tan, tanh = functions.sin, functions.cos, functions.tan, functions.tanh
    asin, acos, atan, atan2 = inverse.asin, inverse.acos, inverse.atan, inverse.atan2
    cosh, asinh, acosh, atanh = inverse.cosh, inverse.asinh, inverse.acosh, inverse.atanh
    sigmoid, erf, gelu, relu = (
        functions.sigmoid,
        functions.erf,
        functions.gelu,
        functions.relu,
    )
    silu, softplus, elu = functions.silu, functions.softplus, functions.elu
    leaky_relu, hardswish = functions.leaky_relu, functions.hardswish
    hardsigmoid, mish = functions.hardsigmoid, functions.mish
    abs, sign, square = functions.abs, functions.sign, functions.square
    floor, ceil, round, trunc = (
        functions.floor,
        functions.ceil,
        functions.round,
        functions.trunc,
    )
    maximum, minimum, clip = functions.maximum, functions.minimum, functions.clip
    isnan, isinf, where, masked_fill = (
        elementwise.isnan,
        elementwise.isinf,
        elementwise.where_self,
        elementwise.masked_fill,
    )
    to, contiguous = elementwise.to, elementwise.contiguous

    # ---- shape

    reshape, flatten, unflatten = movement.reshape, movement.flatten, movement.unflatten
    permute, transpose, moveaxis = movement.permute, movement.transpose, movement.moveaxis
    expand, broadcast_to = movement.expand, movement.broadcast_to
    squeeze, unsqueeze, flip, pad = movement.squeeze, movement.unsqueeze, movement.flip, join.pad
    split, chunk, unbind = join.split, join.chunk, join.unbind
    unfold, repeat, tile, roll = movement.unfold, movement.repeat, movement.repeat, join.roll
    repeat_interleave, slice = movement.repeat_interleave, movement.slice_axis
    triu, tril, diagonal = join.triu, join.tril, movement.diagonal

    # ---- reductions and what follows from them

    sum, max, min, mean = reduce.sum, reduce.max, reduce.min, reduce.mean
    var, std, prod = reduce.var, reduce.std, reduce.prod
    any, all, argmax, argmin = reduce.any, reduce.all, reduce.argmax, reduce.argmin
    cumsum, logsumexp = reduce.cumsum, reduce.logsumexp
    topk, sort, cumprod = order.topk, order.sort, order.cumprod
    softmax, log_softmax = norm.softmax, norm.log_softmax
    layer_norm, rms_norm, batch_norm = norm.layer_norm, norm.rms_norm, norm.batch_norm
    group_norm, instance_norm, normalize = norm.group_norm, norm.instance_norm, norm.normalize

    # ---- contractions and lookups

    matmul, conv1d, conv2d = contract.matmul, contract.conv1d, contract.conv2d
    conv, conv_transpose = contract.conv, contract.conv_transpose
    max_pool, avg_pool = contract.max_pool, contract.avg_pool
    adaptive_avg_pool = contract.adaptive_avg_pool
    one_hot, index_select, take = contract.one_hot, contract.index_select, contract.index_select
    gather, embedding = contract.gather, contract.embedding
    scatter, scatter_nd = scatter.scatter, scatter.scatter_nd
    grid_sample = sample.grid_sample

    # ---- losses

    cross_entropy, mse = losses.cross_entropy, losses.mse
    binary_cross_entropy, kl_divergence = losses.binary_cross_entropy, losses.kl_divergence
