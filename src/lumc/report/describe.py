"""What an artifact holds: as a JSON body, and from that as lines of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumc.disk.artifact import fields
from lumc.graph.dim import Dim
from lumc.graph.expr import Expr, text

if TYPE_CHECKING:
    from lumc.codegen.code import Code, Value
    from lumc.graph.graph import Graph, Node
    from lumc.kernel.instance import Instance
    from lumc.kernel.target import Target
    from lumc.profile.candidates import Program
    from lumc.schedule.plan import KernelPlan, Plan
    from lumc.search.space import Region, Space

TURNS = 32  # of a stage that are listed
WIDEST = 2000  # characters of a term, which is a DAG: its text may be exponentially larger
Body = dict[str, Any]


# ---- graphs


def describe_graph(graph: Graph) -> Body:
    return {
        "dims": [{"name": d.name, "lo": d.lo, "hi": d.hi} for d in graph.dims.values()],
        "weights": [tensor(w) for w in graph.weights],
        "states": [tensor(s) for s in graph.states],
        "entries": [
            {
                "name": e.name,
                "inputs": [tensor(n) for n in e.inputs],
                "outputs": [{**tensor(n), "name": name} for name, n in e.outputs],
                "nodes": len(e.nodes),
            }
            for e in graph.entries
        ],
    }


def print_graph(graph: Graph, _: Body) -> Iterable[str]:
    from lumc.graph.text import print_graph

    yield print_graph(graph).rstrip("\n")


def tensor(node: Node | Value) -> Body:
    shape = [e if isinstance(e, int) else str(e) for e in node.shape]
    return {"name": node.name, "dtype": node.dtype.value, "shape": shape}


# ---- search spaces


def describe_space(space: Space) -> Body:
    from lumc.profile.choose import candidates
    from lumc.profile.rematerialize import made_again

    names, share = made_again(space.graph)
    space, found = next(candidates(space))
    return {
        "target": space.target.name,
        "instances": len(space.instances),
        "again": {"nodes": names, "operations": share},
        "regions": [describe_region(r, space.target, found[r.key]) for r in space.regions],
    }


def describe_region(region: Region, target: Target, found: Sequence[Program]) -> Body:
    from lumc.profile.choose import choose, name_of
    from lumc.schedule.space import Grammar

    return {
        "key": region.key,
        "count": region.count,
        "shape": list(region.frame.output.shape),
        "enodes": region.stats.nodes,
        "classes": region.stats.classes,
        "stop": region.stats.stop.value,
        "rules": dict(region.stats.fired),
        "variants": [
            {"term": text(v.value, WIDEST), "cuts": [text(c, WIDEST) for c in v.cuts]}
            for v in region.variants
        ],
        "kernels": [
            {"name": name_of(k), "schedules": Grammar(k, target).size()}
            for k in (choose(found) if 0 not in region.frame.output.shape else ())
        ],
    }


def print_space(space: Space, body: Body) -> Iterable[str]:
    yield (
        f"search space for {space.target.name}: {body['instances']} regions, "
        f"{len(body['regions'])} unique"
    )
    if again := body["again"]["nodes"]:
        share = body["again"]["operations"]
        yield f"made again, {share:.1%} of all operations: {', '.join(again)}"
    for r in body["regions"]:
        yield (
            f"\nregion {r['key']} x{r['count']} {r['shape']}: {r['enodes']} e-nodes in "
            f"{r['classes']} classes, {len(r['variants'])} variants, stop: {r['stop']}"
        )
        fired = ", ".join(f"{name} {n}" for name, n in r["rules"].items() if n)
        yield f"  rules: {fired or 'none'}"
        for i, v in enumerate(r["variants"]):
            yield f"  variant {i}, {len(v['cuts'])} cut points: {v['term']}"
        for k in r["kernels"]:
            yield f"  kernel {k['name']} of the estimate: {k['schedules']:,} schedules"


# ---- plans


def describe_plan(plan: Plan) -> Body:
    used = launches(plan.instances, plan)
    return {
        "target": plan.target.name,
        "instances": len(plan.instances),
        "kernels": [
            {**describe_kernel(k), "launches": used.get(key, 0)} for key, k in plan.kernels.items()
        ],
    }


def launches(instances: Iterable[Instance], plan: Plan) -> dict[str, int]:
    """How often every kernel runs, by key."""
    out: dict[str, int] = {}
    for i in instances:
        for step in plan.regions[i.region].steps:
            out[step.kernel] = out.get(step.kernel, 0) + 1
    return out


def describe_kernel(k: KernelPlan) -> Body:
    return {
        "key": k.key,
        "name": k.kernel.name,
        "axes": {a: k.kernel.extent[a] for a in k.kernel.axes},
        "terms": [
            f"{r.buffer}[{_indices(r.index)}] = {text(r.value, WIDEST)}" for r in k.kernel.roots
        ],
        "schedule": k.schedule.to_json(),
        "bound_us": k.bound_us,
        "time_us": k.time_us,
        "stop": k.stop,
    }


def _indices(index: Iterable[Expr]) -> str:
    return ", ".join(text(i, WIDEST) for i in index)


def print_plan(plan: Plan, body: Body) -> Iterable[str]:
    total = sum(k["launches"] for k in body["kernels"])
    yield f"plan for {plan.target.name}: {len(body['kernels'])} kernels, {total} launches"
    for k in body["kernels"]:
        axes = " ".join(f"{a}:{n}" for a, n in k["axes"].items())
        yield f"\nkernel {k['key']} x{k['launches']}  over {axes}  {_timed(k)}"
        yield from (f"  {t}" for t in k["terms"])
        s = k["schedule"]
        yield f"  order {' '.join(s['order'])}, tiles {s['tile'] or 'none'}"
        for stage in s["stages"]:
            said = {name: v for name, v in stage.items() if v not in (None, False)}
            yield "  stage " + " ".join(f"{name}={v}" for name, v in said.items())


def _timed(k: Body) -> str:
    """The time of a kernel and how near its roofline that is; or only the roofline."""
    least, us = k["bound_us"], k["time_us"]
    if us is None:
        return f"at least {least:.1f} us" + (f", {k['stop']}" if k["stop"] else "")
    return f"{us:.4g} us, {least / us:.0%} of the roofline, stop: {k['stop']}"


# ---- kernels


def describe_code(code: Code) -> Body:
    return {
        "target": code.target.name,
        "kernels": [
            {"name": k.name, "key": k.key, "symbol": k.symbol, "regions": k.regions}
            for k in code.kernels
        ],
        "entries": [
            {
                "name": e.name,
                "launches": [[launch.kernel, *launch.args] for launch in e.launches],
                "arena_bytes": e.arena_bytes,
                "arena_bytes_without_reuse": e.arena_bytes_without_reuse,
            }
            for e in code.entries
        ],
    }


def print_code(code: Code, body: Body) -> Iterable[str]:
    yield f"kernels for {code.target.name}: {len(code.kernels)}"
    for k in code.kernels:
        yield f"kernel {k.symbol} ({k.key}) in {k.regions} regions"
    headings = [e.heading for e in code.graph.entries]
    for e, heading in zip(body["entries"], headings, strict=True):
        reuse = f"{e['arena_bytes']} bytes ({e['arena_bytes_without_reuse']} without reuse)"
        yield f"entry {heading}: {len(e['launches'])} launches, arena {reuse}"
        for name, *args in e["launches"]:
            yield f"  {name}({', '.join(args)})"


# ---- bundles


def describe_bundle(file: str) -> Body:
    from lumc.bundle.unpack import opened

    with opened(file) as folder:
        from lumc.bundle import manifest

        return {k: v for k, v in manifest.read(folder).items() if k not in ("files", "packings")}


def print_bundle(_: str, body: Body) -> Iterable[str]:
    yield f"bundle for {', '.join(t['name'] for t in body['targets'])}"
    for d in body.get("dims", ()):
        yield f"dim {Dim(**d)}"
    for e in body["entries"]:
        yield f"entry {e['name']}: {e['launches']} launches"
        for b in e.get("buckets", ()):
            ends = ", ".join(f"{name} up to {n}" for name, n in b["dims"].items())
            yield f"  bucket {ends}: {b['launches']} launches"
        for s in body.get("schedule", {}).get(e["name"], ()):
            turns, held = s["turns"].split(), f"{s['open']} open ({s['open_bytes']} bytes)"
            more = " .." * (len(turns) > TURNS)
            yield f"  stage {s['stage']}: at most {held}: {' '.join(turns[:TURNS])}{more}"
        for place in ("inputs", "outputs"):
            for t in e[place]:
                shape = f"[{', '.join(map(str, t.get('extents', t['shape'])))}]"
                yield f"  {place[:-1]:<6} {t['name']} {t['dtype']}{shape}"
    for k in body["kernels"]:
        yield f"kernel {k['symbol']} ({k['key']}) in {k['regions']} regions"
    arena, without = body["arena_bytes"], body["arena_bytes_without_reuse"]
    yield f"arena {arena} bytes ({without} without reuse), weights {body['weight_bytes']} bytes"
    for target in body["targets"][1:]:
        counts = ", ".join(f"{name} {n}" for name, n in target["launches"].items())
        yield f"target {target['name']}: launches {counts}; arena {target['arena_bytes']} bytes"
        for k in target["kernels"]:
            yield f"kernel {k['symbol']} ({k['key']}) in {k['regions']} regions"


# ---- plain C


def describe_plain(header: Path) -> Body:
    """What its header says, and where its files are."""
    said = header.read_text(errors="replace")
    made = re.search(r"^/\* (\w+)\.h - .* made by lumc (\S+) for (\S+)\.\n", said)
    counts = re.finditer(r"^#define (\w+) (\d+) /\* (\w+\[[\w ,+*/%()-]*\])", said, re.MULTILINE)
    nbytes = re.finditer(r"^#define (\w+_BYTES) (\d+)", said, re.MULTILINE)
    ends = r"^#define (\w+_DIM_\w+_(?:LEAST|MOST|MULTIPLE)) (\d+)$"
    folder = header.parents[1]
    with fields("header", str(header)):
        name, version, target = made.groups()  # type: ignore[union-attr]
    return {
        "name": name,
        "version": version,
        "target": target,
        "functions": re.findall(r"^int \w+\([\w *,]*\);", said, re.MULTILINE),
        "tensors": [{"name": m[1], "elements": int(m[2]), "type": m[3]} for m in counts],
        "dims": {m[1]: int(m[2]) for m in re.finditer(ends, said, re.MULTILINE)},
        "bytes": {m[1]: int(m[2]) for m in nbytes},
        "files": [str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file()],
    }


def print_plain(_: Path, body: Body) -> Iterable[str]:
    library = next((f for f in body["files"] if f.endswith(".a")), "")
    how = f"link {library}" if library else f"add_subdirectory({body['name']}) of CMake"
    yield f"{body['name']}: plain C for {body['target']}, made by lumc {body['version']}"
    yield f'to use it: {how}, and #include "{body["name"]}.h"'
    yield from (f"  {f}" for f in body["functions"])
    yield from (f"  {t['name']} {t['elements']}, {t['type']}" for t in body["tensors"])
    yield from (f"  {name} {n}" for name, n in (body["dims"] | body["bytes"]).items())


DESCRIBE: dict[str, Callable[[Any], Body]] = {
    "graph": describe_graph,
    "space": describe_space,
    "plan": describe_plan,
    "kernels": describe_code,
    "bundle": describe_bundle,
    "plain": describe_plain,
}
PRINT: dict[str, Callable[[Any, Body], Iterable[str]]] = {
    "graph": print_graph,
    "space": print_space,
    "plan": print_plan,
    "kernels": print_code,
    "bundle": print_bundle,
    "plain": print_plain,
}
