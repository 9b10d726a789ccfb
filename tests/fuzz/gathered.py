"""A short search whose compilers take many candidates at once, and do not optimise them much: which
is fastest is not asked here, and each start of a compiler takes longer than a candidate does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lumc.errors import LumcError
from lumc.kernel.target import Speeds
from lumc.lab import whole as whole_runs
from lumc.link.toolchain import KERNEL_FLAGS, compile_objects, link_objects
from lumc.profile import finals, measure, timing, walk
from lumc.profile import whole as whole_plans
from lumc.profile.measure import Bench

SYMBOL = "lumc_candidate"  # of each, until it has one of its own
HEAD = 2  # lines that all sources begin with
_compile, _speeds, _loaded = Bench._compile, Bench.speeds, measure._loaded
_known: dict[str, Speeds] = {}  # by target


@contextmanager
def hasty() -> Iterator[None]:
    """Samples are few and short, and few plans are raced."""
    with (
        patch.multiple(timing, PATIENCE=(1, 1), SAMPLE_US=1.0, FINAL_US=100.0),
        patch.multiple(whole_plans, FINAL_US=100.0, HEAVY=2, RIVALS=1),
        patch.object(walk, "PRICED", 4),
        patch.object(whole_runs, "ROUNDS", 1),
        patch.object(finals, "WAIT", 0.0),
        patch.multiple(measure, SYMBOL=SYMBOL, _loaded=loaded),
        patch.multiple(Bench, _compile=together, speeds=speeds),
    ):
        yield


def speeds(bench: Bench) -> Speeds:
    """Of this machine, measured once."""
    name = bench.target.name
    if name not in _known:
        _known[name] = _speeds(bench)
    return _known[name]


def loaded(program: Any, schedule: Any, path: str) -> Any:
    return _loaded(program, schedule, path)._replace(symbol=symbol(Path(path).stem))


def symbol(name: str) -> str:
    """Of the candidate whose files have this name."""
    return f"c_{name}"


def together(bench: Bench, made: Sequence[Any]) -> dict[str, str]:
    """Candidates in one file, which is known by the names of all; where a compiler refuses it, one
    by one."""
    todo = list(dict.fromkeys(m.name for m in made if m.name not in bench._objects))
    for name in todo:
        path = bench.folder / f"{name}.c"
        own = path.read_text().replace(SYMBOL, symbol(name))
        path.write_text(own.replace("micro_", f"{symbol(name)}_micro_"))
    if len(todo) > 1:
        unit, folder = f"all_{todo[0]}", bench.folder
        lines = [(folder / f"{name}.c").read_text().splitlines(keepends=True) for name in todo]
        texts = ["".join(own[HEAD:]) for own in lines]
        (folder / f"{unit}.c").write_text("".join([*lines[0][:HEAD], *texts]))
        try:
            flags = (*KERNEL_FLAGS, *bench.target.flags, "-O1")
            compile_objects(bench.tools, folder, [f"{unit}.c"], flags)
            ends = ("-shared", "-lm")
            link_objects(bench.tools, folder, [f"{unit}.o"], f"{unit}.so", ends)
        except LumcError:
            return _compile(bench, made)
        for name in todo:
            os.link(folder / f"{unit}.so", folder / f"{name}.so")
        bench._objects |= dict.fromkeys(todo)
    return _compile(bench, made)
