"""A bundle of lumc's, beside the others."""

from __future__ import annotations

import time

from lumc.generate.language import Kept
from lumc.generate.session import Session
from lumc.runtime.choose import open_bundle


class Lumc:
    def __init__(self, file: str, threads: int, context: int) -> None:
        self.model = Kept(open_bundle(file, say=lambda line: None), threads)

    def prompt(self, ids: list[int]) -> float:
        start = time.perf_counter()
        Session(self.model).read(ids)
        return time.perf_counter() - start

    def generate(self, ids: list[int], n: int) -> float:
        if ids:
            Session(self.model).read(ids)
        start = time.perf_counter()
        for i in range(n):
            self.model.step([i + 1], len(ids) + i)
        return time.perf_counter() - start


engine = Lumc
