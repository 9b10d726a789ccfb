"""ONNX Runtime GenAI, on a folder that its model builder wrote."""

from __future__ import annotations

import time

import onnxruntime_genai as genai


class OnnxRuntime:
    def __init__(self, file: str, threads: int, context: int) -> None:
        config = genai.Config(file)
        config.clear_providers()  # what is left is the CPU
        self.model, self.context = genai.Model(config), context

    def prompt(self, ids: list[int]) -> float:
        return self._prompted(ids)[1]

    def generate(self, ids: list[int], n: int) -> float:
        text, _ = self._prompted(ids or [1])
        start = time.perf_counter()
        for _ in range(n):
            text.generate_next_token()
        return time.perf_counter() - start

    def _prompted(self, ids: list[int]) -> tuple[genai.Generator, float]:
        how = genai.GeneratorParams(self.model)
        how.set_search_options(max_length=self.context, do_sample=False)
        text = genai.Generator(self.model, how)
        start = time.perf_counter()
        text.append_tokens(ids)
        return text, time.perf_counter() - start


engine = OnnxRuntime
