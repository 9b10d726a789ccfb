"""Operators of the domain ``com.microsoft``, as onnxruntime's optimizer writes them."""

from __future__ import annotations

from collections.abc import Sequence

from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_contract import gemm
from lumc.frontend.onnx.registry import Unsupported, operator

DOMAIN = "com.microsoft"


@operator("Gelu", domain=DOMAIN)
@in_f32
def gelu(X: Tensor) -> Tensor:
    return X.gelu()


@operator("BiasGelu", domain=DOMAIN)
@in_f32
def bias_gelu(A: Tensor, B: Tensor) -> Tensor:
    return (A + B).gelu()


@operator("FastGelu", domain=DOMAIN)
@in_f32
def fast_gelu(X: Tensor, bias: Tensor | None = None) -> Tensor:
    return (X if bias is None else X + bias).gelu("tanh")


@operator("QuickGelu", domain=DOMAIN)
@in_f32
def quick_gelu(X: Tensor, *, alpha: float = 1.702) -> Tensor:
    return X * (X * alpha).sigmoid()


@operator("BiasSplitGelu", domain=DOMAIN)
@in_f32
def bias_split_gelu(X: Tensor, bias: Tensor) -> Tensor:
    value, gate = (X + bias).chunk(2, -1)
    return value * gate.gelu()


@operator("FusedMatMul", domain=DOMAIN)
@in_f32
def fused_matmul(
    A: Tensor,
    B: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    if transBatchA or transBatchB:
        raise Unsupported("transposed batch axes")
    out = (A.transpose() if transA else A) @ (B.transpose() if transB else B)
    return out if alpha == 1.0 else out * alpha


@operator("FusedGemm", domain=DOMAIN)
def fused_gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    activation: str = "Relu",
    activation_alpha: float = 0.01,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    out: Tensor = gemm(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    known = {"Relu": out.relu, "Tanh": out.tanh, "Sigmoid": out.sigmoid}
    if activation == "LeakyRelu":
        return out.leaky_relu(activation_alpha)
    if activation not in known:
        raise Unsupported(f"activation {activation}")
    return known[activation]()


@operator("SkipLayerNormalization", domain=DOMAIN)
@in_f32
def skip_layer_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Sequence[Tensor | None]:
    total = _sum(input, skip, bias)
    return total.layer_norm(gamma, beta, epsilon), None, None, total


@operator("SkipSimplifiedLayerNormalization", domain=DOMAIN)
@in_f32
def skip_rms_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Sequence[Tensor | None]:
    total = _sum(input, skip, bias)
    return total.rms_norm(gamma, epsilon), None, None, total


def _sum(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    return x + skip if bias is None else x + skip + bias
