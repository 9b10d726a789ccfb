"""Whole networks with random weights: from transformers, and others written in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from zoo.case import Case, Ids

NETWORKS: dict[str, Case] = {}
PICTURE = (1, 3, 224, 224)


def network(*inputs: tuple[int, ...] | Ids) -> Callable[[Callable[[], nn.Module]], Any]:
    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        NETWORKS[make.__name__] = Case(make.__name__, make, inputs)
        return make

    return register


def conv(
    into: int,
    out: int,
    size: int,
    stride: int = 1,
    groups: int = 1,
    act: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """A convolution, its batch normalisation and an activation."""
    plain = nn.Conv2d(into, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(plain, nn.BatchNorm2d(out), *([act()] if act else []))


def classifier(channels: int, classes: int = 1000) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)


class Sum(nn.Module):
    """``act(body(x) + shortcut(x))``"""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()
        self.act = act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.body(x) + self.shortcut(x))


# ---- residual networks


def basic(into: int, width: int, stride: int) -> Sum:
    body = nn.Sequential(conv(into, width, 3, stride), conv(width, width, 3, act=None))
    same = stride == 1 and into == width
    return Sum(body, None if same else conv(into, width, 1, stride, act=None), nn.ReLU())


def bottleneck(into: int, width: int, stride: int) -> Sum:
    out = 4 * width
    last = conv(width, out, 1, act=None)
    body = nn.Sequential(conv(into, width, 1), conv(width, width, 3, stride), last)
    same = stride == 1 and into == out
    return Sum(body, None if same else conv(into, out, 1, stride, act=None), nn.ReLU())


def resnet(block: Callable[[int, int, int], Sum], depths: list[int], times: int) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    into = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            layers.append(block(into, 64 << stage, 2 if stage and not i else 1))
            into = times * (64 << stage)
    return nn.Sequential(*layers, *classifier(into))


@network(PICTURE)
def resnet18() -> nn.Module:
    return resnet(basic, [2, 2, 2, 2], 1)


@network(PICTURE)
def resnet50() -> nn.Module:
    return resnet(bottleneck, [3, 4, 6, 3], 4)


# ---- inverted residuals


class Excite(nn.Module):
    """Channels are scaled by what their means say."""

    def __init__(
        self, channels: int, inner: int, act: Callable[[], nn.Module], gate: nn.Module
    ) -> None:
        super().__init__()
        up, down = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), up, act(), down, gate)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


def inverted(
    into: int,
    inner: int,
    out: int,
    size: int,
    stride: int,
    act: Callable[[], nn.Module],
    excite: nn.Module | None = None,
) -> nn.Module:
    wide = [conv(into, inner, 1, act=act)] if inner != into else []
    deep = [conv(inner, inner, size, stride, inner, act), *([excite] if excite else [])]
    body = nn.Sequential(*wide, *deep, conv(inner, out, 1, act=None))
    return Sum(body) if stride == 1 and into == out else body


@network(PICTURE)
def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2, act=nn.ReLU6)]
    into = 32
    for times, out, depth, stride in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:
        for i in range(depth):
            step = 1 if i else stride
            layers.append(inverted(into, times * into, out, 3, step, nn.ReLU6))
            into = out
    return nn.Sequential(*layers, conv(into, 1280, 1, act=nn.ReLU6), *classifier(1280))


@network(PICTURE)
def mobilenet_v3() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
    into = 16
    for size, inner, out, excited, act, stride in [
        (3, 16, 16, False, nn.ReLU, 1),
        (3, 64, 24, False, nn.ReLU, 2),
        (3, 72, 24, False, nn.ReLU, 1),
        (5, 72, 40, True, nn.ReLU, 2),
        (5, 120, 40, True, nn.ReLU, 1),
        (5, 120, 40, True, nn.ReLU, 1),
        (3, 240, 80, False, nn.Hardswish, 2),
        (3, 200, 80, False, nn.Hardswish, 1),
        (3, 184, 80, False, nn.Hardswish, 1),
        (3, 184, 80, False, nn.Hardswish, 1),
        (3, 480, 112, True, nn.Hardswish, 1),
        (3, 672, 112, True, nn.Hardswish, 1),
        (5, 672, 160, True, nn.Hardswish, 2),
        (5, 960, 160, True, nn.Hardswish, 1),
        (5, 960, 160, True, nn.Hardswish, 1),
    ]:
        scale = Excite(inner, inner // 4, nn.ReLU, nn.Hardsigmoid()) if excited else None
        layers.append(inverted(into, inner, out, size, stride, act, scale))
        into = out
    head = nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, conv(into, 960, 1, act=nn.Hardswish), *pooled, *head)


@network(PICTURE)
def efficientnet_b0() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2, act=nn.SiLU)]
    into = 32
    for times, out, depth, stride, size in [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ]:
        for i in range(depth):
            inner = times * into
            scale = Excite(inner, max(1, into // 4), nn.SiLU, nn.Sigmoid())
            step = 1 if i else stride
            layers.append(inverted(into, inner, out, size, step, nn.SiLU, scale))
            into = out
    return nn.Sequential(*layers, conv(into, 1280, 1, act=nn.SiLU), *classifier(1280))


@network(PICTURE)
def convnext_tiny() -> nn.Module:
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000))


# ---- transformers over pictures


@network(PICTURE)
def swin_tiny() -> nn.Module:
    return hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000))


SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}


@network(PICTURE)
def vit_small() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**SMALL, num_labels=1000))


@network(PICTURE)
def deit_tiny() -> nn.Module:
    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    return hf.DeiTForImageClassification(hf.DeiTConfig(**sizes, num_labels=1000))


# ---- pictures into pictures


class SpatialAttention(nn.Module):
    """One head over all places of a map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, 1, c, h * w).transpose(3, 4)
        y = F.scaled_dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2])
        return x + self.out(y.transpose(2, 3).reshape(b, c, h, w))


def normed(into: int, out: int) -> nn.Sequential:
    act = nn.GroupNorm(32, into), nn.SiLU()
    return nn.Sequential(*act, nn.Conv2d(into, out, 3, padding=1))


def double(into: int, out: int) -> Sum:
    body = nn.Sequential(normed(into, out), normed(out, out))
    return Sum(body, None if into == out else nn.Conv2d(into, out, 1))


class UNet(nn.Module):
    """Three scales, attention at the lowest, skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, widths = nn.Conv2d(4, 64, 3, padding=1), [64, 128, 256]
        self.down = nn.ModuleList([double(64, 64), double(64, 128), double(128, 256)])
        self.shrink = nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1) for c in widths[:2]])
        self.middle = nn.Sequential(double(256, 256), SpatialAttention(256), double(256, 256))
        self.up = nn.ModuleList([double(384, 128), double(192, 64)])
        self.head = normed(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.stem(x), []
        for down, shrink in zip(self.down, [*self.shrink, None], strict=True):
            x = down(x)
            if shrink is not None:
                kept.append(x)
                x = shrink(x)
        x = self.middle(x)
        for up in self.up:
            x = up(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.head(x)


@network((1, 4, 64, 64))
def unet() -> nn.Module:
    return UNet()


class Upsample(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0)


@network((1, 4, 32, 32))
def vae_decoder() -> nn.Module:
    """As in Stable Diffusion, a quarter of its width."""
    layers: list[nn.Module] = [nn.Conv2d(4, 128, 3, padding=1)]
    layers += [double(128, 128), SpatialAttention(128), double(128, 128)]
    into = 128
    for i, out in enumerate([128, 128, 64, 32]):
        layers += [double(into, out), double(out, out)]
        layers += [Upsample(), nn.Conv2d(out, out, 3, padding=1)] if i < 3 else []
        into = out
    return nn.Sequential(*layers, normed(into, 3))


# ---- a detector


class Split(nn.Module):
    """Half of the channels through small residual blocks, all that they gave side by side."""

    def __init__(self, into: int, out: int, depth: int) -> None:
        super().__init__()
        half = out // 2
        self.first, self.last = unit(into, out, 1), unit((2 + depth) * half, out, 1)
        body = [nn.Sequential(unit(half, half, 3), unit(half, half, 3)) for _ in range(depth)]
        self.blocks = nn.ModuleList([Sum(b) for b in body])

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """Max pooling three times in a row, and all of it side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = unit(channels, channels // 2, 1), unit(2 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = [self.first(x)]
        for _ in range(3):
            y.append(F.max_pool2d(y[-1], 5, 1, 2))
        return self.last(torch.cat(y, 1))


def unit(into: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    return conv(into, out, size, stride, act=nn.SiLU)


class Detector(nn.Module):
    """A small one-stage detector: boxes as means over 16 bins, and classes, on three scales."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.low = nn.Sequential(
            *(unit(3, 16, 3, 2), unit(16, 32, 3, 2), Split(32, 32, 1)),
            *(unit(32, 64, 3, 2), Split(64, 64, 2)),
        )
        self.mid = nn.Sequential(unit(64, 128, 3, 2), Split(128, 128, 2))
        self.high = nn.Sequential(unit(128, 256, 3, 2), Split(256, 256, 1), Pyramid(256))
        self.up = nn.ModuleList([Split(384, 128, 1), Split(192, 64, 1)])
        self.down = nn.ModuleList([unit(64, 64, 3, 2), unit(128, 128, 3, 2)])
        self.join = nn.ModuleList([Split(192, 128, 1), Split(384, 256, 1)])
        self.boxes = nn.ModuleList([self.head(c, 64) for c in (64, 128, 256)])
        self.classes = nn.ModuleList([self.head(c, classes) for c in (64, 128, 256)])
        self.register_buffer("bins", torch.arange(16, dtype=torch.float32)[:, None])

    @staticmethod
    def head(channels: int, out: int) -> nn.Module:
        return nn.Sequential(unit(channels, 64, 3), unit(64, 64, 3), nn.Conv2d(64, out, 1))

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(x)
        mid = self.mid(low)
        high = self.high(mid)
        mid = self.up[0](torch.cat([F.interpolate(high, scale_factor=2.0), mid], 1))
        low = self.up[1](torch.cat([F.interpolate(mid, scale_factor=2.0), low], 1))
        mid = self.join[0](torch.cat([self.down[0](low), mid], 1))
        high = self.join[1](torch.cat([self.down[1](mid), high], 1))
        maps = [low, mid, high]
        boxes = torch.cat([f(m).flatten(2) for f, m in zip(self.boxes, maps, strict=True)], 2)
        scores = torch.cat([f(m).flatten(2) for f, m in zip(self.classes, maps, strict=True)], 2)
        bins = boxes.unflatten(1, (4, 16)).softmax(2)
        return torch.cat([(bins * self.bins).sum(2), scores.sigmoid()], 1)


@network((1, 3, 320, 320))
def detector() -> nn.Module:
    return Detector()


# ---- text and speech


@network(Ids((1, 128), 30522))
def bert_base() -> nn.Module:
    return hf.BertModel(hf.BertConfig(), add_pooling_layer=False)


@network(Ids((1, 64), 50257))
def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False))


@network(Ids((1, 64), 32000))
def llama_small() -> nn.Module:
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **heads, use_cache=False))


class WhisperEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6}
        self.encoder = hf.WhisperModel(hf.WhisperConfig(**sizes, encoder_ffn_dim=1536)).encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x).last_hidden_state


@network((1, 80, 3000))
def whisper_tiny_encoder() -> nn.Module:
    return WhisperEncoder()


@network((1, 16000))
def wav2vec2_features() -> nn.Module:
    return hf.Wav2Vec2Model(hf.Wav2Vec2Config(num_hidden_layers=1)).feature_extractor


class Tagger(nn.Module):
    """Words into labels: two layers of LSTM in both directions."""

    def __init__(self, words: int = 10000, labels: int = 17) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 100)
        self.lstm = nn.LSTM(100, 128, 2, bidirectional=True, batch_first=True)
        self.labels = nn.Linear(256, labels)

    def forward(self, ids: Tensor) -> Tensor:
        return self.labels(self.lstm(self.words(ids))[0]).log_softmax(-1)


@network(Ids((1, 32), 10000))
def lstm_tagger() -> nn.Module:
    return Tagger()
