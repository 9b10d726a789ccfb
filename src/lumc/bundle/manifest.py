"""manifest.json: what a bundle is, and the sha256 of every file in it.

Line 1 ends in the sha256 of all that follows, so that the native runner checks it without a JSON
parser: ``{"lumc":"bundle","schema":1,"digest":"<hex>",``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lumc.disk.artifact import compact, corrupt, fields
from lumc.doing import doing
from lumc.errors import Exit, LumcError

NAME = "manifest.json"
HEAD = '{"lumc":"bundle","schema":1,"digest":"'
MAX_BYTES = 1 << 28


def render(body: Mapping[str, Any]) -> str:
    """The text of a manifest, one line per field and per element of its lists."""
    rest = ",\n".join(f'"{k}":{_value(body[k])}' for k in sorted(body)) + "}\n"
    return f'{HEAD}{hashlib.sha256(rest.encode()).hexdigest()}",\n{rest}'


def _value(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(compact(v) for v in value) + "]"
    if isinstance(value, dict) and value:
        return "{\n " + ",\n ".join(f"{compact(k)}:{compact(v)}" for k, v in value.items()) + "}"
    return compact(value)


def parse(data: bytes, where: str) -> dict[str, Any]:
    """The fields of a manifest, checked against its digest. Raises E0501, exit 5."""
    match = re.match(re.escape(HEAD).encode() + rb'([0-9a-f]{64})",\n', data)
    if not match or hashlib.sha256(data[match.end() :]).hexdigest() != match[1].decode():
        raise corrupt("manifest.json is not a lumc manifest, or was changed", where)
    with fields("manifest", where):
        body: dict[str, Any] = json.loads(data)
        for name, digest in body["files"].items():
            if not safe_path(name) or not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise ValueError(f"unsafe file name {name!r}")
    return body


def safe_path(name: str) -> bool:
    """Whether a path may be used inside a bundle: relative, plain, never upwards."""
    plain = re.fullmatch(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*", name)
    return bool(plain) and not {".", ".."} & set(name.split("/"))


def read(bundle: Path) -> dict[str, Any]:
    """The manifest of a bundle directory; the files are not checked yet."""
    path = bundle / NAME
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        what = f"{bundle} is not a lumc bundle: it has no manifest.json"
        fix = "a bundle is the folder that -o of 'lumc compile' or 'lumc link' names"
        raise LumcError("E0501", what, fix=fix, exit=Exit.CORRUPT)
    return parse(path.read_bytes(), str(bundle))


def check_file(bundle: Path, name: str, digest: str) -> None:
    """One file of a bundle against its hash; links are refused. Raises E0501, exit 5."""
    path = bundle / name
    if not path.is_file() or path.resolve() != bundle.resolve() / name:
        raise corrupt(f"{name} is missing or not a regular file", str(bundle))
    if sha256(path) != digest:
        raise corrupt(f"{name} does not match its hash in the manifest", str(bundle))


def sha256(path: Path) -> str:
    doing(f"hashing {path.name}")
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
