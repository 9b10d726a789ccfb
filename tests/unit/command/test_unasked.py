"""What the default target leaves out of this machine is said, where a plan would gain by it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernel_zoo import I8, levels, matmul
from lumc.command.plan import _say_unasked
from lumc.kernel import machines
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel
from lumc.report.log import Log
from lumc.schedule.first import default_schedule

V4 = f"flags : {dict(machines._LEVELS)['x86-64-v4']} avx512_vnni"
LEVELS, FLOATS = levels(2, 32, 4, 32, I8), matmul(2, 32, 128)


@pytest.mark.parametrize(
    ("kernel", "name", "cpuinfo", "said"),
    [
        (LEVELS, "cpu:native", V4, "--target cpu:native+vnni"),
        (LEVELS, "cpu:native+vnni", V4, ""),
        (LEVELS, "cpu:native", V4.removesuffix("avx512_vnni"), ""),
        (FLOATS, "cpu:native", V4, ""),
    ],
)
def test_bytes_that_could_be_multiplied(
    kernel: Kernel, name: str, cpuinfo: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[str]()
    monkeypatch.setattr(machines, "_cpuinfo", lambda: cpuinfo)
    monkeypatch.setattr(Log, "__call__", lambda _, level, message: heard.append(message))
    k, target = normalize(kernel), resolve_target(name)
    chosen = SimpleNamespace(kernel=k, schedule=default_schedule(k, target))
    plan = SimpleNamespace(target=target, kernels={"k": chosen})
    _say_unasked(plan, Log())  # type: ignore[arg-type]
    assert len(heard) == bool(said) and all(said in each for each in heard)
