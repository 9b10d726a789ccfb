"""Hugging Face transformers on torch, in f32; of a .gguf the weights as f32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class Transformers:
    def __init__(self, file: str, threads: int, context: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        # never a pickle, never the net
        how = {"use_safetensors": True, "local_files_only": True, "dtype": torch.float32}
        path = Path(file)
        if path.is_file():
            how["gguf_file"], path = path.name, path.parent
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, **how).eval()

    def prompt(self, ids: list[int]) -> float:
        return self._run(ids, self._empty())

    def generate(self, ids: list[int], n: int) -> float:
        cache = self._empty()
        if ids:
            self._run(ids, cache)
        return sum(self._run([i], cache) for i in range(1, n + 1))

    def _empty(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def _run(self, ids: list[int], cache: Any) -> float:
        import torch

        given = torch.tensor([ids])
        start = time.perf_counter()
        with torch.inference_mode():
            self.model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start


engine = Transformers
