"""The ``.lp`` body: a plan as plain JSON, without its graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lumc.graph.graph import Graph
from lumc.kernel.codec import (
    buffer_from,
    buffer_to,
    check_terms,
    decode,
    encode,
    extent_from,
    launches_from,
    launches_to,
    pick,
    target_from,
    target_to,
)
from lumc.kernel.legal import check_kernel, check_schedule
from lumc.kernel.plan import KernelPlan, Plan, RegionPlan, Step
from lumc.kernel.schedule import Schedule
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Root


def to_json(plan: Plan) -> dict[str, Any]:
    return {
        "target": target_to(plan.target),
        "kernels": [kernel_to(k) for k in plan.kernels.values()],
        "regions": [_region_to(r) for r in plan.regions.values()],
        **launches_to(plan.instances, plan.outputs),
    }


def from_json(body: Mapping[str, Any], graph: Graph) -> Plan:
    """The plan of ``to_json``; raises ValueError, TypeError, KeyError or LumcError otherwise."""
    target = target_from(body["target"])
    kernels = {k.key: k for k in (kernel_from(d, target) for d in body["kernels"])}
    regions = {r.key: r for r in (_region_from(d) for d in body["regions"])}
    signatures = {key: _signature(r, kernels) for key, r in regions.items()}
    instances, outputs = launches_from(body, graph, signatures)
    return Plan(graph, target, kernels, regions, instances, outputs)


def kernel_to(plan: KernelPlan) -> dict[str, Any]:
    kernel = plan.kernel
    terms, at = encode([e for root in kernel.roots for e in (*root.index, root.value)])
    positions = iter(at)
    roots = [
        [root.buffer, [next(positions) for _ in root.index], next(positions)]
        for root in kernel.roots
    ]
    return {
        "key": plan.key,
        "name": kernel.name,
        "axes": list(kernel.axes),
        "extent": dict(kernel.extent),
        "buffers": [buffer_to(b) for b in kernel.buffers],
        "terms": terms,
        "roots": roots,
        "schedule": plan.schedule.to_json(),
        "bound_us": plan.bound_us,
        "time_us": plan.time_us,
        "stop": plan.stop,
    }


def kernel_from(data: Mapping[str, Any], target: Target) -> KernelPlan:
    terms = decode(data["terms"])
    buffers = tuple(buffer_from(b) for b in data["buffers"])
    ranks = {b.name: len(b.shape) for b in buffers}
    roots = []
    for buffer, index, value in data["roots"]:
        roots.append(Root(buffer, tuple(pick(terms, i) for i in index), pick(terms, value)))
        if len(index) != ranks[buffer]:
            raise ValueError(f"a root has {len(index)} indices for {buffer}")
    extent = {str(a): extent_from(n) for a, n in data["extent"].items()}
    check_terms([e for r in roots for e in (*r.index, r.value)], buffers, extent)
    axes = tuple(str(a) for a in data["axes"])
    if len(ranks) != len(buffers) or not set(axes) <= set(extent):
        raise ValueError("a kernel's buffers or axes are malformed")
    kernel = Kernel(str(data["name"]), axes, extent, tuple(roots), buffers)
    check_kernel(kernel)
    schedule = Schedule.from_json(data["schedule"])
    check_schedule(kernel, schedule, target)
    time_us = data["time_us"]
    return KernelPlan(
        str(data["key"]),
        kernel,
        schedule,
        _time(data["bound_us"]),
        None if time_us is None else _time(time_us),
        str(data["stop"]),
    )


def _time(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time")
    return value


def _region_to(region: RegionPlan) -> dict[str, Any]:
    return {
        "key": region.key,
        "steps": [[s.kernel, *s.args] for s in region.steps],
        "local": [buffer_to(b) for b in region.local],
    }


def _region_from(data: Mapping[str, Any]) -> RegionPlan:
    steps = tuple(Step(kernel, tuple(args)) for kernel, *args in data["steps"])
    return RegionPlan(str(data["key"]), steps, tuple(buffer_from(b) for b in data["local"]))


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
