"""Inputs, outputs and states in files. What an .npy or .npz says of itself is checked against what
is wanted before anything is allocated."""

from __future__ import annotations

import io
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from lumc.disk.artifact import atomic
from lumc.disk.safetensors import Misfit, read_tensors
from lumc.errors import Exit, LumcError

if TYPE_CHECKING:
    from lumc.graph.tensor import Tensor

Arrays = dict[str, np.ndarray]
SAFETENSORS = ".safetensors"  # files of states
NEITHER = "not an .npy or .npz file"
DAMAGE = (  # as numpy, zipfile and zlib tell of it
    *(ValueError, EOFError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
HEADER_BYTES = 1 << 16  # of an .npy at most; numpy reads 10,000 characters
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(files: tuple[str, ...], wanted: Sequence[Tensor], what: str) -> Arrays:
    """Arrays from ``[NAME=]FILE`` arguments; a bare .npy is the single input, a .safetensors has
    all states. ``what`` they are: input or state. Raises E0601 to E0603, and E0610 for another
    shape or dtype."""
    out: Arrays = {}
    known = {t.name: t for t in wanted}
    for item in files:
        name, sign, file = item.partition("=")
        if not sign:
            name, file = "", item
        elif not name or not file:
            what = f"--{what} {item}: a name and a file on either side of ="
            raise LumcError("E0203", what, fix="for example x=x.npy", exit=Exit.USAGE)
        try:
            read = _read(file, name, known, what)
        except OSError as e:
            fix = "look at its name and permissions" if e.strerror else ""
            what = f"cannot read {file}: {e.strerror or NEITHER}"
            raise LumcError("E0603", what, fix=fix, exit=Exit.USAGE) from None
        except Misfit as e:
            raise LumcError("E0610", f"{file}: {e}", exit=Exit.USAGE) from None
        except DAMAGE as e:
            said = str(e).partition("\n")[0]
            raise LumcError("E0603", f"cannot read {file}: {said}", exit=Exit.CORRUPT) from None
        if twice := sorted(read.keys() & out.keys()):
            what = f"{what} {twice[0]} is given twice, the second time by {file}"
            raise LumcError("E0602", what, fix="give each of them once", exit=Exit.USAGE)
        out |= read
    return out


def _read(file: str, name: str, known: Mapping[str, Tensor], what: str) -> Arrays:
    """The arrays of a file; a pipe is read before, as far as all inputs need."""
    if file == "-":
        name = _named(name or _only(known, file), known)
        return {name: _from_stdin(known[name], what)}
    if file.endswith(SAFETENSORS) and not name and what == "state":
        return read_tensors(file, list(known.values()), what)
    with Path(file).open("rb") as opened:
        most = sum(_most(t) for t in known.values())
        f = opened if opened.seekable() else io.BytesIO(opened.read(most))
        size = f.seek(0, os.SEEK_END)
        f.seek(0)
        if f.read(2) == b"PK":
            with zipfile.ZipFile(f) as z:
                return _members(z, known, what)
        name = _named(name or _only(known, file), known)
        return {name: _array(f, size, known[name], what)}


def _most(want: Tensor) -> int:
    """Bytes of an .npy of it, at most."""
    return prod(want.shape) * want.dtype.numpy.itemsize + HEADER_BYTES


def _from_stdin(want: Tensor, what: str) -> np.ndarray:
    """The array of the one .npy that comes on stdin; no more of it is read than is wanted."""
    if not sys.stdin or sys.stdin.isatty():
        raise ValueError("nothing comes on stdin")
    data = sys.stdin.buffer.read(_most(want))
    if not data:
        raise ValueError("nothing is left on stdin, which has one .npy")
    return _array(io.BytesIO(data), len(data), want, what)


def _only(known: Mapping[str, Tensor], file: str) -> str:
    if len(known) == 1:
        return next(iter(known))
    fix = f"name it: --input NAME={file}; inputs are {', '.join(known)}"
    raise LumcError("E0601", f"which input is {file}?", fix=fix, exit=Exit.USAGE)


def _named(name: str, known: Mapping[str, Tensor]) -> str:
    if name in known:
        return name
    fix = f"inputs: {', '.join(known)}"
    raise LumcError("E0602", f"no input named {name}", fix=fix, exit=Exit.USAGE)


def _members(z: zipfile.ZipFile, known: Mapping[str, Tensor], what: str) -> Arrays:
    out: Arrays = {}
    for info in z.infolist():
        name = _named(info.filename.removesuffix(".npy"), known)
        with z.open(info) as f:
            out[name] = _array(f, info.file_size, known[name], what)
    return out


def _array(f: IO[bytes], size: int, want: Tensor, what: str) -> np.ndarray:
    """The array of an .npy of so many bytes. Raises ValueError."""
    from lumc.runtime.opened import check_fits

    f.seek(0)
    if f.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        raise ValueError(NEITHER)
    f.seek(0)
    version = npy.read_magic(f)
    if version not in HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of .npy is not supported")
    try:
        shape, _, dtype = HEADERS[version](f)
    except Exception:  # whatever numpy's parser, Python's tokenizer among it, makes of the text
        raise ValueError("its header cannot be read") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    check_fits(shape, dtype, want, what)
    if prod(shape) * dtype.itemsize != size - f.tell():
        raise ValueError("it does not have the size that its shape needs")
    f.seek(0)
    return npy.read_array(f, allow_pickle=False)


def write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz of all, or an .npy of the only one, which ``-`` writes to stdout."""
    if path == "-" and len(arrays) == 1:
        whole = io.BytesIO()
        np.save(whole, next(iter(arrays.values())))
        sys.stdout.buffer.write(whole.getvalue())
        sys.stdout.buffer.flush()
    elif path.endswith(".npz"):
        with atomic(path) as f:
            np.savez(f, **dict[str, Any](arrays))
    elif len(arrays) == 1:
        with atomic(path) as f:
            np.save(f, next(iter(arrays.values())))
    else:
        what = f"{len(arrays)} outputs do not fit in {'one .npy' if path == '-' else path}"
        raise LumcError("E0604", what, fix="write an .npz", exit=Exit.USAGE)
