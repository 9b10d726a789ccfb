"""The headers of kernels: one text of all their parts."""

import re
from pathlib import Path

import pytest

from lumc import codegen
from lumc.codegen.text.headers import NAMES, header_of

ROOM = Path(codegen.__file__).parent


@pytest.mark.parametrize("kind", NAMES)
def test_a_header_needs_no_other_file_of_ours(kind: str) -> None:
    """The part for the emulator, which is not shipped, is left out by the preprocessor."""
    included = re.findall(r'^#include "(.*)"', header_of(kind), re.MULTILINE)
    assert included == (["lumc_emu.h"] if kind in ("cuda", "hip") else [])


@pytest.mark.parametrize(
    ("kind", "parts"),
    [("cpu", "cpu/lumc_kernel"), ("cuda", "gpu/lumc_dev"), ("hip", "gpu/lumc_hip")],
)
def test_every_part_of_a_header_is_in_it_once(kind: str, parts: str) -> None:
    text = header_of(kind)
    found = list((ROOM / parts).iterdir())
    assert found
    for part in found:
        assert part.read_text().startswith("/* ---- "), "the first line says what it is"
        assert text.count(part.read_text()) == 1, part.name
