"""Where graphs come from: imported models, graph files, Python; and what binds their dims."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lumc.artifacts import files
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.frontend.api.finish import save
from lumc.frontend.precision import Precision, reduce_precision
from lumc.graph.dim import Dim
from lumc.report.log import Log

if TYPE_CHECKING:
    from lumc.frontend.api.model import Model
    from lumc.frontend.models.cache import Cache
    from lumc.graph.graph import Graph

Dims = Mapping[str, int | Dim]
POINTS = re.compile(r"([^=]+)=(\d{1,18}(?:,\d{1,18})*)")
VALUE = re.compile(r".+=[^=]+")
COUNT = re.compile(r".+=[1-9]\d{0,5}")
SHAPE = re.compile(r".+=\d{1,18}(?:,\d{1,18})*")
DIM = re.compile(r"([^=]+)=(\d+)(?:\.\.(\d+)(?::(\d+))?)?")


def parse_dims(values: Sequence[str]) -> dict[str, int | Dim]:
    """``("b=1", "s=1..128", "w=8..64:8")``: numbers, and bounds with a multiple; E0203 for anything
    else."""
    dims = dict[str, int | Dim]()
    for value in values:
        found = DIM.fullmatch(value)
        if not found:
            what, fix = f"--dim {value}: expected NAME=NUMBER or NAME=LEAST..MOST", "--dim s=128"
            raise LumcError("E0203", what, fix=f"for example {fix}", exit=Exit.USAGE)
        name, lo, hi, multiple = found.groups()
        dims[name] = Dim(name, int(lo), int(hi), int(multiple or 1)) if hi else int(lo)
    return dims


def parse_points(values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``("s=1,16,512",)``: values of dims; E0203 for anything else."""
    points = dict[str, tuple[int, ...]]()
    for value in values:
        found = POINTS.fullmatch(value)
        if not found:
            what, fix = f"--tune {value}: expected NAME=N,N,..", "for example --tune s=1,16,512"
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
        points[found[1]] = tuple(map(int, found[2].split(",")))
    return points


class Given(NamedTuple):
    """What is known of an ONNX model: ``--value`` and ``--shape`` of inputs, ``--count`` of nodes,
    by name."""

    values: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    counts: Mapping[str, int]


def parse_given(
    values: Sequence[str], shapes: Sequence[str], counts: Sequence[str]
) -> Given | None:
    """``("sr=16000",)``, ``("x=1,3,48,192",)`` and ``("nms=100",)``; E0203 for anything else."""
    for text in values:
        if not VALUE.fullmatch(text):
            what, fix = f"--value {text}: expected NAME=NUMBERS", "for example --value sr=16000"
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    for text in shapes:
        if not SHAPE.fullmatch(text):
            what, fix = f"--shape {text}: expected NAME=N,N,..", "for example --shape x=1,3,48,192"
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    for text in counts:
        if not COUNT.fullmatch(text):
            what, fix = f"--count {text}: expected NODE=NUMBER", "for example --count nms=100"
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    pairs = [text.rpartition("=") for text in shapes]
    extents = {name: tuple(map(int, numbers.split(","))) for name, _, numbers in pairs}
    known = {name: number for name, _, number in (text.rpartition("=") for text in values)}
    rows = {name: int(number) for name, _, number in (text.rpartition("=") for text in counts)}
    return Given(known, extents, rows) if values or shapes or counts else None


def import_model(
    source: str,
    output: str,
    dims: tuple[str, ...],
    copy_weights: bool,
    wanted: Precision,
    verbose: int,
    cache: Cache | None = None,
    given: Given | None = None,
) -> None:
    """``lumc import``."""
    log = Log(verbose)
    bound: Dims = parse_dims(dims)
    artifact.check_writable(output)
    with log.step("import"):
        model = open_model(source, bound, cache, given)
        left = left_to_bind(source, bound)
        change = partial(reduce_precision, wanted=wanted)
        write_graph(model, source, output, left, copy_weights, change)


def left_to_bind(source: str, dims: Dims) -> Dims:
    """The dims that are not bound while the model is imported, as shapes may need them then."""
    return {} if Path(source).suffix in (".onnx", ".pt2") else dims


def write_graph(
    model: Model,
    source: str,
    output: str,
    dims: Mapping[str, int | Dim],
    copy: bool = False,
    change: Callable[[Graph], Graph] = lambda graph: graph,
) -> None:
    """The graph of a model that was read from ``source``, with its tokenizer beside it."""
    words = tokenizer_of(source, model)
    save(model.graph(), output, dims, copy, change, model.read_weight, words)


def tokenizer_of(source: str, model: Model) -> str:
    """The text of the tokenizer that a model of texts comes with, one with states or an encoder of
    sentences; says why there is none."""
    from lumc.tokenizer import sources as tokenizers
    from lumc.tokenizer.folder import has_tokenizer
    from lumc.tokenizer.tokenizer import dump

    path = Path(source)
    encodes = has_tokenizer(path) and (path / "modules.json").is_file()
    if not (model.builder.states or encodes) or not (path.is_dir() or path.suffix == ".gguf"):
        return ""
    try:
        return dump(tokenizers.of_source(source))
    except LumcError as e:
        Log()(0, f"note: texts will need a --tokenizer, the model has none: {e.what}")
        return ""


FOREIGN = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), "export the model: torch.export.save"),
    **dict.fromkeys((".h5", ".keras", ".pb", ".tflite"), "convert it to ONNX: tf2onnx"),
    ".safetensors": "name the folder with its config.json",
    ".py": "name a function of it that returns a Model: script.py:function",
}


def open_model(
    source: str,
    dims: Mapping[str, int | Dim],
    cache: Cache | None = None,
    given: Given | None = None,
) -> Any:
    """The frontend that reads ``source``, by what it is."""
    path = Path(source)
    if given and path.suffix != ".onnx":
        what = f"--value, --shape and --count are for ONNX models, not for {source}"
        fix = "bind its dims: --dim NAME=N"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    if (path / "manifest.json").is_file() and not (path / "config.json").is_file():
        what, fix = f"cannot import {source}: it is a bundle", f"lumc run {source}"
        raise LumcError("E0502", what, fix=fix, exit=Exit.CORRUPT)
    if path.is_dir() and (path / "config.json").exists():
        from lumc.frontend.models.huggingface import import_folder

        return import_folder(path, cache, say=lambda line: Log()(0, f"note: {line}"))
    if cache and path.suffix != ".gguf":
        what, fix = f"{source} has no context", "--context is for GGUF files and folders"
        raise LumcError("E0326", what, fix=fix, exit=Exit.USAGE)
    if path.suffix == ".onnx":
        return _onnx_model(path, dims, given)
    if path.suffix == ".pt2":
        from lumc.frontend.aten.pt2 import import_pt2

        return import_pt2(path, dims)
    if path.suffix == ".gguf":
        from lumc.frontend.models.gguf import import_gguf

        return import_gguf(path, cache)
    if ".py:" in source:
        from lumc.frontend.script import import_script

        return import_script(source)
    if not path.exists():
        raise LumcError("E0201", f"cannot read {source}: there is no such file", exit=Exit.USAGE)
    if path.is_file():
        with path.open("rb") as f:
            if kind := artifact.kind_of(f.read(4096).decode(errors="replace")):
                raise artifact.unexpected("model", kind, source)
    what = f"cannot import {source}" + (": it has no config.json" if path.is_dir() else "")
    usual = "a folder with config.json, a .gguf, .onnx or .pt2 file, or script.py:function"
    fix = FOREIGN.get(path.suffix, usual)
    raise LumcError("E0205", what, fix=fix, exit=Exit.USAGE)


def _onnx_model(path: Path, dims: Mapping[str, int | Dim], given: Given | None) -> Model:
    from lumc.frontend.onnx import given as told
    from lumc.frontend.onnx import import_source
    from lumc.frontend.onnx.load import read_model

    source, known = read_model(path), given or Given({}, {}, {})
    bound = {**told.dims(source, known.shapes), **dims}
    return import_source(source, bound, told.values(source, known.values), known.counts)


def graph_from_anything(
    source: str | Model, made: Path, bound: Sequence[str], allowed: Sequence[str]
) -> Graph:
    """A graph file, or whatever ``import`` reads, imported to ``made``; from Python, a model."""
    dims = parse_dims(bound)
    if not isinstance(source, str):
        source.save(str(made), dims)
        return files.read_graph(str(made), {})
    if is_artifact(source):
        graph = files.read_graph(source, dims, mesh=True)
        files.require_near(graph, source, allowed)
        return graph
    write_graph(open_model(source, dims), source, str(made), left_to_bind(source, dims))
    return files.read_graph(str(made), {})


def is_artifact(source: str) -> bool:
    """Whether it is read as a graph, or refused as another artifact, and not imported: a file that
    begins so, stdin, a pipe."""
    path = Path(source)
    if source == "-" or path.is_fifo():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as f:
        known = artifact.kind_of(f.read(4096).decode(errors="replace"))
    return source.endswith(".lg") or bool(known)
