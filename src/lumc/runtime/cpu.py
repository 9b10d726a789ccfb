"""Runs a bundle from Python, through the native library that the bundle itself carries."""

from __future__ import annotations

import ctypes
import os
import platform
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lumc.bundle import manifest
from lumc.bundle.packing import Array
from lumc.bundle.planfile import DTYPES
from lumc.bundle.unpack import opened
from lumc.disk.artifact import corrupt
from lumc.errors import Exit, LumcError
from lumc.graph.tensor import Tensor
from lumc.runtime.opened import (
    NO_DIMS,
    Call,
    EntrySpec,
    Index,
    Opened,
    Part,
    Say,
    entries_of,
    move,
    plans_of,
    usage,
)

LIBRARY = "lib/liblumc.so"
OTHER = f"lib/linux-{platform.machine()}/liblumc.so"  # where the first is for another processor
BY_RUNNER = ("plan/", "weights.safetensors")  # lumc_open checks these and kernels.so itself
MAX_SAMPLES = 100_000


def problem() -> LumcError | None:
    """A CPU is always there; whether it suits a bundle, opening it says."""
    return None


class Bundle(Opened):
    """A bundle that its own library runs. Use ``Bundle.open``."""

    def __init__(
        self, path: Path, body: Mapping[str, Any], library: ctypes.CDLL, device: str
    ) -> None:
        self.path, self.manifest, self._library = path, body, library
        handle = ctypes.c_void_p()
        if hasattr(library, "lumc_open_on"):  # since there are devices
            on = device.encode() or None
            code = library.lumc_open_on(os.fsencode(path), on, 1, ctypes.byref(handle))
        else:
            code = library.lumc_open(os.fsencode(path), 1, ctypes.byref(handle))
        self._check(code)
        self._handle, self._threads = handle, 1
        self._close = weakref.finalize(self, library.lumc_close, handle)
        self.device = library.lumc_device(handle).decode() if device != "cpu" else device
        entries = [_entry(library, handle, i) for i in range(library.lumc_entries(handle))]
        states = (library.lumc_state(handle, i) for i in range(library.lumc_states(handle)))
        super().__init__(path, entries, [_spec(s.contents) for s in states])
        self.rank = library.lumc_rank(handle) if body.get("mesh") else None
        if hasattr(library, "lumc_dims") and library.lumc_dims(handle):
            plan = plans_of(path, body["files"], self.device)[
                0
            ]  # in all of them the ends are equal
            super().__init__(path, entries_of(plan), plan.states)
            self.dims = plan.dims

    @staticmethod
    def open(path: str | Path, cache: Path | None = None, device: str = "cpu") -> Bundle:
        """Check every hash and load a bundle, a directory or one file.

        One file is unpacked under ``cache``, or into a temporary folder. ``device``: what the
        library runs it on; "" for the best that it finds. Raises E0501 (exit 5) for anything
        damaged or changed, E0704 (exit 7) when this machine cannot run it.
        """
        with opened(path, cache) as folder:  # everything is in memory afterwards
            body = manifest.read(folder)
            for name, digest in body["files"].items():
                if not name.startswith(BY_RUNNER) and not name.endswith("/kernels.so"):
                    manifest.check_file(folder, name, digest)
            name = OTHER if OTHER in body["files"] else LIBRARY
            if name not in body["files"]:
                raise corrupt(f"the manifest has no hash of {name}", str(path))
            library = _load(str(folder / name), body["files"][name])
            return Bundle(folder, body, library, device)

    def run(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> dict[str, Array]:
        """Run an entry on arrays by name; ``say`` hears of every conversion that was needed."""
        call = self._call(inputs, entry, say, dims)
        outputs = {t.name: np.empty(t.shape, t.dtype.numpy) for t in call.outputs}
        self._set_threads(threads)
        memory = _pointers(call.arrays), _pointers(list(outputs.values()))
        self._check(self._library.lumc_run(self._handle, call.number, *memory))
        return outputs

    def _call(
        self, inputs: Mapping[str, Any], entry: str, say: Say, dims: Mapping[str, int]
    ) -> Call:
        """A run whose dims are set."""
        call = self.call(inputs, entry, say, dims)
        for name, value in call.dims.items():
            self._check(self._library.lumc_set_dim(self._handle, name.encode(), value))
        return call

    def trace(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> tuple[dict[str, Array], list[Part]]:
        """The outputs of a run, and when every thread did its part of every launch; a run before
        it warms up, states are put back. Raises E0612 for a bundle whose library cannot tell."""
        if not hasattr(self._library, "lumc_trace"):
            what = "this bundle was linked by a lumc that could not trace"
            raise LumcError("E0612", what, where=str(self.path), fix="link it again")
        before = self.state()
        outputs = self.run(inputs, entry, threads, say, dims)
        self.set_state(before)
        call = self._call(inputs, entry, lambda _: None, dims)
        n = self._library.lumc_launches(self._handle, call.number)
        times = np.zeros((n, threads, 2), np.int64)
        ends = _pointers(call.arrays), _pointers(list(outputs.values()))
        where = self._handle, call.number, *ends
        self._check(self._library.lumc_trace(*where, times.ctypes.data))
        names = [self._library.lumc_launch(self._handle, call.number, i).decode() for i in range(n)]
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
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> list[float]:
        """Microseconds of one run, in samples of about 100 us timed in C; states are put back."""
        call = self._call(inputs, entry, say, dims)
        outputs = [np.empty(t.shape, t.dtype.numpy) for t in call.outputs]
        self._set_threads(threads)
        before = self.state()
        samples = (ctypes.c_double * MAX_SAMPLES)()
        where = self._handle, call.number, _pointers(call.arrays), _pointers(outputs)
        n = self._library.lumc_bench(*where, seconds, samples, MAX_SAMPLES)
        self._check(-n if n < 0 else 0)
        self.set_state(before)
        return list(samples[:n])

    def state(self) -> dict[str, Array]:
        """A copy of every state."""
        return {t.name: view.copy() for t, view in zip(self.states, self._views(), strict=True)}

    def reset(self) -> None:
        """All states as they were at first; memory that no run used stays unused."""
        if hasattr(self._library, "lumc_reset"):  # since the first bundles
            self._check(self._library.lumc_reset(self._handle))
        else:
            super().reset()

    def copy_state(self, source: Index, target: Index) -> None:
        """In every state, what is at one index to another one, in place."""
        if self.device != "cpu":  # which has a copy of its own
            super().copy_state(source, target)
        else:
            move(self._views(), source, target)

    def _write_state(self, i: int, value: Array) -> None:
        self._views()[i][...] = value

    def _views(self) -> list[Array]:
        """The memory of the states, without copying it."""
        out = []
        for i, t in enumerate(self.states):
            size = int(np.prod(t.shape, dtype=np.int64)) * t.dtype.nbytes
            address = self._library.lumc_state_data(self._handle, i)
            self._check(Exit.OK if address else Exit.FAILED)
            memory = (ctypes.c_uint8 * size).from_address(address)
            out.append(np.ndarray(t.shape, t.dtype.numpy, memoryview(memory)))
        return out

    def close(self) -> None:
        self._close()

    def _set_threads(self, threads: int) -> None:
        if not self._close.alive:
            raise usage("the bundle is closed")
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
        fix = "link the model for this machine, or choose another device"
        fix = fix if code == Exit.TOOLCHAIN else ""
        kind = {Exit.TOOLCHAIN: "E0704", Exit.USAGE: "E0610"}.get(Exit(code), "E0611")
        raise LumcError(kind, message, where=str(self.path), fix=fix, exit=Exit(code))


# ---- the library


def _load(path: str, digest: str) -> ctypes.CDLL:
    """liblumc.so, once for a hash: by its path, the loader would give an older library again when
    the bundle was replaced meanwhile."""
    if digest not in _loaded:
        try:
            _loaded[digest] = _declare(by_descriptor(path))
        except OSError:
            what = f"{Path(path).name} of this bundle cannot be loaded: it is not for this machine"
            fix = "link for a target that 'lumc targets' says runs here"
            raise LumcError("E0704", what, where=path, fix=fix, exit=Exit.TOOLCHAIN) from None
    return _loaded[digest]


def by_descriptor(path: str) -> ctypes.CDLL:
    """A library by a descriptor of its file, which stays open, as it is the name."""
    name = f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_CLOEXEC)}"
    return ctypes.CDLL(name if Path(name).exists() else path)


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
    if hasattr(library, "lumc_open_on"):
        signatures |= {
            "lumc_open_on": (number, ctypes.c_char_p, *signatures["lumc_open"][1:]),
            "lumc_device": (ctypes.c_char_p, pointer),
        }
    if hasattr(library, "lumc_dims"):
        signatures |= {
            "lumc_dims": (number, pointer),
            "lumc_set_dim": (number, pointer, ctypes.c_char_p, ctypes.c_int64),
        }
    if hasattr(library, "lumc_rank"):
        signatures["lumc_rank"] = (number, pointer)
    if hasattr(library, "lumc_reset"):
        signatures["lumc_reset"] = (number, pointer)
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


def _spec(t: Any) -> Tensor:
    return Tensor(t.name.decode(), DTYPES[t.dtype], tuple(t.shape[: t.rank]))


def _entry(library: ctypes.CDLL, handle: ctypes.c_void_p, i: int) -> EntrySpec:
    inputs = (library.lumc_input(handle, i, k) for k in range(library.lumc_inputs(handle, i)))
    outputs = (library.lumc_output(handle, i, k) for k in range(library.lumc_outputs(handle, i)))
    return EntrySpec(
        library.lumc_entry_name(handle, i).decode(),
        i,
        tuple(_spec(t.contents) for t in inputs),
        tuple(_spec(t.contents) for t in outputs),
    )
