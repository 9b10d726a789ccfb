"""``lumc compile --dry-run``: what would be done, and nothing written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumc.command.passes import CompileOptions, checked, parse_targets, reduced
from lumc.command.plan import ProfileOptions, opened_ledger, unmeasured
from lumc.command.sources import graph_from_anything
from lumc.command.spaces import make_space
from lumc.disk.scratch import scratch
from lumc.frontend.precision import Precision
from lumc.report.log import Log

if TYPE_CHECKING:
    from lumc.search.space import Space

Body = dict[str, Any]


def tell(source: str, output: str, how: CompileOptions, wanted: Precision, as_json: bool) -> None:
    """Print it, of every target."""
    checked(output, how)
    log, rows = Log(how.verbose), list[Body]()
    with scratch() as folder:
        with log.step("read"):
            graph = graph_from_anything(source, folder / "model.lg", how.dims, how.allowed)
            graph = reduced(graph, wanted)
        for name in parse_targets(how.target):
            with log.step("search"):
                rows.append(
                    row(make_space(graph, name, how.max_nodes, how.tuned, how.again), how.profile)
                )
    nbytes = sum(w.size * w.dtype.nbytes for w in graph.weights)
    exists = Path(output).exists()
    body = {"output": output, "replaces": exists, "weight_bytes": nbytes, "targets": rows}
    if as_json:
        print(json.dumps(body))
        return
    print(f"{output}: would be {'replaced' if exists else 'written'}, weights {nbytes} bytes")
    print("\n".join(map(said, rows)))


def row(space: Space, options: ProfileOptions) -> Body:
    """What would be done for a target: kernels, those of which there are records, what to spend."""
    from lumc.profile.choose import estimate

    body: Body = {
        "target": space.target.name,
        "regions": len(space.instances),
        "unique": len(space.regions),
    }
    why = "--estimate" if options.estimate else unmeasured(space.target, options)
    if why:
        space = replace(space, target=replace(space.target, threads=options.threads))
        return body | {"kernels": len(estimate(space).kernels), "estimated": why}
    ledger, _ = opened_ledger(space, options, lambda _: None)
    needed = ledger.missing(lambda _: False)
    known = ledger.choice if options.frozen else ledger.is_settled
    settled = len(needed) - len(ledger.missing(known))
    timed = len(needed) - len(ledger.missing(ledger.first))
    ledger.records.close()
    found = {"records": str(options.cache), "settled": settled, "timed": timed}
    found |= {"frozen": options.frozen}
    return body | {"kernels": len(needed), **found, "budget": options.budget}


def said(body: Body) -> str:
    head = f"{body['target']}: {body['regions']} regions, {body['unique']} unique, "
    head += f"{body['kernels']} kernels: "
    if "estimated" in body:
        return head + f"chosen by estimate ({body['estimated']})"
    rest = body["kernels"] - body["settled"]
    known = f"{body['settled']} searched before (records of {body['records']}), "
    if rest and body["frozen"]:
        return head + known + f"{rest} would be missed: E0413 (--frozen)"
    more = f"{rest} would be measured in {body['budget']}, {body['timed']} have times"
    return head + known + (more if rest else "nothing would be measured")
