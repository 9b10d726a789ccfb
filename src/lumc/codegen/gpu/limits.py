"""Which resource of a GPU limits a kernel: the least time that each of them takes, from counts of
the program and the rates of the machine. It is the roofline with more roofs: of a launch that no
latency holds up.
"""

from __future__ import annotations

from math import ceil

from lumc.codegen.gpu.counts import Counts, count
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.words import element_bytes, words_of
from lumc.codegen.tile.program import Program
from lumc.kernel.bound import least_work
from lumc.kernel.target import Target
from lumc.schedule.schedule import Threads


def limits_us(program: Program, threads: Threads | None) -> dict[str, float]:
    """Microseconds by resource, the longest first; nothing for a machine whose rates are not known.
    Raises E0411 where the threads of a block cannot run the program."""
    gpu = program.target.gpu
    if gpu is None or gpu.rates is None:
        return {}
    found = times_us(count(distribute(program, threads)), max(1, program.tiles), program.target)
    packed = words_of(program.kernel)
    words = {n: element_bytes(p, p.dtype) for n, p in packed.items()}
    traffic = least_work(program.kernel, sizes=words).nbytes
    found["memory"] = traffic / (program.target.bandwidth * 1e3)
    return dict(sorted(found.items(), key=lambda kv: -kv[1]))


def times_us(counts: Counts, blocks: int, target: Target) -> dict[str, float]:
    """Of these counts in each of so many blocks. A processor does its share of the blocks, and
    the longest share is that of the launch; the second cache serves all of them."""
    assert target.gpu and target.gpu.rates
    gpu, rates = target.gpu, target.gpu.rates
    cycles = {
        "tensor cores": counts.tensor / rates.tensor,
        "shared memory": counts.shared / rates.shared,
        "instructions": counts.issue / rates.issue,
        "f32": counts.f32 * gpu.warp / rates.f32,
        "functions": counts.special * gpu.warp / rates.special,
    }
    share = ceil(blocks / gpu.processors)
    out = {name: n * share / rates.mhz for name, n in cycles.items()}
    if rates.l2:
        out["second cache"] = counts.l2 * blocks / rates.l2 / rates.mhz
    return out
