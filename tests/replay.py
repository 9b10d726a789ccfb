"""What the compiler decides and prints, as digests: the net under changes that must change nothing.

    make replay                              build/replay.json, and one digest of it all
    python tests/replay.py --against FILE    also every row that another run had differently
    python tests/replay.py --collect FOLDER  adds the kernels of the plans (.lp) below a folder

Every kernel of ``kernel_zoo`` and of the zoo of networks and operators (``zoo_kernels.jsonl.gz``)
is lowered and printed by its default schedule for every machine of ``MACHINES`` and, in turn, one
of the others. For one kernel in ``SPACES`` the space on one of ``MACHINES``, the moves in it and
schedules drawn from it are looked at too. The sample graphs go through search, profile --estimate
and codegen. Nothing is timed, compiled or run, and nothing depends on this machine, on hash seeds
or on where our code lies: docs/replay.md.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kernel_zoo import FAMILIES
from lumc.artifacts import files
from lumc.codegen.generate import generate, print_source
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Program
from lumc.disk import artifact
from lumc.errors import LumcError
from lumc.graph.bind import bind_dims
from lumc.kernel.bound import bound_us
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.key import canonical, kernel_key
from lumc.kernel.machines import CPUS, FEATURES, GPUS, resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.choose import estimate
from lumc.profile.price import program_us, scheduled
from lumc.schedule.fragment import matrix_speed
from lumc.schedule.moves import neighbours, stroll, structures
from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar
from lumc.search import search
from lumc.search.saturate import Limits

Row = Mapping[str, str]  # section -> a digest, or a number as text
Rows = dict[str, Row]

ROOT = Path(__file__).parents[1]
STORE = Path(__file__).with_name("zoo_kernels.jsonl.gz")
GRAPHS = tuple(sorted((ROOT / "graphs").glob("*.lg")))
DIM = 64  # of every dim of a sample graph
MACHINES = ("cpu:x86-64-v4", "cpu:x86-64-v3", "cuda:sm_90+tf32", "metal:apple9")
THREADS = {"cpu:x86-64-v3": 2}  # one on every other
WHOLE = ("cpu:x86-64-v3", "cuda:sm_90+tf32")  # the machines of sample graphs
SPACES = 3
DRAWS = 2  # schedules of each kind that are drawn from a space


def every_machine() -> list[str]:
    """The names of all targets but native ones, each with and without its features."""
    cpus = [f"cpu:{arch}" for arch in CPUS]
    gpus = [f"{kind}:{arch}" for kind, archs in GPUS.items() for arch in archs]
    more = [f"{name}+{f}" for name in gpus for f in FEATURES.get(name.partition(":")[0], ())]
    return [*cpus, *gpus, *more]


OTHERS = tuple(name for name in every_machine() if name not in MACHINES)


def machine(name: str) -> Target:
    return replace(resolve_target(name), threads=THREADS.get(name, 1))


# ---- kernels


def kernels() -> dict[str, Kernel]:
    """Those of the tests and those of the zoo, by what they are called in the rows."""
    own = {
        " ".join(map(str, (family.__name__, *shape))): family(*shape)
        for family, shapes in FAMILIES.items()
        for shape in shapes
    }
    return own | stored()


def stored() -> dict[str, Kernel]:
    """The kernels of the zoo: one JSON line each, its name and the kernel as in a plan."""
    rows = map(json.loads, gzip.decompress(STORE.read_bytes()).splitlines())
    return {row["name"]: from_plain(Kernel, row["kernel"]) for row in rows}


def collect(folder: Path) -> dict[str, Kernel]:
    """The stored kernels and new ones of the plans below a folder, named by where plans lie."""
    found = stored() if STORE.exists() else {}
    known = {identity(k) for k in found.values()}
    for path in sorted(folder.rglob("*.lp")):
        name = path.stem if path.parent == folder else path.parent.name
        plan, _ = files.plan_from_text(*artifact.read_text(str(path)), str(path))
        for n, kernel in enumerate(k.kernel for k in plan.kernels.values()):
            if identity(kernel) not in known:
                known.add(identity(kernel))
                found[f"{name}.{n}"] = replace(kernel, name=name)
    return dict(sorted(found.items()))


def identity(kernel: Kernel) -> str:
    """Equal for kernels that differ in names only."""
    return kernel_key(canonical(kernel)[0], CPUS["generic"])


def store(found: Mapping[str, Kernel]) -> None:
    rows = [artifact.compact({"name": n, "kernel": to_plain(k)}) for n, k in found.items()]
    STORE.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


# ---- rows


def kernel_rows(named: tuple[str, Kernel]) -> Rows:
    """What becomes of a kernel on ``MACHINES`` and one other, and for some what else there is."""
    name, kernel = named
    turn = int(digest(name), 16)  # a kernel keeps its rows when others come and go
    looked, at = divmod(turn, len(MACHINES))
    out: Rows = {}
    for target in (*MACHINES, OTHERS[turn % len(OTHERS)]):
        row = f"{name} on {target}"
        out[row] = _default(kernel, machine(target))
        if target == MACHINES[at] and looked % SPACES == 0 and "refused" not in out[row]:
            out[row] = {**out[row], **_space(kernel, machine(target), random.Random(row))}
    return out


def _default(kernel: Kernel, target: Target) -> Row:
    key = kernel_key(canonical(kernel)[0], target)
    try:
        schedule, program = scheduled(kernel, target)
    except LumcError as e:
        return {"key": key, "refused": said(e)}
    return {
        "key": key,
        "default": digest(schedule.to_json()),
        "bound": f"{bound_us(kernel, target, matrix_speed(kernel, target)):.9g}",
        "price": f"{program_us(program, threads=schedule.threads):.9g}",
        "text": printed(program, schedule),
    }


def _space(kernel: Kernel, target: Target, rng: random.Random) -> Row:
    grammar = Grammar(kernel, target)
    drawn = [grammar.build(grammar.sample(rng)) for _ in range(DRAWS)]
    near = [stroll(grammar, grammar.default, rng) for _ in range(DRAWS)]
    return {
        "size": str(grammar.size()),
        "structures": digest([s.to_json() for s in structures(grammar)]),
        "neighbours": digest([s.to_json() for s in neighbours(grammar, grammar.default)]),
        "draws": digest([s.to_json() for s in (*drawn, *near)]),
        "drawn texts": digest([_lowered(grammar, s) for s in (*drawn, *near)]),
    }


def _lowered(grammar: Grammar, schedule: Schedule) -> str:
    """The digest of what a schedule is lowered to, or why it is refused."""
    try:
        return printed(lower(grammar.kernel, schedule, grammar.target), schedule)
    except LumcError as e:
        return said(e)


def printed(program: Program, schedule: Schedule) -> str:
    """The digest of a kernel's text, and of all that its launch needs."""
    text, grid = print_source(program, schedule.threads, "kernel")
    packed = {name: to_plain(p) for name, p in program.packed.items()}
    return digest([text, to_plain(grid), packed, program.scratch_bytes, program.tiles])


def said(e: LumcError) -> str:
    return f"{e.code} {e.what}"


def graph_rows(path: Path, targets: Sequence[str] = WHOLE) -> Rows:
    """The bytes of the artifacts of a sample graph."""
    graph = files.read_graph(str(path), {})
    graph = bind_dims(graph, dict.fromkeys(graph.dims, DIM))
    found = search(graph, machine(targets[0]), Limits(), inside=True)
    out: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        write = partial(_written, output=str(Path(folder) / "artifact"))
        for target in targets:
            space = replace(found, target=machine(target))
            plan = estimate(space)
            made: list[tuple[str, str]] = []
            input = files.graph_digest(graph)
            for value in (space, plan, generate(plan)):
                input, content = write(value, input)
                made.append((type(value).__name__.lower(), content))
            out[f"{path.name} on {target}"] = dict(made)
    return out


def _written(value: Any, input: str, output: str) -> tuple[str, str]:
    """An artifact's own digest, and one of all bytes of its file."""
    own = files.write(value, input, output)
    return own, hashlib.sha256(Path(output).read_bytes()).hexdigest()[:16]


# ---- all of it


def digest(value: Any) -> str:
    """Of anything that JSON can say."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def replayed(named: Iterable[tuple[str, Kernel]], graphs: Iterable[Path], jobs: int = 1) -> Rows:
    """All rows, by ``jobs`` processes."""
    out: Rows = {}
    if jobs == 1:
        for rows in (*map(graph_rows, graphs), *map(kernel_rows, named)):
            out |= rows
        return out
    with ProcessPoolExecutor(jobs) as pool:  # what takes longest first
        plain = [(name, to_plain(kernel)) for name, kernel in named]
        for rows in [*pool.map(graph_rows, graphs), *pool.map(_rows_of, plain, chunksize=8)]:
            out |= rows
    return out


def _rows_of(plain: tuple[str, Any]) -> Rows:
    """Of a kernel from another process: equal terms are one object, which pickling loses."""
    return kernel_rows((plain[0], from_plain(Kernel, plain[1])))


def summary(rows: Rows) -> dict[str, Any]:
    """The rows below one digest of all and one of every section, whatever order they are in."""
    sections = sorted({section for row in rows.values() for section in row})
    each = {s: digest([(n, r[s]) for n, r in sorted(rows.items()) if s in r]) for s in sections}
    return {"digest": digest(each), "sections": each, "rows": rows}


def changes(before: Rows, after: Rows) -> Iterator[str]:
    """A line for every row that is not the same: its sections, and from what to what."""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, {}), after.get(name, {})
        moved = [
            f"{section} {old.get(section, '-')} -> {new.get(section, '-')}"
            for section in dict.fromkeys((*old, *new))
            if old.get(section) != new.get(section)
        ]
        if moved:
            yield f"{name}: {', '.join(moved)}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Digests of what the compiler decides and prints.")
    parser.add_argument("--against", type=Path, help="an earlier build/replay.json")
    parser.add_argument("--collect", type=Path, help="a folder with plans (.lp) at any depth")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "replay.json")
    parser.add_argument("--jobs", type=int, default=1, help="processes; the default is 1")
    args = parser.parse_args()
    if args.collect:
        store(found := collect(args.collect))
        print(f"{STORE.name}: {len(found)} kernels, {STORE.stat().st_size} bytes")
        return 0
    earlier = json.loads(args.against.read_text())["rows"] if args.against else None
    os.environ.pop("RAYON_NUM_THREADS", None)  # with several threads egglog's order changes
    start = time.monotonic()
    made = summary(replayed(kernels().items(), GRAPHS, args.jobs))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with artifact.atomic(args.output) as file:
        file.write(json.dumps(made, indent=0).encode())
    for section, value in made["sections"].items():
        print(f"{value}  {section}")
    seconds = time.monotonic() - start
    print(f"{made['digest']}  replay of {len(made['rows'])} rows in {seconds:.0f} s: {args.output}")
    moved = [] if earlier is None else list(changes(earlier, made["rows"]))
    print("\n".join(moved), end="\n" if moved else "")
    if earlier is not None:
        print(f"{len(moved)} rows differ from {args.against}")
    return int(bool(moved))


if __name__ == "__main__":
    sys.exit(main())
