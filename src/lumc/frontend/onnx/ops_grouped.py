"""Attention of ``com.microsoft`` whose heads of queries share keys and values, kept in a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.nn import heads, repeat_heads
from lumc.frontend.api.symbols import Undecided
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import minus
from lumc.frontend.onnx.ops_attention import attended, refuse, scaled, turned
from lumc.frontend.onnx.ops_contrib import DOMAIN
from lumc.frontend.onnx.ops_shape import sizes
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.graph.dim import Extent
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

BIND = "bind the dim with --dim"


@operator("GroupQueryAttention", domain=DOMAIN, known=["total_sequence_length"])
@in_f32
def group_query_attention(
    call: Call,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Any,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    query_seqlens: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float = 0.0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    q_norm_epsilon: float = 0.0,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Tensor, ...]:
    """query [b, s, n * d], key and value [b, s, kv * d], or all in query; past ones [b, kv, p, d];
    a text has ``seqlens_k + 1`` rows with its new ones, which lie behind its old ones, or are all
    where ``total_sequence_length`` is s -> [b, s, n * d], and keys and values [b, kv, t, d]; t is
    the greater one of p and ``total_sequence_length``. Rows beyond a text mean nothing."""
    quantised = k_quant_type != "NONE" or v_quant_type != "NONE" or kv_cache_bit_width
    refuse("a cache of few bits", k_scale if k_scale is not None else quantised)
    refuse("a cache that is a window", sliding_window_cache)
    refuse("parts of texts that are filled up", query_seqlens, "give them without rows behind")
    refuse("scores as an output", qk_output, "leave the output 'output_qk' out")
    q, k, v = _shared(query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q = q.rms_norm(q_norm_weight, q_norm_epsilon or qk_norm_epsilon)
        k = k.rms_norm(k_norm_weight, k_norm_epsilon or qk_norm_epsilon)
    cache = Cache.of(call, q.shape[2], past_key, seqlens_k, sizes(total_sequence_length)[0])
    if do_rotary and cos_cache is not None and sin_cache is not None:
        places = cache.turns(position_ids)
        cos, sin = (table.embedding(places).unsqueeze(1) for table in (cos_cache, sin_cache))
        q, k = (turned(x, cos, sin, bool(rotary_interleaved)) for x in (q, k))
    keys, values = cache.grown(past_key, k), cache.grown(past_value, v)
    groups = num_heads // kv_num_heads
    scores = scaled(q, repeat_heads(keys, groups), scale)
    if softcap:
        scores = (scores * (1.0 / softcap)).tanh() * softcap
    if attention_bias is not None:
        missing = minus(cache.room, attention_bias.shape[-1])
        scores = scores + attention_bias.pad([(0, 0)] * 3 + [(0, missing)])
    sink = None if head_sink is None else head_sink.reshape(1, -1, 1, 1)
    if smooth_softmax and sink is None:
        sink = q.model.full((1, 1, 1, 1), 0.0)
    seen = cache.seen(local_window_size) if causal else cache.filled()
    return attended(scores, repeat_heads(values, groups), seen, sink), keys, values


def _shared(
    query: Tensor, key: Tensor | None, value: Tensor | None, n: int, kv: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [b, n, s, d], keys and values [b, kv, s, d]."""
    if key is not None and value is not None:
        return heads(query, n), heads(key, kv), heads(value, kv)
    q, k, v = heads(query, n + 2 * kv).split([n, kv, kv], 1)
    return q, k, v


@dataclass(frozen=True)
class Cache:
    """Where rows of texts lie: ``first`` i64[b, 1] of each are old, then come ``new`` ones up to
    the ``end`` of the text, in ``room`` rows."""

    new: Extent
    room: Extent
    first: Tensor
    end: Tensor
    prompt: bool | Tensor  # whether there are no old ones: bool[]

    @classmethod
    def of(cls, call: Call, new: Extent, past: Tensor | None, last: Tensor, total: Extent) -> Cache:
        rules, model = call.lowering.folder.arithmetic, call.model
        old: Extent = 0 if past is None else past.shape[2]
        try:
            room = rules.max(old, total)
        except Undecided as e:
            raise Unsupported(f"a cache of {old} or {total} rows: {e}", BIND) from None
        prompt: bool | Tensor
        try:
            prompt = rules.equal(new, total)
        except Undecided:
            prompt = model.size(new, DType.I64) == model.size(total, DType.I64)
        end = last.to(DType.I64).reshape(-1, 1) + 1
        before = end - model.size(new, DType.I64)
        if prompt is True:
            before = model.full((1, 1), 0, DType.I64)
        elif prompt is not False:
            before = where(prompt, 0, before)
        return cls(new, room, before, end, prompt)

    def places(self) -> Tensor:
        """i64[b, s]: of the new rows."""
        count = self.first.model.arange(self.new).unsqueeze(0)
        return count if self.prompt is True else self.first + count

    def turns(self, given: Tensor | None) -> Tensor:
        """The positions that new rows turn by; of a prompt only the first one is given."""
        if given is None:
            return self.places()
        counted = given[0, 0] + self.first.model.arange(self.new).unsqueeze(0)
        if isinstance(self.prompt, bool):
            return counted if self.prompt else given
        return where(self.prompt, counted, given)

    def grown(self, past: Tensor | None, new: Tensor) -> Tensor:
        """[b, kv, room, d]: the old rows with the new ones behind."""
        if self.prompt is True and self.room == self.new:
            return new
        model = self.first.model
        offset = model.arange(self.room).unsqueeze(0) - self.first  # [b, room]
        fresh = (offset >= 0) & (offset < model.size(self.new, DType.I64))
        inside = where(fresh, offset, 0)[:, None, :, None]
        shape = (*new.shape[:2], self.room, new.shape[3])
        rows = new.gather(2, inside.expand(*shape))
        old = model.full((1, 1, 1, 1), 0.0)
        if past is not None:
            old = past.pad([(0, 0), (0, 0), (0, minus(self.room, past.shape[2])), (0, 0)])
        return where(fresh[:, None, :, None], rows, old)

    def seen(self, window: int) -> Tensor:
        """bool[b, 1, s, room]: a row sees those up to itself, the last ``window`` of them."""
        rows = self.places()[:, None, :, None]
        columns = self.first.model.arange(self.room)
        near = columns <= rows
        return near if window <= 0 else near & (columns + window > rows)

    def filled(self) -> Tensor:
        """bool[b, 1, 1, room]: all rows of a text."""
        return self.first.model.arange(self.room) < self.end[:, None, :, None]
