"""How many blocks of a distributed program a processor of a GPU holds at once."""

from __future__ import annotations

from math import ceil

from lumc.codegen.gpu.program import Combine, Distributed, Step, reads, steps_of
from lumc.codegen.gpu.shared import pressure
from lumc.kernel.machines import processor

OWN = 1 << 10  # bytes of shared memory that the system keeps for each block; CUDA programming guide
UNIT = 8  # registers of a thread are allotted by so many; the same
ADDRESSES = 14  # counted: registers of a thread beside its values; docs/gpu-price.md
OPERANDS = 28  # counted: of one that multiplies by matrix units, or tiles of registers
LOADED = 32  # counted: of loads that ptxas has under way, at most


def resident(d: Distributed) -> int:
    """Blocks of a processor: at least one."""
    gpu, own = d.program.target.gpu, processor(d.program.target)
    assert gpu and own
    most, shared = own.resident, d.shared_bytes + OWN
    by = (
        most.shared // shared,
        most.threads // d.threads.count,
        most.blocks,
        gpu.registers // (d.threads.count * registers(d)),
    )
    return max(1, min(by))


def registers(d: Distributed) -> int:
    """Of a thread, expected: what ptxas may allot at most bounds them."""
    gpu = d.program.target.gpu
    assert gpu
    more = 0.0
    for step in steps_of(d.body):
        if step.roles:
            product, (rows, lanes, _) = step.roles.product, step.roles.counts
            words = 4 * (rows + (lanes + 1) // 2) if product and product.fragment == "mma" else 0
            more = max(more, OPERANDS + words)
        elif not step.ahead:
            more = max(more, min(LOADED, _loaded(d, step)))
    found = pressure(d.body, d.tiles) + ADDRESSES + more
    most = gpu.registers // (d.threads.count * d.threads.resident)
    return min(ceil(found / UNIT) * UNIT, most, 255)


def _loaded(d: Distributed, step: Step | Combine) -> float:
    """Registers of what a step loads from memory."""
    assert isinstance(step, Step)
    places = d.program.places
    return sum(
        step.points.on(e.free).size * places[e.attr[0]].dtype.nbytes / 4
        for e in reads(step)
        if e.attr[0] not in d.tiles
    )
