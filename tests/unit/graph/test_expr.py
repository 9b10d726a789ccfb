"""Index expressions against Python's integers, point by point."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_reference import value_of
from lumc.errors import LumcError
from lumc.graph.dim import Dim, bind, extent, largest
from lumc.graph.expr import (
    ATOM,
    CUT,
    Expr,
    add,
    axis,
    bounds,
    digest,
    dim,
    divmod_,
    floordiv,
    from_linear,
    index,
    index_value,
    linear,
    make,
    mod,
    mul,
    num,
    rebuild,
    rewrite,
    simplify,
    substitute,
    subterms,
    text,
)  # fmt: skip
from lumc.graph.index import Bound, is_injective, is_inside
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph, print_graph
from lumc.kernel.term import binary, const, dyn, load

SIZES = {"i": 5, "j": 3, "k": 1, "l": 7}
RANGES = {a: (0, n - 1) for a, n in SIZES.items()}
POINTS = [dict(zip(SIZES, p, strict=True)) for p in itertools.product(*map(range, SIZES.values()))]
few = settings(max_examples=200, deadline=None)


@st.composite
def trees(draw, depth=3, ranges=RANGES):
    """An expression as it is built, and the same as a function of a point."""
    kind = draw(st.sampled_from("ancddmmrrs" if depth else "an"))
    if kind == "a":
        name = draw(st.sampled_from("ijkl"))
        return axis(name), lambda p: p[name]
    if kind in "nc":
        c = draw(st.integers(-20, 20))
        return num(c), lambda p: c
    x, fx = draw(trees(depth - 1, ranges))
    if kind == "d":
        y, fy = draw(trees(depth - 1, ranges))
        return add(x, y), lambda p: fx(p) + fy(p)
    c = draw(st.sampled_from([-12, -6, -4, -3, -2, -1, 0, 2, 3, 4, 6, 12]))
    if kind == "m":
        return mul(x, c), lambda p: fx(p) * c
    if kind == "s":  # split, and perhaps joined again
        d, q = draw(st.sampled_from([2, 3, 4])), draw(st.sampled_from([1, 2, -1]))
        e = add(mul(floordiv(x, d, ranges), c), mul(mod(x, d, ranges), q))
        return e, lambda p: fx(p) // d * c + fx(p) % d * q
    c = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 12]))
    know = draw(st.sampled_from([{}, ranges]))  # unknown bounds must not give another value
    if draw(st.booleans()):
        return floordiv(x, c, know), lambda p: fx(p) // c
    return mod(x, c, know), lambda p: fx(p) % c


@few
@given(trees())
def test_value_is_that_of_the_integers(tree):
    e, f = tree
    for p in POINTS[::3]:
        assert value_of(e, p) == f(p)


@few
@given(trees())
def test_bounds_hold(tree):
    e, f = tree
    lo, hi = bounds(e, RANGES)
    values = [f(p) for p in POINTS]
    assert lo <= min(values) and max(values) <= hi


@few
@given(trees())
def test_simplify_keeps_the_value_and_is_idempotent(tree):
    e, f = tree
    s = simplify(e, RANGES)
    assert simplify(s, RANGES) is s
    for p in POINTS[::3]:
        assert value_of(s, p) == f(p)


@few
@given(trees(), st.integers(1, 12))
def test_divmod(tree, c):
    e, f = tree
    q, r = divmod_(e, c, RANGES)
    for p in POINTS[::3]:
        assert (value_of(q, p), value_of(r, p)) == divmod(f(p), c)


@few
@given(trees(ranges={}), trees(2), trees(2))
def test_substitute_is_composition(tree, first, second):
    e, f = tree
    new = substitute(e, {axis("i"): first[0], axis("l"): second[0]})
    for p in POINTS[::5]:
        assert value_of(new, p) == f({**p, "i": first[1](p), "l": second[1](p)})


@few
@given(trees())
def test_linear_and_back(tree):
    e, _ = tree
    assert from_linear(*linear(e)) is e
    assert e.free == {t.attr[0] for t in subterms(e) if t.kind == "axis"}


@few
@given(trees())
def test_text_form_reads_back_as_the_same_object(tree):
    e = simplify(tree[0], RANGES)
    if e.kind == "num":
        return
    axes = ", ".join(f"{a}:{n}" for a, n in SIZES.items())
    source = f"lumc graph 1\nt i64[{axes}] = contiguous i64({e})\noutput y = t\n"
    graph = parse_graph(source)
    assert graph.entries[0].nodes[0].operands[0].index is e
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_expressions_are_interned_and_ordered():
    assert add("i", "j", 1) is add(1, "j", "i")
    assert add("i", mul("i", -1)) is num(0)
    assert make("const", ("f32", 0.0)) is not make("const", ("f32", -0.0))
    assert make("const", (1,)) is not make("const", (True,))
    assert text(add(mul("j", 2), "i", -3)) == "i + 2*j - 3"


def test_known_simplifications():
    i, j = axis("i"), axis("j")
    assert floordiv(add(mul(i, 3), j), 3, RANGES) is i
    assert mod(add(mul(i, 3), j), 3, RANGES) is j
    assert floordiv(floordiv(i, 2, {}), 3, {}) is floordiv(i, 6, {})
    assert mod(mod(i, 12, {}), 4, {}) is mod(i, 4, {})
    assert floordiv(mod(i, 12, {}), 4, {}) is mod(floordiv(i, 4, {}), 3, {})
    whole = add(mul(floordiv(i, 4, {}), 4), mod(i, 4, {}))
    assert simplify(whole, {}) is i
    deep = add(mul(floordiv(i, 12, {}), 12), mul(mod(floordiv(i, 4, {}), 3, {}), 4), mod(i, 4, {}))
    assert simplify(deep, {}) is i


def test_deep_terms_do_not_exhaust_the_stack():
    e = axis("i")
    for _ in range(5000):
        e = make("un", ("sin",), (e,))
    assert len(subterms(substitute(e, {axis("i"): axis("j")}))) == 5001


# ---- index maps


@few
@given(st.lists(trees(2), min_size=1, max_size=3), trees(2), st.integers(1, 12), st.data())
def test_what_is_proven_inside_is_inside(guarded, tree, size, data):
    guards = [
        Bound(g, lo := data.draw(st.integers(-3, 3)), lo + data.draw(st.integers(0, 8)))
        for g, _ in guarded
    ]
    e = data.draw(st.sampled_from([tree[0], add(tree[0], guards[0].index), guards[-1].index]))
    q, lo = data.draw(st.integers(-7, 7)), data.draw(st.integers(-9, 9))
    guards.append(Bound(add(mul(e, q), guards[0].index), lo, lo + data.draw(st.integers(0, 40))))
    if is_inside(e, size, guards, SIZES, {}):
        for p in POINTS:
            if all(g.lo <= value_of(g.index, p) < g.hi for g in guards):
                assert 0 <= value_of(e, p) < size


def inside(e, size, loops, *guards, dims=None):
    return is_inside(e, size, guards, loops, dims or {})


def test_padding_and_windows_are_proven():
    loops = {"y": 28, "u": 3, "x": 28, "v": 3}
    row, col = add("y", "u", -1), add("x", "v", -1)
    guards = Bound(row, 0, 28), Bound(col, 0, 28)
    assert inside(row, 28, loops, guards[0])
    assert not inside(row, 27, loops, guards[0])
    assert inside(add(mul(row, 28), col), 784, loops, *guards)  # the source is flat
    assert not inside(add(mul(row, 28), col), 783, loops, *guards)
    assert not inside(add(mul(row, 28), col), 784, loops, guards[0])
    flat = {"f": 900}  # the padded image is flat
    up, left = add(floordiv("f", 30, {}), -1), add(mod("f", 30, {}), -1)
    place = add(mul(up, 28), left)
    assert inside(place, 784, flat, Bound(up, 0, 28), Bound(left, 0, 28))
    assert inside(mul("y", 2), 6, {"y": 9}, Bound(mul("y", 2), 0, 6))
    assert inside(add(mul(row, 28), "x"), 784, loops, guards[0], Bound(axis("u"), 0, 2))
    wrapped = add(mod(add("y", -3), 28, {}), 3)  # 3 .. 30
    assert inside(wrapped, 31, loops) and not inside(wrapped, 29, loops)
    half = floordiv(add("y", -1), 2, {})  # padding of a repeated image
    assert inside(half, 14, {"y": 30}, Bound(add("y", -1), 0, 28))
    rows = {"i": 2, "j": 6, "r": 22, "c": 8}  # 12 rows of 22 x 8, of which four are there
    row = add(mul("i", 6), "j", -1)
    place = add(mul(row, 176), mul("r", 8), "c")
    assert inside(row, 4, rows, Bound(place, 0, 704)) and not inside(row, 4, rows)
    assert not inside(row, 4, rows, Bound(place, 0, 705))
    assert not inside(row, 4, {**rows, "c": 9}, Bound(place, 0, 704))  # one row has 177
    assert inside(mul(row, -1), 4, rows, Bound(place, -528, 1))
    pairs, pair = {"i": 9, "j": 22, "k": 2}, add(mul("i", 22), "j")
    row, read = add(floordiv(pair, 33, {}), -1), add(mul(pair, 2), "k")
    assert inside(row, 3, pairs, Bound(read, 66, 264)) and not inside(row, 3, pairs)
    assert not inside(row, 3, pairs, Bound(read, 65, 264))
    assert not inside(row, 3, pairs, Bound(read, 66, 265))
    assert inside(index(99), 3, loops, Bound(num(5), 0, 5))  # never read


def test_symbolic_extents_are_proven():
    s = dim("s")
    dims = {"s": Dim("s", 1, 512), "p": Dim("p", 0, 64)}

    def proves(e, size, loops, *guards):
        return inside(e, size, loops, *guards, dims=dims)

    assert proves(add(s, -1, mul("i", -1)), s, {"i": s})  # reversed
    assert proves(add("i", dim("p")), add(s, dim("p")), {"i": s})
    assert not proves(add("i", dim("p")), s, {"i": s})
    assert proves(add("i", -1), s, {"i": add(s, 2)}, Bound(add("i", -1), 0, s))
    assert not proves(add("i", -1), s, {"i": add(s, 2)}, Bound(add("i", -1), 0, add(s, 1)))
    assert proves(add(mul("i", 16), "j"), s, {"i": floordiv(s, 16, {}), "j": 16})
    assert proves(floordiv("i", 3, {}), s, {"i": mul(s, 3)})
    assert not proves(add("i", 1), s, {"i": s})
    around = add(mod(mul("i", -1), 999, {}), s, -1)  # 998 and more where i > 0
    assert not proves(around, s, {"i": s})
    assert proves(axis("i"), 512, {"i": s})
    assert not proves(axis("i"), 511, {"i": s})


@few
@given(st.lists(trees(2), min_size=1, max_size=3))
def test_what_is_proven_injective_is_injective(index_map):
    loops = {"i": 5, "j": 3, "l": 7}
    map_ = [e for e, _ in index_map]
    if any("k" in e.free for e in map_) or not is_injective(map_, loops, {}):
        return
    points = [p for p in POINTS if p["k"] == 0]
    assert len({tuple(value_of(e, p) for e in map_) for p in points}) == len(points)


def test_known_injective_maps():
    loops = {"i": 5, "j": 3}
    assert is_injective([add(mul("i", 3), "j")], loops, {})
    assert not is_injective([add(mul("i", 2), "j")], loops, {})
    assert is_injective([axis("j"), add("i", 4)], loops, {})
    assert not is_injective([axis("i")], loops, {})
    assert is_injective([add(dim("p"), "i"), axis("j")], loops, {"p": Dim("p", 0, 9)})


# ---- dims


def test_extents():
    dims = {"s": Dim("s", 1, 16)}
    assert largest(add(mul(dim("s"), 2), 1), dims) == 33
    assert bind(add(dim("s"), 1), {"s": 4}) == 5
    assert bind(add(dim("s"), dim("b")), {"s": 4}) is add(dim("b"), 4)
    assert extent(num(3)) == 3


def test_a_hidden_dim_is_an_error():
    source = "lumc graph 1\ndim s in 1..8\ninput x f32[s]\n"
    good = "t f32[i:s] = contiguous x[s - i - 1]\noutput y = t\n"
    assert parse_graph(source + good)
    with pytest.raises(LumcError, match="out of bounds"):
        parse_graph(source + "t f32[s] = contiguous x[s - 1]\noutput y = t\n")


def _doubled(times: int) -> Expr:
    """A DAG of so many nodes whose text has ``2 ** times`` loads."""
    e = load("x", DType.F32, "i")
    for _ in range(times):
        e = binary("add", e, e)
    return e


def test_a_text_is_cut_where_it_is_told() -> None:
    whole = text(_doubled(5))
    for most in (10, 40, len(whole) - 1):
        cut = text(_doubled(5), most)
        assert len(cut) == most and cut.endswith(CUT)
        assert whole.startswith(cut.removesuffix(CUT))
    assert text(_doubled(5), len(whole)) == whole
    assert len(text(_doubled(4000), 100)) == 100  # neither a tree nor recursive
    assert len(repr(_doubled(4000))) == 1000


def test_gathers_of_large_terms_have_one_order_in_sums() -> None:
    a, b = dyn(_doubled(300)), dyn(_doubled(301))
    assert text(a, ATOM) == text(b, ATOM) and digest(a) != digest(b)
    assert add(a, b) is add(b, a)


def test_division_of_sums_in_steps_by_enumeration() -> None:
    """(step*x + r) // d = x // (d / step) where 0 <= r < step: for all small sums."""
    rng = random.Random(5)
    split = 0
    for _ in range(1500):
        extent = {a: rng.randint(1, 7) for a in "abc"}
        ranges = {a: (0, n - 1) for a, n in extent.items()}
        e = add(*(mul(a, rng.randint(-7, 12)) for a in extent), rng.randint(-9, 20))
        divisor = rng.choice((2, 3, 4, 6, 8, 12))
        quotient, rest = divmod_(e, divisor, ranges)
        split += quotient.free < e.free
        for point in itertools.product(*(range(n) for n in extent.values())):
            at = dict(zip(extent, point, strict=True))
            whole = index_value(e, at)
            assert index_value(quotient, at) == whole // divisor, (e, divisor, ranges)
            assert index_value(rest, at) == whole % divisor, (e, divisor, ranges)
    assert split > 100


def test_a_quotient_does_not_have_what_cannot_reach_it() -> None:
    ranges = {"j": (0, 319), "k": (0, 31), "l": (0, 31)}
    e = add(mul("j", 1024), mul("k", 32), "l")
    assert str(floordiv(e, 10240, ranges)) == "j // 10"


def test_a_rewrite_comes_to_every_node_once_inner_ones_first() -> None:
    """A term of 200 squares has a text of 2^200 characters."""
    e = first = load("x", DType.F32, "i")
    for _ in range(200):
        e = binary("mul", e, e)
    seen = list[Expr]()

    def change(node: Expr, kids: list[Expr]) -> Expr:
        seen.append(node)
        return rebuild(node, kids)

    assert rewrite(e, {}, change) is e
    assert seen == list(subterms(e))
    seen.clear()
    memo = {first: const(2.0)}
    assert rewrite(e, memo, change).free == frozenset()
    assert len(seen) == 200 and memo.keys() == {first, *seen}  # nothing below what is given
