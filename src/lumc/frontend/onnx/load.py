"""Reading an ONNX file: size caps, the checker, tensors, external data.

Nothing here trusts the file: sizes are compared with the bytes that exist before anything is
allocated, and external data must be a regular file below the folder of the model.
"""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError

MAX_MODEL_BYTES = 2**31 - 1  # of protobuf; larger models keep their weights in external data
MAX_NODES = 1_000_000
MAX_RANK = 16
OPSETS = (1, 28)  # of ai.onnx: the range that the operator tables were written and tested for

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Source:
    """A parsed model, its opset per domain, and where its external data lie."""

    model: Any  # onnx.ModelProto
    opsets: dict[str, int]
    path: Path


def malformed(what: str, where: str) -> LumcError:
    """The file is not a valid ONNX model."""
    fix = "export the model again; `check-model FILE`, of the onnx package, checks it"
    return LumcError("E0310", what, where=where, fix=fix, exit=Exit.CORRUPT)


def rejected(error: Exception, where: str, nodes: Iterable[Any] = ()) -> LumcError:
    """What the checker of the onnx package said, in one line, and the node that it speaks of;
    of a value that it speaks of, those of ``nodes`` that make it."""
    whole = " ".join(str(error).split()) or type(error).__name__
    said = whole.partition(" ==> Context:")[0]
    if found := re.search(r"[Nn]ame: (?:(\S+) )?OpType: (\w+)", whole):
        where += f", node '{found[1]}'" if found[1] else f", a node {found[2]}"
    elif found := re.search(r"'(\S+)' has been used as output names multiple times", said):
        named = ", ".join(f"{n.op_type} '{n.name}'" for n in nodes if found[1] in n.output)
        where += f", nodes {named}" * bool(named)
    return malformed(f"the ONNX checker rejects the model: {said[:400]}", where)


def require_onnx() -> Any:
    """The onnx package, or the error that says how to install it."""
    try:
        import onnx
        import onnx.checker
        import onnx.defs
        import onnx.numpy_helper
    except ImportError as e:
        raise LumcError(
            "E0313",
            f"the ONNX importer needs the onnx package ({e})",
            fix="pip install 'lumc[onnx]'",
            exit=Exit.TOOLCHAIN,
        ) from None
    return onnx


def read_model(path: Path) -> Source:
    """Parse and check a file. Raises E0310 (malformed) and E0201 (unreadable)."""
    onnx = require_onnx()
    try:
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise malformed(f"larger than {MAX_MODEL_BYTES} bytes without external data", str(path))
        data = path.read_bytes()
    except OSError as e:
        raise LumcError("E0201", f"cannot read {path}: {e.strerror}", exit=Exit.USAGE) from None
    protobuf: Any = importlib.import_module("google.protobuf.message")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (protobuf.Error, RecursionError) as e:
        raise malformed(f"not an ONNX model: {e}", str(path)) from None
    _check(onnx, model, path)
    if not model.graph.output:
        raise malformed("the model has no output: there is nothing to compute", str(path))
    return source_of(model, path)


def source_of(model: Any, path: Path) -> Source:
    """A model already in memory; its external data start from the folder of ``path``."""
    if len(model.graph.node) > MAX_NODES:
        raise malformed(f"more than {MAX_NODES} nodes", str(path))
    opsets = {entry.domain: int(entry.version) for entry in model.opset_import} or {"": 1}
    version = opsets.setdefault("", opsets.pop("ai.onnx", OPSETS[1]))
    if not OPSETS[0] <= version <= OPSETS[1]:
        raise LumcError(
            "E0312",
            f"opset {version} is not supported (this is {OPSETS[0]} to {OPSETS[1]})",
            where=str(path),
            fix="export with an opset in that range",
            exit=Exit.UNSUPPORTED,
        )
    return Source(model, opsets, path)


def _check(onnx: Any, model: Any, path: Path) -> None:
    """Run the checker of the onnx package, which validates nodes against their schemas."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external_file(tensor, path).close()  # our error is the clearer one
    try:
        onnx.checker.check_model(str(path))
    except Exception as e:  # ValidationError, and plain RuntimeError and ValueError from C++
        raise rejected(e, str(path), model.graph.node) from e


# ---- tensors


def tensor_value(tensor: Any, path: Path) -> Array:
    """The value of a TensorProto; bf16 as ml_dtypes' bfloat16. Raises E0310, E0311, E0312."""
    onnx = require_onnx()
    where = f"{path}, tensor '{tensor.name}'"
    dims = tuple(int(d) for d in tensor.dims)
    if len(dims) > MAX_RANK or any(d < 0 for d in dims):
        raise malformed(f"shape {list(dims)} of a tensor", where)
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        raise malformed(f"unknown data type {tensor.data_type}", where) from None
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external_value(tensor, dims, dtype, path)
    count = int(np.prod(dims, dtype=object))
    if count > 8 * tensor.ByteSize():  # no encoding packs tighter than a bit
        raise malformed(f"shape {list(dims)} needs {count} elements, the file has fewer", where)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as e:
        raise malformed(f"cannot read a tensor: {e}", where) from None


def _external_value(tensor: Any, dims: tuple[int, ...], dtype: np.dtype[Any], path: Path) -> Array:
    where = f"{path}, tensor '{tensor.name}'"
    entries = {e.key: e.value for e in tensor.external_data}
    count = int(np.prod(dims, dtype=object))
    bits = int(dtype.name[-1]) if dtype.name.startswith(("int2", "int4", "uint2", "uint4")) else 0
    bits = 4 if dtype.name == "float4_e2m1fn" else bits or 8 * dtype.itemsize
    need = -(-count * bits // 8)
    named = f"external data '{entries.get('location', '')}'"
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", need))
    except ValueError:
        raise malformed(f"{named}: its offset or its length is no number", where) from None
    with external_file(tensor, path) as file:
        size = os.fstat(file.fileno()).st_size
        if length != need or offset < 0 or offset + length > size:
            have = f"{dtype.name}{list(dims)} needs {need}, the model says {offset}"
            what = f"{named} has {size} bytes; {have} to {offset + length}"
            fix = "get the model and the files beside it again, whole and of one export"
            raise LumcError("E0310", what, where=where, fix=fix, exit=Exit.CORRUPT)
        if need == 0:
            return np.empty(dims, dtype)
        if bits < 8:  # several in a byte
            whole = type(tensor)(dims=dims, data_type=tensor.data_type)
            file.seek(offset)
            whole.raw_data = file.read(need)
            return np.asarray(require_onnx().numpy_helper.to_array(whole))
        return np.memmap(file, dtype, mode="r", offset=offset, shape=dims)


def external_file(tensor: Any, path: Path) -> Any:
    """Open the file of an external tensor: relative, below the model, no links. Raises E0311."""
    where = f"{path}, tensor '{tensor.name}'"
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    parts = Path(location).parts
    reason = ""
    if not parts or "\0" in location:
        reason = "has no location"
    elif Path(location).is_absolute() or location.startswith(("/", "\\")) or ":" in parts[0]:
        reason = "is an absolute path"
    elif ".." in parts:
        reason = "leaves the folder of the model"
    folder = path.resolve().parent
    below = folder
    for part in parts if not reason else ():
        below = below / part
        if below.is_symlink():
            reason = f"passes the symbolic link '{part}' (a Hugging Face cache? copy the files)"
    if reason:
        raise _unsafe(f"external data '{location}' {reason}", where)
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(folder / location, flags)
    except (OSError, ValueError) as e:
        raise _unsafe(f"cannot open external data '{location}': {e}", where) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unsafe(f"external data '{location}' is not a regular file", where)
    return os.fdopen(descriptor, "rb")


def _unsafe(what: str, where: str) -> LumcError:
    fix = "keep external data as plain files beside or below the model"
    return LumcError("E0311", what, where=where, fix=fix, exit=Exit.CORRUPT)
