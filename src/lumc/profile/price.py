"""What a kernel is expected to take with its default schedule: the work that it is lowered to
(``tally``); on a GPU whose rates are known what its blocks are expected to take.
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot

from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.expected import expected
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Par, Program
from lumc.errors import LumcError
from lumc.kernel.bound import Work, least_work, roofline_us
from lumc.kernel.machines import processor
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.reads import Spent
from lumc.profile.tally import Tally
from lumc.schedule.first import first_schedules
from lumc.schedule.fragment import matrix_speed
from lumc.schedule.schedule import Schedule, Threads

LAUNCH_US = 1.0  # of one more kernel; measured: 0.14 if threads spin, 2.7 if they sleep
CACHED = 4.0  # bandwidth of caches in that of memory; measured: 2.7 (second cache of a Zen 4)
FEW = 3  # guesses for a GPU that are priced; a guess
SURE = 0.87  # of another price; measured: prices are off by up to 13 % (docs/gpu-price.md)
LAST = {"cpu": 16, "gpu": 1}  # times the second cache: the last; data sheets: CPUs 8 to 32


def price_us(kernel: Kernel, target: Target, schedule: Schedule | None = None) -> float:
    """Microseconds on the target, to compare the programs of a region."""
    if schedule:
        return program_us(lower(kernel, schedule, target), threads=schedule.threads)
    schedule, program = scheduled(kernel, target)
    return program_us(program, threads=schedule.threads)


def program_us(
    program: Program,
    full: bool = False,
    spent: Spent | None = None,
    threads: Threads | None = None,
) -> float:
    """The price of what a kernel was lowered to; ``full``: less than if nothing were idle;
    ``spent``: what was found for other prices of the same program; ``threads``: of a GPU's block,
    without which its price is that of the work."""
    target, tiles, spent = program.target, max(1, program.tiles), spent or Spent()
    if threads and processor(target):
        spent.launch = spent.launch or expected(program, threads)
        return spent.launch.full if full else spent.launch.us
    tally = Tally(program, spent)
    several = tally.execution.several_tiles
    for op in program.body:  # what is not dealt is done once, or by every part that is a tile
        again = not (several or full or isinstance(op, Par))
        tally.walk([op], (), tiles if again else target.threads)
    busy = 1.0 if full else min(1.0, tiles / target.units)
    near = tally.bytes(large=False) / (target.bandwidth * CACHED * 1e3)
    far = roofline_us(Work(0.0, tally.bytes(large=True) / busy + tally.crossing()), target)
    flops = tally.flops if several else tally.flops / busy  # of several: in the share of a thread
    # memory is read ahead of arithmetic, though never quite: the corner of the roof is round
    us = LAUNCH_US + near + hypot(roofline_us(Work(flops, 0.0), target), far)
    return us / target.threads if full else us


def cached_us(program: Program, spent: Spent | None = None) -> float:
    """The price where the last cache holds what kernels hand on, and is as fast as the second: the
    least that may be hoped for."""
    target = program.target
    target = replace(target, l2=target.l2 * LAST[target.machine])
    return program_us(replace(program, target=target), spent=spent)


def scheduled(kernel: Kernel, target: Target) -> tuple[Schedule, Program]:
    """The default schedule of a kernel and what it is lowered to: the first guess that a machine
    can hold, of GPUs the threads of a block. Raises E0411 when there is none."""
    return guessed(kernel, target, 1)[0]


def guessed(kernel: Kernel, target: Target, most: int) -> list[tuple[Schedule, Program]]:
    """The first guesses that a machine can hold, and what they are lowered to. Raises E0411 when
    there is none."""
    refused: LumcError | None = None
    found = list[tuple[Schedule, Program]]()
    for schedule in first_schedules(kernel, target):
        try:
            program = lower(kernel, schedule, target)
            if schedule.threads:
                distribute(program, schedule.threads)
            found.append((schedule, program))
        except LumcError as e:
            refused = refused or e
        if len(found) == most:
            break
    if found:
        return found
    assert refused
    raise refused


def cheaper(kernel: Kernel, target: Target, schedule: Schedule) -> Schedule:
    """This default, or one of the next guesses where it is cheaper for certain: on a GPU whose
    prices were measured."""
    known = processor(target)
    if known is None or known.attained is None:
        return schedule
    found = guessed(kernel, target, FEW)
    us = [program_us(program, threads=each.threads) for each, program in found]
    least = us.index(min(us))
    return found[least][0] if us[least] < us[0] * SURE else schedule


def least_price_us(kernel: Kernel, target: Target) -> float:
    """Less than any price of the kernel, and soon known."""
    fast = replace(target, bandwidth=target.bandwidth * CACHED)
    work = least_work(kernel, target.ends_early)
    own = 0.0 if processor(target) else LAUNCH_US
    return own + roofline_us(work, fast, matrix_speed(kernel, target))
