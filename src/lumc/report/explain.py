"""``lumc explain``: why a plan is as it is, kernel by kernel, and how to take it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lumc.disk import artifact
from lumc.disk.project import project_folder
from lumc.errors import Exit, LumcError
from lumc.profile.records import NAME
from lumc.report import evidence, gains
from lumc.report.gathered import Evidence
from lumc.report.words import us

Body = Mapping[str, Any]
STOPS = {
    "bound": "it came near enough to its roofline",
    "converged": "many candidates brought no progress",
    "exhausted": "every schedule was tried",
    "trials": "it had its number of trials",
    "time": "the budget was spent",
    "interrupted": "it was interrupted, or the plan was fast enough (--target-time)",
    "not measured": "the budget was spent before its first trial",
}
SOURCES = {
    "neighbour": "; it was best for another kernel of its kind before",
    "elsewhere": "; it was best on another machine before",
}
SHOWN = 3  # values that a kernel writes
LISTED = 10  # kernels that are far from their bounds
SEEN = 0.05  # share of the longest time by resource that is worth a word
SMALL = 0.01  # share of a kernel that three lines are enough for


def explain(file: str, kernel: str | None, best: str | None, folder: Path, as_json: bool) -> None:
    """Print what is known about a plan, or write its best configuration as records."""
    found = evidence.gather(file, folder)
    if best:
        rows = evidence.best_records(found, folder / NAME)
        lines = (json.dumps(r, separators=(",", ":")) + "\n" for r in rows)
        artifact.write_text(best, "".join(lines))
        return
    body = evidence.describe(found, one_key(found, kernel) if kernel else "")
    if as_json:
        print(json.dumps(body, indent=1))
    else:
        where = "" if folder == project_folder() else f" --cache {folder}"
        print("\n".join(lines_of(body, file + where, found.space_file)))


def one_key(found: Evidence, name: str) -> str:
    """The key of the kernel with this name or key, else of the first that begins so."""
    labels = evidence.labels(found.plan)
    exact = [key for key, label in labels.items() if name in (key, label)]
    match = exact or [k for k, label in labels.items() if k.startswith(name)]
    match = match or [k for k, label in labels.items() if label.startswith(name)]
    if not match:
        fix = f"kernels: {', '.join(labels.values())}"
        raise LumcError("E0209", f"no kernel '{name}'", fix=fix, exit=Exit.USAGE)
    return match[0]


def lines_of(body: Body, file: str, space: str) -> Iterator[str]:
    yield from summary(body)
    yield ""
    yield from gain_lines(body)
    told = dict[str, str]()  # region -> the kernel where it was
    for k in body["kernels"]:
        yield ""
        lines = kernel_lines(k, body, told)
        yield from islice(lines, 3) if k["share"] < SMALL and len(body["kernels"]) > 1 else lines
    if body["setting"]:
        yield ""
        yield from reuse(body, file, space)


def summary(body: Body) -> Iterator[str]:
    threads = f", {body['threads']} threads" if body["threads"] > 1 else ""
    head = f"{body['name']} for {body['target']} ({body['arch']}{threads})"
    kind = measured(body)
    least = f"{body['bound_us'] / body['total_us']:.0%} of the roofline" if body["measured"] else ""
    figures = f"{us(body['total_us'])} {kind}" + (f", {least}" if least else "")
    many = f"{times(body['launches'])} of {body['count']} kernel{'s' if body['count'] != 1 else ''}"
    yield f"{head}: {figures}, {many}"
    several = f" for one thread, times {body['threads']}" if body["threads"] > 1 else ""
    known = f"measured{several}" if body["machine"]["measured"] else "nominal"
    yield (
        f"limits: {body['machine']['gflops']:.0f} GFLOP/s, "
        f"{body['machine']['bandwidth']:.0f} GB/s from memory ({known})"
    )
    yield from (f"note: {m}" for m in body["missing"])


def gain_lines(body: Body) -> Iterator[str]:
    """The kernels that are far from their bounds, those first that could gain most."""
    far = far_kernels(body)
    yield f"to gain: {gain_summary(body, far)}"
    for k in far[:LISTED]:
        figures = f"  {us(k['gain_us']):<9}  {k['over']:5.2f}x  {k['bound_by']:<16}  "
        yield figures + k["name"]
        yield from (" " * len(figures) + f"  {said}" for said in why(k))
    if rest := far[LISTED:]:
        yield f"  {us(sum(k['gain_us'] for k in rest)):<9}  in {len(rest)} more (--json has all)"


def gain_summary(body: Body, far: Sequence[Body]) -> str:
    many = f"{len(far)} kernel{'s' if len(far) != 1 else ''}" if far else "no kernel"
    takes = f"{many} {'takes' if len(far) < 2 else 'take'} over {gains.FAR}x the bound"
    share = body["gain_us"] / body["total_us"] if body["total_us"] else 0.0
    return f"{us(body['gain_us'])} of {us(body['total_us'])} ({share:.0%}); {takes}"


def far_kernels(body: Body) -> list[Body]:
    return sorted(
        (k for k in body["kernels"] if k["over"] >= gains.FAR), key=lambda k: -k["gain_us"]
    )


def why(k: Body) -> list[str]:
    return [c["said"] for c in k["causes"]] or ["nothing in the plan says why"]


def kernel_lines(k: Body, body: Body, told: dict[str, str]) -> Iterator[str]:
    known = k["lengths"]
    axes = " ".join(
        f"{a}:{n}" + (f" ({known[a]})" if a in known else "") for a, n in k["axes"].items()
    )
    yield f"{k['name']}  {k['key']}" + (f"  over {axes}" if axes else "")
    yield f"  time       {timed(k)}"
    yield f"  share      {k['share']:.1%} of the whole, {times(k['launches'])}: {values(k)}"
    if k["limits_us"]:
        yield f"  limits     {limits(k['limits_us'])}"
    if gains.again(k["repeats"]):
        yield f"  repeats    its part of the graph: {gains.repeated(k['repeats'])}"
    yield from labelled("computes", k["term"])
    yield from labelled("runs", k["schedule_words"])
    yield f"  origin     {origin(k)}"
    if k["time_us"] is not None:
        yield f"  search     {searched(k)}"
    yield from labelled("lost", [loser(one) for one in k["losers"]])
    for region in body["regions"]:
        chosen = region["programs"][0]
        if k["key"] not in [s["key"] for s in chosen["kernels"]]:
            continue
        if region["key"] in told:
            yield f"  found by   the same program as {told[region['key']]}"
            continue
        told[region["key"]] = k["name"]
        yield from labelled("found by", list(provenance(region)))
        yield from labelled("instead of", [program(p, chosen) for p in region["programs"][1:]])


def labelled(label: str, lines: list[str]) -> Iterator[str]:
    for i, line in enumerate(lines):
        yield f"  {'' if i else label:<10} {line}"


def timed(k: Body) -> str:
    least = f"at least {us(k['bound_us'])} by {k['limited_by']}"
    if k["time_us"] is None:
        return f"{us(k['estimated_us'])} by estimate, {least}"
    rate = k["flops"] / k["time_us"] / 1e3
    return f"{us(k['time_us'])}, {k['fraction']:.0%} of its roofline ({least}), {rate:.1f} GFLOP/s"


def limits(times: Mapping[str, float]) -> str:
    """The resources of a GPU by the least time that they take, the one that limits first."""
    longest = max(times.values())
    return ", ".join(f"{name} {us(n)}" for name, n in times.items() if n >= SEEN * longest)


def measured(body: Body) -> str:
    """What the time of a plan is."""
    if body["measured"]:
        return "measured"
    few = body["estimates"] < body["count"]
    return f"partly estimated ({body['estimates']} of {body['count']} kernels)" * few or "estimated"


def origin(k: Body) -> str:
    """Where the schedule of a kernel comes from."""
    kind, trials, spent_s = (k["origin"][name] for name in ("kind", "trials", "spent_s"))
    many = f"{trials} trial{'s' if trials != 1 else ''}"
    many += f" in {spent_s:.3g} s" if spent_s else ""
    if kind == "estimated":
        late = k["stop"] == "not measured"
        return "estimated" + (": the search ended before its first trial" if late else "")
    if kind == "records":
        of = f": the fastest of {many}" if trials else ""
        return f"from records{of}; none of its trials is on record here"
    return f"measured: the fastest of {many}{SOURCES.get(k['origin']['source'], '')}"


def values(k: Body) -> str:
    more = len(k["values"]) - SHOWN
    return ", ".join(k["values"][:SHOWN]) + (f" and {more} more" if more > 0 else "")


def searched(k: Body) -> str:
    bad = ", ".join(f"{n} {reason}" for reason, n in k["failed"].items())
    tried = f"{k['trials']} schedules tried{f' ({bad})' if bad else ''}; " if k["trials"] else ""
    return f"{tried}stopped: {k['stop']}, {STOPS.get(k['stop'], 'see docs/profile.md')}"


def loser(one: Body) -> str:
    slower = f" ({one['slower']:+.1%})" if one["slower"] is not None else ""
    return f"{us(one['us'])}{slower}: {', '.join(one['difference'])}"


def provenance(region: Body) -> Iterator[str]:
    """The chain from the graph to the program: laws, variant, cuts."""
    chosen = region["programs"][0]
    laws = chosen["laws"]
    if laws is None:
        said = f"laws that fired: {', '.join([*region['fired'], *chosen['split']]) or 'none'}"
    else:
        said = (
            f"by the laws {', '.join(laws)}"
            if laws
            else "the expression of the graph itself, no law needed"
        )
    yield f"{which(chosen, region['variants'])}; {said}"
    joint = f"regions of {region['members']} siblings" if region["members"] > 1 else "regions"
    many = f"{region['count']} equal {joint}, " if region["count"] > 1 else ""
    many = many or (f"{region['members']} siblings, " if region["members"] > 1 else "")
    yield f"{many}{region['enodes']} e-nodes, saturation ended: {region['stop']}"


def which(p: Body, of: int = 0) -> str:
    """A program by its number among the variants and the values that it stores in between."""
    variant = "another variant" if p["variant"] is None else f"variant {p['variant']}"
    variant += f" of {of}" if of else ""
    return f"{variant}, {' '.join(p['cuts'])} in memory" if p["cuts"] else f"{variant}, fully fused"


def program(p: Body, chosen: Body) -> str:
    names = f"{' + '.join(s['name'] for s in p['kernels'])} ({which(p)})"
    if p["us"] is None:
        return f"not measured, at least {us(p['bound_us'])}: {names}"
    more = f" ({p['us'] / chosen['us'] - 1:+.1%})" if chosen["us"] else ""
    return f"{us(p['us'])}{more}: {names}"


def times(n: int) -> str:
    return f"{n} launch{'es' if n != 1 else ''}"


def reuse(body: Body, file: str, space: str) -> Iterator[str]:
    """The lines that make this plan again on an equal machine."""
    s, records = body["setting"], f"{body['name']}.best.jsonl"
    threads = f" --threads {s['threads']}" if s["threads"] > 1 else ""
    yield f"on an equal machine (device {s['device']}, tools {s['tools']}):"
    yield f"  lumc explain {file} --best {records}"
    yield f"  lumc cache merge {records} --cache kernels_cache"
    wanted = f"profile {space or 'MODEL.ls'} -o {body['name']}.lp"
    yield f"  lumc {wanted} --cache kernels_cache{threads} --frozen"
