"""Which steps of reductions masks are found to leave out: none that counts, and all that do not."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from kernel_zoo import c, kernel, minus, plus, reduce, times, total, x
from lumc.graph.dim import Dim
from lumc.graph.expr import Expr, add, axis, bounds, dim, divmod_, mul, num
from lumc.graph.ops import DType
from lumc.kernel.bound import bound_us, least_work
from lumc.kernel.lengths import Lengths
from lumc.kernel.machines import resolve_target
from lumc.kernel.masked import Mask, masks, share
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, binary, cast, dyn, guard, iota, unary, where, wsum
from lumc.oracle.term import evaluate_term
from masked_kernels import FORMS, Window, attention, product

WINDOWS = {
    "causal": Window(),
    "before": Window(end=0),
    "after a cache": Window(end=8),
    "sliding": Window(first=-3),
    "ahead": Window(first=2, end=9),
    "later only": Window(first=1, end=None),
    "few rows": Window(first=11, end=20),
}
EXTENT = {"q": 9, "j": 14, "e": 3, "d": 3}
by_window = pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())


def found(k: Kernel) -> tuple[Mask, ...]:
    """Of the reductions over j."""
    made = normalize(k)
    return masks(
        made, [s for s in made.stages if "j" in (s.attr[1] if s.kind == "red" else s.attr)]
    )


def counted(of: tuple[Mask, ...], m: int, n: int) -> np.ndarray:
    """Which steps count, by the masks."""
    seen = np.ones((m, n), bool)
    for mask in of:
        for q in range(m):
            at = num(bounds(mask.rest, {"q": (q, q)})[0])
            first, end = (e.attr[0] for e in mask.ends(at, at))
            seen[q] &= (np.arange(n) >= first) & (np.arange(n) < end)
    return seen


@by_window
@pytest.mark.parametrize("how", FORMS)
def test_every_way_to_say_it(window: Window, how: str) -> None:
    k = attention(1, 9, 14, 3, window, how)
    assert (counted(found(k), 9, 14) == window.seen(9, 14)).all()


@by_window
@pytest.mark.parametrize("op", ["sum", "max"])
def test_sums_and_maxima(window: Window, op: str) -> None:
    k = product(9, 5, 14, window, op)
    assert (counted(found(k), 9, 14) == window.seen(9, 14)).all()


def scores(body: Expr, **shapes: tuple[int, ...]) -> tuple[Mask, ...]:
    value = wsum("j", body, x("v", "j"))
    return found(kernel("k", "q", EXTENT, value, {"s": (9, 14), "v": (14,), **shapes}))


S = x("s", "q", "j")
LATE = binary("lt", iota("q"), iota("j"))
MASK = binary("sel", LATE, c(-inf))


def test_steps_further_apart() -> None:
    """Every third step of j for one of q: 3 j - 2 q < 5."""
    hidden = binary("lt", iota(add(mul("q", 2), 4)), iota(mul("j", 3)))
    (mask,) = scores(where(hidden, c(-inf), S))
    q, j = np.arange(9)[:, None], np.arange(14)
    assert mask.step == 3 and (counted((mask,), 9, 14) == (3 * j - 2 * q < 5)).all()
    turned = binary("lt", iota(mul("j", -3)), iota(add(mul("q", -2), -4)))
    assert scores(where(turned, c(-inf), S)) == (mask,)


@pytest.mark.parametrize("body", [
    plus(S, binary("sel", LATE, c(-1e9))),  # finite: another score may be as low
    plus(S, binary("sel", LATE, c(inf))),
    times(plus(S, MASK), -1),  # inf
    plus(times(MASK, -1), MASK),  # NaN
    times(S, MASK),  # the sign of S decides
    plus(minus(S, reduce("max", "i", plus(x("s", "q", "i"), c(-inf)))), MASK),  # inf, less inf
    plus(S, binary("sel", binary("lt", x("s", "q", "j"), c(0)), c(-inf))),  # data
    plus(S, binary("sel", binary("lt", iota("q"), x("i", "j", kind=DType.I64)), c(-inf))),
    plus(S, binary("sel", binary("lt", iota("q"), iota(dyn(x("i", "j", kind=DType.I64)))),
                   c(-inf))),
    plus(S, binary("sel", binary("lt", iota(divmod_(axis("j"), 3, {"j": (0, 13)})[1]), iota("q")),
                   c(-inf))),
    plus(S, binary("sel", binary("lt", cast(DType.I8, iota("q")), cast(DType.I8, iota("j"))),
                   c(-inf))),
    binary("sel", LATE, S),  # a score of 0 has a weight
])  # fmt: skip
def test_what_counts_after_all(body: Expr) -> None:
    k = kernel("k", "q", {**EXTENT, "i": 14}, wsum("j", body, x("v", "j")),
               {"s": (9, 14), "v": (14,), "i": (14,)}, dtypes={"i": DType.I64})  # fmt: skip
    assert not found(k)


def test_nothing_of_no_rows() -> None:
    for q, j in ((0, 14), (9, 0)):
        k = product(q, 5, j, WINDOWS["sliding"])
        assert not masks(k, k.stages) and least_work(k, ends_early=True).flops == 0


def test_enough_random_terms_are_masked() -> None:
    """What the next test finds nothing in is no proof of anything."""
    drawn_masks = [masked_terms(seed) for seed in range(120)]
    assert sum(bool(of) for _, _, of in drawn_masks) > 10


def test_indices_that_wrap() -> None:
    """In i8, 100 + 100 is -56."""
    big = {"q": 9, "j": 200}
    late = binary("lt", iota("j", DType.I8), iota("q", DType.I8))
    value = wsum("j", plus(x("s", "q", "j"), binary("sel", late, c(-inf))), c(1))
    assert not found(kernel("k", "q", big, value, {"s": (9, 200)}))


def test_a_power_less_its_maximum_counts_where_all_is_masked() -> None:
    """Written out, the row of a softmax that is masked whole is NaN, and a sum over nothing 0."""
    score, again = plus(S, MASK), plus(x("s", "q", "i"), binary("sel", binary(
        "lt", iota("q"), iota("i")), c(-inf)))  # fmt: skip
    top = reduce("max", "i", again)
    shapes, extent = {"s": (9, 14)}, {**EXTENT, "i": 14}
    assert not found(kernel("k", "q", extent, total("j", unary("exp2", minus(score, top))), shapes))
    assert found(kernel("k", "q", extent, total("j", unary("exp2", score)), shapes))


def test_what_else_is_summed_must_be_masked_too() -> None:
    """Reductions that share a loop: only what none of them needs."""
    window, wider = Window(first=-3), Window(end=5)
    one, two = (normalize(product(9, 5, 14, w)) for w in (window, wider))
    (a,), (b,) = one.stages, two.stages
    assert (counted(masks(one, [a, b]), 9, 14) == wider.seen(9, 14)).all()
    assert not masks(one, [a, total("j", times(x("x", "q", "j"), x("w", "j", "n")))])


def test_lengths_that_are_known_at_run_time() -> None:
    late = binary("lt", iota(add("q", dim("p"))), iota("j"))
    value = wsum("j", plus(S, binary("sel", late, c(-inf))), c(1))
    k = replace(kernel("k", "q", EXTENT, value, {"s": (9, 14)}),
                live=Lengths((Dim("p", 0, 5),), (("j", add(dim("p"), 9)),)))  # fmt: skip
    rest = add(mul("q", -1), mul(dim("p"), -1))
    assert masks(k, k.stages) == (Mask("j", 1, rest, -13, 1),)


Found = tuple[Kernel, Expr, tuple[Mask, ...]]


def masked_terms(seed: int) -> Found:
    """A kernel with one reduction of a random term over j, that reduction, and its masks."""
    body, op = drawn(np.random.default_rng(seed), 2 + seed % 2), ("sum", "max", "wsum")[seed % 3]
    value = wsum("j", body, c(1)) if op == "wsum" else reduce(op, "j", body)
    k = normalize(kernel("k", "q", {"q": 7, "j": 8}, value, {"s": (7, 8), "t": (8,)}))
    return k, k.stages[0], masks(k, k.stages[:1])


@pytest.mark.parametrize("seed", range(120))
def test_random_terms(seed: int) -> None:
    """Whatever they are made of: steps that are left out are 0, or -inf, or NaN as written."""
    _, stage, of = masked_terms(seed)
    rng = np.random.default_rng(seed)
    inputs = {"s": rng.standard_normal((7, 8)), "t": rng.standard_normal(8)}
    with np.errstate(all="ignore"):
        got, names = evaluate_term(stage.kids[0], {"q": 7, "j": 8}, inputs)
    got = got[:, None] if list(names) == ["q"] else got.T if list(names) == ["j", "q"] else got
    left_out = np.broadcast_to(got, (7, 8))[~counted(of, 7, 8)]
    nothing = left_out == (0 if stage.attr[0] == "sum" else -inf)
    assert (nothing | np.isnan(left_out)).all(), (stage, of)  # 0 * inf: docs/formats.md


def drawn(rng: np.random.Generator, depth: int) -> Expr:
    """A term of f32 over q and j."""
    if depth == 0:
        return [x("s", "q", "j"), x("t", "j"), c(0), c(-inf), c(2), c(-1)][rng.integers(6)]
    a, b = drawn(rng, depth - 1), drawn(rng, depth - 1)
    match rng.integers(7):
        case 0:
            return plus(a, b)
        case 1:
            return times(a, b)
        case 2:
            return binary("sel", condition(rng), a)
        case 3 | 4:
            return where(condition(rng), a, b)
        case 5:
            return guard(add("j", mul("q", int(rng.integers(-1, 2)))), -2, int(rng.integers(9)), a)
    return unary("exp2", a)


def condition(rng: np.random.Generator) -> Expr:
    steps = [int(n) for n in rng.integers(-2, 3, 3)]
    index = add(mul("q", steps[0]), mul("j", steps[1]), steps[2])
    less = binary("lt", iota(index), iota(["q", "j"][rng.integers(2)]))
    if rng.random() < 0.3:
        return binary("or", less, condition(rng))
    return binary("lt", less, c(True, DType.BOOL)) if rng.random() < 0.4 else less


# ---- shares


@by_window
def test_the_share_of_tiles(window: Window) -> None:
    k = normalize(attention(1, 70, 90, 3, window))
    of, seen = found(k), window.seen(70, 90)
    for rows, steps in ((16, 8), (7, 90), (70, 10), (1, 1)):
        done = 0.0
        for q in range(0, 70, rows):
            some = seen[q : q + rows].any(0)
            steps_done = np.flatnonzero(some) // steps
            tiles = steps_done.max() - steps_done.min() + 1 if steps_done.size else 0
            done += tiles * len(seen[q : q + rows])
        want = done / (70 * -(-90 // steps))
        assert share(of, k, {"q": rows, "j": steps}) == pytest.approx(want) if of else want == 1
    least = share(of, k, {"q": 2, "j": 1}, within=True) if of else 1.0
    assert least <= seen.mean() + 1e-9


def test_bounds_of_gpus_count_half_of_what_is_causal() -> None:
    k, full = (attention(2, 512, 512, 64, w) for w in (Window(), Window(end=None, first=-9999)))
    gpu, cpu = resolve_target("cuda:sm_90"), resolve_target("cpu:x86-64-v4")
    part = least_work(k, ends_early=True).flops / least_work(full).flops
    assert 0.48 < part < 0.51
    assert least_work(k).flops >= least_work(full).flops
    assert bound_us(k, gpu) < bound_us(full, gpu) and bound_us(k, cpu) >= bound_us(full, cpu)
