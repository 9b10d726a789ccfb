"""How long every pass takes as models grow: no pass may be worse than linear in their nodes.

    python bench/compile_time.py [--only chain] [--nodes 100 200] [model.onnx ..]

Prints one row of a Markdown table for every model: the seconds of ``lumc compile --estimate`` by
pass, on all cores, with nothing kept from one run to the next. Models that are given are compiled
too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from lumc.frontend import Model, Tensor, concat

PASSES = ("read", "search", "profile", "codegen", "link")
NODES = (100, 200, 500, 1000, 2000)
TIMEOUT_S = 300


def chain(g: Model, nodes: int) -> Tensor:
    """Multiply, add, and add an earlier value."""
    x, a, b = (g.input(name, (1024,)) for name in ("x", "a", "b"))
    earlier = [x]
    for _ in range(max(1, nodes // 3)):
        earlier.append(earlier[-1] * a + b + earlier[max(0, len(earlier) - 2)])
    return earlier[-1]


def slices(g: Model, nodes: int) -> Tensor:
    """A concat of padded slices: three nodes for each of them."""
    x = g.input("x", (64, 256))
    starts = [7 * i % 192 for i in range(max(2, nodes // 3))]
    return concat([x[:, i : i + 32].pad([(0, 0), (2, 2)]) for i in starts], 1)


def nested(g: Model, nodes: int) -> Tensor:
    """A concat of two slices of what is padded, sliced, and so on: six nodes for each."""
    y = g.input("x", (1, 100))
    for _ in range(max(1, nodes // 6)):
        y = y.pad([(0, 0), (2, 2)])
        y = concat([y[:, :50], y[:, 49:] * 2.0], 1)[:, 1:-2]
    return y


def layers(g: Model, nodes: int) -> Tensor:
    """A perceptron, each layer with weights of its own: four nodes for each."""
    sizes = [(64, 48, 80)[i % 3] for i in range(max(1, nodes // 4) + 1)]
    rng, x = np.random.default_rng(0), g.input("x", (8, sizes[0]))
    for i, (k, n) in enumerate(pairwise(sizes)):
        w = g.constant(rng.standard_normal((k, n), dtype=np.float32) * np.float32(k**-0.5), f"w{i}")
        x = (x @ w + g.constant(np.zeros(n, np.float32), f"b{i}")).relu()
    return x


MODELS: dict[str, Callable[[Model, int], Tensor]] = {
    "chain": chain,
    "slices": slices,
    "nested": nested,
    "layers": layers,
}
LARGE = {"chain": 2000, "slices": 3 * 64, "nested": 6 * 64, "layers": 4 * 300}


def made(name: str, nodes: int) -> Model:
    g = Model()
    g.output("y", MODELS[name](g, nodes))
    return g


def seconds(source: Path) -> dict[str, float]:
    """Of every pass, and of all together with the start of Python."""
    command = [sys.executable, "-m", "lumc", "compile", source.name, "-o", "model.lb"]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--estimate", "-v"],
        cwd=source.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    whole = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = re.findall(r"^(\w+) +([0-9.]+) s$", done.stderr, re.MULTILINE)
    return {name: float(value) for name, value in found if name in PASSES} | {"all": whole}


def row(label: str, source: Path) -> str:
    try:
        found = seconds(source)
    except subprocess.TimeoutExpired:
        return f"| {label} | more than {TIMEOUT_S} s |"
    return f"| {label} | {' | '.join(f'{found[p]:.2f}' for p in (*PASSES, 'all'))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--nodes", nargs="*", type=int, default=NODES)
    asked = parser.parse_args()
    print(f"| model | {' | '.join(PASSES)} | all |\n|---|{'--:|' * 6}")
    for name in asked.only:
        for nodes in sorted({*asked.nodes, *([LARGE[name]] if asked.nodes is NODES else [])}):
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / "model.lg"
                made(name, nodes).save(source)
                print(row(f"{name} {nodes}", source), flush=True)
    for model in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / model.name
            source.symlink_to(model.resolve())
            print(row(model.stem, source), flush=True)


if __name__ == "__main__":
    main()
