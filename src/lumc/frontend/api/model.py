"""A model being written: inputs, weights, constants and states, operations, outputs.

g = Model()
s = g.dim("s", 1, 512)
x = g.input("x", (s, 64))
w = g.constant(np.random.rand(64, 8).astype("float32"), "w")
g.output("y", (x @ w).softmax(-1))
g.save("model.lg")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lumc.disk.weights import derive, read_weight
from lumc.frontend.api.dtypes import as_array, as_dtype
from lumc.frontend.api.finish import finished, save
from lumc.frontend.api.fold import fold
from lumc.frontend.api.operand import extent, free_axes, is_number, python_value, whole_node
from lumc.frontend.api.refusal import caller, refuse
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.updates import update_of
from lumc.frontend.api.view import ceil_div, minus, place, places
from lumc.graph.builder import Builder
from lumc.graph.dim import Dim, Extent, as_expr
from lumc.graph.expr import Expr, add, axis, dim, mul, num, substitute
from lumc.graph.graph import (
    Derivation,
    Graph,
    Iota,
    Node,
    Operand,
    Read,
    Scalar,
    Update,
    WeightFile,
    map_indices,
)
from lumc.graph.ops import DType, Op
from lumc.graph.verify import STATEMENTS, check_name

Array = NDArray[Any]
LETTERS = "ijklmnopqruvwxyz"  # axis names, by position


@dataclass(eq=False)
class Model:
    """A graph that is being written: inputs, constants, weights and states, what is computed of
    them, outputs. Every method that makes a tensor is checked as it is called."""

    builder: Builder = field(default_factory=Builder)
    constants: dict[str, Array] = field(default_factory=dict)  # by weight name, not yet in a file
    _entry: str = ""
    _repeat: str = ""
    _names: dict[Node, str] = field(default_factory=dict)
    _shapes: dict[Node, tuple[Extent, ...]] = field(default_factory=dict)  # of outputs
    _known: dict[Any, Node] = field(default_factory=dict)  # equal nodes are made once
    _mine: set[Node] = field(default_factory=set)  # of the current entry
    _weights: dict[str, Node] = field(default_factory=dict)  # by name

    # ---- leaves

    def dim(self, name: str, lo: int, hi: int, multiple: int = 1) -> Expr:
        """A symbolic dim: an integer in lo..hi, of each run or bound when the model is compiled."""
        done = [n for e in self.builder.entries for n in e.nodes]
        if name in {a for n in (*done, *self.builder.nodes) for a, _ in n.loops}:
            raise refuse("E0126", f"dim '{name}' is declared after operations used that name",
                         fix="declare dims before the first operation")  # fmt: skip
        self.builder.dim(name, lo, hi, multiple)
        return dim(name)

    @property
    def dims(self) -> Mapping[str, Dim]:
        """The symbolic dims, by name."""
        return self.builder.dims

    @property
    def origin(self) -> str:
        """What the next nodes are made from, for messages; by default the user's line."""
        return self.builder.origin

    @origin.setter
    def origin(self, value: str) -> None:
        self.builder.origin = value

    def input(
        self,
        name: str,
        shape: Sequence[Extent],
        dtype: DType | str = "f32",
        values: tuple[int, int] | None = None,
    ) -> Tensor:
        """A tensor given to every run; ``values`` says which integers make sense (lowest and
        highest), so that random inputs can be drawn for it."""
        return self._leaf("input", name, shape, dtype, values=values)

    def state(
        self,
        name: str,
        shape: Sequence[Extent],
        dtype: DType | str = "f32",
        value: Any = None,
        file: WeightFile | None = None,
        key: str = "",
    ) -> Tensor:
        """A tensor kept between runs, written by ``update`` and ``updated``. At first it is all
        zero, or has the ``value``, an array, or those of a tensor in a file of weights."""
        if value is None:
            return self._leaf("state", name, shape, dtype, file, (file and (key or name)) or "")
        array = as_array(value, as_dtype(dtype))
        if array.shape != tuple(shape):
            raise refuse("E0124", f"state '{name}' {list(shape)} begins with {list(array.shape)}")
        tensor = self._leaf("state", name, shape, dtype, None, name)
        self.constants[name] = array
        return tensor

    def weight(
        self,
        name: str,
        shape: Sequence[Extent],
        dtype: DType | str,
        file: WeightFile | None,
        key: str = "",
        how: Derivation | None = None,
    ) -> Tensor:
        """A tensor in a file of weights, referenced where it lies; ``how`` says what is made of it
        when it is read. Asking again for an equal one is fine."""
        known = self._weights.get(name)
        asked = tuple(shape), as_dtype(dtype), file, key or name, how
        if known and (known.shape, known.dtype, known.file, known.key, known.how) == asked:
            return self.whole(known)
        return self._leaf("weight", name, shape, dtype, file, key or name, how=how)

    def constant(self, value: Any, name: str = "", dtype: DType | str | None = None) -> Tensor:
        """An array as a tensor: inline when all its elements are equal, else a weight."""
        array = np.asarray(value)
        if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray):
            dtype = DType.F32
        kind = as_dtype(array.dtype if dtype is None or array.dtype.kind in "OSUMm" else dtype)
        array = as_array(array, kind)
        if array.size == 0:
            return self.full(array.shape, 0, kind)
        if kind is not DType.BF16 and (array.tobytes() == array.flat[0].tobytes() * array.size):
            return self.full(array.shape, array.flat[0].item(), kind)
        before = self.constants.get(name)
        if before is not None and np.array_equal(before, array) and before.dtype == array.dtype:
            return self.whole(self._weights[name])
        name = name or self._free_name("c")
        tensor = self._leaf("weight", name, array.shape, kind, None, name)
        self.constants[name] = array
        return tensor

    def _free_name(self, stem: str) -> str:
        taken = {n.name for n in (*self.builder.weights, *self.builder.states)}
        i = len(self.constants)
        while f"{stem}{i}" in taken:
            i += 1
        return f"{stem}{i}"

    def _leaf(
        self,
        op: str,
        name: str,
        shape: Sequence[Extent],
        dtype: DType | str,
        file: WeightFile | None = None,
        key: str = "",
        values: tuple[int, int] | None = None,
        how: Derivation | None = None,
    ) -> Tensor:
        if isinstance(shape, int | Expr):
            shape = (shape,)
        self.builder.origin, before = self.builder.origin or caller(), self.builder.origin
        try:
            sizes = [extent(e) for e in shape]
            node = self.builder.leaf(op, name, as_dtype(dtype), sizes, file, key, values, how)
        finally:
            self.builder.origin = before
        if op == "weight":
            self._weights[name] = node
        return self.whole(node)

    # ---- tensors without storage

    def full(self, shape: Sequence[Extent], value: Any, dtype: DType | str = "f32") -> Tensor:
        """A tensor of one value, without storage."""
        kind = as_dtype(dtype)
        return Tensor(self, Scalar(kind, python_value(value, kind)), tuple(map(extent, shape)))

    def zeros(self, *shape: Extent, dtype: DType | str = "f32") -> Tensor:
        """A tensor of zeros."""
        return self.full(shape, 0, dtype)

    def ones(self, *shape: Extent, dtype: DType | str = "f32") -> Tensor:
        """A tensor of ones."""
        return self.full(shape, 1, dtype)

    def arange(
        self,
        start: Extent,
        stop: Extent | None = None,
        step: int = 1,
        dtype: DType | str = "i64",
    ) -> Tensor:
        """``start, start + step, ..`` below ``stop``; extents may be symbolic."""
        if stop is None:
            start, stop = 0, start
        ends = (stop, start) if step > 0 else (start, stop)
        count = ceil_div(minus(*ends), abs(step))
        if isinstance(count, int):
            count = max(count, 0)
        elif count is None:
            raise refuse("E0125", f"arange over {minus(stop, start)} in steps of {step}")
        index = add(mul(places((count,))[0], step), as_expr(start))
        return Tensor(self, Iota(as_dtype(dtype), index), (count,))

    def size(self, e: Extent, dtype: DType | str = "f32") -> Tensor:
        """The value of an extent as a tensor of shape ()."""
        if isinstance(e, int):
            return self.full((), e, dtype)
        return Tensor(self, Iota(as_dtype(dtype), e), ())

    def eye(self, n: Extent, m: Extent | None = None, dtype: DType | str = "f32") -> Tensor:
        """Ones on the diagonal of [n, m], zeros elsewhere."""
        rows, cols = self.arange(n), self.arange(n if m is None else m)
        return (rows[:, None] == cols[None, :]).to(dtype)

    # ---- nodes

    def whole(self, node: Node) -> Tensor:
        """A node of this model as a tensor."""
        self._mine.add(node)
        return Tensor(self, Read(node, places(node.shape)), node.shape)

    def emit(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        reduce: int | None = None,
        dtype: DType | None = None,
        whole: bool = False,
    ) -> Tensor:
        """A primitive over tensors of one shape; ``reduce`` is the axis that sum and max drop.

        Axes that no operand depends on are left out of the node, unless it has to be ``whole``.
        """
        shape = tensors[0].shape
        operands = [t.operand for t in tensors]
        if reduce is None and not whole and all(is_number(o) for o in operands):
            return self._folded(op, [o for o in operands if isinstance(o, Scalar)], shape, dtype)
        for t in tensors:
            self.check_here(t)
        free = frozenset[str]().union(*(free_axes(o) for o in operands))
        kept = [i for i in range(len(shape)) if whole or i == reduce or f"_{i}" in free]
        loops = list(zip(self._axes(len(kept)), [shape[i] for i in kept], strict=True))
        env = {place(i): axis(name) for i, (name, _) in zip(kept, loops, strict=True)}
        mapped = map_indices(operands, lambda e: substitute(e, env), lambda e: e)
        reduced = loops.pop(kept.index(reduce)) if reduce is not None else None
        node = self._node(op, mapped, loops, reduced, dtype)
        outer = [i for i in range(len(shape)) if i != reduce]
        index = [place(outer.index(i)) for i in kept if i != reduce]
        index = [num(0) if e == 1 else p for p, e in zip(index, node.shape, strict=True)]
        return Tensor(self, Read(node, tuple(index)), tuple(shape[i] for i in outer))

    def _node(
        self,
        op: Op,
        operands: tuple[Operand, ...],
        loops: list[tuple[str, Extent]],
        reduced: tuple[str, Extent] | None,
        dtype: DType | None,
    ) -> Node:
        """The node, new or made before."""
        # 0.0 == -0.0 and 1 == True in Python: the text tells them apart
        values = repr([o.value for o in operands if isinstance(o, Scalar)])
        key = (op, values, operands, tuple(loops), reduced, dtype)
        if key not in self._known:
            self.builder.origin, before = self.builder.origin or caller(), self.builder.origin
            try:
                self._known[key] = self.builder.node(op, operands, loops, reduced, dtype)
            finally:
                self.builder.origin = before
            self._mine.add(self._known[key])
        return self._known[key]

    def _folded(
        self, op: Op, scalars: list[Scalar], shape: Sequence[Extent], dtype: DType | None
    ) -> Tensor:
        kind = dtype or (DType.BOOL if op is Op.LT else scalars[-1].dtype)
        return self.full(shape, fold(op, scalars, kind), kind)

    def _axes(self, rank: int) -> list[str]:
        """Axis names by position that no dim has."""
        names = [*LETTERS, *(f"i{n}" for n in range(rank + len(self.dims)))]
        return [n for n in names if n not in self.dims][:rank]

    def check_here(self, t: Tensor) -> None:
        """Raises E0126 for what the current entry cannot read."""
        if not isinstance(t, Tensor):
            raise refuse("E0126", f"a Tensor is needed, and this is of type {type(t).__name__}")
        if t.model is not self:
            raise refuse("E0126", "operands belong to different models")
        if isinstance(t.operand, Read) and not self.is_here(t):
            raise refuse("E0126", f"'{t.operand.source.name}' belongs to another entry")

    def is_here(self, t: Tensor) -> bool:
        """Whether the current entry may read a tensor of this model."""
        source = t.operand.source if isinstance(t.operand, Read) else None
        return source is None or source.op in ("weight", "state") or source in self._mine

    # ---- entries, outputs, updates

    def entry(self, name: str, repeat: Expr | str = "") -> None:
        """Begin the graph of this name; weights and states are shared between entries. A run goes
        through it once for every value of the dim ``repeat``, in order: outputs are the last."""
        if self.builder.nodes or self.builder.inputs or self.builder.outputs:
            self._close()
        if repeat != "" and str(repeat) not in self.dims:
            raise refuse("E0126", f"entry '{name}' repeats over {repeat}, which is no dim")
        self._entry, self._repeat = name, str(repeat)

    def _close(self) -> None:
        self.builder.finish(self._entry or "main", repeat=self._repeat)
        self._entry = self._repeat = ""
        self._known.clear()
        self._mine.clear()

    def output(self, name: str, value: Tensor) -> None:
        """Name a result. A view is copied; axes of extent 1 are given back to its node."""
        if name in {n for n, _ in self.builder.outputs}:
            raise refuse("E0126", f"two outputs are named '{name}'")
        self.check_here(value)
        node = whole_node(value)
        if node is None or self._shapes.setdefault(node, value.shape) != value.shape:
            node = whole_node(value.contiguous())
            assert node is not None
        self.builder.outputs.append((name, node))

    def update(self, state: Tensor, value: Tensor, at: Sequence[Any] = ()) -> None:
        """After the run ``state[at] = value``; ``at`` like an index of numpy, default: all."""
        self.builder.updates.append(self._write(state, value, at))

    def updated(self, state: Tensor, value: Tensor, at: Sequence[Any] = ()) -> Tensor:
        """The state after ``state[at] = value``, and after what was updated before; ``state``
        itself is read as it was before the run."""
        update = self._write(state, value, at)
        self.builder.origin, before = self.builder.origin or caller(), self.builder.origin
        try:
            return self.whole(self.builder.updated(update))
        finally:
            self.builder.origin = before

    def _write(self, state: Tensor, value: Tensor, at: Sequence[Any]) -> Update:
        self.check_here(value)
        return update_of(state, value, at)

    def name(self, value: Tensor, name: str) -> None:
        """The name that the node of a tensor has in the text form."""
        check_name(name, STATEMENTS, self.origin)
        node = value.operand.source if isinstance(value.operand, Read) else None
        if node and (node.op == "update" or not node.is_leaf):
            self._names[node] = name

    # ---- results

    def graph(self) -> Graph:
        """The graph of all entries, without what no output or update needs."""
        if self.builder.nodes or self.builder.inputs or self.builder.outputs:
            self._close()
        return finished(self.builder.graph(), self._names, self._shapes)

    def read_weight(self, node: Node) -> Array:
        """The values of a weight: a constant of this model, or from its file."""
        if node.name in self.constants:
            own = self.constants[node.name]
            return derive(node, node.how, own) if node.how else own
        return read_weight(node, Path.cwd())

    def save(
        self,
        path: str | Path,
        dims: Mapping[str, int | Dim] | None = None,
        copy: bool = False,
        change: Callable[[Graph], Graph] = lambda graph: graph,
    ) -> None:
        """Write the graph (``-``: to stdout), with some dims bound, as ``change`` makes it;
        constants - or with ``copy`` all weights - go to a safetensors file beside it."""
        save(self.graph(), str(path), dims or {}, copy, change, self.read_weight)
