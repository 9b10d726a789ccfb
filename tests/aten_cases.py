"""Calls of ATen operators with random arguments, and what torch and lumc make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten import tables  # noqa: F401  registers the operators
from lumc.frontend.aten.fx import array_of, dtypes
from lumc.frontend.aten.lower import Lowering, number
from lumc.frontend.aten.program import Meta, Node, Program, Ref
from lumc.graph.graph import Graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

Array = np.ndarray[Any, Any]


def overload(target: str) -> Any:
    """``add.Tensor``: the operator of torch."""
    name, _, kind = target.partition(".")
    return getattr(getattr(torch.ops.aten, name), kind or "default")


def program_of(target: str, args: Sequence[Any], kwargs: Any) -> tuple[Program, list[Any]]:
    """The program of one call, and its tensors in order."""
    tensors = list[torch.Tensor]()

    def referred(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Ref(f"x{len(tensors) - 1}")
        if isinstance(value, torch.dtype):
            return dtypes()[value]
        return [referred(v) for v in value] if isinstance(value, list | tuple) else value

    names = [a.name for a in overload(target)._schema.arguments]
    inputs = {n: referred(v) for n, v in zip(names, args, strict=False)}
    inputs |= {n: referred(v) for n, v in kwargs.items()}
    result = overload(target)(*args, **kwargs)
    listed = isinstance(result, list)
    results = list(result) if isinstance(result, list | tuple) else [result]
    outputs = [f"y{i}" for i in range(len(results))]
    said = {f"x{i}": t for i, t in enumerate(tensors)} | dict(zip(outputs, results, strict=True))
    metas = {n: Meta(dtypes()[t.dtype], tuple(t.shape), tuple(t.stride()))
             for n, t in said.items() if isinstance(t, torch.Tensor)}  # fmt: skip
    node = Node("call", f"aten.{target}", inputs, outputs, listed)
    return Program("test", [node], {o: Ref(o) for o in outputs}, metas), results


def ours(
    target: str, args: Sequence[Any], kwargs: Any, only: Sequence[int] | None = None
) -> tuple[list[Array], list[Any]]:
    """What lumc's oracle and what torch make of a call, of the results ``only``."""
    program, results = program_of(target, args, kwargs)
    given, arrays, model = dict[str, Any](), dict[str, Array](), Model()
    flat = [t for a in (*args, *kwargs.values()) for t in _tensors(a)]
    for i, t in enumerate(flat):
        given[f"x{i}"] = model.input(f"x{i}", tuple(t.shape), dtypes()[t.dtype])
        arrays[f"x{i}"] = array_of(t)
    kept = range(len(results)) if only is None else only
    program = Program("test", program.nodes, {f"y{i}": Ref(f"y{i}") for i in kept}, program.metas)
    found, _ = Lowering(model, program).run(given)
    for name, value in found.items():
        model.output(name, value if isinstance(value, Tensor) else number(model, value))
    graph: Graph = model.graph()
    verify_graph(graph)
    got = evaluate(graph, "main", arrays, model.read_weight, declared=True)[0]
    return [got[f"y{i}"] for i in kept], [results[i] for i in kept]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, list | tuple) else []


def differs(got: Array, want: torch.Tensor | Any, rtol: float, atol: float) -> str:
    """Why a result is not that of torch; empty if it is."""
    if not isinstance(want, torch.Tensor):
        return "" if int(got) == int(want) else f"{got} is not {want}"
    wide = want.to(torch.float64) if want.is_floating_point() else want
    mine: Array = got
    if want.dtype is torch.bfloat16:
        mine = (got.astype(np.uint32) << 16).view(np.float32)
    if tuple(got.shape) != tuple(want.shape):
        return f"shape {got.shape} is not {tuple(want.shape)}"
    if want.dtype is not torch.bfloat16 and str(got.dtype) != str(want.numpy().dtype):
        return f"dtype {got.dtype} is not {want.dtype}"
    theirs = wide.numpy()
    if not want.is_floating_point():
        wrong = mine != theirs
        return f"{wrong.sum()} of {wrong.size} differ" if wrong.any() else ""
    with np.errstate(all="ignore"):
        close = np.isclose(mine.astype(np.float64), theirs, rtol=rtol, atol=atol, equal_nan=True)
    return "" if close.all() else f"{(~close).sum()} differ, by {np.nanmax(np.abs(mine - theirs))}"


__all__ = ["LumcError", "differs", "ours"]
