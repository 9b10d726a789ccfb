"""The programs of regions: the chosen one, others worth a measurement, how each was found."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lumc.kernel.term import Kernel
from lumc.profile.candidates import Program
from lumc.profile.choose import candidates, plan_region, shortlist, ways
from lumc.report import derivation
from lumc.report.gathered import Evidence
from lumc.schedule.plan import KernelPlan, RegionPlan
from lumc.search.layout import origin
from lumc.search.siblings import Joint, families
from lumc.search.space import Region, Space
from lumc.search.translate import Body as Term

Body = dict[str, Any]
LAYOUT = "layout"  # what lays values between regions out, see ``search/layout.py``
MOVE = "side-by-side"  # what makes one kernel of siblings, see ``search/siblings.py``


def region_rows(e: Evidence, only: str) -> list[Body]:
    """The regions that launch a kernel, or all; none when there is no search space."""
    if e.space is None:
        return []
    bodies = derivation.original(e.space)
    steps = {key: [s.kernel for s in r.steps] for key, r in e.plan.regions.items()}
    shown = [key for key, used in steps.items() if not only or only in used]
    space, every = laid_out(e, e.space)
    lists = {key: shortlist(found) for key, found in every.items()}
    rows = [
        {
            **region_row(e, region.key, [region]),
            "programs": list(programs(e, region, lists[region.key], bodies)),
        }
        for region in space.regions
        if region.key in shown
    ]
    regions = {r.key: r for r in space.regions}
    for joint in dict.fromkeys(joint for joint, _ in families(space)):
        if joint.key in shown:
            members = [regions[key] for key in joint.members]
            found = list(joint_programs(e, joint, members, lists, bodies))
            rows.append({**region_row(e, joint.key, members), "programs": found})
    return rows


def laid_out(e: Evidence, space: Space) -> tuple[Space, Mapping[str, Sequence[Program]]]:
    """The space in the layout of the plan, and the candidates of its regions; in the cheapest by
    estimate if the plan has another one."""
    every = candidates(replace(space, target=e.plan.target))
    first = next(every)
    used = {i.region for i in e.plan.instances}

    def fits(laid: Space) -> bool:
        known = {r.key for r in laid.regions} | {joint.key for joint, _ in families(laid)}
        return used <= known

    return next((found for found in itertools.chain([first], every) if fits(found[0])), first)


def region_row(e: Evidence, key: str, members: Sequence[Region]) -> Body:
    """A region, or a joint one of several members, without its programs."""
    unique, fired = list({r.key: r for r in members}.values()), Counter[str]()
    for r in unique:
        fired.update({rule: n for rule, n in r.stats.fired.items() if n})
    instances = [i for i in e.plan.instances if i.region == key]
    return {
        "key": key,
        "count": len(instances),
        "members": len(members),
        "values": [name for i in instances for name in i.outputs],
        "enodes": sum(r.stats.nodes for r in unique),
        "classes": sum(r.stats.classes for r in unique),
        "stop": ", ".join(dict.fromkeys(r.stats.stop.value for r in unique)),
        "variants": sum(len(r.variants) for r in unique),
        "fired": dict(fired),
    }


def programs(
    e: Evidence, region: Region, listed: Sequence[list[Kernel]], bodies: Mapping[str, Term]
) -> Iterator[Body]:
    """The chosen program of a region, then the others that were worth a measurement."""
    kernels: dict[str, KernelPlan] = dict(e.plan.kernels)
    chosen = e.plan.regions[region.key]
    others = [plan_region(region.key, parts, e.plan.target, kernels) for parts in listed]
    same = [s.kernel for s in chosen.steps]
    yield program(e, region, chosen, kernels, bodies)
    rows = [
        program(e, region, p, kernels, None) for p in others if [s.kernel for s in p.steps] != same
    ]
    yield from sorted(rows, key=lambda r: (r["us"] is None, r["us"] or r["bound_us"]))


def joint_programs(
    e: Evidence,
    joint: Joint,
    members: Sequence[Region],
    lists: Mapping[str, Sequence[list[Kernel]]],
    bodies: Mapping[str, Term],
) -> Iterator[Body]:
    """The same for a joint region: what its members are by themselves, apart or side by side."""
    kernels: dict[str, KernelPlan] = dict(e.plan.kernels)
    chosen, rows = e.plan.regions[joint.key], list[Body]()
    for own, apart, one in ways(joint, lists, e.plan.target):
        for parts in filter(None, (apart, one)):
            plan = plan_region(joint.key, parts, e.plan.target, kernels)
            mine = plan.steps == chosen.steps
            alone = {
                r.key: program(
                    e,
                    r,
                    plan_region(r.key, way, e.plan.target, kernels),
                    kernels,
                    bodies if mine else None,
                )
                for r, way in zip(members, own, strict=True)
            }
            laws = [p["laws"] for p in alone.values()]
            move = [MOVE] if parts is one else []
            every = [*(law for found in laws for law in found or ()), *move]
            row = {
                **figures(e, plan, kernels),
                "chosen": mine,
                "variant": next(iter(alone.values()))["variant"],
                "cuts": [b.name for b in plan.local],
                "laws": None if None in laws else list(dict.fromkeys(every)),
                "split": [*(law for p in alone.values() for law in p["split"]), *move],
            }
            rows.append(row)
    if not any(r["chosen"] for r in rows):
        told: dict[str, Any] = {"variant": None, "cuts": [], "laws": None, "split": []}
        rows.append({**figures(e, chosen, kernels), "chosen": True, **told})
    rows.sort(key=lambda r: (not r["chosen"], r["us"] is None, r["us"] or r["bound_us"]))
    yield from rows


def figures(e: Evidence, plan: RegionPlan, kernels: Mapping[str, KernelPlan]) -> Body:
    steps = [kernels[s.kernel] for s in plan.steps]
    times = [best_time(e, k) for k in steps]
    return {
        "kernels": [{"key": k.key, "name": k.kernel.name} for k in steps],
        "us": None if None in times else sum(t for t in times if t is not None),
        "bound_us": sum(k.bound_us for k in steps),
    }


def program(
    e: Evidence,
    region: Region,
    plan: RegionPlan,
    kernels: Mapping[str, KernelPlan],
    bodies: Mapping[str, Term] | None,
) -> Body:
    variant, split = derivation.variant_of(region, plan, e.plan.target)
    laws, moved = None, [LAYOUT] if origin(region.key) != region.key else []
    if bodies and variant is not None and e.space:
        (plain,) = (r for r in e.space.regions if r.key == origin(region.key))
        laws = derivation.laws(plain, variant, bodies[plain.key])
    return {
        **figures(e, plan, kernels),
        "chosen": plan is e.plan.regions.get(region.key),
        "variant": variant,
        "cuts": [b.name for b in plan.local],
        "laws": None if laws is None else [*laws, *split, *moved],
        "split": [*split, *moved],
    }


def best_time(e: Evidence, k: KernelPlan) -> float | None:
    if k.key in e.plan.kernels:
        return e.plan.kernels[k.key].time_us
    choice = e.records.choices.get(at(e, k))
    known = e.records.trials.get(at(e, k), {}).values()
    return choice.us if choice else min((t.us for t in known if t.us is not None), default=None)


def at(e: Evidence, k: KernelPlan) -> tuple[str, bool]:
    """Under which key its records are: weights are cold in all records of a plan, or warm."""
    cold = any(key in e.plan.kernels and c for key, c in e.records.choices)
    return k.key, cold and any(b.constant for b in k.kernel.buffers)
