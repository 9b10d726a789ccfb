"""Movement: chains of views against numpy, and that they make no node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluating import apply, apply_symbolic
from lumc.errors import LumcError
from lumc.frontend import Model, Tensor, concat, stack

RNG = np.random.default_rng(22)
X = RNG.standard_normal((3, 4, 6))
Array = np.ndarray[Any, Any]


def equal(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "permute": (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "transpose": (lambda x: x.transpose(), lambda x: x.swapaxes(-1, -2)),
    "T": (lambda x: x.T, lambda x: x.T),
    "moveaxis": (lambda x: x.moveaxis(0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "merge": (lambda x: x.reshape(12, 6), lambda x: x.reshape(12, 6)),
    "split": (lambda x: x.reshape(3, 4, 2, 3), lambda x: x.reshape(3, 4, 2, 3)),
    "regroup": (lambda x: x.reshape(2, -1, 9), lambda x: x.reshape(2, -1, 9)),
    "flatten": (lambda x: x.flatten(), lambda x: x.reshape(-1)),
    "flatten part": (lambda x: x.flatten(1, 2), lambda x: x.reshape(3, 24)),
    "unflatten": (lambda x: x.unflatten(2, (3, -1)), lambda x: x.reshape(3, 4, 3, 2)),
    "unsqueeze": (lambda x: x.unsqueeze(0, -1), lambda x: x[None, ..., None]),
    "squeeze": (lambda x: x[:1, None].squeeze(), lambda x: x[0]),
    "expand": (
        lambda x: x[:, :1].expand(2, -1, 5, -1),
        lambda x: np.broadcast_to(x[:, :1], (2, 3, 5, 6)),
    ),
    "int": (lambda x: x[1, -1], lambda x: x[1, -1]),
    "slices": (lambda x: x[1:, ::2, 1:5:3], lambda x: x[1:, ::2, 1:5:3]),
    "clamped": (lambda x: x[-9:2, 2:99], lambda x: x[-9:2, 2:99]),
    "empty": (lambda x: x[2:1], lambda x: x[2:1]),
    "backwards": (lambda x: x[::-1, ::-2, 4:1:-1], lambda x: x[::-1, ::-2, 4:1:-1]),
    "ellipsis": (lambda x: x[..., None, 2], lambda x: x[..., None, 2]),
    "flip": (lambda x: x.flip((0, 2)), lambda x: np.flip(x, (0, 2))),
    "pad": (
        lambda x: x.pad([(1, 0), (0, 0), (2, 3)]),
        lambda x: np.pad(x, [(1, 0), (0, 0), (2, 3)]),
    ),
    "unfold": (
        lambda x: x.unfold(2, 3, 2),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2)[:, :, ::2],
    ),
    "dilated": (lambda x: x.unfold(2, 2, 1, 3), lambda x: np.stack([x[..., :3], x[..., 3:]], -1)),
    "repeat": (lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    "repeat more": (lambda x: x[0].repeat(2, 1, 2), lambda x: np.tile(x[0], (2, 1, 2))),
    "interleave": (lambda x: x.repeat_interleave(3, 1), lambda x: np.repeat(x, 3, 1)),
    "diagonal": (lambda x: x[:, :, :4].diagonal(), lambda x: x.diagonal(0, 1, 2)),
    "split at": (lambda x: x.split([1, 5], 2)[1], lambda x: x[..., 1:]),
    "chunk": (lambda x: x.chunk(4, 2)[2], lambda x: x[..., 4:6]),
    "unbind": (lambda x: x.unbind(1)[3], lambda x: x[:, 3]),
    "pad of steps": (
        lambda x: x[:, ::2].pad([(0, 0), (1, 1), (0, 0)]),
        lambda x: np.pad(x[:, ::2], [(0, 0), (1, 1), (0, 0)]),
    ),
    "pad of merged": (
        lambda x: x.reshape(12, 6).pad([(2, 1), (0, 0)])[1:],
        lambda x: np.pad(x.reshape(12, 6), [(2, 1), (0, 0)])[1:],
    ),
    "only padding": (lambda x: x.pad([(2, 0), (0, 0), (0, 0)])[:2], lambda x: np.zeros((2, 4, 6))),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(name: str) -> None:
    mine, numpys = VIEWS[name]
    equal(apply(mine, X), numpys(X))


@pytest.mark.parametrize("name", VIEWS)
def test_view_makes_no_node(name: str) -> None:
    g = Model()
    VIEWS[name][0](g.input("x", X.shape))
    assert not g.builder.nodes


JOINS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "concat": (
        lambda x: concat([x, x[:, :1], x[:, 1:3]], 1),
        lambda x: np.concatenate([x, x[:, :1], x[:, 1:3]], 1),
    ),
    "concat with nothing": (lambda x: concat([x, x[:0]]), lambda x: x),
    "stack": (lambda x: stack([x[0], x[2]], -1), lambda x: np.stack([x[0], x[2]], -1)),
    "roll": (lambda x: x.roll(-4, 2), lambda x: np.roll(x, -4, 2)),
    "roll round": (lambda x: x.roll(7, 1), lambda x: np.roll(x, 7, 1)),
    "pad by a value": (
        lambda x: x.pad([(1, 0), (0, 2), (0, 0)], 7.5),
        lambda x: np.pad(x, [(1, 0), (0, 2), (0, 0)], constant_values=7.5),
    ),
    "pad by -inf": (
        lambda x: x.pad([(0, 0), (0, 2), (1, 1)], -np.inf),
        lambda x: np.pad(x, [(0, 0), (0, 2), (1, 1)], constant_values=-np.inf),
    ),
    "tril": (lambda x: x.tril(), np.tril),
    "triu": (lambda x: x.triu(), np.triu),
    "tril k": (lambda x: x.tril(2) + x.triu(-1), lambda x: np.tril(x, 2) + np.triu(x, -1)),
}


@pytest.mark.parametrize("name", JOINS)
def test_join(name: str) -> None:
    mine, numpys = JOINS[name]
    equal(apply(mine, X), numpys(X))


def test_scalars_and_extents_of_one() -> None:
    x = np.array(3.5)
    equal(apply(lambda t: t.reshape(1, 1).expand(2, 3), x), np.full((2, 3), 3.5))
    equal(apply(lambda t: t.flatten(), x), np.array([3.5]))
    equal(apply(lambda t: t.reshape(()), np.array([[2.0]])), np.array(2.0))
    equal(apply(lambda t: t.permute(1, 0).reshape(5), np.arange(5.0)[None]), np.arange(5.0))


def test_empty_tensors() -> None:
    x = np.zeros((0, 3))
    equal(apply(lambda t: t.reshape(3, 0) + 1.0, x), np.zeros((3, 0)))
    equal(apply(lambda t: t.pad([(2, 0), (0, 0)]), x), np.zeros((2, 3)))
    equal(apply(lambda t: t.sum(0), x), np.zeros(3))


# ---- random chains


@st.composite
def movement(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Callable[..., Any], str]:
    """A step that fits the shape: a function of tensors and arrays alike, and its text."""
    kinds = ["permute", "reshape", "slice", "flip", "pad", "expand", "unfold", "spread"]
    kind = draw(st.sampled_from(kinds if shape else ["reshape"]))
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    if kind == "permute":
        order = draw(st.permutations(range(len(shape))))
        return (lambda x, np_: x.transpose(order) if np_ else x.permute(order)), f"permute{order}"
    if kind == "reshape":
        new = draw(st.sampled_from(factorisations(int(np.prod(shape, dtype=int)))))
        return (lambda x, np_: x.reshape(new)), f"reshape{new}"
    if kind in ("slice", "flip"):
        n = shape[axis]
        start, step = draw(st.integers(0, n - 1)), draw(st.integers(1, 3))
        key = (slice(None),) * axis + (slice(start, None, step if kind == "slice" else -step),)
        return (lambda x, np_: x[key]), f"{key}"
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    if kind == "pad":
        widths = [(0, 0)] * len(shape)
        widths[axis] = (before, after)
        return (lambda x, np_: np.pad(x, widths) if np_ else x.pad(widths)), f"pad{widths}"
    if kind == "expand" or len(shape) > 5:
        return (
            lambda x, np_: (
                np.repeat(x, after + 1, axis) if np_ else x.repeat_interleave(after + 1, axis)
            )
        ), f"repeat {after + 1} {axis}"
    if kind == "unfold":
        size = draw(st.integers(1, min(shape[axis], 3)))
        view = np.lib.stride_tricks.sliding_window_view
        return (
            lambda x, np_: view(x, size, axis) if np_ else x.unfold(axis, size)
        ), f"unfold {size} {axis}"
    widths = [(0, 0)] * (len(shape) + 1)
    widths[axis + 1] = (0, after)
    merged = (*shape[:axis], shape[axis] * (after + 1), *shape[axis + 1 :])

    def spread(x: Any, np_: bool) -> Any:
        wide = np.expand_dims(x, axis + 1) if np_ else x.unsqueeze(axis + 1)
        return (np.pad(wide, widths) if np_ else wide.pad(widths)).reshape(merged)

    return spread, f"spread {after} {axis}"


def factorisations(n: int) -> list[tuple[int, ...]]:
    pairs = [(a, n // a) for a in range(1, n + 1) if n % a == 0]
    triples = [(a, b, c // b) for a, c in pairs[:6] for b in range(1, c + 1) if c % b == 0][:30]
    return [(n,), *pairs, *triples]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_random_chain_of_movements(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    x = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    steps, want = [], x
    for _ in range(data.draw(st.integers(1, 6))):
        step, text = data.draw(movement(want.shape))
        new = step(want, True)
        if new.size > 2000 or new.size == 0:
            break
        steps.append((step, text))
        want = new

    def chain(t: Tensor) -> Tensor:
        for step, _ in steps:
            t = step(t, False)
        return t

    equal(apply(chain, x), want)


# ---- symbolic dims

SYMBOLIC: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "split heads": (
        lambda x: x.unflatten(-1, (2, 3)).transpose(0, 1),
        lambda x: x.reshape(3, 4, 2, 3).swapaxes(0, 1),
    ),
    "merge heads": (lambda x: x.reshape(x.shape[0], x.shape[1], 3, 2).flatten(2), lambda x: x),
    "merge behind": (lambda x: x.flatten(1), lambda x: x.reshape(3, 24)),
    "merge and split": (lambda x: x.flatten(1).reshape(3, x.shape[1], 6), lambda x: x),
    "first": (lambda x: x[:, 0], lambda x: x[:, 0]),
    "last": (lambda x: x[:, -1], lambda x: x[:, -1]),
    "all but one": (lambda x: x[:, 1:], lambda x: x[:, 1:]),
    "up to one before": (lambda x: x[:, :-1], lambda x: x[:, :-1]),
    "flip": (lambda x: x.flip(1), lambda x: x[:, ::-1]),
    "concat": (
        lambda x: concat([x, x[:, :2], x], 1),
        lambda x: np.concatenate([x, x[:, :2], x], 1),
    ),
    "pad": (
        lambda x: x.pad([(0, 0), (2, 1), (0, 0)]),
        lambda x: np.pad(x, [(0, 0), (2, 1), (0, 0)]),
    ),
    "pad by a value": (
        lambda x: x.pad([(0, 0), (2, 1), (0, 0)], -1.0),
        lambda x: np.pad(x, [(0, 0), (2, 1), (0, 0)], constant_values=-1),
    ),
    "repeat": (lambda x: x.repeat_interleave(2, 1), lambda x: np.repeat(x, 2, 1)),
    "roll": (lambda x: x.roll(1, 1), lambda x: np.roll(x, 1, 1)),
    "windows": (lambda x: x.unfold(1, 2).sum(-1), lambda x: x[:, 1:] + x[:, :-1]),
    "arange": (
        lambda x: x + x.model.arange(x.shape[1], dtype="f64")[:, None],
        lambda x: x + np.arange(4.0)[:, None],
    ),
    "mean": (lambda x: x.mean(1), lambda x: x.mean(1)),
    "variance": (lambda x: x.var((1, 2), correction=1), lambda x: x.var((1, 2), ddof=1)),
    "softmax": (lambda x: x.softmax(1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "causal": (lambda x: (x @ x.transpose()).tril(), lambda x: np.tril(x @ x.swapaxes(1, 2))),
    "cumsum": (lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic(name: str) -> None:
    mine, numpys = SYMBOLIC[name]
    got, want = apply_symbolic(mine, [(3, "s", 6)], X), numpys(X)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert got.shape == want.shape


def test_merged_symbolic_extents_are_refused() -> None:
    g = Model()
    b, s = g.dim("b", 1, 8), g.dim("s", 1, 8)
    x = g.input("x", (b, s, 4))
    with pytest.raises(LumcError, match="several symbolic extents") as e:
        x.flatten(0, 1)
    assert e.value.exit == 4
    with pytest.raises(LumcError, match=r"cannot reshape \[b, s, 4\] to \[4, b, s\]"):
        x.reshape(4, b, s)
    with pytest.raises(LumcError, match="may lie outside axis 1"):
        x[:, 3:]


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "reshape": (lambda x: x.reshape(5, 5), r"cannot reshape \[3, 4, 6\] to \[5, 5\]"),
    "two unknown": (lambda x: x.reshape(-1, -1), "one extent may be -1"),
    "no divisor": (lambda x: x.reshape(-1, 7), "not an integer"),
    "permute": (lambda x: x.permute(0, 0, 1), "not a permutation"),
    "axis": (lambda x: x.sum(3), r"axis 3 of f32\[3, 4, 6\] does not exist"),
    "axes repeat": (lambda x: x.sum((0, -3)), "repeat"),
    "index": (lambda x: x[3], "index 3 is outside axis 0"),
    "indices": (lambda x: x[0, 0, 0, 0], "4 indices"),
    "key": (lambda x: x["a"], "cannot index"),
    "broadcast": (lambda x: x.expand(3, 5, 6), r"cannot broadcast \[3, 4, 6\] to \[3, 5, 6\]"),
    "concat": (lambda x: concat([x, x[:, 1:]], 0), "cannot concatenate"),
    "squeeze": (lambda x: x.squeeze(0), "extent 1"),
    "window": (lambda x: x.unfold(1, 5), "windows of 5 elements do not fit axis 1"),
    "split": (lambda x: x.split([1, 1], 0), "split sizes"),
    "pad": (lambda x: x.pad([(1, 1)]), "a pair per axis"),
    "negative pad": (lambda x: x.pad([(0, 0), (-1, 0), (0, 0)]), "pad of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(LumcError, match=message) as e:
        function(Model().input("x", X.shape))
    assert e.value.exit == 4
    assert "test_movement.py:" in e.value.where
