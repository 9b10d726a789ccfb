"""Saturation in processes that can be killed: one iteration of egglog cannot be interrupted."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.graph.expr import Expr
from lumc.kernel.codec import decode, encode, pick
from lumc.process import HANG, Lost, Process, answers
from lumc.search.saturate import Equations, Limits, Stats, StopReason, saturate
from lumc.search.translate import Body
from lumc.search.variants import extract, variants

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# seconds beyond the limit: start of the process, the last iteration, extraction, and other work of
# the machine, which must not decide what is found
GRACE = 240.0
PLAIN = 120.0  # seconds for a region that is only translated


@dataclass(frozen=True)
class Finding:
    """The variants of a region over its level names, and for their bound axes those of the region
    with the same extent and length."""

    values: tuple[Expr, ...]
    alike: Mapping[str, str]
    stats: Stats


def explore(
    value: Expr,
    extent: Mapping[str, int],
    limits: Limits,
    live: Mapping[str, str],
    equal: Equations = (),
) -> Finding:
    """Saturate one region, whose live axes have these lengths, with terms that are known to be
    equal, and read its variants: there is none where a search ended between two laws, and all that
    is left has products of constants. Then it is what it was before any law."""
    graph, stats = saturate(value, extent, limits, (), live, equal)
    names = {a: a for a in extent}
    found: dict[Expr, None] = {}
    bound: dict[str, str] = {}
    for choice in variants(graph, limits.variants):
        term, inner = extract(graph, choice, names)
        found[term] = None
        bound.update(inner)
    if limits.iterations and not found:
        plain = explore(value, extent, replace(limits, iterations=0), live)
        return replace(plain, stats=stats)
    return Finding(tuple(found), dict(sorted(bound.items())), stats)


def explore_all(bodies: Sequence[Body], limits: Limits, inside: bool = False) -> list[Finding]:
    """One finding per body, from a worker process; ``inside`` explores in this process. Raises
    E0414 (a body for which two processes ended without an answer), or what went wrong there."""
    if inside:
        return [explore(b.value, b.extent, limits, b.lengths.texts, b.equal) for b in bodies]
    out: list[Finding] = []
    worker: Process | None = None
    try:
        for number, body in enumerate(bodies, 1):
            doing(f"saturating region {number} of {len(bodies)}")
            worker = worker or Process(serve)
            try:
                found = ask(worker, body, limits, limits.seconds + GRACE)
            except Lost as lost:  # once more, without any law
                worker.kill()
                worker = Process(serve)
                try:
                    found = ask(worker, body, replace(limits, iterations=0), PLAIN)
                except Lost as again:
                    what = f"the search of a region ended twice without an answer: {again}"
                    fix = "try again when this machine has more time and memory"
                    raise LumcError("E0414", what, fix=fix, exit=Exit.BUDGET) from None
                hangs = str(lost).startswith(HANG)
                reason = StopReason.TIME if hangs else StopReason.MEMORY
                found = replace(found, stats=replace(found.stats, stop=reason))
            out.append(found)
    finally:
        if worker:
            worker.kill()
    return out


def ask(worker: Process, body: Body, limits: Limits, seconds: float) -> Finding:
    """What it finds, in so many seconds; raises Lost, or what went wrong there."""
    nodes, roots = encode([body.value, *(e for pair in body.equal for e in pair)])
    live = dict(body.lengths.texts)
    answer = worker.ask((nodes, roots, dict(body.extent), limits, live), seconds)
    if isinstance(answer, Exception):
        raise answer
    nodes, roots, alike, stats = answer
    terms = decode(nodes)
    return Finding(tuple(pick(terms, at) for at in roots), alike, stats)


def serve(pipe: Connection) -> None:
    """The worker's side: answers until the pipe closes."""
    os.environ.pop("RAYON_NUM_THREADS", None)  # with several threads egglog's order changes
    answers(pipe, answer)


def answer(
    nodes: Any,
    roots: Sequence[int],
    extent: Mapping[str, int],
    limits: Limits,
    live: Mapping[str, str],
) -> Any:
    """A finding as plain data, or the exception to raise where it was asked for."""
    try:
        terms = decode(nodes)
        value, *equal = (pick(terms, at) for at in roots)
        pairs = list(zip(equal[::2], equal[1::2], strict=True))
        found = explore(value, extent, limits, live, pairs)
        return *encode(found.values), dict(found.alike), found.stats
    except Exception as e:
        e.add_note(traceback.format_exc())
        return e
