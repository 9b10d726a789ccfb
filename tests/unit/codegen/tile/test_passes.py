"""The passes on tile programs: which run, in which order, and who sees what they made."""

from dataclasses import replace

import lumc.codegen.tile.program as ir
from kernel_zoo import matmul, softmax
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.passes import PASSES
from lumc.kernel.machines import resolve_target
from lumc.profile.price import scheduled
from lumc.schedule.first import default_schedule

TARGET = resolve_target("cpu:x86-64-v4")
NAMES = [step.name for step in PASSES]


def seen(kernel, schedule, target) -> list[tuple[str, ir.Program]]:
    """What a watcher is shown."""
    out: list[tuple[str, ir.Program]] = []
    program = lower(kernel, schedule, target, lambda name, p: out.append((name, p)))
    assert out[-1][1] is program
    return out


def test_every_pass_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES) and "lower" not in NAMES


def test_passes_run_in_their_order_and_are_watched() -> None:
    k = softmax(64, 256)
    default = default_schedule(k, TARGET)
    rows = [name for name, _ in seen(k, replace(default, skew=True, prefetch=True), TARGET)]
    assert rows == ["lower", *NAMES]
    plain = [name for name, _ in seen(k, replace(default, skew=False, prefetch=False), TARGET)]
    assert plain == [n for n in rows if n not in ("skew rows", "look ahead")]
    apart = [name for name, _ in seen(k, replace(default, fuse_rows=False), TARGET)]
    assert not {"fuse rows", "fold"} & {*apart}


def test_a_gpu_gets_what_lowering_writes_without_what_nobody_reads() -> None:
    target, k = resolve_target("cuda:sm_90"), matmul(64, 96, 64)
    schedule, _ = scheduled(k, target)
    assert [name for name, _ in seen(k, schedule, target)] == ["lower", "drop unread"]


def test_a_pass_leaves_the_program_before_it_as_it_was() -> None:
    k = softmax(64, 256)
    shown = []
    lower(k, default_schedule(k, TARGET), TARGET, lambda _, p: shown.append((p, repr(p))))
    assert all(repr(p) == text for p, text in shown)
