"""What is in the gallery: networks that torch exports, and files that packages ship."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.case import SEED, Case, Ids

if TYPE_CHECKING:
    from torch import nn

NETWORKS: dict[str, Case] = {}
Draw = Callable[[np.random.Generator], np.ndarray]


def network(*inputs: tuple[int, ...] | Ids) -> Callable[[Callable[[], nn.Module]], Any]:
    """A network with random weights: its function gives the module."""

    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        if make.__name__ in NETWORKS:
            raise ValueError(f"two networks are named {make.__name__}")
        NETWORKS[make.__name__] = Case(make.__name__, make, inputs)
        return make

    return register


@dataclass(frozen=True)
class Shipped:
    """An ONNX file in a package: ``inputs`` draw what it reads, in the order of its inputs. Those
    of ``values`` are known at import, as ``lumc import --value`` gives them."""

    name: str
    package: str  # as pip knows it
    file: str  # from the folder of the module on
    inputs: dict[str, Draw]
    values: tuple[str, ...] = field(default=())
    rounds: bool = False  # to 8 bits while it runs: results follow from how f32 rounds

    def path(self) -> Path | None:
        """Where the file lies; None if the package is not installed."""
        module, _, rest = self.file.partition("/")
        found = find_spec(module)
        places = found.submodule_search_locations if found else None
        files = [Path(p) / rest for p in places or ()]
        return next((f for f in files if f.is_file()), None)

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(SEED)
        return {name: np.asarray(draw(rng)) for name, draw in self.inputs.items()}


def normal(*shape: int) -> Draw:
    return lambda rng: rng.standard_normal(shape, dtype=np.float32)


def unit(*shape: int) -> Draw:
    """As pictures with values from 0 to 1 are."""
    return lambda rng: rng.random(shape, dtype=np.float32)


def zeros(*shape: int) -> Draw:
    return lambda rng: np.zeros(shape, np.float32)


def whole(below: int, *shape: int, dtype: Any = np.int64) -> Draw:
    return lambda rng: rng.integers(0, below, shape).astype(dtype)


def number(value: int) -> Draw:
    return lambda rng: np.array(value, np.int64)


def networks() -> dict[str, Case]:
    """Those of the zoo and those that are only here. Exits where torch or transformers are
    missing."""
    from zoo.case import cases

    zoo = cases()["networks"]
    from gallery import language, vision

    assert language and vision  # what they define registers itself
    return {**zoo, **NETWORKS}
