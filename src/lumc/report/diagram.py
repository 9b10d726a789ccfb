"""The boxes and arrows of any artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumc.errors import Exit, LumcError
from lumc.kernel.instance import whole_of
from lumc.report import draw

if TYPE_CHECKING:
    from lumc.codegen.code import Code
    from lumc.schedule.plan import Plan
    from lumc.search.space import Space


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
    if kind == "plain":
        fix = "draw the graph or the plan that it was made from"
        raise LumcError("E0203", "plain C has no drawing", fix=fix, exit=Exit.USAGE)
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
        nodes = [shapes[name] for name in map(whole_of, i.outputs) if name in shapes]
        size = ", ".join(f"{n.dtype.value}{list(n.shape)}" for n in nodes)
        name = ", ".join(i.outputs)
        out.boxes.append(draw.Box(name, (name, size, i.region[:12]), "kernel"))
        out.edges += [
            (known[s], name) for s in dict.fromkeys(map(whole_of, i.inputs)) if s in known
        ]
        known |= dict.fromkeys(map(whole_of, i.outputs), name)
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
        count = len(launch.args if launch.exchanges else kernels[launch.kernel].args)
        args = [*map(whole_of, launch.args[:count])]
        out.edges += [(written[a], name) for a in dict.fromkeys(args) if a in written]
        written |= {a: name for a in args if a not in written}
    return out
