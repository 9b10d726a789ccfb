"""Objects that are kept: reused when nothing changed, never when something did."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import CC
from lumc.disk import objects
from lumc.errors import Exit, LumcError
from lumc.link.toolchain import Toolchain, compile_objects, find
from lumc.report import cache


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    return find(CC, tmp_path / "kept")


def build(
    folder: Path, tools: Toolchain, text: str = "1", header: str = "0", flag: str = "-O1"
) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "h.h").write_text(f"#define H {header}\n")
    (folder / "a.c").write_text(f'#include "h.h"\nint a(void) {{ return H + {text}; }}\n')
    (name,) = compile_objects(tools, folder, ["a.c"], [flag])
    return (folder / name).read_bytes()


def test_the_second_time_nothing_is_compiled(tmp_path: Path, tools: Toolchain) -> None:
    first = build(tmp_path / "one", tools)
    (kept,) = objects.every(tmp_path / "kept")
    kept.write_bytes(kept.read_bytes())
    os.utime(kept, (1, 1))
    assert build(tmp_path / "two", tools) == first
    assert kept.stat().st_mtime > 1, "used, so it is not old"


@pytest.mark.parametrize("change", [{"text": "2"}, {"header": "5"}, {"flag": "-O2"}])
def test_whatever_changes_makes_another(
    tmp_path: Path, tools: Toolchain, change: dict[str, str]
) -> None:
    build(tmp_path / "one", tools)
    build(tmp_path / "one", tools, **change)
    assert len(list(objects.every(tmp_path / "kept"))) == 2
    build(tmp_path / "one", replace(tools, version="another compiler"))
    assert len(list(objects.every(tmp_path / "kept"))) == 3


def test_damaged_objects_are_not_used(tmp_path: Path, tools: Toolchain) -> None:
    first = build(tmp_path / "one", tools)
    (kept,) = objects.every(tmp_path / "kept")
    kept.write_bytes(b"\x7fELF garbage")
    assert build(tmp_path / "two", tools) == first
    assert kept.read_bytes() == first, "made again"
    kept.write_bytes(b"")
    with pytest.raises(LumcError) as e:
        cache.verify(tmp_path / "records", tmp_path / "kept")
    assert e.value.exit == Exit.CORRUPT
    assert objects.prune(tmp_path / "kept") == (1, 0)


def test_old_objects_are_pruned(tmp_path: Path, tools: Toolchain) -> None:
    build(tmp_path / "one", tools)
    assert objects.prune(tmp_path / "kept") == (0, 1)
    (kept,) = objects.every(tmp_path / "kept")
    os.utime(kept, (1, 1))
    assert objects.prune(tmp_path / "kept") == (1, 0)


def test_a_folder_that_cannot_be_written_keeps_none(tmp_path: Path, tools: Toolchain) -> None:
    (tmp_path / "file").write_text("")
    assert build(tmp_path / "one", replace(tools, kept=tmp_path / "file" / "x"))
