"""The oracle against numpy written out: every primitive, dtype and kind of read."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_reference import RandomGraph, close, random_array, reference
from lumc.errors import LumcError
from lumc.graph.builder import Builder
from lumc.graph.expr import add, axis, dim, floordiv, mod, mul, num
from lumc.graph.graph import Bound, Iota, Read, Scalar, Update
from lumc.graph.ops import FLOATS, INTS, DType, Op, from_bf16, to_bf16
from lumc.graph.text import parse_graph
from lumc.oracle import graph as oracle
from lumc.oracle.graph import evaluate

F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL
NUMBERS = [*FLOATS, *INTS]
SPECIAL = np.array([0.0, -0.0, 1.0, -2.5, 3.25, 1e-3, 700.0, np.inf, -np.inf, np.nan, 2.0, -7.5])


def values_for(dtype, n=12, seed=0):
    """As the caller passes it, and as float64 or integers."""
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        given = SPECIAL[rng.permutation(n)] if seed else SPECIAL[:n]
        given = to_bf16(given) if dtype is DType.BF16 else given.astype(dtype.numpy)
        return given, (from_bf16(given) if dtype is DType.BF16 else given).astype(np.float64)
    if dtype is BOOL:
        x = rng.integers(0, 2, n).astype(bool)
    else:
        lo, hi = dtype.limits
        x = np.array([lo, hi, 0, 1, *rng.integers(max(lo, -99), 99, n - 4)], object).astype(
            dtype.numpy
        )
    return x, x


def one(op, dtypes, arrays, out=None, reduced=False, declared=False):
    """One node over ``i`` (or reducing it), on arrays of one axis."""
    b = Builder()
    n = len(arrays[0])
    leaves = [b.leaf("input", f"x{i}", d, (n,)) for i, d in enumerate(dtypes)]
    reads = [Read(x, (axis("i"),)) for x in leaves]
    loops = [] if reduced else [("i", n)]
    b.node(op, reads, loops, ("i", n) if reduced else None, out)
    b.outputs.append(("y", b.nodes[0]))
    b.finish()
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    return evaluate(b.graph(), "main", given, None, declared=declared)[0]["y"]


def same(got, want):
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want)) or got.dtype.kind != "f"


UNARY = {
    Op.LOG2: np.log2, Op.EXP2: np.exp2, Op.SIN: np.sin, Op.SQRT: np.sqrt,
    Op.RECIP: lambda x: 1 / x,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_unary(op, dtype):
    given, x = values_for(dtype)
    with np.errstate(all="ignore"):
        same(one(op, [dtype], [given]), UNARY[op](x))
        got = one(op, [dtype], [given], declared=True)
        if dtype in (DType.F16, DType.BF16):  # computed in f32, then rounded
            want = UNARY[op](x.astype(np.float32))
            want = to_bf16(want) if dtype is DType.BF16 else want.astype(np.float16)
        else:
            want = UNARY[op](x.astype(dtype.numpy))
    assert got.dtype == dtype.numpy
    same(got, want)


BINARY = {
    Op.ADD: lambda a, b: a + b,
    Op.MUL: lambda a, b: a * b,
    Op.LT: lambda a, b: a < b,
    Op.MOD: lambda a, b: np.fmod(a, b),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", BINARY)
def test_binary(op, dtype):
    (first, a), (second, b) = values_for(dtype), values_for(dtype, seed=3)
    with np.errstate(all="ignore"):
        want = BINARY[op](a, b)
    got = one(op, [dtype, dtype], [first, second])
    assert got.dtype == want.dtype
    same(got, want)


def test_binary_on_bool_is_logic():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    same(one(Op.ADD, [BOOL, BOOL], [a, b]), a | b)
    same(one(Op.MUL, [BOOL, BOOL], [a, b]), a & b)
    same(one(Op.LT, [BOOL, BOOL], [a, b]), ~a & b)


def test_mod_keeps_the_sign_of_the_dividend_and_of_nothing_is_zero():
    a, b = np.array([7, -7, 7, -7, 5, -(2**31)], "i4"), np.array([3, 3, -3, -3, 0, -1], "i4")
    same(one(Op.MOD, [DType.I32] * 2, [a, b]), np.array([1, -1, 1, -1, 0, 0], "i4"))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_select_leaks_nothing(dtype):
    mask = np.arange(12) % 2 == 0
    given, x = values_for(dtype)
    same(one(Op.MUL, [BOOL, dtype], [mask, given]), np.where(mask, x, np.zeros_like(x)))


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("dtype", [*NUMBERS, BOOL])
def test_reductions(dtype, declared):
    given, x = values_for(dtype)
    for n in (0, 1, 3, 12):
        low = -np.inf if dtype.is_float else dtype.limits[0] if dtype.is_int else False
        best = one(Op.MAX, [dtype], [given[:n]], reduced=True, declared=declared)
        want = np.array(low) if n == 0 else x[:n].max()
        is_bits = dtype is DType.BF16 and best.dtype == "u2"
        close(from_bf16(best) if is_bits else best, np.array(want), rtol=1e-3)
        if dtype is not BOOL:
            total = one(Op.SUM, [dtype], [given[:n]], reduced=True, declared=declared)
            total = from_bf16(total) if is_bits else total
            with np.errstate(all="ignore"):
                kind = np.float64 if dtype.is_float else x.dtype
                close(total, x[:n].sum(dtype=kind), rtol=1e-2 if declared else 1e-12)


def test_max_keeps_nan_and_an_infinity():
    x = np.array([1.0, np.nan, 3.0], "f4")
    assert np.isnan(one(Op.MAX, [F32], [x], reduced=True))
    assert one(Op.MAX, [F32], [np.full(3, -np.inf, "f4")], reduced=True) == -np.inf


def test_f16_sums_accumulate_in_f32():
    x = np.ones(5000, np.float16)
    assert one(Op.SUM, [DType.F16], [x], reduced=True, declared=True) == np.float16(5000)
    bits = to_bf16(np.ones(1000))
    assert from_bf16(one(Op.SUM, [DType.BF16], [bits], reduced=True, declared=True)) == 1000


@pytest.mark.parametrize(("dtype", "step"), [("f16", 2**-12), ("bf16", 2**-9), ("f32", 2**-25)])
def test_declared_mode_rounds_every_stored_value(dtype, step):
    graph = parse_graph(f"""lumc graph 1
a {dtype}[] = add {dtype}(1.0), {step}
b {dtype}[] = add a[], -1.0
c f64[] = contiguous b[]
output y = c
""")
    assert evaluate(graph, "main", {}, None, declared=True)[0]["y"] == 0
    assert evaluate(graph, "main", {}, None)[0]["y"] == step


CASTS = [(a, b) for a in (*FLOATS, *INTS, BOOL) for b in (*FLOATS, *INTS, BOOL)]


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts(source, target):
    x = np.array([0, 1, 2, 100, 3.75, 7.25])
    if source.is_int or source is BOOL:
        x = np.trunc(x).astype(source.numpy)
    given = to_bf16(x) if source is DType.BF16 else x.astype(source.numpy)
    plain = from_bf16(given) if source is DType.BF16 else given
    got = one(Op.CONTIGUOUS, [source], [given], target, declared=True)
    if target is DType.BF16:
        want = to_bf16(plain.astype(np.float32))
    else:
        want = (plain != 0) if target is BOOL else plain.astype(target.numpy)
    assert got.dtype == target.numpy
    same(got, want)
    exact = one(Op.CONTIGUOUS, [source], [given], target)
    if source.is_float and target.is_float:  # f64 mode does not round
        same(exact, plain.astype(np.float64))


def test_integer_casts_wrap():
    x = np.array([-1, 300, 2**40 + 5])
    same(one(Op.CONTIGUOUS, [I64], [x], DType.U8), np.array([255, 44, 5], np.uint8))
    same(one(Op.CONTIGUOUS, [I64], [x], DType.I32), np.array([-1, 300, 5], np.int32))


def test_bf16_bits():
    x = np.array([1.0, -2.5, 3.14159, 1e38, 3.4e38, np.inf, -np.inf, np.nan, 1e-40, 1 + 2**-9])
    back = from_bf16(to_bf16(x))
    np.testing.assert_allclose(back[:4], x[:4], rtol=2**-8)
    assert back[4] == np.inf and back[5] == np.inf and back[6] == -np.inf and np.isnan(back[7])
    assert to_bf16(np.float32(1 + 2**-8)) == 0x3F80 and to_bf16(np.float32(1 + 3 * 2**-8)) == 0x3F82
    assert np.isnan(from_bf16(to_bf16(np.array([0x7FFFFFFF], np.uint32).view(np.float32))))
    every = np.arange(1 << 16, dtype=np.uint16)
    again = to_bf16(from_bf16(every))
    real = ~np.isnan(from_bf16(every))
    same(again[real], every[real])
    assert from_bf16(np.array(0x3F80, np.uint16)).shape == ()


# ---- reads


def run(build, declared=False, states=None, **arrays):
    """The output of a graph that ``build(builder, leaves)`` makes."""
    b = Builder()
    names = {np.dtype(d.numpy): d for d in DType if d is not DType.BF16}
    leaves = {k: b.leaf("input", k, names[a.dtype], a.shape) for k, a in arrays.items()}
    b.outputs.append(("y", build(b, **leaves)))
    b.finish()
    return evaluate(b.graph(), "main", arrays, None, states, declared)[0]["y"]


def read(node, axes=None):
    return Read(node, tuple(axis(a) for a in axes or node.axes))


RNG = np.random.default_rng(7)
X = RNG.standard_normal((5, 7))


def test_transpose_slice_reverse_broadcast_and_reshape():
    def build(index, *loops):
        return run(lambda b, x: b.node(Op.CONTIGUOUS, [Read(x, index)], list(loops)), x=X)

    same(build((axis("j"), axis("i")), ("i", 7), ("j", 5)), X.T)
    same(build((add("i", 2), mul("j", 3)), ("i", 3), ("j", 3)), X[2:, ::3])
    same(build((add(mul("i", -1), 4), axis("j")), ("i", 5), ("j", 7)), X[::-1])
    same(build((axis("i"), num(3)), ("k", 2), ("i", 5)), np.stack([X[:, 3]] * 2))
    same(build((axis("i"), axis("i")), ("i", 5)), np.diag(X[:, :5]))
    flat = floordiv("i", 7, {}), mod("i", 7, {})
    same(build(flat, ("i", 35)), X.reshape(-1))
    place = add(mul("i", 5), "j")
    rows = floordiv(place, 7, {}), mod(place, 7, {})
    same(build(rows, ("i", 7), ("j", 5)), X.reshape(7, 5))
    same(build((num(0), num(0))), X[0, 0])
    same(build((axis("i"), axis("j")), ("i", 0), ("j", 7)), X[:0])


@pytest.mark.parametrize("block", [1 << 24, 50])
def test_convolution_with_padding(monkeypatch, block):
    monkeypatch.setattr(oracle, "BLOCK", block)
    img, w = RNG.standard_normal((2, 5, 7)), RNG.standard_normal((4, 2, 3, 3))

    def build(b, img, w):
        y, x = add("y", "u", -1), add("x", "v", -1)
        window = Read(img, (axis("c"), y, x), (Bound(y, 0, 5), Bound(x, 0, 7)))
        loops = [("o", 4), ("y", 5), ("x", 7), ("c", 2), ("u", 3), ("v", 3)]
        kernel = Read(w, tuple(axis(a) for a in "ocuv"))
        t = b.node(Op.MUL, [window, kernel], loops)
        while len(loops) > 3:
            over = loops.pop()
            t = b.node(Op.SUM, [read(t)], loops, over)
        return t

    padded = np.pad(img, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    np.testing.assert_allclose(run(build, img=img, w=w), np.einsum("cyxuv,ocuv->oyx", windows, w))


def test_a_bound_is_zero_outside_also_for_operations_and_scalars():
    def build(b, x):
        guard = (Bound(add("i", -1), 0, 3),)
        e = b.node(Op.EXP2, [Read(x, (axis("i"),))], [("i", 5)])
        p = b.node(Op.CONTIGUOUS, [Read(e, (axis("i"),), guard)], [("i", 5)])
        s = b.node(Op.ADD, [Read(p, (axis("i"),)), Scalar(F64, 10.0, guard)], [("i", 5)])
        k = Iota(F64, add(mul("i", 100), 100), guard)
        return b.node(Op.ADD, [Read(s, (axis("i"),)), k], [("i", 5)])

    x = np.array([np.nan, 1.0, 2.0, 3.0, np.inf])
    same(run(build, x=x), np.array([0.0, 212.0, 314.0, 418.0, 0.0]))


# ---- contraction


def products(b, a, c):
    """``sum_k a[i,k] * c[k,j]`` as two nodes."""
    loops = [("i", 4), ("j", 6), ("k", 5)]
    p = b.node(Op.MUL, [read(a, "ik"), read(c, "kj")], loops)
    return b.node(Op.SUM, [read(p)], loops[:2], loops[2])


@pytest.mark.parametrize("block", [1 << 24, 40, 7])
@pytest.mark.parametrize("dtype", [d for d in NUMBERS if d is not DType.BF16])
def test_contraction(monkeypatch, block, dtype):
    monkeypatch.setattr(oracle, "BLOCK", block)
    a, c = (random_array(RNG, dtype, s, special=False) for s in ((4, 5), (5, 6)))
    kind = np.float64 if dtype.is_float else a.dtype
    with np.errstate(all="ignore"):
        close(run(products, a=a, c=c), a.astype(kind) @ c.astype(kind), rtol=1e-12)


@pytest.mark.parametrize("block", [1 << 24, 20])
def test_contraction_by_a_select_leaks_nothing(monkeypatch, block):
    monkeypatch.setattr(oracle, "BLOCK", block)
    hot = np.eye(5, dtype=bool)[[3, 0, 3, 1]]
    c = RNG.standard_normal((5, 6))
    same(run(products, a=hot, c=c), c[[3, 0, 3, 1]])
    c[2], c[4] = np.nan, -np.inf  # rows that no row of ``hot`` selects
    same(run(products, a=hot, c=c), c[[3, 0, 3, 1]])
    c[3, 1], c[0, 2] = np.inf, np.nan
    same(run(products, a=hot, c=c), c[[3, 0, 3, 1]])


@pytest.mark.parametrize("block", [1 << 24, 20])
def test_contraction_keeps_nan_and_infinities(monkeypatch, block):
    monkeypatch.setattr(oracle, "BLOCK", block)
    a, c = RNG.standard_normal((4, 5)), RNG.standard_normal((5, 6))
    a[0, 1], a[1, 0], c[0, 0], c[3, 3], a[2, 3] = np.inf, 0.0, np.inf, np.nan, 0.0
    with np.errstate(all="ignore"):
        want = (a[:, None, :] * c.T[None]).sum(-1)
    got = run(products, a=a, c=c)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want)


def test_every_role_of_an_axis_in_a_contraction():
    """Axes in both, one or no factor, kept or summed, with extents 1 among them."""

    def build(b, a, c):
        loops = [("b", 2), ("i", 3), ("j", 4), ("n", 2), ("o", 1), ("k", 5)]
        p = b.node(Op.MUL, [read(a, "bik"), read(c, "bkj")], loops)
        t = b.node(Op.SUM, [read(p)], loops[:5], loops[5])
        t = b.node(Op.SUM, [read(t)], loops[:4], loops[4])
        return b.node(Op.SUM, [read(t)], [*loops[:2], loops[3]], loops[2])

    a, c = RNG.standard_normal((2, 3, 5)), RNG.standard_normal((2, 5, 4))
    want = np.repeat(np.einsum("bik,bkj->bi", a, c)[:, :, None], 2, 2)
    np.testing.assert_allclose(run(build, a=a, c=c), want)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([oracle.BLOCK, 200, 20]))
def test_random_graphs(seed, block):
    r = RandomGraph(np.random.default_rng(seed))
    want, states = reference(r.graph, "main", r.inputs, r.states)
    before, oracle.BLOCK = oracle.BLOCK, block
    try:
        got, after = evaluate(r.graph, "main", r.inputs, None, r.states)
    finally:
        oracle.BLOCK = before
    for name in want:
        close(got[name], want[name])
    for name in states:
        close(after[name], states[name])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_random_graphs_in_declared_dtypes(seed):
    dtypes = (F32, F64, *INTS, BOOL)
    r = RandomGraph(np.random.default_rng(seed), dtypes, nodes=4, special=False)
    want, _ = reference(r.graph, "main", r.inputs, r.states, declared=True)
    got, _ = evaluate(r.graph, "main", r.inputs, None, r.states, declared=True)
    for name, node in r.graph.entries[0].outputs:
        assert got[name].dtype == node.dtype.numpy
        close(got[name], want[name], rtol=1e-3)


# ---- entries, states, weights


def test_states_live_from_run_to_run_and_entries_share_them():
    graph = parse_graph("""lumc graph 1
state cache f32[4, 2]
entry first
input x f32[3, 2]
update cache[i + 1, j] = x[i, j]
entry next
input x f32[2]
t0 f32[j:2] = sum i:4 of cache[i, j]
t1 f32[j:2] = add t0[j], x[j]
output y = t1
update cache[0, j] = t1[j]
""")
    x = RNG.standard_normal((3, 2)).astype("f4")
    outputs, states = evaluate(graph, "first", {"x": x}, None)
    assert not outputs
    same(states["cache"], np.concatenate([np.zeros((1, 2)), x.astype("f8")]))
    outputs, states = evaluate(graph, "next", {"x": x[0]}, None, states)
    np.testing.assert_allclose(outputs["y"], x.sum(0) + x[0], rtol=1e-6)
    same(states["cache"][0], outputs["y"])
    same(states["cache"][1:], x.astype("f8"))


def test_updates_happen_after_the_run_in_order():
    b = Builder()
    s = b.leaf("state", "s", F32, (3,))
    old = b.node(Op.CONTIGUOUS, [Read(s, (axis("i"),))], [("i", 3)])
    one = b.node(Op.CONTIGUOUS, [Scalar(F32, 1.0)], [("i", 3)])
    two = b.node(Op.CONTIGUOUS, [Scalar(F32, 2.0)], [("i", 2)])
    b.outputs = [("old", old), ("itself", s)]
    b.updates = [Update(s, (axis("i"),), one), Update(s, (add("i", 1),), two)]
    b.finish()
    start = np.array([7, 8, 9], "f4")
    out, after = evaluate(b.graph(), "main", {}, None, {"s": start}, declared=True)
    same(out["old"], start)
    same(out["itself"], start)
    same(after["s"], np.array([1, 2, 2], "f4"))
    same(start, np.array([7, 8, 9], "f4"))


def test_weights_are_asked_for_once_and_only_when_needed():
    b = Builder()
    used, unused = (b.leaf("weight", n, DType.BF16, (3,)) for n in ("used", "unused"))
    t = b.node(Op.ADD, [read(used, "i")] * 2, [("i", 3)])
    b.node(Op.SIN, [read(unused, "i")], [("i", 3)])
    b.outputs = [("y", b.node(Op.ADD, [read(t), read(used, "i")], [("i", 3)]))]
    b.finish()
    asked = []

    def weights(node):
        asked.append(node.name)
        return to_bf16(np.array([1.0, 2.0, 3.0]))

    same(evaluate(b.graph(), "main", {}, weights)[0]["y"], np.array([3.0, 6.0, 9.0]))
    same(from_bf16(evaluate(b.graph(), "main", {}, weights, declared=True)[0]["y"]), [3, 6, 9])
    assert asked == ["used", "used"]


def test_leaves_can_be_outputs():
    graph = parse_graph("lumc graph 1\ninput x f16[2]\noutput a = x\noutput b = x")
    x = np.array([1, 2], "f2")
    out = evaluate(graph, "main", {"x": x}, None)[0]
    assert out["a"].dtype == np.float64
    same(evaluate(graph, "main", {"x": x}, None, declared=True)[0]["b"], x)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({}, "missing or unknown: x"),
        ({"x": np.zeros((2, 3), "f4"), "q": np.zeros(1)}, "missing or unknown: q"),
        ({"x": np.zeros((3, 2), "f4")}, r"f32\[2, 3\], got float32\[3, 2\]"),
        ({"x": np.zeros((2, 3), "i4")}, "got int32"),
    ],
)
def test_wrong_inputs(arrays, what):
    graph = parse_graph("lumc graph 1\ninput x f32[2, 3]\noutput y = x")
    with pytest.raises(LumcError, match=what) as e:
        evaluate(graph, "main", arrays, None)
    assert e.value.code == "E0113"


def test_declared_mode_wants_the_declared_dtype():
    graph = parse_graph("lumc graph 1\ninput x f32[2]\noutput y = x")
    assert evaluate(graph, "main", {"x": np.zeros(2)}, None)
    with pytest.raises(LumcError, match="got float64"):
        evaluate(graph, "main", {"x": np.zeros(2)}, None, declared=True)
    with pytest.raises(LumcError, match="no entry 'q'"):
        evaluate(graph, "q", {}, None)


def test_a_dim_that_no_shape_tells_is_an_error():
    b = Builder()
    b.dim("s", 1, 8)
    b.outputs = [("y", b.leaf("input", "x", F32, (floordiv(dim("s"), 2, {}),)))]
    b.finish()
    with pytest.raises(LumcError, match="the oracle needs a value for every dim; not bound: s"):
        evaluate(b.graph(), "main", {"x": np.zeros(3, "f4")}, None)


# ---- size


def test_large_products_and_one_hots_are_never_stored():
    vocabulary, width, tokens = 6000, 64, 96
    graph = parse_graph(f"""lumc graph 1
input ids i64[{tokens}]
input table f32[{vocabulary}, {width}]
lo bool[s:{tokens}, v:{vocabulary}] = lt ids[s], i64(v)
hi bool[s:{tokens}, v:{vocabulary}] = lt i64(v), ids[s]
ne bool[s:{tokens}, v:{vocabulary}] = add lo[s, v], hi[s, v]
eq bool[s:{tokens}, v:{vocabulary}] = lt ne[s, v], true
p  f32[s:{tokens}, v:{vocabulary}, d:{width}] = mul eq[s, v], table[v, d]
y  f32[s:{tokens}, d:{width}] = sum v of p[s, v, d]
output y = y
""")
    ids, table = RNG.integers(0, vocabulary, tokens), RNG.random((vocabulary, width)).astype("f4")
    tracemalloc.start()
    y = evaluate(graph, "main", {"ids": ids, "table": table}, None)[0]["y"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    same(y, table[ids].astype("f8"))
    assert peak < 30e6 < tokens * vocabulary * width * 8


def test_large_elementwise_values_are_computed_where_they_are_read(monkeypatch):
    monkeypatch.setattr(oracle, "BLOCK", 1000)
    graph = parse_graph(
        """lumc graph 1
input x f64[40]
a f64[i:40, j:30, k:20] = add x[i], f64(j)
b f64[i:40, j:30, k:20] = mul a[i, j, k], f64(k)
c f64[i:40, j:30, k:20] = add b[i, j, k], 1.0
y f64[i:40] = max j of c[i, j, 3]
z f64[i:40, j:30] = sum k of c[i, j, k]
output y = y
output z = z
""".replace("output z = z", "").replace("z f64", "zz f64")
    )
    x = RNG.standard_normal(40)
    full = (x[:, None, None] + np.arange(30)[:, None]) * np.arange(20) + 1
    tracemalloc.start()
    y = evaluate(graph, "main", {"x": x}, None)[0]["y"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(y, full[:, :, 3].max(1))
    assert peak < 40 * 30 * 20 * 8
