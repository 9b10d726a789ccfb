"""What a way to compute a node, and a collective, are expected to take, by five numbers."""

from __future__ import annotations

from dataclasses import dataclass

from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Node
from lumc.graph.ops import Op
from lumc.shard.held import WHOLE, Held, exchange, travelling


@dataclass(frozen=True)
class Machine:
    """Ranks along one axis of a mesh, all alike. The defaults are of the order of what a GPU with a
    fast link has; they are data, of no one's measurement.

    A collective takes ``latency`` for each of its steps, and a byte over ``link`` for each byte
    that a rank sends (rings: Thakur, Rabenseifner, Gropp 2005). ``price`` is what a byte of weights
    and states costs that a rank holds: 0 spares no memory, and a large one nothing else."""

    ranks: int
    flops: float = 400e12  # of products, two for each of their points, in a second
    stream: float = 2e12  # bytes of memory in a second
    link: float = 200e9  # bytes that a rank sends in a second
    latency: float = 8e-6  # seconds
    price: float = 1e-9  # seconds for a byte held: one for a gigabyte

    def computing(self, points: int) -> float:
        """So many products and their sum."""
        return 2 * points / self.flops

    def streaming(self, nbytes: float) -> float:
        """So many bytes read or written."""
        return nbytes / self.stream

    def sending(self, op: Collective, nbytes: float) -> float:
        """A collective on a value of so many bytes, when it is whole."""
        p, sent = op.ranks, nbytes * (op.ranks - 1) / op.ranks
        match op.kind:
            case Kind.ALL_SLICE:
                return 2 * self.streaming(nbytes / p)
            case Kind.ALL_REDUCE:
                return 2 * (p - 1) * self.latency + 2 * sent / self.link
            case Kind.ALL_TO_ALL:
                return (p - 1) * self.latency + sent / p / self.link
            case Kind.REDUCE_SCATTER | Kind.ALL_GATHER:
                return (p - 1) * self.latency + sent / self.link
            case Kind.SEND | Kind.BROADCAST:
                n = 1 if op.kind is Kind.SEND else p - 1
                return self.latency + n * nbytes / self.link


def cost(n: Node, held: Held, is_dealt: bool, fused: bool, inner: bool, machine: Machine) -> float:
    """What a node takes whose result is ``held`` so, if an axis of it ``is_dealt`` or it is not:
    nothing of a product that is ``fused``, products where an ``inner`` one is summed, and memory in
    all other cases. Of a leaf what is read of it in a run; of weights and states what is held, too.
    """
    nbytes = n.size * n.dtype.nbytes
    if n.is_leaf and n.op != "update":
        own = nbytes / (1 if held == WHOLE else machine.ranks)
        return machine.streaming(own) + (machine.price * own if n.op != "input" else 0.0)
    if isinstance(n.op, Collective):
        seconds = machine.sending(n.op, nbytes)
    elif fused and n.op is Op.MUL:
        seconds = 0.0
    elif inner:
        seconds = machine.computing(n.points)
    else:
        read = sum(min(r.source.size, n.points) * r.dtype.nbytes for r in n.reads)
        seconds = machine.streaming(nbytes + read)
    return seconds / (machine.ranks if is_dealt else 1)


def sent(n: Node, have: Held, want: Held | None, machine: Machine) -> float:
    """What the collective takes that makes of a value held one way that held another way."""
    op = exchange(have, want, "", machine.ranks) if want is not None else None
    return machine.sending(op, n.size * travelling(n.dtype, have).nbytes) if op else 0.0
