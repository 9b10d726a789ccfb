"""A bundle as a model of Triton Inference Server: its folder in a model repository.

NAME/config.pbtxt           its inputs and outputs, and how many instances there are
NAME/libtriton_lumc.so      the backend: the native runner, behind the functions that Triton calls
NAME/1/model.lb             the bundle, which is its version 1
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lumc import __version__
from lumc.bundle import manifest
from lumc.disk.artifact import fields
from lumc.errors import Exit, LumcError
from lumc.graph.ranks import require_one_rank
from lumc.kernel.machines import resolve_target
from lumc.link import cross, glibc, runners
from lumc.link.link import TargetCode, Tools, link, staged
from lumc.link.toolchain import RUNNER_FLAGS, Toolchain, compile_objects, link_objects

BACKEND = "lumc"  # for which Triton looks for LIBRARY, first in the model's folder
LIBRARY, CONFIG, VERSION, BUNDLE = f"libtriton_{BACKEND}.so", "config.pbtxt", "1", "model.lb"
MARK = "# A model for Triton Inference Server, written by lumc "
SOURCES = ("triton.c", "triton_requests.c")  # of runner/, beside those of the library
HEADERS = ("tritonserver.h", "tritonbackend.h")
KINDS = {"f": "FP", "bf": "BF", "i": "INT", "u": "UINT", "bool": "BOOL"}  # of dtypes, in Triton


def emit_triton(
    given: Sequence[TargetCode], out: Path, base: Path, tools: Tools, headers: Path | None = None
) -> list[str]:
    """Write the folder ``out``, whose name is that of the model; the folder that it lies in is the
    repository. ``headers`` are Triton's own ones, which the backend is compiled with instead of the
    declarations that lumc has.

    Raises E0712, exit 2, for what Triton cannot run, E0703 where something else is, and what
    ``link`` does. Returns what the user should know.
    """
    require_one_rank(given[0].code.graph, "Triton")
    compiler = compiler_for([p.code.target.name for p in given], tools.c)
    with staged(out, single=False, check=check_replaceable) as folder:
        (folder / VERSION).mkdir()
        bundle = folder / VERSION / BUNDLE
        notes = link(given, bundle, base, tools, single=False)
        with fields("manifest"):
            (folder / CONFIG).write_text(config(manifest.read(bundle)))
        runners.write(folder / LIBRARY, backend(compiler, headers))
    return notes


def check_replaceable(out: Path) -> None:
    """Only such a folder may be overwritten by one: no other version lies in it, and no file of
    somebody else. Raises E0703, exit 2."""
    if not os.path.lexists(out):
        return
    there = {CONFIG, LIBRARY, VERSION, f"{VERSION}/{BUNDLE}"}
    found = {f"{p.relative_to(out)}" for p in (*out.glob("*"), *out.glob("*/*"))}
    if out.is_symlink() or found != there or not _is_ours(out / CONFIG):
        fix = "remove it, or choose another name with -o"
        what = f"{out} exists and is not a model for Triton of one version"
        raise LumcError("E0703", what, fix=fix, exit=Exit.USAGE)


def _is_ours(file: Path) -> bool:
    return file.is_file() and file.read_bytes()[:500].startswith(MARK.encode())


def compiler_for(targets: Sequence[str], own: Toolchain) -> Toolchain:
    """That of the processor that Triton shall run on: the machine's ``own`` one if a target has its
    processor. Raises E0712, exit 2, for no target or no compiler of Linux."""
    known = [t for t in map(resolve_target, targets) if t.kind in ("cpu", "cuda")]
    made = [cross.for_target(own, t) for t in known]
    compiler = own if own in made else next(iter(made), own)
    if made and "linux" in compiler.machine:
        return compiler
    which = "" if made else f", not on {', '.join(targets)}"
    what = f"Triton runs models on Linux, on CPUs and on GPUs of NVIDIA{which}"
    raise LumcError("E0712", what, fix="--target cpu:native on Linux", exit=Exit.USAGE)


def backend(tools: Toolchain, headers: Path | None) -> bytes:
    """libtriton_lumc.so. What it calls of Triton is there when Triton loads it."""
    flags = glibc.oldest(tools)
    own: tuple[str, ...] = (*RUNNER_FLAGS, *flags.compiling)
    with runners.objects(tools, flags.compiling) as (folder, made):
        if headers:  # they lie where no key of kept objects sees them
            runners.write(folder / "triton_names.h", names(headers).encode())
            own = (*own, "-DTRITON_HEADERS", f"-I{headers.absolute()}")
            tools = replace(tools, kept=None)
        made = [*made[:-1], *compile_objects(tools, folder, SOURCES, own)]
        rest = ("-shared", "-Wl,-Bsymbolic", f"-Wl,-soname,{LIBRARY}", "-pthread", "-ldl")
        link_objects(tools, folder, made, LIBRARY, (*rest, *flags.linking))
        return (folder / LIBRARY).read_bytes()


def names(headers: Path) -> str:
    """The types of Triton's headers as C needs them: these declare structs, and use them as C++
    does. Raises E0712, exit 2, where no headers are."""
    files = [headers / "triton" / "core" / name for name in HEADERS]
    if missing := [f for f in files if not f.is_file()]:
        what = f"--triton-headers {headers}: there is no {missing[0].relative_to(headers)}"
        fix = "name the folder include/ of Triton's repository 'core', or leave the option out"
        raise LumcError("E0712", what, fix=fix, exit=Exit.USAGE)
    text = "".join(f.read_text(errors="replace") for f in files)
    found = dict.fromkeys(re.findall(r"^struct (TRITON\w+);", text, re.M))
    return "".join(f"typedef struct {name} {name};\n" for name in found)


# ---- config.pbtxt


def config(of: Mapping[str, Any]) -> str:
    """What Triton is to know of a bundle with this manifest, as the text form of its protobuf."""
    kinds = {target["name"].partition("-")[0] for target in of["targets"]}
    place = "KIND_MODEL" if "cuda" in kinds else "KIND_CPU"
    lines = [
        f"{MARK}{__version__}.",
        "# A client chooses a size of -1. 'lumc link' writes this file anew.",
        *(f"# dim {_dim(d)}" for d in of["dims"]),
        f'backend: "{BACKEND}"',
        "max_batch_size: 0",
        *_tensors("input", of["inputs"]),
        *_tensors("output", of["outputs"]),
        f"instance_group [ {{ count: 1 kind: {place} }} ]",
        "# of each instance",
        'parameters { key: "threads" value: { string_value: "1" } }',
    ]
    return "\n".join(lines) + "\n"


def _dim(d: Mapping[str, Any]) -> str:
    step = f" multiple {d['multiple']}" if d["multiple"] > 1 else ""
    return f"{d['name']} in {d['lo']}..{d['hi']}{step}"


def _tensors(what: str, tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    if not tensors:
        return []
    rows = ",\n".join(f"  {{ {_tensor(t)} }}" for t in tensors)
    return [f"{what} [", rows, "]"]


def _tensor(t: Mapping[str, Any]) -> str:
    """One line. Triton has no numbers: they are vectors of one."""
    extents = [e if e.isdecimal() else "-1" for e in t.get("extents", map(str, t["shape"]))]
    shape = ", ".join(extents) or "1"
    quoted = json.dumps(t["name"], ensure_ascii=False)
    return f"name: {quoted} data_type: {data_type(t['dtype'])} dims: [ {shape} ]"


def data_type(dtype: str) -> str:
    """f32 is TYPE_FP32."""
    kind = dtype.rstrip("0123456789")
    return f"TYPE_{KINDS[kind]}{dtype.removeprefix(kind)}"
