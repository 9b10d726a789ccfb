"""``lumc diff A B``: what differs between two artifacts of one kind.

Of graphs the lines that are not in the other one, whatever nodes are called; of all others their
fields, of which kernels, regions and files are found by their keys and names.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

from lumc.errors import Exit, LumcError
from lumc.report.describe import DESCRIBE, Body
from lumc.report.show import read

if TYPE_CHECKING:
    from lumc.graph.graph import Entry, Graph, Node

NAMES = ("name", "symbol", "key")  # of the items of a list, the first that they have


class Difference(NamedTuple):
    """What one side has where, and the other one has not: texts, None where it has nothing."""

    where: str
    a: str | None
    b: str | None


def diff(a: str, b: str, as_json: bool) -> None:
    """Print the differences; exit code 3 when there are any. Raises E0203 for two kinds."""
    (kind, one), (other, two) = read(a), read(b)
    if kind != other:
        what = f"cannot compare a {kind} with a {other}: {a}, {b}"
        raise LumcError("E0203", what, fix="name two artifacts of one kind", exit=Exit.USAGE)
    found = list(graphs(one, two) if kind == "graph" else fields(body(kind, one), body(kind, two)))
    if as_json:
        print(json.dumps([d._asdict() for d in found], indent=1))
    else:
        print("\n".join(lines(found)) if found else "no difference")
    if found:
        sys.exit(int(Exit.MISMATCH))


def lines(found: list[Difference]) -> Iterator[str]:
    """Graphs as ``diff`` has it; fields with both values, below what they belong to."""
    about = ""
    for where, a, b in found:
        thing, _, field = where.rpartition(": ")
        if thing != about and thing:
            yield thing
        about = thing
        if a is not None and b is not None:
            yield f"  {field}: {a} -> {b}" if thing else f"{field}: {a} -> {b}"
        elif a is not None:
            yield f"- {a}"
        else:
            yield f"+ {b}"


# ---- graphs


class Line(NamedTuple):
    """A line of a graph: what it says without the names of nodes, and the nodes that it reads."""

    says: str
    shown: str
    node: Node | None = None
    reads: tuple[Node, ...] = ()


def graphs(a: Graph, b: Graph) -> Iterator[Difference]:
    """The lines that differ. A node whose line is the same, but about other nodes, differs too."""
    one, two = list(graph_lines(a)), list(graph_lines(b))
    same: dict[Node, Node] = {}
    matcher = SequenceMatcher(None, [x.says for x in one], [x.says for x in two], autojunk=False)
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        mine, theirs = one[i:i_end], two[j:j_end]
        same |= {x.node: y.node for x, y in zip(mine, theirs, strict=False) if x.node and y.node}
        if tag == "equal":
            pairs = [p for p in zip(mine, theirs, strict=True) if not are_same(*p, same)]
            mine, theirs = [x for x, _ in pairs], [y for _, y in pairs]
        yield from (Difference("", x.shown, None) for x in mine)
        yield from (Difference("", None, y.shown) for y in theirs)


def are_same(x: Line, y: Line, same: Mapping[Node, Node]) -> bool:
    """Whether two lines that say the same say it of the same nodes."""
    return all(
        same.get(n) is m or (n.is_leaf and m.is_leaf and n.name == m.name)
        for n, m in zip(x.reads, y.reads, strict=True)
    )


def graph_lines(graph: Graph) -> Iterator[Line]:
    from lumc.graph.lines import entry_lines
    from lumc.graph.text import print_graph

    heads = print_graph(replace(graph, entries=()), lambda f: f.sha256[:12]).splitlines()
    yield from (Line(text, text) for text in heads)
    for entry in graph.entries:
        if len(graph.entries) > 1:
            yield Line(f"entry {entry.name}", f"entry {entry.name}")
        nodes = [*entry.inputs, *entry.nodes]
        ends = [*(node for _, node in entry.outputs), *(u.value for u in entry.updates)]
        reads = [*(read_by(n) for n in nodes), *((n,) for n in ends)]
        texts = zip(entry_lines(blank(entry)), entry_lines(entry), strict=True)
        about = [*nodes, *(None for _ in ends)]
        yield from (Line(*t, n, r) for t, n, r in zip(texts, about, reads, strict=True))


def read_by(node: Node) -> tuple[Node, ...]:
    from lumc.graph.graph import Read

    return tuple(o.source for o in node.operands if isinstance(o, Read))


def blank(entry: Entry) -> Entry:
    """An entry whose nodes have no names of their own; leaves keep theirs."""
    from lumc.graph.graph import Read

    def unnamed(node: Node) -> Node:
        return node if node.is_leaf else replace(node, name="_")

    def over(node: Node) -> Node:
        new = (
            replace(o, source=unnamed(o.source)) if isinstance(o, Read) else o
            for o in node.operands
        )
        return replace(unnamed(node), operands=tuple(new))

    return replace(
        entry,
        nodes=tuple(map(over, entry.nodes)),
        outputs=tuple((name, unnamed(node)) for name, node in entry.outputs),
        updates=tuple(replace(u, value=unnamed(u.value)) for u in entry.updates),
    )


# ---- what has fields


def body(kind: str, value: Any) -> Body:
    """What is compared of an artifact."""
    if kind == "space":
        regions = [
            {"key": r.key, "count": r.count, "stop": r.stats.stop.value, "enodes": r.stats.nodes}
            | {"variants": len(r.variants), "rules": dict(r.stats.fired)}
            for r in value.regions
        ]
        return {"target": value.target.name, "regions": regions}
    found = dict(DESCRIBE[kind](value))
    if kind == "kernels":
        sources = {k.symbol: k.source for k in value.kernels}
        found["kernels"] = [{**k, "source": sources[k["symbol"]]} for k in found["kernels"]]
    if kind == "bundle":
        from lumc.bundle import manifest
        from lumc.bundle.unpack import opened

        with opened(value) as folder:
            found["files"] = manifest.read(folder)["files"]
    return found


def fields(a: Body, b: Body) -> Iterator[Difference]:
    """The fields that differ; of an item that only one side has, only that."""
    for name in dict.fromkeys([*a, *b]):
        one, two = items(a.get(name)), items(b.get(name))
        if one is None or two is None:
            if a.get(name) != b.get(name):
                yield Difference(name, short(a.get(name)), short(b.get(name)))
            continue
        for key in dict.fromkeys([*one, *two]):
            x, y = (flat(side[key]) if key in side else None for side in (one, two))
            if x is None or y is None:
                said = f"{name} {key}"
                yield Difference("", said if y is None else None, said if x is None else None)
                continue
            for field in (f for f in dict.fromkeys([*x, *y]) if x.get(f) != y.get(f)):
                where = f"{name} {key}" + f": {field}" * bool(field)
                yield Difference(where, *pair(x.get(field), y.get(field)))


def items(value: Any) -> Mapping[str, Any] | None:
    """The items of a list of bodies by their names, or of a body; None for plain values."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        return None
    names = [next((str(v[n]) for n in NAMES if n in v), str(i)) for i, v in enumerate(value)]
    twice = {n for n, count in Counter(names).items() if count > 1}
    return {
        f"{n} {v.get('key', i)}" if n in twice else n: v
        for i, (n, v) in enumerate(zip(names, value, strict=True))
    }


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The plain values in a body, by their path."""
    inner = items(value)
    if inner is None or not inner:
        return {path: value}
    out = dict[str, Any]()
    for key, v in inner.items():
        out |= flat(v, f"{path}.{key}" if path else key)
    return out


def pair(a: Any, b: Any) -> tuple[str, str]:
    """Two values, or how many lines of two long texts differ."""
    if not (isinstance(a, str) and isinstance(b, str) and "\n" in a + b):
        return short(a), short(b)
    one, two = a.splitlines(), b.splitlines()
    same = SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
    kept = sum(m.size for m in same)
    return f"{len(one) - kept} lines", f"{len(two) - kept} other lines"


def short(value: Any) -> str:
    """A value in one line."""
    said = f"{value:.4g}" if isinstance(value, float) else value
    said = said if isinstance(said, str) else json.dumps(said)
    return said if len(said) <= 72 else f"{said[:69]}..."
