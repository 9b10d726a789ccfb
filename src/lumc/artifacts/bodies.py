"""The bodies of artifacts: search spaces, plans and kernels as plain JSON, without their graphs.

Reading trusts nothing: every ``.._from_json`` raises ValueError, TypeError, LookupError or
LumcError for anything but what ``.._to_json`` gives, see ``artifact.fields``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lumc.codegen.code import Code, EntryPlan, KernelCode, Value
from lumc.codegen.tile.memory import ALIGN
from lumc.codegen.tile.packing import packings_from
from lumc.disk.artifact import corrupt
from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.instance import Instance, Outputs
from lumc.kernel.machines import CPUS, FEATURES, GPUS
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer
from lumc.schedule.legal import check_kernel, check_schedule
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan
from lumc.search.space import Region, Space

Signature = Mapping[str, Buffer]  # what a region reads (b0, ..) and writes (out)


# ---- search spaces


def space_to_json(space: Space) -> dict[str, Any]:
    return {"regions": [to_plain(r) for r in space.regions], **_launches(space)}


def space_from_json(body: Mapping[str, Any], graph: Graph) -> Space:
    regions = tuple(_region(r) for r in body["regions"])
    signatures = {r.key: {b.name: b for b in (*r.frame.inputs, r.frame.output)} for r in regions}
    return Space(graph, _target(body), regions, *_launches_from(body, graph, signatures))


def _region(data: Any) -> Region:
    region = from_plain(Region, data)
    frame = region.frame
    _check_terms([*frame.index, *(v.value for v in region.variants)], frame.inputs, frame.extent)
    for v in region.variants:
        if not v.value.free <= set(frame.axes) or len(frame.index) != len(frame.output.shape):
            raise ValueError("a variant does not fit the result of its region")
    return region


# ---- plans


def plan_to_json(plan: Plan) -> dict[str, Any]:
    kernels = [to_plain(k) for k in plan.kernels.values()]
    regions = [to_plain(r) for r in plan.regions.values()]
    return {"kernels": kernels, "regions": regions, **_launches(plan)}


def plan_from_json(body: Mapping[str, Any], graph: Graph) -> Plan:
    target = _target(body)
    kernels = {k.key: k for k in (_kernel(d, target) for d in body["kernels"])}
    regions = {r.key: r for r in (from_plain(RegionPlan, d) for d in body["regions"])}
    signatures = {key: _signature(r, kernels) for key, r in regions.items()}
    return Plan(graph, target, kernels, regions, *_launches_from(body, graph, signatures))


def _kernel(data: Any, target: Target) -> KernelPlan:
    plan = from_plain(KernelPlan, data)
    kernel = plan.kernel
    ranks = {b.name: len(b.shape) for b in kernel.buffers}
    terms = [e for r in kernel.roots for e in (*r.index, r.value)]
    _check_terms(terms, kernel.buffers, kernel.extent)
    if len(ranks) != len(kernel.buffers) or not set(kernel.axes) <= set(kernel.extent):
        raise ValueError("a kernel's buffers or axes are malformed")
    if any(len(r.index) != ranks[r.buffer] for r in kernel.roots):
        raise ValueError("a root does not fit its buffer")
    if not all(math.isfinite(us) for us in (plan.bound_us, plan.time_us or 0.0)):
        raise ValueError("a time is not finite")
    check_kernel(kernel)
    check_schedule(kernel, plan.schedule, target)
    return plan


def _signature(region: RegionPlan, kernels: Mapping[str, KernelPlan]) -> Signature:
    """What the steps of a region expect of its inputs and its result."""
    names = {b.name: b for b in region.local}
    for step in region.steps:
        buffers = kernels[step.kernel].kernel.buffers
        for name, b in zip(step.args, buffers, strict=True):
            known = names.setdefault(name, b)
            if (known.dtype, math.prod(known.shape)) != (b.dtype, math.prod(b.shape)):
                raise ValueError(f"{name} has two sizes in region {region.key}")
    return {name: b for name, b in names.items() if b not in region.local}


# ---- kernels


def code_to_json(code: Code) -> dict[str, Any]:
    return {
        "target": to_plain(code.target),
        "header": code.header,
        "kernels": [to_plain(k) for k in code.kernels],
        "packings": [{"name": n, **to_plain(p)} for n, p in code.packings.items()],
        "entries": [to_plain(e) for e in code.entries],
    }


def code_from_json(body: Mapping[str, Any], graph: Graph) -> Code:
    target = from_plain(Target, body["target"])
    kernels = tuple(from_plain(KernelCode, k) for k in body["kernels"])
    entries = tuple(from_plain(EntryPlan, e) for e in body["entries"])
    packings = packings_from(body["packings"])
    code = Code(graph, target, str(body["header"]), kernels, packings, entries)
    _verify(code)
    return code


def _verify(code: Code) -> None:
    """Symbols are identifiers, names resolve, values fit their places. Raises E0501, exit 5."""
    for problem in (*_kernel_problems(code), *_entry_problems(code)):
        raise corrupt(problem)


def _kernel_problems(code: Code) -> Iterator[str]:
    symbols = [k.symbol for k in code.kernels]
    if len(set(symbols)) != len(symbols):
        yield "two kernels have the same symbol"
    for symbol in symbols:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,99}", symbol):
            yield f"kernel symbol {symbol!r} is not a plain identifier"


def _entry_problems(code: Code) -> Iterator[str]:
    arity = {k.symbol: len(k.args) for k in code.kernels}
    for entry in code.entries:
        known = {v.name for v in entry.values} | {""}
        for launch in entry.launches:
            if arity.get(launch.kernel) != len(launch.args) or not known.issuperset(launch.args):
                yield f"entry '{entry.name}': no kernel or value for {launch}"
        ends = [("input", len(entry.place("input"))), ("output", len(entry.outputs))]
        for place, n in ends:
            if [v.offset for v in entry.place(place)] != list(range(n)):
                yield f"entry '{entry.name}': its {place}s are not in order"
        yield from (
            f"{v} does not fit its place" for v in entry.values if not _fits(v, entry, code)
        )


def _fits(v: Value, entry: EntryPlan, code: Code) -> bool:
    match v.place:
        case "arena":
            return v.offset % ALIGN == 0 and v.offset + v.nbytes <= entry.arena_bytes
        case "packed":
            return v.name in code.packings and v.shape == (code.packings[v.name].size,)
        case "weight":
            return v.name in {w.name for w in code.graph.weights}
        case "state":
            return v.offset < len(code.graph.states)
    return v.place in ("input", "output")


# ---- what several of them have


def _launches(made: Space | Plan) -> dict[str, Any]:
    return {
        "target": to_plain(made.target),
        "instances": [to_plain(i) for i in made.instances],
        "outputs": to_plain(made.outputs),
    }


def _target(body: Mapping[str, Any]) -> Target:
    """A target of a known architecture; its compiler flags must be the ones lumc gives it."""
    target = from_plain(Target, body["target"])
    known = FEATURES.get(target.kind, ())
    features = tuple(f for f in known if f in target.name.split("+")[1:])
    flags = features if target.arch in GPUS.get(target.kind, {}) else CPUS[target.arch].flags
    if target.flags != flags:
        raise ValueError(f"target {target.name!r} has unknown flags")
    return target


def _check_terms(
    terms: Iterable[Expr], buffers: Sequence[Buffer], extent: Mapping[str, int]
) -> None:
    """Every axis has an extent and every load agrees with its buffer; raises ValueError."""
    known = {b.name: b for b in buffers}
    for e in subterms(*terms):
        for a in (*bound_axes(e), *(e.attr if e.kind == "axis" else ())):
            if a not in extent:
                raise ValueError(f"axis {a} has no extent")
        if e.kind == "dim":
            raise ValueError("a dim is not bound")
        if e.kind == "load":
            b = known.get(e.attr[0])
            if b is None or b.dtype.value != e.attr[1] or len(b.shape) != len(e.kids):
                raise ValueError(f"load from {e.attr[0]} does not fit any buffer")


def _launches_from(
    body: Mapping[str, Any], graph: Graph, regions: Mapping[str, Signature]
) -> tuple[tuple[Instance, ...], Outputs]:
    """Instances and outputs that name regions and values which exist and fit each other."""
    values = {entry.name: _values(graph, entry.name) for entry in graph.entries}
    instances = tuple(from_plain(Instance, i) for i in body["instances"])
    outputs = from_plain(dict[str, tuple[tuple[str, str], ...]], body["outputs"])
    made = {(i.entry, name) for i in instances for name in i.outputs}
    made -= {(entry, name) for entry, every in outputs.items() for _, name in every}
    made -= {(e.name, s.name) for e in graph.entries for s in graph.states}
    for i in instances:
        for slot, want in regions[i.region].items():
            name, known = i.names[slot], values[i.entry]
            kind, orders = known[name]
            if (i.entry, name) in made:  # in the order of dims that its maker chose
                orders = [(*s[:n], *s[n + 1 :], s[n]) for s in orders[:1] for n in range(len(s))]
                made.discard((i.entry, name))
            known[name] = (kind, [s for s in orders if _is_seen_as(s, want.shape)])
            if want.dtype != kind or not known[name][1]:
                raise ValueError(f"{name} does not fit {slot} of region {i.region}")
    for e in graph.entries:
        if [name for name, _ in outputs[e.name]] != [name for name, _ in e.outputs]:
            raise ValueError(f"the outputs of entry {e.name} are not those of its graph")
        if any(value not in values[e.name] for _, value in outputs[e.name]):
            raise ValueError(f"an output of entry {e.name} has no value")
    return instances, outputs


def _values(graph: Graph, entry: str) -> dict[str, tuple[DType, list[tuple[int, ...]]]]:
    """The dtype of every value, and the orders that its dims may have in memory."""
    e = graph.entry(entry)
    nodes = (*graph.weights, *graph.states, *e.inputs, *e.nodes)
    return {n.name: (n.dtype, [n.sizes]) for n in nodes}


def _is_seen_as(shape: Sequence[int], merged: Sequence[int]) -> bool:
    """Whether a shape becomes another one when dims that lie side by side are merged."""
    if 0 in shape:
        return 0 in merged
    left = [n for n in shape if n != 1]
    for n in merged:
        while n > 1 and left and n % left[0] == 0:
            n //= left.pop(0)
        if n != 1:
            return False
    return not left
