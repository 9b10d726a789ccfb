"""The header that every printed kernel of a target includes: types, conversions and elementary
functions."""

from __future__ import annotations

from importlib.resources import files

NAMES = {"cpu": "lumc_kernel.h", "cuda": "lumc_dev.h", "metal": "lumc_dev.metal"}


def header_of(kind: str) -> str:
    """Its text, for cpu, cuda or metal."""
    room = files("lumc.codegen") / ("cpu" if kind == "cpu" else "gpu")
    return room.joinpath(NAMES[kind]).read_text(encoding="utf-8")
