"""What the records decide: a program for every region, a schedule for every kernel.

Kernel times add up, so every region is decided on its own, among the candidates that the estimate
ranks best. The decision is a function of the records alone: the same records give the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.profile.choose import Say, plan_region, programs, shortlist, silent
from lumc.profile.records import Records, Trial, yardstick
from lumc.profile.timing import is_faster
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan
from lumc.search.space import Space


class Decisions:
    """The listed programs of a space, their kernels and what is on record of them."""

    def __init__(
        self, space: Space, records: Records, cache_bytes: int, dropped: Say = silent
    ) -> None:
        self.space, self.records, self.target = space, records, space.target
        weights = sum(w.size * w.dtype.nbytes for w in space.graph.weights)
        self.cold = int(1.25 * cache_bytes) if weights > cache_bytes else 0
        self.kernels: dict[str, KernelPlan] = {}
        self.instances, listed = programs(space, shortlist, dropped)
        self.lists = {
            key: [plan_region(key, parts, self.target, self.kernels) for parts in found]
            for key, found in listed.items()
        }
        self.count = Counter(i.region for i in self.instances)
        self.bounds: dict[str, float] = {}  # of kernels, in microseconds

    def _known(self, key: str) -> list[Trial]:
        return list(self.records.trials.get(self._at(key), {}).values())

    def _cold(self, key: str) -> int:
        constant = any(b.constant for b in self.kernels[key].kernel.buffers)
        return self.cold if constant else 0

    def _at(self, key: str) -> tuple[str, bool]:
        return key, self._cold(key) > 0

    def _time(self, key: str) -> float:
        """Of a kernel, when its yardstick takes what it took in turn with those of rivals; infinite
        while it was not measured."""
        at = self._at(key)
        choice, first = self.records.choices.get(at), yardstick(self.records.trials.get(at, {}))
        us = choice.us if choice else min((t.time for t in self._known(key)), default=inf)
        return us * self.records.turns.get(at, first.time) / first.time if first else us

    def _total(self, plan: RegionPlan) -> float:
        return sum(self._time(s.kernel) for s in plan.steps)

    def _decide(self) -> dict[str, RegionPlan]:
        """The fastest listed program of every region of which one was measured."""
        out: dict[str, RegionPlan] = {}
        for region, plans in self.lists.items():
            least = inf
            for plan in plans:
                if is_faster(us := self._total(plan), least):
                    least, out[region] = us, plan
        return out

    def _used(self, decided: Mapping[Any, RegionPlan]) -> list[str]:
        return list(dict.fromkeys(s.kernel for r in decided.values() for s in r.steps))

    def _plan(self) -> Plan:
        decided = self._decide()
        regions = {k: decided.get(k) or self._untimed(plans) for k, plans in self.lists.items()}
        kernels = {key: self._chosen(key) for key in self._used(regions)}
        s = self.space
        return Plan(s.graph, s.target, kernels, regions, self.instances, s.outputs)

    def _untimed(self, plans: Sequence[RegionPlan]) -> RegionPlan:
        """Of programs without a time the first that may be valid."""
        return next(
            (p for p in plans if not any(self._refuted(s.kernel) for s in p.steps)), plans[0]
        )

    def _refuted(self, key: str) -> bool:
        """Whether a kernel was tried, and every candidate was invalid."""
        known = self._known(key)
        return bool(known) and all(t.us is None for t in known)

    def _chosen(self, key: str) -> KernelPlan:
        plan, choice = self.kernels[key], self.records.choices.get(self._at(key))
        plan = replace(plan, bound_us=self.bounds[key])
        if choice:
            return replace(plan, schedule=choice.schedule, time_us=choice.us, stop=choice.stop)
        if self._refuted(key):
            known = self._known(key)
            said = "; ".join(dict.fromkeys(f"{t.reason}: {t.remark}" for t in known))
            what = f"no candidate of kernel '{plan.kernel.name}' is valid: {said[:400]}"
            raise LumcError("E0412", what, fix="--estimate takes the default", exit=Exit.BUDGET)
        return replace(plan, stop="not measured")

    def _require_records(self) -> None:
        decided = self._decide()
        missed = [key for key in self.lists if key not in decided]
        missed += [k for k in self._used(decided) if self._at(k) not in self.records.choices]
        if missed:
            what = f"--frozen: no record of {len(missed)} kernels: {', '.join(missed[:5])}"
            fix = "run it without --frozen on this machine, and keep kernels_cache/"
            raise LumcError("E0413", what, fix=fix, exit=Exit.BUDGET)
