"""``import lumc``: compile a model and run it, without the command line."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack, overload

from lumc.bundle.packing import Array
from lumc.command.passes import CompileOptions, compile_model, parse_targets
from lumc.command.plan import ProfileOptions
from lumc.disk.project import cache_folder
from lumc.disk.scratch import scratch
from lumc.environment import objects_folder, told
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.precision import Precision
from lumc.graph.dim import Dim
from lumc.graph.tensor import Tensor
from lumc.kernel.machines import resolve_target
from lumc.limits import AGAIN, ENOUGH, MOST_NODES, MOST_THREADS
from lumc.link.cross import why_not_here
from lumc.runtime.choose import RUNTIMES, open_bundle
from lumc.runtime.opened import EntrySpec, Opened, usage
from lumc.voice import WARNING, saying

Source = Model | str | PathLike[str]
LOGGER = logging.getLogger("lumc")


class Bundle:
    """A compiled model that is open. `lumc.load` and `lumc.compile` make it.

    Call it with arrays, by name or in the order of `inputs`: it returns the array of its only
    output, or a dict of arrays by name. One bundle runs one call at a time.

    Use it in a `with` block, or close it. Arrays that fit are converted, with a warning; what
    would lose something is refused (E0610). Lists of numbers take the dtype of the input. bf16
    travels as its bits in uint16. Dims that are known at run time only are as the shapes of the
    arrays say; one that none tells is given by its name: `bundle(x, p=17)`.
    """

    def __init__(self, opened: Opened, threads: int = 1) -> None:
        self._opened: Opened | None = opened
        self.threads = threads  # of every run

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the first entry. Raises E0610 for arrays or dims that do not fit."""
        names = [t.name for t in self.inputs]
        dims = {name: named.pop(name) for name in self.dims if name in named and name not in names}
        given = dict(zip(names, arrays, strict=False))
        if len(arrays) > len(names):
            what = f"{len(arrays)} arrays for {len(names)} inputs: {', '.join(names) or 'none'}"
            raise usage(what)
        if twice := sorted(given.keys() & named.keys()):
            raise usage(f"input '{twice[0]}' is given twice", "by name, or by place")
        results = self.run(given | named, dims=dims)
        return next(iter(results.values())) if len(results) == 1 else results

    def run(
        self, inputs: Mapping[str, Any], entry: str = "", dims: Mapping[str, int] | None = None
    ) -> dict[str, Array]:
        """Run an entry, by default the first, on arrays by name: its outputs by name. `dims` are
        those that the shapes of the arrays do not tell.

        Raises E0610 for arrays or dims that do not fit, E0110 for an entry that is not there.
        """
        return self._open.run(inputs, entry, self.threads, warn, dims or {})

    @property
    def device(self) -> str:
        """What it runs on: cpu, cuda, hip or metal."""
        return self._open.device

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its entries."""
        return self._open.entries

    def entry(self, name: str = "") -> EntrySpec:
        """The inputs and outputs of an entry, by default the first. Raises E0110."""
        return self._open.entry(name)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the first entry: `name`, `dtype` and `shape` of each."""
        return self._open.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs of the first entry."""
        return self._open.outputs

    @property
    def dims(self) -> Mapping[str, Dim]:
        """The dims that every run chooses: `lo`, `hi`, `multiple` of each, by name."""
        return self._open.dims

    @property
    def states(self) -> tuple[Tensor, ...]:
        """What is kept between runs, for all entries."""
        return self._open.states

    def state(self) -> dict[str, Array]:
        """A copy of every state."""
        return self._open.state()

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite states by name; the others stay. Raises E0610 for what does not fit."""
        self._open.set_state(values)

    def reset(self) -> None:
        """All states as they were at first: the values that the graph gives them, else zeros."""
        self._open.reset()

    def save_state(self, path: str | PathLike[str]) -> None:
        """All states into a safetensors file, under their names, that appears when it is whole.
        Raises E0202."""
        self._open.save_state(fspath(path))

    def load_state(self, path: str | PathLike[str]) -> None:
        """All states from such a file, or none of them. Raises E0603 for one that cannot be read,
        E0610 for one that has not each state, as it is declared, and nothing else."""
        self._open.load_state(fspath(path))

    def copy_state(self, source: Any, target: Any) -> None:
        """In every state, what is at one index to another one: `model.copy_state(np.s_[0, :, :17],
        np.s_[1, :, :17])`. Raises E0610 for what does not fit."""
        self._open.copy_state(source, target)

    def close(self) -> None:
        """Give its memory back; closing it twice does nothing."""
        if self._opened:
            self._opened.close()
        self._opened = None

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._opened:
            return "<lumc.Bundle, closed>"
        inputs, outputs = (
            ", ".join(f"{t.name} {t}" for t in s) for s in (self.inputs, self.outputs)
        )
        return f"<lumc.Bundle on {self.device}: {inputs} -> {outputs}>"

    @property
    def _open(self) -> Opened:
        if not self._opened:
            raise usage("the bundle is closed", "open it again: lumc.load(path)")
        return self._opened


def warn(line: str) -> None:
    """Of a conversion, at the line that called the bundle."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("lumc."):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(line, stacklevel=depth)


def load(path: str | PathLike[str], *, device: str = "", threads: int = 1) -> Bundle:
    """Open a bundle, a folder or one file.

    `device`: cpu, cuda, hip or metal; by default the first of cuda, hip, metal and cpu that the
    bundle has a plan for and that works here. `threads` are those of every run.

    Raises E0501 for what is damaged, E0704 or E0708 for a bundle that cannot run here.
    """
    check_threads(threads)
    return Bundle(open_bundle(fspath(path), device, say=LOGGER.warning), threads)


class Options(TypedDict, total=False):
    """The options of ``compile``, for its overloads; their defaults stand at ``compile`` itself."""

    target: str
    dims: Mapping[str, int | tuple[int, int]] | None
    tune: Mapping[str, Sequence[int]] | None
    dtype: Literal["bf16", "f16"] | None
    weights: Literal["q8"] | None
    activations: Literal["i8"] | None
    estimate: bool
    allow_estimate: bool
    frozen: bool
    device_records: str
    memory: int
    budget: float | str
    threads: int
    cache: str | PathLike[str] | None
    allow_path: Iterable[str | PathLike[str]]
    cc: str | None


@overload
def compile(source: Source, output: None = None, **options: Unpack[Options]) -> Bundle: ...
@overload
def compile(source: Source, output: str | PathLike[str], **options: Unpack[Options]) -> Path: ...
def compile(
    source: Source,
    output: str | PathLike[str] | None = None,
    *,
    target: str = "cpu:native",
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    tune: Mapping[str, Sequence[int]] | None = None,
    dtype: Literal["bf16", "f16"] | None = None,
    weights: Literal["q8"] | None = None,
    activations: Literal["i8"] | None = None,
    estimate: bool = False,
    allow_estimate: bool = False,
    frozen: bool = False,
    device_records: str = "",
    memory: int = 0,
    budget: float | str = 60,
    threads: int = 1,
    cache: str | PathLike[str] | None = None,
    allow_path: Iterable[str | PathLike[str]] = (),
    cc: str | None = None,
) -> Bundle | Path:
    """Compile a model: an open `Bundle`; with an `output` the bundle is written there, and its path
    returned.

    - `source`: a `Model`, a `.lg` graph, an ONNX, GGUF or `.pt2` file, a Hugging Face folder, or
      `"file.py:function"`, which returns a `Model`.
    - `target`: what `lumc targets` lists, several with commas between. A bundle for another machine
      needs an `output`.
    - `dims`: numbers for symbolic dims, or pairs of the least and the greatest; others are as each
      run has them. `tune`: values of these at which kernels are chosen, besides the greatest.
    - `dtype`, `weights`: store in 16 bits, contracted weights in 8. `activations`: round what
      products with quantised weights read to 8 bits.
    - `estimate`: choose kernels by estimate, which takes seconds. Otherwise they are measured for
      `budget`: seconds, or a text such as `"5m"`. Times are kept in `cache`, from where the next
      search goes on.
    - `allow_estimate`: take the estimate where nothing could be measured.
    - `frozen`: measure nothing; fail where a record is missing. `device_records`: the same with the
      records of another machine, an ID that `lumc cache list` prints.
    - `memory`: bytes between kernels and of their scratch memory, at most; 0: any.
    - `threads`: what kernels are chosen for; the bundle that is returned runs on as many.
    - `allow_path`: folders in which weights of a `.lg` may lie, besides its own.
    - `cc`: the C compiler; by default `$CC`, gcc, cc, clang or zig.

    Ctrl-C while it measures takes the best so far; once more, it interrupts. Raises `lumc.Error`.
    """
    way = estimate, allow_estimate, frozen, device_records
    asked = measuring(*way, memory, budget, threads, cache, cc)
    how = every_pass(asked, target, dims or {}, tune or {}, allow_path)
    return compiled(source, output, how, precision(dtype, weights, activations))


def precision(dtype: str | None, weights: str | None, activations: str | None) -> Precision:
    """Raises E0203."""
    chosen = one_of(dtype, "dtype", "bf16", "f16"), one_of(weights, "weights", "q8")
    return Precision(*chosen, one_of(activations, "activations", "i8"))


def measuring(
    estimate: bool,
    allow_estimate: bool,
    frozen: bool,
    device_records: str,
    memory: int,
    budget: float | str,
    threads: int,
    cache: str | PathLike[str] | None,
    cc: str | None,
) -> ProfileOptions:
    """How kernels are chosen. Raises E0203."""
    check_threads(threads)
    if type(memory) is not int or memory < 0:
        fix = "bytes; 0: any"
        raise LumcError("E0203", f"memory={memory!r}", fix=fix, exit=Exit.USAGE)
    if estimate and (frozen or device_records):
        what = "estimate=True, and frozen or device_records: two ways to choose"
        raise LumcError("E0203", what, fix="name one of them", exit=Exit.USAGE)
    return ProfileOptions(
        estimate=estimate,
        allow_estimate=allow_estimate,
        budget=budget if isinstance(budget, str) else f"{budget:g}s",
        trials=0,
        fraction=ENOUGH,
        seed=0,
        threads=threads,
        frozen=frozen or bool(device_records),
        device_records=device_records,
        memory=memory,
        cc=cc or told("CC"),
        nvcc=told("NVCC"),
        cache=cache_folder(fspath(cache) if cache else told("LUMC_CACHE")),
    )


def every_pass(
    asked: ProfileOptions,
    target: str,
    dims: Mapping[str, int | tuple[int, int]],
    tune: Mapping[str, Sequence[int]],
    allow_path: Iterable[str | PathLike[str]],
) -> CompileOptions:
    """What the passes of ``compile`` are told. Raises E0203."""
    if not isinstance(target, str):
        fix = "a text, with commas between several: 'cpu,cuda:sm_90'"
        raise LumcError("E0203", f"target={target!r}", fix=fix, exit=Exit.USAGE)
    folders = [allow_path] if isinstance(allow_path, str) else allow_path
    return CompileOptions(
        profile=asked,
        target=target,
        dims=tuple(f"{name}={bound(n)}" for name, n in dims.items()),
        max_nodes=MOST_NODES,
        tuned=tuple(f"{name}={','.join(map(str, at))}" for name, at in tune.items()),
        again=AGAIN,
        emit="bundle",
        save_temps=None,
        objects=objects_folder(),
        allowed=tuple(fspath(path) for path in folders),
        verbose=2 if LOGGER.isEnabledFor(logging.DEBUG) else 0,
        hipcc=told("HIPCC"),
    )


def bound(value: int | tuple[int, int]) -> str:
    """A number, or bounds, as ``--dim`` has them."""
    return "..".join(map(str, value)) if isinstance(value, tuple) else str(value)


def compiled(
    source: Source, output: str | PathLike[str] | None, how: CompileOptions, wanted: Precision
) -> Bundle | Path:
    """The bundle, open or written."""
    if not output:
        check_device(how.target)
    model = source if isinstance(source, Model) else fspath(source)
    with scratch() as folder, saying(tell):
        path = Path(output) if output else folder / "model.lb"
        compile_model(model, str(path), how, wanted)
        return path if output else load(path, threads=how.profile.threads)


def tell(level: int, line: str) -> None:
    """What a command says goes to the logger: 0 is always said, 1 with -v, 2 with -vv."""
    plain = logging.INFO if level == 0 else logging.DEBUG
    LOGGER.log(logging.WARNING if line.startswith(WARNING) else plain, line)


def check_device(target: str) -> None:
    """Raises E0704 unless a bundle for one of these targets runs here, and E0401."""
    reasons = []
    for name in parse_targets(target):
        there = resolve_target(name)
        missing = import_module(RUNTIMES[there.kind]).problem()
        reasons.append(missing.what.partition(":")[0] if missing else why_not_here(there))
    if all(reasons):
        what = f"a bundle for {target} cannot be opened here: {'; '.join(dict.fromkeys(reasons))}"
        fix = 'write it to a file: lumc.compile(.., "model.lb", ..); or add cpu to the targets'
        raise LumcError("E0704", what, fix=fix, exit=Exit.TOOLCHAIN)


def check_threads(threads: int) -> None:
    """Raises E0203 for what is no number of threads."""
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        fix = f"a number from 1 to {MOST_THREADS}"
        raise LumcError("E0203", f"threads={threads!r}", fix=fix, exit=Exit.USAGE)


def one_of(value: str | None, name: str, *known: str) -> str | None:
    """The value of an option that is None or one of these. Raises E0203."""
    if value not in (None, *known):
        what, fix = f"{name}={value!r}", f"None, or one of: {', '.join(known)}"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    return value
