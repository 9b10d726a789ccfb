"""Artifacts on disk: a versioned JSON envelope, hashed, deterministic, written atomically.

The text is one JSON object with a line per element of the body's top-level lists, so that ``grep``
and ``diff`` work on it. ``digest`` is the sha256 of the body without the paths of weight files and
without statistics: the same model in another folder has the same digest. ``input`` is the digest
of the artifact that this one was made from.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from lumc.disk.scratch import temporary
from lumc.errors import Exit, LumcError

SCHEMA = 1
MAX_BYTES = 1 << 30  # of an artifact file; weights are never inside
COMMENTS = re.compile(r"(?:\s*#[^\n]*\n)*\s*")  # that a graph may begin with
KINDS = {"space": "lumc search", "plan": "lumc profile", "kernels": "lumc codegen"}
MAKERS = {**KINDS, "bundle": "lumc link"}  # of what a manifest calls itself, too
BUNDLE = {  # how each becomes one
    "graph": "lumc compile {} -o model.lb",
    "space": "lumc profile {} | lumc codegen | lumc link -o model.lb",
    "plan": "lumc codegen {} | lumc link -o model.lb",
    "kernels": "lumc link {} -o model.lb",
}


@dataclass(frozen=True)
class Artifact:
    """A parsed envelope; ``base`` is the folder that relative paths inside it start from."""

    kind: str
    input: str
    digest: str
    body: Mapping[str, Any]
    base: Path


def digest(body: Mapping[str, Any]) -> str:
    """The sha256 of a body; ``files`` counts without the paths, ``statistics`` do not count."""
    files = [{k: v for k, v in f.items() if k != "path"} for f in body.get("files", [])]
    counted = {k: v for k, v in body.items() if k != "statistics"} | {"files": files}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def dump(kind: str, input: str, body: Mapping[str, Any]) -> str:
    """The text of an artifact."""
    head = {"lumc": kind, "schema": SCHEMA, "input": input, "digest": digest(body)}
    lines = [f'"{k}":{compact(v)}' for k, v in head.items()]
    for key in sorted(body):
        value = body[key]
        if isinstance(value, list) and value:
            rows = ",\n ".join(compact(v) for v in value)
            lines.append(f'"{key}":[\n {rows}]')
        else:
            lines.append(f'"{key}":{compact(value)}')
    return "{" + ",\n".join(lines) + "}\n"


def parse(text: str, kind: str, where: str, base: Path) -> Artifact:
    """Check the envelope: kind, schema and digest. Raises E05xx, exit 5."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        if text.startswith("lumc graph"):
            raise other(kind, f"not a lumc {kind} but a graph", "lumc import", where) from None
        raise corrupt(f"not a lumc {kind}: {e}", where) from None
    if not isinstance(data, dict) or not isinstance(data.get("lumc"), str):
        raise corrupt(f"not a lumc {kind}: the envelope is missing", where)
    if data["lumc"] != kind:
        wanted, got = (k if k == "kernels" else f"a {k}" for k in (kind, data["lumc"]))
        made = MAKERS.get(data["lumc"], "lumc import")
        raise other(kind, f"expected {wanted}, got {got}", made, where)
    if data.get("schema") != SCHEMA:
        raise corrupt(f"schema {data.get('schema')} is not supported (this is {SCHEMA})", where)
    head = ("lumc", "schema", "input", "digest")
    body = {k: v for k, v in data.items() if k not in head}
    with fields(kind, where):
        same = isinstance(data["input"], str) and data["digest"] == digest(body)
    if not same:
        raise corrupt("the content does not match its digest", where)
    return Artifact(kind, data["input"], cast(str, data["digest"]), body, base)


def kind_of(text: str) -> str:
    """What begins so: a graph, another artifact, or nothing that is known."""
    begins = {"graph": "lumc graph"} | {k: f'{{"lumc":"{k}"' for k in KINDS}
    at = COMMENTS.match(text).end()  # type: ignore[union-attr]
    return next((kind for kind, start in begins.items() if text.startswith(start, at)), "")


def unexpected(wanted: str, got: str, path: str) -> LumcError:
    """Another kind of artifact, which can be made a bundle."""
    called = got if got == "kernels" else f"a {got}"
    fix = f"make a bundle of it: {BUNDLE[got].format(path)}"
    return LumcError(
        "E0502", f"expected a {wanted}, got {called}", where=path, fix=fix, exit=Exit.CORRUPT
    )


def other(kind: str, what: str, made: str, where: str) -> LumcError:
    """The artifact of another pass."""
    fix = f"this file was made by '{made}'; make the {kind} with '{KINDS[kind]}'"
    return LumcError("E0502", what, where=where, fix=fix, exit=Exit.CORRUPT)


def corrupt(what: str, where: str = "") -> LumcError:
    """A malformed or damaged artifact."""
    return LumcError("E0501", what, where=where, fix="make the file again", exit=Exit.CORRUPT)


@contextmanager
def fields(what: str, where: str = "") -> Iterator[None]:
    """Turn a missing or mistyped field of untrusted JSON, and whatever else is refused while it is
    read, into one clear error with exit code 5."""
    try:
        yield
    except LumcError as e:
        if e.exit is Exit.CORRUPT:
            raise
        fix = "make the file again"
        raise LumcError(e.code, e.what, where=where or e.where, fix=fix, exit=Exit.CORRUPT) from e
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as e:
        said = f"missing field {e}" if isinstance(e, KeyError) else str(e)
        raise corrupt(f"malformed {what}: {said}", where) from e


def compact(value: Any) -> str:
    """JSON without spaces, keys in order."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_text(path: str) -> tuple[str, Path]:
    """The text of a file, or of stdin for ``-``, and the folder its relative paths start from."""
    try:
        if path == "-":
            typed = not sys.stdin or sys.stdin.isatty()
            data, base = b"" if typed else sys.stdin.buffer.read(MAX_BYTES + 1), Path.cwd()
            if not data:
                fix = "name a file, or see why the command before the pipe wrote nothing"
                raise LumcError("E0201", "nothing to read on stdin", fix=fix, exit=Exit.USAGE)
        else:
            if os.path.getsize(path) > MAX_BYTES:
                raise corrupt(f"larger than {MAX_BYTES} bytes", path)
            with Path(path).open("rb") as f:  # a device has no size, and perhaps no end
                data, base = f.read(MAX_BYTES + 1), Path(path).resolve().parent
        if len(data) > MAX_BYTES:
            raise corrupt(f"larger than {MAX_BYTES} bytes", path)
        return data.removeprefix(BOM_UTF8).decode(), base  # some editors write one
    except UnicodeDecodeError:
        raise corrupt("not text", path) from None
    except OSError as e:
        raise LumcError("E0201", f"cannot read {path}: {e.strerror}", exit=Exit.USAGE) from None


def check_writable(path: str | Path, folder: bool = False) -> None:
    """Say before the work that a file, or a folder, cannot be written there. Raises E0202."""
    target, why = Path(path), ""
    if str(path) == "-":
        return
    if target.is_dir() and not folder:
        why = "it is a folder"
    elif not target.parent.is_dir():
        why = f"there is no folder {target.parent}"
    elif is_special(target):
        why = "" if os.access(target, os.W_OK) else "nothing may be written to it"
    elif not os.access(target.parent, os.W_OK | os.X_OK):
        why = f"nothing may be written in {target.parent}"
    if why:
        raise LumcError("E0202", f"cannot write {path}: {why}", exit=Exit.FAILED)


def write_text(path: str, text: str) -> None:
    """Write to stdout for ``-``, otherwise atomically: the old file stays whole until the end."""
    if path != "-":
        with atomic(path) as f:
            f.write(text.encode())
    elif sys.stdout is None:
        raise LumcError("E0202", "cannot write to stdout: it is closed")
    else:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has enough
            raise
        except OSError as e:
            raise unwritable("to stdout", e) from None


def is_special(path: Path) -> bool:
    """Is it there, and neither a file nor a folder?"""
    return path.exists() and not path.is_file() and not path.is_dir()


def unwritable(path: str | Path, e: OSError) -> LumcError:
    """Without a reason of the system, numpy found that less was written than it wanted."""
    return LumcError("E0202", f"cannot write {path}: {e.strerror or os.strerror(errno.ENOSPC)}")


@contextmanager
def atomic(path: str | Path) -> Iterator[IO[bytes]]:
    """A file that appears under ``path`` only when the block ends without an exception. What is no
    file (/dev/null, a pipe) stays what it is, and gets all at the end. Raises E0202."""
    target = Path(path)
    try:
        if is_special(target):
            whole = io.BytesIO()
            yield whole
            target.write_bytes(whole.getvalue())
        else:
            with _hidden(target) as f:
                yield f
    except OSError as e:
        raise unwritable(path, e) from None


@contextmanager
def _hidden(target: Path) -> Iterator[IO[bytes]]:
    """A temporary beside a file, which it replaces."""
    name, handle = temporary(target.parent)
    with os.fdopen(handle, "wb") as f:  # open, so that nobody sweeps it
        try:
            yield f
            f.flush()
            os.fsync(handle)
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(handle, 0o666 & ~mask)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
