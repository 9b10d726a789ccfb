"""llama.cpp, through the C functions that llama-cpp-python brings."""

from __future__ import annotations

import time

import llama_cpp as native

BATCH = 512  # tokens that are computed together, llama.cpp's own default


class LlamaCpp:
    def __init__(self, file: str, threads: int, context: int) -> None:
        native.llama_backend_init()
        self.quiet = native.llama_log_callback(lambda level, text, data: None)
        native.llama_log_set(self.quiet, None)
        how = native.llama_model_default_params()
        how.n_gpu_layers = 0
        self.model = native.llama_model_load_from_file(file.encode(), how)
        if not self.model:
            raise ValueError(f"cannot load {file}")
        run = native.llama_context_default_params()
        run.n_ctx, run.n_batch, run.n_ubatch = context, context, BATCH
        run.n_threads = run.n_threads_batch = threads
        self.context = native.llama_init_from_model(self.model, run)
        if not self.context:
            raise ValueError(f"no memory for {context} tokens")
        self.cache = native.llama_get_memory(self.context)

    def prompt(self, ids: list[int]) -> float:
        native.llama_memory_clear(self.cache, True)
        return self._decode(ids)

    def generate(self, ids: list[int], n: int) -> float:
        native.llama_memory_clear(self.cache, True)
        if ids:
            self._decode(ids)
        return sum(self._decode([i]) for i in range(1, n + 1))

    def _decode(self, ids: list[int]) -> float:
        tokens = (native.llama_token * len(ids))(*ids)
        start = time.perf_counter()
        code = native.llama_decode(self.context, native.llama_batch_get_one(tokens, len(ids)))
        native.llama_synchronize(self.context)
        taken = time.perf_counter() - start
        if code:
            raise RuntimeError(f"llama_decode: {code}")
        return taken


engine = LlamaCpp
