"""Bundles from kernels written by hand, for the tests of link and of the runtimes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from lumc.codegen.code import Code, EntryPlan, KernelCode, Launch, Value
from lumc.codegen.tile.packing import Packing
from lumc.disk.weights import weight_file
from lumc.graph.buckets import in_buckets
from lumc.graph.builder import Builder
from lumc.graph.expr import axis
from lumc.graph.graph import Read, Scalar
from lumc.graph.ops import DType, Op
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.link.link import TargetCode, Tools, link
from lumc.link.toolchain import Toolchain, find

NATIVE, GENERIC = resolve_target("cpu:native"), resolve_target("cpu:generic")


def kernel(
    symbol: str,
    extent: int,
    body: str,
    args: Sequence[str],
    scratch: int = 0,
    parallel: bool = True,
) -> KernelCode:
    """A kernel whose body sees its share [lo, hi) of ``extent``."""
    source = f"""#include "lumc_kernel.h"
void {symbol}(void *const *args, long part, long nparts) {{
  long lo = {extent}l * part / nparts, hi = {extent}l * (part + 1) / nparts;
{body}
}}
"""
    return KernelCode(
        f"key of {symbol}", symbol, symbol, source, tuple(args), scratch, int(parallel), 1
    )


def matmul(symbol: str, m: int, n: int, k: int) -> KernelCode:
    """out[m, n] = x[m, k] @ w[k, n]; w is packed as [n/8][k][8], the raw b1 is not touched."""
    body = f"""  const float *x = args[0], *w = args[2]; float *out = args[3];
  for (long i = lo; i < hi; ++i)
    for (long j = 0; j < {n}; ++j) {{
      float sum = 0;
      for (long l = 0; l < {k}; ++l) sum += x[i * {k} + l] * w[(j / 8 * {k} + l) * 8 + j % 8];
      out[i * {n} + j] = sum;
    }}"""
    return kernel(symbol, m, body, ("b0", "b1", "p0", "out"))


def bias(symbol: str, m: int, n: int) -> KernelCode:
    body = f"""  const float *x = args[0], *b = args[1]; float *out = args[2];
  for (long i = lo; i < hi; ++i)
    for (long j = 0; j < {n}; ++j) out[i * {n} + j] = x[i * {n} + j] + b[j];"""
    return kernel(symbol, m, body, ("b0", "b1", "out"))


def panels(weight: str, k: int, n: int) -> Packing:
    axes = (("l", k), ("j", n))
    return Packing(weight, DType.F32, (axis("l"), axis("j")), axes, (1, 8))


def mlp(base: Path, m: int = 5, k: int = 11, n: int = 13, o: int = 3) -> tuple[Code, Any]:
    """y = (x @ w1 + b1) @ w2 with random weights, and the function that numpy computes."""
    rng = np.random.default_rng(m * k * n)
    w = {
        "w1": rng.standard_normal((k, n), np.float32),
        "b1": rng.standard_normal(n, np.float32),
        "w2": rng.standard_normal((n, o), np.float32),
    }
    save_file(w, base / "mlp.safetensors")
    file = weight_file(base / "mlp.safetensors", base)
    b = Builder()
    x = b.leaf("input", "x", DType.F32, (m, k))
    w1, b1, w2 = (b.leaf("weight", name, DType.F32, v.shape, file, name) for name, v in w.items())
    mm = {"op": Op.MUL, "axes": [("i", m), ("j", n), ("l", k)]}
    t0 = b.node(operands=[Read(x, (axis("i"), axis("l"))), Read(w1, (axis("l"), axis("j")))], **mm)
    ijk = tuple(axis(a) for a in "ijl")
    t1 = b.node(Op.SUM, [Read(t0, ijk)], [("i", m), ("j", n)], ("l", k), name="t1")
    ij = (axis("i"), axis("j"))
    t2 = b.node(Op.ADD, [Read(t1, ij), Read(b1, (axis("j"),))], [("i", m), ("j", n)], name="t2")
    axes = [("i", m), ("j", o), ("l", n)]
    reads = [Read(t2, (axis("i"), axis("l"))), Read(w2, (axis("l"), axis("j")))]
    t3 = b.node(Op.MUL, reads, axes)
    t4 = b.node(Op.SUM, [Read(t3, ijk)], [("i", m), ("j", o)], ("l", n), name="t4")
    b.outputs.append(("y", t4))
    b.finish()
    packings = {"w1@0": panels("w1", k, n), "w2@1": panels("w2", n, o)}
    kernels = (
        matmul("k0_matmul", m, n, k),
        bias("k1_bias", m, n),
        matmul("k2_matmul", m, o, n),
    )
    room = -(-m * n * 4 // 64) * 64
    f32 = DType.F32
    values = (
        Value("x", f32, (m, k), "input", 0),
        Value("t4", f32, (m, o), "output", 0),
        *(Value(name, f32, (p.size,), "packed") for name, p in packings.items()),
        Value("b1", f32, (n,), "weight"),
        Value("t1", f32, (m, n), "arena", 0),
        Value("t2", f32, (m, n), "arena", room),
    )
    launches = (
        Launch("k0_matmul", ("x", "", "w1@0", "t1")),
        Launch("k1_bias", ("t1", "b1", "t2")),
        Launch("k2_matmul", ("t2", "", "w2@1", "t4")),
    )
    entry = EntryPlan("main", values, ("y",), launches, 2 * room, 2 * room)
    # kernels take x, raw weight, packed weight, out: the order of generate() puts packed ones last
    code = Code(b.graph(), NATIVE, "/* shared text */\n", kernels, packings, (entry,))

    def reference(x: Any) -> Any:
        d = {name: v.astype(np.float64) for name, v in w.items()}
        return (x.astype(np.float64) @ d["w1"] + d["b1"]) @ d["w2"]

    return code, reference


def build(
    code: Code,
    out: Path,
    base: Path,
    single: bool = False,
    others: Sequence[Code] = (),
    **more: Any,
) -> Path:
    parts = [TargetCode(c, "0" * 64) for c in (code, *others)]
    link(parts, out, base, Tools(compiler(), **more), single=single)
    return out


def compiler() -> Toolchain:
    return find(kept=Path(os.environ["LUMC_OBJECTS"]))


def simple(
    kernels: Sequence[KernelCode],
    values: Sequence[Value],
    launches: Sequence[Launch],
    arena: int = 0,
    states: Sequence[tuple[str, DType, tuple[int, ...]]] = (),
    target: Target = GENERIC,
) -> Code:
    """A code whose graph has only the leaves and outputs that its values name."""
    b = Builder()
    for name, dtype, shape in states:
        b.leaf("state", name, dtype, shape)
    for v in sorted((v for v in values if v.place == "input"), key=lambda v: v.offset):
        b.leaf("input", v.name, v.dtype, v.shape)
    outputs = sorted((v for v in values if v.place == "output"), key=lambda v: v.offset)
    for v in outputs:
        axes = [(f"i{i}", n) for i, n in enumerate(v.shape)]
        node = b.node(
            Op.CONTIGUOUS,
            [Scalar(v.dtype, v.dtype is not DType.BOOL and v.dtype.number(0))],
            axes,
            dtype=v.dtype,
        )
        b.outputs.append((v.name, node))
    b.finish()
    names = tuple(v.name for v in outputs)
    entry = EntryPlan("main", tuple(values), names, tuple(launches), arena, arena)
    return Code(b.graph(), target, "", tuple(kernels), {}, (entry,))


def begun(code: Code, base: Path, **values: np.ndarray) -> Code:
    """The code whose states begin with these values, of a file beside the bundle."""
    save_file(values, base / "first.safetensors")
    file = weight_file(base / "first.safetensors", base)
    states = tuple(replace(s, file=file, key=s.name) for s in code.graph.states)
    return replace(code, graph=replace(code.graph, states=states))


def every_place() -> Code:
    """A code whose launch has arguments in every place."""
    f = DType.F32
    values = [
        Value("x", f, (3, 4), "input", 0),
        Value("i", DType.I64, (), "input", 1),
        Value("y", f, (3, 4), "output", 0),
        Value("t", f, (3, 4), "arena", 64),
        Value("s", f, (12,), "state", 0),
    ]
    k = kernel("k0_all", 1, "  (void)args; (void)lo; (void)hi;", ("a", "b", "c", "d", "e"), 100)
    launches = [
        Launch("k0_all", ("x", "i", "y", "t", "s")),
        Launch("k0_all", ("", "", "", "", "t")),
    ]
    return simple([k], values, launches, arena=128, states=[("s", f, (12,))])


LENGTHS = """lumc graph 1
dim p in 0..24
dim s in 2..16 multiple 2
dim unused in 1..3
input x f32[s, 3]
input z i64[2, p + s]
input w u8[16 - s // 3, (p + 1) % 5 + 1]
y f32[i:s, j:3] = add x[i, j], x[i, j]
n i32[i:3*s + 1] = contiguous i32(i + p)
output y = y
output n = n
"""


def with_lengths(text: str = LENGTHS) -> Code:
    """A code whose inputs and outputs have extents of dims: y is 2 * x, n counts from p on."""
    graph = in_buckets(parse_graph(text))
    body = """  const float *x = args[0]; float *y = args[1]; int *n = args[2];
  const long p = *(const long *)args[3], s = *(const long *)args[4];
  (void)lo; (void)hi;
  for (long i = 0; i < 3 * s; ++i) y[i] = 2 * x[i];
  for (long i = 0; i <= 3 * s; ++i) n[i] = i + p;"""
    k = kernel("k0_lengths", 1, body, ("b0", "o0", "o1", "p", "s"), parallel=False)
    launches, plans = (Launch("k0_lengths", ("x", "y", "n", "p", "s")),), list[EntryPlan]()
    for entry in graph.entries:
        ends = entry.inputs, [n for _, n in entry.outputs]
        values = [Value(n.name, n.dtype, n.sizes, "input", i) for i, n in enumerate(ends[0])]
        names = [name for name, _ in entry.outputs]
        values += [
            Value(name, n.dtype, n.sizes, "output", i)
            for i, (name, n) in enumerate(zip(names, ends[1], strict=True))
        ]
        values += [Value(d, DType.I64, (), "dim", i) for i, d in enumerate(graph.dims)]
        plans.append(EntryPlan(entry.name, tuple(values), ("y", "n"), launches, 0, 0))
    return Code(graph, GENERIC, "", (k,), {}, tuple(plans))


def with_buckets() -> Code:
    """The same with kernels for lengths up to several values of two dims."""
    text = LENGTHS.replace("multiple 2", "multiple 2 tune 2, 8").replace("0..24", "0..24 tune 7")
    return with_lengths(text)
