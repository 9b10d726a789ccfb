"""Attention of ``com.microsoft``: heads, masks, caches as values, rotary positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.join import concat, stack
from lumc.frontend.api.nn import LEAST, heads, merged
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import plus
from lumc.frontend.onnx.ops_contrib import DOMAIN
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.graph.dim import Extent

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

KEYS_AND_VALUES = 3  # outputs up to these
FILL = -10000.0  # what is added where a mask says no, unless an attribute says how much
WHOLE = "export the cache as plain tensors: past and present, concatenated"


def refuse(what: str, given: object, fix: str = WHOLE) -> None:
    """An attribute or input that has to be left out."""
    if given is not None and (isinstance(given, Tensor) or given):
        raise Unsupported(what, fix)


def scaled(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """q [b, n, s, d] times k [b, n, t, d], [b, n, s, t]; 0: by 1 / sqrt(d)."""
    width = q.shape[-1]
    if not isinstance(width, int):
        raise Unsupported("heads of a symbolic width", "bind the dim with --dim")
    return q @ k.transpose() * (scale or 1.0 / math.sqrt(width))


def padding(mask: Tensor, batch: Extent, length: Extent, fill: float) -> Tensor:
    """What a mask adds to scores [b, n, s, t]: [b, t] or [b, s, t] of ones where there is
    something; or the end of each text [b], [2 b] with the starts behind them."""
    model = mask.model
    if mask.ndim in (2, 3):
        return where(mask.unsqueeze(*range(1, 5 - mask.ndim)) > 0, 0.0, fill)
    if mask.ndim > 3:
        raise Unsupported(f"a mask of {mask.ndim} axes", "give one of 3: of texts, rows, keys")
    if mask.shape[0] not in (batch, plus(batch, batch)):
        raise Unsupported(f"a mask of {mask.shape[0]} numbers", "give a mask of zeros and ones")
    place = model.arange(length, dtype=mask.dtype)
    ends = mask.slice(0, 0, batch)
    seen = place < ends.reshape(-1, 1, 1, 1)
    if mask.shape[0] != batch:
        starts = mask.slice(0, batch, mask.shape[0])
        seen = seen & (place >= starts.reshape(-1, 1, 1, 1))
    return where(seen, 0.0, fill)


def rows_before(past: Extent, s: Extent, t: Extent, like: Tensor) -> Tensor:
    """[s, t]: of rows behind ``past`` ones each sees those up to itself."""
    rows, columns = like.model.arange(past, plus(past, s)), like.model.arange(t)
    return columns[None, :] <= rows[:, None]


def attended(scores: Tensor, v: Tensor, seen: Tensor | None, sink: Tensor | None = None) -> Tensor:
    """[b, n, s, t] and v [b, n, t, d] -> [b, s, n * d]; ``sink`` is a score without a value."""
    if seen is not None:
        scores = where(seen, scores, LEAST)
    if sink is None:
        return merged(scores.softmax(-1) @ v)
    top = scores.max(-1, True).maximum(sink)
    shares = (scores - top).exp()
    total = shares.sum(-1, True) + (sink - top).exp()
    return merged((shares / total) @ v)


# ---- rotary positions


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [.., d] whose first 2 n elements turn: halves, or pairs side by side; cos, sin [.., n]."""
    n, width = cos.shape[-1], x.shape[-1]
    if not isinstance(n, int) or not isinstance(width, int):
        raise Unsupported("heads of a symbolic width", "bind the dim with --dim")
    moving = x[..., : 2 * n]
    if interleaved:
        pairs = moving.unflatten(-1, (n, 2))
        low, high = pairs[..., 0], pairs[..., 1]
        new = stack([low * cos - high * sin, high * cos + low * sin], -1).flatten(-2)
    else:
        low, high = moving[..., :n], moving[..., n:]
        new = concat([low * cos - high * sin, high * cos + low * sin], -1)
    return new if 2 * n == width else concat([new, x[..., 2 * n :]], -1)


@operator("RotaryEmbedding", domain=DOMAIN)
@in_f32
def rotary_embedding(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Of [b, s, n * d] or [b, n, s, d]; positions [b, s], or the first one [1]."""
    refuse("texts packed into one", is_packed_batching, "pad them")
    refuse(f"scale = {scale}", scale != 1.0, "scale the tables")
    pairs = cos_cache.shape[-1]
    if not isinstance(pairs, int):
        raise Unsupported("tables of a symbolic width", "bind the dim with --dim")
    x = input
    if input.ndim == 3 and rotary_embedding_dim:
        x = heads(input, num_heads)
    elif input.ndim == 3:
        x = input.unflatten(-1, (-1, 2 * pairs)).transpose(1, 2)
    places = position_ids
    if position_ids.ndim < 2:
        count = x.model.arange(x.shape[2], dtype=position_ids.dtype)
        places = (position_ids.reshape(()) + count).unsqueeze(0)
    cos, sin = (table.embedding(places).unsqueeze(1) for table in (cos_cache, sin_cache))
    out = turned(x, cos, sin, bool(interleaved))
    return out if input.ndim == 4 else merged(out)


# ---- attention with keys and values of its own


@operator("Attention", domain=DOMAIN)
@in_f32
def attention(
    call: Call,
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILL,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    """input [b, s, i], weights [i, q + k + v] -> [b, s, v], and [2, b, n, past + s, d]."""
    refuse("rotary positions inside", do_rotary, "export them as RotaryEmbedding")
    refuse("past and present in one buffer", past_present_share_buffer)
    refuse("past_sequence_length", past_sequence_length)
    mixed = input @ weights
    return self_attention(
        mixed if bias is None else mixed + bias,
        mask_index,
        past,
        attention_bias,
        num_heads=num_heads,
        sizes=qkv_hidden_sizes,
        fill=mask_filter_value,
        scale=scale,
        causal=bool(unidirectional),
    )


def self_attention(
    mixed: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    bias: Tensor | None = None,
    *,
    num_heads: int,
    sizes: Sequence[int] = (),
    fill: float,
    scale: float,
    causal: bool,
) -> tuple[Tensor, ...]:
    """Queries, keys and values side by side [b, s, q + k + v]; ``past`` [2, b, n, p, d]."""
    parts = mixed.split(list(sizes), -1) if sizes else mixed.chunk(3, -1)
    q, k, v = (heads(part, num_heads) for part in parts)
    first: Extent = 0
    if past is not None:
        first = past.shape[3]
        k, v = concat([past[0], k], 2), concat([past[1], v], 2)
    out = _masked(q, k, v, mask, bias, first if causal else None, fill, scale)
    return (out, stack([k, v], 0)) if k.shape == v.shape else (out,)


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    past: Extent | None,
    fill: float,
    scale: float,
) -> Tensor:
    """[b, s, n * d]; with a ``past`` a row sees those up to itself."""
    (batch, _, s, _), t = q.shape, k.shape[2]
    scores = scaled(q, k, scale)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores + padding(mask, batch, t, fill)
    one = past is None or s == 1  # the last one sees all
    return attended(scores, v, None if one or past is None else rows_before(past, s, t, q))


@operator("MultiHeadAttention", domain=DOMAIN)
@in_f32
def multi_head_attention(
    call: Call,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    mask_filter_value: float = FILL,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    """query [b, s, n * d], key and value [b, t, n * d] or [b, n, t, d]; packed [b, s, n, 3, d] or
    key [b, t, n, 2, d] -> [b, s, n * d], and keys and values [b, n, past + t, d]."""
    refuse("past_sequence_length", past_sequence_length)
    refuse("beams of a cache", cache_indirection)
    q, k, v = _separate(query, key, value, bias, num_heads)
    if unidirectional and k.shape[2] != q.shape[2]:
        fix = "say with attention_bias what a row sees"
        raise Unsupported("unidirectional, with keys of another length than queries", fix)
    first: Extent = 0
    if past_key is not None and past_value is not None:
        first = past_key.shape[2]
        k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    if call.wanted > KEYS_AND_VALUES:
        raise Unsupported("scores as an output", "leave the output 'qk' out")
    past = first if unidirectional else None
    fill = mask_filter_value
    return _masked(q, k, v, key_padding_mask, attention_bias, past, fill, scale), k, v


def _separate(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, n: int
) -> list[Tensor]:
    """Queries, keys and values [b, n, s, d] with their parts of the bias."""
    if query.ndim == 5:
        parts = [query[:, :, :, i].flatten(2) for i in range(3)]
    elif key is None:
        parts = query.chunk(3, -1)
    elif key.ndim == 5:
        parts = [query, *(key[:, :, :, i].flatten(2) for i in range(2))]
    elif value is None:
        raise ValueError("a key without a value")
    else:
        parts = [query, key, value]
    if bias is not None:
        own = bias.split([p.shape[-1] for p in parts])
        parts = [p + b for p, b in zip(parts, own, strict=True)]
    return [p if p.ndim == 4 else heads(p, n) for p in parts]
