"""What a gradient pass has to do, as checks of a package: of ours, and of its mutants.

Every check takes the package ``lumc.grad`` and fails where it is wrong. None of them needs torch.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradient_cases import CASES, shifted
from gradients import Array, along, run, work
from lumc.errors import LumcError
from lumc.frontend import Model, Tensor, where
from lumc.graph.dim import Dim, bind
from lumc.graph.expr import LARGE, Expr, add, dim, index_value, make, mul, num, substitute
from lumc.graph.graph import Bound, Graph, Node, Read
from lumc.graph.ops import DType, Op
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

Package = Any
CHECKS: dict[str, Callable[[Package], None]] = {}
NEAR = 1e-6  # of finite differences
MANY = 100  # index maps at random
WALK = 1 << 20  # points of a fibre over all elements


def check(f: Callable[[Package], None]) -> Callable[[Package], None]:
    CHECKS[f.__name__.replace("_", " ")] = f
    return f


def differences(name: str) -> Callable[[Package], None]:
    def agrees(grad: Package) -> None:
        slope, found = along(CASES[name], grad.gradients)
        assert slope == pytest.approx(found, rel=NEAR, abs=NEAR), name

    return agrees


def little_work(name: str) -> Callable[[Package], None]:
    def holds(grad: Package) -> None:
        most = CASES[name].work
        assert most and work(CASES[name], grad.gradients) <= most

    return holds


CHECKS |= {f"case {name}": differences(name) for name in CASES}
CHECKS |= {f"work {name}": little_work(name) for name, c in CASES.items() if c.work}


def slopes(
    grad: Package, f: Callable[..., Tensor], *arrays: Any, dtype: str = "f64"
) -> list[Array]:
    """The gradients of the sum of a function at arrays."""
    m = Model()
    xs = [m.input(f"x{i}", np.shape(a), dtype) for i, a in enumerate(arrays)]
    found = grad.gradients(f(*xs).sum(), xs)
    results = {f"g{i}": g for i, g in enumerate(found)}
    assert [(g.shape, g.dtype) for g in found] == [(x.shape, x.dtype) for x in xs]
    out = run(m, results, {f"x{i}": np.asarray(a, "f8") for i, a in enumerate(arrays)})
    return [out[name] for name in results]


def refused(code: str, f: Callable[[], Any]) -> str:
    with pytest.raises(LumcError) as e:
        f()
    assert e.value.code == code, e.value
    return str(e.value)


# ---- what index maps are solved to


def solved(
    grad: Package, read: Read, shape: tuple[Any, ...], dims: dict[str, Dim] | None = None
) -> int:
    """The fibre of a read has every point of its loops once: under the element that it takes there,
    and none beside. How many points it walks over, for the greatest dims."""
    known = dims or {}
    back, walked = grad.fibre.fibre(read, shape, known), 0
    for values in itertools.product(*(d.values for d in known.values())):
        at = dict(zip(known, values, strict=True))
        here = [int(bind(n, at)) for n in shape]
        sizes = [int(bind(n, at)) for n in (*read.source.shape, *back.free)]
        wanted = dict[tuple[int, ...], list[tuple[int, ...]]]()
        for point in np.ndindex(*here):
            if all(holds(b, point, at) for b in read.bounds):
                j = tuple(value(e, point, at) for e in read.index)
                wanted.setdefault(j, []).append(point)
        found = dict[tuple[int, ...], list[tuple[int, ...]]]()
        walked = math.prod(sizes)
        assert walked < WALK, f"{walked} points"
        for p in np.ndindex(*sizes):
            if not all(holds(b, p, at) for b in back.bounds):
                continue
            point = tuple(value(e, p, at) for e in back.loops)
            assert all(0 <= i < n for i, n in zip(point, here, strict=True)), (point, here)
            if all(holds(b, point, at) for b in read.bounds):
                found.setdefault(p[: len(read.source.shape)], []).append(point)
        assert {j: sorted(ls) for j, ls in found.items()} == wanted
    return walked


def value(e: Expr, point: tuple[int, ...], at: dict[str, int]) -> int:
    e = substitute(e, {dim(n): num(v) for n, v in at.items()})
    return int(index_value(e, {f"_{i}": v for i, v in enumerate(point)}))


def holds(b: Bound, point: tuple[int, ...], at: dict[str, int]) -> bool:
    return b.lo <= value(b.index, point, at) < int(bind(b.hi, at))


def place(i: int) -> Expr:
    return make("axis", (f"_{i}",))


def random_read(rng: random.Random) -> tuple[Read, tuple[int, ...]]:
    """Sums of loops, divided, taken modulo and added again, with bounds; each index is brought into
    its source by a modulo or by a bound."""
    shape = tuple(rng.choice((1, 2, 3, 4, 5, 6)) for _ in range(rng.randint(1, 3)))

    sums = list[Expr]()

    def some() -> Expr:
        e = num(rng.randint(-3, 4))
        for i in range(len(shape)):
            if shape[i] > 1 and rng.random() < 0.6:
                e = add(e, mul(place(i), rng.choice((1, 1, 1, 2, 3, 5, -1, -2, 6))))
        e = add(rng.choice(sums), rng.randint(0, 2)) if sums and rng.random() < 0.4 else e
        sums.append(e)
        for _ in range(rng.randint(0, 2)):
            if e.kind != "num":
                e = make(rng.choice(("div", "mod")), (rng.choice((2, 3, 4, 6)),), (e,))
                e = add(e, rng.randint(0, 2)) if rng.random() < 0.3 else e
        return e

    sizes = tuple(rng.choice((1, 2, 3, 5, 6)) for _ in range(rng.randint(1, 2)))
    index, bounds = [], []
    for n in sizes:
        e = some()
        if rng.random() < 0.5:
            bounds.append(Bound(e, 0, n))
        elif e.kind == "num":
            e = num(e.attr[0] % n)
        else:
            e = make("mod", (n,), (e,))
        index.append(e)
    if rng.random() < 0.3:
        lo = rng.randint(-1, 2)
        bounds.append(Bound(some(), lo, lo + rng.choice((1, 1, 2, 3))))
    source = Node("x", "input", DType.F64, tuple(f"d{i}" for i in range(len(sizes))), sizes)
    return Read(source, tuple(index), tuple(bounds)), shape


@check
def fibres_of_random_reads(grad: Package) -> None:
    rng = random.Random(5)
    for _ in range(MANY):
        solved(grad, *random_read(rng))


@check
def adjoints_of_random_reads(grad: Package) -> None:
    rng = random.Random(7)
    for seed in range(MANY):
        read, shape = random_read(rng)
        m = Model()
        x, dy = m.input("x", read.source.shape, "f64"), m.input("dy", shape, "f64")
        assert isinstance(x.operand, Read)
        t = Tensor(m, replace(read, source=x.operand.source), shape)
        d = np.random.default_rng(seed).standard_normal(shape)
        wanted = np.zeros([int(n) for n in read.source.shape])
        for point in np.ndindex(*shape):
            if all(holds(b, point, {}) for b in read.bounds):
                wanted[tuple(value(e, point, {}) for e in read.index)] += d[point]
        (g,) = grad.gradients((t * dy).sum(), [x])
        found = run(m, {"g": g}, {"x": np.zeros(wanted.shape), "dy": d})["g"]
        assert found == pytest.approx(wanted, abs=1e-12), (read, shape)


@check
def chains_of_slices_and_reshapes(grad: Package) -> None:
    """Index maps that would grow without end are stored on the way."""

    def shrunk(x: Tensor) -> Tensor:
        for _ in range(12):
            x = x[1:-1, 1:-1] + 1.0
        return x * x

    def turned(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x.T.reshape(33, 35) + 1.0
        return x * x

    for f, shape, at in ((shrunk, (27, 27), 12.0), (turned, (33, 35), 10.0)):
        x = np.random.default_rng(0).standard_normal(shape)
        for n in grown(grad, lambda t, f=f: f(t).sum(), *shape).entries[0].nodes:
            assert all(e.size < 2 * LARGE for r in n.reads for e in r.index), n.name
        (found,) = slopes(grad, f, x)
        wanted = 2 * (x + at)
        if f is shrunk:
            inside = np.zeros(shape)
            inside[12:-12, 12:-12] = 1
            wanted = wanted * inside
        assert found == pytest.approx(wanted, abs=1e-11)


@check
def indices_without_a_proof(grad: Package) -> None:
    """0 <= i + 2 j < 5 and 0 <= 2 i + j < 5, so i + j < 4: taken modulo 4, and refused where 4 is
    a dim."""
    i, j = place(0), place(1)
    bounds = [Bound(add(i, mul(j, 2)), 0, 5), Bound(add(mul(i, 2), j), 0, 5)]
    for extent in (4, None):
        m = Model()
        x = m.input("x", (extent or m.dim("n", 4, 8),), "f64")
        args = (x, (5, 5), [add(i, j)], bounds)
        if extent is None:
            assert "below n" in refused("E0133", lambda args=args: grad.adjoint.seen(*args))
            continue
        at = np.arange(1.0, 5.0)
        found = run(m, {"y": grad.adjoint.seen(*args)}, {"x": at})["y"]
        for p, q in np.ndindex(5, 5):
            inside = p + 2 * q < 5 and 2 * p + q < 5
            assert found[p, q] == (at[p + q] if inside else 0)


MOVES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], int]] = {
    "a permutation": (lambda x: x.permute(2, 0, 1), (3, 4, 5), 60),
    "a slice": (lambda x: x[2:9:2], (12,), 12),
    "windows": (lambda x: x.unfold(0, 3, 1), (12,), 36),
    "windows in steps": (lambda x: x.unfold(0, 3, 2), (13,), 26),
    "windows in steps of 3": (lambda x: x.unfold(0, 5, 3), (14,), 28),
    "windows far apart": (lambda x: x.unfold(0, 2, 3), (14,), 14),
    "an odd reshape": (lambda x: x.reshape(9, 8), (4, 3, 6), 72),
    "an odd reshape of a slice": (lambda x: x[1:7].reshape(4, 15), (8, 10), 80),
    "a reshape of rows turned": (lambda x: x.T.reshape(6, 10), (4, 15), 60),
    "copies": (lambda x: x.repeat(3), (7,), 21),
    "copies side by side": (lambda x: x.repeat_interleave(3, 0), (7,), 21),
    "part of copies": (lambda x: x.repeat_interleave(4, 0)[3:25], (7,), 28),
    "zeros between": (lambda x: x.unsqueeze(1).pad([(0, 0), (0, 2)]).flatten()[:19], (7,), 7),
    "windows over zeros between": (
        lambda x: x.unsqueeze(1).pad([(0, 0), (0, 1)]).flatten()[:13].unfold(0, 3, 1),
        (7,),
        21,
    ),
    "counted from the end": (lambda x: x.flip(0).unfold(0, 3, 2), (13,), 26),
    "a diagonal": (lambda x: x.diagonal(), (5, 5), 25),
}


@check
def fibres_of_movements_are_small(grad: Package) -> None:
    for name, (f, shape, most) in MOVES.items():
        t = f(Model().input("x", shape, "f64"))
        assert solved(grad, t.operand, t.shape) <= most, name


@check
def fibres_over_dims(grad: Package) -> None:
    m = Model()
    n, k = m.dim("n", 1, 6), m.dim("k", 2, 4)
    dims = dict(m.dims)
    x, z = m.input("x", (n, 3, 4), "f64"), m.input("z", (n, k), "f64")
    for t in (
        z.T,
        z.flip(1)[1:],
        z.unsqueeze(1).expand(n, n, k),
        z.unfold(1, 2, 1),
        z.pad([(1, 2), (0, 3)]),
        x.permute(1, 2, 0),
        x.flatten(0, 1),
        x.flatten(),
        x.reshape(n, 3, 2, 2)[:, :, 1],
        x[:, 1:, ::2],
        x.flip(0).unfold(2, 3, 1),
        x.repeat_interleave(2, 0),
        x.flatten(0, 1).unfold(0, 3, 3),
    ):
        solved(grad, t.operand, t.shape, dims)


# ---- ties, kinks, dtypes


@check
def equal_maxima_share(grad: Package) -> None:
    (rows,) = slopes(grad, lambda x: x.max(1), [[1, 1, 0], [2, 5, 5], [4, 4, 4]])
    assert rows == pytest.approx(np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [1 / 3] * 3]))
    (both,) = slopes(grad, lambda x: x.max((0, 1)), [[3, 3, 0], [3, 1, 0]])
    assert both == pytest.approx(np.array([[1 / 3, 1 / 3, 0], [1 / 3, 0, 0]]))
    (twice,) = slopes(grad, lambda x: x.max(1).max(0) + x.max(1).sum(), [[3.0, 3.0], [3.0, 1.0]])
    assert twice == pytest.approx(np.array([[0.75, 0.75], [1.5, 0]]))


@check
def inner_maxima(grad: Package) -> None:
    m = Model()
    x = m.input("x", (2, 2), "f64")
    rows = x.max(1)
    loss = rows.max(0) * 2.0 + x.sum()
    by_rows, by_x = grad.gradients(loss, [rows, x])
    (stopped,) = grad.gradients(loss, [x], stop=[rows])
    found = run(m, {"r": by_rows, "x": by_x, "s": stopped}, {"x": np.array([[3.0, 3], [3, 1]])})
    assert found["r"].tolist() == [1, 1]
    assert found["x"].tolist() == [[1.5, 1.5], [2, 1]]
    assert found["s"].tolist() == [[1, 1], [1, 1]]


@check
def a_maximum_is_a_loss(grad: Package) -> None:
    for f in (lambda x: x.max(), lambda x: x.max() * 3.0):
        (found,) = slopes(grad, f, [[1.0, 5.0], [4.0, 2.0]])
        assert (found > 0).tolist() == [[False, True], [False, False]]


@check
def kinks_are_those_of_the_branch(grad: Package) -> None:
    (found,) = slopes(grad, lambda x: x.relu() + x.abs() * 10.0, [-1.0, 0.0, 2.0])
    assert found.tolist() == [-10.0, 11.0, 11.0]
    x, y = slopes(grad, lambda x, y: where(x < y, x * x, y), [1.0, 2.0], [1.5, 1.0])
    assert (x.tolist(), y.tolist()) == ([2.0, 0.0], [0.0, 1.0])


@check
def selects_hide_what_is_infinite(grad: Package) -> None:
    (found,) = slopes(grad, lambda x: where(x > 0, x, 0.0) * 2.0, [math.inf, -math.inf, 1.0])
    assert found.tolist() == [2.0, 0.0, 2.0]


@check
def gradients_have_the_dtype_of_what_they_are_by(grad: Package) -> None:
    for dtype in ("f16", "bf16", "f32", "f64"):
        (found,) = slopes(grad, lambda x: x.sin() * x.exp2(), [0.5, 0.25], dtype=dtype)
        x = np.array([0.5, 0.25])
        assert found == pytest.approx(2**x * (np.cos(x) + math.log(2) * np.sin(x)), rel=1e-9)


@check
def casts_go_back(grad: Package) -> None:
    m = Model()
    x = m.input("x", (3,), "f16")
    (g,) = grad.gradients((x.to("f32") * 3.0).sum(), [x])
    assert g.dtype is DType.F16
    assert run(m, {"g": g}, {"x": np.zeros(3, "f2")})["g"].tolist() == [3.0, 3.0, 3.0]


# ---- what is asked by


@check
def values_on_the_way(grad: Package) -> None:
    m = Model()
    x, w = m.input("x", (2, 3), "f64"), m.constant(np.arange(12.0).reshape(3, 4), "w")
    h = x @ w
    loss = (h * h).sum() * 0.5
    by_h, by_w, by_turned, by_column = grad.gradients(loss, [h, w, h.T, h[:, None]])
    assert (by_turned.shape, by_column.shape) == ((4, 2), (2, 1, 4))
    at = np.arange(6.0).reshape(2, 3)
    results = {"h": by_h, "w": by_w, "t": by_turned, "c": by_column}
    found = run(m, results, {"x": at})
    values = m.constants["w"]
    assert found["h"] == pytest.approx(at @ values)
    assert found["t"] == pytest.approx((at @ values).T)
    assert found["c"] == pytest.approx((at @ values)[:, None])
    assert found["w"] == pytest.approx(at.T @ at @ values)


@check
def a_loss_by_itself_is_1(grad: Package) -> None:
    m = Model()
    x = m.input("x", (1, 1), "f64")
    y = x.exp()
    by_x, by_y = grad.gradients(y, [x, y])
    found = run(m, {"x": by_x, "y": by_y}, {"x": np.array([[0.5]])})
    assert (found["x"], found["y"]) == (pytest.approx(math.exp(0.5)), pytest.approx(1.0))


@check
def what_stops_is_constant(grad: Package) -> None:
    m = Model()
    x = m.input("x", (3,), "f64")
    h = x * x
    (g,) = grad.gradients((h * x).sum(), [x], stop=[h])
    said = refused("E0132", lambda: grad.gradients((h * 2.0).sum(), [x], stop=[h]))
    assert "counts as constant" in said
    assert run(m, {"g": g}, {"x": np.array([1.0, 2, 3])})["g"].tolist() == [1.0, 4.0, 9.0]


@check
def states_after_an_update(grad: Package) -> None:
    m = Model()
    s, x, y = m.state("s", (4, 2), "f64"), m.input("x", (2,), "f64"), m.input("y", (4, 2), "f64")
    now = m.updated(s, x.contiguous(), (1,))
    g = grad.gradients((now * y).sum(), [x, s])
    rows = np.arange(8.0).reshape(4, 2)
    found = run(m, {"x": g[0], "s": g[1]}, {"x": np.ones(2), "y": rows})
    assert found["x"].tolist() == [2.0, 3.0]
    assert found["s"].tolist() == [[0, 1], [0, 0], [4, 5], [6, 7]]


@check
def what_has_no_gradient_is_refused(grad: Package) -> None:
    m = Model()
    x, i = m.input("x", (2, 3)), m.input("i", (3,), "i64")
    loss, other = (x * x).sum(), m.input("z", (3,))
    assert "f32[2, 3]" in refused("E0130", lambda: grad.gradients(x, [x]))
    assert "i64[]" in refused("E0130", lambda: grad.gradients(i.sum(), [x]))
    assert "i64[3]" in refused("E0131", lambda: grad.gradients(loss, [i]))
    assert "view of 'x'" in refused("E0131", lambda: grad.gradients(loss, [x[:1]]))
    assert "view of 'z'" in refused("E0131", lambda: grad.gradients(loss, [other.expand(2, 3)]))
    assert "view of 'x'" in refused("E0131", lambda: grad.gradients(loss, [x.pad([(0, 1)] * 2)]))
    assert "number" in refused("E0131", lambda: grad.gradients(loss, [m.full((), 1.0)]))
    assert "'z'" in refused("E0132", lambda: grad.gradients(loss, [x, other]))
    assert "number" in refused("E0132", lambda: grad.gradients(m.full((), 1.0), [x]))
    said = refused("E0132", lambda: grad.gradients((x > 0).to("f32").sum(), [x]))
    assert "a list" in refused("E0131", lambda: grad.gradients(loss, x))
    refused("E0126", lambda: grad.gradients(loss, [Model().input("x", (2,))]))
    assert grad.gradients(loss, []) == []
    assert "is a comparison" in said and "by 'x'" in said
    said = refused("E0132", lambda: grad.gradients(x.to("i32").to("f32").sum(), [x]))
    assert "is of i32" in said


@check
def a_second_derivative(grad: Package) -> None:
    m = Model()
    x = m.input("x", (4,), "f64")
    (g,) = grad.gradients((x.sin() * x).sum(), [x])
    (h,) = grad.gradients(g.sum(), [x])
    (t,) = grad.gradients(h.sum(), [x])
    at = np.array([0.0, 1e-9, math.pi, 2.5])
    found = run(m, {"h": h, "t": t}, {"x": at})
    assert found["h"] == pytest.approx(2 * np.cos(at) - at * np.sin(at), abs=1e-12)
    assert found["t"] == pytest.approx(-3 * np.sin(at) - at * np.cos(at), abs=1e-12)


# ---- what needs no work


def grown(grad: Package, f: Callable[[Tensor], Tensor], *shape: int) -> Graph:
    m = Model()
    x = m.input("x", shape, "f64")
    (g,) = grad.gradients(f(x), [x])
    m.output("g", g)
    return m.graph()


@check
def nothing_comes_of_nothing(grad: Package) -> None:
    graph = grown(grad, lambda x: (x.T @ x).exp().sum(), 0, 3)
    assert [n.op for n in graph.entries[0].nodes] == [Op.CONTIGUOUS]


@check
def maxima_that_cancel_cost_nothing(grad: Package) -> None:
    def ops(graph: Graph) -> list[Any]:
        return [n.op for n in graph.entries[0].nodes]

    weights = np.arange(5.0)
    for f in (
        lambda x: (x.softmax(-1) * weights).sum(),
        lambda x: (x.log_softmax(-1) * weights).sum(),
        lambda x: ((x @ x.T).softmax(-1) @ x).square().sum(),
        lambda x: (x.softmax(0) * x.log_softmax(-1)).sum(),
        lambda x: (((x > 0) * x.softmax(-1)).softmax(-1) * weights).sum(),
        lambda x: ((shifted(x) > -1.0) * shifted(x).exp() / shifted(x).exp().sum(-1, True)).sum(),
    ):
        m = Model()
        f(m.input("x", (4, 5), "f64"))
        mine = sum(n.op is Op.LT for n in m.builder.nodes)
        assert ops(grown(grad, f, 4, 5)).count(Op.LT) <= mine
    assert Op.LT in ops(grown(grad, lambda x: x.max(-1).sum(), 4, 5))


@check
def what_overflows_gives_nothing_back(grad: Package) -> None:
    """Where a function is flat, its slope is 0, whether or not a power in it overflows."""
    far = [-4000.0, -800.0, 800.0, 4000.0]
    for f, below, above in (
        (lambda x: x.sigmoid(), 0.0, 0.0),
        (lambda x: x.tanh(), 0.0, 0.0),
        (lambda x: x.silu(), 0.0, 1.0),
        (lambda x: x.gelu(), 0.0, 1.0),
        (lambda x: x.gelu("tanh"), 0.0, 1.0),
        (lambda x: x.elu(), 0.0, 1.0),
    ):
        (found,) = slopes(grad, f, far)
        assert found == pytest.approx([below, below, above, above])
        second = slopes(grad, lambda x, f=f: grad.gradients(f(x).sum(), [x])[0], far)[0]
        assert second == pytest.approx(np.zeros(4))
    for f, slope in (
        (lambda x: x.atan(), 1.0),
        (lambda x: x.asinh(), 1.0),
        (lambda x: x.tan(), 1.0),
        (lambda x: x.cos(), 0.0),
    ):
        assert slopes(grad, f, [0.0, -1e-9])[0] == pytest.approx([slope, slope], abs=1e-6)


@check
def what_is_infinite_flows(grad: Package) -> None:
    """A slope that is too large is infinite; and by what a power is weighted with, also if 0."""
    with np.errstate(all="ignore"):
        assert slopes(grad, lambda x: x.exp(), [800.0])[0] == math.inf
    (by_x,) = slopes(grad, lambda w: grad.gradients((3.0 * w).exp().sum(), [w])[0], [0.0])
    assert by_x == pytest.approx(9.0)

    def weighted(x: Tensor, w: Tensor) -> Tensor:
        return grad.gradients((x.exp() * w).sum(), [x])[0]

    assert slopes(grad, weighted, [0.5], [0.0])[1] == pytest.approx(math.exp(0.5))


@check
def maxima_that_cancel_do(grad: Package) -> None:
    """Moved by anything, a maximum of which the proof says so leaves the loss as it is."""
    free = 0
    for name in (n for n in CASES if "shifted" in n or "softmax" in n or "attention" in n):
        case, m = CASES[name], Model()
        xs = [m.input(f"x{i}", s, "f64") for i, s in enumerate(case.shapes)]
        y = case.ours(*xs)
        loss = (y * m.input("dy", y.shape, "f64")).sum()
        assert isinstance(loss.operand, Read)
        end, tops = loss.operand.source, [n for n in m.builder.nodes if n.op is Op.MAX]
        flow = grad.reverse.Flow(m, end, [x.operand.source for x in xs], ())
        tops = [n for n in tops if n in flow.cancelled]
        for i, n in enumerate(tops):
            m.name(m.whole(n), f"top{i}")
        m.output("y", loss)
        graph, rng = m.graph(), np.random.default_rng(1)
        feed = {n.name: rng.standard_normal(n.sizes) for n in graph.entries[0].inputs}
        for i in range(len(tops)):
            moved = [replaced(graph, f"top{i}", feed, seed) for seed in (1, 2)]
            assert moved[0] == pytest.approx(moved[1], rel=1e-11, abs=1e-11), name
            free += 1
    assert free >= 8


def replaced(graph: Graph, name: str, feed: dict[str, Array], seed: int) -> float:
    """The output where a node has other values."""
    lines = print_graph(graph).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{name} "))
    (node,) = (n for n in graph.entries[0].nodes if n.name == name)
    lines[at] = f"input {name} f64[{', '.join(map(str, node.shape))}]"
    text = [lines[0], lines[at], *lines[1:at], *lines[at + 1 :]]
    other = parse_graph("\n".join(text) + "\n")
    value = np.random.default_rng(seed).standard_normal(node.sizes)
    given = {n.name: (feed | {name: value})[n.name] for n in other.entries[0].inputs}
    return float(evaluate(other, "main", given, lambda n: np.zeros(0))[0]["y"])


# ---- graphs

GRAPH = """lumc graph 1
file "w.safetensors" size 8 sha256 SHA
weight w f64[3] "w.safetensors" "w"
weight v f64[3] "w.safetensors" "v"
weight k i64[3] "w.safetensors" "k"
state s f64[3]

entry train
input x f64[3]
p f64[i:3] = mul x[i], w[i]
q f64[i:3] = mul p[i], s[i]
t0 f64[] = sum i:3 of q[i]
now = update s[i] = p[i]
r f64[i:3] = mul now[i], v[i]
output y = r
output loss = t0

entry other
q f64[i:3] = mul w[i], v[i]
output z = q

entry reset
output same = v
update s[d0] = w[d0]
""".replace("SHA", "0" * 64)
GROWN = """state s f64[3]

entry train
input x f64[3]
input w f64[3]
p f64[i:3] = mul x[i], w[i]
q f64[i:3] = mul p[i], s[i]
t0 f64[] = sum i:3 of q[i]
now = update s[i] = p[i]
r f64[i:3] = mul now[i], v[i]
t1 f64[i:3] = mul s[i], x[i]
t2 f64[i:3] = contiguous s[i]
output y = r
output loss = t0
output p.grad = t2
output w.grad = t1

entry other
input w f64[3]
q f64[i:3] = mul w[i], v[i]
output z = q

entry reset
input w f64[3]
output same = v
update s[d0] = w[d0]
"""


@check
def graphs_keep_all_that_was_there(grad: Package) -> None:
    graph = parse_graph(GRAPH)
    made = grad.with_gradients(graph, "train", "loss", ["p", "w"])
    verify_graph(made.graph)
    assert (made.wrt, made.unused) == (["p", "w"], [])
    head, _, rest = print_graph(made.graph).partition("state")
    assert "state" + rest == GROWN
    assert ("weight v" in head, "weight w" in head) == (True, False)


@check
def names_and_patterns(grad: Package) -> None:
    graph = parse_graph(GRAPH)
    made = grad.with_gradients(graph, "train", "loss", ["*"])
    assert (made.wrt, made.unused) == (["x", "w", "s"], ["v"])
    made = grad.with_gradients(graph, "train", "loss", ["s", "?"], ["p"])
    assert (made.wrt, made.unused) == (["s"], ["x", "w", "v"])
    for names in (["z"], ["q*"], ["x", "y*"]):
        refused("E0212", lambda names=names: grad.with_gradients(graph, "train", "loss", names))
    refused("E0212", lambda: grad.with_gradients(graph, "train", "z", ["x"]))
    refused("E0212", lambda: grad.with_gradients(graph, "train", "loss", ["x"], ["z"]))
    refused("E0131", lambda: grad.with_gradients(graph, "train", "loss", ["k"]))
    said = refused("E0132", lambda: grad.with_gradients(graph, "train", "loss", ["v"]))
    assert "'v'" in said
    said = refused("E0132", lambda: grad.with_gradients(graph, "train", "loss", ["v*"]))
    assert "it depends on: x, w, s" in said


@check
def a_stop_in_a_graph(grad: Package) -> None:
    text = GRAPH.replace("mul p[i], s[i]", "mul p[i], w[i]")
    made = grad.with_gradients(parse_graph(text), "train", "loss", ["w"], ["p"]).graph
    slope = dict(made.entries[0].outputs)["w.grad"]
    assert slope.name == "p"


# ---- dims


@check
def copies_along_a_dim(grad: Package) -> None:
    m = Model()
    n, x = m.dim("n", 1, 8), m.input("x", (3,), "f64")
    rows = m.input("rows", (n,), "f64")
    (g,) = grad.gradients((x.expand(n, 3) * 2.0).sum() + rows.sum(), [x])
    m.output("g", g + rows.sum() * 0.0)
    graph = m.graph()
    feed = {"x": np.ones(3), "rows": np.ones(5)}
    found, _ = evaluate(
        graph, "main", {i.name: feed[i.name] for i in graph.entries[0].inputs}, m.read_weight
    )
    assert found["g"].tolist() == [10.0] * 3


@check
def dims_of_a_run(grad: Package) -> None:
    """Of batches, of lengths, of images: as with the numbers in their place."""
    for name, f, shapes in (
        ("mlp", lambda x, w: ((x @ w).relu() @ w.T).square().mean(), [("n", 4), (4, 6)]),
        (
            "attention",
            lambda q, k: ((q @ k.T).softmax(-1) @ k).square().sum(),
            [("n", 4), ("m", 4)],
        ),
        ("layer norm", lambda x, w: (x.layer_norm(w) * x).sum(), [("n", 4), (4,)]),
        ("norm over a dim", lambda x, w: (x.layer_norm(axis=0) * w).exp().sum(), [("n", 4), (4,)]),
        (
            "conv",
            lambda x, w: x.conv2d(w, stride=2, padding=1).square().mean(),
            [("n", 2, 7, 6), (3, 2, 3, 3)],
        ),
        (
            "image",
            lambda x, w: x.conv2d(w, padding=1).square().mean(),
            [(1, 2, "n", 5), (3, 2, 3, 3)],
        ),
        ("pool", lambda x, w: x.max_pool(2, 2).square().sum() * w, [("n", 2, 6, 6), ()]),
        ("slices", lambda x, y: (x[:, 1:3] * y[:, :2]).exp().sum(), [("n", 4), ("n", 3)]),
        ("flattened", lambda x, w: (x.flatten(1) @ w).exp().sum(), [("n", 2, 3), (6, 2)]),
        ("merged", lambda x, w: (x.flatten(0, 1) @ w).exp().sum(), [("n", 2, 3), (3, 2)]),
        ("causal", lambda x, w: (x.cumsum(0) @ w).exp().sum(), [("n", 3), (3, 2)]),
        (
            "joined",
            lambda x, y: x.pad([(0, 2), (0, 0)]).exp().sum() * y.sum(),
            [("n", 3), ("m", 2)],
        ),
        (
            "lookup",
            lambda x, w: w.index_select(0, x.model.arange(x.shape[0]) % 3).exp().sum() * x.sum(),
            [("n",), (3, 2)],
        ),
    ):
        found = [dims_case(grad, f, shapes, static) for static in (False, True)]
        for a, b in zip(*found, strict=True):
            assert a == pytest.approx(b, rel=1e-11, abs=1e-11), name


def dims_case(grad: Package, f: Any, shapes: list[Any], static: bool) -> list[Array]:
    sizes, m = {"n": 3, "m": 5}, Model()
    dims = {s: n if static else m.dim(s, 1, 8) for s, n in sizes.items()}
    xs = [m.input(f"x{i}", [dims.get(e, e) for e in s], "f64") for i, s in enumerate(shapes)]
    loss = f(*xs)
    for i, g in enumerate(grad.gradients(loss, xs)):
        m.output(f"g{i}", g)
    graph, rng = m.graph(), np.random.default_rng(2)
    verify_graph(graph)
    feed = {f"x{i}": rng.uniform(-1, 1, [sizes.get(e, e) for e in s]) for i, s in enumerate(shapes)}
    at = {} if static else {k: v for k, v in sizes.items() if k in graph.dims}
    feed = {n.name: feed[n.name] for n in graph.entries[0].inputs}
    return [*evaluate(graph, "main", feed, m.read_weight, dims=at)[0].values()]
