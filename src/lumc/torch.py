"""lumc for PyTorch: a backend of ``torch.compile``, and modules as bundles.

```python
import lumc.torch
import torch

layer = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
fast = torch.compile(layer, backend="lumc")
x = torch.ones(2, 8)
with torch.no_grad():
    print(torch.allclose(fast(x), layer(x), atol=1e-6))

bundle = lumc.torch.compile(layer, (x,), estimate=True)
print(bundle)
```

```text
True
<lumc.Bundle on cpu: input f32[2, 8] -> output f32[2, 4]>
```
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import lumc.python as lumc
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten import exported
from lumc.frontend.aten.assemble import Leaf, assemble
from lumc.frontend.aten.fx import (
    Tracer,
    array_of,
    dtype_of,
    require_torch,
    size_of,
    tensor_of,
)
from lumc.frontend.aten.lower import Wrong
from lumc.frontend.aten.sizes import Unknown
from lumc.graph.dim import Extent
from lumc.graph.ops import DType

torch = require_torch()

KEPT = 16  # bundles of one graph, for different shapes
LOGGER = logging.getLogger("lumc")
Runner = Callable[[Sequence[Any]], list[Any]]


def compile(
    module: Any,
    example_inputs: Sequence[Any],
    output: str | PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Unpack[lumc.Options],
) -> lumc.Bundle | Path:
    """A bundle of a module, or of a ``torch.export.ExportedProgram``: open, or, with an ``output``,
    written there.

    ``example_inputs`` are arguments of a call, whose shapes and dtypes count; they and
    ``dynamic_shapes``, which names the dims that each run chooses, are those of
    ``torch.export.export``. The other options are those of ``lumc.compile``. Raises ``lumc.Error``:
    E0351 and E0352, exit 4, for what is not supported.
    """
    model = imported(module, example_inputs, dynamic_shapes=dynamic_shapes)
    return lumc.compile(model, output, **options)


def imported(
    module: Any, example_inputs: Sequence[Any] = (), *, dynamic_shapes: Any = None
) -> Model:
    """The ``lumc.Model`` of a module, or of an exported program. Raises as ``compile`` does."""
    program = module
    if isinstance(module, torch.nn.Module):
        with torch.no_grad():
            program = torch.export.export(
                module, tuple(example_inputs), dynamic_shapes=dynamic_shapes, strict=False
            )
    try:
        return exported.model_of(program)
    except LumcError as e:
        if e.exit is not Exit.UNSUPPORTED:
            raise
    return exported.model_of(program.run_decompositions())


# ---- torch.compile


def backend(graph_module: Any, example_inputs: Sequence[Any], **settings: Any) -> Any:
    """The backend ``lumc`` of ``torch.compile``: compiles a graph of Dynamo at its first run, and
    again for other shapes.

    ``options`` of ``torch.compile`` are those of ``lumc.compile``; kernels are chosen by estimate
    unless it is told ``estimate=False``. Parameters of inference are constants of a bundle, which
    is made again after they change. A graph that lumc cannot compile runs in PyTorch: a warning of
    the logger ``lumc`` says why.
    """
    common: Any = import_module("torch._dynamo.backends.common")
    given = {"estimate": True, "threads": torch.get_num_threads()}
    options = {**given, **(settings.get("options") or {})}
    aot = common.aot_autograd(
        fw_compiler=partial(_compiled, options=options, inference=False),
        inference_compiler=partial(_compiled, options=options, inference=True),
        decompositions=torch._decomp.core_aten_decompositions(),
    )
    return aot(graph_module, example_inputs)


def _compiled(
    graph_module: Any, example_inputs: Sequence[Any], options: Mapping[str, Any], inference: bool
) -> Any:
    """What runs a graph of ATen calls; the list of its arguments is emptied."""
    context = torch._guards.TracingContext.try_get()
    meta = context.fw_metadata if context is not None and inference else None
    fixed = frozenset(meta.static_input_indices if meta is not None else ())
    graph = _Graph(graph_module, fixed if inference else frozenset(), inference, options)

    def run(arguments: list[Any]) -> list[Any]:
        values = list(arguments)
        arguments.clear()
        return graph(values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class Output:
    """A result that a bundle gives."""

    name: str
    dtype: DType


@dataclass
class _Made:
    """One bundle of a graph, and the tensors that it holds for constants, as they were."""

    bundle: lumc.Bundle
    feeds: Sequence[tuple[int, str]]  # which arguments are which inputs
    results: Sequence[Any]  # outputs, numbers, None
    held: Sequence[tuple[int, Any, Any]]  # place, tensor, state

    def is_current(self, values: Sequence[Any]) -> bool:
        return all(values[i] is t and _state(t) == s for i, t, s in self.held)

    def run(self, values: Sequence[Any]) -> list[Any]:
        feed = {name: array_of(values[i]) for i, name in self.feeds}
        found = self.bundle.run(feed)
        return [
            tensor_of(found[r.name], r.dtype) if isinstance(r, Output) else r for r in self.results
        ]


@dataclass
class _Graph:
    """A graph of ATen calls, with a bundle for each shape that it was run on."""

    module: Any
    fixed: frozenset[int]  # arguments that are parameters or buffers
    inference: bool
    options: Mapping[str, Any]
    made: dict[tuple[Any, ...], _Made] = field(default_factory=dict)
    refused: str = ""

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        if not self.refused:
            try:
                return self._bundle(values).run(values)
            except (LumcError, Wrong, Unknown) as e:
                self.refused = str(e)
                nodes = sum(n.op == "call_function" for n in self.module.graph.nodes)
                said = "a graph of %d calls runs in PyTorch, lumc cannot compile it: %s"
                LOGGER.warning(said, nodes, e)
        return list(self.module(*values))

    def _bundle(self, values: Sequence[Any]) -> _Made:
        key = tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in values)
        found = self.made.get(key)
        if found is None or not found.is_current(values):
            if found is not None:
                found.bundle.close()
            elif len(self.made) >= KEPT:
                self.made.pop(next(iter(self.made))).bundle.close()
            self.made[key] = found = self._build(values)
        return found

    def _build(self, values: Sequence[Any]) -> _Made:
        """Raises LumcError, Wrong and Unknown for what cannot be compiled."""
        far = next((v for v in values if isinstance(v, torch.Tensor) and v.device.type != "cpu"), 0)
        if isinstance(far, torch.Tensor):
            what = f"a tensor on the device {far.device}"
            raise LumcError("E0352", what, fix="move the model to the CPU", exit=Exit.UNSUPPORTED)
        sizes = self._sizes(values)
        tracer = Tracer(lambda size: size_of(size, sizes.__getitem__))
        program, placeholders = tracer.program(self.module, "torch.compile")
        model, feeds, held = Model(), list[tuple[int, str]](), list[tuple[int, Any, Any]]()
        leaves = list[Leaf]()
        for i, (node, value) in enumerate(zip(placeholders, values, strict=True)):
            if not isinstance(value, torch.Tensor):
                made: Callable[[str], Any] = partial(_same, value)
            elif self._is_constant(i, value):
                made = partial(_held, model, value, held, i)
            else:
                made = partial(_fed, model, value, feeds, i)
            leaves.append(Leaf(node.name, node.name, made))
        for name, tensor in tracer.attributes.items():
            leaves.append(Leaf(name, name, partial(_held, model, tensor, [], 0)))
        found = assemble(model, program, leaves, numbers=False)
        results = [
            Output(f"output_{i}", t.dtype) if isinstance(t, Tensor) else t
            for i, t in enumerate(found)
        ]
        if not any(isinstance(r, Output) for r in results):
            raise LumcError("E0352", "a graph without tensors", exit=Exit.UNSUPPORTED)
        bundle = lumc.compile(model, **self.options)
        assert isinstance(bundle, lumc.Bundle)
        return _Made(bundle, feeds, results, held)

    def _is_constant(self, i: int, value: Any) -> bool:
        return self.inference and (i in self.fixed or isinstance(value, torch.nn.Parameter))

    def _sizes(self, values: Sequence[Any]) -> dict[str, Extent]:
        """What the symbols of the graph are for these arguments."""
        found = dict[str, Extent]()
        nodes = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        for node, value in zip(nodes, values, strict=True):
            said = node.meta.get("val")
            if isinstance(said, torch.SymInt):
                found[str(said.node.expr)] = int(value)
            elif isinstance(said, torch.Tensor):
                for size, actual in zip(said.shape, value.shape, strict=True):
                    if not isinstance(size, int):
                        found[str(size.node.expr)] = int(actual)
        return found


def _same(value: Any, _: str) -> Any:
    return value


def _state(tensor: Any) -> tuple[int, int]:
    """What is another one after a tensor was written, but through ``tensor.data``."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _held(model: Model, value: Any, held: list[tuple[int, Any, Any]], i: int, name: str) -> Tensor:
    """A constant of a bundle, which is noted as it is now."""
    held.append((i, value, _state(value)))
    return model.constant(array_of(value), name, _dtype(value))


def _fed(model: Model, value: Any, feeds: list[tuple[int, str]], i: int, name: str) -> Tensor:
    """An input of a bundle, which is noted by its name."""
    feeds.append((i, name))
    return model.input(name, tuple(value.shape), _dtype(value))


def _dtype(tensor: Any) -> DType:
    """Raises E0352 for a dtype that lumc does not have."""
    kind = dtype_of(tensor.dtype)
    if not isinstance(kind, DType):
        raise LumcError("E0352", f"a tensor of {kind.says}", exit=Exit.UNSUPPORTED)
    return kind


registry: Any = import_module("torch._dynamo")
if "lumc" not in registry.list_backends():
    registry.register_backend(backend, name="lumc")
__all__ = ["backend", "compile", "imported"]
