"""Networks over pictures: encoders, detectors, segmentation, diffusion, pictures beside words."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from gallery.entry import network
from gallery.language import HEADS, MORE, SMALL, WORDS, Only
from zoo.case import Ids
from zoo.networks import PICTURE, Detector, bottleneck, conv, inverted, mobilenet_v3

# ---- encoders


@network(PICTURE)
def clip_vision() -> nn.Module:
    config = hf.CLIPVisionConfig(num_hidden_layers=4)
    return Only(hf.CLIPVisionModel(config), lambda y: (y.last_hidden_state, y.pooler_output))


@network(PICTURE)
def siglip() -> nn.Module:
    config = hf.SiglipVisionConfig(num_hidden_layers=4)
    return Only(hf.SiglipVisionModel(config), lambda y: (y.last_hidden_state, y.pooler_output))


@network(PICTURE)
def dinov2() -> nn.Module:
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
    return hf.Dinov2Model(hf.Dinov2Config(**sizes))


@network((1, 3, 512, 512))
def sam_encoder() -> nn.Module:
    """Attention in windows and over all of the picture, with decomposed relative positions."""
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    sizes = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6}
    where = {"image_size": 512, "global_attn_indexes": [1, 3], "window_size": 14}
    config = hf.SamVisionConfig(**sizes, **where, initializer_range=0.02)  # its own is 1e-10
    encoder = SamVisionEncoder(config)
    with torch.no_grad():  # positions that are zero, as new ones are, would do nothing
        for name, p in encoder.named_parameters():
            if "pos" in name:
                p.normal_(0, 0.1)
    return encoder


# ---- every pixel


@network((1, 3, 256, 256))
def segformer() -> nn.Module:
    return hf.SegformerForSemanticSegmentation(hf.SegformerConfig())


class Atrous(nn.Module):
    """Dilated convolutions side by side, and the mean of the whole picture, as in DeepLab."""

    def __init__(self, channels: int, out: int = 256, classes: int = 21) -> None:
        super().__init__()
        self.flat = conv(channels, out, 1)
        self.wide = nn.ModuleList([self.dilated(channels, out, d) for d in (6, 12, 18)])
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, out, 1), nn.ReLU())
        self.join = nn.Sequential(conv(5 * out, out, 1), conv(out, out, 3))
        self.head = nn.Conv2d(out, classes, 1)

    @staticmethod
    def dilated(into: int, out: int, by: int) -> nn.Module:
        plain = nn.Conv2d(into, out, 3, padding=by, dilation=by, bias=False)
        return nn.Sequential(plain, nn.BatchNorm2d(out), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        whole = F.interpolate(self.mean(x), x.shape[-2:], mode="bilinear")
        parts = [self.flat(x), *(f(x) for f in self.wide), whole]
        return self.head(self.join(torch.cat(parts, 1)))


class DeepLab(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        into = 64
        for stage, depth in enumerate((2, 2, 2)):
            for i in range(depth):
                layers.append(bottleneck(into, 64 << stage, 2 if stage and not i else 1))
                into = 256 << stage
        self.body, self.head = nn.Sequential(*layers), Atrous(into)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.head(self.body(x)), x.shape[-2:], mode="bilinear")


@network((1, 3, 256, 256))
def deeplab_v3() -> nn.Module:
    return DeepLab()


# ---- detectors


class Detr(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        backbone = hf.ResNetConfig(out_features=["stage4"], depths=[2, 2, 2, 2])
        sizes = {"encoder_layers": 3, "decoder_layers": 3, "num_queries": 50}
        how = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
        self.detr = hf.DetrForObjectDetection(
            hf.DetrConfig(backbone_config=backbone, **sizes, **how)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(x.shape[0], *x.shape[-2:], dtype=torch.long)
        found = self.detr(pixel_values=x, pixel_mask=mask)
        return found.logits, found.pred_boxes


@network((1, 3, 320, 320))
def detr() -> nn.Module:
    return Detr()


class Single(nn.Module):
    """Boxes and classes of many sizes from six maps, as SSDlite has them."""

    def __init__(self, classes: int = 91, anchors: int = 6) -> None:
        super().__init__()
        layers = list(mobilenet_v3())[:17]
        self.low, self.high = nn.Sequential(*layers[:13]), nn.Sequential(*layers[13:])
        widths, into = [112, 960], 960
        extra = []
        for out in (512, 256, 256, 128):
            extra.append(inverted(into, out // 2, out, 3, 2, nn.ReLU6))
            widths.append(out)
            into = out
        self.extra = nn.ModuleList(extra)
        self.boxes = nn.ModuleList([self.head(c, 4 * anchors) for c in widths])
        self.labels = nn.ModuleList([self.head(c, classes * anchors) for c in widths])
        self.classes = classes

    @staticmethod
    def head(into: int, out: int) -> nn.Module:
        deep = conv(into, into, 3, groups=into, act=nn.ReLU6)
        return nn.Sequential(deep, nn.Conv2d(into, out, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.low(x)]
        maps.append(self.high(maps[0]))
        for layer in self.extra:
            maps.append(layer(maps[-1]))

        def flat(heads: nn.ModuleList, size: int) -> Tensor:
            parts = [f(m).permute(0, 2, 3, 1) for f, m in zip(heads, maps, strict=True)]
            return torch.cat([p.reshape(1, -1, size) for p in parts], 1)

        return flat(self.boxes, 4), flat(self.labels, self.classes).softmax(-1)


@network((1, 3, 320, 320))
def ssdlite() -> nn.Module:
    return Single()


class Suppressed(nn.Module):
    """A detector with boxes in pixels, and only those that no better one overlaps: greedy
    suppression among the 64 best, which has a fixed size."""

    def __init__(self, most: int = 64, limit: float = 0.5) -> None:
        super().__init__()
        self.detector, self.most, self.limit = Detector(), most, limit
        with torch.no_grad():  # scores that are apart: which of two is better must not be rounding
            for c in (m for m in self.detector.modules() if isinstance(m, nn.Conv2d)):
                c.weight *= 2.5
        rows = []
        for stride in (8, 16, 32):
            at = (torch.arange(320 // stride) + 0.5) * stride
            y, x = torch.meshgrid(at, at, indexing="ij")
            rows.append(torch.stack([x, y, torch.full_like(x, stride)], -1).reshape(-1, 3))
        self.register_buffer("anchors", torch.cat(rows))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        raw = self.detector(x)[0].T  # anchors, 4 + classes
        center, stride = self.anchors[:, :2], self.anchors[:, 2:]
        corners = torch.cat([center - raw[:, :2] * stride, center + raw[:, 2:4] * stride], -1)
        best, label = raw[:, 4:].max(-1)
        scores, chosen = best.topk(self.most)
        boxes = corners[chosen]
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        overlap = shared / (area[:, None] + area[None] - shared) > self.limit
        earlier = torch.tril(overlap.float(), -1)  # by a better one
        keep = torch.ones_like(scores)
        for _ in range(12):  # as often as suppression follows from suppression
            keep = 1 - ((earlier * keep).sum(-1) > 0).float()
        return boxes, scores * keep, label[chosen]


@network((1, 3, 320, 320))
def detector_with_suppression() -> nn.Module:
    return Suppressed()


# ---- diffusion


def angles(t: Tensor, width: int) -> Tensor:
    """A time step as sines and cosines."""
    rate = torch.exp(torch.arange(width // 2) * (-9.21 / (width // 2))).to(t.dtype)
    a = t[:, None] * rate
    return torch.cat([a.cos(), a.sin()], -1)


class Cross(nn.Module):
    """A transformer over pixels that also reads a text."""

    def __init__(self, channels: int, text: int, heads: int) -> None:
        super().__init__()
        self.group, self.heads = nn.GroupNorm(32, channels), heads
        self.norms = nn.ModuleList([nn.LayerNorm(channels) for _ in range(3)])
        self.qkv, self.out = nn.Linear(channels, 3 * channels, False), nn.Linear(channels, channels)
        self.q, self.kv = nn.Linear(channels, channels, False), nn.Linear(text, 2 * channels, False)
        self.back = nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = self.group(x).flatten(2).transpose(1, 2)
        y = y + self.out(self.attend(*self.qkv(self.norms[0](y)).chunk(3, -1)))
        y = y + self.back(self.attend(self.q(self.norms[1](y)), *self.kv(text).chunk(2, -1)))
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class Block(nn.Module):
    """A residual block that knows the time."""

    def __init__(self, into: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, into), nn.SiLU(), nn.Conv2d(into, out, 3, 1, 1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, out))
        self.last = nn.Sequential(nn.GroupNorm(32, out), nn.SiLU(), nn.Conv2d(out, out, 3, 1, 1))
        self.skip = nn.Identity() if into == out else nn.Conv2d(into, out, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.last(self.first(x) + self.time(t)[:, :, None, None])
        return self.skip(x) + y


class Diffusion(nn.Module):
    """As the U-Net of Stable Diffusion, half as wide: four scales, two blocks on each."""

    WIDTHS = (160, 320, 640, 640)

    def __init__(self, text: int = 768, heads: int = 8) -> None:
        super().__init__()
        w, time = self.WIDTHS, 640
        self.time = nn.Sequential(nn.Linear(w[0], time), nn.SiLU(), nn.Linear(time, time))
        self.stem, self.head = nn.Conv2d(4, w[0], 3, 1, 1), nn.Conv2d(w[0], 4, 3, 1, 1)
        self.norm, kept, into = nn.GroupNorm(32, w[0]), [w[0]], w[0]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()

        def level(into: int, out: int, crossed: bool) -> nn.ModuleList:
            parts: list[nn.Module] = [Block(into, out, time)]
            return nn.ModuleList([*parts, *([Cross(out, text, heads)] if crossed else [])])

        for i, out in enumerate(w):
            for _ in range(2):
                self.down.append(level(into, out, i < 3))
                kept.append(out)
                into = out
            if i < 3:
                self.down.append(nn.Conv2d(out, out, 3, 2, 1))
                kept.append(out)
        self.middle = nn.ModuleList(
            [Block(into, into, time), Cross(into, text, heads), Block(into, into, time)]
        )
        for i, out in reversed(list(enumerate(w))):
            for _ in range(3):
                self.up.append(level(into + kept.pop(), out, i < 3))
                into = out
            if i:
                self.up.append(nn.Conv2d(out, out, 3, 1, 1))

    @staticmethod
    def through(parts: Any, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        for part in parts:
            x = part(x, t) if isinstance(part, Block) else part(x, text)
        return x

    def forward(self, x: Tensor, step: Tensor, text: Tensor) -> Tensor:
        t = self.time(angles(step, self.WIDTHS[0]))
        x = self.stem(x)
        kept = [x]
        for part in self.down:
            x = part(x) if isinstance(part, nn.Conv2d) else self.through(part, x, t, text)
            kept.append(x)
        x = self.through(self.middle, x, t, text)
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                x = part(F.interpolate(x, scale_factor=2.0))
            else:
                x = self.through(part, torch.cat([x, kept.pop()], 1), t, text)
        return self.head(F.silu(self.norm(x)))


@network((1, 4, 32, 32), (1,), (1, 77, 768))
def diffusion_unet() -> nn.Module:
    return Diffusion()


class Modulated(nn.Module):
    """A block of a diffusion transformer: scales and shifts come from the time and the class."""

    def __init__(self, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width, elementwise_affine=False), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(up, nn.GELU("tanh"), down)
        self.scales = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        s1, m1, g1, s2, m2, g2 = self.scales(c)[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm(x) * (1 + m1) + s1).chunk(3, -1)
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + g1 * self.out(y)
        return x + g2 * self.mlp(self.norm(x) * (1 + m2) + s2)


class Dit(nn.Module):
    def __init__(self, width: int = 384, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 256, width) * 0.02)
        self.classes, self.time = nn.Embedding(1001, width), nn.Linear(256, width)
        self.blocks = nn.ModuleList([Modulated(width) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2 * 2 * 8)

    def forward(self, x: Tensor, step: Tensor, label: Tensor) -> Tensor:
        c = F.silu(self.time(angles(step, 256))) + self.classes(label)
        y = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            y = block(y, c)
        y = self.head(self.norm(y)).reshape(1, 16, 16, 2, 2, 8)
        return y.permute(0, 5, 1, 3, 2, 4).reshape(1, 8, 32, 32)


@network((1, 4, 32, 32), (1,), Ids((1,), 1000))
def diffusion_transformer() -> nn.Module:
    return Dit()


# ---- pictures beside words


class Looking(nn.Module):
    """Patches of a picture as words in front of a text, into a language model."""

    def __init__(self) -> None:
        super().__init__()
        picture = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6}
        config = hf.SiglipVisionConfig(**picture, num_hidden_layers=2, vision_use_head=False)
        self.eyes = hf.SiglipVisionModel(config)
        self.project = nn.Sequential(nn.Linear(384, 512), nn.GELU(), nn.Linear(512, 512))
        self.text = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, **HEADS, **MORE))

    def forward(self, picture: Tensor, ids: Tensor) -> Tensor:
        seen = self.project(self.eyes(picture).last_hidden_state)
        words = self.text.get_input_embeddings()(ids)
        return self.text(inputs_embeds=torch.cat([seen, words], 1), use_cache=False).logits


@network(PICTURE, Ids((1, 32), WORDS))
def vision_language() -> nn.Module:
    return Looking()
