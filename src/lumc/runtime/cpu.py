"""Runs a bundle from Python, through the native library that the bundle itself carries."""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from lumc.artifact import corrupt
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.link import manifest
from lumc.link.packing import Array
from lumc.link.planfile import DTYPES
from lumc.runtime.unpack import opened

LIBRARY = "lib/liblumc.so"
BY_RUNNER = ("plan/", "weights.safetensors")  # lumc_open checks these and kernels.so itself
MAX_SAMPLES = 100_000


@dataclass(frozen=True)
class TensorSpec:
    """What an input, output or state must look like; bf16 travels as uint16 bits."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class EntrySpec:
    name: str
    number: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Part:
    """What one thread did of one launch, in microseconds from the start of the run."""

    kernel: str  # its symbol
    launch: int
    thread: int
    start_us: float
    us: float


class Bundle:
    """An open bundle. Use ``Bundle.open``; close it, or use it in a ``with`` block."""

    def __init__(self, path: Path, body: Mapping[str, Any], library: ctypes.CDLL) -> None:
        self.path, self.manifest, self._library = path, body, library
        handle = ctypes.c_void_p()
        self._check(library.lumc_open(os.fsencode(path), 1, ctypes.byref(handle)))
        self._handle, self._threads = handle, 1
        self._close = weakref.finalize(self, library.lumc_close, handle)
        every = [_entry(library, handle, i) for i in range(library.lumc_entries(handle))]
        self._entries = {e.name: e for e in every}
        states = (library.lumc_state(handle, i) for i in range(library.lumc_states(handle)))
        self.states = tuple(_spec(s.contents) for s in states)

    @staticmethod
    def open(path: str | Path, cache: Path | None = None) -> Bundle:
        """Check every hash and load a bundle, a directory or one file.

        One file is unpacked under ``cache``, or into a temporary folder. Raises E0501 (exit 5) for
        anything damaged or changed, E0704 (exit 7) when this machine cannot run it.
        """
        with opened(path, cache) as folder:  # everything is in memory afterwards
            body = manifest.read(folder)
            for name, digest in body["files"].items():
                if not name.startswith(BY_RUNNER) and not name.endswith("/kernels.so"):
                    manifest.check_file(folder, name, digest)
            if LIBRARY not in body["files"]:
                raise corrupt(f"the manifest has no hash of {LIBRARY}", str(path))
            return Bundle(folder, body, _load(str(folder / LIBRARY), body["files"][LIBRARY]))

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def entry(self, name: str = "") -> EntrySpec:
        """Inputs and outputs of an entry, by default the first. Raises E0110, exit 2."""
        name = name or self.entries[0]
        if name not in self._entries:
            fix = f"one of: {', '.join(self.entries)}"
            raise LumcError("E0110", f"no entry '{name}'", fix=fix, exit=Exit.USAGE)
        return self._entries[name]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.entry().inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.entry().outputs

    def run(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Callable[[str], None] = warnings.warn,
    ) -> dict[str, Array]:
        """Run an entry on arrays by name; ``say`` hears of every conversion that was needed."""
        spec = self.entry(entry)
        arrays = check_inputs(inputs, spec, say)
        outputs = {t.name: np.empty(t.shape, t.dtype.numpy) for t in spec.outputs}
        self._set_threads(threads)
        memory = _pointers(arrays), _pointers(list(outputs.values()))
        self._check(self._library.lumc_run(self._handle, spec.number, *memory))
        return outputs

    def trace(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Callable[[str], None] = warnings.warn,
    ) -> tuple[dict[str, Array], list[Part]]:
        """The outputs of a run, and when every thread did its part of every launch; a run before
        it warms up, states are put back. Raises E0612 for a bundle whose library cannot tell."""
        if not hasattr(self._library, "lumc_trace"):
            what = "this bundle was linked by a lumc that could not trace"
            raise LumcError("E0612", what, where=str(self.path), fix="link it again")
        before = self.state()
        outputs = self.run(inputs, entry, threads, say)
        self.set_state(before)
        spec = self.entry(entry)
        arrays = check_inputs(inputs, spec, lambda _: None)
        n = self._library.lumc_launches(self._handle, spec.number)
        times = np.zeros((n, threads, 2), np.int64)
        where = self._handle, spec.number, _pointers(arrays), _pointers(list(outputs.values()))
        self._check(self._library.lumc_trace(*where, times.ctypes.data))
        names = [self._library.lumc_launch(self._handle, spec.number, i).decode() for i in range(n)]
        start = int(times[times > 0].min()) if n else 0
        return outputs, [
            Part(names[i], i, thread, (a - start) / 1e3, (b - a) / 1e3)
            for (i, thread), (a, b) in zip(
                np.ndindex(n, threads), times.reshape(-1, 2).tolist(), strict=True
            )
            if a
        ]

    def bench(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        seconds: float = 1.0,
        say: Callable[[str], None] = warnings.warn,
    ) -> list[float]:
        """Microseconds of one run, in samples of about 100 us timed in C; states are put back."""
        spec = self.entry(entry)
        arrays = check_inputs(inputs, spec, say)
        outputs = [np.empty(t.shape, t.dtype.numpy) for t in spec.outputs]
        self._set_threads(threads)
        before = self.state()
        samples = (ctypes.c_double * MAX_SAMPLES)()
        where = self._handle, spec.number, _pointers(arrays), _pointers(outputs)
        n = self._library.lumc_bench(*where, seconds, samples, MAX_SAMPLES)
        self._check(-n if n < 0 else 0)
        self.set_state(before)
        return list(samples[:n])

    def state(self) -> dict[str, Array]:
        """A copy of every state."""
        return {t.name: view.copy() for t, view in zip(self.states, self._views(), strict=True)}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite states by name; the others stay."""
        unknown = sorted(set(values) - {t.name for t in self.states})
        if unknown:
            known = ", ".join(t.name for t in self.states) or "none"
            raise _usage(f"unknown state {', '.join(unknown)}; the states are: {known}")
        for t, view in zip(self.states, self._views(), strict=True):
            if t.name in values:
                view[...] = check_array(values[t.name], t, "state", lambda _: None)

    def _views(self) -> list[Array]:
        """The memory of the states, without copying it."""
        out = []
        for i, t in enumerate(self.states):
            size = int(np.prod(t.shape, dtype=np.int64)) * t.dtype.nbytes
            address = self._library.lumc_state_data(self._handle, i)
            memory = (ctypes.c_uint8 * size).from_address(address)
            out.append(np.ndarray(t.shape, t.dtype.numpy, memory))
        return out

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _set_threads(self, threads: int) -> None:
        if not self._close.alive:
            raise _usage("the bundle is closed")
        if threads != self._threads:
            self._check(self._library.lumc_set_threads(self._handle, threads))
            self._threads = threads

    def _check(self, code: int) -> None:
        """The error of a failed call of the library."""
        if code == 0:
            return
        message = self._library.lumc_error().decode(errors="replace")
        if code == Exit.CORRUPT:
            raise corrupt(message, str(self.path))
        fix = "link the model for this machine" if code == Exit.TOOLCHAIN else ""
        kind = {Exit.TOOLCHAIN: "E0704", Exit.USAGE: "E0610"}.get(Exit(code), "E0611")
        raise LumcError(kind, message, where=str(self.path), fix=fix, exit=Exit(code))


# ---- inputs


def check_inputs(
    inputs: Mapping[str, Any], spec: EntrySpec, say: Callable[[str], None]
) -> list[Array]:
    """The arrays in the order of the entry, ready for C; all problems are reported at once."""
    unknown = sorted(set(inputs) - {t.name for t in spec.inputs})
    missing = [f"{t.name} {t}" for t in spec.inputs if t.name not in inputs]
    problems = [f"unknown: {', '.join(unknown)}"] if unknown else []
    problems += [f"missing: {', '.join(missing)}"] if missing else []
    if problems:
        raise _usage(f"wrong inputs of entry '{spec.name}': {'; '.join(problems)}")
    return [check_array(inputs[t.name], t, "input", say) for t in spec.inputs]


def check_array(value: Any, want: TensorSpec, what: str, say: Callable[[str], None]) -> Array:
    """A C-ordered array of the wanted shape and dtype; converts only without loss, and says so."""
    x = np.asarray(value)
    if x.shape != want.shape:
        have = ", ".join(map(str, x.shape))
        raise _usage(f"{what} '{want.name}' must be {want}, got shape [{have}]")
    dtype = want.dtype.numpy
    if x.dtype != dtype:
        if not lossless(x.dtype, want.dtype):
            fix = f"convert it first: {want.name}.astype('{dtype}')"
            raise _usage(f"{what} '{want.name}' must be {want}, got {x.dtype}", fix)
        say(f"{what} '{want.name}': converted from {x.dtype.str} to {want.dtype.value}")
    elif not x.flags.c_contiguous or not x.flags.aligned:
        say(f"{what} '{want.name}': copied, it was not contiguous")
    return np.require(x, dtype, ["C", "A"])


def lossless(have: np.dtype[Any], want: DType) -> bool:
    """Whether every value of ``have`` is one of ``want``; never between ints and floats."""
    if want is DType.BF16 or want is DType.BOOL:
        return have.newbyteorder("=") == want.numpy
    kinds = {"b": "iu", "i": "iu", "u": "iu", "f": "f"}.get(have.kind, "")
    return want.numpy.kind in kinds and bool(np.can_cast(have, want.numpy, "safe"))


def _usage(what: str, fix: str = "") -> LumcError:
    return LumcError("E0610", what, fix=fix, exit=Exit.USAGE)


# ---- the library


def _load(path: str, digest: str) -> ctypes.CDLL:
    """Load liblumc.so through the descriptor that was hashed: by its path, the loader would give
    an older library again when the bundle was replaced meanwhile."""
    if digest not in _loaded:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # stays open: it is the name
        name = f"/proc/self/fd/{descriptor}"
        _loaded[digest] = _declare(ctypes.CDLL(name if Path(name).exists() else path))
    return _loaded[digest]


_loaded: dict[str, ctypes.CDLL] = {}  # by hash


class _Tensor(ctypes.Structure):
    """lumc_tensor of lumc.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("nbytes", ctypes.c_size_t),
    )


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    arrays = (ctypes.POINTER(pointer), ctypes.POINTER(pointer))
    tensor, samples = ctypes.POINTER(_Tensor), ctypes.POINTER(ctypes.c_double)
    signatures: dict[str, tuple[Any, ...]] = {
        "lumc_open": (number, ctypes.c_char_p, number, ctypes.POINTER(pointer)),
        "lumc_close": (None, pointer),
        "lumc_error": (ctypes.c_char_p,),
        "lumc_entries": (number, pointer),
        "lumc_entry_name": (ctypes.c_char_p, pointer, number),
        "lumc_inputs": (number, pointer, number),
        "lumc_outputs": (number, pointer, number),
        "lumc_input": (tensor, pointer, number, number),
        "lumc_output": (tensor, pointer, number, number),
        "lumc_states": (number, pointer),
        "lumc_state": (tensor, pointer, number),
        "lumc_state_data": (pointer, pointer, number),
        "lumc_set_threads": (number, pointer, number),
        "lumc_run": (number, pointer, number, *arrays),
        "lumc_bench": (number, pointer, number, *arrays, ctypes.c_double, samples, number),
    }
    if hasattr(library, "lumc_trace"):  # since the first bundles
        signatures |= {
            "lumc_launches": (number, pointer, number),
            "lumc_launch": (ctypes.c_char_p, pointer, number, number),
            "lumc_trace": (number, pointer, number, *arrays, pointer),
        }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _pointers(arrays: list[Array]) -> Any:
    return (ctypes.c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in arrays))


def _spec(t: Any) -> TensorSpec:
    return TensorSpec(t.name.decode(), DTYPES[t.dtype], tuple(t.shape[: t.rank]))


def _entry(library: ctypes.CDLL, handle: ctypes.c_void_p, i: int) -> EntrySpec:
    inputs = (library.lumc_input(handle, i, k) for k in range(library.lumc_inputs(handle, i)))
    outputs = (library.lumc_output(handle, i, k) for k in range(library.lumc_outputs(handle, i)))
    return EntrySpec(
        library.lumc_entry_name(handle, i).decode(),
        i,
        tuple(_spec(t.contents) for t in inputs),
        tuple(_spec(t.contents) for t in outputs),
    )
