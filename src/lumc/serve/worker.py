"""The process that holds the bundles: what it is asked to run, it runs, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.bundle import manifest
from lumc.errors import Exit, LumcError
from lumc.graph.dim import Extent, as_expr
from lumc.graph.graph import Graph
from lumc.graph.tensor import LiveTensor, Tensor
from lumc.graph.text import parse_graph
from lumc.process import answers, settle
from lumc.runtime.choose import open_bundle
from lumc.runtime.opened import Opened, read_checked
from lumc.serve.rows import rows_of
from lumc.serve.spec import EMBEDS, WRITES, Array, EntrySpec, Port, Prompt, Spec, Text
from lumc.serve.texts import Embedder, Writer, kind_of, words_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

GRAPH = "graph.lg"
FINE, REFUSED = "fine", "refused"  # how an answer begins


def serve(
    pipe: Connection,
    paths: Mapping[str, str],
    device: str,
    threads: int,
    tokenizers: Mapping[str, str],
) -> None:
    """Open the bundles, by name, and answer until the pipe closes. The first answer, to whatever
    is asked, are their specs; it is the only one if they cannot be opened."""
    held = dict[str, Held]()

    def describe() -> list[Spec]:
        for name, path in paths.items():
            if name not in held:
                held[name] = Held(name, path, device, threads, tokenizers.get(name, ""))
        settle()
        return [h.spec for h in held.values()]

    def of_model(what: str) -> Callable[..., Any]:
        return lambda name, *rest: getattr(held[name], what)(*rest)

    does = {what: of_model(what) for what in ("run", "embed", "begin", "go_on")}
    answers(pipe, partial(answer, {"describe": describe, **does}))


def answer(does: Mapping[str, Callable[..., Any]], what: str, *rest: Any) -> tuple[Any, ...]:
    """What is sent back: a result, or the parts of an error."""
    try:
        return FINE, does[what](*rest)
    except LumcError as e:
        return REFUSED, e.code, e.what, e.where, e.fix, int(e.exit)
    except MemoryError:
        return REFUSED, "E0611", "there is not enough memory", "", "", int(Exit.FAILED)


class Held:
    """An open bundle, and what is known of it. Raises E0501, E0704, E0708."""

    def __init__(
        self, name: str, path: str, device: str, threads: int, tokenizer: str = ""
    ) -> None:
        from lumc.bundle.unpack import opened

        with opened(path) as folder:
            self.bundle = open_bundle(folder, device, say=lambda _: None)
            graph, kind = graph_of(folder), kind_of(self.bundle)
            words = words_of(folder, path, tokenizer) if kind else None
        self.threads = threads
        self.spec = spec_of(name, self.bundle, graph, kind if words else "")
        if words and kind == EMBEDS:
            self.embedder = Embedder(self.bundle, words, threads, self.spec.entry().rows)
        if words and kind == WRITES:
            self.writer = Writer(self.bundle, words, threads)

    def run(
        self,
        entry: str,
        dims: Mapping[str, int],
        batch: Sequence[tuple[Mapping[str, Array], tuple[str, ...]]],
    ) -> list[dict[str, Array]]:
        """One run for all of a batch, which is inputs and the names of wanted outputs: these, of
        each; all where none is named. Raises E0610, E0611."""
        if self.bundle.states:  # what is left of another run is no one's business
            self.bundle.reset()
        inputs = [given for given, _ in batch]
        rows, sizes = self.spec.entry(entry).rows, [common_rows(given) for given in inputs]
        if not rows or not 0 < sum(sizes) <= rows[-1]:  # what does not fit, the bundle says
            every = [self._once(given, entry, dims) for given in inputs]
        else:
            whole = self._once(together(inputs, fitting(rows, sum(sizes))), entry, dims)
            ends = list(accumulate(sizes))
            parts = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
            every = [{name: array[part] for name, array in whole.items()} for part in parts]
        return [  # a bundle that took the place of another may lack what was wanted
            {name: outputs[name] for name in wanted or outputs if name in outputs}
            for outputs, (_, wanted) in zip(every, batch, strict=True)
        ]

    def embed(
        self, batch: Sequence[Sequence[Text]], truncate: bool
    ) -> list[tuple[Array, list[int]]]:
        """The vectors of the texts of each, and how many tokens these have. Raises E0615."""
        vectors, counts = self.embedder.embed([t for texts in batch for t in texts], truncate)
        ends = np.cumsum([len(texts) for texts in batch]).tolist()
        starts = [0, *ends[:-1]]
        return [(vectors[a:b], counts[a:b]) for a, b in zip(starts, ends, strict=True)]

    def begin(self, prompt: Prompt) -> int:
        """How many tokens a prompt has, whose text goes on from now. Raises E0615 and others."""
        return self.writer.begin(prompt)

    def go_on(self) -> tuple[str, str, int]:
        """The next piece of that text. Raises E0616."""
        return self.writer.go_on()

    def _once(
        self, inputs: Mapping[str, Array], entry: str, dims: Mapping[str, int]
    ) -> dict[str, Array]:
        return self.bundle.run(inputs, entry, self.threads, lambda _: None, dims)


def common_rows(inputs: Mapping[str, Array]) -> int:
    """How many rows all inputs have; 0 if they do not agree."""
    counts = {len(a) if a.ndim else 0 for a in inputs.values()}
    return counts.pop() if len(counts) == 1 else 0


def fitting(rows: range, count: int) -> int:
    """The least number of rows of a run that holds so many."""
    return next((n for n in rows if n >= count), count)


def together(batch: Sequence[Mapping[str, Array]], count: int) -> dict[str, Array]:
    """The rows of all, and zeros up to so many."""
    out = dict[str, Array]()
    for name in batch[0]:
        parts = [inputs[name] for inputs in batch]
        missing = count - sum(map(len, parts))
        if missing > 0:
            parts.append(np.zeros((missing, *parts[0].shape[1:]), parts[0].dtype))
        out[name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return out


# ---- what is known of a bundle


def graph_of(folder: Path) -> Graph:
    """The graph that a bundle was made from."""
    files = manifest.read(folder)["files"]
    return parse_graph(read_checked(folder, files, GRAPH).decode(), str(folder / GRAPH))


def spec_of(name: str, bundle: Opened, graph: Graph, texts: str) -> Spec:
    """What others need to know of an open bundle."""
    entries = dict[str, EntrySpec]()
    known = {e.title: e for e in graph.entries}
    for title in bundle.entries:
        spec = bundle.entry(title)
        count = rows_of(known[title], graph.dims) if title in known else None
        inputs, outputs = tuple(map(port, spec.inputs)), tuple(map(port, spec.outputs))
        entries[title] = EntrySpec(title, inputs, outputs, counts_of(count, bundle))
    return Spec(name, entries, tuple(bundle.dims), texts)


def counts_of(count: Extent | None, bundle: Opened) -> range:
    """The numbers of rows that a run may have."""
    if count is None:
        return range(0)
    if isinstance(count, int):
        return range(count, count + 1)
    name = as_expr(count).attr[0]
    return bundle.dims[name].values if name in bundle.dims else range(0)


def port(t: Tensor) -> Port:
    extents = t.extents if isinstance(t, LiveTensor) else t.shape
    shape = tuple(e if isinstance(e, int) else -1 for e in extents)
    return Port(t.name, t.dtype.value, shape, prod(t.shape))
