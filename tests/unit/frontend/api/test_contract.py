"""Matmul, convolution, pooling and lookups against loops in numpy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from evaluating import apply, apply_symbolic
from lumc.errors import LumcError
from lumc.frontend import Model

RNG = np.random.default_rng(24)
Array = np.ndarray[Any, Any]


def close(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)


SHAPES = [
    ((3, 5), (5, 4)),
    ((5,), (5, 4)),
    ((3, 5), (5,)),
    ((5,), (5,)),
    ((2, 3, 5), (5, 4)),
    ((2, 3, 5), (2, 5, 4)),
    ((2, 1, 3, 5), (7, 5, 1)),
    ((1, 1), (1, 1)),
    ((3, 0), (0, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_matmul(shapes: Any) -> None:
    a, b = (RNG.standard_normal(s) for s in shapes)
    close(apply(lambda x, y: x @ y, a, b), a @ b)


def test_matmul_of_ints_and_arrays() -> None:
    a, b = RNG.integers(-9, 9, (3, 5)), RNG.integers(-9, 9, (5, 2))
    assert np.array_equal(apply(lambda x, y: x @ y, a, b), a @ b)
    assert np.array_equal(apply(lambda x: x @ b, a), a @ b)
    assert np.array_equal(apply(lambda x: a @ x, b), a @ b)


def test_matmul_over_symbolic_dims() -> None:
    q, k = RNG.standard_normal((2, 6, 4)), RNG.standard_normal((2, 6, 4))
    got = apply_symbolic(lambda x, y: x @ y.transpose(), [("b", "s", 4), ("b", "s", 4)], q, k)
    close(got, q @ k.swapaxes(1, 2))


def test_matmul_names_both_shapes() -> None:
    with pytest.raises(LumcError, match=r"f32\[3, 5\] and f32\[4, 6\]: 5 and 4 differ"):
        g = Model()
        g.input("a", (3, 5)) @ g.input("b", (4, 6))


# ---- convolution


def conv(x: Array, w: Array, stride: Any, pads: Any, dilation: Any, groups: int) -> Array:
    """Loops over every output element."""
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    size = [(n - p) // s + 1 for n, p, s in zip(x.shape[2:], spans, stride, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *size))
    per_in, per_out = w.shape[1], w.shape[0] // groups
    for o, at in product(range(w.shape[0]), product(*map(range, size))):
        part = (slice(o // per_out * per_in, (o // per_out + 1) * per_in),)
        for i, p, s, d in zip(at, spans, stride, dilation, strict=True):
            part += (slice(i * s, i * s + p, d),)
        axes = tuple(range(1, x.ndim))
        out[(slice(None), o, *at)] = (x[(slice(None), *part)] * w[o]).sum(axes)
    return out


CONVS = {
    "plain": ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    "padded": ((2, 3, 7, 6), (4, 3, 3, 3), {"padding": 1}),
    "uneven pads": ((1, 3, 7, 6), (4, 3, 3, 3), {"padding": [(2, 0), (1, 3)]}),
    "stride": ((1, 3, 9, 8), (2, 3, 3, 3), {"stride": (2, 3), "padding": (1, 0)}),
    "dilation": ((1, 2, 9, 8), (2, 2, 3, 2), {"dilation": (2, 3)}),
    "groups": ((2, 6, 5, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4}),
    "pointwise": ((2, 4, 5, 5), (6, 4, 1, 1), {"stride": 2}),
    "one axis": ((2, 3, 11), (4, 3, 5), {"stride": 2, "padding": 2}),
    "three axes": ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"padding": 1}),
}


@pytest.mark.parametrize("name", CONVS)
def test_conv(name: str) -> None:
    x_shape, w_shape, options = CONVS[name]
    rank = len(x_shape) - 2
    x, w = RNG.standard_normal(x_shape), RNG.standard_normal(w_shape)
    bias = RNG.standard_normal(w_shape[0])

    def each(v: Any) -> Any:
        return (v,) * rank if isinstance(v, int) else v

    pads = [(p, p) if isinstance(p, int) else p for p in each(options.get("padding", 0))]
    stride, dilation = each(options.get("stride", 1)), each(options.get("dilation", 1))
    want = conv(x, w, stride, pads, dilation, options.get("groups", 1))
    got = apply(lambda a, b, c: a.conv(b, c, **options), x, w, bias)
    close(got, want + bias.reshape(-1, *[1] * rank))


def test_conv_over_a_symbolic_batch() -> None:
    x, w = RNG.standard_normal((3, 2, 5, 5)), RNG.standard_normal((4, 2, 3, 3))
    got = apply_symbolic(lambda a, b: a.conv2d(b), [("n", 2, 5, 5), (4, 2, 3, 3)], x, w)
    close(got, conv(x, w, (1, 1), [(0, 0)] * 2, (1, 1), 1))


TRANSPOSED = {
    "plain": ((2, 3, 4, 5), (3, 2, 3, 2), {}, 1),
    "stride": ((1, 3, 4, 5), (3, 2, 3, 3), {"stride": (2, 3), "padding": 1}, 1),
    "output padding": ((1, 3, 4), (3, 2, 3), {"stride": 2, "output_padding": 1}, 1),
    "groups": ((1, 4, 4, 4), (4, 3, 2, 2), {"stride": 2, "groups": 2}, 2),
    "dilation": ((1, 2, 9), (2, 3, 3), {"dilation": 2, "padding": 5}, 1),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name: str) -> None:
    """Every input element adds the filter, scaled, to the output."""
    x_shape, w_shape, options, groups = TRANSPOSED[name]
    rank = len(x_shape) - 2
    x, w = RNG.standard_normal(x_shape), RNG.standard_normal(w_shape)

    def each(key: str, default: int) -> Any:
        value = options.get(key, default)
        return (value,) * rank if isinstance(value, int) else value

    stride, dilation, pad = each("stride", 1), each("dilation", 1), each("padding", 0)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, w_shape[2:], strict=True)]
    full = [(n - 1) * s + p for n, s, p in zip(x_shape[2:], stride, spans, strict=True)]
    wide = np.zeros((x_shape[0], groups * w_shape[1], *[n + 9 for n in full]))
    per_in = x_shape[1] // groups
    for c, at in product(range(x_shape[1]), product(*map(range, x_shape[2:]))):
        outs = slice(c // per_in * w_shape[1], (c // per_in + 1) * w_shape[1])
        steps = zip(at, stride, spans, dilation, strict=True)
        place = [slice(i * s, i * s + p, d) for i, s, p, d in steps]
        value = x[(slice(None), c, *at)].reshape(-1, *[1] * (rank + 1))
        wide[(slice(None), outs, *place)] += value * w[c]
    extra = options.get("output_padding", 0)
    crop = [slice(p, n - p + extra) for n, p in zip(full, pad, strict=True)]
    close(apply(lambda a, b: a.conv_transpose(b, **options), x, w), wide[(..., *crop)])


def test_conv_that_does_not_fit() -> None:
    g = Model()
    with pytest.raises(LumcError, match=r"conv of f32\[1, 3, 8, 8\] with weight f32\[4, 2, 3, 3\]"):
        g.input("x", (1, 3, 8, 8)).conv2d(g.input("w", (4, 2, 3, 3)))


# ---- pooling


def pool(x: Array, k: int, s: int, p: int, kind: str, counted: bool = True) -> Array:
    fill = -np.inf if kind == "max" else 0
    padded = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)], constant_values=fill)
    ones = np.pad(np.ones_like(x), [(0, 0), (0, 0), (p, p), (p, p)], constant_values=counted)
    view = np.lib.stride_tricks.sliding_window_view
    windows = view(padded, (k, k), (2, 3))[:, :, ::s, ::s]
    if kind == "max":
        return windows.max((-1, -2))
    return windows.sum((-1, -2)) / view(ones, (k, k), (2, 3))[:, :, ::s, ::s].sum((-1, -2))


@pytest.mark.parametrize("k,s,p", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)])
def test_pools(k: int, s: int, p: int) -> None:
    x = RNG.standard_normal((2, 3, 8, 7))
    close(apply(lambda t: t.max_pool(k, s, p), x), pool(x, k, s, p, "max"))
    close(apply(lambda t: t.avg_pool(k, s, p), x), pool(x, k, s, p, "avg"))
    got = apply(lambda t: t.avg_pool(k, s, p, count_include_pad=False), x)
    close(got, pool(x, k, s, p, "avg", counted=False))


def test_ceil_mode_counts_partial_windows() -> None:
    x = RNG.standard_normal((1, 1, 5, 5))
    got = apply(lambda t: t.max_pool(2, 2, ceil_mode=True), x)
    want = np.array([[x[0, 0, i : i + 2, j : j + 2].max() for j in (0, 2, 4)] for i in (0, 2, 4)])
    close(got[0, 0], want)
    got = apply(lambda t: t.avg_pool(2, 2, ceil_mode=True), x)
    want = np.array([[x[0, 0, i : i + 2, j : j + 2].mean() for j in (0, 2, 4)] for i in (0, 2, 4)])
    close(got[0, 0], want)


def test_max_pool_of_ints() -> None:
    x = RNG.integers(-100, -1, (1, 1, 4, 4)).astype("i1")
    got = apply(lambda t: t.max_pool(3, 2, 1), x, declared=True)
    want = np.pad(x[0, 0], 1, constant_values=-128)
    assert got[0, 0].tolist() == [
        [want[i : i + 3, j : j + 3].max() for j in (0, 2)] for i in (0, 2)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, (4, 2)])
def test_adaptive_average(size: Any) -> None:
    x = RNG.standard_normal((2, 3, 8, 6))
    rows, cols = (size, size) if isinstance(size, int) else size
    want = np.zeros((2, 3, rows, cols))
    for i, j in product(range(rows), range(cols)):
        r = slice(i * 8 // rows, -(-(i + 1) * 8 // rows))
        c = slice(j * 6 // cols, -(-(j + 1) * 6 // cols))
        want[:, :, i, j] = x[:, :, r, c].mean((2, 3))
    close(apply(lambda t: t.adaptive_avg_pool(size), x), want)


# ---- lookups


def test_lookups() -> None:
    table = RNG.standard_normal((9, 4))
    table[2] = np.nan  # a row that is not chosen must not matter
    ids = np.array([[0, 8, 3], [3, 1, 0]])
    close(apply(lambda t, i: t.embedding(i), table, ids), table[ids])
    close(apply(lambda t, i: t[:, i], table.T, ids), table.T[:, ids])
    close(apply(lambda t, i: t.index_select(0, i, wrap=True), table, ids - 9), table[ids])
    close(apply(lambda i: i.one_hot(10), ids), np.eye(10)[ids])


def test_ids_outside_give_zeros() -> None:
    got = apply(lambda t, i: t.embedding(i), np.ones((3, 2)), np.array([-1, 1, 3]))
    assert got.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_along_an_axis(axis: int) -> None:
    x = RNG.standard_normal((4, 5, 3))
    ids = RNG.integers(0, x.shape[axis], (4, 5, 3))
    close(apply(lambda t, i: t.gather(axis, i), x, ids), np.take_along_axis(x, ids, axis))
    close(
        apply(lambda t, i: t.gather(0, i), x, ids[:2, :3, :] % 4),
        np.take_along_axis(x[:, :3], ids[:2, :3] % 4, 0),
    )


def test_lookup_of_bools() -> None:
    mask = RNG.random((6, 3)) < 0.5
    assert np.array_equal(apply(lambda t, i: t.embedding(i), mask, np.array([5, 0])), mask[[5, 0]])


def test_lookup_by_floats_is_refused() -> None:
    g = Model()
    with pytest.raises(LumcError, match="positions must be ints"):
        g.input("t", (4, 2)).embedding(g.input("i", (3,)))


def test_eye_and_arange() -> None:
    g = Model()
    g.output("eye", g.eye(3, 4))
    g.output("steps", g.arange(7, 1, -2) + 0)
    g.output("none", g.arange(3, 1).to("f32") + 1.0)
    from evaluating import results

    out = results(g)
    assert np.array_equal(out["eye"], np.eye(3, 4))
    assert out["steps"].tolist() == [7, 5, 3]
    assert out["none"].shape == (0,)
