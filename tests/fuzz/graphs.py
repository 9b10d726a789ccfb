"""Random graphs, each computed in many ways: by the oracle, by ``plain``, and by the code of a
plan - chosen by estimate, with random schedules under sanitizers, after a short search."""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

import launching
from differential import PARTS, with_random_schedules
from fuzz import calls, plain, texts
from fuzz.gathered import hasty
from kernels import native
from lumc.codegen.generate import generate
from lumc.command.shrink import Search
from lumc.environment import objects_folder
from lumc.graph.graph import Graph, Node
from lumc.graph.ops import from_bf16
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.link.link import TargetCode, Tools, link
from lumc.link.toolchain import KERNEL_FLAGS, find
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.runtime.cpu import Bundle
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.saturate import Limits
from random_graphs import Profile, leaf_values, random_graph

Array = np.ndarray[Any, Any]
LIMITS = Limits(nodes=800, iterations=8, seconds=60.0)  # time never ends it: deterministic
NOWHERE = f'file "weights.safetensors" size 8 sha256 {"0" * 64}'
BATCH = 72  # linking takes as long for a few
MODES = ("oracle", "estimate", "sanitized", "searched")
THREADS = (1, 2)
TRIALS = (1, 1, 3)  # of a kernel, in one short search after the other
SHRINK_S = 20.0


@dataclass
class Case:
    """A graph, the values of its leaves, and what it must give."""

    text: str
    seed: int
    meant: Mapping[str, Array] = field(default_factory=dict)  # by numpy, of calls of the API
    graph: Graph = field(init=False)
    want: dict[str, plain.Result] = field(init=False)

    def __post_init__(self) -> None:
        self.graph = parse_graph(self.text)
        verify_graph(self.graph)
        self.want = plain.evaluate(self.text, self.values().__getitem__, from_bf16)

    @cached_property
    def plan(self) -> Plan:
        return estimate(search(self.graph, native(), LIMITS, inside=True))

    def leaf(self, node: Node) -> Array:
        return leaf_values(node, self.seed)

    def values(self) -> dict[str, Array]:
        inputs = [n for e in self.graph.entries for n in e.inputs]
        leaves = (*self.graph.weights, *self.graph.states, *inputs)
        return {n.name: self.leaf(n) for n in leaves}

    @cached_property
    def flushed(self) -> dict[str, plain.Result]:
        """What it must give where numbers below the least normal one are zeros."""
        with plain.flushing():
            return plain.evaluate(self.text, self.values().__getitem__, from_bf16)

    def check(
        self,
        entry: str,
        got: Mapping[str, Array],
        ratio: float = 1.0,
        want: Mapping[str, plain.Result] | None = None,
    ) -> None:
        """Raises Wrong. A state of which nothing is written need not be among the results."""
        before = {s.name: self.leaf(s) for s in self.graph.states}
        for name, meant in (want or self.want)[entry].values.items():
            value = np.asarray(got[name] if name in got else before[name])
            if meant.dtype == "bf16" and value.dtype == np.uint16:
                value = from_bf16(value)
            if said := plain.wrong(value, meant, ratio):
                raise Wrong(f"'{name}' of entry '{entry}' ({meant.dtype}): {said}")

    def check_meaning(self) -> None:
        """Whether the graph is what the same calls give in numpy. Raises Wrong."""
        for name, want in self.meant.items():
            value = self.want["main"].values[name]
            if said := calls.wrong(value.v, want, value.doubt == plain.SURE):
                raise Wrong(f"'{name}' means something else: {said}")


class Wrong(Exception):
    """Another result than it must be."""


# ---- ways to compute


def by_oracle(cases: Sequence[Case], folder: Path) -> None:
    for case in cases:
        case.check_meaning()
        floats = {n.dtype for e in case.graph.entries for n in e.nodes if n.dtype.is_float}
        finest = min([2.0 ** -plain.BITS[str(d)] for d in floats], default=1.0)
        values = case.values()
        states = {s.name: values[s.name] for s in case.graph.states}
        for e in case.graph.entries:
            inputs = {n.name: values[n.name] for n in e.inputs}
            out, after = evaluate(case.graph, e.name, inputs, case.leaf, states)
            case.check(e.name, out | after, 2.0**-53 / finest * 16)


def by_estimate(cases: Sequence[Case], folder: Path) -> None:
    codes = [generate(c.plan) for c in cases]
    lib = ctypes.CDLL(str(launching.library(fresh(folder), codes, KERNEL_FLAGS)))
    for i, (case, code) in enumerate(zip(cases, codes, strict=True)):
        for entry in case.graph.entries:
            for parts in PARTS:
                case.check(
                    entry.name, launching.run(lib, f"g{i}_", code, entry.name, case.leaf, parts)
                )


def sanitized(cases: Sequence[Case], folder: Path) -> None:
    codes = [generate(with_random_schedules(c.plan, c.seed)) for c in cases]
    found = launching.run_checked(fresh(folder), codes, [c.leaf for c in cases])
    for case, entries in zip(cases, found, strict=True):
        for entry, got in entries.items():
            case.check(entry, got)


def searched(cases: Sequence[Case], folder: Path) -> None:
    """The passes as the command line runs them, up to a bundle, with measured trials."""
    base = fresh(folder)
    graph = whole_graph(cases, base)
    space = search(graph, native(), LIMITS, inside=True)
    code = generate(tuned(space, TRIALS[cases[0].seed // BATCH % len(TRIALS)]))
    tools = Tools(find(kept=objects_folder()))  # the search has compiled some
    link([TargetCode(code, "0" * 64)], base / "m.lb", base, tools, single=False)
    with Bundle.open(base / "m.lb") as bundle:
        for i, case in enumerate(cases):
            values = case.values()
            for threads in THREADS:
                bundle.set_state({s.name: values[s.name] for s in case.graph.states})
                name = f"e{i}" if len(cases) > 1 else bundle.entries[0]
                spec = bundle.entry(name)
                inputs = {t.name: values[t.name] for t in spec.inputs}
                got = bundle.run(inputs, entry=name, threads=threads)
                (own,) = case.graph.entries
                with plain.flushing():
                    case.check(own.name, got | bundle.state(), want=case.flushed)


def tuned(space: Any, trials: int) -> Any:
    """The plan after a few trials of every kernel, as ``lumc profile`` makes it."""
    from lumc.command.plan import ProfileOptions, make_plan
    from lumc.report.log import Log

    with tempfile.TemporaryDirectory() as records, hasty():
        options = ProfileOptions(
            estimate=False,
            allow_estimate=True,  # of graphs without a kernel that has a choice
            budget="600s",  # trials end it: others may keep the processor
            trials=trials,
            fraction=1.0,
            seed=0,
            threads=1,
            frozen=False,
            cc=None,
            nvcc=None,
            cache=Path(records),
        )
        return make_plan(space, options, Log(-1))


def whole_graph(cases: Sequence[Case], base: Path) -> Graph:
    """The cases as entries of one graph, with a file of weights."""
    weights = {n.name: c.leaf(n) for c in cases for n in c.graph.weights}
    data = stored(weights, cases)
    (base / "weights.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    file = f'file "weights.safetensors" size {len(data)} sha256 {digest}'
    parts = []
    for c in cases:
        lines = c.text.rstrip("\n").split("\n")[1:]
        shared = [s for s in lines if s.startswith(("weight", "state"))]
        own = [s for s in lines if not s.startswith(("weight", "state", "file", "entry"))]
        parts.append((shared, own))
    return parse_graph(texts.together(parts, file), where="", path=lambda p: str(base / p))


def stored(weights: Mapping[str, Array], cases: Sequence[Case]) -> bytes:
    """A safetensors file; bf16 has no numpy type, so its header is mended."""
    data: bytes = save(dict(weights)) if weights else b""
    if not data:
        return (2).to_bytes(8, "little") + b"{}"
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for n in (n for c in cases for n in c.graph.weights):
        if str(n.dtype) == "bf16":
            header[n.name]["dtype"] = "BF16"
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def fresh(folder: Path) -> Path:
    """A loaded library is known by its path: each has another one."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=folder))


WAYS: dict[str, Callable[[Sequence[Case], Path], None]] = {
    "oracle": by_oracle,
    "estimate": by_estimate,
    "sanitized": sanitized,
    "searched": searched,
}


# ---- campaigns


def cases_from(seed: int, first: int) -> list[Case]:
    """A batch: most graphs are texts, some are written with the Tensor API."""
    cases = []
    for i in range(first, first + BATCH):
        name = f"{seed} {i}"
        if i % 6 == 2:
            made, meant = calls.graph(name, i)
            cases.append(Case(print_graph(made), i, meant))
            continue
        if i % 6 == 5:
            draw = random.Random(name)
            text = print_graph(random_graph(draw.randrange(1 << 40), draw.choice(API)))
        else:
            text = texts.together([texts.parts_of(name, i - first)], NOWHERE)
        cases.append(Case(text, i))
    return cases


API = (
    Profile(steps=(1, 5)),
    Profile(steps=(2, 5), only=("matmuls", "contractions", "attention", "convolutions", "moves")),
    Profile(steps=(1, 6), special=True),
)


def problem(case: Case, way: str, folder: Path) -> str:
    """What is wrong with one graph, or nothing."""
    try:
        WAYS[way]([case], folder)
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        where = f" at {Path(last.filename).name}:{last.name}"
        return f"{type(e).__name__}: {str(e)[:3000]}{where if not isinstance(e, Wrong) else ''}"
    return ""


def batch(
    cases: Sequence[Case], modes: Sequence[str], folder: Path
) -> Iterator[tuple[Case, str, str]]:
    """Every graph that fails, with the way that shows it and what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    for way in modes:
        fit = [c for c in cases if way != "searched" or is_text(c)]
        try:
            WAYS[way](fit, folder)
        except Exception:
            for case in fit:
                if said := problem(case, way, folder):
                    yield case, way, said
        for part in folder.iterdir():
            shutil.rmtree(part, ignore_errors=True)


def is_text(case: Case) -> bool:
    """Whether its names are its own, so that it may be an entry among others."""
    return len(case.graph.entries) == 1 and case.seed % 3 != 2


def kind_of(said: str) -> str:
    """What failures have in common that have one cause."""
    return "".join(c for c in said.partition("\n")[0][:80] if not c.isdigit())


def shrunk(case: Case, way: str, said: str, folder: Path) -> str:
    """A small text that fails in the same way, after a while at most."""
    end, kind = time.monotonic() + SHRINK_S, kind_of(said)

    def fails(graph: Graph) -> bool:
        try:
            smaller = Case(print_graph(graph), case.seed)
        except Exception:  # the evaluator takes no such graph
            return False
        return kind_of(problem(smaller, way, folder)) == kind

    return print_graph(Search(case.graph, fails, stopped=lambda: time.monotonic() > end).run())


def fuzz(
    folder: Path, seed: int, first: int, go_on: Callable[[], bool], modes: Sequence[str]
) -> dict[str, int]:
    """Batches while there is time; the first finding of a kind is shrunk and kept."""
    count: Counter[str] = Counter()
    known = set[str]()
    while go_on():
        cases = cases_from(seed, first + count["graphs"])
        for case, way, said in batch(cases, modes, folder / "work"):
            count["findings"] += 1
            if kind_of(said) not in known:
                known.add(kind_of(said))
                keep(folder.parent / "found", f"graph-{seed}-{case.seed}-{way}", case, said)
                small = shrunk(case, way, said, folder / "work")
                keep(folder.parent / "found", f"graph-{seed}-{case.seed}-{way}", case, said, small)
        wants = [w for c in cases for r in c.want.values() for w in r.values.values()]
        for want in wants:
            judged, elements = plain.checked_share(want)
            count["judged"] += judged
            count["elements"] += elements
        count["graphs"] += len(cases)
    return dict(count)


def keep(found: Path, name: str, case: Case, said: str, text: str = "") -> None:
    """A test that fails, with what is wrong."""
    found.mkdir(parents=True, exist_ok=True)
    (found / f"{name}.lg").write_text(f"# seed {case.seed}\n{text or case.text}")
    (found / f"{name}.txt").write_text(f"{said}\n\n{case.text}")
    if not text:
        print(f"{name}: {said[:300]}", flush=True)
