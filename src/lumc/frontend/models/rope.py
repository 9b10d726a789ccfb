"""Rotary positions: how fast each pair of a head turns, in the kinds that config.json names.

The formulas are those of transformers (modeling_rope_utils); ``rope_parameters`` is what its
version 5 writes, ``rope_theta`` and ``rope_scaling`` what earlier ones did.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lumc.frontend.models.config import Config

Array = np.ndarray[Any, Any]
KINDS = ("default", "dynamic", "linear", "llama3", "yarn")


def frequencies(config: Config, head: int, partial: bool = False) -> tuple[Array, float]:
    """Radians per position f64[n / 2] of the first n of ``head`` elements, and the factor of their
    cos and sin; n is less than ``head`` only where a family is ``partial``. E0324."""
    rope = _rope(config)
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind not in KINDS:
        raise config.error(f"rope_type = {kind!r} is not supported; supported: {', '.join(KINDS)}")
    turned = int(head * rope.number("partial_rotary_factor", 1.0)) if partial else head
    if not partial:
        rope.refuse("partial_rotary_factor", 1)
    if turned % 2 or not 0 < turned <= head:
        raise config.error(f"{turned} of {head} elements of a head turn; expected an even number")
    base = rope.number("rope_theta", 1e4)
    plain = base ** (-np.arange(0, turned, 2) / turned)
    if config.slowed:
        return _slowed(config, kind, plain), 1.0
    if kind == "linear":
        return plain / rope.number("factor"), 1.0
    if kind == "llama3":
        return _llama3(rope, plain), 1.0
    if kind == "yarn":
        return _yarn(rope, plain, base)
    return plain, 1.0  # a dynamic one changes beyond max_position_embeddings, where no input is


def _slowed(config: Config, kind: str, plain: Array) -> Array:
    """The turns of a file that has a divisor for each pair."""
    if kind != "default" or len(config.slowed) != len(plain) or min(config.slowed) <= 0:
        what = f"{len(config.slowed)} divisors of rotary turns, for {len(plain)} pairs"
        raise config.error(f"{what} and rope_type = {kind!r}; expected positive ones, one for each")
    return plain / np.asarray(config.slowed)


def _rope(config: Config) -> Config:
    """The fields that say how positions turn, wherever they stand."""
    rope = {k: config.values.get(k) for k in ("rope_theta", "partial_rotary_factor")}
    rope["original_max_position_embeddings"] = config.values.get("max_position_embeddings")
    for name in ("rope_scaling", "rope_parameters"):
        part = config.values.get(name) or {}
        if not isinstance(part, dict) or any(isinstance(v, dict) for v in part.values()):
            raise config.error(f"{name} = {part!r} is not supported; expected one set for all")
        rope |= {k: v for k, v in part.items() if v is not None}
    own = config.values.get("original_max_position_embeddings")
    return replace(config, values=rope | ({"original_max_position_embeddings": own} if own else {}))


def _llama3(rope: Config, plain: Array) -> Array:
    """Slow turns are slowed by the factor, fast ones stay, with a ramp between."""
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.error(f"low_freq_factor = {low} is not below high_freq_factor = {high}")
    turns = rope.integer("original_max_position_embeddings") * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * plain / rope.number("factor") + kept * plain


def _yarn(rope: Config, plain: Array, base: float) -> tuple[Array, float]:
    """As ``_llama3``, with a ramp over the elements of a head, and cos and sin scaled."""
    n, longest = 2 * len(plain), rope.integer("original_max_position_embeddings")
    factor = rope.number("factor")

    def element(turns: float) -> float:
        """The element that turns so often over the original positions."""
        return n * math.log(longest / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = element(rope.number("beta_fast", 32.0))
    high = element(rope.number("beta_slow", 1.0))
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    high += 0.001 * (low == high)
    slowed = np.clip((np.arange(n // 2) - low) / (high - low), 0.0, 1.0)

    def grown(much: float) -> float:
        return 0.1 * much * math.log(factor) + 1.0 if factor > 1 else 1.0

    usual = grown(1.0)
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        usual = grown(rope.number("mscale")) / grown(rope.number("mscale_all_dim"))
    return plain * (slowed / factor + 1 - slowed), rope.number("attention_factor", usual)
