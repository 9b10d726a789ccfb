"""A model as plain C: a folder that any gcc or clang builds without lumc, or an archive made of it.

No files, no threads, no allocation: the caller gives the memory between launches, and the weights
are a constant. What the texts say is in plain.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lumc.bundle import weights
from lumc.bundle.packing import Array
from lumc.codegen.code import Value
from lumc.disk.artifact import fields
from lumc.disk.scratch import scratch
from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.graph.ranks import require_one_rank
from lumc.link import cross, functions, plain
from lumc.link.constants import first_values, read_by_launches, weight_reader
from lumc.link.link import TargetCode, Tools, staged
from lumc.link.toolchain import KERNEL_FLAGS, compile_objects, link_archive

TEXT_BYTES = 1 << 20  # of weights that are C text; more of them is a file that .S includes
HIDDEN = ("-fvisibility=hidden", "-I.", "-I../include")


def emit_c(given: list[TargetCode], out: Path, base: Path) -> None:
    """Write sources, header and CMakeLists.txt to the folder ``out``, whose name is the prefix of
    all C names. Raises E0711 for what has no C, E0703 where something else is."""
    model = _model(given, out)
    with staged(out, single=False, check=check_replaceable) as folder, fields("kernels"):
        _sources(model, folder, base)


def emit_archive(given: list[TargetCode], out: Path, base: Path, tools: Tools) -> None:
    """Compile the same: ``out`` has lib/libNAME.a and include/NAME.h. Raises as emit_c does."""
    model = _model(given, out)
    compiler = cross.for_target(tools.c, model.code.target)
    with staged(out, single=False, check=check_replaceable) as folder, scratch() as hidden:
        with fields("kernels"):
            names = _sources(model, hidden, base)
        source = hidden / "src"
        flags = (*KERNEL_FLAGS, *model.code.target.flags, *HIDDEN)
        text = [n for n in names if n.endswith(".c")]
        made = compile_objects(compiler, source, text, flags)
        rest = [n for n in names if n not in text]  # they include a file that no key knows
        made += compile_objects(replace(compiler, kept=None), source, rest, flags)
        for name in made:
            cross.check(source / name, "", model.code.target, compiler)
        library = f"lib{model.name}.a"
        link_archive(compiler, source, made, library)
        (folder / "lib").mkdir()
        shutil.copyfile(source / library, folder / "lib" / library)
        shutil.copytree(hidden / "include", folder / "include")


def check_replaceable(out: Path) -> None:
    """Only such a folder may be overwritten by one. Raises E0703, exit 2."""
    if os.path.lexists(out) and (out.is_symlink() or not header_of(out)):
        fix = "remove it, or choose another name with -o"
        what = f"{out} exists and is not a model as plain C"
        raise LumcError("E0703", what, fix=fix, exit=Exit.USAGE)


def header_of(folder: Path) -> Path | None:
    """The header of a folder that is a model as plain C, or an archive of one."""
    marked = plain.MARK
    headers = (h for h in folder.glob("include/*.h") if h.is_file())
    return next((h for h in headers if marked in h.read_bytes()[:500]), None)


def _model(given: list[TargetCode], out: Path) -> plain.Model:
    require_one_cpu([p.code.target.name for p in given])
    require_one_rank(given[0].code.graph, "plain C")
    return plain.Model(plain.prefix(out.name), given[0].code)


def require_one_cpu(targets: list[str]) -> None:
    """What has plain C. Raises E0711, exit 2."""
    if len(targets) != 1 or not targets[0].startswith("cpu:"):
        what = f"plain C is for one CPU target, not for {', '.join(targets)}"
        fix = "--emit bundle, or one CPU target"
        raise LumcError("E0711", what, fix=fix, exit=Exit.USAGE)


def _sources(model: plain.Model, folder: Path, base: Path) -> list[str]:
    """All files of the folder; the names of what is to be compiled in src/."""
    source, name = folder / "src", model.name
    source.mkdir()
    (folder / "include").mkdir()
    used = read_by_launches([model.code]) | first_values(model.code)
    stored = [v for _, v in sorted(used.items())]
    layout, names = _weights(model, stored, source, weight_reader([model.code], base))
    made = {f"{name}.c": functions.launches(model, layout.offsets)}
    made |= {f"{name}_{k.symbol}.c": plain.kernel(model, k) for k in model.code.kernels}
    names = [*made, *names]
    made |= {f"{name}_kernels.h": plain.kernels(model, layout.nbytes)}
    made |= {"lumc_kernel.h": model.code.header}
    for file, text in made.items():
        (source / file).write_text(text)
    (folder / "include" / f"{name}.h").write_text(plain.header(model))
    (folder / "CMakeLists.txt").write_text(plain.cmake(model, names))
    return names


def _weights(
    model: plain.Model, stored: list[Value], source: Path, read: Callable[[Value], Array]
) -> tuple[weights.Layout, list[str]]:
    """Where they lie in the constant, and the file that defines it, if there are any."""
    with scratch() as hidden:
        layout = weights.write(hidden / "weights", stored, read)
        if not layout.nbytes:
            return layout, []
        doing("writing the weights as C")
        with (hidden / "weights").open("rb") as f:
            f.seek(layout.start)
            if layout.nbytes <= TEXT_BYTES:
                name, text = f"{model.name}_weights.c", plain.constant(model, f.read())
            else:
                name, text = f"{model.name}_weights.S", plain.included(model)
                with (source / f"{model.name}_weights.bin").open("wb") as to:
                    shutil.copyfileobj(f, to, 1 << 20)
        (source / name).write_text(text)
        return layout, [name]
