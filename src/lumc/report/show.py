"""``lumc show``: any artifact as text, one node per line, as JSON, or as a drawing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumc.artifacts import files
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.graph.expr import Expr, text
from lumc.report import draw

if TYPE_CHECKING:
    from lumc.codegen.code import Code, Value
    from lumc.graph.graph import Graph, Node
    from lumc.kernel.instance import Instance
    from lumc.kernel.target import Target
    from lumc.profile.choose import Program
    from lumc.schedule.plan import KernelPlan, Plan
    from lumc.search.space import Region, Space

WIDEST = 2000  # characters of a term, which is a DAG: its text may be exponentially larger
Body = dict[str, Any]


def show(
    file: str,
    kernel: str | None,
    tile: bool,
    dot: str | None,
    svg: str | None,
    entry: str,
    as_json: bool,
) -> None:
    """Print or draw ``file``: a graph, a search space, a plan, kernels or a bundle."""
    kind, value = read(file)
    if dot or svg:
        picture = diagram(kind, value, entry)
        if dot:
            artifact.write_text(dot, draw.to_dot(picture))
        if svg:
            artifact.write_text(svg, draw.to_svg(picture))
        return
    if tile:
        print("\n\n".join(tile_programs(kind, value, kernel or "")))
        return
    body = DESCRIBE[kind](value)
    if kernel:
        lines = one_kernel(kind, value, kernel)
    elif as_json:
        lines = [json.dumps(body, indent=1)]
    else:
        lines = list(PRINT[kind](value, body))
    print("\n".join(lines))


def read(file: str) -> tuple[str, Any]:
    """The kind of an artifact, by its content, and its data."""
    path = Path(file)
    if path.is_dir() or (path.is_file() and path.read_bytes()[:2] == b"PK"):
        return "bundle", file
    said, base = artifact.read_text(file)
    if not said.startswith('{"lumc"'):
        return "graph", files.graph_from_text(said, base, file, {})
    found = [k for k in artifact.KINDS if said.startswith(f'{{"lumc":"{k}"')]
    readers = {
        "space": files.space_from_text,
        "plan": files.plan_from_text,
        "kernels": files.code_from_text,
    }
    if not found:
        raise artifact.corrupt("not an artifact of lumc", file)
    return found[0], readers[found[0]](said, base, file)[0]


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

    space, found = candidates(space)
    return {
        "target": space.target.name,
        "instances": len(space.instances),
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
    for e in body["entries"]:
        reuse = f"{e['arena_bytes']} bytes ({e['arena_bytes_without_reuse']} without reuse)"
        yield f"entry {e['name']}: {len(e['launches'])} launches, arena {reuse}"
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
    for e in body["entries"]:
        yield f"entry {e['name']}: {e['launches']} launches"
        for place in ("inputs", "outputs"):
            for t in e[place]:
                yield f"  {place[:-1]:<6} {t['name']} {t['dtype']}{t['shape']}"
    for k in body["kernels"]:
        yield f"kernel {k['symbol']} ({k['key']}) in {k['regions']} regions"
    arena, without = body["arena_bytes"], body["arena_bytes_without_reuse"]
    yield f"arena {arena} bytes ({without} without reuse), weights {body['weight_bytes']} bytes"
    for target in body["targets"][1:]:
        counts = ", ".join(f"{name} {n}" for name, n in target["launches"].items())
        yield f"target {target['name']}: launches {counts}; arena {target['arena_bytes']} bytes"
        for k in target["kernels"]:
            yield f"kernel {k['symbol']} ({k['key']}) in {k['regions']} regions"


def bundle_sources(file: str) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the kernels of all targets by their path, and the paths by name, key and symbol;
    of those with the same name the one of the first target."""
    from lumc.bundle.unpack import opened

    body, names = describe_bundle(file), dict[str, str]()
    with opened(file) as folder:
        every = [p for p in folder.glob("kernels/*/*") if p.suffix in (".c", ".cu", ".metal")]
        sources = {f"{p.parent.name}/{p.stem}": p.read_text() for p in every}
    with artifact.fields("manifest", file):
        for target in body["targets"]:
            for k in target.get("kernels", body["kernels"]):
                name = f"{target['name']}/{k['symbol']}"
                for alias in (k["name"], k["key"], k["symbol"], name):
                    names.setdefault(alias, name)
    return sources, {alias: name for alias, name in names.items() if name in sources}


def one_kernel(kind: str, value: Any, name: str) -> list[str]:
    """The kernel ``name`` (a key, a name or a symbol, in a bundle also TARGET/SYMBOL): its source,
    or its term and schedule."""
    if kind == "kernels":
        sources = {k.symbol: k.source for k in value.kernels}
        names = {n: k.symbol for k in value.kernels for n in (k.name, k.key, k.symbol)}
    elif kind == "plan":
        sources = {k: json.dumps(describe_kernel(v), indent=1) for k, v in value.kernels.items()}
        names = {n: k for k, v in value.kernels.items() for n in (k, v.kernel.name)}
    elif kind == "bundle":
        sources, names = bundle_sources(value)
    else:
        sources, names = {}, {}
    return [sources[_named(name, names)].rstrip("\n")]


def _named(name: str, names: Mapping[str, str]) -> str:
    """What one of several names, or its beginning, stands for."""
    match = [symbol for n, symbol in names.items() if n == name or n.startswith(name)]
    if not match:
        known = ", ".join(dict.fromkeys(names.values())) or "none in this file"
        fix = f"kernels: {known}"
        raise LumcError("E0206", f"no kernel '{name}'", fix=fix, exit=Exit.USAGE)
    return match[0]


def tile_programs(kind: str, value: Any, name: str) -> list[str]:
    """The tile programs of a plan's kernels, or of the kernel ``name``."""
    from lumc.codegen.tile.lower import lower
    from lumc.codegen.tile.text import program_text

    if kind != "plan":
        fix = "name the plan: lumc profile writes it, --save-temps DIR keeps it"
        raise LumcError("E0206", "only plans have tile programs", fix=fix, exit=Exit.USAGE)
    names = {n: key for key, k in value.kernels.items() for n in (key, k.kernel.name)}
    keys = [_named(name, names)] if name else list(value.kernels)
    chosen = [value.kernels[key] for key in keys]
    return [program_text(lower(k.kernel, k.schedule, value.target)) for k in chosen]


# ---- drawings


def diagram(kind: str, value: Any, entry: str) -> draw.Diagram:
    """A graph by its nodes; later artifacts by their regions or launches."""
    if kind == "graph":
        chosen = value.entry(entry) if entry else value.entries[0]
        return draw.entry_diagram(chosen)
    if kind in ("space", "plan"):
        return _regions(value, entry or value.graph.entries[0].name)
    if kind == "bundle":
        from lumc.bundle.restore import graph_of
        from lumc.bundle.unpack import opened

        with opened(value) as folder:
            graph = graph_of(folder)
        return diagram("graph", graph, entry)
    return _launches(value, entry or value.entries[0].name)


def _regions(value: Space | Plan, entry: str) -> draw.Diagram:
    out = draw.Diagram()
    graph = value.graph.entry(entry)
    leaves = {n.name for n in graph.inputs}
    shapes = {n.name: n for n in graph.nodes}
    known = {name: name for name in leaves}
    for leaf in graph.inputs:
        out.boxes.append(draw.Box(leaf.name, (leaf.name,), "leaf"))
    for i in value.instances:
        if i.entry != entry:
            continue
        nodes = [shapes[name] for name in i.outputs if name in shapes]
        size = ", ".join(f"{n.dtype.value}{list(n.shape)}" for n in nodes)
        name = ", ".join(i.outputs)
        out.boxes.append(draw.Box(name, (name, size, i.region[:12]), "kernel"))
        out.edges += [(known[s], name) for s in dict.fromkeys(i.inputs) if s in known]
        known |= dict.fromkeys(i.outputs, name)
    return out


def _launches(code: Code, entry: str) -> draw.Diagram:
    out = draw.Diagram()
    plan = next(e for e in code.entries if e.name == entry)
    kernels = {k.symbol: k for k in code.kernels}
    written: dict[str, str] = {}
    for v in plan.values:
        if v.place == "input":
            out.boxes.append(draw.Box(v.name, (v.name,), "leaf"))
            written[v.name] = v.name
    for i, launch in enumerate(plan.launches):
        name = f"launch {i}"
        out.boxes.append(draw.Box(name, (launch.kernel, launch.args[-1]), "kernel"))
        args = launch.args[: len(kernels[launch.kernel].args)]
        out.edges += [(written[a], name) for a in dict.fromkeys(args) if a in written]
        written |= {a: name for a in args if a not in written}
    return out


DESCRIBE = {
    "graph": describe_graph,
    "space": describe_space,
    "plan": describe_plan,
    "kernels": describe_code,
    "bundle": describe_bundle,
}
PRINT = {
    "graph": print_graph,
    "space": print_space,
    "plan": print_plan,
    "kernels": print_code,
    "bundle": print_bundle,
}
