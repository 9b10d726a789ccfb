"""Saturation in processes that can be killed: one iteration of egglog cannot be interrupted."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumc.graph.expr import Expr
from lumc.kernel.codec import decode, encode, pick
from lumc.search.saturate import Limits, Stats, StopReason, saturate
from lumc.search.translate import Body
from lumc.search.variants import extract, variants

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

GRACE = 20.0  # seconds beyond the limit: start of the process, the last iteration, extraction
PLAIN = 120.0  # seconds for a region that is only translated


@dataclass(frozen=True)
class Finding:
    """The variants of a region over its level names, and the extents of their bound axes."""

    values: tuple[Expr, ...]
    extent: Mapping[str, int]
    stats: Stats


def explore(value: Expr, extent: Mapping[str, int], limits: Limits) -> Finding:
    """Saturate one region and read its variants."""
    graph, stats = saturate(value, extent, limits)
    names = {a: a for a in extent}
    found: dict[Expr, None] = {}
    bound: dict[str, int] = {}
    for choice in variants(graph, limits.variants):
        term, inner = extract(graph, choice, names)
        found[term] = None
        bound.update(inner)
    return Finding(tuple(found), dict(sorted(bound.items())), stats)


def explore_all(bodies: Sequence[Body], limits: Limits, inside: bool = False) -> list[Finding]:
    """One finding per body, from a worker process; ``inside`` explores in this process."""
    if inside:
        return [explore(b.value, b.extent, limits) for b in bodies]
    out: list[Finding] = []
    worker: _Worker | None = None
    try:
        for body in bodies:
            worker = worker or _Worker()
            found = worker.ask(body, limits, limits.seconds + GRACE)
            if isinstance(found, StopReason):  # once more, without any law
                worker.process.kill()
                worker, reason = _Worker(), found
                found = worker.ask(body, replace(limits, iterations=0), PLAIN)
                if isinstance(found, StopReason):
                    raise RuntimeError(f"a region cannot even be read: {found.value}")
                found = replace(found, stats=replace(found.stats, stop=reason))
            out.append(found)
    finally:
        if worker:
            worker.process.kill()
    return out


class _Worker:
    """A process that explores one region after the other."""

    def __init__(self) -> None:
        from multiprocessing import get_context

        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, body: Body, limits: Limits, seconds: float) -> Finding | StopReason:
        """What it finds, or why it had to be given up."""
        nodes, (at,) = encode([body.value])
        try:
            self.pipe.send((nodes, at, dict(body.extent), limits))
            if not self.pipe.poll(seconds):
                return StopReason.TIME
            answer = self.pipe.recv()
        except (EOFError, OSError):
            return StopReason.MEMORY
        if isinstance(answer, Exception):
            raise answer
        nodes, roots, extent, stats = answer
        terms = decode(nodes)
        return Finding(tuple(pick(terms, at) for at in roots), extent, stats)


def serve(pipe: Connection) -> None:
    """The worker's side: explores what comes through the pipe until it closes."""
    os.environ.pop("RAYON_NUM_THREADS", None)  # with several threads egglog's order changes
    while True:
        try:
            nodes, at, extent, limits = pipe.recv()
        except EOFError:
            return
        try:
            found = explore(decode(nodes)[at], extent, limits)
            pipe.send((*encode(found.values), dict(found.extent), found.stats))
        except Exception as e:  # told where it is asked for
            e.add_note(traceback.format_exc())
            pipe.send(e)
