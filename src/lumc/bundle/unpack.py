"""The single-file form of a bundle, unpacked into a cache folder that only its owner can read."""

from __future__ import annotations

import errno
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lumc.bundle import manifest
from lumc.disk import private
from lumc.disk.artifact import corrupt, kind_of, unexpected
from lumc.disk.scratch import scratch
from lumc.errors import Exit, LumcError


@contextmanager
def opened(path: str | Path, cache: Path | None = None) -> Iterator[Path]:
    """The folder of a bundle; one file is unpacked under ``cache``, which only this user may be
    able to write, or for the block only."""
    path = Path(path)
    if path.is_dir():
        yield path
    elif not path.is_file():
        raise LumcError("E0201", f"no bundle at {path}", exit=Exit.USAGE)
    elif kind := _artifact(path):
        raise unexpected("bundle", kind, str(path))
    elif cache:
        if why := private.ensure(cache):
            raise LumcError("E0202", f"cannot unpack {path}: {why}")
        yield unpack(path, cache)
    else:
        with scratch() as folder:
            yield unpack(path, folder)


def _artifact(path: Path) -> str:
    """Which other artifact a file is, if it is one."""
    try:
        with path.open("rb") as f:
            return kind_of(f.read(4096).decode(errors="replace"))
    except OSError:  # said when it is unpacked
        return ""


def unpack(path: Path, cache: Path) -> Path:
    """The bundle directory of a zip, made once per digest under ``cache``. Raises E0501, exit 5."""
    try:
        with zipfile.ZipFile(path) as z:
            body, names = check_members(z, path)
            folder = cache / str(body["digest"])[:32]
            if not folder.is_dir():
                _extract(z, names, cache, folder)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as e:
        fix = "name the folder of a bundle, or what --zip wrote; if that is damaged, make it again"
        what = f"not a bundle in one file: {e}"
        raise LumcError("E0501", what, where=str(path), fix=fix, exit=Exit.CORRUPT) from None
    except OSError as e:
        if e.errno == errno.EINVAL:  # zipfile seeks where a damaged directory says
            raise corrupt("not a bundle in one file: a place outside of it", str(path)) from None
        raise LumcError("E0202", f"cannot unpack {path}: {e.strerror or e}") from None
    return folder


def check_members(z: zipfile.ZipFile, path: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest and the members: exactly the files that it lists, none compressed."""
    members = z.infolist()
    names = [m.filename for m in members]
    if manifest.NAME not in names or len(set(names)) != len(names):
        raise corrupt("not a bundle in one file: no manifest, or names repeat", str(path))
    if any(m.compress_type != zipfile.ZIP_STORED for m in members):
        raise corrupt("its files are compressed", str(path))
    body = manifest.parse(z.read(manifest.NAME), str(path))
    if set(names) != {manifest.NAME, *body["files"]}:
        odd = sorted(set(names) ^ {manifest.NAME, *body["files"]})
        raise corrupt(f"its files are not those of its manifest: {', '.join(odd[:3])}", str(path))
    return body, names


def _extract(z: zipfile.ZipFile, names: list[str], cache: Path, folder: Path) -> None:
    private.make(cache)
    with scratch(cache) as unpacked:
        hidden = unpacked / "bundle"
        hidden.mkdir(mode=0o700)
        for name in names:
            target = hidden / name  # a safe path: parse() has checked it
            target.parent.mkdir(parents=True, exist_ok=True)
            with z.open(name) as source, target.open("xb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            if name.startswith("bin/"):
                target.chmod(0o755)
        try:
            hidden.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
