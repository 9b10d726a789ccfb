"""Small searches over measured programs, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kernels import CC, native
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.lab.process import Limits
from lumc.link.toolchain import Toolchain, find
from lumc.profile.choose import estimate
from lumc.profile.finals import Options
from lumc.profile.measure import Bench
from lumc.profile.records import Records, Setting
from lumc.profile.tune import Tuning
from lumc.schedule.plan import KernelPlan
from lumc.search import search
from lumc.search.space import Space
from searching import weight
from zoo import build

SETTING = Setting("here", "gcc", 1)


@cache
def tools() -> Toolchain:
    return find(CC, Path(os.environ["LUMC_OBJECTS"]))


def bench(seconds: float = 20.0, nbytes: int = 2 << 30) -> Bench:
    return Bench(native(), tools(), Limits(seconds, nbytes))


def product(g: Model) -> Tensor:
    return g.input("x", (12, 40)) @ weight(g, "w", 40, 33)


def space_of(write: Callable[[Model], Tensor]) -> Space:
    return search(build(write), native(), inside=True)


def kernel_of(write: Callable[[Model], Tensor]) -> KernelPlan:
    (kernel,) = estimate(space_of(write)).kernels.values()
    return kernel


def tuning(space: Space, folder: Path | None, **options: object) -> Tuning:
    wanted = Options(**{"budget_s": 300.0, "trials": 6, "fraction": 1.0, **options})  # type: ignore[arg-type]
    return Tuning(space, wanted, Records(folder, SETTING), bench)
