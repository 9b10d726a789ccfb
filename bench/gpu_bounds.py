"""What limits the kernels that lumc chooses for GPUs, from counts alone.

    python bench/gpu_bounds.py [--only 'product*'] [-o docs/gpu-bounds.md]

Needs NVIDIA's compiler and disassembler, no GPU: pip install '.[gputest]'. ``make gpu-bounds``
writes the tables of docs/gpu-bounds.md anew, below its mark.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as product_of
from pathlib import Path

import lumc.codegen.tile.program as ir
import sass
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu.counts import Counts, count
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.limits import limits_us, times_us
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.program import Distributed, Nest, Node
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program
from lumc.disk.stored import Stored
from lumc.frontend import Model, Tensor, nn
from lumc.frontend.api.elementwise import where
from lumc.frontend.models.blocks import read_where_it_lies
from lumc.graph.graph import Graph, WeightFile
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.link import cuda
from lumc.profile.choose import estimate
from lumc.schedule.plan import KernelPlan
from lumc.search import search
from lumc.search.saturate import Limits

MARK = "<!-- made by make gpu-bounds -->\n"
RESOURCES = {  # as limits_us names them, and as the columns are called
    "tensor cores": "tensor",
    "shared memory": "shared",
    "instructions": "issue",
    "f32": "f32",
    "functions": "functions",
    "second cache": "L2",
    "memory": "DRAM",
}
CHIP = ("second cache", "memory")  # what all processors share
MACHINES = {
    "sm_80": "A100",
    "sm_89": "RTX 4090",
    "sm_90": "H200",
    "sm_100": "B200",
    "sm_120": "RTX 5090",
}


def product(m: int, n: int, k: int, turned: bool = True) -> Graph:
    """``x w^T``, or ``x w``, in f16."""
    g = Model()
    x, w = g.input("x", (m, k), "f16"), g.input("w", (n, k) if turned else (k, n), "f16")
    g.output("y", x @ (w.permute(1, 0) if turned else w))
    return g.graph()


def attention(heads: int, s: int, d: int, causal: bool = False) -> Graph:
    g = Model()
    q, k, v = (g.input(name, (heads, s, d), "f16") for name in "qkv")
    if not causal:
        g.output("y", nn.attention(q, k, v))
        return g.graph()
    scores, i = (q @ k.transpose()) * d**-0.5, g.arange(s)
    g.output("y", where(i[:, None] < i[None, :], -math.inf, scores).softmax(-1) @ v)
    return g.graph()


def vector(n: int, k: int, layout: str) -> Graph:
    """One row by a weight that is quantised as in a GGUF file."""
    g, file = Model(), WeightFile("weights.gguf", 1, "0" * 64)
    w = read_where_it_lies(g, "w", file, Stored("w", None, (n, k), 0, 1, layout))
    g.output("y", g.input("x", (1, k)) @ w.permute(1, 0))
    return g.graph()


def rows(of: Callable[[Tensor], Tensor]) -> Graph:
    g = Model()
    g.output("y", of(g.input("x", (8192, 4096), "f16")))
    return g.graph()


@dataclass(frozen=True)
class Row:
    says: str
    graph: Callable[[], Graph]
    flops: float = 0.0  # of products, as they are counted for published shares; 0: no product


N, S, D, HEADS = 4096, 4096, 128, 16
WHOLE, MAPS = 2.0 * N**3, 4.0 * HEADS * S**2 * D
ROWS = {
    "product": Row("product 4096^3", lambda: product(N, N, N), WHOLE),
    "product_kn": Row("the same, right operand [k, n]", lambda: product(N, N, N, False), WHOLE),
    "product_1024": Row("product 1024^3", lambda: product(1024, 1024, 1024), 2.0 * 1024**3),
    "attention": Row(f"attention, {HEADS} heads, {S} x {D}", lambda: attention(HEADS, S, D), MAPS),
    "causal": Row("the same, causal", lambda: attention(HEADS, S, D, True), MAPS / 2),
    "q8_0": Row("one row by [14336, 4096] in q8_0", lambda: vector(14336, N, "q8_0")),
    "q4_0": Row("the same in q4_0", lambda: vector(14336, N, "q4_0")),
    "f16": Row("the same in f16", lambda: product(1, 14336, N)),
    "softmax": Row("softmax [8192, 4096], f16", lambda: rows(lambda x: x.softmax(-1))),
    "sum": Row("sum over rows [8192, 4096], f16", lambda: rows(lambda x: x.sum(0))),
}


@dataclass(frozen=True)
class Bounds:
    """The least times of a kernel by resource, and the shares of the tensor cores' rate."""

    us: dict[str, float]
    busy: float  # of a processor that always has a block
    launch: float  # of the GPU, in the whole launch
    apart: float  # of a processor that multiplies only while it does nothing else


Found = tuple[cuda.Figures, Bounds | None]


def chosen(graph: Graph, target: Target) -> KernelPlan:
    """The kernel of the plan by estimate with the greatest bound."""
    plan = estimate(search(graph, target, Limits()))
    return max(plan.kernels.values(), key=lambda k: k.bound_us)


def rounds(nodes: Sequence[Node]) -> float:
    """How often the innermost loop of a block goes round, on average; at most of a live length."""
    found = [1.0]
    for node in nodes:
        if isinstance(node, Nest):
            own = (
                math.prod(n for _, n in node.op.loop.turns) if isinstance(node.op, ir.Block) else 1
            )
            found.append(own * rounds(node.body))
    return max(found)


def image(d: Distributed, arch: str, folder: Path) -> Path:
    """The cubin of one kernel."""
    text, _ = print_kernel(d, DIALECTS["cuda"], "kernel")
    (folder / "lumc_dev.h").write_text(header_of("cuda"))
    (folder / "kernel.cu").write_text(text)
    cuda.find().image(folder, "kernel.cu", arch, "kernel.cubin")
    return folder / "kernel.cubin"


@dataclass(frozen=True)
class Made:
    """The chosen kernel of a graph, and what a block of it does by its program and by its machine
    code, whose counts are those of the longest loop, or of all where there is none."""

    target: Target
    plan: KernelPlan
    program: Program
    figures: cuda.Figures
    code: Sequence[sass.Line]
    counts: Counts
    own: Counts
    each: float  # instructions of a warp in this loop


def made(row: Row, target: Target, folder: Path) -> Made:
    plan = chosen(row.graph(), target)
    program = lower(plan.kernel, plan.schedule, target)
    d = distribute(program, plan.schedule.threads)
    cubin = image(d, target.arch, folder)
    allotted = next(iter(cuda.figures(cubin.read_bytes()).values()))
    code, again = sass.main_loop(sass.disassembled(cubin))
    warps = d.threads.count / d.warp
    counts, own = count(d), sass.counted(code, warps) * warps
    # of a loop whose rounds are written out, by its products
    times = counts.tensor / own.tensor if own.tensor else rounds(d.body)
    whole = own * (times if again else 1)
    return Made(target, plan, program, allotted, code, counts, whole, own.issue / warps)


def longest_us(m: Made, counts: Counts) -> float:
    """Of all resources, with these counts of a block."""
    us = times_us(counts, max(1, m.program.tiles), m.target)
    return max(*us.values(), limits_us(m.program, m.plan.schedule.threads)["memory"])


def measure(row: Row, target: Target, folder: Path) -> Found:
    """Compile the chosen kernel and count. Of instructions the machine code is asked, of
    everything else the program: how shared memory is read can only be seen there."""
    m = made(row, target, folder)
    assert target.gpu
    rates = target.gpu.rates
    if rates is None:
        return m.figures, None
    fields = ("issue", "f32", "special")
    seen = replace(m.counts, **{k: max(getattr(m.own, k), getattr(m.counts, k)) for k in fields})
    us = times_us(seen, max(1, m.program.tiles), target)
    us["memory"] = limits_us(m.program, m.plan.schedule.threads)["memory"]
    tensor, longest = us["tensor cores"], max(n for name, n in us.items() if name not in CHIP)
    others = us["instructions"] * (1 - sass.products(m.code) / m.each)
    rate = target.gpu.processors * rates.tensor * rates.mhz
    shares = tensor / longest, row.flops / rate / max(us.values()), tensor / (tensor + others)
    return m.figures, Bounds(us, *shares)


# ---- tables


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "| --- |" + " --: |" * (len(head) - 1)
    yield from (f"| {' | '.join(cells)} |" for cells in body)
    yield ""


def figure(us: float, longest: float) -> str:
    said = f"{us:.3g}" if us >= longest / 100 else ""
    return f"**{said}**" if us == longest else said


def cells(name: str, b: Bounds) -> Iterator[str]:
    yield ROWS[name].says
    yield from (figure(b.us.get(r, 0.0), max(b.us.values())) for r in RESOURCES)
    shares = (b.busy, b.launch, b.apart)
    yield from (f"{s:.0%}" if ROWS[name].flops else "" for s in shares)


def lines(found: Mapping[tuple[str, str], Found]) -> Iterator[str]:
    names = dict.fromkeys(name for name, _ in found)
    for arch, machine in MACHINES.items():
        bounds = {n: found[n, arch][1] for n in names}
        if known := {n: b for n, b in bounds.items() if b}:
            yield f"### {machine} (`{arch}`)\n"
            head = ("us at least", *RESOURCES.values(), "busy", "launch", "no overlap")
            yield from table(head, (tuple(cells(n, b)) for n, b in known.items()))
    yield "## Registers\n"
    yield "Registers of a thread, as ptxas allotted them, and bytes of a thread that it spilled.\n"
    allotted = {n: [found[n, arch][0] for arch in MACHINES] for n in names}
    body = (
        (ROWS[n].says, *(f"{f.registers}, {f.local_bytes}" for f in each))
        for n, each in allotted.items()
    )
    yield from table(("kernel", *MACHINES), body)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="kernels, may have *")
    parser.add_argument("-o", "--output", type=Path, help="a page, written anew below its mark")
    options = parser.parse_args()
    if sass.disassembler() is None:
        raise SystemExit("gpu_bounds: no nvdisasm: pip install nvidia-cuda-nvdisasm")
    asked = [n for n in ROWS if any(fnmatch.fnmatch(n, p) for p in options.only or ["*"])]
    found = dict[tuple[str, str], Found]()
    for name, arch in product_of(asked, MACHINES):
        with tempfile.TemporaryDirectory() as folder:
            target = resolve_target(f"cuda:{arch}")
            found[name, arch] = measure(ROWS[name], target, Path(folder))
    text = "\n".join(lines(found))
    if options.output:
        before, mark, _ = options.output.read_text().partition(MARK)
        options.output.write_text(f"{before}{mark}\n{text}".rstrip() + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
