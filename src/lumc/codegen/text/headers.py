"""The header that every printed kernel of a target includes: types, conversions and elementary
functions."""

from __future__ import annotations

from importlib.resources import files

NAMES = {"cpu": "lumc_kernel.h", "cuda": "lumc_dev.h", "metal": "lumc_dev.metal"}


def header_of(kind: str) -> str:
    """Its text, for cpu, cuda or metal. The parts of ``x.h`` lie in the folder ``x`` beside it and
    stand in the place of the lines that include them: the text needs no file of ours."""
    room, name = files("lumc.codegen") / ("cpu" if kind == "cpu" else "gpu"), NAMES[kind]
    part = f'#include "{name.removesuffix(".h")}/'

    def read(path: str) -> str:
        return room.joinpath(path).read_text(encoding="utf-8")

    lines = read(name).splitlines(keepends=True)
    return "".join("\n" + read(s.split('"')[1]) if s.startswith(part) else s for s in lines)
