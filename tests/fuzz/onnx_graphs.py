"""Random ONNX graphs through the importer and compiled C, against the onnx package's reference and
onnxruntime.

A result is right if it is what one of the two says, as far as rounding allows; where they differ,
the standard is not clear, or one of them is wrong.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import json_format
from onnx import helper, numpy_helper

import onnx_suite
from fuzz import onnx_layers, onnx_ops
from fuzz.onnx_draw import OPSETS, Draw, Rejected, Worlds, around, compute, number
from kernels import PLAIN
from lumc.link.toolchain import KERNEL_FLAGS

Array = np.ndarray[Any, Any]
BUILDERS = onnx_ops.BUILDERS
assert onnx_layers.builder is onnx_ops.builder  # its builders are there, too
NODES = (1, 7)
RTOL = {"float32": 2e-6, "float64": 2e-6, "float16": 2e-3}  # beside what worlds say
FINEST = {"float32": 2e-7, "float64": 2e-7, "float16": 1e-3}  # of the greatest element
SPREADS = 6  # worlds are a few of all ways to round
BATCH = 80  # a start of the C compiler, and of a process, for all of them
OPTIMISED = 10  # one batch of so many as the product compiles it, the others without optimisation
SHRINK_S = 30.0  # of the processor
ORDINARY = onnx_suite.How(flags=KERNEL_FLAGS)
HASTY = onnx_suite.How(flags=PLAIN)  # the same search
BAD = ("wrong", "crash", "hang", "error")


@dataclass
class Case:
    """A model with the values of its inputs, as ``onnx_suite`` runs one."""

    name: str
    model: Any
    inputs: Mapping[str, Array]
    kind: str = "random"
    rtol: float = 0.0
    atol: float = 0.0
    sets: list[tuple[list[Array], list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        given = [self.inputs[i.name] for i in self.model.graph.input]
        self.sets = [(given, list(range(len(self.model.graph.output))))]

    @cached_property
    def wanted(self) -> list[Worlds]:
        """The outputs in every world. Raises Rejected."""
        return evaluated(self.model, self.inputs)

    @cached_property
    def second(self) -> list[Array] | None:
        """What onnxruntime gives, or None where it refuses the model."""
        return by_onnxruntime(self.model, self.inputs)

    def second_of(self, place: int) -> Array | None:
        """What onnxruntime gives for one output, by the whole model or by what leads to it."""
        if self.second is not None:
            return np.asarray(self.second[place])
        alone = pruned(self, [self.model.graph.output[place].name])
        found = by_onnxruntime(alone.model, alone.inputs)
        return None if found is None else np.asarray(found[0])

    def compare(self, got: Array, place: int) -> None:
        """Raises AssertionError where a result is neither what the reference nor what onnxruntime
        says."""
        worlds = self.wanted[place]
        if said := differs(got, worlds[0], worlds):
            other = self.second_of(place)
            if other is None or differs(got, other, worlds):
                beside = "" if other is None else f", onnxruntime {_few(other)}"
                name = self.model.graph.output[place].name
                raise AssertionError(f"{name}: {said}{beside}")


def by_onnxruntime(model: Any, inputs: Mapping[str, Array]) -> list[Array] | None:
    """What it gives without its optimiser, or None where it refuses the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, dict(inputs)))
    except Exception:  # its errors have no common class
        return None


def differs(got: Array, wanted: Array, worlds: Worlds) -> str:
    """What is wrong with a result, or nothing."""
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"{got.dtype}{list(got.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind != "f":
        sure = np.all([w == worlds[0] for w in worlds], 0)
        far = sure & (got != wanted)
    else:
        wide = [w.astype("f8") for w in worlds]
        spread = np.max([np.abs(w - wide[0]) for w in wide], 0) * SPREADS
        kind = wanted.dtype.name
        # an element near zero may come of greater ones, as in a logarithm of almost 1
        finest = FINEST[kind] * max(1.0, np.abs(wide[0]).max(initial=0.0))
        allowed = spread + RTOL[kind] * np.abs(wide[0]) + finest
        far = ~(np.abs(got.astype("f8") - wanted.astype("f8")) <= allowed)
    if not far.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(far)[0])
    return f"{int(far.sum())} of {far.size} differ, {list(at)}: {got[at]}, expected {wanted[at]}"


def _few(values: Any) -> str:
    return str(np.asarray(values).reshape(-1)[:6].tolist())


def evaluated(model: Any, inputs: Mapping[str, Array]) -> list[Worlds]:
    """The outputs of a model in every world. Raises Rejected."""
    leaves = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | dict(inputs)
    values = {n: around(n, a) for n, a in leaves.items()}
    for node in model.graph.node:
        found = compute(node, [values[n] for n in node.input if n], _opset(model))
        values |= dict(zip(node.output, found, strict=True))
    return [values[o.name] for o in model.graph.output]


# ---- drawing


def drawn(seed: str) -> Case:
    """A graph of some nodes; some of its values are outputs, those that nobody reads for sure."""
    rng = random.Random(seed)
    d = Draw(rng, rng.choice(OPSETS))
    count = rng.randint(*NODES)
    builders, weights = zip(*BUILDERS, strict=True)
    for _ in range(12 * count):
        if len(d.nodes) >= count:
            break
        before = len(d.nodes), dict(d.inputs), dict(d.constants), dict(d.values), list(d.made)
        try:
            rng.choices(builders, weights)[0](d)
        except (Rejected, ValueError, IndexError):  # the latter where an extent is 0
            del d.nodes[before[0] :]
            d.inputs, d.constants, d.values, d.made = before[1:]
    read = {n for node in d.nodes for n in node.input}
    outputs = [n for n in d.made if n not in read or rng.random() < 0.15]
    model = model_of(d.nodes, d.inputs, d.constants, d.values, outputs, d.opset)
    return Case(f"onnx {seed}", model, d.inputs)


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    values: Mapping[str, Worlds],
    outputs: Sequence[str],
    opset: int,
) -> Any:
    def declared(name: str, array: Array) -> Any:
        return helper.make_tensor_value_info(name, number(array), array.shape)

    graph = helper.make_graph(
        list(nodes),
        "random",
        [declared(n, a) for n, a in inputs.items()],
        [declared(n, values[n][0]) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    ir = min(10, onnx.IR_VERSION)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def cases(seed: int, first: int, count: int) -> list[Case]:
    return [drawn(f"{seed} {i}") for i in range(first, first + count)]


# ---- finding and shrinking


def failures(
    wanted: Sequence[Case], how: onnx_suite.How = onnx_suite.WHOLE
) -> Iterator[tuple[Case, str, str]]:
    """The cases that fail, their verdicts and what is said."""
    by_name = {c.name: c for c in wanted}
    for r in onnx_suite.run(wanted, how=how):
        if r.verdict in BAD:
            yield by_name[r.name], r.verdict, r.detail


def kind_of(verdict: str, said: str) -> str:
    """What failures of one cause have in common."""
    last = said.strip().split("\n")[-1] if verdict == "error" else ""
    return verdict + "".join(c for c in last[:60] if not c.isdigit())


def shrunk(case: Case, verdict: str, said: str, how: onnx_suite.How = onnx_suite.WHOLE) -> Case:
    """A smaller model that fails in the same way, after a while at most."""
    end, kind = time.process_time() + SHRINK_S, kind_of(verdict, said)
    smaller = True
    while smaller and time.process_time() < end:
        smaller = False
        for candidate in candidates(case):
            if time.process_time() > end:
                break
            try:
                candidate.wanted  # noqa: B018  raises Rejected
            except Rejected:
                continue
            if any(kind_of(v, s) == kind for _, v, s in failures([candidate], how)):
                case, smaller = candidate, True
                break
    return case


def pruned(
    case: Case,
    outputs: Sequence[str],
    cut: Sequence[str] = (),
    nodes: Sequence[Any] | None = None,
) -> Case:
    """The case with these outputs only; values that are ``cut`` become inputs."""
    graph = case.model.graph
    arrays = values_of(case)
    needed, kept = set(outputs), list[Any]()
    for node in reversed(graph.node if nodes is None else nodes):
        if needed & (set(node.output) - set(cut)):
            kept.append(node)
            needed |= {n for n in node.input if n}
    inputs = {n: arrays[n] for n in (*case.inputs, *cut) if n in needed}
    constants = {t.name: arrays[t.name] for t in graph.initializer if t.name in needed}
    worlds = {n: (a,) for n, a in arrays.items()}
    model = model_of(kept[::-1], inputs, constants, worlds, outputs, _opset(case.model))
    return Case(case.name, model, inputs)


def values_of(case: Case) -> dict[str, Array]:
    """Every value of a case by the reference. Raises Rejected."""
    arrays = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
    arrays |= case.inputs
    for node in case.model.graph.node:
        given = [(arrays[n],) for n in node.input if n]
        found = compute(node, given, _opset(case.model))
        arrays |= {n: w[0] for n, w in zip(node.output, found, strict=True)}
    return arrays


def _opset(model: Any) -> int:
    return next(int(e.version) for e in model.opset_import if not e.domain)


def candidates(case: Case) -> Iterator[Case]:
    """Models with less of it: one output, a value on the way as an input, no attribute."""
    nodes = list(case.model.graph.node)
    outputs = [o.name for o in case.model.graph.output]
    made = [n for node in nodes for n in node.output if n not in outputs]
    if len(outputs) > 1:
        yield from (pruned(case, [o]) for o in outputs)
    yield from (pruned(case, [n]) for n in made)
    yield from (pruned(case, outputs, [n]) for n in reversed(made))
    for i, node in enumerate(nodes):
        for a in node.attribute:
            less = onnx.NodeProto()
            less.CopyFrom(node)
            less.attribute.remove(a)
            yield pruned(case, outputs, (), [*nodes[:i], less, *nodes[i + 1 :]])


# ---- files


def dump(case: Case) -> str:
    """A case as text: the model, and what its inputs are."""
    inputs = {n: [a.dtype.name, a.shape, a.reshape(-1).tolist()] for n, a in case.inputs.items()}
    return json.dumps({"inputs": inputs, "model": json_format.MessageToDict(case.model)}, indent=1)


def load(text: str, name: str = "kept") -> Case:
    whole = json.loads(text)
    model = json_format.ParseDict(whole["model"], onnx.ModelProto())
    inputs = {n: np.array(v, d).reshape(s) for n, (d, s, v) in whole["inputs"].items()}
    return Case(name, model, inputs)


def keep(found: Path, name: str, case: Case, said: str) -> None:
    found.mkdir(parents=True, exist_ok=True)
    (found / f"{name}.json").write_text(dump(case))
    (found / f"{name}.txt").write_text(f"{said}\n\n{onnx.printer.to_text(case.model)}\n")


def fuzz(
    folder: Path,
    seed: int,
    first: int,
    go_on: Callable[[], bool],
    make: Callable[[int, int, int], list[Case]] = cases,
) -> dict[str, int]:
    """Batches while there is time; the first finding of a kind is shrunk and kept. ``make`` gives
    the cases of so many numbers of a seed, from one on; some have none."""
    count: Counter[str] = Counter()
    known = set[str]()
    tempfile.tempdir = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    while go_on():
        start = first + count["graphs"]
        batch = make(seed, start, BATCH)
        by_name = {c.name: c for c in batch}
        how = ORDINARY if start // BATCH % OPTIMISED == 0 else HASTY
        for r in onnx_suite.run(batch, batch=BATCH, how=how):
            count["refused"] += r.verdict == "refused"
            if r.verdict not in BAD:
                continue
            count["findings"] += 1
            kind = kind_of(r.verdict, r.detail)
            if kind not in known:
                known.add(kind)
                case, name = by_name[r.name], r.name.replace(" ", "-")
                keep(folder.parent / "found", name, case, r.detail)
                print(f"{name}: {r.verdict}: {r.detail[-300:]}", flush=True)
                small = shrunk(case, r.verdict, r.detail, how)
                keep(folder.parent / "found", f"{name}-small", small, r.detail)
        count["graphs"] += BATCH
        count["judged"] += len(batch)
        for part in folder.iterdir():
            shutil.rmtree(part, ignore_errors=True)
    return dict(count)
