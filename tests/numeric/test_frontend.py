"""What people write with the Tensor API, compiled for this machine, against the oracle.

Every model has many outputs, so that one compilation covers many compositions; floats include
infinities and NaN, ints are spread over a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from lumc.frontend import Model, Tensor, concat, stack, where
from lumc.oracle.graph import evaluate
from lumc.runtime.cpu import Bundle

Array = np.ndarray[Any, Any]
Build = Callable[..., Sequence[Tensor]]
RNG = np.random.default_rng(30)
IDS = np.array([4, 0, 3, 1, 2, 4])
SPECIAL = np.array([0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 30, -30, np.inf, -np.inf, np.nan], "f4")


def floats(*shape: int, special: bool = False) -> Array:
    values = RNG.standard_normal(shape).astype(np.float32) * 2
    if special:
        values.flat[: SPECIAL.size] = SPECIAL
    return values


def ints(*shape: int, low: int = -9, high: int = 9) -> Array:
    return RNG.integers(low, high, shape, endpoint=True)


def pairs() -> list[Array]:
    """Every pair of special values, among others."""
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    return [np.concatenate([m, floats(5, 12)]).astype(np.float32) for m in (a, b)]


def functions(g: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    exponentials = [x.exp(), x.exp2(), x.tanh(), x.sigmoid(), x.softplus(), x.erf(), x.gelu()]
    waves = [y.sin(), y.cos(), (y * y + 1.0).log(), (y * y).sqrt(), 1.0 / y, y**3]
    rounding = [x.floor(), x.ceil(), x.round(), x.trunc(), x.abs(), x.sign(), x % 1.5]
    pieces = [x.relu(), x.elu(), x.leaky_relu(), x.hardswish(), x.clip(-1, 2), x.isnan()]
    return exponentials + waves + rounding + pieces


def comparisons(g: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    order = [x < y, x <= y, x > y, x >= y, x == y, x != y]
    return [*order, x.maximum(y), x.minimum(y), where(x < y, x, y), (x > 0) * y]


def whole_numbers(g: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    arithmetic = [x + y, x * y - 3, x // 3, x % 4, x % -4, x.to("f32") / 2]
    ends = [x.min(1), x.max(0), x.argmax(1), x.argmin(0)]
    return [*arithmetic, *ends, (x == y).sum(1), x.cumsum(1)]


def bools_and_casts(g: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    less, below = x < y, x < 0
    bools = [less.any(1), less.all(0), below ^ less, ~below & less, below.sum(), less.max(0)]
    big = x * 20
    casts = [big.to("i32"), big.to("i64") % 3, x.to("f64") * 2.0, x.to("bool")]
    return [*bools, concat([below, less], 1), *casts, big.to("i32").to("i8").to("f32")]


def reductions(g: Model, x: Tensor) -> list[Tensor]:
    plain = [x.sum(), x.mean((0, 2)), x.var(1), x.max(1), x.min(), x.argmax(2), x.prod(2)]
    return [*plain, x.logsumexp(), x.log_softmax(1), x.softmax(0), x.cumsum(2), x.std((1, 2))]


def norms(g: Model, x: Tensor, w: Tensor) -> list[Tensor]:
    parts = [x.group_norm(2), x.instance_norm(), x.batch_norm(w, w * w, w, w)]
    return [x.layer_norm(), x.rms_norm(), x.normalize(1), *parts]


def movement(g: Model, x: Tensor) -> list[Tensor]:
    views = [x.T, x[::-1, ::2], x.reshape(37, 5) * 2, x[:, 1], x.unfold(1, 3, 2).sum(-1)]
    wide = x.repeat(2, 2) + x.repeat_interleave(2, 0).repeat(1, 2)
    joined = [x.roll(3, 1), x.tril(1), stack([x, x[::-1]], 2), concat([x, x * 2, x[:, :3]], 1)]
    shifted = x.reshape(37, 5).pad([(2, 1), (0, 1)])[1:]
    padded = [x.pad([(1, 0), (2, 3)], 7.5), x.pad([(1, 1), (0, 0)], -np.inf).max(0)]
    more = [x[:, ::2].pad([(0, 0), (1, 1)]), x.pad([(0, 2), (0, 0)]).sum(0)]
    return [*views, wide, *joined, shifted, *padded, *more]


def constants(g: Model, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    padded = g.ones(3).pad([(1, 1)])
    made = [g.full((2, 3), 7.0), g.eye(4), g.arange(5), padded, padded.sum(), g.size(37)]
    small = [y * 2, y.exp().expand(3, 4), z.sum(1), z + 1.0, z.max(1)]
    return [*made, x + g.arange(37, dtype="f32"), x @ g.constant(floats(37, 3)), *small]


def windows(g: Model, x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    convs = [
        x.conv2d(w, stride=2, padding=1),
        x.conv2d(w, dilation=2),
        x.conv2d(w[:, :1], groups=3),
    ]
    pools = [x.max_pool(3, 2, 1), x.avg_pool(3, 2, 1, count_include_pad=False)]
    pools += [x.avg_pool(2, 2, ceil_mode=True), x.adaptive_avg_pool(4)]
    return [*convs, x.conv_transpose(v, stride=2, padding=1), *pools]


def lookups_and_products(g: Model, x: Tensor, i: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    rows = [
        x.embedding(i),
        x.T.index_select(1, i),
        i.one_hot(7),
        x.index_select(0, i - 5, wrap=True),
    ]
    products = [a @ b, a[0] @ b, a.transpose() @ a, a[0, 0] @ b, (a @ b).softmax() @ b.T]
    return [*rows, x.gather(0, i[:, None].expand(6, 4)), *products]


def half(g: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    return [x @ y, x.softmax(), x.layer_norm(), x.gelu(), x.sum(0), x.to("f32") + 1]


def masked_rows(g: Model, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> list[Tensor]:
    """Some rows are masked as a whole: by a finite number they stay finite, by -inf they are NaN.

    In f32 such a number swallows the scores, so the oracle computes in f32 too.
    """
    scores = q @ k.T * 0.3
    fills = [float(np.finfo(np.float32).min), -1e9, -np.inf]
    return [(scores + where(keep != 0, 0.0, fill)).softmax() @ v for fill in fills]


MODELS: dict[Build, list[Array]] = {
    functions: [floats(5, 37, special=True), floats(5, 37)],
    comparisons: pairs(),
    whole_numbers: [ints(5, 9), ints(5, 9)],
    bools_and_casts: [floats(5, 9), floats(5, 9)],
    reductions: [floats(3, 5, 7)],
    norms: [floats(2, 4, 9), floats(4)],
    movement: [floats(5, 37)],
    constants: [floats(5, 37), floats(1).reshape(()), np.zeros((3, 0), np.float32)],
    windows: [floats(2, 3, 9, 9), floats(6, 3, 3, 3), floats(3, 4, 3, 3)],
    lookups_and_products: [floats(5, 4), IDS, floats(3, 8, 16), floats(16, 8)],
    masked_rows: [
        *(floats(9, 16), floats(700, 16), floats(700, 16)),
        (np.arange(9)[:, None] * 100 > np.arange(700)).astype("i8"),
    ],
    half: [floats(8, 16).astype("f2"), floats(16, 8).astype("f2")],
}


@pytest.mark.parametrize("build", MODELS, ids=lambda f: f.__name__)
def test_compiled(build: Build, tmp_path: Path) -> None:
    arrays = MODELS[build]
    g = Model()
    inputs = [g.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    for i, tensor in enumerate(build(g, *inputs)):
        g.output(f"y{i}", tensor)
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    exact = build is not masked_rows
    want, _ = evaluate(g.graph(), "main", given, g.read_weight, declared=not exact)
    g.save(tmp_path / "m.lg")
    Lumc(tmp_path)("compile", "--estimate", tmp_path / "m.lg", "-o", tmp_path / "m.lb")
    with Bundle.open(tmp_path / "m.lb") as bundle:
        got = bundle.run(given)
    limit = 3e-3 if build is half else 2e-6
    for key, value in want.items():
        assert got[key].shape == value.shape
        if value.dtype.kind == "f":
            scale = np.abs(value[np.isfinite(value)]).max(initial=1.0)
            np.testing.assert_allclose(got[key], value, rtol=limit, atol=limit * scale, err_msg=key)
        else:
            np.testing.assert_array_equal(got[key], value, err_msg=key)
