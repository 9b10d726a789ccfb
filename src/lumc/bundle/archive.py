"""The single-file form of a bundle: a stored zip of which every file starts at a page."""

from __future__ import annotations

import shutil
import struct
import zipfile
from pathlib import Path

from lumc.bundle import manifest
from lumc.codegen.tile.memory import PAGE
from lumc.disk.artifact import corrupt

EPOCH = (1980, 1, 1, 0, 0, 0)
PADDING = 0xD935  # the extra field that zipalign uses for the same purpose
ZIP64_EXTRA = 20  # bytes that zipfile itself adds for large members


def write(folder: Path, path: Path) -> None:
    """Zip the files of a folder, the manifest first; equal folders give equal bytes."""
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    with zipfile.ZipFile(path, "w") as out:
        for name in sorted(files, key=lambda n: (n != manifest.NAME, n)):
            source = folder / name
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3  # unix: the upper half of external_attr is the mode
            info.external_attr = (0o100755 if name.startswith("bin/") else 0o100644) << 16
            info.file_size = source.stat().st_size
            large = info.file_size * 1.05 > zipfile.ZIP64_LIMIT
            assert out.fp is not None
            start = out.fp.tell() + 30 + len(name) + 4 + (ZIP64_EXTRA if large else 0)
            info.extra = struct.pack("<HH", PADDING, -start % PAGE) + bytes(-start % PAGE)
            with source.open("rb") as f, out.open(info, "w") as member:
                shutil.copyfileobj(f, member, 1 << 20)


def check(path: Path) -> None:
    """Raises an error unless a file is the single-file form of a bundle."""
    try:
        with zipfile.ZipFile(path) as z:
            manifest.parse(z.read(manifest.NAME), str(path))
    except (zipfile.BadZipFile, KeyError, OSError, NotImplementedError, RuntimeError):
        raise corrupt("not a bundle in one file", str(path)) from None
