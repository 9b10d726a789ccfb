"""Other engines that generate text, for ``bench --llm``: which there are, and a process for each.

A peer is what pip installed beside lumc; each has a file here. It works on token ids alone, so
tokenizers play no part, and it says how long what it was asked for took, without its start-up.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Protocol

from lumc import __version__
from lumc.process import answers

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Engine(Protocol):
    """A model that is loaded. Times are in seconds and belong to the part that is measured."""

    def prompt(self, ids: list[int]) -> float:
        """How long these tokens take, the first of a text, with the logits of the last one."""

    def generate(self, ids: list[int], n: int) -> float:
        """How long ``n`` more tokens take, one after the other, once these are there."""


# name on the command line: module here, package whose version is told, what file it reads
PEERS = {
    "lumc": ("lumc", "lumc", "a bundle"),
    "llama.cpp": ("llama_cpp", "llama-cpp-python", "a .gguf"),
    "transformers": ("transformers", "transformers", "a .gguf or a folder"),
    "openvino-genai": ("openvino_genai", "openvino-genai", "a .gguf or a folder of its own"),
    "onnxruntime-genai": ("onnxruntime_genai", "onnxruntime-genai", "a folder of its own"),
}


def version(peer: str) -> str:
    """Of the package that is installed; empty if none is."""
    if peer == "lumc":
        return __version__
    try:
        return metadata.version(PEERS[peer][1])
    except metadata.PackageNotFoundError:
        return ""


def serve(pipe: Connection, peer: str, file: str, threads: int, context: int) -> None:
    """The process of a peer. Questions are a method of the engine and its arguments, answers the
    seconds that it took, or a text that says what went wrong."""
    from lumc.peers.pinning import pin

    pin(threads)
    opened: list[Engine] = []

    def answer(method: str, *arguments: Any) -> float | str:
        try:
            if not opened:
                make: Callable[..., Engine] = import_module(f"lumc.peers.{PEERS[peer][0]}").engine
                opened.append(make(file, threads, context))
            return float(getattr(opened[0], method)(*arguments)) if method else 0.0
        except Exception as e:  # whatever a peer raises is its result
            return f"{type(e).__name__}: {e}"

    answers(pipe, answer)
