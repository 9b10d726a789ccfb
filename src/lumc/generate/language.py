"""A bundle as a language model that keeps what it has seen of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.runtime.opened import Opened

Array = np.ndarray[Any, Any]


class Kept:
    """The entries ``prefill`` and ``decode`` of a bundle; of one for several texts the first of
    these. Raises E0618 where they are not there."""

    def __init__(self, bundle: Opened, threads: int = 1) -> None:
        self.bundle, self.threads = bundle, threads
        self.several = {"sequence": 0, "start": 0} if "sequence" in bundle.dims else {}
        for name in ("prefill", "decode")[: 1 if self.several else 2]:
            if name not in bundle.entries or not is_step(bundle, name):
                what = f"'{bundle.path}' is no language model with a context"
                fix = "lumc import MODEL --context 2048 -o model.lg, then compile model.lg"
                raise LumcError("E0618", what, fix=fix, exit=Exit.USAGE)
        self.context, self.rows = bundle.dims["p"].hi + 1, bundle.dims["s"].hi
        self.given = dict[str, int]()  # dims besides, of what was encoded

    @property
    def encodes(self) -> bool:
        """Whether a text is encoded, and another one follows it."""
        names = self.bundle.entries
        inputs = self.bundle.entry("encode").inputs if "encode" in names else ()
        return [t.name for t in inputs] == ["input_ids"] and "e" in self.bundle.dims

    def encode(self, ids: Sequence[int]) -> None:
        """Let what follows see this text. Raises E0615 for none, and one that is too long."""
        most = self.bundle.dims["e"].hi
        if not 0 < len(ids) <= most:
            what = f"a text of {len(ids)} tokens, and the model encodes 1 to {most}"
            raise LumcError("E0615", what, fix="a shorter prompt", exit=Exit.USAGE)
        self.bundle.run({"input_ids": np.asarray(ids, np.int64)}, "encode", self.threads)
        self.given = {"e": len(ids)}

    def step(self, ids: Sequence[int], first: int) -> Array:
        """The logits f32[words] after these tokens, which follow ``first`` others."""
        entry = "decode" if len(ids) == 1 and not self.several else "prefill"
        given = {"input_ids": np.asarray(ids, np.int64)}
        dims = {"p": first, **self.several, **self.given}
        logits = self.bundle.run(given, entry, self.threads, dims=dims)["logits"]
        return logits[-1] if logits.ndim == 2 else logits


def is_step(bundle: Opened, name: str) -> bool:
    """Does an entry take ids and give logits, behind ``p`` others?"""
    entry = bundle.entry(name)
    inputs, outputs = [t.name for t in entry.inputs], [t.name for t in entry.outputs]
    return inputs == ["input_ids"] and "logits" in outputs and {"p", "s"} <= set(bundle.dims)
