"""Draw a directed acyclic diagram as Graphviz text or as a self-contained SVG."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lumc.graph.graph import Entry, Node, Read
from lumc.report.markup import Markup, tag

BOX_HEIGHT, LINE, GAP_X, GAP_Y, CHAR = 20, 14, 18, 42, 6.6
COLORS = {"leaf": "#e8eef7", "op": "#ffffff", "reduce": "#fdebd3", "kernel": "#e3f1e1"}


@dataclass
class Box:
    """One node of a diagram: lines of text and a kind that gives the colour.

    On a page ``css`` is its class, ``key`` the kernel that it leads to, ``title`` says more.
    """

    name: str
    lines: tuple[str, ...]
    kind: str = "op"
    css: str = ""
    key: str = ""
    title: str = ""

    @property
    def width(self) -> float:
        return 16 + CHAR * max((len(line) for line in self.lines), default=1)

    @property
    def height(self) -> float:
        return BOX_HEIGHT + LINE * (len(self.lines) - 1)


@dataclass
class Diagram:
    """Boxes in topological order, and edges between their names."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)


def entry_diagram(entry: Entry) -> Diagram:
    """The nodes of an entry: what it reads, primitives and outputs."""
    out, own = Diagram(), {n.name for n in entry.nodes}
    read = [o.source for n in entry.nodes for o in n.operands if isinstance(o, Read)]
    ends = [node for _, node in entry.outputs]
    leaves = {n.name: n for n in (*entry.inputs, *read, *ends) if n.name not in own}
    for leaf in leaves.values():
        out.boxes.append(Box(leaf.name, (leaf.name, _type(leaf)), "leaf"))
    for node in entry.nodes:
        said = f"{node.name} = {getattr(node.op, 'value', node.op)}"
        out.boxes.append(Box(node.name, (said, _type(node)), "reduce" if node.reduced else "op"))
        sources = [o.source.name for o in node.operands if isinstance(o, Read)]
        out.edges += [(s, node.name) for s in dict.fromkeys(sources)]
    for name, node in entry.outputs:
        out.boxes.append(Box(f"output {name}", (f"output {name}",), "leaf"))
        out.edges.append((node.name, f"output {name}"))
    return out


def _type(node: Node) -> str:
    return f"{node.dtype.value}[{', '.join(str(e) for e in node.shape)}]"


def to_dot(diagram: Diagram) -> str:
    """Graphviz text, one node or edge per line."""
    rows = ["digraph lumc {", '  node [shape=box, fontname="Helvetica", fontsize=10];']
    for box in diagram.boxes:
        label = json.dumps("\n".join(box.lines))
        rows.append(
            f"  {json.dumps(box.name)} [label={label}, style=filled, fillcolor="
            f'"{COLORS[box.kind]}"];'
        )
    rows += [f"  {json.dumps(a)} -> {json.dumps(b)};" for a, b in diagram.edges]
    return "\n".join([*rows, "}"]) + "\n"


def to_svg(diagram: Diagram) -> str:
    """A layered drawing: every box one row below the lowest box that it reads."""
    place, ways, width, height = _layout(diagram)
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="11">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    rows += [f'<path d="{d}" fill="none" stroke="#8a94a6"/>' for d in _curves(ways, place)]
    for x, y, box in (place[b.name] for b in diagram.boxes):
        left = x - box.width / 2
        rows.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
            f'rx="4" fill="{COLORS[box.kind]}" stroke="#5b6678"/>'
        )
        for i, line in enumerate(box.lines):
            rows.append(
                f'<text x="{x:.1f}" y="{y + 14 + LINE * i:.1f}" text-anchor="middle">'
                f"{html.escape(line)}</text>"
            )
    return "\n".join([*rows, "</svg>"]) + "\n"


def to_page(diagram: Diagram, said: str) -> Markup:
    """The same drawing for a page: its style sheet gives the colours, boxes lead to kernels."""
    place, ways, width, height = _layout(diagram)
    edges = [tag("path", d=d, class_="edge") for d in _curves(ways, place)]
    boxes = []
    for x, y, box in (place[b.name] for b in diagram.boxes):
        size = {"width": box.width, "height": box.height, "rx": 5}
        texts = [
            tag("text", line, x=x, y=y + 14 + LINE * i, text_anchor="middle")
            for i, line in enumerate(box.lines)
        ]
        inner = [tag("title", box.title or box.name), tag("rect", x=x - box.width / 2, y=y, **size)]
        css = f"box {box.kind} {box.css}".strip()
        if box.key:
            link = {"href": f"#k-{box.key}", "data_k": box.key, "tabindex": "-1"}
            boxes.append(tag("a", *inner, *texts, class_=css, **link))
        else:
            boxes.append(tag("g", *inner, *texts, class_=css))
    view = f"0 0 {width:.0f} {height:.0f}"
    sizes = {"viewBox": view, "width": round(width), "height": round(height)}
    return tag("svg", *edges, *boxes, **sizes, role="img", aria_label=said)


Place = dict[str, tuple[float, float, Box]]  # centre x, top y


def _curves(edges: Iterable[tuple[str, str]], place: Place) -> Iterator[str]:
    """The path of every edge, from the bottom of a box to the top of another."""
    for a, b in edges:
        (x0, y0, box), (x1, y1, below) = place[a], place[b]
        start, mid = y0 + box.height, (y0 + box.height + y1) / 2
        path = f"M{x0:.1f},{start:.1f} C{x0:.1f},{mid:.1f} {x1:.1f},{mid:.1f} {x1:.1f},{y1:.1f}"
        yield path + (f" V{y1 + below.height:.1f}" if below.kind == "way" else "")


def _layout(diagram: Diagram) -> tuple[Place, list[tuple[str, str]], float, float]:
    """The place of every box, the edges between neighbouring rows, width and height.

    Rows are ordered by the mean of what they read. An edge that skips rows goes through a narrow
    box in each of them, which all such edges from one box share.
    """
    boxes, rank = {b.name: b for b in diagram.boxes}, _ranks(diagram)
    edges = dict[tuple[str, str], None]()
    for a, b in diagram.edges:
        at = a
        for level in range(rank[a] + 1, rank[b]):
            way = f"{a} at {level}"
            boxes.setdefault(way, Box(way, ("", ""), "way"))
            rank[way] = level
            edges[at, way] = None
            at = way
        edges[at, b] = None
    above: dict[str, list[str]] = {name: [] for name in boxes}
    for a, b in edges:
        above[b].append(a)
    rows: dict[int, list[str]] = {}
    for name in boxes:
        rows.setdefault(rank[name], []).append(name)
    place: Place = {}
    y = 20.0
    for level in sorted(rows):
        names = rows[level]
        centre = {n: _mean([place[a][0] for a in above[n] if a in place]) for n in names}
        names.sort(key=lambda n: centre[n])
        x = 20.0
        for name in names:
            box = boxes[name]
            place[name] = (x + box.width / 2, y, box)
            x += box.width + GAP_X
        y += max(boxes[n].height for n in names) + GAP_Y
    width = max((x + b.width / 2 for x, _, b in place.values()), default=100) + 20
    for level in sorted(rows):  # centre every row
        names = rows[level]
        right = max(place[n][0] + boxes[n].width / 2 for n in names)
        shift = (width - 20 - right) / 2
        place |= {n: (place[n][0] + shift, place[n][1], boxes[n]) for n in names}
    return place, list(edges), width, y


def _ranks(diagram: Diagram) -> dict[str, int]:
    """The row of every box, from 0: below all that it reads, a leaf just above its first reader."""
    above: dict[str, list[str]] = {b.name: [] for b in diagram.boxes}
    below: dict[str, list[str]] = {b.name: [] for b in diagram.boxes}
    for a, b in diagram.edges:
        above[b].append(a)
        below[a].append(b)
    rank: dict[str, int] = {}
    for name in above:
        rank[name] = 1 + max((rank[a] for a in above[name] if a in rank), default=-1)
    for name in reversed(above):
        if not above[name] and below[name]:
            rank[name] = min(rank[b] for b in below[name]) - 1
    least = min(rank.values(), default=0)
    return {name: level - least for name, level in rank.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
