"""Single operators and small blocks, with shapes that networks really have.

Each is a torch module with random weights; rows are added, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, arange, cat, gather, matmul, nn, roll, softmax, split, stack, tanh, where

from zoo.case import Case, Ids

OPERATORS: dict[str, Case] = {}


class Of(nn.Module):
    """A function of tensors, and of modules that it calls."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x, *self.parts)


def case(name: str, module: Callable[[], nn.Module], *inputs: tuple[int, ...] | Ids) -> None:
    if name in OPERATORS:
        raise ValueError(f"two cases are named {name}")
    OPERATORS[name] = Case(name, module, inputs)


def of(name: str, function: Callable[..., Any], *inputs: tuple[int, ...] | Ids) -> None:
    """A case of a function without weights."""
    case(name, partial(Of, function), *inputs)


def conv(name: str, into: int, out: int, size: int, at: int, batch: int = 1, **more: Any) -> None:
    """A square convolution over ``at x at`` pixels, padded to keep them unless told otherwise."""
    more = {"padding": size // 2} | more
    case(name, partial(nn.Conv2d, into, out, size, **more), (batch, into, at, at))


def depthwise(channels: int, size: int, at: int, stride: int = 1) -> None:
    name = f"depthwise{size}x{size}{f's{stride}' * (stride > 1)}_{channels}_{at}"
    conv(name, channels, channels, size, at, groups=channels, stride=stride)


# ---- products

for rows, k, n in [
    (1, 768, 3072),
    (1, 2048, 1000),
    (1, 4096, 4096),
    (2, 768, 768),
    (3, 1280, 320),
    (4, 2048, 2048),
    (8, 1024, 1024),
    (16, 768, 3072),
    (64, 512, 2048),
    (128, 768, 768),
    (197, 384, 1536),
    (300, 256, 91),
    (512, 1024, 1024),
    (1500, 384, 1536),
    (3136, 96, 384),
]:
    case(f"linear_{rows}x{k}x{n}", partial(nn.Linear, k, n), (rows, k))
case("linear_7x7x768x3072", partial(nn.Linear, 768, 3072), (1, 7, 7, 768))
case("linear_7x7x3072x768", partial(nn.Linear, 3072, 768), (1, 7, 7, 3072))
case("linear_14x14x384x1536", partial(nn.Linear, 384, 1536), (1, 14, 14, 384))
case("linear_nobias_5x300x129", partial(nn.Linear, 300, 129, bias=False), (5, 300))
of("matmul_512", matmul, (512, 512), (512, 512))
of("matmul_127x255x129", matmul, (127, 255), (255, 129))
of("matmul_batched_12x128x64x128", matmul, (12, 128, 64), (12, 64, 128))
of("matmul_batched_64x49x49x32", matmul, (64, 49, 49), (64, 49, 32))
of("matmul_right_transposed", lambda a, b: a @ b.transpose(-1, -2), (12, 128, 64), (12, 128, 64))
of("matmul_left_transposed", lambda a, b: a.transpose(-1, -2) @ b, (512, 256), (512, 384))
of("matmul_vector", lambda a, b: a @ b, (1000, 512), (512,))
of("outer", lambda a, b: a[:, None] * b[None], (1024,), (768,))

# ---- convolutions

for into, out, at in [
    (32, 16, 112),
    (96, 24, 56),
    (64, 256, 56),
    (256, 64, 56),
    (512, 128, 28),
    (128, 512, 28),
    (1024, 256, 14),
    (256, 1024, 14),
    (384, 64, 14),
    (2048, 512, 7),
    (512, 2048, 7),
    (960, 160, 7),
    (160, 960, 7),
    (320, 1280, 7),
]:
    conv(f"conv1x1_{into}_{out}_{at}", into, out, 1, at)
conv("conv1x1s2_256_512_56", 256, 512, 1, 56, stride=2)
conv("conv1x1s2_1024_2048_14", 1024, 2048, 1, 14, stride=2)
for channels, at in [(32, 112), (64, 56), (128, 28), (256, 14), (512, 7), (512, 8), (320, 32)]:
    conv(f"conv3x3_{channels}_{at}", channels, channels, 3, at)
conv("conv3x3_17_35_31", 17, 35, 3, 31)
conv("conv3x3_4_320_64", 4, 320, 3, 64)
conv("conv3x3_128_3_64", 128, 3, 3, 64)
conv("conv3x3_batch4_64_28", 64, 64, 3, 28, batch=4)
conv("conv3x3s2_3_32_224", 3, 32, 3, 224, stride=2)
conv("conv3x3s2_64_128_56", 64, 128, 3, 56, stride=2)
conv("conv3x3s2_128_56", 128, 128, 3, 56, stride=2)
conv("conv3x3s2_256_512_14", 256, 512, 3, 14, stride=2)
conv("conv3x3_dilated2_256_28", 256, 256, 3, 28, dilation=2, padding=2)
conv("conv3x3_dilated6_128_32", 128, 128, 3, 32, dilation=6, padding=6)
conv("conv3x3_valid_64_30", 64, 64, 3, 30, padding=0)
conv("conv5x5_48_64_27", 48, 64, 5, 27)
conv("conv7x7s2_3_64_224", 3, 64, 7, 224, stride=2)
conv("conv7x7_32_28", 32, 32, 7, 28)
case("conv1x7_192_17", partial(nn.Conv2d, 192, 192, (1, 7), padding=(0, 3)), (1, 192, 17, 17))
case("conv7x1_192_17", partial(nn.Conv2d, 192, 192, (7, 1), padding=(3, 0)), (1, 192, 17, 17))
conv("patches16_3_384_224", 3, 384, 16, 224, stride=16, padding=0)
conv("patches4_3_96_224", 3, 96, 4, 224, stride=4, padding=0)
conv("patches2_96_192_56", 96, 192, 2, 56, stride=2, padding=0)
conv("grouped32_3x3_256_28", 256, 256, 3, 28, groups=32)
conv("grouped32_3x3_512_14", 512, 512, 3, 14, groups=32)
conv("grouped2_1x1_116_28", 116, 116, 1, 28, groups=2)
conv("grouped4_3x3s2_128_56", 128, 128, 3, 56, groups=4, stride=2)
for channels, at, stride in [
    (32, 112, 1),
    (96, 112, 2),
    (144, 56, 1),
    (144, 56, 2),
    (192, 28, 1),
    (384, 14, 1),
    (576, 14, 2),
    (960, 7, 1),
]:
    depthwise(channels, 3, at, stride)
depthwise(240, 5, 28)
depthwise(672, 5, 14)
depthwise(672, 5, 14, 2)
depthwise(1152, 5, 7)
depthwise(96, 7, 56)
depthwise(384, 7, 14)
depthwise(768, 7, 7)
for name, args, more, shape in [
    ("1d_10s5_1_512_16000", (1, 512, 10), {"stride": 5, "bias": False}, (1, 1, 16000)),
    ("1d_3s2_512_1599", (512, 512, 3), {"stride": 2, "bias": False}, (1, 512, 1599)),
    ("1d_3_80_384_1500", (80, 384, 3), {"padding": 1}, (1, 80, 1500)),
    ("1d_depthwise31_256_200", (256, 256, 31), {"padding": 15, "groups": 256}, (1, 256, 200)),
    ("1d_dilated4_128_500", (128, 128, 5), {"padding": 8, "dilation": 4}, (1, 128, 500)),
]:
    case(f"conv{name}", partial(nn.Conv1d, *args, **more), shape)
for name, args, more, shape in [
    ("3d_3_32_8_56", (3, 32, 3), {"padding": 1}, (1, 3, 8, 56, 56)),
    ("3d_64_4_28", (64, 64, 3), {"padding": 1}, (1, 64, 4, 28, 28)),
    ("3d_1x3x3_64_4_28", (64, 64, (1, 3, 3)), {"padding": (0, 1, 1)}, (1, 64, 4, 28, 28)),
]:
    case(f"conv{name}", partial(nn.Conv3d, *args, **more), shape)
up = {"stride": 2}
for name, into, out, size, at, more in [
    ("4x4s2_128_64_32", 128, 64, 4, 32, {"padding": 1}),
    ("4x4s2_512_256_8", 512, 256, 4, 8, {"padding": 1}),
    ("2x2s2_128_64_32", 128, 64, 2, 32, {}),
    ("2x2s2_256_128_28", 256, 128, 2, 28, {}),
    ("3x3s2_64_32_32", 64, 32, 3, 32, {"padding": 1, "output_padding": 1}),
    ("3x3s2_96_48_19", 96, 48, 3, 19, {"padding": 1}),
]:
    make = partial(nn.ConvTranspose2d, into, out, size, **up, **more)
    case(f"transposed{name}", make, (1, into, at, at))
make = partial(nn.ConvTranspose1d, 256, 128, 16, stride=8, padding=4)
case("transposed1d_16s8_256_128_128", make, (1, 256, 128))

# ---- pooling

case("maxpool3x3s2_64_112", partial(nn.MaxPool2d, 3, 2, 1), (1, 64, 112, 112))
case("maxpool3x3s2_192_28", partial(nn.MaxPool2d, 3, 2), (1, 192, 28, 28))
case("maxpool2x2_64_112", partial(nn.MaxPool2d, 2), (1, 64, 112, 112))
case("maxpool5x5_256_20", partial(nn.MaxPool2d, 5, 1, 2), (1, 256, 20, 20))
case("maxpool13x13_128_13", partial(nn.MaxPool2d, 13, 1, 6), (1, 128, 13, 13))
case("maxpool1d_4_64_4000", partial(nn.MaxPool1d, 4), (1, 64, 4000))
case("maxpool3d_2_32_8_28", partial(nn.MaxPool3d, 2), (1, 32, 8, 28, 28))
case("avgpool3x3s2_64_112", partial(nn.AvgPool2d, 3, 2, 1), (1, 64, 112, 112))
case("avgpool3x3_192_28", partial(nn.AvgPool2d, 3, 1, 1), (1, 192, 28, 28))
case("avgpool2x2_128_56", partial(nn.AvgPool2d, 2), (1, 128, 56, 56))
case("avgpool_global_2048_7", partial(nn.AdaptiveAvgPool2d, 1), (1, 2048, 7, 7))
case("avgpool_global_96_112", partial(nn.AdaptiveAvgPool2d, 1), (1, 96, 112, 112))

# ---- normalisation


def channels_first(x: Tensor, norm: nn.Module) -> Tensor:
    return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


case("groupnorm_320_32", partial(nn.GroupNorm, 32, 320), (2, 320, 32, 32))
case("groupnorm_512_16", partial(nn.GroupNorm, 32, 512), (1, 512, 16, 16))
case("layernorm_197_768", partial(nn.LayerNorm, 768), (1, 197, 768))
case("layernorm_3136_96", partial(nn.LayerNorm, 96), (1, 3136, 96))
case("layernorm_1_4096", partial(nn.LayerNorm, 4096), (1, 4096))
case("layernorm_first_96_56", lambda: Of(channels_first, nn.LayerNorm(96)), (1, 96, 56, 56))
case("rmsnorm_128_2048", partial(nn.RMSNorm, 2048), (1, 128, 2048))
case("rmsnorm_1_4096", partial(nn.RMSNorm, 4096), (1, 4096))
case("batchnorm_64_56", partial(nn.BatchNorm2d, 64), (1, 64, 56, 56))
case("instancenorm_64_64", partial(nn.InstanceNorm2d, 64, affine=True), (1, 64, 64, 64))
of("normalize_l2_512_256", lambda x: F.normalize(x, dim=-1), (512, 256))
of(
    "standardize_80_3000",
    lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5),
    (80, 3000),
)

# ---- softmax and reductions


def expected(x: Tensor) -> Tensor:
    """The mean of the numbers of 16 bins with these probabilities."""
    return (x * arange(16, dtype=x.dtype)[:, None]).sum(2)


of("softmax_12_128_128", partial(softmax, dim=-1), (12, 128, 128))
of("softmax_6_197_197", partial(softmax, dim=-1), (6, 197, 197))
of("softmax_1_32000", partial(softmax, dim=-1), (1, 32000))
of("softmax_channels_512_28", partial(softmax, dim=1), (1, 512, 28, 28))
of("softmax_channels_21_128", partial(softmax, dim=1), (1, 21, 128, 128))
of("softmax_rows_1000_64", partial(softmax, dim=0), (1000, 64))
of("softmax_bins_4_16_2100", lambda x: expected(softmax(x, 2)), (1, 4, 16, 2100))
of("log_softmax_8_50257", partial(F.log_softmax, dim=-1), (8, 50257))
of("sum_last_4096_1024", lambda x: x.sum(-1), (4096, 1024))
of("sum_first_4096_512", lambda x: x.sum(0), (4096, 512))
of("sum_middle_16_512_256", lambda x: x.sum(1), (16, 512, 256))
of("sum_all_1m", lambda x: x.sum(), (1000, 1000))
of("mean_image_256_28", lambda x: x.mean((2, 3)), (1, 256, 28, 28))
of("mean_tokens_197_768", lambda x: x.mean(1), (1, 197, 768))
of("max_last_1000_512", lambda x: x.amax(-1), (1000, 512))
of("max_first_1000_512", lambda x: x.amax(0), (1000, 512))
of("max_channels_64_56", lambda x: x.amax(1, True), (1, 64, 56, 56))
of("logsumexp_128_1000", lambda x: x.logsumexp(-1), (128, 1000))
of("norm_512_768", lambda x: x.norm(dim=-1), (512, 768))
of("cumsum_last_64_1024", lambda x: x.cumsum(-1), (64, 1024))
of("cumsum_first_1024_64", lambda x: x.cumsum(0), (1024, 64))
of("cumsum_middle_8_128_512", lambda x: x.cumsum(1), (8, 128, 512))
of("cumsum_1_32000", lambda x: x.cumsum(-1), (1, 32000))

# ---- elementwise

image, hidden = (1, 64, 56, 56), (1, 197, 3072)
of("gelu_197_3072", F.gelu, hidden)
of("gelu_tanh_128_3072", partial(F.gelu, approximate="tanh"), (1, 128, 3072))
of("silu_64_56", F.silu, image)
of("hardswish_64_56", F.hardswish, image)
of("mish_64_56", F.mish, image)
of("relu6_64_56", F.relu6, image)
of("elu_64_56", F.elu, image)
of("softplus_197_3072", F.softplus, hidden)
of("sigmoid_tanh_256_1000", lambda a, b: tanh(a) * b.sigmoid(), (256, 1000), (256, 1000))
of("swiglu_128_2048", lambda x: F.silu(x[..., :2048]) * x[..., 2048:], (1, 128, 4096))
of("add_relu_256_56", lambda a, b: F.relu(a + b), (1, 256, 56, 56), (1, 256, 56, 56))
of("add_position_197_768", lambda a, b: a + b, (4, 197, 768), (1, 197, 768))
of("scale_channels_240_28", lambda a, b: a * b, (1, 240, 28, 28), (1, 240, 1, 1))
of("mask_12_128_128", lambda x, m: where(m < 0, -1e4, x), (12, 128, 128), (1, 128, 128))
of("exp_log_1m", lambda x: (x.exp() + 1).log(), (1000, 1000))
of("pow_clip_197_3072", lambda x: (x.clip(-3, 3) ** 3) * 0.5, hidden)
case("prelu_64_56", partial(nn.PReLU, 64), image)

# ---- movement


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + cat([-x[..., half:], x[..., :half]], -1) * sin


def windows(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    return x.view(b, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


of("transpose_1024_768", lambda x: x.T.contiguous(), (1024, 768))
of("transpose_heads_128_12_64", lambda x: x.transpose(1, 2).contiguous(), (1, 128, 12, 64))
of("channels_last_64_56", lambda x: x.permute(0, 2, 3, 1).contiguous(), image)
of("channels_first_96_56", lambda x: x.permute(0, 3, 1, 2).contiguous(), (1, 56, 56, 96))
of("windows7_96_56", windows, (1, 56, 56, 96))
of("pixel_shuffle_64_56", partial(F.pixel_shuffle, upscale_factor=2), image)
of("space_to_depth_3_320", partial(F.pixel_unshuffle, downscale_factor=2), (1, 3, 320, 320))
of("roll_3_96_56", lambda x: roll(x, (-3, -3), (1, 2)), (1, 56, 56, 96))
of("concat_channels_4x64_28", lambda *x: cat(x, 1), *[(1, 64, 28, 28)] * 4)
of("concat_last_197_384", lambda a, b: cat([a, b], -1), (1, 197, 384), (1, 197, 384))
of("concat_last_24x64_577", lambda *x: cat(x, -1), *[(1, 577, 64)] * 24)
of("concat_anchors_80_8400", lambda *x: cat(x, -1), (1, 80, 6400), (1, 80, 1600), (1, 80, 400))
of("concat_token_196_768", lambda a, b: cat([a, b], 1), (1, 1, 768), (1, 196, 768))
of("split_qkv_197_1152", lambda x: split(x, 384, -1), (1, 197, 1152))
of("stack_pairs_512_256", lambda a, b: stack([a, b], -1), (512, 256), (512, 256))
of("pad_zero_64_56", lambda x: F.pad(x, (1, 1, 1, 1)), image)
of("pad_reflect_64_56", lambda x: F.pad(x, (3, 3, 3, 3), "reflect"), image)
of("slice_strided_64_56", lambda x: x[:, :, ::2, 1::2] + 1, image)
of(
    "focus_3_320",
    lambda x: cat([x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)], 1),
    (1, 3, 320, 320),
)
of("flip_64_56", lambda x: x.flip(-1) * 2, image)
of("repeat_heads_8_128_64", lambda x: x.repeat_interleave(4, 1), (1, 8, 128, 64))
of("upsample_nearest_128_20", partial(F.interpolate, scale_factor=2.0), (1, 128, 20, 20))
of(
    "upsample_bilinear_64_28",
    partial(F.interpolate, scale_factor=2.0, mode="bilinear", align_corners=False),
    (1, 64, 28, 28),
)
of("rotary_12_128_64", rotary, (1, 12, 128, 64), (128, 64), (128, 64))
case("embedding_30522_384", partial(nn.Embedding, 30522, 384), Ids((1, 128), 30522))
case("embedding_50257_768", partial(nn.Embedding, 50257, 768), Ids((1, 16), 50257))
of("take_rows_1000_256", lambda x, i: x[i], (1000, 256), Ids((300,), 1000))
of("take_along_64_512", lambda x, i: gather(x, 1, i), (64, 512), Ids((64, 128), 512))

# ---- attention


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def attend_biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias, -1) @ v


def attend_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def attend_images(x: Tensor, qkv: nn.Module, proj: nn.Module) -> Tensor:
    """Two heads over 20 x 20 places, with keys of half the width of values."""
    b, c, h, w = x.shape
    q, k, v = qkv(x).view(b, 2, c, h * w).split([c // 4, c // 4, c // 2], 2)
    scores = softmax(q.transpose(-2, -1) @ k * (c // 4) ** -0.5, -1)
    return proj((v @ scores.transpose(-2, -1)).reshape(b, c, h, w))


class SelfAttention(nn.Module):
    """Projections, heads of 64 and the projection back; fewer heads for keys where told."""

    def __init__(self, width: int, key_width: int | None = None) -> None:
        super().__init__()
        key_width = key_width or width
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, key_width), nn.Linear(width, key_width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, -1, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = attend_grouped(q, k, v) if k.shape != q.shape else attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


qkv = [(1, 12, 128, 64)] * 3
of("attention_12_128_64", attend, *qkv)
of("attention_causal_12_128_64", partial(attend, causal=True), *qkv)
of("attention_6_197_64", attend, *[(1, 6, 197, 64)] * 3)
of("attention_8_1024_64", attend, *[(1, 8, 1024, 64)] * 3)
of("attention_6_1500_64", attend, *[(1, 6, 1500, 64)] * 3)
of("attention_cross_8_1024_77_40", attend, (1, 8, 1024, 40), *[(1, 8, 77, 40)] * 2)
of("attention_one_query_32_512_64", attend, (1, 32, 1, 64), *[(1, 32, 512, 64)] * 2)
of("attention_grouped_one_query", attend_grouped, (1, 32, 1, 64), *[(1, 8, 512, 64)] * 2)
of("attention_windows_64x3_49_32", attend_biased, *[(64, 3, 49, 32)] * 3, (3, 49, 49))
case(
    "attention_image_128_20",
    lambda: Of(attend_images, nn.Conv2d(128, 256, 1), nn.Conv2d(128, 128, 1)),
    (1, 128, 20, 20),
)
case("self_attention_128_384", partial(SelfAttention, 384), (1, 128, 384))
case("self_attention_grouped_128_512", partial(SelfAttention, 512, 128), (1, 128, 512))

# ---- recurrent cells


def first(x: Tensor, cell: nn.Module) -> Tensor:
    return cell(x)[0]


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, cell: nn.Module) -> Any:
    return cell(x, (h, c))


case("lstm_cell_1_256", lambda: Of(lstm_cell, nn.LSTMCell(256, 256)), *[(1, 256)] * 3)
case("gru_cell_8_256", lambda: nn.GRUCell(256, 256), (8, 256), (8, 256))
case("lstm_32_128_256", lambda: Of(first, nn.LSTM(128, 256)), (32, 1, 128))
case("lstm_64_batch4_128", lambda: Of(first, nn.LSTM(128, 128)), (64, 4, 128))
case("lstm_both_ways_24_64", lambda: Of(first, nn.LSTM(64, 64, bidirectional=True)), (24, 1, 64))
case("gru_32_128", lambda: Of(first, nn.GRU(128, 128)), (32, 1, 128))

# ---- blocks


def excite(x: Tensor, squeeze: nn.Module) -> Tensor:
    return x * squeeze(x)


def pyramid(x: Tensor, before: nn.Module, after: nn.Module) -> Tensor:
    """Max pooling three times in a row, and all of it side by side (SPPF)."""
    y = [before(x)]
    for _ in range(3):
        y.append(F.max_pool2d(y[-1], 5, 1, 2))
    return after(cat(y, 1))


def residual(x: Tensor, body: nn.Module) -> Tensor:
    return x + body(x)


def squeeze(channels: int, inner: int) -> nn.Module:
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(channels, inner, 1),
        nn.SiLU(),
        nn.Conv2d(inner, channels, 1),
        nn.Sigmoid(),
    )


def inverted(channels: int, inner: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
        *(nn.Conv2d(inner, inner, 3, 1, 1, groups=inner, bias=False), nn.BatchNorm2d(inner)),
        *(nn.ReLU6(), nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
    )


def perceptron(width: int) -> nn.Module:
    wide = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    return nn.Sequential(nn.LayerNorm(width), *wide)


def normed(channels: int) -> nn.Module:
    norm = nn.GroupNorm(32, channels), nn.SiLU()
    return nn.Sequential(*norm, nn.Conv2d(channels, channels, 3, padding=1))


def doubled(x: Tensor, body: nn.Module) -> Tensor:
    return body(F.interpolate(x, scale_factor=2.0))


case("block_excite_240_28", lambda: Of(excite, squeeze(240, 10)), (1, 240, 28, 28))
case(
    "block_pyramid_256_20",
    lambda: Of(pyramid, nn.Conv2d(256, 128, 1), nn.Conv2d(512, 256, 1)),
    (1, 256, 20, 20),
)
case("block_inverted_64_14", lambda: Of(residual, inverted(64, 384)), (1, 64, 14, 14))
case("block_inverted_24_56", lambda: Of(residual, inverted(24, 144)), (1, 24, 56, 56))
case("block_perceptron_197_384", lambda: Of(residual, perceptron(384)), (1, 197, 384))
case("block_norm_conv_64_32", lambda: normed(64), (1, 64, 32, 32))
case("block_norm_conv_320_16", lambda: normed(320), (2, 320, 16, 16))
case(
    "block_upsample_conv_128_16",
    lambda: Of(doubled, nn.Conv2d(128, 128, 3, padding=1)),
    (1, 128, 16, 16),
)
