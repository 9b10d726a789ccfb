"""A process that runs candidates, seen from outside: asked, timed out, killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from lumc.lab.worker import serve
from lumc.link.toolchain import RUNNER_FLAGS, Toolchain, compile_objects, link_objects
from lumc.process import CRASH, Lost, Process

MEMORY = "memory: more than a measurement may take"  # why there is no answer


@dataclass(frozen=True)
class Limits:
    """Of the worker process: seconds of one answer, bytes beyond what an empty one needs (0: as
    many as it likes, for drivers that reserve addresses by the terabyte)."""

    seconds: float = 20.0
    nbytes: int = 6 << 30


class Candidates(Process):
    """A worker, made there by ``make(*arguments)``, and the kernels that it knows."""

    def __init__(self, limits: Limits, make: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(serve, limits.nbytes, make, *arguments)
        self.known: list[str] = []

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        """The answer; raises Lost when there is none, or an exception instead."""
        fine, answer = super().ask(question, seconds)
        if not fine:
            raise Lost(MEMORY if answer == "memory" else f"{CRASH}: {answer}")
        return answer


def build_timer(tools: Toolchain, folder: Path) -> str:
    """The shared object that runs and times: the pool of the bundle's runner, and timer.c."""
    runner = files("lumc.link") / "runner"
    sources = [runner / n for n in ("glibc.h", "internal.h", "lumc.h", "pool.c")]
    for source in (*sources, files("lumc.lab") / "timer.c"):
        (folder / source.name).write_bytes(source.read_bytes())
    objects = compile_objects(tools, folder, ["pool.c", "timer.c"], RUNNER_FLAGS)
    link_objects(tools, folder, objects, "timer.so", ("-shared", "-pthread"))
    return str(folder / "timer.so")
