"""A worker for tests of the pool: it adds one, and some inputs end it, or hold it up."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lumc.errors import LumcError
from lumc.process import answers
from lumc.serve import worker
from lumc.serve.spec import EntrySpec, Port, Spec

ENDS, HANGS, WRONG = 666.0, 777.0, 888.0
Array = np.ndarray[Any, Any]


def serve(pipe: Any, paths: Mapping[str, str], *_: Any) -> None:
    """``paths`` are files; one that says "bad" cannot be opened."""
    add = float(np.prod([1.0, *(read(p) for p in paths.values())]))

    def describe() -> list[Spec]:
        if any(Path(p).read_text() == "bad" for p in paths.values()):
            raise LumcError("E0501", "it is bad")
        port = Port("x", "f32", (-1,), 8)
        return [Spec(n, {"main": EntrySpec("main", (port,), (port,), range(1, 9))}, (), False)
                for n in paths]  # fmt: skip

    def run(
        name: str,
        entry: str,
        dims: Mapping[str, int],
        batch: Sequence[tuple[Mapping[str, Array], tuple[str, ...]]],
    ) -> list[dict[str, Array]]:
        given = [inputs["x"] for inputs, _ in batch]
        every = np.concatenate(given)
        if ENDS in every:
            os._exit(9)
        if HANGS in every:
            time.sleep(60)
        if WRONG in every:
            raise LumcError("E0610", "it does not fit")
        pid = np.full(1, os.getpid())
        return [{"y": x + add, "pid": pid, "rows": every} for x in given]

    answers(pipe, partial(worker.answer, {"describe": describe, "run": run}))


def read(path: str) -> float:
    text = Path(path).read_text()
    return 1.0 if text == "bad" else float(text)
