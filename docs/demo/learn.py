"""Train the samples of training, say what they learned, and draw their losses.

    pip install scikit-learn
    python docs/demo/learn.py [--steps 1000] [-o docs]

Writes learned-digits.svg and learned-text.svg. Two minutes, most of them compilers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import lumc

ROOT = Path(__file__).parents[2]
DIGITS, GPT = (
    SimpleNamespace(**run_path(str(ROOT / "graphs" / f"{n}.py"))) for n in ("digits", "gpt")
)
NETWORKS = {"mlp": (DIGITS.dense, DIGITS.MLP), "cnn": (DIGITS.convolutional, DIGITS.CNN)}
DTYPES = ("f32", "bf16", "f16")
LEARNED = 1437  # pictures of 1797; the others are held out
WARM = 50  # steps
JUDGED = 40  # batches of the text that is held out
COOL = 0.7  # letters that are likely are taken more often than they are likely
Array = np.ndarray[Any, Any]
Pairs = tuple[Array, Array]


class Learned(NamedTuple):
    """``score``: the share of held-out pictures that are right, or the loss of held-out text."""

    losses: list[float]
    score: float
    said: str = ""


def rate(step: int, steps: int, most: float) -> np.float32:
    """Rises for some steps, then falls as a cosine does."""
    return np.float32(most * min((step + 1) / WARM, np.cos(step / steps * np.pi / 2)))


# ---- digits


def pictures(seed: int = 0) -> tuple[Pairs, Pairs]:
    """The digits of scikit-learn to learn and those to be judged by: f32[n, 64] and i64[n]."""
    from sklearn.datasets import load_digits

    x, label = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, label = (x / 16).astype("f4")[order], label[order].astype("i8")
    return (x[:LEARNED], label[:LEARNED]), (x[LEARNED:], label[LEARNED:])


def batches(pairs: Pairs, steps: int, seed: int = 1) -> list[Pairs]:
    """Every picture about once before any is seen again."""
    rng, (x, label), out = np.random.default_rng(seed), pairs, list[Pairs]()
    while len(out) < steps:
        order = rng.permutation(len(x))
        out += [
            (x[rows], label[rows])
            for rows in np.split(
                order[: len(x) // DIGITS.BATCH * DIGITS.BATCH], len(x) // DIGITS.BATCH
            )
        ]
    return out[:steps]


def network(name: str, dtype: str = "f32") -> lumc.Bundle:
    """A sample, compiled: "mlp", "cnn" or "gpt"."""
    made = GPT.gpt(dtype) if name == "gpt" else DIGITS.step(*NETWORKS[name], dtype=dtype)
    return lumc.compile(made, estimate=True)


def digits(bundle: lumc.Bundle, steps: int = 1000) -> Learned:
    """Train a network; losses of its batches, and how many held-out pictures are right."""
    learn, held = pictures()
    losses = [
        float(bundle.run({"x": x, "label": label, "lr": rate(s, steps, 3e-3)})["loss"])
        for s, (x, label) in enumerate(batches(learn, steps))
    ]
    right = bundle.run({"x": held[0]}, entry="predict")["digit"] == held[1]
    return Learned(losses, float(right.mean()))


# ---- letters


def letters() -> Pairs:
    """The text to learn, and the last tenth of it."""
    ids = GPT.ids()
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:]


def lines(ids: Array, rng: np.random.Generator) -> Pairs:
    """Pieces of a text, and the letters that follow each."""
    start = rng.integers(0, len(ids) - GPT.LENGTH, (GPT.BATCH, 1)) + np.arange(GPT.LENGTH)
    return ids[start], ids[start + 1]


def text(bundle: lumc.Bundle, steps: int = 2000, said: int = 200) -> Learned:
    """Train the transformer; losses, that of held-out text, and what it goes on with."""
    learn, held = letters()
    rng, losses = np.random.default_rng(1), list[float]()
    for s in range(steps):
        x, y = lines(learn, rng)
        losses.append(float(bundle.run({"x": x, "y": y, "lr": rate(s, steps, 2e-3)})["loss"]))
    rng, judged = np.random.default_rng(2), list[float]()
    for _ in range(JUDGED):
        x, y = lines(held, rng)
        judged.append(float(bundle.run({"x": x, "y": y}, entry="judge")["loss"]))
    ids = list(held[: GPT.LENGTH])
    for _ in range(said):
        x = np.array([ids[-GPT.LENGTH :]])
        z = bundle.run({"x": x}, entry="read")["logits"][0, -1].astype("f8")
        share = np.exp((z - z.max()) / COOL)
        ids.append(rng.choice(len(z), p=share / share.sum()))
    return Learned(losses, float(np.mean(judged)), "".join(GPT.LETTERS[i] for i in ids))


# ---- the pictures


def draw(output: Path, runs: dict[str, Sequence[float]]) -> None:
    """Losses as a file, and ``lumc report`` of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{output.stem}.csv"
        rows = [
            f"{s},{','.join(map(str, v))}" for s, v in enumerate(zip(*runs.values(), strict=True))
        ]
        file.write_text("\n".join([f"step,{','.join(runs)}", *rows]) + "\n")
        command = [sys.executable, "-m", "lumc", "report", str(file), "-o", str(output)]
        subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the samples and draw their losses.")
    parser.add_argument("--steps", type=int, default=1000, help="of the digits; the text has twice")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs", help="a folder")
    args = parser.parse_args()
    shown = dict[str, Sequence[float]]()
    for name in NETWORKS:
        for dtype in DTYPES:
            with network(name, dtype) as bundle:
                found = digits(bundle, args.steps)
            print(f"{name} {dtype}: {found.score:.4f} of held-out pictures", flush=True)
            if dtype == "f32":
                shown[name] = found.losses
    draw(args.output / "learned-digits.svg", shown)
    shown = {}
    for dtype in DTYPES:
        with network("gpt", dtype) as bundle:
            found = text(bundle, 2 * args.steps)
        shown[dtype] = found.losses
        print(f"gpt {dtype}: a loss of {found.score:.3f} of held-out text")
        print(found.said, flush=True)
    draw(args.output / "learned-text.svg", shown)


if __name__ == "__main__":
    main()
