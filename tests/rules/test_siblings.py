"""The law that two kernels side by side are one: sound on random kernels, against numpy in f64,
and the check kills wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_zoo import kernel
from lumc.errors import LumcError
from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.key import rename
from lumc.kernel.term import Kernel, Root, binary, load, reduce, unary, wsum
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.legal import check_kernel
from lumc.search import siblings
from lumc.search.siblings import beside

KIND = DType.F64
Law = Callable[[Sequence[Kernel]], Kernel | None]
Values = dict[str, np.ndarray]


def bodies(x: str, w: str, i: str, j: str, k: str) -> dict[str, Expr]:
    """Results over i and j, from x[i, k] and w[k, j]."""
    at, beside = load(x, KIND, i, k), load(w, KIND, k, j)
    row = reduce("sum", [k], at)
    return {
        "product": reduce("sum", [k], binary("mul", at, beside)),
        "rows": binary("add", row, reduce("max", [k], beside)),
        "map": binary("mul", load(x, KIND, i, 0), load(w, KIND, 0, j)),
        "weighted": wsum(k, at, beside),
        "square": binary("add", reduce("sum", [k], binary("mul", at, at)), load(w, KIND, 0, j)),
        "nested": reduce("sum", [k], binary("mul", binary("add", at, row), beside)),
        "root": unary("sqrt", reduce("max", [k], binary("mul", at, beside))),
    }


KINDS = tuple(bodies("x", "w", "i", "j", "k"))


def sibling(n: int, kind: str, sizes: Mapping[str, int], x: str, w: str, turned: bool) -> Kernel:
    """Kernel n, with names of its own for the axes, perhaps in another order."""
    i, j, k = (f"{a}{n}" for a in "ijk")
    value = bodies(x, w, i, j, k)[kind]
    extent = {i: sizes["i"], j: sizes["j"], k: sizes["k"]}
    shapes = {x: (extent[i], extent[k]), w: (extent[k], extent[j])}
    order, kinds = f"{j} {i}" if turned else f"{i} {j}", dict.fromkeys(shapes, KIND)
    made = kernel(f"k{n}", order, extent, value, shapes, dtypes=kinds)
    roots = tuple(replace(r, buffer=f"y{n}") for r in made.roots)
    buffers = tuple(
        replace(b, name=f"y{n}" if b.name == "out" else b.name, dtype=KIND) for b in made.buffers
    )
    return replace(made, roots=roots, buffers=buffers)


def values(kernels: Sequence[Kernel], seed: int) -> Values:
    """Distinct values for everything that is read."""
    rng, out = np.random.default_rng(seed), Values()
    for b in (b for k in kernels for b in k.buffers if b.name not in k.stored):
        size = int(np.prod(b.shape))
        out.setdefault(b.name, (rng.permutation(size) / 3 - size / 7).reshape(b.shape))
    return out


def agrees(kernels: Sequence[Kernel], law: Law = beside, seed: int = 0) -> bool:
    """Whether what the law gives writes what these kernels write one after the other."""
    one = law(kernels)
    if one is None:
        return True
    try:
        check_kernel(one)
        known = values(kernels, seed)
        given = {b.name: known[b.name] for b in one.buffers if b.name not in one.stored}
        got = evaluate_kernel(one, given)
    except (LumcError, LookupError, ValueError, AssertionError):
        return False
    for k in kernels:
        read = {b.name: known[b.name] for b in k.buffers if b.name in known}
        known |= evaluate_kernel(k, read)
    return set(got) == {name for k in kernels for name in k.stored} and all(
        np.allclose(got[name], known[name], rtol=1e-9, atol=1e-9, equal_nan=True) for name in got
    )


@st.composite
def families(draw: st.DrawFn) -> list[Kernel]:
    """Two to four kernels over i and j, whose sums may be of other lengths."""
    size = st.integers(1, 5)
    sizes = {a: draw(size) for a in "ij"}
    out = []
    for n in range(draw(st.integers(2, 4))):
        k = draw(st.sampled_from((3, 3, 1, 4)))
        x, w = (draw(st.sampled_from((f"{b}_{k}", f"{b}{n}"))) for b in "xw")
        drawn = draw(st.sampled_from(KINDS))
        out.append(sibling(n, drawn, {**sizes, "k": k}, x, w, draw(st.booleans())))
    return out


@settings(max_examples=150, deadline=None, derandomize=True)
@given(kernels=families(), seed=st.integers(0, 1 << 20))
def test_law_is_sound(kernels: list[Kernel], seed: int) -> None:
    one = beside(kernels)
    assert one and len(one.roots) == len(kernels)
    assert agrees(kernels, seed=seed)


def product(n: int, x: str = "x", **sizes: int) -> Kernel:
    return sibling(n, "product", {"i": 4, "j": 5, "k": 3} | sizes, x, f"w{n}", False)


def test_kernels_that_need_each_other_are_not_joined() -> None:
    first = product(0, j=3)
    second = product(1, x="y0", j=3)
    assert beside([first, second]) is None
    assert beside([second, first]) is None
    assert beside([product(2), product(3), product(4, x="y2", k=5)]) is None


@pytest.mark.parametrize("sizes", [{"i": 3}, {"j": 6}, {"i": 1}, {"i": 5, "j": 5}])
def test_other_extents_are_not_joined(sizes: dict[str, int]) -> None:
    assert beside([product(0), product(1, x="z", **sizes)]) is None


def test_common_operands_share_their_loops() -> None:
    """x[i, k] is read along one k, whatever the kernels call it; a longer sum has its own."""
    one = beside([product(0), product(1), product(2, x="z", k=7)])
    assert one
    assert [s.attr for s in one.stages] == [("sum", ("k0",)), ("sum", ("k0",)), ("sum", ("k2_0",))]
    assert one.extent == {"i0": 4, "j0": 5, "k0": 3, "k2_0": 7}


# ---- mutants


def mutant(name: str) -> Law:
    """The law with a mistake."""

    def changed(kernels: Sequence[Kernel]) -> Kernel | None:
        one = beside(kernels)
        if one is None:
            return None
        last, axes = one.roots[-1], one.axes
        swap = dict(zip(axes, (*axes[1:], axes[0]), strict=True))
        wrong = {
            "axes of the value swapped": replace(last, value=rename(last.value, swap)),
            "axes of the place swapped": replace(
                last, index=tuple(rename(i, swap) for i in last.index)
            ),
            "the value of the first": replace(last, value=one.roots[0].value),
            "a sum is read along an axis of the result": replace(
                last, value=rename(last.value, {a: axes[0] for a in one.extent if a not in axes})
            ),
        }
        return replace(one, roots=(*one.roots[:-1], wrong[name]))

    return changed


def renamed_not(kernels: Sequence[Kernel]) -> Kernel | None:
    """The roots of all, each over its own axes."""
    roots = tuple(r for k in kernels for r in k.roots)
    known = {b.name: b for k in kernels for b in k.buffers}
    extent = {a: n for k in kernels for a, n in k.extent.items()}
    return Kernel("one", kernels[0].axes, extent, roots, tuple(known.values()))


def needing(kernels: Sequence[Kernel]) -> Kernel | None:
    """Also of kernels of which one reads what another writes: as if that had another name."""
    hidden = [
        replace(
            k,
            roots=tuple(
                Root(r.buffer, r.index, rename(r.value, {}, {"y0": "old"})) for r in k.roots
            ),
            buffers=tuple(
                replace(b, name="old" if b.name == "y0" and b.name not in k.stored else b.name)
                for b in k.buffers
            ),
        )
        for k in kernels
    ]
    one = beside(hidden)
    assert one
    roots = tuple(Root(r.buffer, r.index, rename(r.value, {}, {"old": "y0"})) for r in one.roots)
    return replace(one, roots=roots, buffers=tuple(b for b in one.buffers if b.name != "old"))


def test_mutants_of_one_root_are_killed() -> None:
    square = [product(0, i=5), product(1, x="z", i=5)]
    for name in (
        "axes of the value swapped",
        "axes of the place swapped",
        "the value of the first",
        "a sum is read along an axis of the result",
    ):
        assert agrees(square) and not agrees(square, mutant(name)), name


def test_other_mutants_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not agrees([product(0), product(1)], renamed_not)
    assert not agrees([product(0, j=3), product(1, x="y0", j=3)], needing)
    longer = [product(0), product(1, x="z", k=7)]
    assert agrees(longer)
    kept = siblings.renamed  # extents of axes that have the name of another one

    def same(k: Kernel, axes: Mapping[str, str], *others: object) -> Kernel:
        return kept(k, {a: "k0" if a.startswith("k") else n for a, n in axes.items()}, *others)

    monkeypatch.setattr(siblings, "renamed", same)
    assert not agrees(longer)
