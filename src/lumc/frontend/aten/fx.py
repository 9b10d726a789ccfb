"""Graphs of torch.fx, as torch.export and AOTAutograd make them, as a ``Program``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend.aten.program import Foreign, Meta, Node, Program, Ref
from lumc.frontend.aten.reading import origin, plain
from lumc.frontend.aten.registry import placed
from lumc.frontend.aten.sizes import parse_size
from lumc.graph.dim import Extent
from lumc.graph.ops import DType

Array = np.ndarray[Any, Any]
LEAST = (2, 9)  # version of torch


def require_torch() -> Any:
    """The torch package, or the error that says how to install it. Raises E0354."""
    try:
        torch = import_module("torch")
    except ImportError as e:
        raise _missing(f"lumc.torch needs the torch package ({e})") from None
    version = tuple(int(n) for n in torch.__version__.split(".")[:2])
    if version < LEAST:
        raise _missing(f"lumc.torch needs torch 2.9 or newer, and this is {torch.__version__}")
    return torch


def _missing(what: str) -> LumcError:
    return LumcError("E0354", what, fix="pip install 'lumc[torch]'", exit=Exit.TOOLCHAIN)


@cache
def dtypes() -> Mapping[Any, DType]:
    """lumc's dtypes by torch's."""
    torch = require_torch()
    names = {d: d.numpy.name for d in DType if d is not DType.BF16} | {DType.BF16: "bfloat16"}
    return {getattr(torch, name): d for d, name in names.items()}


def dtype_of(kind: Any) -> DType | Foreign:
    return dtypes().get(kind, Foreign(f"dtype {str(kind).removeprefix('torch.')}"))


def array_of(tensor: Any) -> Array:
    """The elements of a tensor on any device, not copied where they lie row by row on the CPU; bf16
    as bits."""
    torch = require_torch()
    plain_tensor = tensor.detach().cpu().contiguous()
    if plain_tensor.dtype is torch.bfloat16:
        bits: Array = plain_tensor.view(torch.int16).numpy().view(np.uint16)
        return bits
    array: Array = plain_tensor.resolve_conj().resolve_neg().numpy()
    return array


def tensor_of(array: Array, dtype: DType) -> Any:
    """An array, which nobody else writes, as a tensor."""
    torch = require_torch()
    if dtype is DType.BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@dataclass
class Tracer:
    """Makes the program of a graph module. ``size`` gives the extent of a symbolic size."""

    size: Callable[[Any], Extent]
    attributes: dict[str, Any] = field(default_factory=dict)  # tensors that the graph holds
    parts: dict[str, list[Ref]] = field(default_factory=dict)  # results of nodes with several
    names: dict[str, Any] = field(default_factory=dict)  # what nodes are that pick one of these
    metas: dict[str, Meta] = field(default_factory=dict)

    def program(self, graph_module: Any, where: str) -> tuple[Program, list[Any]]:
        """The program, whose outputs are called ``output_0``, .., and the placeholders."""
        nodes, placeholders, results = list[Node](), list[Any](), list[Any]()
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                placeholders.append(node)
                self._note(node.name, node.meta.get("val"))
            elif node.op == "get_attr":
                self.attributes[node.name] = _attribute(graph_module, node.target)
                self._note(node.name, self.attributes[node.name])
            elif node.op == "output":
                given = node.args[0]
                listed = list(given) if isinstance(given, list | tuple) else [given]
                results = [self._value(r) for r in listed]
            elif (call := self._call(node)) is not None:
                nodes.append(call)
        outputs = {f"output_{i}": r for i, r in enumerate(results)}
        return Program(where, nodes, outputs, self.metas), placeholders

    def _call(self, node: Any) -> Node | None:
        torch, target = require_torch(), node.target
        if getattr(target, "__name__", "") == "getitem" and node.args[0].name in self.parts:
            self.names[node.name] = self.parts[node.args[0].name][node.args[1]]
            return None
        if isinstance(target, torch._ops.OpOverload):
            name = plain(str(target))
            theirs = [a.name for a in target._schema.arguments]
            inputs = {n: self._value(v) for n, v in zip(theirs, node.args, strict=False)}
            inputs |= {n: self._value(v) for n, v in node.kwargs.items()}
        else:
            name = f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"
            inputs = placed(name, [self._value(v) for v in node.args])
        found = node.meta.get("val")
        several = isinstance(found, list | tuple)
        outputs = [f"{node.name}.{i}" for i in range(len(found))] if several else [node.name]
        if several:
            self.parts[node.name] = [Ref(o) for o in outputs]
        for output, value in zip(outputs, found if several else [found], strict=True):
            self._note(output, value)
        stack = origin(node.meta.get("stack_trace"))
        return Node(node.name, name, inputs, outputs, isinstance(found, list), stack)

    def _note(self, name: str, value: Any) -> None:
        torch = require_torch()
        if isinstance(value, torch.Tensor):
            shape, strides = (_known(v) for v in (value.shape, value.stride()))
            self.metas[name] = Meta(dtype_of(value.dtype), shape, strides)

    def _value(self, value: Any) -> Any:
        torch = require_torch()
        if isinstance(value, torch.fx.Node):
            if value.name in self.names:
                return self.names[value.name]
            return list(self.parts.get(value.name, ())) or Ref(value.name)
        if isinstance(value, list | tuple):
            return [self._value(v) for v in value]
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        if isinstance(value, torch.SymInt):
            return self.size(value)
        plain_value = value is None or isinstance(value, bool | int | float | str)
        return value if plain_value else Foreign(f"{type(value).__name__} {value}")


def _known(sizes: Any) -> tuple[int | None, ...]:
    """Sizes; None for those that are symbols. Asking one for its number would be a guard."""
    return tuple(n if isinstance(n, int) else None for n in sizes)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def size_of(value: Any, symbol: Callable[[str], Extent]) -> Extent:
    """A size of torch over symbols; raises ``sizes.Unknown`` for what no extent can be."""
    if isinstance(value, int):
        return value
    sympy: Any = import_module("sympy")
    return parse_size(sympy.srepr(value.node.expr), symbol)
