"""Graphs that NNSmith generates (ASPLOS 2023, https://github.com/ise-uiuc/nnsmith), as PyTorch
exports them to ONNX: through the whole pipeline to compiled C, against onnxruntime and the onnx
package's reference.

A hundred of them lie in ``nnsmith.zip``, because NNSmith needs PyTorch and a solver. They are made
again, and more in ``make fuzz --kind nnsmith``, where the packages nnsmith and torch are installed:

    PYTHONPATH=tests python -m fuzz.nnsmith_graphs --seed 1 --count 100

What a solver finds in its time differs between machines, so other graphs may come of the same seed.
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import resource
import zipfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import numpy_helper

from fuzz import onnx_graphs
from fuzz.onnx_draw import KINDS, Array, Rejected
from fuzz.onnx_graphs import Case

KEPT = Path(__file__).parent / "nnsmith.zip"
OPSETS = (14, 16, 17, 18, 20)  # that PyTorch's exporter of traces writes
NODES = (3, 12)  # operators of NNSmith; several nodes each
ELEMENTS = 1000  # of a tensor, at most
SMALL = 64  # elements of a tensor whose values are kept; others are drawn
LEAST = 16  # elements of the largest input of one that is kept
SOLVER_MS = 5000
MEMORY = 4 << 30  # bytes: a padding of billions of elements is no model
MODERATE = 0.5  # of weights, so that sums of many of them stay small


class Silent(AssertionError):
    """A result that says nothing."""


@dataclass
class Generated(Case):
    """Both references agree on its outputs, none of which is zero throughout."""

    kind: str = "nnsmith"

    def compare(self, got: Array, place: int) -> None:
        if is_silent(got):
            raise Silent(f"{self.model.graph.output[place].name}: zeros or NaN only")
        super().compare(got, place)


def is_silent(array: Array) -> bool:
    """Whether it has nothing but zeros, or nothing but NaN, or no element."""
    return not array.any() or (array.dtype.kind == "f" and bool(np.isnan(array).all()))


def completed(name: str, model: Any) -> Generated:
    """The case of a model: weights without values, and inputs, follow from their names."""
    for t in model.graph.initializer:
        if not t.HasField("raw_data"):
            drawn = value(f"{name} {t.name}", tuple(t.dims), t.data_type) * MODERATE
            t.raw_data = drawn.astype(onnx.helper.tensor_dtype_to_np_dtype(t.data_type)).tobytes()
    inputs = {i.name: value(f"{name} {i.name}", *_type(i)) for i in model.graph.input}
    return Generated(name, model, inputs)


def value(name: str, shape: tuple[int, ...], kind: int) -> Array:
    """Random numbers that follow from a name: floats of [-2, 2], integers of [-4, 4]."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    numbers = np.random.default_rng(crc32(name.encode()))
    if dtype.kind == "b":
        return numbers.random(shape) < 0.5
    if dtype.kind in "iu":
        return numbers.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)
    return numbers.uniform(-2, 2, shape).astype(dtype)


def _type(declared: Any) -> tuple[tuple[int, ...], int]:
    tensor = declared.type.tensor_type
    return tuple(x.dim_value for x in tensor.shape.dim), tensor.elem_type


def kept() -> list[Generated]:
    """The hundred, in a fixed order."""
    with zipfile.ZipFile(KEPT) as file:
        return [completed(n, onnx.load_from_string(file.read(n))) for n in file.namelist()]


# ---- making them, with NNSmith


@cache
def operators() -> Any:
    """NNSmith's model type, and the operators with the dtypes that PyTorch computes and exports."""
    import torch
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, most))
    torch.set_num_threads(1)
    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    found = auto_opset(kind, None)
    activate_ext(opset=found, factory=None)
    return kind, found


def exported(seed: int) -> Any:
    """One model as PyTorch writes it, or None where NNSmith or the exporter refuses."""
    import torch
    from nnsmith.graph_gen import model_gen

    kind, known = operators()
    rng = random.Random(seed)
    file = io.BytesIO()
    try:
        made = model_gen(
            opset=known,
            method=rng.choice(("symbolic-cinit", "concolic", "symbolic-sinit")),
            seed=seed,
            max_elem_per_tensor=ELEMENTS,
            max_nodes=rng.randint(*NODES),
            timeout_ms=SOLVER_MS,
        )
        net = kind.from_gir(made.make_concrete()).torch_model.eval()
        net.disable_proxy_grad()
        given = [torch.ones(s.shape).to(s.dtype.torch()) for s in net.input_like.values()]
        names = {"input_names": list(net.input_like), "output_names": list(net.output_like)}
        with torch.no_grad():
            opset = rng.choice(OPSETS)
            torch.onnx.export(net, tuple(given), file, opset_version=opset, dynamo=False, **names)
    except Exception:  # neither has a common class of errors
        return None
    return onnx.load_from_string(file.getvalue())


def plain(model: Any) -> Any:
    """The model with names x, w, k, t and a number, its constants as initialisers, and without
    words. Raises Rejected."""
    given = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list[Any]()
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            given[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
            raise Rejected("a graph inside")
        else:
            nodes.append(node)
    fixed = {n for n, a in given.items() if a.size <= SMALL or a.dtype.kind != "f"}
    names = {i.name: f"x{n}" for n, i in enumerate(model.graph.input)}
    names |= {n: f"{'k' if n in fixed else 'w'}{i}" for i, n in enumerate(given)}
    for node in nodes:
        names |= {n: f"t{len(names)}" for n in node.output if n}
    out = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    out.graph.name = "nnsmith"
    for node in nodes:
        less = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        less.name = f"n{len(out.graph.node)}"
        less.input.extend(names[n] if n else "" for n in node.input)
        less.output.extend(names[n] if n else "" for n in node.output)
        out.graph.node.append(less)
    for n, a in given.items():
        tensor = numpy_helper.from_array(a, names[n])
        if n not in fixed:
            tensor.ClearField("raw_data")
        out.graph.initializer.append(tensor)
    for ours, theirs in (
        (out.graph.input, model.graph.input),
        (out.graph.output, model.graph.output),
    ):
        for i in theirs:
            ours.append(onnx.ValueInfoProto(name=names[i.name], type=i.type))
    return out


def judged(name: str, model: Any) -> Generated:
    """The case with those outputs that say something and on which both references agree. Raises
    Rejected."""
    whole = completed(name, _copy(model))
    found = onnx_graphs.by_onnxruntime(whole.model, whole.inputs)
    if found is None:
        raise Rejected("onnxruntime refuses it")
    sure = [
        o
        for o, worlds, other in zip(model.graph.output, whole.wanted, found, strict=True)
        if worlds[0].dtype.name in KINDS
        and not is_silent(worlds[0])
        and not onnx_graphs.differs(np.asarray(other), worlds[0], worlds)
    ]
    if not sure:
        raise Rejected("no result says anything")
    less = pruned(model, [o.name for o in sure])
    return completed(name, less)


def pruned(model: Any, outputs: list[str]) -> Any:
    """What leads to these outputs."""
    needed, nodes = set(outputs), list[Any]()
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    less = _copy(model)
    for kind in ("node", "initializer", "input", "output"):
        less.graph.ClearField(kind)
    less.graph.node.extend(nodes[::-1])
    less.graph.initializer.extend(t for t in model.graph.initializer if t.name in needed)
    less.graph.input.extend(i for i in model.graph.input if i.name in needed)
    less.graph.output.extend(o for o in model.graph.output if o.name in outputs)
    return less


def _copy(model: Any) -> Any:
    out = onnx.ModelProto()
    out.CopyFrom(model)
    return out


def numbered(seed: int, number: int) -> tuple[Generated, Any]:
    """A case, and the model that it was made of. Raises Rejected."""
    model = exported(seed * 1_000_003 + number)
    if model is None:
        raise Rejected("not exported")
    bare = plain(model)
    case = judged(f"nnsmith-{seed}-{number}.onnx", bare)
    return case, pruned(bare, [o.name for o in case.model.graph.output])


def cases(seed: int, first: int, count: int) -> list[Case]:
    """Those of so many numbers that can be judged."""
    found = list[Case]()
    for i in range(first, first + count):
        with suppress(Rejected):
            found.append(numbered(seed, i)[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Make nnsmith.zip again, with other operators.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--output", type=Path, default=KEPT)
    args = parser.parse_args()
    said, known = Counter[str](), set[tuple[str, ...]]()
    with zipfile.ZipFile(args.output, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for i in itertools.count():
            try:
                case, model = numbered(args.seed, i)
            except Rejected as e:
                said[str(e)[:60]] += 1
                continue
            about = tuple(sorted(n.op_type for n in model.graph.node))
            # each has other nodes; a solver likes extents of 1, where little can fail
            if about in known or max((a.size for a in case.inputs.values()), default=0) < LEAST:
                said["small, or the nodes of an earlier one"] += 1
                continue
            known.add(about)
            entry = zipfile.ZipInfo(case.name)  # without a date
            file.writestr(entry, model.SerializeToString(), zipfile.ZIP_DEFLATED, 9)
            if len(known) == args.count:
                break
    print(f"{len(known)} of {i + 1}; left out: {dict(said)}")


if __name__ == "__main__":
    main()
