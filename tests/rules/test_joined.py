"""The law of sums over blocks of levels, ``join-block``: sound on random kernels, against numpy in
f64, and the check kills wrong ones."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from kernel_zoo import F16, F32, I8, U8, kernel, plus, times, total, x
from lumc.frontend import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import Expr, add, axis, mul, subterms
from lumc.graph.graph import Graph
from lumc.kernel.machines import CPUS
from lumc.kernel.term import Kernel, cast, factors, reduce
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.legal import check_kernel
from lumc.search import blocks
from lumc.search.saturate import Limits
from splitting import laws
from zoo import build

Laws = ModuleType | SimpleNamespace
BLOCK = 4


def drawn(seed: int) -> Kernel:
    """``sum_o s * sum_k x * level``, or something near: a maximum within or around, two sums that
    are multiplied, or a sum that is added to."""
    rng = random.Random(seed)
    extent = {"m": 2, "n": 4, "o": rng.choice((1, 3)), "k": BLOCK, "j": 5}
    at = add(mul(axis("o"), BLOCK), axis("k"))
    kinds = {"w": rng.choice((I8, U8)), "s": F16}
    shapes = {"x": (2, extent["o"] * BLOCK), "w": (4, extent["o"] * BLOCK), "s": (4, extent["o"])}
    shapes |= {"t": (2, extent["o"]), "u": (4, 5), "a": (4,)}
    level = cast(F32, x("w", "n", at, kind=kinds["w"]))
    rows = [x("x", "m", at), times(x("x", "m", at), x("x", "m", at))]
    inner: Expr = reduce(
        rng.choice(("sum", "sum", "sum", "max")), ["k"], times(rng.choice(rows), level)
    )
    if rng.random() < 0.2:
        inner = plus(inner, x("a", "n"))
    parts = [inner, cast(F32, x("s", "n", "o", kind=F16))]
    if rng.random() < 0.4:
        parts.append(x("t", "m", "o"))
    if rng.random() < 0.2:
        parts.append(total("j", x("u", "n", "j")))
    rng.shuffle(parts)
    body = parts[0]
    for part in parts[1:]:
        body = times(body, part)
    value = reduce(rng.choice(("sum", "sum", "sum", "max")), ["o"], body)
    if rng.random() < 0.5:
        value = times(value, plus(x("a", "n"), value))
    return kernel("k", "m n", extent, value, shapes, "w s a u", kinds)


def agrees(kernel: Kernel, of: Laws = blocks) -> bool | None:
    """None: there is nothing to join."""
    rng = np.random.default_rng(3)
    known = {
        b.name: rng.integers(-7, 8, b.shape).astype(b.dtype.numpy) if b.dtype in (I8, U8)
        else (rng.permutation(int(np.prod(b.shape))).reshape(b.shape) / 7 - 1).astype(b.dtype.numpy)
        for b in kernel.buffers
        if b.name != "out"
    }  # fmt: skip
    want, out = evaluate_kernel(kernel, known)["out"], None
    for (part,) in of.blocks_joined(kernel):
        check_kernel(part)
        got = evaluate_kernel(part, known)["out"]
        out = np.allclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    return out


def test_law_is_sound() -> None:
    said = [agrees(drawn(seed)) for seed in range(300)]
    assert False not in said and said.count(True) > 80 and said.count(None) > 80


def test_what_is_joined_is_one_sum() -> None:
    for made in (k for s in range(300) for (k,) in blocks.blocks_joined(drawn(s))):
        found = [e for e in subterms(*made.values) if e.attr == ("sum", ("o", "k"))]
        assert found and not [
            f for e in found for f in factors(e.kids[0]) if f.kind == "red" and "k" in f.attr[1]
        ]
        assert not [*blocks.blocks_joined(made)]


MUTANTS = {
    "a maximum around": ('e.kind != "red" or e.attr[0] != "sum"', 'e.kind != "red"'),
    "a maximum within": ('p.kind == "red" and p.attr[0] == "sum"]', 'p.kind == "red"]'),
    "two sums": ("len(sums) != 1", "not sums"),
    "without scale": ("product([*rest, inner.kids[0]])", "product([*rest[:1], inner.kids[0]])"),
    "the first block": ("(*bound_axes(e), *over)", "over"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_killed(name: str, tmp_path: Path) -> None:
    source, path = Path(blocks.__file__).read_text(), tmp_path / "mutant.py"
    old, new = MUTANTS[name]
    assert old in source
    path.write_text(source.replace(old, new))
    wrong = SimpleNamespace(**runpy.run_path(str(path)))

    def killed(seed: int) -> bool:
        try:
            return agrees(drawn(seed), wrong) is False
        except Exception:
            return True

    assert any(killed(seed) for seed in range(300))


# ---- when it is chosen


def gated(n: int, k: int) -> Graph:
    """What a gate multiplies: two products of one normed row, in one region."""

    def write(g: Model) -> Tensor:
        rng = np.random.default_rng(1)

        def weight(name: str) -> Tensor:
            levels = rng.integers(-127, 128, (k // 32, 32, n)).astype("i1")
            scales = rng.uniform(0.5, 1.5, (k // 32, 1, n)).astype("f2")
            b = g.constant(levels, f"{name}.levels").to("f32")
            b = b * g.constant(scales, f"{name}.scales").to("f32")
            return b.reshape((k, n)) * 0.01

        x = g.input("real_x", (1, k))
        x = x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt()
        h = x @ weight("gate")
        return h.sigmoid() * h * (x @ weight("up"))

    return build(write)


def test_blocks_of_a_gate_are_joined() -> None:
    assert "join-block" in laws(gated(512, 256), CPUS["x86-64-v4"], Limits(variants=2))
