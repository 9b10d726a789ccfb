"""The header that every printed kernel includes: types, conversions and elementary functions."""

from __future__ import annotations

from importlib.resources import files

HEADER_NAME = "lumc_kernel.h"
HEADER = files("lumc.codegen").joinpath(HEADER_NAME).read_text(encoding="utf-8")
