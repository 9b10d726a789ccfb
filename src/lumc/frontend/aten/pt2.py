"""PyTorch models: ``import_pt2("model.pt2").save("model.lg")`` of what torch.export.save wrote.

The archive's JSON becomes a ``Program``; parameters and buffers are referenced where they lie in
the archive. torch is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lumc.disk.pt2 import Damaged, Placed, Pt2, malformed, read_program, read_pt2
from lumc.disk.pt2 import field as said
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.pick import stored
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import place
from lumc.frontend.api.weights import reference
from lumc.frontend.aten import reading
from lumc.frontend.aten.assemble import Leaf, assemble
from lumc.frontend.aten.lower import Wrong
from lumc.frontend.aten.ops_shape import strided
from lumc.frontend.aten.program import Foreign, Meta, Program, Ref
from lumc.frontend.aten.sizes import Unknown, parse_size
from lumc.graph.dim import Dim, Extent
from lumc.graph.expr import dim
from lumc.graph.ops import DType

MAX_DIM = 1 << 16  # the upper bound of a dim that the export leaves open
MAX_READ = 1 << 20  # elements of integers that are read, as they may be equally spaced
MAJOR = 8  # of the schema
TENSORS = {  # inputs of a program that lie in the archive, and what names them there
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}
Dims = Mapping[str, int | tuple[int, int] | Dim]
Array = np.ndarray[Any, Any]


def import_pt2(path: str | Path, dims: Dims | None = None) -> Model:
    """The model in an archive of torch.export. ``dims`` gives its symbols values, or bounds; the
    others become symbolic dims within the bounds of the export. Raises E0201, E0350 (damaged),
    E0351 and E0352 (not supported), E0353 (no such dim)."""
    from lumc.frontend.aten import tables  # noqa: F401  registers the operators

    archive = read_pt2(Path(path))
    try:
        return _Import(archive, _checked(archive), dims or {}).run()
    except (Damaged, Wrong) as e:
        raise malformed(str(e), str(path)) from None


@dataclass(frozen=True)
class Original:
    """The program of an archive as it stands, to run it as torch does: its ``inputs`` in order, and
    what it is ``given``: arrays with their dtypes (bf16 as bits) and numbers, by name."""

    program: Program
    inputs: Sequence[str]
    given: Mapping[str, tuple[Array, DType] | int | float | bool | str | None]


def read_original(path: str | Path) -> Original:
    """Of an archive of torch.export. Raises E0201, E0350 and E0351."""
    archive = read_pt2(Path(path))
    try:
        one = _Import(archive, _checked(archive), {})
        program, specs, _ = one.program()
        return Original(program, one.taken(specs), one.given(specs))
    except (Damaged, Wrong) as e:
        raise malformed(str(e), str(path)) from None


def _checked(archive: Pt2) -> dict[str, Any]:
    program = read_program(archive)
    major = said(said(program, "schema_version", dict), "major", int)
    if major != MAJOR:
        what = f"an archive of version {major} of torch's schema is not read"
        fix = f"save it with a torch of version {MAJOR} of the schema: 2.9 to 2.13"
        raise LumcError("E0351", what, where=str(archive.path), fix=fix, exit=Exit.UNSUPPORTED)
    found: dict[str, Any] = program
    return found


@dataclass
class _Import:
    """One import: what the program says, and the model that is made of it."""

    archive: Pt2
    text: Mapping[str, Any]
    dims: Dims
    model: Model = field(default_factory=Model)
    known: dict[tuple[object, ...], Tensor] = field(default_factory=dict)  # weights, each once

    def run(self) -> Model:
        program, specs, values = self.program()
        self._declare(specs, values)
        leaves = [leaf for spec in specs if (leaf := self._leaf(spec, program.metas, values))]
        assemble(self.model, program, leaves)
        return self.model

    def program(self) -> tuple[Program, Sequence[Any], Mapping[str, Any]]:
        """With what is said of its inputs and of its values."""
        module = said(self.text, "graph_module", dict)
        graph, signature = said(module, "graph", dict), said(module, "signature", dict)
        specs = said(signature, "input_specs", list)
        buffers, values = _buffers(specs), said(graph, "tensor_values", dict)
        outputs, written = self._outputs(module, said(signature, "output_specs", list))
        metas = reading.metas(values)
        program = Program(
            str(self.archive.path),
            reading.nodes(said(graph, "nodes", list)),
            outputs,
            metas,
            frozenset(buffers.values()),
            {buffers.get(name, name): value for name, value in written.items()},
        )
        return program, specs, values

    # ---- as it stands

    def taken(self, specs: Sequence[Any]) -> list[str]:
        """The inputs of the model, in order."""
        found = (value for kind, value in map(reading.union, specs) if kind == "user_input")
        every = (reading.argument(said(value, "arg", dict)) for value in found)
        return [arg.name for arg in every if isinstance(arg, Ref)]

    def given(self, specs: Sequence[Any]) -> dict[str, Any]:
        """What the other inputs are."""
        out = dict[str, Any]()
        for kind, value in map(reading.union, specs):
            if kind == "constant_input":
                out[said(value, "name", str)] = reading.argument(said(value, "value", dict))
            elif kind != "user_input":
                arg, name, placed = self._tensor(kind, value)
                if placed is None:
                    self._refuse(*_lost(name))
                out[arg] = self._values(placed), self._dtype(placed)
        return out

    # ---- what comes out

    def _outputs(
        self, module: Mapping[str, Any], specs: Sequence[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The results of a run by name, and what it writes into buffers."""
        results, written = list[Any](), dict[str, Any]()
        for spec in specs:
            kind, value = reading.union(spec)
            if kind == "user_output":
                results.append(reading.argument(said(value, "arg", dict)))
            elif kind == "buffer_mutation":
                arg = said(said(value, "arg", dict), "name", str)
                written[said(value, "buffer_name", str)] = Ref(arg)
            elif kind != "token":
                self._refuse(f"an output of the kind {kind}", "export the model without training")
        names = reading.result_names(_out_spec(module), len(results))
        return dict(zip(names, results, strict=True)), written

    # ---- what goes in

    def _declare(self, specs: Sequence[Any], values: Mapping[str, Any]) -> None:
        """The symbolic dims of the inputs, before anything else."""
        bounds = said(self.text, "range_constraints", dict)
        names = dict.fromkeys(s for spec in specs for s in self._symbols(spec, values))
        unknown = sorted(set(self.dims) - set(names))
        if unknown:
            what = f"no dim is named {', '.join(unknown)}"
            fix = f"one of: {', '.join(names) or 'none, all dims are static'}"
            where = str(self.archive.path)
            raise LumcError("E0353", what, where=where, fix=fix, exit=Exit.USAGE)
        for name in names:
            bound = self.dims[name] if name in self.dims else _bounds(bounds.get(name))
            if not isinstance(bound, int):
                d = bound if isinstance(bound, Dim) else Dim(name, *bound)
                self.model.dim(name, d.lo, d.hi, d.multiple)

    def _symbols(self, spec: Any, values: Mapping[str, Any]) -> list[str]:
        found = list[str]()
        kind, value = reading.union(spec)
        arg = reading.argument(said(value, "arg", dict)) if kind == "user_input" else None
        if isinstance(arg, Ref):
            self._shape(values.get(arg.name), lambda name: _noted(found, name))
        return found

    def _shape(self, meta: Any, symbol: Any) -> list[Extent]:
        out = list[Extent]()
        for size in said(meta, "sizes", list):
            kind, value = reading.union(size)
            if kind == "as_int":
                out.append(reading.whole(value))
                continue
            try:
                out.append(parse_size(said(value, "expr_str", str), symbol))
            except Unknown as e:
                self._refuse(f"a size of an input is a {e} of dims", "export with plain dims")
        if any(isinstance(e, int) and e < 0 for e in out):
            raise Damaged(f"an input of the shape {out}")
        return out

    def _extent(self, name: str) -> Extent:
        bound = self.dims.get(name)
        return bound if isinstance(bound, int) else dim(name)

    def _leaf(self, spec: Any, metas: Mapping[str, Meta], values: Mapping[str, Any]) -> Leaf | None:
        """One input of the program: an input of the model, a weight, a number."""
        kind, value = reading.union(spec)
        if kind == "user_input":
            arg = reading.argument(said(value, "arg", dict))
            if not isinstance(arg, Ref):
                return None
            shape = self._input(arg.name, metas.get(arg.name), values.get(arg.name))
            return Leaf(arg.name, arg.name, shape, always=True)
        if kind == "constant_input":
            constant = reading.argument(said(value, "value", dict))
            return Leaf(said(value, "name", str), "constant", lambda _: constant)
        arg, name, placed = self._tensor(kind, value)
        weight = partial(self._weight, name, placed, kind == "tensor_constant")
        state = partial(self._state, name, placed) if kind == "buffer" else None
        return Leaf(arg, name, weight, state=state)

    def _tensor(self, kind: str, value: Any) -> tuple[str, str, Placed | None]:
        """Of a parameter, a buffer or a constant: the input that it is, its name, where it lies."""
        if kind not in TENSORS:
            self._refuse(f"an input of the kind {kind}", "export the model without it")
        arg, name = said(said(value, "arg", dict), "name", str), said(value, TENSORS[kind], str)
        return arg, name, self.archive.weights.get(name) or self.archive.constants.get(name)

    def _input(self, name: str, meta: Meta | None, value: Any) -> Any:
        if meta is None:
            self._refuse(f"input '{name}' is a number", "make it a tensor")
        if isinstance(meta.dtype, Foreign):
            self._refuse(f"input '{name}' is of {meta.dtype.says}", "export with other inputs")
        shape, dtype = self._shape(value, self._extent), meta.dtype
        return lambda title: self.model.input(title, shape, dtype)

    def _state(self, name: str, placed: Placed | None, title: str) -> Tensor:
        """A buffer that a run changes; all states are zero at first."""
        if placed is None or np.any(self._values(placed)):
            what = f"buffer '{name}' is changed by a run, and is not zero at first"
            self._refuse(what, "start with a buffer of zeros")
        return self.model.state(title, placed.shape, self._dtype(placed))

    # ---- weights

    def _dtype(self, placed: Placed) -> DType:
        found = self.archive.tensors[placed.key]
        if found.dtype is None:
            self._refuse(f"tensor '{found.key}' is of {found.layout}", "save it in another dtype")
        return found.dtype

    def _values(self, placed: Placed) -> Array:
        """The elements of a tensor, in its shape; bf16 as bits."""
        found, dtype = self.archive.tensors[placed.key], self._dtype(placed)
        raw = np.dtype(np.uint8) if dtype is DType.BOOL else dtype.numpy
        if 0 in placed.shape:
            return np.zeros(placed.shape, dtype.numpy)
        count = (found.end - found.start) // raw.itemsize
        flat = np.memmap(self.archive.path, np.uint8, "r", found.start, count * raw.itemsize)
        whole = np.frombuffer(flat, raw)[placed.offset :]
        steps = [s * raw.itemsize for s in placed.strides]
        seen = np.lib.stride_tricks.as_strided(whole, placed.shape, steps, writeable=False)
        if dtype is DType.BOOL and seen.max() > 1:
            raise Damaged(f"tensor '{found.key}' has a bool that is neither 0 nor 1")
        return np.ascontiguousarray(seen).reshape(placed.shape).view(dtype.numpy)

    def _weight(self, name: str, placed: Placed | None, constant: bool, title: str) -> Tensor:
        """A tensor where it lies in the archive; small ones of integers, and what stands in the
        program as a constant, by value."""
        if placed is None:
            self._refuse(*_lost(name))
        found, dtype = self.archive.tensors[placed.key], self._dtype(placed)
        count = int(np.prod(placed.shape, dtype=object))
        if count <= MAX_READ and (dtype.is_int or constant):
            return stored(self.model, self._values(placed), title, dtype)
        if 0 in placed.shape:
            return self.model.full(placed.shape, 0, dtype)
        key = found.start, found.end, dtype, found.shape
        if key not in self.known:
            file = reference(self.archive.path)
            self.known[key] = self.model.weight(title, found.shape, dtype, file, placed.key)
        return _viewed(self.known[key], placed)

    def _refuse(self, what: str, fix: str) -> NoReturn:
        where = str(self.archive.path)
        raise LumcError("E0351", what, where=where, fix=fix, exit=Exit.UNSUPPORTED)


def _lost(name: str) -> tuple[str, str]:
    return f"tensor '{name}' is pickled, or missing", "save plain tensors"


def _noted(names: list[str], name: str) -> Extent:
    names.append(name)
    return 1


def _buffers(specs: Sequence[Any]) -> dict[str, str]:
    """The inputs of the program that are buffers, by the names of these."""
    found = dict[str, str]()
    for spec in specs:
        kind, value = reading.union(spec)
        if kind == "buffer":
            name = said(value, "buffer_name", str)
            found[name] = said(said(value, "arg", dict), "name", str)
    return found


def _viewed(x: Tensor, placed: Placed) -> Tensor:
    """What is stored, in the shape of the model."""
    real = sorted(
        (i for i, n in enumerate(placed.shape) if n != 1), key=lambda i: -placed.strides[i]
    )
    if x.shape == tuple(placed.shape[i] for i in real) and not placed.offset:
        return x.view(placed.shape, [place(i) for i in real])
    return strided(x, placed.shape, placed.strides, placed.offset)


def _bounds(limits: Any) -> tuple[int, int]:
    """Least and greatest value of a symbol, as the export says."""
    given = limits if isinstance(limits, dict) else {}
    lo, hi = given.get("min_val"), given.get("max_val")
    low = max(reading.whole(lo), 1) if lo is not None else 1
    high = min(reading.whole(hi), MAX_DIM) if hi is not None else MAX_DIM
    if high < low:
        raise Damaged(f"a dim from {low} to {high}")
    return low, high


def _out_spec(module: Mapping[str, Any]) -> str:
    calls = module.get("module_call_graph")
    first = calls[0] if isinstance(calls, list) and calls else None
    signature = first.get("signature") if isinstance(first, dict) else None
    spec = signature.get("out_spec") if isinstance(signature, dict) else None
    return spec if isinstance(spec, str) else ""
