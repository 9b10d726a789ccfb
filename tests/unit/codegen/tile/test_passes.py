"""The passes on tile programs: which run, in which order, and who sees what they made."""

from dataclasses import replace

import lumc.codegen.tile.program as ir
from kernel_zoo import matmul, softmax
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.passes import PASSES
from lumc.graph.ops import DType
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


def test_bodies_are_rewritten_inner_ones_first_and_leaves_in_order() -> None:
    """A loop in which nothing is left is left out, and nothing that was there is changed."""
    x, y = (ir.reference(ir.Place(n, DType.F32, ()), ()) for n in "xy")
    one, two, three = (ir.Map(dst, (), {}, value) for dst, value in ((x, y), (y, x), (x, x)))
    inner = ir.Block(ir.Loop("j", 2, 8), [two])
    outer = ir.Block(ir.Loop("i", 2, 8), [one, inner])
    body: list[ir.Op] = [outer, three]
    seen = list[tuple[int, ir.Op | None]]()

    def change(ops: list[ir.Op], loop: ir.Op | None) -> list[ir.Op]:
        seen.append((len(ops), loop))
        return ops[::-1]

    assert ir.rewrite(body, change) == [three, replace(outer, body=[inner, one])]
    assert seen == [(1, inner), (2, outer), (2, None)] and body == [outer, three]
    order = list[ir.Op]()
    assert ir.rewrite_leaves(body, lambda op: order.append(op) or [op]) == body
    assert order == [one, two, three] == list(ir.leaves(body))
    left = ir.rewrite_leaves(body, lambda op: [] if op is two else [op, op])
    assert left == [replace(outer, body=[one, one]), three, three]
