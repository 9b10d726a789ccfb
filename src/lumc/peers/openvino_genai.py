"""OpenVINO GenAI. It generates whole texts and says afterwards how long each token took."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


class OpenVino:
    def __init__(self, file: str, threads: int, context: int) -> None:
        how = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = genai.LLMPipeline(file, "CPU", **how)

    def prompt(self, ids: list[int]) -> float:
        return float(self._times(ids, 1).get_ttft().mean) / 1e3

    def generate(self, ids: list[int], n: int) -> float:
        taken = self._times(ids or [1], n + 1).raw_metrics.m_durations  # us, without the first
        if len(taken) < n:
            raise RuntimeError(f"{len(taken)} tokens of {n}")
        return float(sum(taken[-n:])) / 1e6

    def _times(self, ids: list[int], n: int) -> Any:
        how = genai.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False)
        given = np.array([ids], np.int64)
        tokens = genai.TokenizedInputs(openvino.Tensor(given), openvino.Tensor(given * 0 + 1))
        return self.pipeline.generate(tokens, how).perf_metrics


engine = OpenVino
