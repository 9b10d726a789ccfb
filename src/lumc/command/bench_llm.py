"""``lumc bench --llm``: tokens per second of a language model, beside other engines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.peers import PEERS, memory, serve, version
from lumc.peers.race import Ask, Cell, Test, parse, race
from lumc.process import Lost, Process

TESTS = "pp16,pp128,pp512,tg32,tg32@512,tg32@2048"
PATIENCE_S = 600.0  # for one answer
WEIGHTS = "weights.safetensors"
Row = dict[str, Any]


def bench_llm(
    path: str,
    peers: Sequence[str],
    tests: str,
    threads: Sequence[int],
    seconds: float,
    as_json: bool,
) -> None:
    """Prints a table as llama-bench does, or rows as JSON. Raises E0203 for peers that are not
    known or not installed, and what opening the bundle raises."""
    wanted, files = parse(tests), {"lumc": path, **asked(peers)}
    words, context = sizes(path)
    run = [t for t in wanted if t.n + t.depth <= context]
    if not run:
        what = f"no test fits into a context of {context} tokens"
        fix = "name others with --tests, or import the model with a larger --context"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    rows = list[Row]()
    for n in threads:
        rows += raced(files, run, n, seconds, words, context)
    left = [t.name for t in wanted if t not in run]
    if as_json:
        print(json.dumps(rows))
    else:
        print("\n".join(table(rows)))
        for name in left:
            print(f"{name}: not run, the context has {context} tokens")


def asked(peers: Sequence[str]) -> dict[str, str]:
    """Files of peers by name, of texts ``NAME=FILE``."""
    out = dict[str, str]()
    for text in peers:
        name, sign, file = text.partition("=")
        others = {n: reads for n, (_, _, reads) in PEERS.items() if n != "lumc"}
        if name not in others or not sign or not file:
            what = f"--peer {text}: the name of an engine and what it reads"
            fix = ", ".join(f"{n}=FILE ({reads})" for n, reads in others.items())
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
        if not Path(file).exists():
            raise LumcError("E0201", f"cannot read {file}", exit=Exit.USAGE)
        if not version(name):
            fix = f"pip install {PEERS[name][1]}"
            raise LumcError("E0203", f"{name} is not installed", fix=fix, exit=Exit.USAGE)
        out[name] = file
    return out


def sizes(path: str) -> tuple[int, int]:
    """How many words the model of a bundle knows, and how long a text may be."""
    from lumc.generate.language import Kept
    from lumc.runtime.choose import open_bundle

    with open_bundle(path, say=lambda line: None) as bundle:
        model = Kept(bundle)
        (logits,) = (t for t in bundle.entry("decode").outputs if t.name == "logits")
        return logits.shape[-1], model.context


def raced(
    files: Mapping[str, str],
    tests: Sequence[Test],
    threads: int,
    seconds: float,
    words: int,
    context: int,
) -> Iterator[Row]:
    """The rows of all tests, each engine in a process of its own."""
    with ExitStack() as stack:
        doing("measuring how fast memory is read")
        speed = answer(started(stack, memory.serve, threads))
        engines = dict[str, Ask]()
        for name, file in files.items():
            doing(f"loading the model into {name}")
            process = started(stack, serve, name, file, threads, context)
            engines[name] = partial(answer, process)
            if isinstance(failed := answer(process, ""), str) and name == "lumc":
                raise LumcError("E0601", f"the bundle does not run: {failed}")
        doing(f"timing {', '.join(files)} at {threads} threads")
        for cells in race(tests, engines, threads, seconds, words):
            mine = cells[0].best if cells[0].seconds else 0.0
            yield from (row(c, files[c.engine], speed, mine) for c in cells)


def started(stack: ExitStack, serve: Any, *arguments: Any) -> Process:
    process = Process(serve, *arguments)
    stack.callback(process.kill)
    return process


def answer(process: Process, *question: Any) -> float | str:
    """What a process says, or why it says nothing more."""
    try:
        said: float | str = process.ask(question, PATIENCE_S)
        return said
    except Lost as e:
        return str(e)


def row(cell: Cell, file: str, speed: float | str, mine: float) -> Row:
    """A cell with what it means: how fast its weights would be read if each token reads all of
    them, which share of the memory's speed that is, and how much faster lumc is."""
    out: Row = {"engine": cell.engine, "version": version(cell.engine), "threads": cell.threads}
    out |= {"test": cell.test.name, "bytes": weight_bytes(file)}
    if not cell.seconds:
        return out | {"failed": cell.failed}
    out |= {"tokens_per_second": cell.best, "median_tokens_per_second": cell.usual}
    if cell.test.kind == "tg" and isinstance(speed, float):
        out |= {"of_memory": out["bytes"] * cell.best / 1e9 / speed, "memory_gb_per_second": speed}
    if mine and cell.engine != "lumc":
        out["ratio"] = mine / cell.best
    return out


def weight_bytes(file: str) -> int:
    """Of a model: the file, or the files of weights in a folder."""
    path = Path(file)
    if path.is_file():
        return path.stat().st_size
    if (path / WEIGHTS).is_file():
        return (path / WEIGHTS).stat().st_size
    found = [p for s in ("safetensors", "bin", "data", "onnx") for p in path.glob(f"*.{s}")]
    return sum(p.stat().st_size for p in found)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Rows as Markdown."""
    heads = ("engine", "size", "threads", "test", "t/s", "median", "of memory", "lumc is faster by")
    yield f"| {' | '.join(heads)} |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in rows:
        cells = [f"{r['engine']} {r['version']}", f"{r['bytes'] / 2**20:.2f} MiB"]
        cells += [str(r["threads"]), r["test"]]
        if "failed" in r:
            cells += [f"failed: {r['failed'][:100]}", "", "", ""]
        else:
            cells += [f"{r[n]:.2f}" for n in ("tokens_per_second", "median_tokens_per_second")]
            cells += [f"{r['of_memory']:.0%}" if "of_memory" in r else ""]
            cells += [f"{r['ratio']:.2f}" if "ratio" in r else ""]
        yield f"| {' | '.join(cells)} |"
