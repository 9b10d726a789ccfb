"""The ``.lp`` body: a plan as plain JSON, without its graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lumc.graph.graph import Graph
from lumc.kernel.codec import check_target, check_terms, from_plain, launches_from, to_plain
from lumc.kernel.legal import check_kernel, check_schedule
from lumc.kernel.plan import KernelPlan, Plan, RegionPlan
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer


def to_json(plan: Plan) -> dict[str, Any]:
    return {
        "target": to_plain(plan.target),
        "kernels": [to_plain(k) for k in plan.kernels.values()],
        "regions": [to_plain(r) for r in plan.regions.values()],
        "instances": [to_plain(i) for i in plan.instances],
        "outputs": to_plain(plan.outputs),
    }


def from_json(body: Mapping[str, Any], graph: Graph) -> Plan:
    """The plan of ``to_json``; raises ValueError, TypeError, LookupError or LumcError otherwise."""
    target = check_target(from_plain(Target, body["target"]))
    kernels = {k.key: k for k in (kernel_from(d, target) for d in body["kernels"])}
    regions = {r.key: r for r in (from_plain(RegionPlan, d) for d in body["regions"])}
    signatures = {key: _signature(r, kernels) for key, r in regions.items()}
    return Plan(graph, target, kernels, regions, *launches_from(body, graph, signatures))


def kernel_from(data: Mapping[str, Any], target: Target) -> KernelPlan:
    """A kernel of a plan, checked."""
    plan = from_plain(KernelPlan, data)
    kernel = plan.kernel
    ranks = {b.name: len(b.shape) for b in kernel.buffers}
    check_terms(
        [e for r in kernel.roots for e in (*r.index, r.value)], kernel.buffers, kernel.extent
    )
    if len(ranks) != len(kernel.buffers) or not set(kernel.axes) <= set(kernel.extent):
        raise ValueError("a kernel's buffers or axes are malformed")
    if any(len(r.index) != ranks[r.buffer] for r in kernel.roots):
        raise ValueError("a root does not fit its buffer")
    if not all(math.isfinite(us) for us in (plan.bound_us, plan.time_us or 0.0)):
        raise ValueError("a time is not finite")
    check_kernel(kernel)
    check_schedule(kernel, plan.schedule, target)
    return plan


def _signature(region: RegionPlan, kernels: Mapping[str, KernelPlan]) -> dict[str, Buffer]:
    """What the steps of a region expect of its inputs and its result."""
    names = {b.name: b for b in region.local}
    for step in region.steps:
        buffers = kernels[step.kernel].kernel.buffers
        for name, b in zip(step.args, buffers, strict=True):
            known = names.setdefault(name, b)
            if (known.dtype, known.shape) != (b.dtype, b.shape):
                raise ValueError(f"{name} has two forms in region {region.key}")
    return {name: b for name, b in names.items() if b not in region.local}
