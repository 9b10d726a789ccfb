"""What a GPU is told to launch."""

from __future__ import annotations

from dataclasses import dataclass

from lumc.codegen.tile.packing import Size
from lumc.schedule.schedule import Positive


@dataclass(frozen=True)
class Grid:
    """How a GPU launches a kernel."""

    blocks: Positive
    threads: Positive  # of a block
    shared_bytes: Size = 0  # of a block
