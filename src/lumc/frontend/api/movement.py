"""Movement: every function composes index maps, none but concat, roll and pad by a value makes
a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.value import V
from lumc.frontend.api.view import (
    at_least,
    ceil_div,
    factors,
    minus,
    place,
    plus,
    reshape_map,
    times,
)
from lumc.graph.dim import Extent, as_expr
from lumc.graph.expr import Expr, add, mul, num
from lumc.graph.graph import shape_text

# ---- axes


def axis_of(x: V, axis: int, rank: int | None = None) -> int:
    """A possibly negative axis as 0..rank-1."""
    rank = x.ndim if rank is None else rank
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise x.refuse("E0122", f"axis {axis} of {x.describe()} does not exist")
    return axis % rank


def axes_of(x: V, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """One, several or (None) all axes, each once."""
    if axis is None:
        return tuple(range(x.ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    out = tuple(axis_of(x, a) for a in axes)
    if len(set(out)) != len(out):
        raise x.refuse("E0122", f"axes {axes} of {x.describe()} repeat")
    return out


def arguments(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` mean the same."""
    if len(values) == 1 and isinstance(values[0], list | tuple):
        return tuple(values[0])
    return values


# ---- permute, reshape


def permute(x: V, *order: Any) -> V:
    """The axes in another order."""
    axes = tuple(axis_of(x, a) for a in arguments(order))
    if sorted(axes) != list(range(x.ndim)):
        raise x.refuse("E0122", f"permute {axes} of {x.describe()} is not a permutation")
    env = [place(axes.index(i)) for i in range(x.ndim)]
    return x.view([x.shape[a] for a in axes], env)


def transpose(x: V, a: int = -2, b: int = -1) -> V:
    """Two axes exchanged, by default the last two."""
    order = list(range(x.ndim))
    a, b = axis_of(x, a), axis_of(x, b)
    order[a], order[b] = b, a
    return permute(x, order)


def moveaxis(x: V, source: int, target: int) -> V:
    """The axis ``source`` at the place ``target``."""
    order = list(range(x.ndim))
    order.insert(axis_of(x, target), order.pop(axis_of(x, source)))
    return permute(x, order)


def reverse_axes(x: V) -> V:
    return permute(x, *reversed(range(x.ndim)))


def reshape(x: V, *shape: Any) -> V:
    """The same elements in row-major order; one extent may be -1."""
    sizes = arguments(shape)
    new = _inferred(x, sizes)
    if 0 in new or 0 in x.shape:
        if 0 in new and 0 in x.shape:
            return x.model.full(new, 0, x.dtype)
        raise _no_reshape(x, new, "the numbers of elements differ")
    env = reshape_map(x.shape, new)
    if isinstance(env, str):
        raise _no_reshape(x, new, env)
    return x.view(new, env)


def _inferred(x: V, sizes: Sequence[Extent]) -> tuple[Extent, ...]:
    if any(isinstance(e, int) and e < -1 for e in sizes) or list(sizes).count(-1) > 1:
        raise _no_reshape(x, sizes, "one extent may be -1, none below")
    if -1 not in sizes:
        return tuple(sizes)
    whole, symbols = factors(x.shape)
    known, used = factors([e for e in sizes if e != -1])
    rest = list(symbols)
    for s in used:
        if s not in rest:
            raise _no_reshape(x, sizes, f"{s} is not among the extents")
        rest.remove(s)
    if known == 0 or whole % known or len(rest) > 1:
        raise _no_reshape(x, sizes, "the extent of -1 is not an integer or a single dim")
    missing = times(rest[0], whole // known) if rest else whole // known
    return tuple(missing if e == -1 else e for e in sizes)


def _no_reshape(x: V, new: Sequence[Extent], why: str) -> Exception:
    return x.refuse("E0121", f"cannot reshape {shape_text(x.shape)} to {shape_text(new)}: {why}")


def flatten(x: V, start: int = 0, end: int = -1) -> V:
    """Merge the axes start..end (both included) into one."""
    if x.ndim == 0:
        return reshape(x, 1)
    start, end = axis_of(x, start), axis_of(x, end)
    whole, symbols = factors(x.shape[start : end + 1])
    if len(symbols) > 1:
        raise x.refuse("E0125", f"cannot merge several symbolic extents of {shape_text(x.shape)}")
    merged = times(symbols[0], whole) if symbols else whole
    return reshape(x, (*x.shape[:start], merged, *x.shape[end + 1 :]))


def unflatten(x: V, axis: int, sizes: Sequence[Extent]) -> V:
    """One axis as several, of these sizes; -1 is what is left."""
    axis = axis_of(x, axis)
    if -1 in sizes:
        sizes = _inferred(x.model.full((x.shape[axis],), 0), sizes)
    return reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def squeeze(x: V, axis: int | Sequence[int] | None = None) -> V:
    """Drop axes of extent 1: the named ones, or all."""
    axes = [i for i in range(x.ndim) if x.shape[i] == 1] if axis is None else axes_of(x, axis)
    if any(x.shape[a] != 1 for a in axes):
        raise x.refuse("E0122", f"axes {tuple(axes)} of {x.describe()} do not all have extent 1")
    kept = [i for i in range(x.ndim) if i not in axes]
    env: list[Expr] = [num(0)] * x.ndim
    for new, old in enumerate(kept):
        env[old] = place(new)
    return x.view([x.shape[i] for i in kept], env)


def unsqueeze(x: V, *axis: Any) -> V:
    """New axes of extent 1 at these positions of the result."""
    axes = arguments(axis)
    rank = x.ndim + len(axes)
    new = {axis_of(x, a, rank) for a in axes}
    kept = [i for i in range(rank) if i not in new]
    shape: list[Extent] = [1] * rank
    for old, i in enumerate(kept):
        shape[i] = x.shape[old]
    return x.view(shape, [place(i) for i in kept])


def broadcast_to(x: V, *shape: Any) -> V:
    """Repeat axes of extent 1; -1 keeps an extent."""
    sizes = arguments(shape)
    lead = len(sizes) - x.ndim
    new = tuple(x.shape[i - lead] if e == -1 and i >= lead else e for i, e in enumerate(sizes))
    fits = lead >= 0 and all(o in (1, e) for o, e in zip(x.shape, new[lead:], strict=True))
    if not fits:
        raise x.refuse("E0120", f"cannot broadcast {shape_text(x.shape)} to {shape_text(new)}")
    env = [num(0) if e == 1 else place(i + lead) for i, e in enumerate(x.shape)]
    return x.view(new, env)


expand = broadcast_to


def repeat(x: V, *times_: Any) -> V:
    """The whole tensor several times along each axis, as numpy's tile."""
    counts = arguments(times_)
    rank = max(len(counts), x.ndim)
    counts = (1,) * (rank - len(counts)) + tuple(counts)
    x = unsqueeze(x, *range(rank - x.ndim))
    for axis, n in enumerate(counts):
        if n != 1:
            shape = (*x.shape[:axis], n, *x.shape[axis:])
            merged = times(x.shape[axis], n)
            wide = broadcast_to(unsqueeze(x, axis), shape)
            x = reshape(wide, (*x.shape[:axis], merged, *x.shape[axis + 1 :]))
    return x


def repeat_interleave(x: V, n: int, axis: int) -> V:
    """Every element ``n`` times in a row."""
    axis = axis_of(x, axis)
    wide = unsqueeze(x, axis + 1)
    wide = broadcast_to(wide, (*x.shape[: axis + 1], n, *x.shape[axis + 1 :]))
    return reshape(wide, (*x.shape[:axis], times(x.shape[axis], n), *x.shape[axis + 1 :]))


# ---- slices and windows


def at(x: V, axis: int, index: Expr, size: Extent | None) -> V:
    """Read ``axis`` at an index over its new place; ``size`` None drops the axis."""
    env = list[Expr]()
    shape = list[Extent]()
    for i, e in enumerate(x.shape):
        if i == axis:
            env.append(index)
            shape += [] if size is None else [size]
        else:
            env.append(place(i - 1 if size is None and i > axis else i))
            shape.append(e)
    return x.view(shape, env)


def slice_axis(x: V, axis: int, start: Extent, stop: Extent, step: int = 1) -> V:
    """``start, start + step, ..`` before ``stop``, all inside the axis."""
    axis = axis_of(x, axis)
    count = ceil_div(minus(stop, start), step)
    if count is None:
        raise x.refuse("E0125", f"a slice of {minus(stop, start)} elements in steps of {step}")
    if isinstance(count, int):
        count = max(count, 0)
    return at(x, axis, add(mul(place(axis), step), as_expr(start)), count)


def flip(x: V, axis: int | Sequence[int] | None = None) -> V:
    """The axes in reverse, by default all."""
    for a in axes_of(x, axis):
        x = at(x, a, add(mul(place(a), -1), as_expr(x.shape[a]), -1), x.shape[a])
    return x


def index_tensor(x: V, key: Any) -> V:
    """``x[1, 2:, ::-1, None, ..., dim]``; a tensor of ints looks rows up (see ``take``)."""
    parts = list(key) if isinstance(key, tuple) else [key]
    used = sum(p is not None and p is not Ellipsis for p in parts)
    if used > x.ndim:
        raise x.refuse("E0124", f"{used} indices into {x.describe()}")
    if not any(p is Ellipsis for p in parts):
        parts.append(Ellipsis)
    where = next(i for i, p in enumerate(parts) if p is Ellipsis)
    parts[where : where + 1] = [slice(None)] * (x.ndim - used)
    axis = 0
    for p in parts:
        if p is None:
            x, axis = unsqueeze(x, axis), axis + 1
        elif isinstance(p, int | Expr):
            x = at(x, axis, as_expr(_position(x, axis, p)), None)
        elif isinstance(p, slice):
            x, axis = _sliced(x, axis, p), axis + 1
        elif isinstance(p, type(x)):
            x, axis = x.index_select(axis, p), axis + p.ndim
        else:
            raise x.refuse("E0124", f"cannot index {x.describe()} with {p!r}")
    return x


def _position(x: V, axis: int, p: Extent) -> Extent:
    size = x.shape[axis]
    if isinstance(p, bool):
        raise x.refuse("E0124", f"cannot index {x.describe()} with a bool")
    wrapped = plus(size, p) if isinstance(p, int) and p < 0 else p
    dims = x.model.dims
    if not at_least(wrapped, 0, dims) or not at_least(size, plus(wrapped, 1), dims):
        raise x.refuse("E0124", f"index {p} is outside axis {axis} of {x.describe()}")
    return wrapped


def _sliced(x: V, axis: int, part: Any) -> V:
    """One slice of an index expression, with numpy's clamping."""
    step = 1 if part.step is None else part.step
    size = x.shape[axis]
    if part.start is None and part.stop is None and step == 1:
        return x
    if not isinstance(step, int) or step == 0:
        raise x.refuse("E0124", f"slice step {step} of {x.describe()}")
    if (
        isinstance(size, int)
        and not isinstance(part.start, Expr)
        and not isinstance(part.stop, Expr)
    ):
        chosen = range(*slice(part.start, part.stop, step).indices(size))
        index = add(mul(place(axis), step), chosen.start)
        return at(x, axis, index, len(chosen)) if chosen else at(x, axis, num(0), 0)
    if step < 0:
        if part.start is not None or part.stop is not None:
            raise x.refuse(
                "E0125", f"a reversed part of the symbolic axis {axis} of {x.describe()}"
            )
        return slice_axis(flip(x, axis), axis, 0, size, -step)
    start = _edge(x, axis, part.start, 0)
    return slice_axis(x, axis, start, _edge(x, axis, part.stop, size), step)


def _edge(x: V, axis: int, e: Extent | None, default: Extent) -> Extent:
    """An end of a slice of a symbolic axis; it has to be provably inside."""
    size, dims = x.shape[axis], x.model.dims
    if e is None:
        return default
    edge = plus(size, e) if isinstance(e, int) and e < 0 else e
    if at_least(edge, size, dims):
        return size
    if not at_least(size, edge, dims) or not at_least(edge, 0, dims):
        what = f"slice end {e} may lie outside axis {axis} of {x.describe()}"
        raise x.refuse("E0125", what, fix="bound the dim tighter, or slice at a dim")
    return edge


def unfold(x: V, axis: int, size: int, step: int = 1, dilation: int = 1) -> V:
    """Windows of ``size`` elements, ``dilation`` apart, every ``step``: a new last axis."""
    axis = axis_of(x, axis)
    span = (size - 1) * dilation + 1
    room = ceil_div(plus(x.shape[axis], 1 - span), step)
    if room is None or not at_least(x.shape[axis], span, x.model.dims):
        raise x.refuse(
            "E0121", f"windows of {span} elements do not fit axis {axis} of {x.describe()}"
        )
    shape = [*x.shape[:axis], room, *x.shape[axis + 1 :], size]
    env = [place(i) for i in range(x.ndim)]
    env[axis] = add(mul(place(axis), step), mul(place(x.ndim), dilation))
    return x.view(shape, env)


def diagonal(x: V) -> V:
    """The diagonal of the last two axes, of equal extent, as one last axis."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise x.refuse("E0121", f"{x.describe()} is not square")
    env = [place(i) for i in range(x.ndim - 1)]
    return x.view(x.shape[:-1], [*env, place(x.ndim - 2)])
