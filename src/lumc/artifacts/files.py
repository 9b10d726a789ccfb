"""Graphs and artifacts as files.

In memory the paths of weight files are absolute; in a file they are relative to its folder where
they lie below it, and they never count in a digest.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumc.disk import artifact
from lumc.errors import Exit, LumcError

if TYPE_CHECKING:
    from lumc.codegen.code import Code
    from lumc.graph.dim import Dim
    from lumc.graph.graph import Graph, WeightFile
    from lumc.schedule.plan import Plan
    from lumc.search.space import Space


def read_graph(path: str, dims: Mapping[str, int | Dim], mesh: bool = False) -> Graph:
    """A ``.lg`` file, verified, with some dims bound. Raises E0140 for one for a ``mesh``, where
    the caller has no use for it."""
    from lumc.graph.ranks import require_one_rank

    text, base = artifact.read_text(path)
    graph = graph_from_text(text, base, path, dims)
    if not mesh:
        require_one_rank(graph, "this command")
    return graph


def graph_from_text(text: str, base: Path, path: str, dims: Mapping[str, int | Dim]) -> Graph:
    from lumc.graph.bind import bind_dims
    from lumc.graph.text import parse_graph
    from lumc.graph.verify import verify_graph

    if (kind := artifact.kind_of(text)) not in ("", "graph"):
        raise artifact.unexpected("graph", kind, path)
    graph = parse_graph(text, "stdin" if path == "-" else path, lambda p: str(base / p))
    if dims:
        graph = bind_dims(graph, dims)
    verify_graph(graph)
    return graph


def require_near(graph: Graph, path: str, allowed: Sequence[str] = ()) -> None:
    """The files that a graph in a file names lie in its folder (of stdin: the current one), in one
    that is allowed, or below these. Raises E0506, exit 5: a stranger's may name any other."""
    base = Path.cwd() if path == "-" else Path(path).resolve().parent
    folders = [base, *(Path(p).resolve() for p in allowed)]
    for file in graph.files:
        whole = Path(file.path).resolve()
        if not any(whole.is_relative_to(f) for f in folders):
            kind = "tokenizer lies" if file == graph.tokenizer else "weights lie"
            what = f"the {kind} outside of the folder of {path}: {whole}"
            option = f"--allow-path {shlex.quote(str(whole.parent))}"
            fix = f"if you know the file: {option}, or import with --copy-weights"
            raise LumcError("E0506", what, fix=fix, exit=Exit.CORRUPT)


def graph_digest(graph: Graph) -> str:
    """The sha256 of a graph, wherever its weights lie."""
    from lumc.graph.text import print_graph

    return hashlib.sha256(print_graph(graph, lambda f: f.sha256).encode()).hexdigest()


def with_graph(graph: Graph, body: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A body with its graph; ``path`` is where it will be written."""
    from lumc.graph.text import print_graph

    files = graph.files
    base = Path.cwd() if path == "-" else Path(path).resolve().parent
    rows = [{"path": relative(f, base), "size": f.size, "sha256": f.sha256} for f in files]
    return {**body, "graph": print_graph(graph, lambda f: f"f{files.index(f)}"), "files": rows}


def relative(file: WeightFile, base: Path) -> str:
    whole = Path(file.path).resolve()
    return (whole.relative_to(base) if whole.is_relative_to(base) else whole).as_posix()


def _graph_of(read: artifact.Artifact, where: str) -> Graph:
    from lumc.graph.buckets import in_buckets
    from lumc.graph.text import parse_graph

    with artifact.fields(read.kind, where):
        paths = {f"f{i}": str(read.base / str(f["path"])) for i, f in enumerate(read.body["files"])}
        graph = parse_graph(str(read.body["graph"]), where, lambda p: paths[p])
        return in_buckets(graph)


def space_from_text(text: str, base: Path, path: str) -> tuple[Space, str]:
    """A ``.ls`` and its digest."""
    from lumc.artifacts.bodies import space_from_json

    read = artifact.parse(text, "space", path, base)
    graph = _graph_of(read, path)
    with artifact.fields("search space", path):
        return space_from_json(read.body, graph), read.digest


def plan_from_text(text: str, base: Path, path: str) -> tuple[Plan, str]:
    """A ``.lp`` and its digest."""
    from lumc.artifacts.bodies import plan_from_json

    read = artifact.parse(text, "plan", path, base)
    graph = _graph_of(read, path)
    with artifact.fields("plan", path):
        return plan_from_json(read.body, graph), read.digest


def code_from_text(text: str, base: Path, path: str) -> tuple[Code, str]:
    """A ``.lk`` and its digest."""
    from lumc.artifacts.bodies import code_from_json

    read = artifact.parse(text, "kernels", path, base)
    graph = _graph_of(read, path)
    with artifact.fields("kernels", path):
        return code_from_json(read.body, graph), read.digest


def write(value: Space | Plan | Code, input: str, output: str) -> str:
    """Write the artifact that was made from the one with digest ``input``; returns its digest."""
    kind, body = _body(value, output)
    artifact.write_text(output, artifact.dump(kind, input, body))
    return artifact.digest(body)


def digest(value: Space | Plan | Code) -> str:
    """The digest that the artifact will have, wherever it is written."""
    return artifact.digest(_body(value, "-")[1])


def _body(value: Space | Plan | Code, path: str) -> tuple[str, dict[str, Any]]:
    from lumc.artifacts import bodies

    forms: dict[str, tuple[str, Any]] = {
        "Space": ("space", bodies.space_to_json),
        "Plan": ("plan", bodies.plan_to_json),
        "Code": ("kernels", bodies.code_to_json),
    }
    kind, to_json = forms[type(value).__name__]
    return kind, with_graph(value.graph, to_json(value), path)
