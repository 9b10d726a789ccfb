"""``lumc grad``: gradients as outputs of a graph, or as steps of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from lumc.artifacts import files
from lumc.command.sources import parse_dims
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.grad import gradients
from lumc.grad.entries import listed, with_gradients
from lumc.graph.graph import Read
from lumc.graph.text import print_graph
from lumc.graph.verify import verify_graph
from lumc.report.log import Log
from lumc.train import adam, adamw, clip_norm, lion, scaled_gradients, sgd

OPTIMIZERS: dict[str, Callable[..., None]] = {
    "adam": adam,
    "adamw": adamw,
    "lion": lion,
    "momentum": partial(sgd, momentum=0.9),
    "sgd": sgd,
}


@dataclass(frozen=True)
class Training:
    """How a step changes the weights: by which optimizer, and what is done before it."""

    optimizer: str
    decay: float | None = None  # None: that of the optimizer
    no_decay: Sequence[str] = ()  # names and patterns
    clip: float | None = None
    scale_loss: bool = False

    def learn(self, loss: Tensor, params: Sequence[Tensor], stop: Sequence[Tensor]) -> None:
        """The updates of a step, at a rate that is an input ``lr``."""
        assert isinstance(loss.model, Model)
        finite, grads = None, list[Tensor]()
        if self.scale_loss:
            grads, finite = scaled_gradients(loss, params, stop)
        else:
            grads = gradients(loss, params, stop)
        if self.clip is not None:
            grads = clip_norm(grads, self.clip)
        options: dict[str, Any] = {} if self.decay is None else {"decay": self._decays(params)}
        step = OPTIMIZERS[self.optimizer]
        step(params, grads, loss.model.input("lr", ()), when=finite, **options)

    def _decays(self, params: Sequence[Tensor]) -> list[float]:
        """Of every parameter. Raises E0212 for a name that is none of them."""
        names = [p.operand.source.name for p in params if isinstance(p.operand, Read)]
        for text in self.no_decay:
            if not any(fnmatchcase(name, text) for name in names):
                what, fix = f"--no-decay {text}: no weight of that name learns", listed(names)
                raise LumcError("E0212", what, fix=f"these do: {fix}", exit=Exit.USAGE)
        spared = {n for n in names if any(fnmatchcase(n, text) for text in self.no_decay)}
        return [0.0 if n in spared else self.decay or 0.0 for n in names]


def differentiate(
    source: str,
    output: str,
    loss: str,
    wrt: Sequence[str],
    stop: Sequence[str],
    entry: str,
    dims: Sequence[str],
    training: Training | None,
    verbose: int,
) -> None:
    """Write the graph with gradients, or with updates by them; weights stay where they lie."""
    log = Log(verbose)
    artifact.check_writable(output)
    with log.step("read"):
        graph = files.read_graph(source, parse_dims(dims))
    name = graph.entry(entry).name if entry else graph.entries[0].name
    learn = training.learn if training else None
    with log.step("grad"):
        made = with_gradients(graph, name, loss, wrt, stop, learn)
        verify_graph(made.graph)
    base = Path.cwd() if output == "-" else Path(output).resolve().parent
    artifact.write_text(output, print_graph(made.graph, lambda f: files.relative(f, base)))
    before, after = (len(g.entry(name).nodes) for g in (graph, made.graph))
    what = "a step" if training else "gradients"
    log(0, f"grad: '{loss}' by {listed(made.wrt)}; {before} nodes, {after} with {what}")
    if made.unused:
        log(0, f"note: '{loss}' has no derivative by {listed(made.unused)}")
