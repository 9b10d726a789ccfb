"""``lumc show``: any artifact as text, one node per line, as JSON, or as a drawing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lumc.artifacts import files
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.report import draw
from lumc.report.describe import DESCRIBE, PRINT, describe_bundle, describe_kernel
from lumc.report.diagram import diagram

SOURCES = (".c", ".cu", ".hip", ".metal")  # of kernels, in bundles


def show(
    file: str,
    kernel: str | None,
    tile: bool,
    dot: str | None,
    svg: str | None,
    entry: str,
    timeline: str | None,
    as_json: bool,
) -> None:
    """Print or draw ``file``: a graph, a search space, a plan, kernels, a bundle or plain C."""
    kind, value = read(file)
    if timeline:
        from lumc.report import timeline as stages

        return stages.timeline(kind, value, entry, timeline)
    if dot or svg:
        picture = diagram(kind, value, entry)
        if dot:
            artifact.write_text(dot, draw.to_dot(picture))
        if svg:
            artifact.write_text(svg, draw.to_svg(picture))
        return
    if tile:
        print("\n\n".join(tile_programs(kind, value, kernel or "")))
        return
    body = DESCRIBE[kind](value)
    if kernel:
        lines = one_kernel(kind, value, kernel)
    elif as_json:
        lines = [json.dumps(body, indent=1)]
    else:
        lines = list(PRINT[kind](value, body))
    print("\n".join(lines))


def read(file: str) -> tuple[str, Any]:
    """The kind of an artifact, by its content, and its data."""
    path = Path(file)
    if path.is_dir():
        from lumc.link.emit import header_of

        header = header_of(path)
        return ("plain", header) if header else ("bundle", file)
    if path.is_file() and path.read_bytes()[:2] == b"PK":
        return "bundle", file
    said, base = artifact.read_text(file)
    if not said.startswith('{"lumc"'):  # files of weights as it names them, from wherever
        return "graph", files.graph_from_text(said, Path(), file, {})
    kind = artifact.kind_of(said)
    readers = {
        "space": files.space_from_text,
        "plan": files.plan_from_text,
        "kernels": files.code_from_text,
    }
    if not kind:
        raise artifact.corrupt("not an artifact of lumc", file)
    return kind, readers[kind](said, base, file)[0]


# ---- single kernels


def bundle_sources(file: str) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the kernels of all targets by their path, and the paths by name, key and symbol;
    of those with the same name the one of the first target."""
    from lumc.bundle.unpack import opened

    body, names = describe_bundle(file), dict[str, str]()
    with opened(file) as folder:
        every = [p for p in folder.glob("kernels/*/*") if p.suffix in SOURCES]
        sources = {f"{p.parent.name}/{p.stem}": p.read_text() for p in every}
    with artifact.fields("manifest", file):
        for target in body["targets"]:
            for k in target.get("kernels", body["kernels"]):
                name = f"{target['name']}/{k['symbol']}"
                for alias in (k["name"], k["key"], k["symbol"], name):
                    names.setdefault(alias, name)
    return sources, {alias: name for alias, name in names.items() if name in sources}


def one_kernel(kind: str, value: Any, name: str) -> list[str]:
    """The kernel ``name`` (a key, a name or a symbol, in a bundle also TARGET/SYMBOL): its source,
    or its term and schedule."""
    if kind == "kernels":
        sources = {k.symbol: k.source for k in value.kernels}
        names = {n: k.symbol for k in value.kernels for n in (k.name, k.key, k.symbol)}
    elif kind == "plan":
        sources = {k: json.dumps(describe_kernel(v), indent=1) for k, v in value.kernels.items()}
        names = {n: k for k, v in value.kernels.items() for n in (k, v.kernel.name)}
    elif kind == "bundle":
        sources, names = bundle_sources(value)
    else:
        sources, names = {}, {}
    return [sources[_named(name, names)].rstrip("\n")]


def _named(name: str, names: Mapping[str, str]) -> str:
    """What one of several names, or its beginning, stands for."""
    match = [symbol for n, symbol in names.items() if n == name or n.startswith(name)]
    if not match:
        known = ", ".join(dict.fromkeys(names.values())) or "none in this file"
        fix = f"kernels: {known}"
        raise LumcError("E0209", f"no kernel '{name}'", fix=fix, exit=Exit.USAGE)
    return match[0]


def tile_programs(kind: str, value: Any, name: str) -> list[str]:
    """The tile programs of a plan's kernels, or of the kernel ``name``."""
    from lumc.codegen.tile.lower import lower
    from lumc.codegen.tile.text import program_text

    if kind != "plan":
        fix = "name the plan: lumc profile writes it, --save-temps DIR keeps it"
        raise LumcError("E0209", "only plans have tile programs", fix=fix, exit=Exit.USAGE)
    names = {n: key for key, k in value.kernels.items() for n in (key, k.kernel.name)}
    keys = [_named(name, names)] if name else list(value.kernels)
    chosen = [value.kernels[key] for key in keys]
    return [program_text(lower(k.kernel, k.schedule, value.target)) for k in chosen]
