"""Products that are summed: matmul, gemm, einsum, convolution."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.einsum import einsum as sum_of_products
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.pool import fold
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import minus, plus, times
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.graph.dim import Extent

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

MOST_ROWS = 6  # of a determinant


@operator("MatMul")
def matmul(A: Tensor, B: Tensor) -> Tensor:
    return A @ B


@operator("Gemm")
@in_f32
def gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Tensor:
    out = (A.T if transA else A) @ (B.T if transB else B)
    out = _scaled(out, alpha)
    return out if C is None or beta == 0 else out + _scaled(C, beta)


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    if x.dtype.is_int and factor != int(factor):
        raise Unsupported(f"ints scaled by {factor}")
    return x * (factor if x.dtype.is_float else int(factor))


@operator("Det", since=11, note="of at most 6 rows")
def det(X: Tensor) -> Tensor:
    """Along the rows from below: of every choice of columns the minor, each once."""
    n = X.shape[-1]
    if not isinstance(n, int) or not 1 <= n <= MOST_ROWS:
        raise Unsupported(f"of {X.describe()}", f"at most {MOST_ROWS} rows")
    minors: dict[tuple[int, ...], Tensor] = {(c,): X[..., n - 1, c] for c in range(n)}
    for row in reversed(range(n - 1)):
        wider = dict[tuple[int, ...], Tensor]()
        for columns in combinations(range(n), n - row):
            for i, c in enumerate(columns):
                part = X[..., row, c] * minors[columns[:i] + columns[i + 1 :]]
                part = -part if i % 2 else part
                wider[columns] = wider[columns] + part if i else part
        minors = wider
    return minors[tuple(range(n))]


@operator("Einsum", note="at least one operand; a letter may repeat within one (a diagonal)")
def einsum(*Inputs: Tensor, equation: str) -> Tensor:
    return sum_of_products(equation, Inputs)


# ---- convolution


def window_pads(
    call: Call,
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> list[tuple[int, int]]:
    """(before, after) of every spatial axis, from ``pads`` or ``auto_pad``."""
    rank = len(kernel)
    if auto_pad in ("NOTSET", ""):
        flat = list(pads or [0] * 2 * rank)
        if len(flat) != 2 * rank:
            raise ValueError(f"pads {flat} of {rank} spatial axes")
        return [(flat[i], flat[rank + i]) for i in range(rank)]
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    out = []
    for i in range(rank):
        length = x.shape[2 + i]
        if not isinstance(length, int):
            raise Unsupported(f"auto_pad along the symbolic dim {length}", "bind it with --dim")
        span = (kernel[i] - 1) * dilations[i] + 1
        count = -(-length // strides[i])
        total = max((count - 1) * strides[i] + span - length, 0)
        small, large = total // 2, total - total // 2
        out.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return out


def static_kernel(w: Tensor, kernel_shape: Sequence[int] | None) -> list[int]:
    """The window of a convolution, which must agree with its weight."""
    actual = [e for e in w.shape[2:] if isinstance(e, int)]
    if len(actual) != w.ndim - 2:
        raise Unsupported("a convolution with a symbolic window")
    if kernel_shape is not None and list(kernel_shape) != actual:
        raise ValueError(f"kernel_shape {list(kernel_shape)} of a weight {w.describe()}")
    return actual


@operator("Conv")
@in_f32
def conv(
    call: Call,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Tensor:
    kernel = static_kernel(W, kernel_shape)
    stride, dilation = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    padding = window_pads(call, X, kernel, stride, dilation, pads, auto_pad)
    return X.conv(W, B, stride, padding, dilation, group)


@operator("ConvTranspose")
@in_f32
def conv_transpose(
    call: Call,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Any = None,
    output_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Tensor:
    kernel = static_kernel(W, kernel_shape)
    rank = len(kernel)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    extra = list(output_padding or [0] * rank)
    padding = window_pads(call, X, kernel, stride, dilation, pads, "NOTSET")
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            full = plus(times(minus(X.shape[2 + i], 1), stride[i]), extra[i])
            full = plus(full, (kernel[i] - 1) * dilation[i] + 1)
            wanted = times(X.shape[2 + i], stride[i])
            if output_shape is not None:
                wanted = list(output_shape)[-rank:][i]
            padding[i] = _transposed_pads(minus(full, wanted), auto_pad)
    return X.conv_transpose(W, B, stride, padding, extra, dilation, group)


def _transposed_pads(total: Extent, auto_pad: str) -> tuple[int, int]:
    """What is cut from the full result on both sides; a negative cut adds zeros."""
    if not isinstance(total, int):
        raise Unsupported("output_shape of a symbolic dim", "bind it with --dim")
    small, large = total // 2, total - total // 2
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


@operator("Col2Im", known=["image_shape", "block_shape"])
def col2im(
    call: Call,
    input: Tensor,
    image_shape: Any,
    block_shape: Any,
    *,
    dilations: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Tensor:
    """Overlapping blocks are added: a transposed convolution with one-hot windows."""
    image, block = [int(v) for v in image_shape], [int(v) for v in block_shape]
    rank = len(block)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    padding = window_pads(call, input, block, stride, dilation, pads, "NOTSET")
    return fold(input, image, block, stride, padding, dilation)
