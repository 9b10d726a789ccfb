"""How long every pass takes as models grow: no pass may be worse than linear in their nodes.

    python bench/compile_time.py [model.onnx ..] [--only chain] [--nodes 100 200]
        [--networks resnet50] [-o FILE]
    python bench/compile_time.py --plan

Prints a row for every model: the seconds of ``lumc compile --estimate`` by pass, on all cores, with
nothing kept from one run to the next, the least of three. Then by how much every pass grows.
``--plan`` only plans a graph of Llama's with 8 billion weights, which it does not have.
``make compile-times`` measures all and writes docs/compile-time.md. Networks of the zoo need torch.
Models that are given are compiled too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from lumc.frontend import Model, Tensor, concat, nn

PASSES = ("read", "search", "profile", "codegen", "link")
NODES = (100, 250, 500, 1000, 2000)
TIMEOUT_S = 300
RUNS = 3  # other users of the machine can only add to a time


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


def llama(g: Model, layers: int, rows: int = 128) -> Tensor:
    """Llama 3.1 8B, where it has 32 layers: tokens to logits. The weights are states, so that there
    are shapes only."""
    d, heads, groups, inner, words = 4096, 32, 8, 14336, 128256
    width = d // heads
    shapes = {"q": (d, d), "k": (d, groups * width), "v": (d, groups * width), "o": (d, d)}
    shapes |= {"gate": (d, inner), "up": (d, inner), "down": (inner, d), "n1": (d,), "n2": (d,)}
    cos, sin = (g.input(name, (rows, width // 2)) for name in ("cos", "sin"))
    x = g.state("table", (words, d)).embedding(g.input("ids", (1, rows), "i64"))
    for i in range(layers):
        w = {name: g.state(f"{name}.{i}", shape) for name, shape in shapes.items()}
        h = x.rms_norm(w["n1"])
        q, k, v = (nn.heads(h @ w[n], m) for n, m in (("q", heads), ("k", groups), ("v", groups)))
        q, k = nn.rotary(q, cos, sin), nn.rotary(k, cos, sin)
        k, v = (nn.repeat_heads(t, heads // groups) for t in (k, v))
        x = x + nn.merged(nn.attention(q, k, v, nn.causal_bias(g, rows))) @ w["o"]
        h = x.rms_norm(w["n2"])
        x = x + ((h @ w["gate"]).silu() * (h @ w["up"])) @ w["down"]
    return x.rms_norm(g.state("norm", (d,))) @ g.state("head", (d, words))


MODELS: dict[str, Callable[[Model, int], Tensor]] = {
    "chain": chain,
    "slices": slices,
    "nested": nested,
    "layers": layers,
}
LARGE = {"chain": 2000, "slices": 3 * 64, "nested": 6 * 64, "layers": 4 * 300}
LIMITS = {"chain 2000": 20, "slices 192": 20, "layers 1200": 20, "resnet50": 15}  # seconds
LITTLE = 0.2  # seconds of a pass that say nothing about growth
Times = dict[str, dict[str, float]]  # by model and pass; empty: it took too long
HEAD = """# How long compiling takes

`lumc compile --estimate` by pass, in seconds, the least of three runs: all cores, the C compiler
included, nothing kept from earlier runs; `all` has the start of Python too. Made by
`make compile-times` ([bench/compile_time.py](../bench/compile_time.py)).

* *chain*: a multiply, an add and an add of an earlier value, again and again
* *slices*: a concat of padded slices, three nodes for each; 192 nodes are 64 slices
* *nested*: a concat of two slices of what is padded, sliced, and so on
* *layers*: a perceptron, four nodes for each layer; 1,200 nodes are 300 layers

Measured on {cpu}, {cores} cores, {date}, at {commit}.
"""
GROWTH = """## Growth

The time of every pass, for twice the nodes: 2 is linear. Passes under 0.2 s are left out. A test
counts the steps of the Python passes, which no noise disturbs (`tests/unit/test_steps.py`).
"""
PLAN = """## A plan alone

`lumc search` and `lumc profile --estimate` of Llama 3.1 8B in f32, 32 layers and 128 tokens; shapes
only, no weights (`python bench/compile_time.py --plan`). The limits are 30 s and 1,000 MB.
"""
SPENT = """
import json, resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def planned() -> list[str]:
    """Seconds of the processor and MB of each pass of a plan, as rows."""
    g = Model()
    g.output("logits", llama(g, 32))
    rows = ["| pass | CPU s | MB |", "|---|--:|--:|"]
    with tempfile.TemporaryDirectory() as folder:
        g.save(Path(folder) / "m.lg")
        for words in ("search m.lg -o m.ls", "profile m.ls --estimate -o m.lp"):
            command = [sys.executable, "-c", SPENT, sys.executable, "-m", "lumc", *words.split()]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            status, cpu_s, mb = json.loads(done.stdout)
            if status:
                raise RuntimeError(done.stderr)
            rows.append(f"| {words.split()[0]} | {cpu_s:.1f} | {mb:.0f} |")
    return rows


def made(name: str, nodes: int) -> Model:
    g = Model()
    g.output("y", MODELS[name](g, nodes))
    return g


def saved(name: str, nodes: int, folder: Path) -> Path:
    made(name, nodes).save(folder / "model.lg")
    return folder / "model.lg"


def seconds(source: Path) -> dict[str, float]:
    """Of every pass, and of all together with the start of Python."""
    command = [sys.executable, "-m", "lumc", "compile", source.name, "-o", "model.lb"]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--estimate", "-v"],
        cwd=source.parent,
        env={**os.environ, "LUMC_OBJECTS": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    whole = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = re.findall(r"^(\w+) +([0-9.]+) s$", done.stderr, re.MULTILINE)
    return {name: float(value) for name, value in found if name in PASSES} | {"all": whole}


def measured(source: Path) -> dict[str, float]:
    """The least of some runs, pass by pass."""
    try:
        runs = [seconds(source) for _ in range(RUNS)]
    except subprocess.TimeoutExpired:
        return {}
    return {name: min(run[name] for run in runs) for name in runs[0]}


def row(label: str, found: dict[str, float]) -> str:
    if not found:
        return f"| {label} | more than {TIMEOUT_S} s |"
    limit = f"{LIMITS[label]}" if label in LIMITS else ""
    return f"| {label} | {' | '.join(f'{found[p]:.2f}' for p in (*PASSES, 'all'))} | {limit} |"


def growth(times: Times, nodes: Sequence[int]) -> Iterator[str]:
    """For twice the nodes, the times of every pass that takes long enough to tell."""
    small, large = nodes[-2:]
    yield f"| from {small} to {large} nodes | {' | '.join(PASSES)} |\n|---|{'--:|' * len(PASSES)}"
    for name in MODELS:
        ends = [times.get(f"{name} {n}") for n in (small, large)]
        if all(ends):
            a, b = (end or {} for end in ends)
            said = (f"{b[p] / a[p]:.1f} ×" if a[p] > LITTLE else "" for p in PASSES)
            yield f"| {name} | {' | '.join(said)} |"


def network(name: str, folder: Path) -> Path:
    """The ONNX file of a network of the zoo, exported by torch."""
    from zoo.case import export, find

    export(find(name), folder / name)
    return folder / name / "model.onnx"


def linked(model: Path, folder: Path) -> Path:
    (folder / model.name).symlink_to(model.resolve())
    return folder / model.name


def measure(wanted: Sequence[tuple[str, Callable[[Path], Path]]]) -> Times:
    """Every model, each in a folder of its own; prints them as they come."""
    out: Times = {}
    for label, make in wanted:
        with tempfile.TemporaryDirectory() as folder:
            out[label] = measured(make(Path(folder)))
        print(row(label, out[label]), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--nodes", nargs="*", type=int, default=NODES)
    parser.add_argument("--networks", nargs="*", default=[])
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("-o", dest="output", type=Path)
    asked = parser.parse_args()
    if asked.plan:
        print("\n".join(planned()))
        return
    if asked.networks:
        from zoo.case import cases

        unknown = sorted(set(asked.networks) - cases()["networks"].keys())  # exits without torch
        if unknown:
            parser.error(f"no network of the zoo: {', '.join(unknown)}")
    head = f"| model | {' | '.join(PASSES)} | all | limit |\n|---|{'--:|' * 7}"
    print(head)
    nodes, every = sorted(asked.nodes), asked.nodes is NODES
    wanted = [
        (f"{name} {n}", partial(saved, name, n))
        for name in asked.only
        for n in sorted({*nodes, *([LARGE[name]] if every else [])})
    ]
    wanted += [(name, partial(network, name)) for name in asked.networks]
    wanted += [(model.stem, partial(linked, model)) for model in asked.models]
    times = measure(wanted)
    rows = [head, *(row(label, found) for label, found in times.items())]
    grown = list(growth(times, nodes)) if len(nodes) > 1 else []
    print("\n".join(["", *grown]))
    if asked.output:
        from run import commit, processor

        today, cores = datetime.date.today().isoformat(), os.cpu_count()
        said = HEAD.format(cpu=processor(), cores=cores, date=today, commit=commit())
        parts = [said, *rows, "", GROWTH, *grown, "", PLAN, *planned()]
        asked.output.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
