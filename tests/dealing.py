"""Kernels on the threads of a GPU in tests: random schedules, 16-bit versions, runs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

import emulator
from drawing import lawful
from kernel_zoo import FAMILIES
from kernels import aligned
from lumc.bundle.packing import pack
from lumc.codegen.generate import DIALECTS
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.program import Combine, Distributed, Nest, Node, Sync, steps_of
from lumc.codegen.gpu.words import words_of
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Contract
from lumc.errors import LumcError
from lumc.graph.expr import Expr, bound_axes, make, rebuild
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.applies import shared_prefix
from lumc.schedule.operands import HALF, pairs
from lumc.schedule.schedule import Schedule, Stage, Threads
from lumc.schedule.staging import staging_modes


@cache
def cuda() -> Target:
    return resolve_target("cuda:sm_90")


def dealt(kernel: Kernel, schedule: Schedule, target: Target | None = None) -> Distributed:
    return distribute(lower(kernel, schedule, target or cuda()), schedule.threads)


def refusal(kernel: Kernel, schedule: Schedule, target: Target | None = None) -> str:
    """Why a schedule is refused, "" if it is not."""
    try:
        dealt(kernel, schedule, target)
    except LumcError as e:
        assert e.code == "E0411"
        return e.what
    return ""


def schedule(
    kernel: Kernel,
    tile: Mapping[str, int],
    stages: Sequence[Stage] = (),
    parallel: int | None = None,
    **threads: int,
) -> Schedule:
    """All output loops are dealt to the blocks, unless ``parallel`` says how many."""
    axes = normalize(kernel).axes
    par = shared_prefix(normalize(kernel), axes) if parallel is None else parallel
    t = Threads(**{"count": 128, **threads})
    return Schedule(axes, par, tile, tuple(stages), fuse_rows=False, threads=t)


def flash(
    k: Kernel, grid: tuple[int, int], q: int, j: int, fragment: str = "mma", **threads: int
) -> Schedule:
    """Attention in tiles of q rows and j steps, every result whole in d."""
    stages = []
    for s in normalize(k).stages:
        if s.kind == "red":
            p = Stage("contract", "q", "j", stage_a="hoist", stage_b="inner", place_a="register")
        elif "d" in s.free:
            p = Stage("contract", "q", "d", stage_b="inner")
        else:
            stages.append(Stage())
            continue
        stages.append(replace(p, fragment=fragment, grid=grid))
    return schedule(k, {"h": 1, "q": q, "j": j}, stages, 2, **threads)


def tiled(k: Kernel, fragment: str, grid: tuple[int, int], **changes: str) -> tuple[Stage, ...]:
    """Stages of the products [m, n] of a kernel, both operands copied beside them."""
    p = Stage("contract", "m", "n", stage_a="inner", stage_b="inner", fragment=fragment, grid=grid)
    products = [s.kind == "red" and "n" in s.free for s in normalize(k).stages]
    return tuple(replace(p, **changes) if each else Stage() for each in products)


# ---- running


def together(programs: Sequence[Distributed]) -> tuple[str, list[Grid]]:
    """One text with the kernels k0, k1, .."""
    dialect = DIALECTS[programs[0].program.target.kind]
    printed = [print_kernel(d, dialect, f"k{i}") for i, d in enumerate(programs)]
    return "\n".join(text for text, _ in printed), [grid for _, grid in printed]


def arguments(kernel: Kernel, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The buffers of a kernel; results are full of NaN, or of 0x55 where there is none."""
    out = []
    for b in kernel.buffers:
        array = aligned(b.shape, b.dtype.numpy)
        array.reshape(-1).view(np.uint8)[...] = 0xFF if b.dtype.is_float else 0x55
        if b.name in inputs:
            array[...] = inputs[b.name]
        out.append(array)
    return out


def run(
    module: emulator.Module,
    symbol: str,
    kernel: Kernel,
    grid: Grid,
    inputs: Mapping[str, np.ndarray],
    order: str = "forward",
) -> dict[str, np.ndarray]:
    """The stored buffers after the kernel, which must run without a report."""
    packed = words_of(kernel)
    values = zip(kernel.buffers, arguments(kernel, inputs), strict=True)
    arrays = [pack(a, b.dtype, packed[b.name]) if b.name in packed else a for b, a in values]
    report = module.launch(symbol, grid, arrays, order)
    assert not report, f"{kernel.name} {symbol}: {report}"
    names = [b.name for b in kernel.buffers]
    return {name: arrays[names.index(name)] for name in kernel.stored}


def build(
    programs: Sequence[Distributed], folder: Path, checked: bool = False
) -> tuple[emulator.Module, list[Grid]]:
    source, grids = together(programs)
    gpu = programs[0].program.target.gpu
    assert gpu
    other = {"lanes": gpu.warp} if gpu.warp != emulator.LANES else {}
    return emulator.build(source, folder, checked, **other), grids


# ---- kernels on 16-bit floats


def narrowed(kernel: Kernel, kind: DType) -> Kernel:
    """The same kernel on tensors of a 16-bit float, its constants rounded to that."""

    def change(e: Expr) -> Expr:
        kids = [change(k) for k in e.kids]
        if e.attr[-1:] == ("f32",) and e.kind == "load":
            return make("load", (e.attr[0], kind.value), tuple(kids))
        if e.attr[:1] == ("f32",) and e.kind == "const":
            return make("const", (kind.value, rounded(e.attr[1], kind)))
        if e.attr[:1] == ("f32",):
            return make(e.kind, (kind.value,), tuple(kids))
        return rebuild(e, kids)

    buffers = (replace(b, dtype=kind) if b.dtype is DType.F32 else b for b in kernel.buffers)
    roots = (
        replace(r, index=tuple(map(change, r.index)), value=change(r.value)) for r in kernel.roots
    )
    name = f"{kernel.name}_{kind.value}"
    return replace(kernel, name=name, roots=tuple(roots), buffers=tuple(buffers))


def rounded(value: float, kind: DType) -> float:
    one = np.array([value], np.float32)
    with np.errstate(over="ignore"):
        back = from_bf16(to_bf16(one)) if kind is DType.BF16 else one.astype(np.float16)
    return float(back[0])


def zoo() -> list[Kernel]:
    """All families and shapes; those with contractions in 16 bits, too."""
    kernels = [family(*shape) for family, shapes in FAMILIES.items() for shape in shapes]
    narrow = [k for k in kernels if any(pairs(s) for s in normalize(k).stages)]
    plain = [k for k in narrow if {b.dtype for b in k.buffers} == {DType.F32}]
    return [*kernels, *(narrowed(k, kind) for k in plain for kind in reversed(HALF))]


# ---- random schedules


def random_dealt(kernel: Kernel, target: Target, rng: random.Random) -> Schedule:
    """Any schedule of a kernel for the threads of a GPU; a block may not be able to hold it."""
    kernel = normalize(kernel)
    assert target.gpu
    count = rng.choice([n for n in (32, 64, 128, 256) if n >= target.gpu.warp])
    order = list(kernel.axes)
    rng.shuffle(order)
    wanted = matrix_kinds(kernel, target)
    fragment = "simt" if not wanted or rng.random() < 0.25 else rng.choice(wanted)
    sizes = (1, 4, 8, 16, 24, 32, 64) if fragment == "simt" else (1, 16, 16, 32, 32, 48, 64, 64)
    tile = {a: rng.choice([*sizes, n, n]) for a, n in kernel.extent.items()}
    stages = tuple(_random_stage(kernel, s, fragment, count, target, rng) for s in kernel.stages)
    if fragment != "simt":
        _whole_fragments(kernel, stages, tile, rng)
    if fragment == "wgmma":
        _whole_panels(kernel, stages, tile, rng)
    drawn = Schedule(
        order=tuple(order),
        parallel=rng.randint(0, shared_prefix(kernel, tuple(order))),
        tile={a: n for a, n in tile.items() if n < kernel.extent[a]},
        stages=stages,
        keep=rng.random() < 0.7,
        fuse_rows=False,
        threads=Threads(
            count=count,
            row=rng.choice([n for n in (4, 8, 32, 64, 256) if n <= count]),
            vector=rng.choice((1, 2, 4, 8)),
            ring=rng.choice((1, 2, 3)) if target.kind == "cuda" else 1,
            pad=rng.choice((0, 16, 16)),
            bulk=rng.choice((0, 1, 2)) if fragment == "wgmma" else 0,
        ),
    )
    return lawful(kernel, drawn, target)


def matrix_kinds(kernel: Kernel, target: Target) -> list[str]:
    """The fragments for the contractions of a kernel."""
    kinds = {b.dtype for b in kernel.buffers}
    if target.kind == "cuda":
        single = DType.F32 in kinds and "tf32" in target.flags
        half = len(kinds & {*HALF}) == 1
        out = ["mma"] if half or DType.I8 in kinds or single else []
        return out + ["wgmma"] * (half and DType.F32 not in kinds and target.generation == 90)
    if target.kind == "hip":
        fragment = "mfma" if target.generation < 0x1000 else "wmma"
        return [fragment] * (len(kinds & {*HALF}) == 1 and DType.F32 not in kinds)
    return ["simdgroup"] if DType.F32 in kinds or kinds & {*HALF} else []


def _random_stage(
    kernel: Kernel, stage: Expr, fragment: str, count: int, target: Target, rng: random.Random
) -> Stage:
    found = pairs(stage)
    if not found or rng.random() < 0.1:
        return Stage(lanes="kept" if stage.kind == "red" and stage.free else "reduced")
    rows, lane = rng.choice([p for p in found if p[0]] or found)
    p = Stage("contract", rows, lane, window=rng.random() < 0.6)
    matrix = fragment != "simt" and rows is not None and rng.random() < 0.9
    assert target.gpu
    units = count // target.gpu.warp if matrix else count
    along = rng.choice([n for n in (1, 1, 2, 4, 8, 16) if n <= units]) if rows else units
    along = 1 if matrix and fragment == "wgmma" else along
    modes = {s: staging_modes(kernel, stage, p, s, True) for s in "ab"}
    if matrix and fragment == "wgmma":  # which read the right operand from shared memory
        modes["b"] = [m for m in modes["b"] if m != "none"]
        p = replace(p, fragment="wgmma")
    return replace(
        p,
        fragment=fragment if matrix else "simt",
        grid=(units // along, along),
        stage_a=rng.choice(modes["a"]),
        stage_b=rng.choice(modes["b"]),
        place_a=rng.choice(("shared", "shared", "register")),
        place_b="shared"
        if p.fragment == "wgmma"
        else rng.choice(("shared", "shared", "shared", "register")),
    )


def _whole_fragments(
    kernel: Kernel, stages: Sequence[Stage], tile: dict[str, int], rng: random.Random
) -> None:
    """Tiles that most fragments accept: batch axes one by one, whole steps of reduced axes."""
    for stage, p in zip(kernel.stages, stages, strict=True):
        if p.fragment == "simt":
            continue
        used = {p.rows_axis, p.lane_axis, *bound_axes(stage)}
        for a in stage.free - used:
            tile[a] = 1
        along = max(bound_axes(stage), key=lambda a: (min(tile[a], kernel.extent[a]), a))
        steps = 32 if DType.I8 in {b.dtype for b in kernel.buffers} else 16
        if tile[along] % steps:
            tile[along] = rng.choice((steps, 32, kernel.extent[along]))
        if stage.kind == "wsum" and rng.random() < 0.8 and p.lane_axis:
            tile[p.lane_axis] = kernel.extent[p.lane_axis]


def _whole_panels(
    kernel: Kernel, stages: Sequence[Stage], tile: dict[str, int], rng: random.Random
) -> None:
    """Tiles that warpgroups accept: 64 rows of each, as many lanes and steps as panels have."""
    for stage, p in zip(kernel.stages, stages, strict=True):
        if p.fragment != "wgmma":
            continue
        along, *others = sorted(bound_axes(stage), key=lambda a: -kernel.extent[a])
        tile |= dict.fromkeys(others, 1) | {along: rng.choice((64, 64, 128))}
        assert p.rows_axis and p.lane_axis
        tile[p.rows_axis] = 16 * p.grid[0]
        if p.lane_axis in kernel.axes or stage.kind == "red":
            tile[p.lane_axis] = rng.choice((64, 64, 128))


# ---- what a program exercises


def features(d: Distributed) -> set[str]:
    out = {t.memory for t in d.tiles.values()}
    out |= {"packed" for t in d.tiles.values() if t.packed}
    out |= {"ring" for t in d.tiles.values() if t.slots > 1}
    out |= {"turned" for name in d.tiles if name.startswith("turned")}
    out |= {"window" for name in d.tiles if name.startswith("window")}
    out |= {s.op.stage.fragment for s in steps_of(d.body) if isinstance(s.op, Contract)}
    out |= {"whole tiles" for s in steps_of(d.body) if s.bulk}
    out |= {"shared by blocks"} if d.blocks > 1 else set()
    out |= {"vector" for s in steps_of(d.body) if s.vector > 1}

    def walk(body: Sequence[Node]) -> None:
        for node in body:
            if isinstance(node, Nest):
                walk(node.body)
            elif isinstance(node, Sync | Combine):
                out.add("barrier" if isinstance(node, Sync) else "across warps")

    walk(d.body)
    return out
