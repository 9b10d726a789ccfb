"""The words of the ``.lg`` form that tell of a mesh: its axes, parts of tensors, collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lumc.graph.builder import Builder
from lumc.graph.collective import KINDS, Collective, Kind, Part, Stage
from lumc.graph.lexer import Lines
from lumc.graph.ops import Op

Mesh = Mapping[str, int]  # axes with their ranks


def mesh_line(lines: Lines, builder: Builder, late: bool) -> None:
    """``mesh NAME RANKS [in time]``, which is not to come too ``late``. Raises E0301, E0302 (cannot
    be read), E0303 (stands too late, or a name twice) and E0101 (too many axes or ranks)."""
    lines.expect("mesh")
    if late:
        lines.fail("the mesh stands before the tensors", "E0303", lines.last)
    name = lines.name()
    if name in builder.mesh:
        lines.fail(f"the mesh has two axes '{name}'", "E0303", lines.last)
    ranks, in_time = lines.integer(), lines.accept("in")
    if in_time:
        lines.expect("time")
    builder.mesh_axis(name, ranks, in_time)


def along(lines: Lines, mesh: Mesh) -> tuple[str, int]:
    """``by NAME``: an axis of the mesh, and its ranks. Raises E0301, E0303 (no such axis)."""
    lines.expect("by")
    name = lines.name()
    if name not in mesh:
        known = ", ".join(mesh) or "none: write 'mesh NAME RANKS' above"
        lines.fail(f"the mesh has no axis '{name}'", "E0303", lines.last, f"its axes: {known}")
    return name, mesh[name]


def parts(lines: Lines, mesh: Mesh) -> tuple[Part, ...]:
    """``[part DIM by NAME, ..]``. Raises E0301, E0302, E0303 (no such axis)."""
    out = list[Part]()
    while lines.accept("," if out else "part"):
        dim = lines.integer()
        out.append(Part(dim, *along(lines, mesh)))
    return tuple(out)


def stage(lines: Lines, mesh: Mesh) -> Stage | None:
    """``[on STAGE by NAME]``. Raises E0301, E0302, E0303 (no such axis)."""
    if not lines.accept("on"):
        return None
    at = lines.integer()
    return Stage(at, *along(lines, mesh))


def words_of(lines: Lines, mesh: Mesh, axes: Sequence[str]) -> Collective:
    """``COLLECTIVE [sum|max] [split AXIS] [concat AXIS] by NAME of``, ``send STAGE to STAGE by NAME
    of`` or ``broadcast STAGE by NAME of``. Raises E0301, E0302 (a number), E0303 (no such axis of
    the node or the mesh)."""
    lines.at += 1
    kind, op = KINDS[lines.last.text], None
    if kind.reduces:
        lines.take("sum or max", lines.peek().text in ("sum", "max"))
        op = Op(lines.last.text)
    split = _axis(lines, "split", axes) if kind.splits else None
    concat = _axis(lines, "concat", axes) if kind.joins else None
    source = lines.integer() if kind.leaves else None
    if kind is Kind.SEND:
        lines.expect("to")
    target = lines.integer() if kind is Kind.SEND else None
    name, ranks = along(lines, mesh)
    lines.expect("of")
    return Collective(kind, name, ranks, op, split, concat, source, target)


def _axis(lines: Lines, word: str, axes: Sequence[str]) -> int:
    lines.expect(word)
    name = lines.name()
    if name not in axes:
        lines.fail(f"no axis '{name}'", "E0303", lines.last, f"known here: {', '.join(axes)}")
    return axes.index(name)
