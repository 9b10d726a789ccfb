"""What the open bundles of all devices have in common: entries, inputs and outputs, states; and how
the files of a bundle are read without trusting them."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lumc.bundle import planfile
from lumc.bundle.extents import Source
from lumc.bundle.packing import Array
from lumc.bundle.reader import Plan, decode
from lumc.disk.artifact import corrupt
from lumc.disk.safetensors import Misfit, read_tensors, write_safetensors
from lumc.errors import Exit, LumcError
from lumc.graph.dim import Dim
from lumc.graph.ops import DType
from lumc.graph.tensor import LiveTensor, Tensor
from lumc.runtime.dims import usage as usage
from lumc.runtime.dims import values_of

Self = TypeVar("Self", bound="Opened")
Say = Callable[[str], None]
Index = Any  # numbers, slices and ..., of a state
NO_DIMS: Mapping[str, int] = MappingProxyType({})
NO_VALUES: Mapping[str, Array] = MappingProxyType({})
KEPT = 64  # dims of runs whose tensors are known


@dataclass(frozen=True)
class EntrySpec:
    """What an entry takes and gives: ``inputs`` and ``outputs``, a ``TensorSpec`` of each."""

    name: str
    number: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sources: tuple[Source, ...] = ()  # of the dims of the bundle


class Call(NamedTuple):
    """One run: an entry by its number, dims, arrays for its inputs, what its outputs will be."""

    number: int
    dims: Mapping[str, int]
    arrays: list[Array]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Part:
    """What one thread did of one launch, in microseconds from the start of the run."""

    kernel: str  # its symbol
    launch: int
    thread: int
    start_us: float
    us: float


class Opened(ABC):
    """An open bundle; close it, or use it in a ``with`` block."""

    device: str  # cpu, cuda, hip, metal
    rank: int | None = None  # which of a mesh this process is, if something else started it so
    features: tuple[str, ...] = ()  # of its target, that were asked for
    dims: Mapping[str, Dim] = MappingProxyType(dict[str, Dim]())  # extents that runs choose

    def __init__(
        self,
        path: Path,
        entries: Iterable[EntrySpec],
        states: Iterable[Tensor],
        first: Mapping[str, Array] = NO_VALUES,
    ) -> None:
        self.path, self.states = path, tuple(states)
        self._first = first  # values that states begin with
        self._entries = {e.name: e for e in entries}
        self._met = dict[tuple[int, ...], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]()

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
    def inputs(self) -> tuple[Tensor, ...]:
        return self.entry().inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.entry().outputs

    def call(
        self, inputs: Mapping[str, Any], entry: str, say: Say, dims: Mapping[str, int]
    ) -> Call:
        """A run of an entry, checked. Raises E0610, E0110."""
        spec = self.entry(entry)
        check_names(inputs, spec)
        values = values_of(self.dims, spec.sources, spec.inputs, inputs, dims)
        takes, gives = self._at(spec, values)
        pairs = zip(spec.inputs, takes, strict=True)
        arrays = [check_array(inputs[t.name], now, "input", say, t) for t, now in pairs]
        return Call(spec.number, values, arrays, gives)

    def _at(
        self, spec: EntrySpec, dims: Mapping[str, int]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The inputs and outputs of an entry for these dims. The last ones are kept: binding them
        takes a tenth of a millisecond."""
        key = spec.number, *dims.values()
        if key not in self._met:
            if len(self._met) >= KEPT:
                self._met.clear()
            self._met[key] = shaped(spec.inputs, dims), shaped(spec.outputs, dims)
        return self._met[key]

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> dict[str, Array]:
        """Run an entry on arrays by name; ``say`` hears of every conversion that was needed.
        ``dims`` are those that the shapes of inputs do not tell."""

    @abstractmethod
    def trace(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> tuple[dict[str, Array], list[Part]]:
        """The outputs of a run, and when every launch of another one ran; states are put back
        between the two."""

    @abstractmethod
    def bench(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        seconds: float = 1.0,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> list[float]:
        """Microseconds of one run, in samples of about 100 us; states are put back."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """A copy of every state."""

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite states by name; the others stay."""
        unknown = sorted(set(values) - {t.name for t in self.states})
        if unknown:
            known = ", ".join(t.name for t in self.states) or "none"
            raise usage(f"unknown state {', '.join(unknown)}; the states are: {known}")
        for i, t in enumerate(self.states):
            if t.name in values:
                self._write_state(i, check_array(values[t.name], t, "state", lambda _: None))

    def reset(self) -> None:
        """All states as they were at first: values that came with the bundle, else zeros."""
        first = {t.name: np.zeros(t.shape, t.dtype.numpy) for t in self.states}
        self.set_state(first | dict(self._first))

    def save_state(self, path: str | Path) -> None:
        """All states into a safetensors file, under their names. Raises E0202."""
        kept = self.state()
        write_safetensors(path, [(t.name, t.dtype, kept[t.name]) for t in self.states])

    def load_state(self, path: str | Path) -> None:
        """All states from a safetensors file that has each of them, as it is declared, and nothing
        else; or none of them. Raises E0603, and E0610 for other tensors."""
        try:
            self.set_state(read_tensors(path, self.states, "state"))
        except OSError as e:
            said = e.strerror or "it is no file"
            raise LumcError("E0603", f"cannot read {path}: {said}", exit=Exit.USAGE) from None
        except Misfit as e:
            raise usage(f"{path}: {e}") from None
        except ValueError as e:
            raise LumcError("E0603", f"cannot read {path}: {e}", exit=Exit.CORRUPT) from None

    def copy_state(self, source: Index, target: Index) -> None:
        """In every state, what is at one index to another one; as numpy has them, of numbers and
        slices. Raises E0610."""
        values = self.state()
        move(values.values(), source, target)
        self.set_state(values)

    @abstractmethod
    def _write_state(self, i: int, value: Array) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


# ---- states


def move(states: Iterable[Array], source: Index, target: Index) -> None:
    """``state[target] = state[source]`` for each. Raises E0610 where they do not fit."""
    for index in (source, target):
        parts = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(i, int | np.integer | slice) or i is ... for i in parts):
            raise usage(f"{index!r} is no index of a state", "numbers, slices and ...")
    try:
        for view in states:
            view[target] = view[source]
    except (IndexError, ValueError, TypeError) as e:
        raise usage(f"cannot copy {source} of a state to {target}: {e}") from None


# ---- inputs


def shaped(tensors: Iterable[Tensor], dims: Mapping[str, int]) -> tuple[Tensor, ...]:
    """The tensors that there are for these dims."""
    return tuple(t.at(dims) if isinstance(t, LiveTensor) else t for t in tensors)


def check_names(inputs: Mapping[str, Any], spec: EntrySpec) -> None:
    """Every input is there, and nothing else; all problems are reported at once."""
    unknown = sorted(set(inputs) - {t.name for t in spec.inputs})
    missing = [f"{t.name} {t}" for t in spec.inputs if t.name not in inputs]
    problems = [f"unknown: {', '.join(unknown)}"] if unknown else []
    problems += [f"missing: {', '.join(missing)}"] if missing else []
    if problems:
        raise usage(f"wrong inputs of entry '{spec.name}': {'; '.join(problems)}")


def check_array(value: Any, want: Tensor, what: str, say: Say, spec: Tensor | None = None) -> Array:
    """A C-ordered array of the wanted shape and dtype; converts only without loss, and says so.
    ``spec`` is what is wanted of all runs."""
    x, dtype = np.asarray(value), want.dtype.numpy
    if not hasattr(value, "dtype") and want.dtype is not DType.BF16:
        x = as_wanted(x, dtype)
    check_fits(x.shape, x.dtype, want, what, spec)
    if x.dtype != dtype:
        say(f"{what} '{want.name}': converted from {x.dtype.str} to {want.dtype.value}")
    elif not x.flags.c_contiguous or not x.flags.aligned:
        say(f"{what} '{want.name}': copied, it was not contiguous")
    return np.require(x, dtype, ["C", "A"])


def as_wanted(x: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers of Python, which have no dtype of their own: as floats, or if they stay the same."""
    if x.dtype.kind not in "bif":
        return x
    with np.errstate(all="ignore"):
        y = x.astype(dtype)
    return y if dtype.kind == "f" or (y == x).all() else x


def check_fits(
    shape: tuple[int, ...],
    have: np.dtype[Any],
    want: Tensor,
    what: str,
    spec: Tensor | None = None,
) -> None:
    """Of this shape, and of a dtype that becomes the wanted one without loss; else E0610."""
    if not want.may_have(shape):
        said = f"{spec}, here {want}" if isinstance(spec, LiveTensor) else str(want)
        raise usage(f"{what} '{want.name}' must be {said}, got shape {list(shape)}")
    if have != want.dtype.numpy and not lossless(have, want.dtype):
        fix = f"convert it first: {want.name}.astype('{want.dtype.numpy}')"
        raise usage(f"{what} '{want.name}' must be {want}, got {have}", fix)


def lossless(have: np.dtype[Any], want: DType) -> bool:
    """Whether every value of ``have`` is one of ``want``; never between ints and floats."""
    if want is DType.BF16 or want is DType.BOOL:
        return have.newbyteorder("=") == want.numpy
    kinds = {"b": "iu", "i": "iu", "u": "iu", "f": "f"}.get(have.kind, "")
    return want.numpy.kind in kinds and bool(np.can_cast(have, want.numpy, "safe"))


# ---- files


def read_checked(folder: Path, files: Mapping[str, str], name: str) -> bytes:
    """A file of a bundle, if its bytes are those that the manifest says. Raises E0501, exit 5."""
    path = folder / name
    if name not in files or not path.is_file() or path.resolve() != folder.resolve() / name:
        raise corrupt(f"{name} is missing or not a regular file", str(folder))
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != files[name]:
        raise corrupt(f"{name} does not match its hash in the manifest", str(folder))
    return data


def plans_of(folder: Path, files: Mapping[str, str], kind: str) -> list[Plan]:
    """The plans of a bundle for a kind of device. Raises E0708, exit 7, when there are none."""
    found = []
    for name in (n for n in files if n.startswith(f"plan/{kind}-") and n.endswith(".bin")):
        plan = decode(read_checked(folder, files, name), f"{folder}/{name}")
        if name != f"plan/{plan.target}.bin" or "/" in plan.target:
            raise corrupt(f"{name} is for the target {plan.target}", str(folder))
        found.append(plan)
    if found:
        return found
    there = ", ".join(kinds_of(files)) or "nothing"
    what, fix = f"the bundle has no plan for {kind}", f"it has plans for: {there}"
    raise LumcError("E0708", what, where=str(folder), fix=fix, exit=Exit.TOOLCHAIN)


def kinds_of(files: Iterable[str]) -> list[str]:
    """The kinds of device that a bundle has plans for."""
    names = [n.removeprefix("plan/").partition("-")[0] for n in files if n.startswith("plan/")]
    return list(dict.fromkeys(names))


def entries_of(plan: Plan) -> list[EntrySpec]:
    every = enumerate(plan.entries)
    return [EntrySpec(e.name, i, e.inputs, e.outputs, e.sources) for i, e in every]


def first_of(folder: Path, files: Mapping[str, str], plan: Plan) -> dict[str, Array]:
    """The values that states begin with, by name, of those that have any."""
    known = [(t, at) for t, at in zip(plan.states, plan.first, strict=True) if at is not None]
    data = read_checked(folder, files, "weights.safetensors") if known else b""
    out = dict[str, Array]()
    for t, at in known:
        start = plan.weights_start + at
        if start + t.nbytes > len(data):
            raise corrupt("weights.safetensors does not have the size that the plan says")
        out[t.name] = np.frombuffer(data[start : start + t.nbytes], t.dtype.numpy).reshape(t.shape)
    return out


def weights_of(folder: Path, files: Mapping[str, str], plan: Plan) -> dict[int, Array]:
    """What a plan reads of the weights: bytes by their offset, which arguments name."""
    data = read_checked(folder, files, "weights.safetensors")
    if len(data) != plan.weights_start + plan.weights_bytes:
        raise corrupt("weights.safetensors does not have the size that the plan says", str(folder))
    every = np.frombuffer(data, np.uint8, offset=plan.weights_start)
    sizes = dict[int, int]()
    for entry in plan.entries:
        for a in (a for launch in entry.launches for a in launch.args):
            if a.place == planfile.WEIGHT:
                sizes[a.offset] = max(a.nbytes, sizes.get(a.offset, 0))
    return {offset: every[offset : offset + n] for offset, n in sorted(sizes.items())}
