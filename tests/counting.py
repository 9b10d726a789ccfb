"""Which regions of a graph do more than twice what it asks for; also as a script, over files.

python tests/counting.py MODEL.lg ..
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from lumc.artifacts import files
from lumc.codegen.count import Count, excesses, whole
from lumc.graph.graph import Graph
from lumc.kernel.machines import CPUS
from lumc.kernel.target import Target
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import search

TWICE = 2.0
LAUNCH = Count(50_000, 50_000)  # less than one more launch: it may be better to compute again


def repeats(plan: Plan) -> Iterator[str]:
    """One line for every instance that does too much, and for every entry."""
    for x in excesses(plan):
        if x.done.over(x.needed * TWICE + LAUNCH) > 1:
            yield f"{', '.join(x.instance.outputs)}: {said(x.done, x.needed)}"
    for entry, (done, needed) in whole(plan).items():
        if done.over(needed * TWICE + LAUNCH) > 1:
            yield f"all of {entry}: {said(done, needed)}"


def said(done: Count, needed: Count) -> str:
    return (
        f"{done.flops:.3g} operations for {needed.flops:.3g}, "
        f"{done.loads:.3g} loads for {needed.loads:.3g}"
    )


def plan_of(graph: Graph, target: Target = CPUS["x86-64-v4"]) -> Plan:
    return estimate(search(graph, target))


if __name__ == "__main__":
    found = [(f, line) for f in sys.argv[1:] for line in repeats(plan_of(files.read_graph(f, {})))]
    print("\n".join(f"{file}: {line}" for file, line in found) or "nothing is done more than twice")
    sys.exit(bool(found))
