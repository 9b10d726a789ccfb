"""Small searches over measured programs, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from kernels import CC, native
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.kernel.target import Speeds
from lumc.lab.lock import DeviceLock
from lumc.lab.process import Limits
from lumc.link.toolchain import Toolchain, find
from lumc.profile.choose import estimate
from lumc.profile.ledger import Ledger, Options
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Records, Setting, Trial
from lumc.profile.session import Session
from lumc.schedule.plan import KernelPlan, Plan
from lumc.search import search
from lumc.search.space import Space
from searching import weight
from zoo import build

SETTING = Setting("here", "gcc", 1)
BUCKETS = """lumc graph 1
dim s in 1..64 tune 1, 64
input x f32[s, 40]
input w f32[40, 33]
t f32[i:s, j:33, k:40] = mul x[i, k], w[k, j]
y f32[i:s, j:33] = sum k of t[i, j, k]
output y = y
"""


@cache
def tools() -> Toolchain:
    return find(CC, Path(os.environ["LUMC_OBJECTS"]))


def bench(seconds: float = 20.0, nbytes: int = 2 << 30) -> Bench:
    return Bench(native(), tools(), Limits(seconds, nbytes))


def product(g: Model) -> Tensor:
    return g.input("x", (12, 40)) @ weight(g, "w", 40, 33)


def two(g: Model) -> Tensor:
    y = g.input("x", (6, 20)) @ weight(g, "w", 20, 24)
    return (y - y.mean(-1, keepdim=True)).relu()


def space_of(write: Callable[[Model], Tensor]) -> Space:
    return search(build(write), native(), inside=True)


def kernel_of(write: Callable[[Model], Tensor]) -> KernelPlan:
    (kernel,) = estimate(space_of(write)).kernels.values()
    return kernel


def tuning(space: Space, folder: Path | None, **options: object) -> Session:
    wanted = Options(**{"budget_s": 300.0, "trials": 6, "fraction": 1.0, **options})  # type: ignore[arg-type]
    return Session(Ledger(space, wanted, Records(folder, SETTING)), bench)


class FakeBench:
    """Times are a function of the schedule; nothing is compiled."""

    def __init__(self, spoil: str = "") -> None:
        self.spoil, self.jobs, self.races = spoil, 0, 0
        self.lock = DeviceLock()

    machines = 1

    def us(self, job: Job) -> float:
        tiles = sum(job.schedule.tile.values()) % 97
        forms = sum(len(s.form) * 10 + s.mr + s.nv for s in job.schedule.stages)
        return 1000.0 + tiles + forms

    def measure(self, jobs: list[Job]) -> list[Trial]:
        self.jobs += len(jobs)
        if self.spoil:
            return [Trial(j.schedule, reason=self.spoil) for j in jobs]
        return [Trial(j.schedule, self.us(j), 10, 0.01) for j in jobs]

    def as_completed(self, jobs: list[Job]) -> Iterator[tuple[Job, Trial]]:
        return zip(jobs, self.measure(jobs), strict=True)

    def finals(self, jobs: list[Job], wait_s: float = 0.0) -> list[Trial]:
        return [Trial(j.schedule, self.us(j) + 0.5, 20, 0.0) for j in jobs]

    def race(self, plans: list[Plan], seconds: float, over: object) -> list[float]:
        """Whole runs in which every rival is faster than the plan of the winners."""
        self.races += 1
        return [1000.0 / (1 + 0.1 * i) for i in range(len(plans))]

    def speeds(self) -> Speeds:
        return Speeds(100.0, 200.0, 20.0)

    def close(self) -> None:
        pass


def fake(write: object, folder: Path | None, device: FakeBench, **options: object) -> Session:
    space = space_of(write)  # type: ignore[arg-type]
    wanted = Options(**{"budget_s": 60.0, **options})  # type: ignore[arg-type]
    ledger = Ledger(space, wanted, Records(folder, SETTING))
    return Session(ledger, lambda: device, clock=lambda: 0.0)  # type: ignore[arg-type, return-value]
