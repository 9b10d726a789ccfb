"""Convolutions of images whose channels lie together (NHWC): what is fetched of them are whole
sectors, by the programs that are chosen; and right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dealing
import lumc.codegen.tile.program as ir
import mutating
from dealing import dealt
from gpu.ptx import module
from kernel_zoo import random_inputs
from kernels import assert_close
from lumc.codegen.gpu import copies
from lumc.codegen.gpu.counts import SECTOR
from lumc.codegen.gpu.program import Distributed, Nest, Node, Step, reads, steps_of
from lumc.frontend import Model
from lumc.graph.expr import Expr, index_value, num, substitute, subterms
from lumc.graph.graph import Graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.profile.choose import estimate
from lumc.schedule import first_blocks
from lumc.schedule.plan import KernelPlan
from lumc.schedule.schedule import Schedule
from lumc.search import search
from lumc.search.saturate import Limits

HOPPER = resolve_target("cuda:sm_90")
Array = np.ndarray[Any, Any]
MOST = 1.3  # sectors for each that what is read would fill


def graph(
    size: int, channels: int, out: int, k: int, stride: int, batch: int = 1, kind: str = "f16"
) -> Graph:
    """Of an image [batch, size, size, channels] by windows of k x k, borders of half a window."""
    g = Model()
    x, w = (
        g.input("x", (batch, size, size, channels), kind),
        g.input("w", (out, k, k, channels), kind),
    )
    y = x.permute(0, 3, 1, 2).conv2d(w.permute(0, 3, 1, 2), stride=stride, padding=k // 2)
    g.output("y", y.permute(0, 2, 3, 1))
    return g.graph()


def chosen(g: Graph, target: Target = HOPPER) -> list[KernelPlan]:
    plan = estimate(search(g, target, Limits()))
    return list(plan.kernels.values())


# ---- what a block fetches

At = dict[Expr, Expr]


def begun(loop: ir.Loop, start: int) -> At:
    """Where a loop is."""
    size = min(loop.tile, loop.extent - start)
    return {ir.block_start(loop.axis): num(start), ir.block_size(loop.axis): num(size)}


def rounds(nodes: Sequence[Node], at: At) -> Iterator[tuple[Step, At]]:
    """Every step in every round of the loops around it, of the middle block."""
    for node in nodes:
        if isinstance(node, Step):
            yield node, at
        elif isinstance(node, Nest) and isinstance(node.op, ir.Block):
            for start in range(0, node.op.loop.extent, node.op.loop.tile):
                yield from rounds(node.body, at | begun(node.op.loop, start))
        elif isinstance(node, Nest):
            assert isinstance(node.op, ir.Par)
            for loop in node.op.loops:
                at = at | begun(loop, loop.count // 2 * loop.tile)
            yield from rounds(node.body, at)


def reached(step: Step, ref: Expr, d: Distributed, at: At) -> list[set[int]]:
    """The elements of a buffer that the instructions of warps load."""
    op, points = step.op, step.points.on(ref.free)
    assert not isinstance(op, ir.Contract)
    width = step.vector if step.moves or ref in step.wide else 1
    digits = [r for r in points.registers if width == 1 or r.axis != step.along or r.stride > 1]
    sizes = [r.extent for r in digits]
    register = np.indices(sizes).reshape(len(sizes), prod(sizes), 1)
    thread = np.arange(d.threads.count)
    where, inside = dict[str, Array](), np.ones((prod(sizes), d.threads.count), bool)
    for a in sorted(ref.free & op.ranges.keys()):
        lo, n = (int(index_value(substitute(e, at), {})) for e in (op.ranges[a].lo, op.ranges[a].n))
        own = sum((thread // t.div % t.mod * t.stride for t in points.threads if t.axis == a), 0)
        more = sum((i * r.stride for r, i in zip(digits, register, strict=True) if r.axis == a), 0)
        where[a] = lo + own + more
        inside &= where[a] < lo + n
    terms = [op.term] if isinstance(op, ir.Map) else [o.term for o in op.outputs]
    (term,) = (t for t in terms if ref in subterms(t))
    while term.kind == "guard":
        (least, end), (i, term) = term.attr, term.kids
        found = index_value(substitute(i, at), where)
        inside &= (found >= least) & (found < end)
    offset = d.program.places[ref.attr[0]].offset(ref.kids)
    first = np.broadcast_to(index_value(substitute(offset, at), where), inside.shape)
    warps = range(0, d.threads.count, d.warp)
    each = (
        (first[i, w : w + d.warp], inside[i, w : w + d.warp])
        for i in range(len(first))
        for w in warps
    )
    return [{int(e) + j for e in found[here] for j in range(width)} for found, here in each]


def wasted(p: KernelPlan, image: str) -> float:
    """Sectors that the middle block fetches of the image, for each that would hold what it reads.
    What a step loads through the first cache comes once, copies ahead go by it."""
    d, fetched, needed = dealt(p.kernel, p.schedule, HOPPER), 0.0, 0.0
    for step, at in rounds(d.body, {}):
        for ref in (e for e in reads(step) if e.attr[0] == image):
            nbytes = d.program.places[image].dtype.nbytes
            each = reached(step, ref, d, at)
            sectors = [{e * nbytes // SECTOR for e in found} for found in each]
            fetched += sum(map(len, sectors)) if step.ahead else len(set().union(*sectors))
            needed += len(set().union(*each)) * nbytes / SECTOR
    return fetched / needed


IMAGES = {  # size, channels, results, window, stride, images
    "3x3": (56, 64, 64, 3, 1),
    "1x1": (28, 64, 256, 1, 1),
    "3x3, every second": (28, 128, 128, 3, 2),
    "1x1, every second": (28, 256, 128, 1, 2),
    "100 channels": (28, 100, 96, 3, 1),
    "33 channels": (30, 33, 48, 3, 1),
    "33 channels, 1x1": (30, 33, 48, 1, 1),
    "three channels": (112, 3, 64, 7, 2),
    "several": (14, 256, 256, 3, 1, 8),
}


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("name", IMAGES)
def test_whole_sectors_are_fetched(name: str, kind: str) -> None:
    """Of images and of filters, by the kernel that multiplies."""
    p = max(chosen(graph(*IMAGES[name], kind=kind)), key=lambda p: p.bound_us)
    read = [b.name for b in p.kernel.buffers if b.name not in p.kernel.stored]
    assert len(read) == 2
    assert {b: w for b in read if (w := wasted(p, b)) > MOST} == {}


def test_most_are_copied_at_once() -> None:
    """16 bytes by a thread, also where windows reach beyond the border."""
    for kind in ("f16", "f32"):
        p = max(chosen(graph(*IMAGES["3x3"], kind=kind)), key=lambda p: p.bound_us)
        steps = [s for s in steps_of(dealt(p.kernel, p.schedule, HOPPER).body) if s.moves]
        assert [s.vector * (2 if kind == "f16" else 4) for s in steps] == [16, 16]


MUTANTS = {
    "steps as they are": ("steps *= 2", "break"),
    "rows at any distance": ("rows in kernel.axes, -apart", "rows in kernel.axes, apart"),
    "runs that begin in a sector": ("nbytes - gcd(SECTOR, nbytes, *strides)", "nbytes - SECTOR"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_wastes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(first_blocks, *MUTANTS[name], monkeypatch)
    with pytest.raises(AssertionError):
        for image in ("3x3", "33 channels", "three channels"):
            for kind in ("f16", "f32"):
                test_whole_sectors_are_fetched(image, kind)


# ---- what is computed

SMALL = {  # borders that whole vectors lie beyond, and odd channels
    "3x3": (9, 32, 24, 3, 1),
    "3x3, every second": (11, 16, 16, 3, 2),
    "5x5": (7, 8, 16, 5, 1),
    "five channels": (9, 5, 16, 3, 1),
    "three channels": (17, 3, 16, 7, 2),
}


def cases() -> list[tuple[Kernel, Schedule]]:
    every = (graph(*image, kind=kind) for image in SMALL.values() for kind in ("f16", "f32"))
    return [(p.kernel, p.schedule) for g in every for p in chosen(g)]


def check(found: list[tuple[Kernel, Schedule]], folder: Path, interpreted: bool = False) -> None:
    """On the emulator with its checker, or on the interpreter of PTX."""
    programs = [dealt(*c, HOPPER) for c in found]
    if interpreted:
        text, grids = dealing.together(programs)
        built = module.build(text, "compute_90a")
    else:
        built, grids = dealing.build(programs, folder, checked=True)
    for i, (k, s) in enumerate(found):
        inputs = random_inputs(k, i)
        got = dealing.run(built, f"k{i}", k, grids[i], inputs)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_results(every: bool, tmp_path: Path) -> None:
    check(cases()[: None if every else 3], tmp_path)


@pytest.mark.skipif(not module.compiler(), reason=module.WHY)
def test_machine_code(tmp_path: Path) -> None:
    check(cases()[:4], tmp_path, interpreted=True)


GUARDS = {
    "no border above": ('f"{index} >= {lo}", ', ""),
    "no border below": (', f"{index} < {hi}"', ""),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_mutant_of_guards_dies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(copies, *GUARDS[name], monkeypatch)
    with pytest.raises(AssertionError):
        check(cases()[:1], tmp_path)
