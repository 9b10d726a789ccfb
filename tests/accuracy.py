"""How exact the functions of the Tensor API are, compiled for this machine: docs/accuracy.md.

    python tests/accuracy.py                 # print the table, every 4,001st f32
    python tests/accuracy.py --step 251      # every 251st f32; 1 is the whole line
    python tests/accuracy.py --update        # write the table into docs/accuracy.md

The judge is float64 of numpy, and erf and erfc of Python's math. An ulp is the distance between two
f32 at the exact result. Results below 2^-126 may be 0, and such operands count as 0.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from commands import Lumc
from lumc.frontend import Model, Tensor
from lumc.runtime.cpu import Bundle

Array = np.ndarray[Any, Any]
DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"
BLOCK, WIDTH = 1 << 16, 64
LEAST = 2.0**-126
REGIONS = {"near 0": (LEAST, 2.0**-10), "usual": (2.0**-10, 16.0), "huge": (16.0, np.inf)}
FAR = {"cos": 1.7e38, "tan": 1.7e38}  # beyond, see the document
PRODUCTS = ("silu", "gelu, tanh")  # of x and what may be below the least normal number
erf, erfc = (np.vectorize(f, otypes=[float]) for f in (math.erf, math.erfc))


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


def gelu_tanh(x: Array) -> Array:
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


POINTWISE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "exp2": (lambda x: x.exp2(), np.exp2),
    "exp": (lambda x: x.exp(), np.exp),
    "expm1": (lambda x: x.expm1(), np.expm1),
    "sinh": (lambda x: x.sinh(), np.sinh),
    "log2": (lambda x: x.log2(), np.log2),
    "log": (lambda x: x.log(), np.log),
    "log1p": (lambda x: x.log1p(), np.log1p),
    "sqrt": (lambda x: x.sqrt(), np.sqrt),
    "rsqrt": (lambda x: x.rsqrt(), lambda x: 1 / np.sqrt(x)),
    "1 / x": (lambda x: 1.0 / x, lambda x: 1 / x),
    "sin": (lambda x: x.sin(), np.sin),
    "cos": (lambda x: x.cos(), np.cos),
    "tan": (lambda x: x.tan(), np.tan),
    "tanh": (lambda x: x.tanh(), np.tanh),
    "erf": (lambda x: x.erf(), erf),
    "sigmoid": (lambda x: x.sigmoid(), sigmoid),
    "softplus": (lambda x: x.softplus(), lambda x: np.logaddexp(0, x)),
    "elu": (lambda x: x.elu(), lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x)),
    "silu": (lambda x: x.silu(), lambda x: x * sigmoid(x)),
    "gelu": (lambda x: x.gelu(), lambda x: x * erfc(-x / math.sqrt(2)) / 2),
    "gelu, tanh": (lambda x: x.gelu("tanh"), gelu_tanh),
    "x ** 2.5": (lambda x: x**2.5, lambda x: np.power(x, 2.5)),
    "x ** 3": (lambda x: x**3, lambda x: x**3),
    "1.1 ** x": (lambda x: 1.1**x, lambda x: np.power(1.1, x)),
}


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _standardised(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


ROWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "sum": (lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "mean": (lambda x: x.mean(-1), lambda x: x.mean(-1)),
    "var": (lambda x: x.var(-1), lambda x: x.var(-1)),
    "std": (lambda x: x.std(-1), lambda x: x.std(-1)),
    "softmax": (lambda x: x.softmax(), _softmax),
    "log_softmax": (lambda x: x.log_softmax(), lambda x: np.log(_softmax(x))),
    "logsumexp": (
        lambda x: x.logsumexp(),
        lambda x: x.max(-1) + np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)),
    ),
    "layer_norm": (lambda x: x.layer_norm(), _standardised),
    "rms_norm": (
        lambda x: x.rms_norm(),
        lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5),
    ),
    "normalize": (
        lambda x: x.normalize(),
        lambda x: x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), 1e-12),
    ),
}
SCALES = {"near 0": 1e-3, "usual": 1.0, "huge": 50.0}
Figures = dict[str, dict[str, float]]


def compiled(
    folder: Path, build: dict[str, tuple[Callable[[Tensor], Tensor], Any]], *shape: int
) -> Bundle:
    """Every function as an output of one bundle, by position."""
    g = Model()
    x = g.input("x", shape)
    for i, (function, _) in enumerate(build.values()):
        g.output(f"y{i}", function(x))
    g.save(folder / "m.lg")
    Lumc(folder)("compile", "--estimate", folder / "m.lg", "-o", folder / "m.lb")
    return Bundle.open(folder / "m.lb")


def numbers(step: int) -> Iterator[Array]:
    """Every ``step``-th f32 of the line in blocks, each displaced at random, and some edges."""
    rng = np.random.default_rng(step)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, math.pi / 2, math.pi, 88.7]
    edges += [-87.3, 3.4028234e38, -3.4028234e38, 1e-45, -1e-45, LEAST, -LEAST, -1.0000001, 8.31]
    yield np.resize(np.array(edges, np.float32), BLOCK)
    for start in range(0, 1 << 32, step * BLOCK):
        bits = np.arange(start, start + step * BLOCK, step) + rng.integers(0, step, BLOCK)
        yield np.minimum(bits, (1 << 32) - 1).astype(np.uint32).view(np.float32)


def ulps(got: Array, want: Array) -> Array:
    """The distance in units of the last place of f32; infinite where one is not finite and the
    other is another."""
    rounded = want.astype(np.float32)
    unit = np.spacing(np.maximum(np.abs(rounded), np.float32(LEAST))).astype(float)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.nan_to_num(np.where(same, 0.0, np.abs(got - want) / unit), nan=np.inf)


def pointwise(bundle: Bundle, step: int) -> Figures:
    """The worst ulp of every function by region, and what is wrong elsewhere."""
    out: Figures = {name: dict.fromkeys((*REGIONS, "relative", "wrong"), 0.0) for name in POINTWISE}
    for x in numbers(step):
        got = bundle.run({"x": x})
        flushed = np.where(np.abs(x) < LEAST, np.copysign(0.0, x), x).astype(np.float64)
        for i, (name, (_, reference)) in enumerate(POINTWISE.items()):
            y, want = got[f"y{i}"].astype(np.float64), reference(flushed)
            error = ulps(y, want)
            least = LEAST * np.maximum(np.abs(x), 1) if name in PRODUCTS else LEAST
            small = (np.abs(want) < least) & (np.abs(y) <= LEAST)
            error = np.where(small | (np.abs(x) > FAR.get(name, np.inf)), 0.0, error)
            at = out[name]
            with np.errstate(all="ignore"):
                relative = np.where(error > 0, np.abs(y - want) / np.abs(want), 0.0)
            finite = np.isfinite(error)
            at["wrong"] += float((~finite).sum())
            at["relative"] = max(at["relative"], float(relative[finite].max(initial=0)))
            for region, (low, high) in REGIONS.items():
                here = (np.abs(x) >= low) & (np.abs(x) < high) & finite
                at[region] = max(at[region], float(error[here].max(initial=0)))
            at["wrong"] += float((error[flushed == 0] > 4).sum())
    return out


def rows(bundle: Bundle, count: int) -> Figures:
    """The worst error of functions of rows, relative to the greatest element of a row."""
    rng, out = np.random.default_rng(count), Figures()
    for region, scale in SCALES.items():
        x = (rng.standard_normal((count, WIDTH)) * scale).astype(np.float32)
        got = bundle.run({"x": x})
        for i, (name, (_, reference)) in enumerate(ROWS.items()):
            want = reference(x.astype(np.float64))
            size = np.abs(want).max(-1, keepdims=True) if want.ndim > 1 else np.abs(want)
            if name in ("sum", "mean"):  # of what is added: they may cancel
                size = np.abs(x).astype(float).sum(-1) / (WIDTH if name == "mean" else 1)
            error = np.abs(got[f"y{i}"] - want) / size
            out.setdefault(name, {})[region] = float(error.max())
    return out


def text(points: Figures, of_rows: Figures) -> str:
    """Two tables."""
    said = ["| | near 0 | usual | huge | relative |", "|---|---|---|---|---|"]
    for name, f in points.items():
        cells = [f"{f[r]:.1f}" if f[r] < 1e4 else f"{f[r]:.0e}" for r in REGIONS]
        said.append(f"| `{name}` | {' | '.join(cells)} | {f['relative']:.1e} |")
    said += ["", "| of rows of 64 | x 0.001 | x 1 | x 50 |", "|---|---|---|---|"]
    for name, f in of_rows.items():
        said.append(f"| `{name}` | {' | '.join(f'{f[r]:.1e}' for r in SCALES)} |")
    return "\n".join(said)


def measured(step: int, count: int) -> tuple[Figures, Figures]:
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        with compiled(Path(folder), POINTWISE, BLOCK) as bundle:
            points = pointwise(bundle, step)
        with compiled(Path(folder), ROWS, count, WIDTH) as bundle:
            return points, rows(bundle, count)


BEGIN, END = "<!-- measured -->", "<!-- end -->"


def documented() -> str:
    return DOCUMENT.read_text().split(BEGIN)[1].split(END)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=4001)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    points, of_rows = measured(options.step, 4096)
    said = text(points, of_rows)
    print(said)
    for name, f in points.items():
        if f["wrong"]:
            print(f"{name}: {f['wrong']:.0f} results are infinite, NaN or zero, and should not be")
    if options.update:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{said}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
