"""The bundle: kernels compiled, weights packed, the native runner beside them, all of it hashed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lumc import __version__
from lumc.artifact import fields
from lumc.codegen.plan import Code, EntryPlan, Value
from lumc.errors import Exit, LumcError
from lumc.graph.text import print_graph
from lumc.kernel.codec import to_plain
from lumc.link import archive, manifest, planfile, toolchain, weights
from lumc.link.packing import Array, pack
from lumc.link.toolchain import KERNEL_FLAGS, RUNNER_FLAGS, Toolchain, compile_objects, link_objects
from lumc.weights import read_weight

# of runner/, and main for lumc-run
LIBRARY = ("cpu", "features", "files", "npy", "plan", "pool", "sha256")


def link(code: Code, out: Path, base: Path, tools: Toolchain, *, input: str, single: bool) -> None:
    """Write the bundle of ``code`` to ``out``: a directory, or one zip file when ``single``.

    ``base`` is the folder that weight files are relative to, ``input`` the digest of the ``.lk``.
    ``out`` appears whole or not at all; an older bundle is replaced, anything else is not.
    """
    with staged(out, single) as folder:
        target = code.target.name.replace(":", "-")
        defined = toolchain.macros(tools, code.target.flags)
        arch, needs = toolchain.architecture(defined), toolchain.features(defined)
        build_kernels(code, folder / "kernels" / target, tools)
        build_runner(folder, tools)
        with fields("kernels"):
            layout = store_weights(code, folder / "weights.safetensors", base)
            plan = planfile.encode(code, target, arch, needs, layout)
        _write(folder / "plan" / f"{target}.bin", plan)
        _write(folder / "graph.lg", graph_text(code).encode())
        body = describe(code, {"name": target, "arch": arch, "features": list(needs)})
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        hashes = {name: manifest.sha256(folder / name) for name in names}
        text = manifest.render({**body, "input": input, "version": __version__, "files": hashes})
        _write(folder / manifest.NAME, text.encode())


@contextmanager
def staged(out: Path, single: bool) -> Iterator[Path]:
    """A folder that becomes ``out`` when the block ends without an exception."""
    check_replaceable(out)
    try:
        hidden = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as e:
        raise LumcError("E0202", f"cannot write {out}: {e.strerror}") from None
    try:
        new = hidden / "bundle"
        new.mkdir()
        yield new
        if single:
            archive.write(new, hidden / "bundle.zip")
            new = hidden / "bundle.zip"
        _swap(new, out, hidden / "old")
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


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
    known = list(dict.fromkeys(w.file for w in code.graph.weights))
    return print_graph(code.graph, lambda f: f"f{known.index(f)}")


def build_kernels(code: Code, folder: Path, tools: Toolchain) -> None:
    """Sources, objects and the shared object of all kernels."""
    _write(folder / "lumc_kernel.h", code.header.encode())
    for kernel in code.kernels:
        _write(folder / f"{kernel.symbol}.c", kernel.source.encode())
    sources = [f"{k.symbol}.c" for k in code.kernels]
    flags = (*KERNEL_FLAGS, *code.target.flags)
    objects = compile_objects(tools, folder, sources, flags, os.cpu_count() or 1)
    link_objects(tools, folder, objects, "kernels.so", ("-shared", "-lm"))


def build_runner(folder: Path, tools: Toolchain) -> None:
    """bin/lumc-run, lib/liblumc.so and include/lumc.h."""
    for name, data in compile_runner(tools).items():
        _write(folder / name, data)
    (folder / "bin" / "lumc-run").chmod(0o755)


@cache
def compile_runner(tools: Toolchain) -> Mapping[str, bytes]:
    """The files that are the same in every bundle that this compiler makes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for source in (files("lumc.link") / "runner").iterdir():
            _write(folder / source.name, source.read_bytes())
        names = [f"{n}.c" for n in (*LIBRARY, "main")]
        objects = compile_objects(tools, folder, names, RUNNER_FLAGS, os.cpu_count() or 1)
        link_objects(tools, folder, objects[:-1], "liblumc.so", ("-shared", "-pthread", "-ldl"))
        link_objects(tools, folder, objects, "lumc-run", ("-pthread", "-ldl"))
        made = {"lib": "liblumc.so", "bin": "lumc-run", "include": "lumc.h"}
        return {f"{place}/{n}": (folder / n).read_bytes() for place, n in made.items()}


def store_weights(code: Code, path: Path, base: Path) -> weights.Layout:
    """The raw and the packed tensors that launches read, each once, sorted by name."""
    nodes = {w.name: w for w in code.graph.weights}

    def read(value: Value) -> Array:
        if value.place == "weight":
            return read_weight(nodes[value.name], base)
        packing = code.packings[value.name]
        node = nodes[packing.weight]
        return pack(read_weight(node, base), node.dtype, packing)

    return weights.write(path, constants(code), read)


def constants(code: Code) -> list[Value]:
    """What of the weights, raw and packed, any launch reads."""
    used = {v.name: v for e in code.entries for v in e.values if v.place in ("weight", "packed")}
    return [used[name] for name in sorted(used)]


def describe(code: Code, target: dict[str, Any]) -> dict[str, Any]:
    """The fields of the manifest but its hashes."""
    entries, stored = [_entry(e) for e in code.entries], constants(code)
    kernels = [
        {"name": k.name, "key": k.key, "symbol": k.symbol, "regions": k.regions}
        for k in code.kernels
    ]
    packed = {v.name: code.packings[v.name] for v in stored if v.place == "packed"}
    return {
        "entries": entries,
        "inputs": entries[0]["inputs"],
        "outputs": entries[0]["outputs"],
        "states": [_tensor(s) for s in code.graph.states],
        "targets": [target],
        "kernels": kernels,
        "arena_bytes": max(e.arena_bytes for e in code.entries),
        "arena_bytes_without_reuse": max(e.arena_bytes_without_reuse for e in code.entries),
        "weight_bytes": sum(v.nbytes for v in stored),
        "packings": [{"name": n, **to_plain(p)} for n, p in packed.items()],
    }


def _entry(entry: EntryPlan) -> dict[str, Any]:
    outputs = zip(entry.outputs, entry.place("output"), strict=True)
    return {
        "name": entry.name,
        "inputs": [_tensor(v) for v in entry.place("input")],
        "outputs": [{**_tensor(v), "name": name} for name, v in outputs],
        "launches": len(entry.launches),
        "arena_bytes": entry.arena_bytes,
        "arena_bytes_without_reuse": entry.arena_bytes_without_reuse,
    }


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _tensor(value: Any) -> dict[str, Any]:
    return {"name": value.name, "dtype": value.dtype.value, "shape": list(value.shape)}
