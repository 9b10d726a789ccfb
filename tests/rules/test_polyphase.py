"""The laws of kernels for every phase of a result: the parts compute the same. Against numpy in
f64, and the check kills wrong ones."""

from __future__ import annotations

import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from differential import Case, check_compiled
from kernels import native
from lumc.errors import LumcError
from lumc.graph.expr import Expr, add, axis, mul, num
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.machines import CPUS
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Root, binary, guard, load, reduce
from lumc.oracle.term import evaluate_kernel, evaluate_term
from lumc.profile.choose import estimate
from lumc.report.derivation import variant_of
from lumc.schedule.legal import check_kernel
from lumc.search import polyphase, search
from lumc.search.cuts import assemble
from lumc.search.polyphase import polyphases
from splitting import slow, transposed

KIND = DType.F64
Laws = ModuleType | SimpleNamespace


def kernel(stride: int, taps: int, size: int, cut: int = 0, pad: int = 0) -> Kernel:
    """``out[i, s*x + u, s*y + v]`` from the taps s*r + p - u, s*q + p - v of an image, of which the
    last ``cut`` rows and columns are not read."""
    steps, seen = -(-(taps + stride) // stride), max(size - cut, 0)
    extent = {"i": 2, "x": size, "u": stride, "y": size, "v": stride, "k": 3}
    extent |= {"r": steps, "q": steps}
    at = [add(mul(axis(r), stride), mul(axis(u), -1), pad) for r, u in ("ru", "qv")]
    pixel = [add(a, r, -1) for a, r in ("xr", "yq")]
    weight, image = load("b0", KIND, "k", "i", *at), load("b1", KIND, "k", *pixel)
    for i, p in zip(at, pixel, strict=True):
        weight, image = guard(i, 0, taps, weight), guard(i, 0, taps, image)
        image = guard(mul(p, 2), 0, 2 * seen - 1, image)
    window = reduce("sum", ["k", "r", "q"], binary("mul", weight, image))
    buffers = (
        Buffer("b0", KIND, (3, 2, taps, taps), constant=True),
        Buffer("b1", KIND, (3, size, size)),
        Buffer("b2", KIND, (2,)),
    )
    index = (axis("i"), *(add(mul(axis(x), stride), u) for x, u in ("xu", "yv")))
    out = Buffer("out", KIND, (2, size * stride, size * stride))
    root = Root("out", index, binary("add", load("b2", KIND, "i"), window))
    return assemble("whole", (*"ixuyv",), (root,), extent, buffers, (out,))


def run(kernels: Sequence[Kernel], values: dict[str, np.ndarray]) -> np.ndarray:
    known = dict(values)
    for k in kernels:
        check_kernel(k)
        assert not escape(k)
        given = {b.name: known[b.name].reshape(b.shape) for b in k.buffers if b.name in known}
        known |= evaluate_kernel(k, given)
    return known["out"]


def agrees(k: Kernel, laws: Laws = polyphase) -> bool | None:
    """Whether the parts compute what the kernel does; None where the law says nothing."""
    rng = np.random.default_rng(7)
    read = [b for b in k.buffers if b.name not in k.stored]
    values = {b.name: rng.permutation(prod(b.shape)).reshape(b.shape) / 7 - 3 for b in read}
    try:
        found = [run(parts, values) for parts in laws.polyphases(k)]
    except (AssertionError, LookupError, ValueError, LumcError):
        return False
    want = run([k], values) if found else None
    return all(np.allclose(got.reshape(want.shape), want) for got in found) if found else None


def drawn(seed: int) -> Kernel:
    rng = random.Random(seed)
    stride, taps, size = rng.choice((1, 2, 2, 3, 4)), rng.randint(1, 6), rng.choice((0, 1, 2, 3, 5))
    return kernel(stride, taps, size, rng.randint(0, 2), rng.randint(0, 2))


def test_law_is_sound() -> None:
    said = [agrees(drawn(seed)) for seed in range(120)]
    assert False not in said and said.count(True) > 40 and None in said


def test_each_phase_has_its_own_steps() -> None:
    """Of 3 x 3 taps with a stride of 2: 4, 2, 2 and 1."""
    whole = kernel(2, 3, 5, pad=1)
    (parts,) = polyphases(whole)
    assert [len(p.stages) for p in parts] == [1, 1, 1, 1, 0]
    steps = [p.points({*s.free, *s.attr[1]}) for p in (whole, *parts) for s in p.stages]
    assert steps[0] == 4 * 9 * 3 * 2 * 25  # three steps of r for every phase
    assert sorted(steps[1:]) == [n * 3 * 2 * 25 for n in (1, 2, 2, 4)]
    assert not any([*polyphases(p)] for p in parts)


def test_nothing_is_said_of_one_phase_or_of_many() -> None:
    assert not [*polyphases(kernel(1, 3, 5))]
    assert not [*polyphases(kernel(4, 5, 5))]  # 16 kernels
    assert not [*polyphases(kernel(2, 3, 0))]


# ---- sums over those steps only that count


def total(seed: int) -> tuple[Expr, dict[str, int]]:
    """A sum over r and q of products with factors that are guarded along them."""
    rng = random.Random(seed)
    extent = {"x": 3, "r": rng.choice((0, 1, 2, 5, 5)), "q": rng.choice((1, 4)), "k": 2}

    def guarded(e: Expr) -> Expr:
        index = add(mul(axis(rng.choice("rrqx")), rng.choice((1, -1, 2))), rng.randint(-3, 3))
        lo = rng.randint(-4, 3)
        return guard(index, lo, lo + rng.randint(2, 6), e)

    a, b = load("a", KIND, "x", "r"), load("b", KIND, "q", "k", "r")
    for _ in range(rng.randint(0, 2)):
        a, b = guarded(a), guarded(b) if rng.random() < 0.5 else b
    body = binary("mul", a, reduce("sum", "k", b))
    if rng.random() < 0.3:
        body = binary("add", body, load("b", KIND, "q", num(0), "r"))
    return reduce(rng.choice(("sum", "sum", "sum", "max")), ["r", "q"], body), extent


def narrows(seed: int, laws: Laws = polyphase) -> tuple[bool, bool]:
    """Whether a narrowed sum is the same, and whether it is another term."""
    value, extent = total(seed)
    rng, more = np.random.default_rng(seed), dict(extent)
    arrays = {"a": rng.normal(size=(3, 5)), "b": rng.normal(size=(4, 2, 5))}
    try:
        new = laws.narrow(value, more)
        (want, axes), (got, own) = (evaluate_term(e, more, arrays) for e in (value, new))
    except (LookupError, ValueError):
        return False, True
    if own != axes:  # what is zero everywhere has no axes
        got, own = np.broadcast_to(got, want.shape), axes if got.shape == () else own
    return own == axes and bool(np.allclose(got, want)), new is not value


def test_narrowed_sums_are_the_same() -> None:
    found = [narrows(seed) for seed in range(400)]
    assert all(same for same, _ in found)
    assert 100 < sum(fewer for _, fewer in found) < 350


MUTANTS = {
    "maxima": ('e.kind == "red" and e.attr[0] == "sum"', 'e.kind == "red"'),
    "one step less": ("last + 1 - first\n        if", "last - first\n        if"),
    "from zero": ("add(axis(name), first)", "axis(name)"),
    "the first alone": ("num(first)", "num(0)"),
    "none is one": ("if last < first:", "if last <= first:"),
    "sums count": ("guards_of(total.kids[0])", '(e for e in subterms(total) if e.kind == "guard")'),
    "never is always": ("if most < lo or hi <= least:", "if lo <= least and most < hi:"),
}
OTHERS = {
    "phases swapped": ("map(num, phase.values())", "map(num, [*phase.values()][::-1])"),
    "the first phase": ("num(n), _ranges", "num(0), _ranges"),
    "read in another order": ("every.dtype, *axes", "every.dtype, *axes[::-1]"),
}


def mutant(folder: Path, old: str, new: str) -> Laws:
    """The laws with another text."""
    source, path = Path(polyphase.__file__).read_text(), folder / "mutant.py"
    assert old in source
    path.write_text(source.replace(old, new))
    return SimpleNamespace(**runpy.run_path(str(path)))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_narrow_are_killed(name: str, tmp_path: Path) -> None:
    wrong = mutant(tmp_path, *MUTANTS[name])
    assert not all(narrows(seed, wrong)[0] for seed in range(400))


@pytest.mark.parametrize("name", OTHERS)
def test_mutants_are_killed(name: str, tmp_path: Path) -> None:
    wrong = mutant(tmp_path, *OTHERS[name])
    assert False in [agrees(drawn(seed), wrong) for seed in range(40)]


# ---- when it is chosen


@pytest.mark.parametrize(
    ("graph", "target", "used"),
    [
        (transposed(64, 19, 3, 2), CPUS["x86-64-v4"], True),
        (transposed(64, 19, 3, 2), replace(CPUS["x86-64-v3"], threads=2), True),
        (transposed(64, 19, 2, 2), CPUS["x86-64-v4"], False),  # a multiple of the stride
        (transposed(2, 3, 4, 2), CPUS["x86-64-v4"], False),  # launches would take longer
    ],
)
def test_when_phases_are_kernels_of_their_own(graph: Graph, target: Target, used: bool) -> None:
    space = search(graph, target, inside=True)
    plan = estimate(space)
    region = space.regions[0]
    _, laws = variant_of(region, plan.regions[region.key], target)
    assert ("polyphase" in laws) == used


@pytest.mark.parametrize(
    ("at", "size", "stride", "dtype"), [(19, 3, 2, "f32"), (6, 5, 3, "f32"), (7, 3, 2, "bf16")]
)
def test_phases_compute_the_same(
    at: int, size: int, stride: int, dtype: str, tmp_path: Path
) -> None:
    case = Case(transposed(24, at, size, stride, dtype), target=slow(native()))
    case.prepare()
    assert case.plan and any("_" in b.name for r in case.plan.regions.values() for b in r.local)
    case.check_plan()
    check_compiled(tmp_path, [case], [case.plan])
