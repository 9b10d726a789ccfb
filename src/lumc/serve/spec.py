"""What is known of a model outside of the process that holds it: plain data, as it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.generate.sampling import Sampling

Array = np.ndarray[Any, Any]
Text = str | Sequence[int]  # as letters, or as ids of tokens
EMBEDS, WRITES = "embeds", "writes"


@dataclass(frozen=True)
class Port:
    """An input or an output: ``shape`` has -1 where an extent is one of the run; ``most`` are the
    elements of the greatest one."""

    name: str
    dtype: str  # as lumc writes it: f32
    shape: tuple[int, ...]
    most: int


@dataclass(frozen=True)
class EntrySpec:
    """An entry. Its ``rows`` are the numbers of rows that one run may have, where rows do not see
    one another; none where requests cannot share a run."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    rows: range = range(0)


@dataclass(frozen=True)
class Spec:
    """A model: its entries, the first one first, and the dims that runs choose."""

    name: str
    entries: Mapping[str, EntrySpec]
    dims: tuple[str, ...]
    texts: str = ""  # what it does with them: EMBEDS, WRITES, or ""

    def entry(self, name: str = "") -> EntrySpec:
        """An entry, by default the first. Raises E0110."""
        name = name or next(iter(self.entries))
        if name not in self.entries:
            fix = f"one of: {', '.join(self.entries)}"
            raise LumcError("E0110", f"no entry '{name}'", fix=fix, exit=Exit.USAGE)
        return self.entries[name]


@dataclass(frozen=True)
class Query:
    """One run that is asked for: arrays by the names of inputs, dims that no shape tells, and the
    outputs that are wanted, all if none is named."""

    model: str
    entry: str
    inputs: Mapping[str, Array]
    dims: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sentences:
    """Texts that become vectors; those that are too long are cut if ``truncate``, else refused."""

    model: str
    texts: tuple[Text, ...]
    truncate: bool = False


@dataclass(frozen=True)
class Prompt:
    """A text, or the messages of a conversation, that goes on."""

    model: str
    text: Text
    messages: tuple[Mapping[str, str], ...]
    sampling: Sampling
    count: int  # tokens at most; 0: as many as there is room for
    stops: tuple[str, ...] = ()


def stamp(path: Path) -> tuple[int, ...]:
    """Changes when another bundle is at a path; () where none is. A bundle is never changed, but
    a folder or a link may be moved in its place."""
    try:
        at = (path / "manifest.json" if path.is_dir() else path).stat()
    except OSError:
        return ()
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns
