"""``lumc report``: a plan as one HTML page that needs nothing else.

The page loads nothing and its policy forbids it to; the script only links the pictures to each
other. Same plan, records and space: same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from lumc import __version__
from lumc.codegen.code import Launch
from lumc.codegen.generate import generate, launches_of
from lumc.disk import artifact
from lumc.graph.graph import Entry, Read
from lumc.kernel.instance import whole_of
from lumc.report import charts, draw, evidence
from lumc.report.explain import (
    far_kernels,
    gain_summary,
    loser,
    measured,
    origin,
    program,
    provenance,
    reuse,
    searched,
    timed,
    why,
)
from lumc.report.markup import Markup, join, tag
from lumc.report.words import us
from lumc.schedule.plan import Plan

Body = Mapping[str, Any]
COLORS = 8  # kernels with a colour of their own, by share
ROWS = 14  # kernels with a row of their own in the timeline
FINE = 160  # primitives up to which the graph is drawn in full
CUT = 26  # characters of a name in a box
SECTIONS = ("Timeline", "Gains", "Kernels", "Roofline", "Graph", "Search", "Details")


def report(file: str, output: str, folder: Path) -> None:
    """Write the page of a plan."""
    found = evidence.gather(file, folder)
    artifact.write_text(output, page(evidence.describe(found), found.plan))


def page(body: Body, plan: Plan) -> str:
    """The whole page as text."""
    css, script = (files("lumc.report").joinpath(f"page.{s}").read_text() for s in ("css", "js"))
    body = {**body, "kernels": sorted(body["kernels"], key=lambda k: -k["total_us"])}
    classes = {k["key"]: f"c{i}" if i < COLORS else "cx" for i, k in enumerate(body["kernels"])}
    sources = {k.key: k.source for k in generate(plan).kernels}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    title = f"{body['name']} · lumc"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(css)),
    )
    parts = [
        section("Timeline", *timelines(body, plan, classes)),
        section("Gains", *gains(body, classes)),
        section("Kernels", kernel_table(body, classes)),
        section("Roofline", *roofline(body, classes)),
        section("Graph", *graphs(body, plan, classes)),
        section("Search", *searches(body, classes)),
        section("Details", *(details(k, body, classes, sources) for k in body["kernels"])),
    ]
    skip = tag("a", "Skip to the kernels", href="#kernels", class_="skip")
    foot = tag("footer", f"lumc {__version__}. ", *carry(body))
    content = tag("body", skip, header(body), tag("main", *parts), foot)
    whole = tag("html", head, content, tag("script", Markup(script)), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def section(name: str, *kids: object) -> Markup:
    anchor = name.lower()
    return tag(
        "section",
        tag("h2", name, id=f"{anchor}-h"),
        *kids,
        id=anchor,
        aria_labelledby=f"{anchor}-h",
    )


def wide(*kids: object, label: str, css: str = "") -> Markup:
    """What may be wider than the page scrolls in a box of its own, by keyboard too."""
    return tag(
        "div", *kids, class_=f"wide {css}".strip(), tabindex="0", role="region", aria_label=label
    )


# ---- head


def header(body: Body) -> Markup:
    threads = f"{body['threads']} thread{'s' if body['threads'] > 1 else ''}"
    where = [body["target"], body["arch"], threads]
    if body["setting"]:
        where.append(f"device {body['setting']['device']}")
    tiles = [tile(us(body["total_us"]), measured(body))]
    if body["measured"]:
        tiles.append(tile(f"{body['bound_us'] / body['total_us']:.0%}", "of the roofline"))
    tiles += [tile(body["launches"], "launches"), tile(body["count"], "kernels")]
    trials = sum(k["trials"] for k in body["kernels"])
    if trials:
        tiles.append(tile(trials, "trials"))
    links = [tag("a", name, href=f"#{name.lower()}") for name in SECTIONS]
    return tag(
        "header",
        tag("h1", body["name"]),
        tag("p", " · ".join(where), class_="where"),
        tag("div", *tiles, class_="tiles"),
        *(tag("p", m, class_="note") for m in body["missing"]),
        tag("nav", *links, aria_label="Sections"),
    )


def tile(figure: object, label: str) -> Markup:
    return tag("div", tag("b", figure), tag("span", label), class_="tile")


# ---- timeline


def timelines(body: Body, plan: Plan, classes: Mapping[str, str]) -> Iterator[Markup]:
    yield tag(
        "p",
        f"Every launch in order, as long as its kernel takes alone ({measured(body)}); "
        "'lumc run --trace' shows a real run, thread by thread.",
    )
    for entry in plan.graph.entries:
        if len(plan.graph.entries) > 1:
            yield tag("h3", f"entry {entry.heading}")
        yield timeline(body, launches_of(plan, entry), classes)


def timeline(body: Body, launches: Sequence[Launch], classes: Mapping[str, str]) -> Markup:
    spans, now = dict[str, list[tuple[float, float]]](), 0.0
    price = {k["key"]: k["time_us"] or k["estimated_us"] for k in body["kernels"]}
    for launch in launches:
        end = now + price[launch.kernel]
        spans.setdefault(launch.kernel, []).append((now, end))
        now = end
    used = [k for k in body["kernels"] if k["key"] in spans]
    if not now:
        return tag("p", "Nothing is launched.", class_="note")
    shown = used if len(used) <= ROWS else used[: ROWS - 1]
    rows = [
        {
            "name": k["name"],
            "href": f"#k-{k['key']}",
            "key": k["key"],
            "css": classes[k["key"]],
            "spans": spans[k["key"]],
            "said": f"{_sum(spans[k['key']]) / now:.1%}",
        }
        for k in shown
    ]
    rest = [s for k in used[len(shown) :] for s in spans[k["key"]]]
    if rest:
        name = f"{len(used) - len(shown)} more kernels"
        row = {"name": name, "href": "", "key": None, "css": "cx", "spans": rest}
        rows.append({**row, "said": f"{_sum(rest) / now:.1%}"})
    return charts.timeline(rows, now)


def _sum(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


# ---- kernels


def gains(body: Body, classes: Mapping[str, str]) -> Iterator[Markup]:
    """The kernels that are far from their bounds, those first that could gain most."""
    far = far_kernels(body)
    yield tag("p", f"To gain: {gain_summary(body, far)}.")
    if not far:
        return
    heads = ("kernel", "to gain", "of bound", "launches", "bound by", "what the plan says")
    rows = []
    for k in far:
        cells = (
            tag("td", us(k["gain_us"]), class_="n"),
            tag("td", f"{k['over']:.2f} ×", class_="n"),
            tag("td", f"{k['launches']} ×", class_="n"),
            tag("td", k["bound_by"]),
            tag("td", join(tag("div", said) for said in why(k))),
        )
        rows.append(tag("tr", kernel_name(k), *cells, class_=classes[k["key"]], data_k=k["key"]))
    yield wide(table(heads, rows), label="Table of gains")


def kernel_table(body: Body, classes: Mapping[str, str]) -> Markup:
    heads = ["kernel", "launches", "each", "total", "share", "of roofline", "limited by"]
    heads += ["origin", "stopped"]
    rows = []
    for k in body["kernels"]:
        share = tag("span", tag("i", style=f"width:{k['share']:.2%}"), class_="meter")
        cells = (
            tag("td", f"{k['launches']} ×", class_="n"),
            tag("td", us(k["time_us"] or k["estimated_us"]), class_="n"),
            tag("td", us(k["total_us"]), class_="n"),
            tag("td", share, tag("span", f"{k['share']:.1%}"), class_="n share"),
            tag("td", f"{k['fraction']:.0%}" if k["fraction"] else "-", class_="n"),
            tag("td", k["limited_by"]),
            tag("td", k["origin"]["kind"]),
            tag("td", k["stop"] or "-"),
        )
        rows.append(tag("tr", kernel_name(k), *cells, class_=classes[k["key"]], data_k=k["key"]))
    return wide(table(heads, rows), label="Table of kernels")


def kernel_name(k: Body) -> Markup:
    link = tag("a", k["name"], href=f"#k-{k['key']}")
    return tag("th", tag("i", class_="swatch"), link, scope="row")


def table(heads: Sequence[str], rows: Sequence[Markup]) -> Markup:
    top = tag("tr", *(tag("th", h, scope="col") for h in heads))
    return tag("table", tag("thead", top), tag("tbody", *rows))


def roofline(body: Body, classes: Mapping[str, str]) -> Iterator[Markup]:
    yield tag(
        "p",
        "A kernel is a disc, as large as its share of the time. The stem ends at its own roofline: "
        "the time that its arithmetic or its traffic takes at least.",
    )
    yield wide(charts.roofline(body, classes), label="Roofline", css="chart")


# ---- graph


def graphs(body: Body, plan: Plan, classes: Mapping[str, str]) -> Iterator[Markup]:
    """The launches of every entry, and its primitives when they are few."""
    names = {k["key"]: k["name"] for k in body["kernels"]}
    for entry in plan.graph.entries:
        if len(plan.graph.entries) > 1:
            yield tag("h3", f"entry {entry.heading}")
        launches = launches_of(plan, entry)
        drawing = launch_diagram(plan, entry, launches, names, classes)
        said = f"The {len(launches)} launches of entry {entry.heading}"
        yield wide(draw.to_page(drawing, said), label=said, css="graph")
        if len(entry.nodes) <= FINE:
            said = f"The {len(entry.nodes)} primitives of entry {entry.heading}"
            picture = draw.to_page(node_diagram(plan, entry, classes), said)
            yield tag(
                "details",
                tag("summary", f"{said}, coloured by the kernel that their values end up in"),
                wide(picture, label=said, css="graph"),
                open="" if len(launches) <= 4 else None,
            )


def launch_diagram(
    plan: Plan,
    entry: Entry,
    launches: Sequence[Launch],
    names: Mapping[str, str],
    classes: Mapping[str, str],
) -> draw.Diagram:
    out, written = draw.Diagram(), dict[str, str]()
    read = {a for launch in launches for a in launch.args}
    for leaf in (*entry.inputs, *plan.graph.states):
        if leaf.name in read:
            written[leaf.name] = f"input {leaf.name}"
            out.boxes.append(draw.Box(f"input {leaf.name}", (short(leaf.name),), "leaf"))
    for i, launch in enumerate(launches):
        name, key = f"launch {i}", launch.kernel
        *sources, result = map(whole_of, launch.args)
        title = f"{names[key]}: {', '.join(sources)} -> {result}"
        lines = short(names[key]), short(result)
        out.boxes.append(draw.Box(name, lines, "kernel", classes[key], key, title))
        out.edges += [(written[a], name) for a in dict.fromkeys(sources) if a in written]
        written[result] = name
    for public, value in plan.outputs[entry.name]:
        if value in written:
            out.boxes.append(draw.Box(f"output {public}", (short(public),), "leaf"))
            out.edges.append((written[value], f"output {public}"))
    return out


def node_diagram(plan: Plan, entry: Entry, classes: Mapping[str, str]) -> draw.Diagram:
    """The primitives; a node has the colour of the last kernel of its region."""
    out = draw.entry_diagram(entry)
    owner = owners(plan, entry)
    for box in out.boxes:
        box.lines = tuple(short(line, 2 * CUT) for line in box.lines)
        key = owner.get(box.name, "")
        if key:
            box.css, box.key, box.kind = classes[key], key, "kernel"
    return out


def owners(plan: Plan, entry: Entry) -> dict[str, str]:
    """Node -> kernel key: from the result of every region back to its inputs."""
    nodes = {n.name: n for n in entry.nodes}
    updated = {u.state.name: u.value.name for u in entry.writes}
    out = dict[str, str]()
    for i in plan.instances:
        steps = plan.regions[i.region].steps
        mine = i.outputs if i.entry == entry.name and steps else ()
        todo = [updated.get(name, name) for name in map(whole_of, mine)]
        while todo:
            name = todo.pop()
            if name in nodes and name not in out:
                out[name] = steps[-1].kernel
                operands = nodes[name].operands
                read = [o.source.name for o in operands if isinstance(o, Read)]
                todo += [r for r in read if r not in map(whole_of, i.inputs)]
    return out


def short(name: str, limit: int = CUT) -> str:
    return name if len(name) <= limit else f"{name[: limit - 9]}…{name[-8:]}"


# ---- search and details


def searches(body: Body, classes: Mapping[str, str]) -> Iterator[Markup]:
    shown = [k for k in body["kernels"] if k["curve"]]
    if not shown:
        yield tag("p", "There are no trials of these kernels on record.", class_="note")
        return
    yield tag("p", "The best time so far against the number of trials, down to the roofline.")
    figures = [charts.progress(k, classes[k["key"]]) for k in shown]
    yield tag("div", *figures, class_="figures")


def details(k: Body, body: Body, classes: Mapping[str, str], sources: Mapping[str, str]) -> Markup:
    rows = [
        ("time", timed(k)),
        ("origin", origin(k)),
        ("launches", f"{k['launches']}: {', '.join(k['values'])}"),
        ("computes", tag("pre", "\n".join(k["term"]))),
        ("runs", join(tag("div", w) for w in k["schedule_words"])),
    ]
    if k["time_us"] is not None:
        rows.append(("search", searched(k)))
    if k["losers"]:
        rows.append(("lost", join(tag("div", loser(one)) for one in k["losers"])))
    for region in body["regions"]:
        chosen, *others = region["programs"]
        if k["key"] in [s["key"] for s in chosen["kernels"]]:
            rows.append(("found by", join(tag("div", p) for p in provenance(region))))
            if others:
                said = join(tag("div", program(p, chosen)) for p in others)
                rows.append(("instead of", said))
    schedule = artifact.compact(k["schedule"])
    rows.append(("schedule", tag("code", schedule, class_="json")))
    entries = [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows]
    summary = tag(
        "summary",
        tag("i", class_="swatch"),
        tag("span", k["name"], class_="name"),
        tag("span", f"{k['share']:.1%}", class_="n"),
    )
    source = sources.get(k["key"], "")
    code = wide(tag("pre", tag("code", source)), label=f"Source of {k['name']}", css="source")
    lines = f"C source, {len(source.splitlines())} lines"
    more = tag("details", tag("summary", lines), code) if source else ""
    return tag(
        "details",
        summary,
        tag("dl", *entries),
        more,
        class_=f"kernel {classes[k['key']]}",
        id=f"k-{k['key']}",
        data_k=k["key"],
    )


def carry(body: Body) -> Iterator[Markup]:
    """How to take the plan to an equal machine."""
    if body["setting"]:
        name = body["name"]
        first, *lines = reuse(body, f"{name}.lp", f"{name}.ls")
        yield tag("span", f"The same plan {first}")
        yield tag("pre", "\n".join(line.strip() for line in lines))
