"""lumc beside torch on the NVIDIA GPU of this machine: cuBLAS, cuDNN and flash attention.

    python bench/gpu_race.py --estimate -o gpu.json                # what is chosen without a search
    python bench/gpu_race.py --budget 30s --only 'gemm*' -o gpu.json

Needs torch with CUDA. Both sides run as a captured graph, timed by events of the GPU, in turn, and
the least time counts; inputs and weights lie on the GPU and stay in its caches if they fit. Every
row says which share of the limit lumc reaches: the memory's or the tensor cores' datasheet rate.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
TURN_S = 0.02  # of one side, then the other one has its turn
SAMPLE_US = 200.0
# Datasheets, dense: (bytes per second of memory, operations per second on f16 tensor cores, on f32)
LIMITS = {
    "H100": (3.35e12, 989e12, 67e12),
    "H200": (4.8e12, 989e12, 67e12),
    "A100": (2.04e12, 312e12, 19.5e12),
}


@dataclass(frozen=True)
class Row:
    """A function of arrays, written once for lumc and once for torch."""

    shapes: Mapping[str, tuple[int, ...]]
    lumc: Callable[..., Any]  # of the model and tensors of it
    torch: Callable[..., Any]
    flops: float
    dtype: str = "f16"
    tolerance: float = 5e-3  # relative L2, against torch in f32

    def bytes(self) -> float:
        sizes = (np.prod(s) for s in self.shapes.values())
        return float(sum(sizes)) * (2 if self.dtype in ("f16", "bf16") else 4)


def rows() -> dict[str, Row]:
    try:
        import torch as t
        import torch.nn.functional as f
    except ModuleNotFoundError:
        raise SystemExit("gpu_race: torch with CUDA is not installed: pip install torch") from None

    from lumc.frontend.api import nn
    from lumc.frontend.api.elementwise import where

    def attention(g: Any, q: Any, k: Any, v: Any) -> Any:
        return nn.attention(q, k, v)

    def causal(g: Any, q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.transpose()) * q.shape[-1] ** -0.5
        i = g.arange(q.shape[1])
        return where(i[:, None] < i[None, :], -math.inf, scores).softmax(-1) @ v

    def heads(x: Any) -> Any:
        return x.unsqueeze(0)

    def sdpa(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        out = f.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=causal)
        return out.squeeze(0)

    def gemm(m: int, k: int, n: int, dtype: str = "f16") -> Row:
        shapes = {"a": (m, k), "b": (k, n)}
        return Row(shapes, lambda g, a, b: a @ b, lambda a, b: a @ b, 2.0 * m * k * n, dtype)

    def linear(m: int, k: int, n: int) -> Row:
        shapes = {"x": (m, k), "w": (n, k)}
        return Row(shapes, lambda g, x, w: x @ w.permute(1, 0), f.linear, 2.0 * m * k * n)

    def flash(h: int, s: int, d: int, masked: bool = False) -> Row:
        shapes = dict.fromkeys("qkv", (h, s, d))
        other = (lambda q, k, v: sdpa(q, k, v, True)) if masked else sdpa
        work = 4.0 * h * s * s * d * (0.5 if masked else 1)
        return Row(shapes, causal if masked else attention, other, work, tolerance=1e-2)

    wide = {"x": (8192, 4096)}
    norm = wide | {"w": (4096,), "b": (4096,)}
    return {
        "gemm_4096": gemm(4096, 4096, 4096),
        "gemm_1024": gemm(1024, 1024, 1024),
        "gemm_f32_1024": gemm(1024, 1024, 1024, "f32"),
        "linear_512x4096x11008": linear(512, 4096, 11008),
        "linear_1x4096x11008": linear(1, 4096, 11008),
        "linear_8x4096x11008": linear(8, 4096, 11008),
        "attention_16x4096x128": flash(16, 4096, 128),
        "causal_16x4096x128": flash(16, 4096, 128, True),
        "attention_32x1024x64": flash(32, 1024, 64),
        "softmax": Row(wide, lambda g, x: x.softmax(-1), lambda x: f.softmax(x, -1), 0),
        "layer_norm": Row(
            norm,
            lambda g, x, w, b: x.layer_norm(w, b, 1e-5),
            lambda x, w, b: f.layer_norm(x, (4096,), w, b),
            0,
        ),
        "gelu": Row(wide, lambda g, x: x.gelu(), f.gelu, 0),
        "sum_columns": Row(wide, lambda g, x: x.sum(0), lambda x: t.sum(x, 0), 0),
    }


# ---- both sides


def lumc_bundle(name: str, row: Row, options: list[str], folder: Path) -> Path:
    """Compile a row for this GPU; the log lies beside the bundle."""
    from lumc.frontend import Model
    from lumc.runtime.nvidia import capability

    g = Model()
    inputs = [g.input(k, v, row.dtype) for k, v in row.shapes.items()]
    g.output("y", row.lumc(g, *inputs))
    g.save(folder / f"{name}.lg")
    known = [a for a in (80, 89, 90, 100) if a <= capability()]
    command = [sys.executable, "-m", "lumc", "compile", str(folder / f"{name}.lg")]
    command += ["--target", f"cuda:sm_{known[-1]}", "-o", str(folder / f"{name}.lb")]
    command += ["--save-temps", str(folder / f"{name}.passes"), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    (folder / f"{name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return folder / f"{name}.lb"


class Torch:
    """The same in torch: a captured graph, timed by events."""

    def __init__(self, row: Row, arrays: Arrays) -> None:
        import torch as t

        self.torch = t
        given = [t.from_numpy(np.ascontiguousarray(a)).cuda() for a in arrays.values()]
        with t.no_grad():
            self.exact = row.torch(*(x.float() for x in given)).double().cpu().numpy()
            stream = t.cuda.Stream()
            with t.cuda.stream(stream):
                for _ in range(3):
                    row.torch(*given)
            t.cuda.synchronize()
            self.graph = t.cuda.CUDAGraph()
            with t.cuda.graph(self.graph):
                self.out = row.torch(*given)
        self.given = given

    def sample(self, runs: int) -> float:
        """Microseconds of one of so many runs."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(runs):
            self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end) * 1e3 / runs)


def race(name: str, row: Row, options: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    from lumc.runtime.cuda import Bundle

    rng = np.random.default_rng(0)
    kind = np.float16 if row.dtype == "f16" else np.float32
    arrays = {k: rng.standard_normal(s, np.float32).astype(kind) for k, s in row.shapes.items()}
    out: dict[str, Any] = {"row": name, "options": " ".join(options)}
    begin = time.monotonic()
    with Bundle.open(lumc_bundle(name, row, options, folder)) as bundle:
        out["compile_s"] = time.monotonic() - begin
        peer = Torch(row, arrays)
        got = bundle.run(arrays)["y"].astype(np.float64)
        out["error"] = float(np.linalg.norm(got - peer.exact) / np.linalg.norm(peer.exact))
        least = {"lumc": np.inf, "torch": np.inf}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            least["lumc"] = min(least["lumc"], *bundle.bench(arrays, seconds=TURN_S))
            runs = max(1, round(SAMPLE_US / least["lumc"]))
            least["torch"] = min(least["torch"], *(peer.sample(runs) for _ in "123"))
        out["launches"] = len(bundle.plan.entries[0].launches)
    memory, tensor, plain = limits()
    moved = row.bytes() + (got.size * (2 if row.dtype == "f16" else 4))
    bound = 1e6 * max(moved / memory, row.flops / (plain if row.dtype == "f32" else tensor))
    out |= {f"{who}_us": us for who, us in least.items()}
    out |= {"ratio": least["torch"] / least["lumc"], "limit": bound / least["lumc"]}
    out["ok"] = out["error"] <= row.tolerance
    return out


def limits() -> tuple[float, float, float]:
    """Those of this GPU; of one that has no row there is no limit: rows reach 0 % of it."""
    from lumc.runtime.nvidia import describe

    return next((v for k, v in LIMITS.items() if k in describe()), (np.inf, np.inf, np.inf))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="rows whose names match")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing, for a row")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/gpu_race.json"))
    asked, options = parser.parse_known_args()
    folder = asked.output.parent / asked.output.stem
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, row in rows().items():
        if not fnmatch.fnmatch(name, asked.only):
            continue
        try:
            found.append(race(name, row, options, folder, asked.seconds))
        except Exception as e:  # the other rows are still worth their time
            found.append({"row": name, "options": " ".join(options), "failed": str(e)})
        print(said(found[-1]), flush=True)
        asked.output.write_text(json.dumps(found, indent=1))


def said(r: Mapping[str, Any]) -> str:
    if "failed" in r:
        return f"{r['row']:24} failed: {r['failed'][:300]}"
    times = f"{r['lumc_us']:9.1f} us   torch {r['torch_us']:9.1f} us"
    rest = f"ratio {r['ratio']:.2f}   {r['limit']:4.0%} of the limit   error {r['error']:.1e}"
    end = "" if r["ok"] else "   WRONG"
    return f"{r['row']:24}{times}   {rest}   {r['compile_s']:.0f} s{end}"


if __name__ == "__main__":
    main()
