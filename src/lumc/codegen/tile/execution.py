"""How the tiles of a kernel run on a kind of machine: what lowering has to know of it."""

from __future__ import annotations

from typing import NamedTuple


class Execution(NamedTuple):
    """Facts of a kind of machine, a row of ``EXECUTION``."""

    in_order: bool  # one thread does a tile from its start to its end: bounds may vary on the way
    by_vectors: bool  # operands are read as vectors, copies lie in panels of register tiles
    in_memory: bool  # values of a tile lie in memory: results are summed, values replaced there
    several_tiles: bool  # a part does many tiles, and what they share once
    computed: bool  # values are kept in the dtype that they are computed in


EXECUTION = {
    "cpu": Execution(True, True, True, True, True),
    # the threads of a block share one tile, an element in the registers of one of them each
    "gpu": Execution(False, False, False, False, False),
}
