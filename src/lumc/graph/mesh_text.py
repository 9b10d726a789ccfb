"""The words of the ``.lg`` form that tell of a mesh: its axes, parts of tensors, collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lumc.graph.collective import KINDS, Collective, Part
from lumc.graph.lexer import Lines
from lumc.graph.ops import Op


class MeshLines(Lines):
    """Reads what is said of the mesh, whose axes it knows with their ranks."""

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text, where)
        self.mesh: dict[str, int] = {}

    def mesh_line(self, declare: Callable[[str, int], None], late: bool) -> None:
        """``mesh NAME RANKS``"""
        self.expect("mesh")
        if late:
            self.fail("the mesh stands before the tensors", "E0303", self.last)
        name = self.name()
        if name in self.mesh:
            self.fail(f"the mesh has two axes '{name}'", "E0303", self.last)
        declare(name, self.integer())

    def along(self) -> tuple[str, int]:
        """``by NAME``: an axis of the mesh, and its ranks."""
        self.expect("by")
        name = self.name()
        if name not in self.mesh:
            known = ", ".join(self.mesh) or "none: write 'mesh NAME RANKS' above"
            self.fail(f"the mesh has no axis '{name}'", "E0303", self.last, f"its axes: {known}")
        return name, self.mesh[name]

    def parts(self) -> tuple[Part, ...]:
        """``[part DIM by NAME, ..]``"""
        out = list[Part]()
        while self.accept("," if out else "part"):
            dim = self.integer()
            out.append(Part(dim, *self.along()))
        return tuple(out)

    def words_of(self, axes: Sequence[str]) -> Collective:
        """``COLLECTIVE [sum|max] [split AXIS] [concat AXIS] by NAME of``"""
        self.at += 1
        kind, op = KINDS[self.last.text], None
        if kind.reduces:
            self.take("sum or max", self.peek().text in ("sum", "max"))
            op = Op(self.last.text)
        split = self._axis("split", axes) if kind.splits else None
        concat = self._axis("concat", axes) if kind.joins else None
        mesh = self.along()
        self.expect("of")
        return Collective(kind, *mesh, op, split, concat)

    def _axis(self, word: str, axes: Sequence[str]) -> int:
        self.expect(word)
        name = self.name()
        if name not in axes:
            self.fail(f"no axis '{name}'", "E0303", self.last, f"known here: {', '.join(axes)}")
        return axes.index(name)
