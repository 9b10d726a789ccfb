"""Kernels with axes whose length is known when they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

import kernel_zoo as zoo
from lumc.graph.dim import Dim
from lumc.graph.expr import Expr, add, dim, mul, num, substitute
from lumc.kernel.lengths import Lengths
from lumc.kernel.term import Kernel, iota

MOST = 70
SIZES = (1, 2, 3, 5, 7, 13, 16, 31, 48, 69, MOST)
S, DIMS = dim("s"), (Dim("s", 1, MOST),)
Dims = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """A kernel with its live axes, and which dims of its buffers have one of these lengths."""

    kernel: Kernel
    live: Mapping[str, Expr]
    parts: Mapping[str, Mapping[int, Expr]]
    dims: tuple[Dim, ...] = DIMS

    @property
    def made(self) -> Kernel:
        return replace(self.kernel, live=Lengths(self.dims, tuple(self.live.items())))

    def points(self) -> Iterator[Dims]:
        if len(self.dims) == 1:
            values = self.dims[0].values
            return ({"s": n} for n in sorted({*SIZES, values[-1]}) if n in values)
        return iter([{"p": p, "s": s} for p, s in ((0, 1), (9, 7), (30, 40), (0, 16), (13, 40))])


def rows_and_rest(at: int = 0, **more: int) -> Mapping[str, Mapping[int, Expr]]:
    return {name: {d: S} for name, d in {"x": at, "out": at, **more}.items()}


def rmsnorm(m: int, n: int) -> Kernel:
    value = zoo.times(zoo.times(zoo.x("x", "m", "n"), zoo.rms_scale(n)), zoo.x("g", "n"))
    return zoo.kernel("rmsnorm", "m n", {"m": m, "n": n, "j": n}, value, {"x": (m, n), "g": (n,)})


def chunk(heads: int, d: int) -> Case:
    """Causal attention of s new rows to p + s rows, the new ones behind the p that are there."""
    k = zoo.attention(heads, 40, MOST, d, 2, False, True)
    late = {iota("q"): iota(add("q", dim("p")))}
    roots = tuple(replace(r, value=substitute(r.value, late)) for r in k.roots)
    n = add(S, dim("p"))
    parts = {"Q": {1: S}, "out": {1: S}, "K": {1: n}, "V": {1: n}}
    dims = Dim("p", 0, 30), Dim("s", 1, 40)
    return Case(replace(k, roots=roots), {"q": S, "j": n}, parts, dims)


def square(e: Expr) -> Mapping[str, Mapping[int, Expr]]:
    return {"Q": {1: e}, "K": {1: e}, "V": {1: e}, "out": {1: e}}


CASES: dict[str, Callable[[], Case]] = {
    "rmsnorm rows": lambda: Case(rmsnorm(MOST, 100), {"m": S}, rows_and_rest()),
    "rmsnorm long rows": lambda: Case(rmsnorm(MOST, 300), {"m": S}, rows_and_rest()),
    "softmax row": lambda: Case(zoo.softmax(17, MOST), dict.fromkeys("nji", S), rows_and_rest(1)),
    "softmax rows": lambda: Case(zoo.softmax(MOST, 50), {"m": S}, rows_and_rest()),
    "matmul m": lambda: Case(zoo.matmul(MOST, 50, 37, True), {"m": S}, rows_and_rest()),
    "matmul n": lambda: Case(
        zoo.matmul(20, MOST, 37, False, False), {"n": S}, {"w": {1: S}, "out": {1: S}}
    ),
    "matmul k": lambda: Case(
        zoo.matmul(20, 50, MOST, False, False), {"k": S}, {"x": {1: S}, "w": {0: S}}
    ),
    "matmul m of eights": lambda: Case(
        zoo.matmul(72, 50, 37, True),
        {"m": mul(dim("s"), 8)},
        {"x": {0: mul(S, 8)}, "out": {0: mul(S, 8)}},
        (Dim("s", 1, 9),),
    ),
    "norm, linear, residual": lambda: Case(
        zoo.rms_linear_residual(MOST, 50, 64), {"m": S}, rows_and_rest(r=0)
    ),
    "gated": lambda: Case(zoo.gated(MOST, 50, 64), {"m": S}, rows_and_rest()),
    "decode": lambda: Case(zoo.decode(3, 3, MOST, 64), {"j": S}, {"K": {1: S}, "V": {1: S}}),
    "attention": lambda: Case(
        zoo.attention(4, MOST, MOST, 16, 2, False, True), {"q": S, "j": S}, square(S)
    ),
    "attention to keys": lambda: Case(
        zoo.attention(4, 5, MOST, 16, 2, True, False),
        {"j": S},
        {"K": {1: S}, "V": {1: S}, "mask": {1: S}},
    ),
    "attention of a chunk": lambda: chunk(4, 16),
}


def value(e: Expr, dims: Dims) -> int:
    n = substitute(e, {dim(name): num(v) for name, v in dims.items()})
    return int(n.attr[0])


def split(array: np.ndarray, parts: Mapping[int, Expr], dims: Dims) -> tuple[slice, ...]:
    """Where the elements of a buffer are that there are."""
    return tuple(
        slice(value(parts[d], dims)) if d in parts else slice(None) for d in range(array.ndim)
    )


def roomy(case: Case, full: Mapping[str, np.ndarray], dims: Dims) -> dict[str, np.ndarray]:
    """These inputs with NaN, of all ones, where a run of these dims has nothing."""
    given = {}
    for name, array in full.items():
        inside = split(array, case.parts.get(name, {}), dims)
        given[name] = np.empty_like(array)
        given[name].view(np.uint8)[...] = 0xFF
        given[name][inside] = array[inside]
    return given
