"""A graph computed by jax in float64, node by node, so that jax.grad differentiates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graph_places import Array, Loops, counted, inside, places, sizes
from lumc.graph.graph import Iota, Node, Operand, Read, Scalar
from lumc.graph.ops import DType, Op

jax.config.update("jax_enable_x64", True)
# Compiling takes nearly all of the time, and what is tested here is not how fast jax runs.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def kind(dtype: DType) -> Any:
    """All floats are f64."""
    return np.dtype("f8") if dtype.is_float else dtype.numpy


def grads(
    nodes: Sequence[Node], end: Node, leaves: Mapping[Node, Array], by: Sequence[Node]
) -> tuple[Array, list[Array]]:
    """The value of ``end``, a number, and its gradients by some of the leaves, floats."""
    loss = _function(nodes, end, leaves, by)
    value, slopes = _run(jax.value_and_grad(loss), [leaves[n] for n in by])
    return np.asarray(value), [np.asarray(g) for g in slopes]


def curves(
    nodes: Sequence[Node],
    end: Node,
    leaves: Mapping[Node, Array],
    by: Sequence[Node],
    ahead: Sequence[Array],
) -> list[Array]:
    """The gradients of the slope of ``end`` in a direction: the Hessian times ``ahead``."""
    loss = _function(nodes, end, leaves, by)

    def slope(xs: list[Any]) -> Any:
        return sum((g * v).sum() for g, v in zip(jax.grad(loss)(xs), ahead, strict=True))

    return [np.asarray(h) for h in _run(jax.grad(slope), [leaves[n] for n in by])]


def _function(
    nodes: Sequence[Node], end: Node, leaves: Mapping[Node, Array], by: Sequence[Node]
) -> Callable[[list[Any]], Any]:
    rest = {n: value.astype(kind(n.dtype)) for n, value in leaves.items() if n not in by}
    return lambda xs: computed(nodes, rest | dict(zip(by, xs, strict=True)))[end]


def _run(f: Callable[[list[Any]], Any], xs: list[Array]) -> Any:
    return jax.jit(f, compiler_options=FAST)([jnp.asarray(x, "f8") for x in xs])


def computed(nodes: Sequence[Node], leaves: Mapping[Node, Any]) -> dict[Node, Any]:
    """The values of nodes, in order, from those of leaves."""
    values: dict[Node, Any] = dict(leaves)
    for n in nodes:
        values[n] = _applied(n, [_loaded(o, n.loops, values) for o in n.operands])
    return values


def _loaded(o: Operand, loops: Loops, values: Mapping[Node, Any]) -> Any:
    shape = sizes(loops)
    if isinstance(o, Read):
        source = jnp.ravel(values[o.source])
        found = source[places(o, loops)] if source.size else jnp.zeros(shape, source.dtype)
    elif isinstance(o, Iota):
        found = jnp.asarray(counted(o, loops), kind(o.dtype))
    else:
        assert isinstance(o, Scalar)
        found = jnp.full(shape, o.value, kind(o.dtype))
    return jnp.where(inside(o, loops), found, jnp.zeros((), found.dtype))


def _applied(n: Node, args: Sequence[Any]) -> Any:
    a, b = args[0], args[-1]
    is_bool = a.dtype == bool
    match n.op:
        case Op.LOG2:
            return jnp.log2(a)
        case Op.EXP2:
            return jnp.exp2(a)
        case Op.SIN:
            return jnp.sin(a)
        case Op.SQRT:
            return jnp.sqrt(a)
        case Op.RECIP:
            return 1 / a
        case Op.ADD:
            return a | b if is_bool else a + b
        case Op.MUL:
            return jnp.where(a, b, jnp.zeros((), b.dtype)) if is_bool else a * b
        case Op.MOD if not jnp.issubdtype(a.dtype, jnp.floating):
            return jnp.where(b == 0, jnp.zeros_like(a), lax.rem(a, jnp.where(b == 0, 1, b)))
        case Op.MOD:
            return lax.rem(a, b)
        case Op.LT:
            return a < b
        case Op.SUM:
            return a.sum(-1, dtype=a.dtype)
        case Op.MAX:
            return a.any(-1) if is_bool else a.max(-1)
    return a != 0 if n.dtype is DType.BOOL else a.astype(kind(n.dtype))
