"""The bundle: kernels compiled, weights packed, the native runner beside them, all of it hashed.

It may hold the same graph for several targets: each has a plan and kernels of its own, all read the
same weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from lumc import __version__
from lumc.bundle import archive, manifest, planfile
from lumc.codegen.code import Code, EntryPlan
from lumc.codegen.interleave import schedule
from lumc.codegen.text.headers import NAMES
from lumc.codegen.tile.packing import Packing
from lumc.disk import attached
from lumc.disk.artifact import fields, unwritable
from lumc.disk.scratch import scratch
from lumc.errors import Exit, LumcError
from lumc.graph.graph import Entry, Graph, Node
from lumc.graph.text import print_graph
from lumc.kernel.codec import to_plain
from lumc.link import cross, cuda, hip, runners, toolchain, trial
from lumc.link.constants import constants, packed_at_load, store_weights
from lumc.link.runners import write
from lumc.link.toolchain import KERNEL_FLAGS, Toolchain, compile_objects, link_objects


class TargetCode(NamedTuple):
    """The code for one target, and the digest of the ``.lk`` that it was read from."""

    code: Code
    input: str


class Tools(NamedTuple):
    """The compilers: of the runner and of CPU kernels, of CUDA, which is looked for when a target
    needs it, and of HIP, which a bundle can be without."""

    c: Toolchain
    cuda: cuda.Compiler | None = None
    hip: hip.Compiler | None = None


def link(
    given: Sequence[TargetCode], out: Path, base: Path, tools: Tools, *, single: bool
) -> list[str]:
    """Write the bundle of one graph for some targets to ``out``: a directory, or one zip file when
    ``single``. The first target is the one that the fields of the manifest describe.

    ``base`` is the folder that weight files are relative to. ``out`` appears whole or not at all;
    an older bundle is replaced, anything else is not. Raises E0707 for targets of other graphs.
    Returns what the user should know of it. What was linked is run once: E0709 if that fails. E0114
    for more bytes than a bundle takes.
    """
    given = in_order(given)
    for part in given:
        planfile.require_room(part.code)
    codes = share_packings([p.code for p in given])
    compilers = [cross.for_target(tools.c, code.target) for code in codes]
    with staged(out, single) as folder:
        rows = [
            BUILDERS[code.target.kind](code, folder / "kernels" / slug(code), tools._replace(c=c))
            for code, c in zip(codes, compilers, strict=True)
        ]
        runners.build(folder, compilers, tools.c)
        for_mac = any(code.target.kind == "metal" for code in codes)
        notes = runners.build_mac(folder, tools.c) if for_mac else []
        if tools.hip is None and any(code.target.kind == "hip" for code in codes):
            notes.append(hip.LEFT_OUT)
        with fields("kernels"):
            layout, segments = store_weights(codes, folder / "weights.safetensors", base)
            recipes = packed_at_load(codes)
            for code, row in zip(codes, rows, strict=True):
                place = planfile.loading(code, layout, recipes, segments)
                data = planfile.encode(code, slug(code), row["arch"], row["features"], place)
                write(folder / "plan" / f"{slug(code)}.bin", data)
        write(folder / "graph.lg", graph_text(codes[0]).encode())
        if (tokenizer := codes[0].graph.tokenizer) is not None:
            write(folder / attached.NAME, attached.read_attached(tokenizer, base))
        body = describe(codes, [p.input for p in given], rows)
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        hashes = {name: manifest.sha256(folder / name) for name in names}
        text = manifest.render({**body, "version": __version__, "files": hashes})
        write(folder / manifest.NAME, text.encode())
        notes += trial.run_once(folder, bool(codes[0].graph.mesh))
    return notes


def slug(code: Code) -> str:
    """The target as files are named by it: cpu-native."""
    return code.target.name.replace(":", "-")


# ---- several targets


def in_order(given: Sequence[TargetCode]) -> list[TargetCode]:
    """The targets as a bundle lists them: CPUs first. Raises E0707, exit 2, unless they are of one
    graph and of targets that differ in more than features."""
    graphs = {print_graph(p.code.graph, lambda f: f.sha256) for p in given}
    ends = {repr([(e["name"], e["inputs"], e["outputs"]) for e in _entries(p.code)]) for p in given}
    problem = "" if len(graphs) == len(ends) == 1 else "they are not of the same graph"
    fix = "make each .lk from the same .lg, with the same dims and dtypes"
    targets = [p.code.target.name for p in given]
    if len({name.partition("+")[0] for name in targets}) < len(targets):
        problem, fix = "two of them are for the same target", "give one .lk for each target"
    if problem:
        what = f"cannot link kernels for {', '.join(targets)} together: {problem}"
        raise LumcError("E0707", what, fix=fix, exit=Exit.USAGE)
    return sorted(
        given, key=lambda p: (list(BUILDERS).index(p.code.target.kind), p.code.target.name)
    )


def share_packings(codes: Sequence[Code]) -> list[Code]:
    """Packed weights by the same names in all codes, if and only if they are the same; the first
    code keeps its names."""
    names, out = dict[Packing, str](), list[Code]()
    for code in codes:
        new = dict[str, str]()
        for name, packing in code.packings.items():
            free = (f"{packing.weight}@{i}" for i in range(len(names), 1 << 30))
            taken = set(names.values())
            wanted = name if name not in taken else next(n for n in free if n not in taken)
            new[name] = names.setdefault(packing, wanted)
        out.append(rename(code, new))
    return out


def rename(code: Code, new: Mapping[str, str]) -> Code:
    """The code with other names for its packed weights."""

    def entry(e: EntryPlan) -> EntryPlan:
        values = {v.name: replace(v, name=new.get(v.name, v.name)) for v in e.values}
        launches = [replace(one, args=tuple(new.get(a, a) for a in one.args)) for one in e.launches]
        unique = {v.name: v for v in values.values()}  # two names of one packing became one
        return replace(e, values=tuple(unique.values()), launches=tuple(launches))

    packings = {new[n]: p for n, p in code.packings.items()}
    return replace(code, packings=packings, entries=tuple(entry(e) for e in code.entries))


@contextmanager
def staged(out: Path, single: bool, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """A folder that becomes ``out`` when the block ends without an exception; ``check`` says what
    it may replace, bundles if nothing is said."""
    (check or check_replaceable)(out)
    try:
        with scratch(out.parent) as hidden:
            new = hidden / "bundle"
            new.mkdir()
            yield new
            if single:
                archive.write(new, hidden / "bundle.zip")
                new = hidden / "bundle.zip"
            _swap(new, out, hidden / "old")
    except OSError as e:
        raise unwritable(out, e) from None


def check_replaceable(out: Path) -> None:
    """Only a bundle may be overwritten by one. Raises E0703, exit 2."""
    if not os.path.lexists(out):
        return
    try:
        if out.is_dir():
            manifest.read(out)
        else:
            archive.check(out)
    except (LumcError, OSError):
        fix = "remove it, or choose another name with -o"
        what = f"{out} exists and is not a lumc bundle"
        raise LumcError("E0703", what, fix=fix, exit=Exit.USAGE) from None


def _swap(new: Path, out: Path, old: Path) -> None:
    """Put ``new`` in the place of ``out``; a failure on the way puts the old one back."""
    if os.path.lexists(out) and not (new.is_file() and out.is_file()):
        out.rename(old)
        try:
            new.rename(out)
        except BaseException:
            old.rename(out)
            raise
    else:
        new.replace(out)


# ---- the parts


def graph_text(code: Code) -> str:
    """The graph with f0, f1, .. in the place of the paths of its weight files."""
    known = code.graph.files
    return print_graph(code.graph, lambda f: f"f{known.index(f)}")


def build_cpu(code: Code, folder: Path, tools: Tools) -> dict[str, Any]:
    """Sources, objects and the shared object of all kernels; what the manifest says of it."""
    write(folder / "lumc_kernel.h", code.header.encode())
    sources = write_sources(code, folder, ".c")
    flags = (*KERNEL_FLAGS, *code.target.flags)
    objects = compile_objects(tools.c, folder, sources, flags)
    link_objects(tools.c, folder, objects, "kernels.so", ("-shared", "-lm"))
    defined = toolchain.macros(tools.c, code.target.flags)
    arch, needs = toolchain.architecture(defined), list(toolchain.features(defined))
    cross.check(folder / "kernels.so", arch, code.target, tools.c)
    return {"name": slug(code), "arch": arch, "features": needs}


def build_cuda(code: Code, folder: Path, tools: Tools) -> dict[str, Any]:
    """Sources, an image of all kernels for every architecture, and PTX."""
    compiler = tools.cuda or cuda.find(kept=tools.c.kept)
    write(folder / "lumc_dev.h", code.header.encode())
    write_sources(code, folder, ".cu")
    unit = folder / "kernels.cu"  # NVRTC and nvcc take longer for many small ones
    unit.write_text("\n".join(k.source for k in code.kernels))
    archs = (*cuda.IMAGES, cuda.TEXT)
    cuda.compile_images(compiler, folder, unit.name, archs)
    unit.unlink()
    row = {"name": slug(code), "arch": code.target.arch, "features": []}
    return {**row, "compiler": compiler.version}


def build_hip(code: Code, folder: Path, tools: Tools) -> dict[str, Any]:
    """Sources, an image of all kernels for every architecture that runs them, and the text, which
    hipRTC translates for others."""
    write(folder / NAMES["hip"], code.header.encode())
    write_sources(code, folder, ".hip")
    write(folder / hip.TEXT, "\n".join(k.source for k in code.kernels).encode())
    row = {"name": slug(code), "arch": code.target.arch, "features": []}
    if tools.hip is None:
        return row
    hip.compile_images(tools.hip, folder, hip.TEXT, hip.IMAGES[code.target.arch])
    return {**row, "compiler": tools.hip.version}


def metal_text(code: Code) -> str:
    return "\n".join([code.header, *(k.source for k in code.kernels)])


def build_metal(code: Code, folder: Path, tools: Tools) -> dict[str, Any]:
    """Sources, and the text of all of them, which the GPU's own compiler translates."""
    write_sources(code, folder, ".metal")
    write(folder / "kernels.metal", metal_text(code).encode())
    return {"name": slug(code), "arch": code.target.arch, "features": []}


BUILDERS: Mapping[str, Callable[[Code, Path, Tools], dict[str, Any]]] = {
    "cpu": build_cpu,
    "cuda": build_cuda,
    "hip": build_hip,
    "metal": build_metal,
}


def write_sources(code: Code, folder: Path, end: str) -> list[str]:
    for kernel in code.kernels:
        write(folder / f"{kernel.symbol}{end}", kernel.source.encode())
    return [f"{k.symbol}{end}" for k in code.kernels]


def mesh_of(graph: Graph) -> dict[str, Any]:
    """The ranks of the axes of a mesh, and how many micro-batches each of them takes."""
    if not graph.mesh:
        return {}
    ranks = {name: n for name, n in graph.mesh.items() if name != graph.time}
    return {"mesh": ranks} | ({"micro_batches": graph.mesh[graph.time]} if graph.time else {})


def schedule_of(code: Code) -> dict[str, Any]:
    """What the stages of a pipeline do in which order, by entries; nothing where each micro-batch
    goes through all stages before the next one comes."""
    found = {
        bucket.title: schedule(code.graph, pipe)
        for bucket, pipe in zip(code.graph.entries, planfile.pipelines(code), strict=True)
        if pipe
    }
    return {"schedule": found} if found else {}


def describe(
    codes: Sequence[Code], inputs: Sequence[str], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The fields of the manifest but its hashes: of the first target, and in ``targets`` what is
    different for the others."""
    entries, stored = _entries(codes[0]), constants(codes)
    packings = {name: p for code in codes for name, p in code.packings.items()}
    packed = {v.name: packings[v.name] for v in stored if v.place == "packed"}
    others = [
        {
            **row,
            "input": input,
            "kernels": _kernels(code),
            "launches": {e["name"]: e["launches"] for e in _entries(code)},
            "arena_bytes": max(e.arena_bytes for e in code.entries),
        }
        for code, input, row in zip(codes[1:], inputs[1:], rows[1:], strict=True)
    ]
    return {
        **mesh_of(codes[0].graph),
        **schedule_of(codes[0]),
        "entries": entries,
        "input": inputs[0],
        "inputs": entries[0]["inputs"],
        "outputs": entries[0]["outputs"],
        "states": [_tensor(s) for s in codes[0].graph.states],
        "dims": [asdict(d) for d in codes[0].graph.dims.values()],
        "targets": [rows[0], *others],
        "kernels": _kernels(codes[0]),
        "arena_bytes": max(e.arena_bytes for e in codes[0].entries),
        "arena_bytes_without_reuse": max(e.arena_bytes_without_reuse for e in codes[0].entries),
        "weight_bytes": sum(v.nbytes for v in stored),
        "packings": [{"name": n, **to_plain(p)} for n, p in packed.items()],
    }


def _kernels(code: Code) -> list[dict[str, Any]]:
    return [
        {"name": k.name, "key": k.key, "symbol": k.symbol, "regions": k.regions}
        for k in code.kernels
    ]


def _entries(code: Code) -> list[dict[str, Any]]:
    return [_entry(planfile.lists_of(code, e.name), e) for e in code.graph.base.entries]


def _entry(lists: Sequence[tuple[EntryPlan, Entry]], graph: Entry) -> dict[str, Any]:
    """What the launches for all lengths are, and what each bucket has."""
    last, rooms = lists[-1][0], [plan.arena_bytes for plan, _ in lists]
    buckets = [
        {"dims": {d.name: d.values[-1] for d in e.dims.values()}, "launches": len(plan.launches)}
        for plan, e in lists
    ]
    return {
        "name": graph.name,
        "inputs": [_tensor(n) for n in graph.inputs],
        "outputs": [{**_tensor(n), "name": name} for name, n in graph.outputs],
        "launches": len(last.launches),
        "arena_bytes": max(rooms),
        "arena_bytes_without_reuse": max(plan.arena_bytes_without_reuse for plan, _ in lists),
        **({"buckets": buckets} if len(lists) > 1 else {}),
    }


def _tensor(node: Node) -> dict[str, Any]:
    """With its greatest shape, and what that is of dims, if it is."""
    known = {"name": node.name, "dtype": node.dtype.value, "shape": list(node.sizes)}
    live = any(not isinstance(e, int) for e in node.shape)
    return {**known, "extents": [str(e) for e in node.shape]} if live else known
