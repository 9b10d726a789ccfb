"""Which mesh a step is expected to be fastest on: replicas, stages, tensors in parts, rows of a
micro-batch. A model of cost, of data sheets and one fitted number; nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, inf, log2

import numpy as np

from lumc.shard.devices import INSIDE, OUTSIDE, Device
from lumc.shard.pipeline import Stages, cut
from lumc.shard.work import BACKWARD, FORWARD, Floats, Work

MOST_STAGES = 128  # that are tried
MANY = 200  # weights: all pairs of cuts are a table


@dataclass(frozen=True)
class Times:
    """What weights take for a micro-batch of so many rows, in seconds: (2, weights), and what it
    takes to hand values on before each: (2, weights + 1). If the forward pass is done ``again``
    before the backward pass, less is kept of it."""

    work: Work
    rows: int
    again: bool
    device: Device
    link: float  # bytes in a second between stages
    latency: float

    @cached_property
    def own(self) -> Floats:
        w = self.work
        moved = (w.fixed + w.moved * self.rows) / self.device.stream
        seconds = np.maximum(2 * w.points * self.rows / self.device.products, moved)
        out = w.waits + w.sends * self.rows
        np.add.at(out, (w.way, w.at), seconds)
        if self.again:
            out[BACKWARD] += out[FORWARD]
        return out

    @cached_property
    def sent(self) -> Floats:
        nbytes = self.work.passes * self.rows
        return np.where(nbytes > 0, self.latency + nbytes / self.link, 0.0)

    def stages(self, most: int) -> list[Stages]:
        """The best cuts into 1, 2, .. stages: a stage waits for what it is handed. Of many weights
        those are tried beside which no less is handed on."""
        if len(self.work.names) <= MANY:
            return cut(self.own.sum(0), self.sent[FORWARD], self.sent[BACKWARD], most)
        both = self.sent.sum(0)
        both[[0, -1]] = inf
        low = (both[1:-1] <= both[:-2]) & (both[1:-1] <= both[2:])
        at = np.array([0, *np.flatnonzero(low) + 1, len(both) - 1])
        own = np.add.reduceat(self.own.sum(0), at[:-1])
        found = cut(own, self.sent[FORWARD, at], self.sent[BACKWARD, at], most)
        return [Stages(tuple(int(at[i]) for i in s.cuts), s.seconds) for s in found]

    def slots(self, cuts: Sequence[int]) -> Floats:
        """The seconds of every stage for a micro-batch: (2, stages)."""
        out = np.add.reduceat(self.own, cuts[:-1], axis=1)
        out[FORWARD] += self.sent[FORWARD, cuts[:-1]]
        out[BACKWARD] += self.sent[BACKWARD, cuts[1:]]
        return out

    def kept(self, cuts: Sequence[int], batches: int) -> Floats:
        """Bytes of open micro-batches that every stage keeps for the backward pass. Done again,
        only what goes on where least does is kept, and all of the longest way between."""
        stages = len(cuts) - 1
        own = np.minimum(batches, stages - np.arange(stages))
        rows = self.work.kept * self.rows
        if not self.again:
            return np.add.reduceat(rows, cuts[:-1]) * own
        least, marks = self.marks
        out = np.zeros(stages)
        for s, (lo, hi) in enumerate(pairwise(cuts)):
            inner = sorted({lo, *(m for m in marks if lo < m < hi), hi})
            ways = [rows[a:b].sum() for a, b in pairwise(inner)]
            out[s] = own[s] * least * self.rows * (len(inner) - 1) + max(ways)
        return out

    @cached_property
    def marks(self) -> tuple[float, list[int]]:
        """The least that goes forward between weights, and where."""
        between = self.work.passes[FORWARD, 1:-1]
        some = between[between > 0]
        least = float(some.min()) if len(some) else 0.0
        return least, [i + 1 for i, b in enumerate(between) if 0 < b <= least]


@dataclass(frozen=True)
class Choice:
    """A mesh, and what is expected of it: seconds of a step, and of its parts; bytes of a device.
    A step is ``batches`` micro-batches of ``rows`` rows on each of ``dp`` replicas."""

    tp: int
    pp: int
    dp: int
    rows: int
    batches: int
    again: bool
    seconds: float
    waiting: float  # a stage for others: the pipeline fills and runs empty
    exchange: float  # collectives between tensor ranks
    reduce: float  # sums over rows, between replicas
    nbytes: float
    flops: float  # in a second, of a device: products of the model, each once
    cuts: tuple[int, ...]
    slots: tuple[tuple[float, ...], ...]  # forward, backward: seconds of every stage

    @property
    def order(self) -> tuple[float, ...]:
        """The fastest first; of equals the simplest."""
        return self.seconds, self.pp, self.tp, self.again, self.rows


def choices(works: Sequence[Work], device: Device, devices: int) -> Iterator[Choice]:
    """All meshes of so many devices that divide the rows, whether they fit into memory or not.
    There is a ``work`` for each number of tensor ranks."""
    for work in works:
        if devices % work.tp:
            continue
        for rows in powers(work.rows):
            for again in (False, True) if work.kept.any() else (False,):
                yield from meshes(work, rows, again, device, devices)


def meshes(work: Work, rows: int, again: bool, device: Device, devices: int) -> Iterator[Choice]:
    """The meshes of micro-batches of so many rows."""
    left = devices // work.tp
    alone = devices <= device.node
    link, latency = (device.inside, INSIDE) if alone else (device.outside, OUTSIDE)
    times = Times(work, rows, again, device, link, latency)
    most = min(left, len(work.names), MOST_STAGES)
    counts = [n for n in range(1, most + 1) if left % n == 0]
    for found in times.stages(max(counts)):
        pp = len(found.cuts) - 1
        if pp not in counts or work.rows % (left // pp * rows):
            continue
        yield choice(times, found.cuts, left // pp)


def choice(times: Times, cuts: tuple[int, ...], dp: int) -> Choice:
    """What is expected of a mesh: the first micro-batch goes through all stages, and the others
    follow at the pace of the slowest one."""
    work, device, pp = times.work, times.device, len(cuts) - 1
    batches = work.rows // (dp * times.rows)
    slots = times.slots(cuts)
    both = slots.sum(0)
    run = float(both.sum() + (batches - 1) * both.max())
    held, sums, only = (np.add.reduceat(a, cuts[:-1]) for a in (work.held, work.sums, work.only))
    reduce = summed(float(sums.max()), work.tp, dp, device)
    update = float((2 * (held + sums + only)).max()) / dp / device.stream if sums.any() else 0.0
    nbytes = held + sums + only / dp + times.kept(cuts, batches)
    exchange = (work.waits + work.sends * times.rows).sum() / pp * batches
    seconds = run + reduce + update
    return Choice(
        work.tp,
        pp,
        dp,
        times.rows,
        batches,
        times.again,
        seconds,
        max(run - float(both.sum()) * batches / pp, 0.0),
        float(exchange),
        reduce,
        float(nbytes.max()),
        work.flops * work.rows / (seconds * work.tp * pp * dp),
        cuts,
        tuple(tuple(map(float, row)) for row in slots),
    )


def summed(nbytes: float, tp: int, dp: int, device: Device) -> float:
    """The seconds in which replicas add so many bytes, in a ring whose slowest link counts, and
    each of whose trees has so many levels."""
    if dp == 1 or nbytes == 0:
        return 0.0
    alone = tp * dp <= device.node
    link, latency = (device.inside, INSIDE) if alone else (device.outside, OUTSIDE)
    return 2 * ((dp - 1) / dp * nbytes / link + ceil(log2(dp)) * latency)


def powers(most: int) -> list[int]:
    """1, 2, 4, .. at most 64 rows, that divide so many."""
    return [n for n in (1, 2, 4, 8, 16, 32, 64) if most % n == 0]


def tensors(device: Device, devices: int) -> list[int]:
    """Numbers of tensor ranks that are worth a try: all in one node."""
    return [n for n in powers(64) if n <= min(device.node, devices) and devices % n == 0]
