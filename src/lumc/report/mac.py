"""What ``lumc doctor`` says of a Mac: its GPU, and whether it computes what lumc takes for granted
of it. Nobody has a Mac to test on at hand, so the report of one is worth much."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from lumc.codegen.gpu.grid import Grid
from lumc.errors import LumcError
from lumc.graph.ops import from_bf16
from lumc.runtime.objc import Metal, launch, metal

Array = np.ndarray[Any, Any]
Check = tuple[str, bool, str]  # what, whether it is there, what it says
ULP = 4.0  # what Metal promises of its precise functions
EDGES = [0.0, -0.0, 1, -1, 0.5, 3, -3, 1e-30, -1e30, 127, -126, 5.5, 88, np.inf, -np.inf, np.nan]
FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "exp2": lambda a, b: np.exp2(a),
    "log2": lambda a, b: np.log2(a),
    "sin": lambda a, b: np.sin(a),
    "sqrt": lambda a, b: np.sqrt(a),
    "recip": lambda a, b: 1 / a,
    "finite": lambda a, b: np.maximum(a, float(np.finfo(np.float32).min)),
    "mod": np.fmod,
    "max": np.maximum,
    "top": lambda a, b: np.where(b > a, b, a),
    "mul": np.multiply,
}


@dataclass(frozen=True)
class Difference:
    """The worst result of a test: which, what was expected, what came."""

    what: str
    input: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"{self.what}({self.input}) = {self.got}, expected {self.wanted}"


def checks(library: str = "") -> list[Check]:
    """The lines of ``lumc doctor``: the GPU, and the self-test. ``library`` stands for Apple's."""
    try:
        gpu = metal(library)
    except LumcError as e:
        return [("metal", False, e.what)]
    facts = gpu.gpu()
    memory = f"{facts.memory / 1e9:.1f} GB, buffers up to {facts.largest_buffer / 1e9:.1f} GB"
    shared = "shared with the CPU" if facts.unified else "not shared with the CPU"
    said = f"{facts.name}, family Apple{facts.family}, macOS {platform.mac_ver()[0] or '-'}"
    out = [("metal", True, said), ("metal memory", facts.unified, f"{memory}, {shared}")]
    for name, test in TESTS.items():
        try:
            wrong = list(test(gpu))
        except LumcError as e:
            out.append((f"metal {name}", False, str(e)))
            continue
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        out.append((f"metal {name}", not wrong, f"{wrong[0]}{more}" if wrong else "as expected"))
    return out


def text() -> str:
    """The kernels of the self-test, with their header."""
    header = files("lumc.codegen.gpu").joinpath("lumc_dev.metal").read_text(encoding="utf-8")
    return header + files("lumc.report").joinpath("selftest.metal").read_text(encoding="utf-8")


def _functions(gpu: Metal) -> Iterator[Difference]:
    """The edge cases of numpy, and at most 4 units in the last place; results that are not normal
    numbers may be zeros."""
    rng = np.random.default_rng(0)
    pairs = np.array(np.meshgrid(EDGES, EDGES)).reshape(2, -1).astype(np.float32)  # f32[2, 256]
    scale = np.float32(2.0) ** rng.integers(-20, 20, (2, 768)).astype(np.float32)
    more = rng.standard_normal((2, 768)).astype(np.float32) * scale
    a, b = (np.ascontiguousarray(row) for row in np.concatenate([pairs, more], 1))
    y = np.zeros((len(FUNCTIONS), 1024), np.float32)
    launch(gpu, text(), "t_functions", Grid(4, 256), [a, b, y])
    with np.errstate(all="ignore"):
        for i, (name, f) in enumerate(FUNCTIONS.items()):
            want = f(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
            bad = ~_close(y[i], want)
            if bad.any():
                at = int(np.argmax(bad))
                yield Difference(name, f"{a[at]}, {b[at]}", str(want[at]), str(y[i, at]))


def _close(got: Array, want: Array) -> Array:
    tiny = np.finfo(np.float32).tiny
    small = (np.abs(want) < tiny) & (np.abs(got) <= tiny)
    near = np.abs(got - want) <= ULP * np.spacing(np.abs(want))
    same: Array = (got == want) | (np.isnan(got) & np.isnan(want)) | small | near
    return same


def _integers(gpu: Metal) -> Iterator[Difference]:
    edges = [0, 1, -1, 7, -7, 1 << 40, (1 << 63) - 1, -(1 << 63)]
    a, b = (m.ravel().copy() for m in np.meshgrid(np.array(edges), np.array(edges)))
    y = np.zeros((3, 64), np.int64)
    launch(gpu, text(), "t_integers", Grid(1, 64), [a, b, y])
    with np.errstate(all="ignore"):
        mod = np.where((b == 0) | (b == -1), 0, np.fmod(a, np.where(b == 0, 1, b)))
        for name, got, want in zip(("add", "mul", "mod"), y, (a + b, a * b, mod), strict=True):
            yield from _exact(name, got, want, [f"{p}, {q}" for p, q in zip(a, b, strict=True)])


def _halves(gpu: Metal) -> Iterator[Difference]:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide, narrow = np.zeros((2, 1 << 16), np.float32), np.zeros((2, 1 << 16), np.uint16)
    launch(gpu, text(), "t_halves", Grid(256, 256), [bits, bits, wide, narrow])
    wants = (
        bits.view(np.float16).astype(np.float32),
        from_bf16(bits),
    )
    for i, (name, want) in enumerate(zip(("f16", "bf16"), wants, strict=True)):
        number = ~np.isnan(want)
        names = [f"0x{n:04x}" for n in bits[number]]
        yield from _exact(f"from {name}", wide[i][number], want[number], names)
        yield from _exact(f"to {name}", narrow[i][number], bits[number], names)


def _matrix(gpu: Metal) -> Iterator[Difference]:
    """The places of the elements, which kernels rely on."""
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    held, product = np.zeros(64, np.float32), np.zeros((8, 8), np.float32)
    launch(gpu, text(), "t_matrix", Grid(1, 32), [a, held, product])
    lane = np.arange(64) // 2
    row = (lane // 4 & 4) + lane // 2 % 4
    column = (lane // 4 & 2) * 2 + lane % 2 * 2 + np.arange(64) % 2
    names = [f"lane {n // 2}, element {n % 2}" for n in range(64)]
    yield from _exact("thread_elements", held, a[row, column], names)
    yield from _exact("product", product.ravel(), (a @ a + 1).ravel(), [str(n) for n in range(64)])


def _lanes(gpu: Metal) -> Iterator[Difference]:
    x = np.arange(256, dtype=np.float32)
    y = np.zeros((4, 256), np.float32)
    launch(gpu, text(), "t_lanes", Grid(1, 256), [x, y])
    number = np.arange(256)
    sums = np.repeat(x.reshape(8, 32).sum(1), 32)
    wants = x[::-1], x[number ^ 9], sums, x
    names = ("threadgroup memory", "simd_shuffle_xor", "simd_sum", "lane numbers")
    for name, got, want in zip(names, y, wants, strict=True):
        yield from _exact(name, got, want, [f"thread {n}" for n in number])


def _exact(what: str, got: Array, want: Array, names: list[str]) -> Iterator[Difference]:
    bad = got != want
    if bad.any():
        at = int(np.argmax(bad))
        yield Difference(what, names[at], str(want[at]), str(got[at]))


TESTS: dict[str, Callable[[Metal], Iterator[Difference]]] = {
    "functions": _functions,
    "integers": _integers,
    "16-bit floats": _halves,
    "matrices": _matrix,
    "lanes": _lanes,
}
