"""What training takes beside torch: milliseconds, in turn, and bytes besides weights and states.

    python bench/training.py                                    # all rows; needs torch
    python bench/training.py --only table --threads 2 --profile=--estimate

Bytes of lumc are the arena, the scratch memory of all threads and the outputs; those of torch are
the most that its allocator held during a step, without what was there before.
"""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as f
from torch.profiler import ProfilerActivity, profile

import lumc
from lumc import Model, Tensor, gradients, nn, train
from lumc.bundle.reader import decode
from lumc_build import _run as command
from workloads import WORKLOADS

Arrays = dict[str, np.ndarray]
TURN_S = 0.5  # of one side, then the next one has its turn
BLOCK = {"n1.w": (384,), "n1.b": (384,), "qkv.w": (384, 1152), "qkv.b": (1152,)}
BLOCK |= {"o.w": (384, 384), "o.b": (384,), "n2.w": (384,), "n2.b": (384,)}
BLOCK |= {"up.w": (384, 1536), "up.b": (1536,), "down.w": (1536, 384), "down.b": (384,)}


@dataclass(frozen=True)
class Row:
    """A step as a graph in a file, the same one of torch's, and options of lumc by name."""

    save: Callable[[Path], None]
    inputs: Arrays
    torch: Callable[[], Any]
    options: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"lumc": ()})


def random(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def attention(h: int = 2, s: int = 2048, d: int = 64) -> Row:
    """And its gradients, as they follow from products and a softmax."""
    given = dict(zip(("q", "k", "v", "dy"), random(*[(h, s, d)] * 4), strict=True))
    m = Model()
    q, k, v, dy = (m.input(n, (h, s, d)) for n in given)
    y = nn.attention(q, k, v)
    m.output("y", y)
    for name, slope in zip("qkv", gradients((y * dy).sum(), [q, k, v]), strict=True):
        m.output(f"d{name}", slope)
    own = [torch.tensor(given[n])[None].requires_grad_() for n in "qkv"]
    back = torch.tensor(given["dy"])[None]

    def step() -> None:
        for x in own:
            x.grad = None
        f.scaled_dot_product_attention(*own).backward(back)

    return Row(m.save, given, step, {"lumc": (), "lumc in 5 MB": ("--memory", "5MB")})


def table(rows: int = 32_000, d: int = 64, places: int = 512) -> Row:
    """The gradient of a lookup."""
    rng, (w, dy) = np.random.default_rng(0), random((rows, d), (places, d))
    m = Model()
    own, ids = m.input("w", (rows, d)), m.input("ids", (places,), "i64", values=(0, rows - 1))
    (slope,) = gradients((own.embedding(ids) * m.input("dy", (places, d))).sum(), [own])
    m.output("dw", slope)
    given = {"w": w, "ids": rng.integers(0, rows, places), "dy": dy}
    x, at, back = torch.tensor(w).requires_grad_(), torch.tensor(given["ids"]), torch.tensor(dy)

    def step() -> None:
        x.grad = None
        f.embedding(at, x).backward(back)

    return Row(m.save, {n.name: given[n.name] for n in m.graph().entries[0].inputs}, step)


def block(s: int = 1024, d: int = 384, heads: int = 6) -> Row:
    """A step of AdamW of a transformer's block."""
    x, dy, *first = random((1, s, d), (1, s, d), *BLOCK.values())
    first = [w * np.float32(0.02) for w in first]
    m = Model()
    given = m.input("x", (1, s, d)), m.input("dy", (1, s, d)), m.input("lr", ())
    w = {n: m.state(n, v.shape, value=v) for n, v in zip(BLOCK, first, strict=True)}
    y = _block(w, given[0], heads, nn.causal_bias(m, s))
    dx, *slopes = gradients((y * given[1]).sum(), [given[0], *w.values()])
    train.adamw([*w.values()], slopes, given[2])
    m.output("y", y)
    m.output("dx", dx)
    p = {n: torch.tensor(v).requires_grad_() for n, v in zip(BLOCK, first, strict=True)}
    own, back = torch.tensor(x).requires_grad_(), torch.tensor(dy)
    optimizer = torch.optim.AdamW(p.values(), fused=True)

    def step() -> None:
        a = f.layer_norm(own, (d,), p["n1.w"], p["n1.b"])
        parts = (a @ p["qkv.w"] + p["qkv.b"]).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        a = f.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(-2)
        h = own + a @ p["o.w"] + p["o.b"]
        a = f.layer_norm(h, (d,), p["n2.w"], p["n2.b"]) @ p["up.w"] + p["up.b"]
        (h + f.gelu(a, approximate="tanh") @ p["down.w"] + p["down.b"]).backward(back)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        own.grad = None

    inputs = {"x": x, "dy": dy, "lr": np.float32(1e-3)}
    return Row(m.save, inputs, step, {"lumc": (), "lumc in 30.7 MB": ("--memory", "30700000")})


def _block(w: Mapping[str, Tensor], x: Tensor, heads: int, bias: Tensor) -> Tensor:
    a = x.layer_norm(w["n1.w"], w["n1.b"])
    parts = (a @ w["qkv.w"] + w["qkv.b"]).chunk(3, -1)
    a = nn.attention(*(nn.heads(t, heads) for t in parts), bias)
    h = x + nn.merged(a) @ w["o.w"] + w["o.b"]
    a = h.layer_norm(w["n2.w"], w["n2.b"]) @ w["up.w"] + w["up.b"]
    return h + a.gelu("tanh") @ w["down.w"] + w["down.b"]


def gpt() -> Row:
    """A step of AdamW of six layers, 10.8 M parameters."""
    from trainers import RATE, _torch

    work: Any = WORKLOADS["train_gpt_10m"]()
    step = _torch(work, torch.float32).call
    half = {"lumc": (), "in half": ("--memory", "88MB")}  # of what lumc takes
    return Row(work.save_graph, {**work.inputs, "lr": np.float32(RATE)}, step, half)


ROWS = {"attention": attention, "table": table, "block": block, "gpt": gpt}


def bytes_of(path: Path, bundle: lumc.Bundle, threads: int) -> int:
    plan = decode(next(path.glob("plan/*.bin")).read_bytes())
    (entry,) = plan.entries
    outputs = sum(int(np.prod(t.shape)) * t.dtype.nbytes for t in bundle.outputs)
    return entry.arena_bytes + threads * max(k.scratch_bytes for k in plan.kernels) + outputs


def peak_of(step: Callable[[], Any]) -> int:
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return int(np.cumsum([n for _, n in steps]).max())


def race(sides: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The least milliseconds of each, in turn."""
    best, end = dict.fromkeys(sides, float("inf")), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in sides.items():
            turn = time.perf_counter() + TURN_S
            while (start := time.perf_counter()) < turn:
                run()
                best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def measure(name: str, row: Row, args: argparse.Namespace, folder: Path) -> None:
    row.save(folder / f"{name}.lg")
    sides, nbytes = {"torch": row.torch}, {"torch": peak_of(row.torch)}
    for n, (side, options) in enumerate(row.options.items()):
        path = folder / f"{name}{n}.lb"
        words = [*args.profile.split(), "--threads", str(args.threads), *options]
        try:
            command("compile", *words, str(folder / f"{name}.lg"), "-o", str(path))
        except RuntimeError as e:  # nothing takes so little
            print(f"{name:10} {side:16} {e}")
            continue
        bundle = lumc.load(path, threads=args.threads)
        nbytes[side] = bytes_of(path, bundle, args.threads)
        sides[side] = lambda bundle=bundle: bundle.run(row.inputs)
    times = race(sides, args.seconds)
    for side, ms in times.items():
        ratio = times["torch"] / ms
        print(f"{name:10} {side:16} {ms:9.3f} ms {ratio:5.2f} x torch {nbytes[side]:13,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description="What training takes beside torch.")
    parser.add_argument("--only", default="*", help="rows, by a pattern")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", default="--estimate", help="options of lumc compile")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a row, in turn")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        for name in fnmatch.filter(ROWS, args.only):
            measure(name, ROWS[name](), args, Path(folder))


if __name__ == "__main__":
    main()
