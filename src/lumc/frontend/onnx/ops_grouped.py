"""Attention of ``com.microsoft`` whose heads of queries share keys and values, kept in a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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


@dataclass(frozen=True)
class Options:
    """The attributes that are known."""

    num_heads: int
    kv_num_heads: int
    causal: int = 1
    do_rotary: int = 0
    k_norm_epsilon: float = 0.0
    local_window_size: int = -1
    q_norm_epsilon: float = 0.0
    qk_norm_epsilon: float = 1e-6
    rotary_interleaved: int = 0
    scale: float = 0.0
    smooth_softmax: int = 0
    softcap: float = 0.0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Options:
        """Those that are not known have to mean nothing."""
        known = {f.name for f in fields(cls)}
        for name, value in said.items():
            if name not in known:
                refuse(f"{name} = {value}", value not in (0, "NONE"))
        return cls(**{name: value for name, value in said.items() if name in known})


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
    **attributes: Any,
) -> tuple[Tensor, ...]:
    """query [b, s, n * d], key and value [b, s, kv * d], or all in query; past ones [b, kv, p, d];
    a text has ``seqlens_k + 1`` rows with its new ones, which lie behind its old ones, or are all
    where ``total_sequence_length`` is s -> [b, s, n * d], and keys and values [b, kv, t, d]; t is
    the greater one of p and ``total_sequence_length``. Rows beyond a text mean nothing."""
    said = Options.of(attributes)
    refuse("a cache of few bits", k_scale if k_scale is not None else v_scale)
    refuse("parts of texts that are filled up", query_seqlens, "give them without rows behind")
    q, k, v = _shared(query, key, value, said.num_heads, said.kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q = q.rms_norm(q_norm_weight, said.q_norm_epsilon or said.qk_norm_epsilon)
        k = k.rms_norm(k_norm_weight, said.k_norm_epsilon or said.qk_norm_epsilon)
    cache = Cache.of(call, q.shape[2], past_key, seqlens_k, sizes(total_sequence_length)[0])
    if said.do_rotary and cos_cache is not None and sin_cache is not None:
        places = cache.turns(position_ids)
        cos, sin = (table.embedding(places).unsqueeze(1) for table in (cos_cache, sin_cache))
        q, k = (turned(x, cos, sin, bool(said.rotary_interleaved)) for x in (q, k))
    keys, values = cache.grown(past_key, k), cache.grown(past_value, v)
    sink = None if head_sink is None else head_sink.reshape(1, -1, 1, 1)
    return _attention(q, keys, values, cache, said, attention_bias, sink), keys, values


def _attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cache: Cache,
    said: Options,
    bias: Tensor | None,
    sink: Tensor | None,
) -> Tensor:
    """[b, s, n * d] of queries [b, n, s, d] and all that a cache has."""
    groups = said.num_heads // said.kv_num_heads
    scores = scaled(q, repeat_heads(keys, groups), said.scale)
    if said.softcap:
        scores = (scores * (1.0 / said.softcap)).tanh() * said.softcap
    if bias is not None:
        missing = minus(cache.room, bias.shape[-1])
        scores = scores + bias.pad([(0, 0)] * 3 + [(0, missing)])
    if said.smooth_softmax and sink is None:
        sink = q.model.full((1, 1, 1, 1), 0.0)
    seen = cache.seen(said.local_window_size) if said.causal else cache.filled()
    return attended(scores, repeat_heads(values, groups), seen, sink)


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
