"""The collectives among the launches of a foreign ``.lk``."""

from __future__ import annotations

from collections.abc import Iterator

from lumc.codegen.code import EntryPlan, Launch
from lumc.codegen.exchanges import operands
from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Entry

WRITTEN = ("arena", "output")


def exchange_problems(graph: Entry, entry: EntryPlan, launch: Launch) -> Iterator[str]:
    """What is wrong: it is no collective of the graph, its values do not fit, or it would write
    where it may not, or what it still reads."""
    values = {v.name: v for v in entry.values}
    try:
        source, result = (values[name] for name in launch.args)
        nodes = operands(graph, launch)
    except (LookupError, ValueError):
        yield f"entry '{entry.name}': no collective for {launch}"
        return
    for value, node in zip((source, result), nodes, strict=True):
        if (value.dtype, value.shape) != (node.dtype, node.sizes):
            yield f"{value} does not fit collective '{result.name}'"
    op, same = nodes[1].op, (source.place, source.offset) == (result.place, result.offset)
    alone = isinstance(op, Collective) and op.kind is not Kind.ALL_REDUCE
    start, other = source.offset, result.offset
    apart = source.place != result.place or not (
        start < other + result.nbytes and other < start + source.nbytes
    )
    if result.place not in WRITTEN or source.place == "packed":
        yield f"collective '{result.name}' is of {source.place} and makes {result.place}"
    elif source.place == "arena" and not apart and (alone or not same):
        yield f"collective '{result.name}' writes what it reads"
