"""States after an update: what they hold, as reads of what was there and of what is written.

An updated state is read like a value of its own. Where an element of it comes from is said by
index maps and bounds, those of the update the other way round, so a node that reads it depends on
the value as on any other operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lumc.graph.dim import Dim, dim_ranges
from lumc.graph.expr import Expr, add, axis, floordiv, linear, mod, mul, num
from lumc.graph.graph import Bound, Node, Read, Update, fail


def definition(update: Update, before: Node, dims: Mapping[str, Dim]) -> tuple[Read, Read]:
    """What an updated state reads, over its own axes: the state before, and the value, which counts
    where its bounds hold. Raises E0101 for an index that is not, for each dim, a number or one axis
    of the value, in steps and from some place on."""
    place = tuple(axis(a) for a in before.axes)
    found, guards = dict[str, Expr](), list[Bound]()
    value, extents = update.value, dict(zip(update.value.axes, update.value.shape, strict=True))
    for at, e, size in zip(place, update.index, update.state.shape, strict=True):
        atoms = [a for a in linear(e)[1] if a.free]
        if len(atoms) > 1 or any(a.kind != "axis" or a.attr[0] in found for a in atoms):
            what = f"the state after update {update.state.name}{_shown(update.index)} is read: an "
            fail(value, f"{what}index of it is a number or one axis, with a factor and an offset")
        if not atoms:
            guards.append(Bound(add(at, mul(e, -1)), 0, 1))
            continue
        name, step = atoms[0].attr[0], linear(e)[1][atoms[0]]
        rest = add(e, mul(atoms[0], -step))
        steps = add(at, mul(rest, -1)) if step > 0 else add(rest, mul(at, -1))
        here = steps if abs(step) == 1 else floordiv(steps, abs(step), dim_ranges(dims))
        found[name] = here
        if here is not at or size != extents[name]:
            guards.append(Bound(here, 0, extents[name]))
        if abs(step) > 1:
            guards.append(Bound(mod(steps, abs(step), dim_ranges(dims)), 0, 1))
    index = tuple(found.get(a, num(0)) for a in value.axes)
    return Read(before, place), Read(value, index, tuple(guards))


def _shown(index: Sequence[Expr]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"
