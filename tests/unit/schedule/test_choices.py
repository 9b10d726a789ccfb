"""The table of choices: what it offers is legal and another program, and it offers all of that."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest

from kernel_zoo import (
    FAMILIES,
    bias_gelu,
    column_sum,
    conv,
    layernorm,
    matmul,
    moments,
    norm_of_gelu,
    scalar_add,
    softmax,
    transpose,
    typed_matmul,
    unfused_attention,
)
from lumc.codegen.generate import print_source
from lumc.codegen.tile.lower import lower
from lumc.errors import LumcError
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.choices import CHOICES, choices_on
from lumc.schedule.legal import check_schedule, refusals
from lumc.schedule.moves import structures
from lumc.schedule.schedule import Schedule, Stage, Threads
from lumc.schedule.space import Grammar
from shorter import shorter

V4, SM90 = resolve_target("cpu:x86-64-v4"), resolve_target("cuda:sm_90+tf32")
TARGETS = [replace(V4, threads=4), SM90, resolve_target("metal:apple9")]
STAGING = ("none", "inner", "hoist", "link", "narrow")
EVERY = {  # all values of a field that anything may say
    "form": ("contract", "dot", "rows"),
    "lanes": ("reduced", "kept"),
    "stage_a": STAGING,
    "stage_b": STAGING,
    "fragment": ("simt", "mma", "wgmma", "mfma", "wmma", "simdgroup"),
    "grid": tuple((1 << i, 1 << j) for i in range(7) for j in range(6)),
    "streams": (1, 2, 4, 8),
    "place_a": ("shared", "register"),
    "place_b": ("shared", "register"),
    "count": (32, 64, 128, 256, 512, 1024),
    "row": (4, 8, 16, 32, 64, 128, 256, 1024),
    "vector": (1, 2, 4, 8),
    "ring": (1, 2, 3, 4),
    "bulk": (0, 1, 2),
    "pad": (0, 16),
    "resident": (1, 2, 3, 4),
    "parts": (0, 2),
}
KERNELS = [(f, shapes[len(shapes) // 2]) for f, shapes in FAMILIES.items()]
KERNELS += [(softmax, (64, 512)), (unfused_attention, (32, 64, 16)), (conv, (8, 4, 16, 16))]
# both kinds of GPUs have the same rows: together they have every kernel
STEP = 1 if os.environ.get("LUMC_FUZZ") else 2
HALVES = {"cuda": slice(0, None, STEP), "metal": slice(STEP - 1, None, STEP)}


def domain(field: str, kernel: Kernel) -> tuple[Any, ...]:
    if field in ("rows_axis", "lane_axis"):
        return (None, *kernel.extent)
    return tuple(EVERY.get(field, (False, True)))


def changed(g: Grammar) -> Iterator[tuple[str, Schedule]]:
    """The default with one choice made differently, in every way that can be said."""
    s = g.default
    for row in CHOICES:
        if row.of in ("axis", "loop") or row.name in ("parallel", "registers"):
            continue  # of any size, of which some are worth a try
        for value in product(*(domain(f, g.kernel) for f in row.fields)):
            said = dict(zip(row.fields, value, strict=True))
            if row.of == "reduction":
                for i, p in enumerate(s.stages):
                    stages = (*s.stages[:i], replace(p, **said), *s.stages[i + 1 :])
                    yield row.name, replace(s, stages=stages)
            elif row.of in ("block", "threads"):
                yield row.name, replace(s, threads=replace(s.threads or Threads(), **said))
            else:
                yield row.name, replace(s, **said)


def is_legal(g: Grammar, schedule: Schedule) -> bool:
    """As ``check_schedule`` asks, which makes a case of the kernel each time."""
    return next(refusals(g.case, schedule), None) is None


def text(g: Grammar, schedule: Schedule) -> object:
    """All that a launch needs; what a block cannot hold is refused when it is dealt."""
    program = lower(g.kernel, schedule, g.target)
    try:
        return print_source(program, schedule.threads, "k"), program.packed, schedule.parts
    except LumcError as e:
        return e.what


def test_every_field_has_one_row_on_a_machine() -> None:
    for gpu in (False, True):
        held_by = [f for row in choices_on(gpu) for f in row.fields]
        assert len(held_by) == len(set(held_by))
    known = {f for row in CHOICES for f in row.fields}
    every = {f.name for of in (Schedule, Stage, Threads) for f in fields(of)}
    assert every - known == {"stages", "threads"}


@pytest.mark.parametrize("target", shorter(TARGETS, 2), ids=lambda t: t.kind)
def test_what_is_legal_is_in_the_space(target: Target) -> None:
    """Or it is the program of its nearest in the space, letter by letter."""
    seen = set()
    for family, shape in KERNELS[HALVES.get(target.kind, slice(None))]:
        g = Grammar(family(*shape), target)
        assert g.path(g.default) is not None, family.__name__
        for name, s in changed(g):
            if not is_legal(g, s) or g.path(s) is not None:
                continue
            wanted = g.values(s)
            path = g.nearest(wanted)
            other = {n[0] for n, value in zip(g.names, path, strict=True) if value != wanted[n]}
            if other != {"registers"}:  # of any size, as above
                assert text(g, g.build(path)) == text(g, s), (family.__name__, name, s)
                seen |= other
    assert seen <= ({"row", "ring"} if target.gpu else {"streams"})


@pytest.mark.parametrize("target", shorter(TARGETS, 2), ids=lambda t: t.kind)
def test_what_is_offered_is_legal_and_another_program(target: Target) -> None:
    """Or its row says what leaves it nothing to do."""
    same, other, seen = set(), set(), Counter[str]()
    for n, (family, shape) in enumerate(KERNELS):
        g, rng = Grammar(family(*shape), target), random.Random(n)
        values, default = g.values(g.default), text(g, g.default)
        here = g.nearest(values)
        steps = [
            (name, value)
            for depth, name in enumerate(g.names)
            for value in g.options(here[:depth])
            if value != here[depth]
        ]
        for name, value in steps:
            s = g.build(g.nearest({**values, name: value}))
            assert is_legal(g, s), (family.__name__, name, value)
        rng.shuffle(steps)
        if isinstance(default, str):
            continue  # no block holds it
        for name, value in sorted(steps, key=lambda step: seen[step[0][0]])[:8]:
            seen[name[0]] += 1
            s = g.build(g.nearest({**values, name: value}))
            (same if text(g, s) == default else other).add(name[0])
    assert all(g.rows[name].moot for name in same), same
    never = {  # a step away from a default; rows go side by side where results are streamed
        "cpu": {"skew"},
        "cuda": {"parts"},
        "metal": {"parts", "ring", "bulk", "resident"},
    }
    assert {row.name for row in choices_on(target.gpu is not None)} - other == never[target.kind]


def refused(kernel: Kernel, schedule: Schedule, target: Target, reason: str) -> None:
    with pytest.raises(LumcError) as e:
        check_schedule(Grammar(kernel, target).kernel, schedule, target)
    assert e.value.code == "E0411" and reason in e.value.what, e.value.what


def with_stage(schedule: Schedule, **said: Any) -> Schedule:
    first, *rest = schedule.stages
    return replace(schedule, stages=(replace(first, **said), *rest))


SHORT, LONG = softmax(17, 100), softmax(16, 256)
ASKED = [
    (SHORT, {"skew": True}, "skew True: of rows of 256 elements or more"),
    (matmul(40, 512, 512), {"skew": True}, "skew True"),
    (column_sum(17, 137), {"stream": True}, "stream True: of long rows of results"),
    (bias_gelu(3, 5), {"stream": True}, "stream True"),
    (transpose(3, 17), {"transpose": False}, "transpose False: of four bytes"),
    (transpose(64, 64), {"transpose": False}, ""),
    (bias_gelu(17, 100), {"fuse_rows": False}, "fuse_rows False: of reductions"),
    (layernorm(16, 256), {"keep": False}, "keep False: of what is expensive"),
    (scalar_add(), {"prefetch": True}, "prefetch True: of arguments with long rows"),
    (scalar_add(), {"parts": 2}, "parts 2: of distributed loops"),
    (LONG, {"skew": True, "stream": True, "prefetch": True}, ""),
]


@pytest.mark.parametrize(("kernel", "asked", "reason"), ASKED)
def test_what_does_not_apply_is_refused(kernel: Kernel, asked: Any, reason: str) -> None:
    schedule = replace(Grammar(kernel, V4).default, **asked)
    if reason:
        refused(kernel, schedule, V4, reason)
    else:
        check_schedule(Grammar(kernel, V4).kernel, schedule, V4)


OF_STAGES = [
    (column_sum(17, 137), {"streams": 4}, "streams 4: of walks along reduced axes"),
    (SHORT, {"window": False}, "window False: of copied operands"),
    (moments(17, 137), {"panels_first": False}, "panels_first False: of contractions"),
    (moments(17, 137), {"mr": 4}, "mr 4, nv 1: the register tile of a contraction"),
    (moments(17, 137), {"grid": (2, 2)}, "fragment simt, grid (2, 2): not on cpu:x86-64-v4"),
    (moments(17, 137), {"place_a": "register"}, "place_a register: not on cpu:x86-64-v4"),
    (column_sum(17, 137), {"unroll": True}, "unroll True: of contractions"),
    (conv(8, 4, 16, 16), {"stage_a": "hoist", "window": False}, ""),
]


@pytest.mark.parametrize(("kernel", "asked", "reason"), OF_STAGES)
def test_what_no_reduction_has_is_refused(kernel: Kernel, asked: Any, reason: str) -> None:
    schedule = with_stage(Grammar(kernel, V4).default, **asked)
    if reason:
        refused(kernel, schedule, V4, reason)
    else:
        check_schedule(Grammar(kernel, V4).kernel, schedule, V4)


def test_machines_refuse_what_others_have() -> None:
    k = norm_of_gelu(16, 256)
    cpu, gpu = Grammar(k, V4).default, Grammar(k, SM90).default
    refused(k, replace(cpu, threads=Threads()), V4, "threads of a block, and no GPU")
    refused(k, replace(gpu, threads=None), SM90, "no threads")
    for field in ("stream", "skew", "prefetch"):
        refused(k, replace(gpu, **{field: True}), SM90, f"{field} True: not on {SM90.name}")
    refused(k, replace(gpu, parts=2), SM90, "parts 2: of distributed loops, on a CPU")
    refused(k, with_stage(gpu, streams=2), SM90, "streams 2: not on")
    product = typed_matmul(64, 64, 64, DType.F32)
    block = Grammar(product, SM90).default
    refused(product, with_stage(block, stage_b="link"), SM90, "stage_b link")
    refused(product, with_stage(block, form="dot"), SM90, "form dot")
    refused(product, with_stage(block, fragment="simdgroup"), SM90, "all threads of the block")
    metal = TARGETS[2]
    own = Grammar(product, metal).default
    ring = replace(own, threads=replace(own.threads or Threads(), ring=2))
    refused(product, ring, metal, "ring 2: of asynchronous copies")
    both = replace(own, threads=replace(own.threads or Threads(), resident=2))
    refused(product, both, metal, "resident 2: CUDA can be asked for it")


def test_a_gpu_walks_columns() -> None:
    """Guesses with lanes along what is kept are tried as they are."""
    g = Grammar(column_sum(64, 64), SM90)
    assert g.path(g.default) is not None and g.default.stages[0].lanes == "kept"
    assert g.default in structures(g)
