"""Language models as they are trained at scale, and what was published of such trainings."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lumc.frontend import Model, nn
from lumc.frontend.api.tensor import Tensor
from lumc.grad import gradients
from lumc.graph.graph import Graph
from lumc.shard.devices import DEVICES
from lumc.shard.plan import meshes
from lumc.shard.work import Work, rows_of, work
from lumc.train import adam


def gpt(
    layers: int, d: int, heads: int, s: int = 2048, vocab: int = 51200, batch: int = 8
) -> Graph:
    """A step of Adam for a GPT with an MLP of four times its width; weights are states without
    values. The output ``loss`` is the mean cross entropy of the next tokens."""
    g, params = Model(), list[Tensor]()

    def weight(name: str, *shape: int) -> Tensor:
        params.append(g.state(name, shape))
        return params[-1]

    ids = g.input("ids", (batch, s), "i64", values=(0, vocab - 1))
    labels = g.input("labels", (batch, s), "i64", values=(0, vocab - 1))
    x = weight("embed", vocab, d)[ids]
    for i in range(layers):
        h = x.layer_norm(weight(f"h{i}.g1", d), weight(f"h{i}.b1", d))
        q, k, v = (nn.heads(h @ weight(f"h{i}.w{n}", d, d), heads) for n in "qkv")
        seen = nn.attention(q, k, v, nn.causal_bias(g, s))
        x = x + nn.merged(seen) @ weight(f"h{i}.wo", d, d)
        h = x.layer_norm(weight(f"h{i}.g2", d), weight(f"h{i}.b2", d))
        h = (h @ weight(f"h{i}.up", d, 4 * d) + weight(f"h{i}.bu", 4 * d)).gelu()
        x = x + h @ weight(f"h{i}.down", 4 * d, d)
    logits = x.layer_norm(weight("g", d), weight("b", d)) @ weight("head", d, vocab)
    log = logits.log_softmax(-1)
    hot = (g.arange(vocab)[None, None] == labels.reshape(batch, s, 1)).to("f32")
    loss = -(log * hot).sum() * (1.0 / (batch * s))
    g.output("loss", loss)
    adam(params, gradients(loss, params), g.input("lr", ()))
    return g.graph()


def deepened(work: Work, layers: int) -> Work:
    """What so many layers do, of what three do: the middle one stands for all between the others,
    as they are alike. A graph of 128 layers says the same, in minutes."""
    own = np.array([name.startswith("h1.") for name in work.names])
    lo, n = int(own.argmax()), int(own.sum())
    times = np.ones(len(own), np.int64)
    times[own] = layers - 2
    order = [*range(lo), *list(range(lo, lo + n)) * (layers - 2), *range(lo + n, len(own))]
    products = [np.flatnonzero(work.at == i) for i in order]
    every = np.concatenate(products)
    ends = [*order, len(own)]
    return replace(
        work,
        names=tuple(work.names[i] for i in order),
        at=np.repeat(np.arange(len(order)), [len(p) for p in products]),
        way=work.way[every],
        points=work.points[every],
        fixed=work.fixed[every],
        moved=work.moved[every],
        waits=work.waits[:, order],
        sends=work.sends[:, order],
        passes=work.passes[:, ends],
        kept=work.kept[order],
        held=work.held[order],
        sums=work.sums[order],
        only=work.only[order],
        flops=2.0 * work.tp * float(work.points[every].sum()),
    )


class Published(NamedTuple):
    """A row of table 1 of Narayanan and others, 2021: on how many A100s, divided how, what each
    reached in 1e12 operations a second; those that are done again count."""

    billions: float
    heads: int
    d: int
    layers: int
    tp: int
    pp: int
    devices: int
    batch: int
    reached: int


TABLE = [
    Published(*row)
    for row in (
        (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
        (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
        (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
        (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
        (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
        (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
        (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
        (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
        (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
        (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
    )
]


def operations(row: Published, s: int = 2048, vocab: int = 51200) -> float:
    """Those of a step, with the forward pass of layers done again: the formula of the paper."""
    wide = 1 + s / (6 * row.d) + vocab / (16 * row.layers * row.d)
    return 96 * row.batch * s * row.layers * row.d**2 * wide


def expected(row: Published) -> float:
    """What each device reaches by the model of cost, in 1e12 operations a second, divided as the
    table says; the rows of a micro-batch are the best that fit, as the paper chose them."""
    device = DEVICES["A100"]
    three = gpt(3, row.d, row.heads, batch=row.batch)
    made = deepened(work(rows_of(three), row.tp, device, 1e-9, halves=True), row.layers)
    found = [
        c
        for rows in (1, 2, 4, 8)
        for c in meshes(made, rows, True, device, row.devices)
        if c.pp == row.pp and c.nbytes <= device.memory
    ]
    seconds = min(c.seconds for c in found)
    return operations(row) / seconds / row.devices / 1e12
