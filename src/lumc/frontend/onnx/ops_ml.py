"""Features: picked, made binary, counted in n-grams; matrices of mel scales."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lumc.frontend.api.join import concat
from lumc.frontend.api.symbols import Array
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_shape import integers
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import constant_tensor, dtype_of, numpy_dtype
from lumc.graph.ops import DType

ML = "ai.onnx.ml"
MAX_ELEMENTS = 1 << 24  # of a matrix that is made at import


@operator("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(X: Tensor, Y: Tensor) -> Tensor:
    rows = X.unsqueeze(0) if X.ndim == 1 else X
    return rows.index_select(rows.ndim - 1, Y.flatten())


@operator("Binarizer", domain=ML)
def binarizer(X: Tensor, *, threshold: float = 0.0) -> Tensor:
    return (threshold < X).to(X.dtype)


# ---- n-grams


@operator("TfIdfVectorizer", since=9, note="of integers")
def tf_idf_vectorizer(
    X: Tensor,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Tensor:
    """X [c] or [b, c] -> [columns] or [b, columns]: how often each n-gram of the pool is there,
    with up to so many elements left out between neighbours, or its weight."""
    if pool_strings or not X.dtype.is_int:
        raise Unsupported("it works on strings", "give words as integers")
    lengths = [*ngram_counts, len(pool_int64s)]
    counts, first = [], 0
    for n, (start, end) in enumerate(pairwise(lengths), 1):
        if start < 0 or end < start or (end - start) % n:
            raise ValueError(f"{end - start} numbers are no list of {n}-grams")
        grams = np.array(pool_int64s[start:end], np.int64).reshape(-1, n)
        used = min_gram_length <= n <= max_gram_length
        counts.append(_counted(X.to(DType.I64), grams, max_skip_count if n > 1 else 0, used))
        first += len(grams)
    if first != len(ngram_indexes) or (weights and len(weights) != first):
        raise ValueError(f"{len(ngram_indexes)} indices and {len(weights)} weights of {first}")
    if min(ngram_indexes) < 0 or first * max(ngram_indexes) > MAX_ELEMENTS:
        raise ValueError("indices of n-grams")
    columns = np.zeros((first, max(ngram_indexes) + 1), np.float32)
    share = weights if weights and mode != "TF" else np.ones(first)
    columns[np.arange(first), list(ngram_indexes)] = share
    found = concat([c for c in counts if c.shape[-1] != 0], -1)
    found = (found > 0) if mode == "IDF" else found
    return found.to(DType.F32) @ constant_tensor(X.model, columns)


def _counted(x: Tensor, grams: Array, skips: int, used: bool) -> Tensor:
    """[.., grams]: how often each of grams [g, n] is in x [.., c]."""
    count, n = grams.shape
    length = x.shape[-1]
    if not isinstance(length, int):
        raise Unsupported("of a symbolic dim", "bind the dim with --dim")
    total = x.model.full((*x.shape[:-1], count), 0, DType.I64)
    for apart in range(1, skips + 2):
        if not used or not count or (n - 1) * apart >= length:
            break
        windows = x.unfold(x.ndim - 1, n, 1, apart).unsqueeze(-2)  # [.., places, 1, n]
        same = (windows == constant_tensor(x.model, grams)).all(x.ndim + 1)
        total = total + same.sum(x.ndim - 1)
    return total


# ---- the mel scale


@operator(
    "MelWeightMatrix",
    since=17,
    known=[
        "num_mel_bins",
        "dft_length",
        "sample_rate",
        "lower_edge_hertz",
        "upper_edge_hertz",
    ],
)
def mel_weight_matrix(
    num_mel_bins: Any,
    dft_length: Any,
    sample_rate: Any,
    lower_edge_hertz: Any,
    upper_edge_hertz: Any,
    *,
    output_datatype: int = 1,
) -> Array:
    """[bins of the spectrum, bands]: triangles from band to band, as wide as they are in mel."""
    (bands,), (length,), (rate,) = (
        integers(v, name)
        for v, name in ((num_mel_bins, "bands"), (dft_length, "length"), (sample_rate, "rate"))
    )
    rows = length // 2 + 1
    if bands < 1 or rows < 1 or rate < 1 or rows * bands > MAX_ELEMENTS:
        raise ValueError(f"{bands} bands of {length} samples")
    ends = [2595.0 * np.log10(1.0 + float(e) / 700.0) for e in (lower_edge_hertz, upper_edge_hertz)]
    mel = ends[0] + np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 2))
    hertz = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    edge = ((length + 1) * hertz // rate).astype(np.int64)
    if edge[0] < 0 or edge[-1] > rows or (np.diff(edge) < 0).any():
        raise ValueError(f"edges of bands at {edge[0]}..{edge[-1]} of {rows}")
    low, centre, high = edge[:-2], edge[1:-1], edge[2:]
    at = np.arange(rows)[:, None]
    with np.errstate(all="ignore"):
        rising, falling = (at - low) / (centre - low), (high - at) / (high - centre)
    peak = np.where(centre == low, 1.0, rising)  # of a band without a rising side
    out = np.where((at >= low) & (at <= centre), peak, 0.0)
    out = np.where((at >= centre) & (at < high), falling, out)
    return out.astype(numpy_dtype(dtype_of(output_datatype)))
