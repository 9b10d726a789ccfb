"""The bodies of artifacts: search spaces, plans and kernels as plain JSON, without their graphs.

Reading trusts nothing: every ``.._from_json`` raises ValueError, TypeError, LookupError or
LumcError for anything but what ``.._to_json`` gives, see ``artifact.fields``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from lumc.artifacts.exchanges import exchange_problems
from lumc.artifacts.source import foreign_line
from lumc.artifacts.terms import check_accesses
from lumc.codegen.code import Code, EntryPlan, KernelCode, Value
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.memory import ALIGN
from lumc.codegen.tile.packing import packings_from
from lumc.disk.artifact import corrupt
from lumc.errors import LumcError
from lumc.graph.expr import subterms
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.instance import PLACE, Instance, Outputs, elements_of, whole_of
from lumc.kernel.lengths import Lengths
from lumc.kernel.machines import CPUS, resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import INDEX_KINDS, Buffer, Kernel, Root
from lumc.schedule.legal import check_schedule
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan
from lumc.search.cuts import function_of
from lumc.search.space import Region, Space

MAX_THREADS = 1024  # as the runner's
Signature = Mapping[str, Buffer]  # what a region reads (b0, ..) and writes (out)
Places = dict[str, tuple[DType, list[tuple[int, ...]]]]  # values, and orders their dims may have


# ---- search spaces


def space_to_json(space: Space) -> dict[str, Any]:
    """Of what saturation did nothing counts in the digest: it depends on the version of egglog."""
    regions, statistics = [to_plain(r) for r in space.regions], list[dict[str, Any]]()
    for r in regions:
        statistics.append({"region": r["key"], **r.pop("stats")})
    return {"regions": regions, "statistics": statistics, **_launches(space)}


def space_from_json(body: Mapping[str, Any], graph: Graph) -> Space:
    target = _target(body)
    pairs = zip(body["regions"], body["statistics"], strict=True)
    regions = tuple(_region({**r, "stats": s}, s["region"], target) for r, s in pairs)
    _require_dims((r.frame.lengths for r in regions), graph)
    signatures = {r.key: {b.name: b for b in (*r.frame.inputs, r.frame.output)} for r in regions}
    instances, outputs = _launches_from(body, graph, signatures)
    if any(i.names.keys() != signatures[i.region].keys() for i in instances):
        raise ValueError("an instance has other values than its region")
    if len(signatures) < len(regions):
        raise ValueError("a region stands twice")
    return Space(graph, target, regions, instances, outputs)


def _region(data: Mapping[str, Any], key: str, target: Target) -> Region:
    stats = {k: v for k, v in data["stats"].items() if k != "region"}
    region = from_plain(Region, {**data, "stats": stats})
    if region.key != key:
        raise ValueError("statistics are those of another region")
    frame = region.frame
    for v in region.variants:  # what lies between its cuts reads under the same guards
        root = Root(frame.output.name, frame.index, v.value)
        buffers = (*frame.inputs, frame.output)
        check_accesses(Kernel("", frame.axes, frame.extent, (root,), buffers, frame.live), target)
        values = {e for e in subterms(v.value) if e.kind not in INDEX_KINDS}
        functions = {function_of(c, frame.lengths)[0] for c in v.cuts}
        if not values.issuperset(v.cuts) or len(functions) < len(v.cuts):
            raise ValueError("a cut is no value of its variant, or stands twice")
    return region


# ---- plans


def plan_to_json(plan: Plan) -> dict[str, Any]:
    kernels = [to_plain(k) for k in plan.kernels.values()]
    regions = [to_plain(r) for r in plan.regions.values()]
    return {"kernels": kernels, "regions": regions, **_launches(plan)}


def plan_from_json(body: Mapping[str, Any], graph: Graph) -> Plan:
    target = _target(body)
    kernels = {k.key: k for k in (_kernel(d, target) for d in body["kernels"])}
    _require_dims((k.kernel.lengths for k in kernels.values()), graph)
    regions = {r.key: r for r in (from_plain(RegionPlan, d) for d in body["regions"])}
    signatures = {key: _signature(r, kernels) for key, r in regions.items()}
    return Plan(graph, target, kernels, regions, *_launches_from(body, graph, signatures))


def _kernel(data: Any, target: Target) -> KernelPlan:
    plan = from_plain(KernelPlan, data)
    if not all(math.isfinite(us) for us in (plan.bound_us, plan.time_us or 0.0)):
        raise ValueError("a time is not finite")
    check_accesses(plan.kernel, target)
    check_schedule(normalize(plan.kernel), plan.schedule, target)
    return plan


def _signature(region: RegionPlan, kernels: Mapping[str, KernelPlan]) -> Signature:
    """What the steps of a region expect of its inputs and its result."""
    names = {b.name: b for b in region.local}
    local = set(names)
    for step in region.steps:
        kernel = kernels[step.kernel].kernel
        for name, b in zip(step.args, kernel.buffers, strict=True):
            if b.name in kernel.stored and name not in local and name.startswith("b"):
                raise ValueError(f"{name} of region {region.key} is written")
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
    target = _target(body)
    kernels = tuple(from_plain(KernelCode, k) for k in body["kernels"])
    entries = tuple(from_plain(EntryPlan, e) for e in body["entries"])
    packings = packings_from(body["packings"])
    code = Code(graph, target, str(body["header"]), kernels, packings, entries)
    _verify(code)
    return code


def _verify(code: Code) -> None:
    """Sources read no files, names resolve, values fit their places. Raises E0501, exit 5."""
    for problem in (*_kernel_problems(code), *_entry_problems(code)):
        raise corrupt(problem)


def _kernel_problems(code: Code) -> Iterator[str]:
    symbols = [k.symbol for k in code.kernels]
    if len(set(symbols)) != len(symbols):
        yield "two kernels have the same symbol"
    for kernel in code.kernels:
        if line := foreign_line(kernel.source):
            yield f"kernel '{kernel.symbol}' has a line that lumc does not write: {line}"
    if code.header != header_of(code.target.kind):
        yield "its header is not the one of this lumc"


def _entry_problems(code: Code) -> Iterator[str]:
    arity = {k.symbol: len(k.args) for k in code.kernels}
    leaves = {w.name: Value(w.name, w.dtype, w.sizes, "weight") for w in code.graph.weights}
    states = enumerate(code.graph.states)
    leaves |= {s.name: Value(s.name, s.dtype, s.sizes, "state", i) for i, s in states}
    dims = enumerate(code.graph.dims)
    leaves |= {name: Value(name, DType.I64, (), "dim", i) for i, name in dims}
    for entry, graph in zip(code.entries, code.graph.entries, strict=True):
        known = {v.name for v in entry.values} | {""}
        given = [Value(n.name, n.dtype, n.sizes, "input", i) for i, n in enumerate(graph.inputs)]
        made = [(n.dtype, n.sizes) for _, n in graph.outputs]
        places = [(v.dtype, v.shape) for v in entry.place("output")]
        ends = (entry.name, *(name for name, _ in graph.outputs))
        if entry.place("input") != given or places != made or (graph.name, *entry.outputs) != ends:
            yield f"entry '{entry.name}' is not the one of its graph"
        for launch in entry.launches:
            if launch.exchanges:
                yield from exchange_problems(graph, entry, launch)
                continue
            if arity.get(launch.kernel) != len(launch.args) or not known.issuperset(launch.args):
                yield f"entry '{entry.name}': no kernel or value for {launch}"
        if [v.offset for v in entry.place("output")] != list(range(len(entry.outputs))):
            yield f"entry '{entry.name}': its outputs are not in order"
        yield from (
            f"{v} does not fit its place" for v in entry.values if not _fits(v, entry, code, leaves)
        )


def _fits(v: Value, entry: EntryPlan, code: Code, leaves: Mapping[str, Value]) -> bool:
    match v.place:
        case "input" | "output" if part := elements_of(v.name):
            own = {e.name: e for e in entry.place(v.place)}.get(whole_of(v.name))
            if own is None or not part or part.stop > math.prod(own.shape):
                return False
            return v == replace(own, name=v.name, shape=(len(part),)) and v.start % ALIGN == 0
        case "state" if v.name not in leaves:
            state, part = leaves.get(whole_of(v.name)), elements_of(v.name)
            if state is None or not part or part.stop > math.prod(state.shape):
                return False
            own = replace(state, name=v.name, shape=(len(part),))
            return v == own and own.start % ALIGN == 0
        case "weight" | "state" | "dim":
            return v == leaves.get(v.name)
        case "arena":
            return v.offset % ALIGN == 0 and v.offset + v.nbytes <= entry.arena_bytes
        case "packed":
            return v.name in code.packings and v.shape == (code.packings[v.name].size,)
    return v.place in ("input", "output")


# ---- what several of them have


def _launches(made: Space | Plan) -> dict[str, Any]:
    return {
        "target": to_plain(made.target),
        "instances": [to_plain(i) for i in made.instances],
        "outputs": to_plain(made.outputs),
    }


def _require_dims(every: Iterable[Lengths], graph: Graph) -> None:
    """Raises ValueError for dims that no entry of the graph has, or none with these bounds."""
    known = {*graph.dims.values(), *(d for e in graph.entries for d in e.dims.values())}
    for d in (d for lengths in every for d in lengths.dims):
        if d not in known:
            raise ValueError(f"dim {d.name} is none of the graph")


def _target(body: Mapping[str, Any]) -> Target:
    """The target that the name says, as this lumc knows it. A file adds what only the machine knew
    that it was made on: the level of cpu:native, multiply-adds in a cycle, threads."""
    said = from_plain(Target, body["target"])
    try:
        native = said.name == "cpu:native"
        known = replace(CPUS[said.arch], name=said.name) if native else resolve_target(said.name)
    except LumcError as e:
        raise ValueError(e.what) from None
    known = replace(known, threads=said.threads, fmas=said.fmas if native else known.fmas)
    other = [f.name for f in fields(Target) if getattr(known, f.name) != getattr(said, f.name)]
    if other or not 1 <= said.threads <= MAX_THREADS or said.fmas not in (1, 2):
        raise ValueError(f"not the target that lumc knows: its {', '.join(other) or 'threads'}")
    return known


def _launches_from(
    body: Mapping[str, Any], graph: Graph, regions: Mapping[str, Signature]
) -> tuple[tuple[Instance, ...], Outputs]:
    """Instances and outputs that name regions and values which exist and fit each other."""
    values = {entry.name: _values(graph, entry.name) for entry in graph.entries}
    instances = tuple(from_plain(Instance, i) for i in body["instances"])
    outputs = from_plain(dict[str, tuple[tuple[str, str], ...]], body["outputs"])
    made = {(i.entry, name) for i in instances for name in i.outputs}
    made -= {(entry, name) for entry, every in outputs.items() for _, name in every}
    states = {s.name for s in graph.states}
    made -= {(e.name, name) for e in graph.entries for name in states}
    weights = {w.name for w in graph.weights}
    given = {e.name: weights | {n.name for n in e.inputs} for e in graph.entries}
    plain = {entry: dict(places) for entry, places in values.items()}
    for i in instances:
        _check_parts(i, regions[i.region], values[i.entry], plain[i.entry], weights | states)
        if written := given[i.entry].intersection(map(whole_of, i.outputs)):
            raise ValueError(f"{', '.join(sorted(written))} is written")
        for slot, want in regions[i.region].items():
            if want.constant and i.names[slot] not in weights:
                raise ValueError(f"{i.names[slot]} is no weight")
            if elements_of(i.names[slot]) is not None:
                continue
            name, known = i.names[slot], values[i.entry]
            kind, orders = known[name]
            if (i.entry, name) in made:  # in the order of dims that its maker chose
                turned = [(*s[:n], *s[n + 1 :], s[n]) for s in orders[:1] for n in range(len(s))]
                orders = turned or orders  # a scalar has no order
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


def _check_parts(
    i: Instance, region: Signature, known: Places, plain: Places, fixed: Container[str]
) -> None:
    """Raises ValueError for parts of weights and states, or of what has another order of dims
    than the graph gives it; and for parts that begin where no value may, or that do not end."""
    for slot, want in region.items():
        if (part := elements_of(i.names[slot])) is None:
            continue
        name = whole_of(i.names[slot])
        kind, orders = known[name]
        (sizes,) = plain[name][1]
        fits = (kind, len(part)) == (want.dtype, math.prod(want.shape)) and sizes in orders
        inside = part.stop <= math.prod(sizes) and part.start * kind.nbytes % PLACE == 0
        if not part or not fits or not inside or name in fixed:
            raise ValueError(f"{i.names[slot]} does not fit {slot} of region {i.region}")
        known[name] = kind, [sizes]


def _values(graph: Graph, entry: str) -> Places:
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
