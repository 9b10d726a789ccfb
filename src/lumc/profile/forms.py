"""Weights in one form: what several entries and buckets read, they read from the same copy.

A kernel reads a weight as it is stored, or as it was packed for it. Where another one wants another
form, memory holds the weight twice. The kernel with most to do has its way, but that no element
becomes wider than it is stored, for which those with few rows would wait; the others take a
schedule that reads what this one asks for, if they have any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.packing import Memory
from lumc.codegen.tile.rows import touched
from lumc.graph.expr import Expr
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, dtype
from lumc.profile.price import price_us
from lumc.profile.records import text_of
from lumc.schedule.first import tiled
from lumc.schedule.first_stages import contraction_stage, level_stage
from lumc.schedule.legal import is_legal
from lumc.schedule.levels import AS_LEVELS
from lumc.schedule.operands import lanes, pairs
from lumc.schedule.plan import KernelPlan, Plan
from lumc.schedule.schedule import Schedule, Stage
from lumc.schedule.staging import reads_levels, staging_modes

Forms = frozenset[Memory | None]  # of a weight; None: as it is stored
Known = Callable[[str], Iterable[tuple[float, Schedule]]]


def no_times(_: str) -> Iterable[tuple[float, Schedule]]:
    """Nothing was measured."""
    return ()


@dataclass
class Agreement:
    """What kernels ask of weights; programs are looked at once."""

    target: Target
    seen: dict[tuple[str, str], Mapping[str, Forms]] = field(default_factory=dict)

    def plan(self, plan: Plan, known: Known = no_times) -> Plan:
        """The plan with weights in fewer forms. ``known``: times and schedules of a kernel that
        were measured, infinite of those that failed; the fastest that fits is taken, else the one
        of least price."""
        if len(plan.graph.entries) < 2:
            return plan
        readers = weights_of(plan)
        counts = Counter(w for each in readers.values() for w in each)
        shared = frozenset(w for w, n in counts.items() if n > 1)
        kept = (self.as_stored(k, readers, shared, known) for k in plan.kernels.values())
        plan = replace(plan, kernels={k.key: k for k in kept})
        wanted = dict[str, Forms]()
        ordered = sorted(plan.kernels.values(), key=lambda k: -k.bound_us)
        for k in ordered:
            for buffer, forms in self.forms(k.key, k.kernel, k.schedule).items():
                for weight in readers.get((k.key, buffer), ()):
                    wanted.setdefault(weight, forms)
        kernels = {k.key: self.agreeing(k, readers, wanted, known) for k in plan.kernels.values()}
        return replace(plan, kernels=kernels)

    def forms(self, key: str, kernel: Kernel, schedule: Schedule) -> Mapping[str, Forms]:
        """In which forms a kernel reads each of its weights."""
        weights = [b.name for b in kernel.buffers if b.constant]
        if not weights:
            return {}
        at = key, text_of(schedule)
        if at not in self.seen:
            program = lower(kernel, schedule, self.target)
            packed, raw = list(program.packed.values()), touched(program.body)
            self.seen[at] = {
                w: frozenset([*(p.memory for p in packed if p.weight == w), *([None] * (w in raw))])
                for w in weights
            }
        return self.seen[at]

    def as_stored(
        self,
        k: KernelPlan,
        readers: Mapping[tuple[str, str], Sequence[str]],
        shared: frozenset[str],
        known: Known,
    ) -> KernelPlan:
        """The kernel with a schedule that reads shared weights no wider than they are stored, if it
        has one."""
        own = [b for b in k.kernel.buffers if shared.intersection(readers.get((k.key, b.name), ()))]

        def fits(schedule: Schedule) -> bool:
            forms = self.forms(k.key, k.kernel, schedule)
            packed = ((m, b.dtype) for b in own for m in forms[b.name] if m)
            return all(m.bits or m.dtype.nbytes <= kind.nbytes for m, kind in packed)

        return self._other(k, fits, self.forms(k.key, k.kernel, k.schedule), known)

    def agreeing(
        self,
        k: KernelPlan,
        readers: Mapping[tuple[str, str], Sequence[str]],
        wanted: Mapping[str, Forms],
        known: Known,
    ) -> KernelPlan:
        """The kernel with a schedule that reads weights as they are wanted, if it has one."""
        forms = {
            b.name: wanted[weights[0]]
            for b in k.kernel.buffers
            if (weights := readers.get((k.key, b.name), ()))
        }

        def fits(schedule: Schedule) -> bool:
            own = self.forms(k.key, k.kernel, schedule)
            return all(own[name] <= forms[name] for name in own if name in forms)

        return self._other(k, fits, forms, known)

    def _other(
        self,
        k: KernelPlan,
        fits: Callable[[Schedule], bool],
        forms: Mapping[str, Forms],
        known: Known,
    ) -> KernelPlan:
        """The kernel with a schedule that fits: its own, else the fastest that was measured, else
        the one of least price with panels as wide as these forms; the same if there is none."""
        if fits(k.schedule):
            return k
        tried = sorted(known(k.key), key=lambda t: t[0])
        for us, schedule in tried:
            if us < inf and fits(schedule):
                return replace(k, schedule=schedule, time_us=us)
        seen = {text_of(schedule) for _, schedule in tried}
        new = [s for s in linked(k, forms, self.target) if text_of(s) not in seen and fits(s)]
        prices = [(price_us(k.kernel, self.target, s), i) for i, s in enumerate(new)]
        return replace(k, schedule=new[min(prices)[1]], time_us=None) if new else k


def weights_of(plan: Plan) -> dict[tuple[str, str], list[str]]:
    """The weights that a buffer of a kernel is, in all its launches."""
    known, out = {w.name for w in plan.graph.weights}, dict[tuple[str, str], list[str]]()
    for instance in plan.instances:
        for step in plan.regions[instance.region].steps:
            kernel = plan.kernels[step.kernel].kernel
            for b, name in zip(kernel.buffers, step.args, strict=True):
                weight = instance.names.get(name)
                if b.constant and weight in known:
                    out.setdefault((step.kernel, b.name), []).append(weight)
    return out


def linked(k: KernelPlan, forms: Mapping[str, Forms], target: Target) -> Iterator[Schedule]:
    """Schedules of a kernel whose contractions read weights in panels as wide as these forms."""
    kernel = normalize(k.kernel)
    widths = {m.width for each in forms.values() for m in each if m and m.width}
    for mode, width in product(("link", *AS_LEVELS), sorted(widths)):
        each = [
            _linked(kernel, s, p, mode, width, target) or [p]
            for s, p in zip(kernel.stages, k.schedule.stages, strict=True)
        ]
        for n in range(max(map(len, each), default=0)):
            stages = tuple(found[min(n, len(found) - 1)] for found in each)
            schedule = tiled(kernel, stages, target)
            if schedule != k.schedule and is_legal(k.kernel, target, schedule):
                yield schedule


def _linked(
    kernel: Kernel, stage: Expr, p: Stage, mode: str, width: int, target: Target
) -> list[Stage]:
    """Contractions with such panels of a weight, by rows and lanes, those of ``p`` first."""
    nv, own, out = width // lanes(target, dtype(stage)), (p.rows_axis, p.lane_axis), list[Stage]()
    for pair in sorted(pairs(stage), key=lambda pair: pair != own) if nv else ():
        found = contraction_stage(kernel, stage, pair, target)
        if mode not in staging_modes(kernel, stage, found, "b"):
            continue
        if reads_levels(kernel, stage, replace(found, stage_b=mode)):
            out.append(level_stage(kernel, stage, pair, target, mode))
        else:
            mr = min(found.mr, max(1, (target.registers - nv) // nv - 1))
            out.append(replace(found, mr=mr, nv=nv, stage_b=mode, next_panel=True))
    return out
