"""Results of matrix units that pairs of threads exchange before they store them.

Four threads have 16 bytes of a row of 16-bit results together, two neighbours each, and as many
of the eight lanes behind it. A store of a warp would touch halves of sectors of 32 bytes, which a
cache takes as whole ones; when a thread has four neighbours of one half, it touches whole sectors.
"""

from __future__ import annotations

from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.dealing import Dealing
from lumc.codegen.gpu.distribution import Distribution, RegisterDigit, ThreadDigit
from lumc.codegen.gpu.program import Step, loads_of
from lumc.kernel.machines import processor
from lumc.kernel.target import Attained, Target
from lumc.schedule.operands import HALF

PAIRS = 4  # neighbours that a thread has after it
LANES = 8  # of a matrix


def pays(target: Target) -> bool:
    """Does the second cache of a GPU take halves of sectors for longer than memory takes them as
    whole ones, by what was attained? Elsewhere an exchange only costs instructions."""
    known, rates = processor(target), target.gpu and target.gpu.rates
    if not known or not rates or not rates.l2:
        return False
    attained = known.attained or Attained()
    second = rates.l2 * rates.mhz / 1e3 * attained.l2  # GB/s
    return second < 2 * target.bandwidth * attained.memory


def exchange(d: Dealing, step: Step) -> None:
    """Let the threads of a map exchange what they store, if they have it as matrix units of NVIDIA
    leave it, and memory takes four neighbours at once."""
    op, points = step.op, step.points
    if not pays(d.program.target) or not isinstance(op, ir.Map) or op.dst not in step.wide:
        return
    a, place = step.along, d.places[op.dst.attr[0]]
    assert a
    quad = ThreadDigit(1, 4, a, 2)
    two = [r for r in points.registers if r.axis == a and r.stride == LANES and r.extent % 2 == 0]
    fits = quad in points.threads and step.vector == 2 and place.dtype in HALF
    fits = fits and place.name not in {e.attr[0] for e in loads_of(op.term)}  # read elsewhere
    if not fits or not two or not d.aligned(op, op.dst, a, PAIRS):
        return
    *others, near = (r for r in points.registers if r is not two[0])
    several = [RegisterDigit(a, two[0].extent // 2, 2 * LANES)] if two[0].extent > 2 else []
    outer = (*several, *others)
    step.points = replace(points, registers=(*outer, RegisterDigit(a, 2, LANES), near))
    own = (t for t in points.threads if t != quad)
    halves = ThreadDigit(1, 2, a, LANES), ThreadDigit(2, 2, a, PAIRS)
    step.stored = Distribution((*halves, *own), (*outer, RegisterDigit(a, PAIRS, 1)))
