"""A model of a program and of what its inputs are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lumc.frontend.api.model import Model
from lumc.frontend.api.names import clean
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.lower import Lowering, Wrong, number
from lumc.frontend.aten.program import Program

Maker = Callable[[str], Any]


@dataclass(frozen=True)
class Leaf:
    """An input of a program: its name there, what it is called in the model, and what makes it
    under such a name. Inputs of the model are there ``always``, others if something reads them; a
    buffer that a run changes is made by ``state``."""

    name: str
    title: str
    value: Maker
    always: bool = False
    state: Maker | None = None


@dataclass
class Names:
    """Names of a model, each once."""

    taken: set[str]

    def free(self, title: str) -> str:
        """The name, or one like it that nothing has: none of nodes (t0, t1, ..) either."""
        name = clean(title)
        name += "_" * (name[:1] == "t" and name[1:].isdigit())
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def assemble(
    model: Model, program: Program, leaves: Sequence[Leaf], numbers: bool = True
) -> list[Any]:
    """Adds a program to a model whose dims are declared; gives its results: tensors, None where it
    has none, and numbers, unless these become outputs of the model too. Raises E0352 for what is
    not supported, Wrong."""
    lowering = Lowering(model, program)
    given, states, names = dict[str, Any](), dict[str, Tensor](), Names(set(model.dims))
    for leaf in leaves:
        model.origin = f"'{leaf.title}'"
        if leaf.state is not None and leaf.name in lowering.program.writes:
            given[leaf.name] = states[leaf.name] = leaf.state(names.free(leaf.title))
        elif leaf.always or leaf.name in lowering.wanted:
            given[leaf.name] = leaf.value(names.free(leaf.title))
    found, left = lowering.run(given)
    for name, state in states.items():
        value = left[name]
        if not isinstance(value, Tensor) or value.shape != state.shape:
            raise Wrong(f"buffer '{name}' is written with another shape")
        model.update(state, value.to(state.dtype))
    for title, value in found.items():
        model.origin = f"output '{title}'"
        if numbers and value is not None and not isinstance(value, Tensor):
            found[title] = value = number(model, value)
        if isinstance(value, Tensor):
            model.output(clean(title), value)
    return list(found.values())
