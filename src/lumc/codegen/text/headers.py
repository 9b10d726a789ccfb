"""The header that every printed kernel of a target includes: types, conversions and elementary
functions."""

from __future__ import annotations

from importlib.resources import files

NAMES = {
    "cpu": "lumc_kernel.h",
    "cuda": "lumc_dev.h",
    "hip": "lumc_hip.h",
    "metal": "lumc_dev.metal",
}
PART = '#include "lumc_'  # with the name of a folder


def header_of(kind: str) -> str:
    """Its text, for cpu, cuda, hip or metal. The parts of headers lie in folders beside them and
    stand in the place of the lines that include them: the text needs no file of ours."""
    room = files("lumc.codegen") / ("cpu" if kind == "cpu" else "gpu")

    def read(path: str) -> str:
        return room.joinpath(path).read_text(encoding="utf-8")

    lines = read(NAMES[kind]).splitlines(keepends=True)
    parts = (s.split('"')[1] if s.startswith(PART) and "/" in s else "" for s in lines)
    return "".join("\n" + read(p) if p else s for p, s in zip(parts, lines, strict=True))
