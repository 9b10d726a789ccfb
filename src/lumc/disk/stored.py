"""A tensor in a file of weights, whatever the format of the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType


@dataclass(frozen=True)
class Stored:
    """What a tensor is and where its bytes lie."""

    key: str
    dtype: DType | None  # None: not one of lumc's
    shape: tuple[int, ...]
    start: int  # of its bytes in the file
    end: int
    layout: str = ""  # of its blocks, where it has no dtype: of LAYOUTS, or another name

    def __str__(self) -> str:
        return f"{self.dtype or self.layout or 'another dtype'}{list(self.shape)}"


def unusable(code: str, what: str, path: Path | str) -> LumcError:
    """The error of a file of weights that cannot be used."""
    fix = "import the model again, or put the original file back"
    return LumcError(code, what, where=str(path), fix=fix, exit=Exit.CORRUPT)
