"""Small PyTorch modules, exported to archives, and what torch makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lumc.frontend.aten.fx import array_of
from lumc.frontend.aten.pt2 import import_pt2
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]
Made = tuple[nn.Module, tuple[Any, ...], Any]  # a module, arguments, dynamic shapes


class Net(nn.Module):
    """A convolution with a batch norm, tied weights, buffers of other strides, named results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        whole = torch.randn(6, 8)
        self.register_buffer("part", whole[1:5, 2:6])
        self.register_buffer("turned", torch.randn(4, 5).T)
        self.register_buffer("wide", torch.randn(4).expand(3, 4))
        self.register_buffer("bits", torch.randn(4).to(torch.bfloat16))
        self.register_buffer("unsaved", torch.randn(4), persistent=False)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.randn(4))
            self.norm.running_var.copy_(torch.rand(4) + 0.5)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        h = self.second(self.first(h)) + self.part[0] + self.wide[1] + self.bits + self.unsaved
        scaled = h * torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"logits": scaled.softmax(-1), "rest": (h[:, 1:], self.turned @ h.T)}


class Counter(nn.Module):
    """A buffer that a run changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.total.add_(x)
        return self.total * 2


class InPlace(nn.Module):
    """Writes into what it made itself."""

    def forward(self, x: Any) -> Any:
        y = (x + 1).relu_()
        y.mul_(2).sub_(x)
        return y.clamp_(max=3.0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5)

    def forward(self, x: Any) -> Any:
        return self.gru(self.lstm(x)[0])[0]


class Attention(nn.Module):
    """Of a length that each run chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 11)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        h = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2))


def net() -> Made:
    return Net(), (torch.randn(2, 3, 6, 5),), None


def batches() -> Made:
    return Net(), (torch.randn(2, 3, 6, 5),), ({0: torch.export.Dim("batch", min=1, max=8)},)


def lengths() -> Made:
    length = torch.export.Dim("length", min=2, max=12)
    return Attention(), (torch.randint(0, 11, (1, 5)),), ({1: length},)


def in_place() -> Made:
    return InPlace(), (torch.randn(3, 4),), None


def recurrent() -> Made:
    return Recurrent(), (torch.randn(2, 7, 4),), None


def counter() -> Made:
    return Counter(), (torch.randn(3),), None


MODELS: Mapping[str, Callable[[], Made]] = {
    f.__name__: f for f in (net, batches, lengths, in_place, recurrent, counter)
}


@cache
def exported(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The exported program of a model, in evaluation mode, and its arguments."""
    torch.manual_seed(7)
    module, args, shapes = MODELS[name]()
    with torch.no_grad():
        program = torch.export.export(module.eval(), args, dynamic_shapes=shapes, strict=False)
    return program, args


def saved(name: str, path: Path, simpler: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """The same, written to a file."""
    program, args = exported(name)
    program = program.run_decompositions() if simpler else program
    torch.export.save(program, path)
    return program, args


def expected(program: Any, args: tuple[Any, ...]) -> list[Array]:
    """The tensors that torch gives."""
    with torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(program.module()(*args))
    return [array_of(t) for t in leaves if isinstance(t, torch.Tensor)]


def by_the_oracle(path: Path, *args: Any) -> dict[str, Array]:
    """What the imported model gives."""
    model = import_pt2(path)
    graph = model.graph()
    inputs = zip(graph.entries[0].inputs, args, strict=True)
    feed = {node.name: array_of(a) for node, a in inputs}
    return evaluate(graph, "main", feed, model.read_weight)[0]
