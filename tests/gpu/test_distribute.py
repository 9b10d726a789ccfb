"""Distributions against the tables of the hardware, places, barriers, and what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import emulator
from dealing import arguments, dealt, flash, narrowed, refusal, schedule, tiled
from kernel_zoo import (
    attention,
    gated,
    linear_gelu,
    matmul,
    random_inputs,
    rms_linear_residual,
    softmax,
    transpose,
    turned_matmul,
    typed_rows,
)
from lumc.codegen.gpu.cuda import Cuda
from lumc.codegen.gpu.distribution import Distribution, Roles, deal, mma, simdgroup, simt
from lumc.codegen.gpu.operations import print_kernel
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.schedule.schedule import Schedule, Stage

SYNC = "lumc_sync();"


def coordinates(d: Distribution, thread: int, digits: tuple[int, ...]) -> dict[str, int]:
    """Where an element lies: the definition of a distribution."""
    out = Counter[str]()
    for t in d.threads:
        if t.axis:
            out[t.axis] += thread // t.div % t.mod * t.stride
    for r, digit in zip(d.registers, digits, strict=True):
        out[r.axis] += digit * r.stride
    return dict(out)


# ---- the tables of PTX (mma.m16n8k16) and of MLX (8x8)


def test_fragments_of_tf32() -> None:
    """m16n8k8; steps t and t + 4 of the table are 2t and 2t + 1 of both operands."""
    roles = mma("m", "n", "k", {"m": 16, "n": 16, "k": 8}, (1, 1), 8)
    for lane, word in product(range(32), range(4)):
        g, t = lane >> 2, lane & 3
        at = coordinates(roles.a, lane, (0, 0, 0, word & 1, word >> 1))
        assert at == {"m": g + (word & 1) * 8, "k": t * 2 + (word >> 1)}
        assert coordinates(roles.b, lane, (0, 0, 0, word >> 1)) == {"n": g, "k": at["k"]}


def test_fragments_of_bytes() -> None:
    roles = mma("m", "n", "k", {"m": 16, "n": 16, "k": 32}, (1, 1), 32)
    for lane, word, byte in product(range(32), range(4), range(4)):
        g, t = lane >> 2, lane & 3
        at = coordinates(roles.a, lane, (0, 0, word >> 1, word & 1, byte))
        assert at == {"m": g + (word & 1) * 8, "k": t * 4 + byte + (word >> 1) * 16}
        assert coordinates(roles.b, lane, (0, 0, word >> 1, byte)) == {"n": g, "k": at["k"]}


def test_fragments_of_mma() -> None:
    size = {"m": 16, "n": 16, "k": 16}
    roles = mma("m", "n", "k", size, (1, 1))
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for i in range(4):
            at = coordinates(roles.c, lane, (0, 0, i >> 1, i & 1))
            assert at == {"m": g + (i >> 1) * 8, "n": t * 2 + (i & 1)}
        for word, half in product(range(4), range(2)):
            at = coordinates(roles.a, lane, (0, 0, word >> 1, word & 1, half))
            assert at == {"m": g + (word & 1) * 8, "k": t * 2 + half + (word >> 1) * 8}
        for word, half in product(range(2), range(2)):
            at = coordinates(roles.b, lane, (0, 0, word, half))
            assert at == {"n": g, "k": t * 2 + half + word * 8}


def test_fragments_of_simdgroups() -> None:
    roles = simdgroup("m", "n", "k", {"m": 8, "n": 8, "k": 8}, (1, 1))
    for row, column in product(range(8), range(8)):
        lane = ((row & 4) | (column & 4) >> 1) * 4 + (row & 3) * 2 + (column >> 1 & 1)
        places = (roles.c, ("m", "n")), (roles.a, ("m", "k")), (roles.b, ("k", "n"))
        for role, axes in places:
            at = coordinates(role, lane, (0, 0, column & 1))
            assert at == dict(zip(axes, (row, column), strict=True))


@pytest.mark.parametrize("fragment", [mma, simdgroup])
def test_a_result_is_a_left_operand_without_moving(fragment: Callable[..., Roles]) -> None:
    """Scores become weights of the next product in the registers that hold them, as long as one
    warp has whole rows."""
    size = {"m": 64, "n": 32, "k": 32}
    for grid in ((4, 1), (2, 2)):
        roles = fragment("m", "n", "k", size, grid)
        moved = roles.c.renamed({"n": "k"})
        same = moved.owner() == roles.a.owner() and moved.offsets() == roles.a.offsets()
        assert same == (grid == (4, 1))


def test_every_element_has_one_place() -> None:
    """Whatever is dealt: each element of the tile is held by the threads that differ only in
    digits without an axis, in one register of each."""
    rng = random.Random(5)
    for _ in range(60):
        axes = ("a", "b", "c")[: rng.randint(1, 3)]
        size = {a: rng.choice((1, 2, 3, 5, 8, 17, 32)) for a in axes}
        threads = rng.choice((32, 64, 128))
        d = deal(axes, size, threads, rng.choice(axes), rng.choice((1, 4)), rng.choice((None, 8)))
        if len(axes) > 1 and rng.random() < 0.5:
            free = frozenset(axes[:-1]), frozenset(axes[1:])
            d = simt(axes[0], axes[1], size, (threads // 8, 8), axes[2:], (), free).c
        held = Counter[tuple[int, ...]]()
        for thread in range(threads):
            for digits in product(*(range(r.extent) for r in d.registers)):
                at = coordinates(d, thread, digits)
                held[tuple(at.get(a, 0) for a in axes)] += 1
        alike = 1
        for t in d.threads:
            alike *= t.mod if t.axis is None else 1
        assert set(held.values()) == {alike}
        assert set(product(*(range(n) for n in size.values()))) <= set(held)
        assert all(max(at[i] for at in held) == d.span(a) - 1 for i, a in enumerate(axes))


# ---- where values lie


def memory(k: Kernel, s: Schedule) -> dict[str, str]:
    return {name.partition(".")[0]: t.memory for name, t in dealt(k, s).tiles.items()}


HALF_ATTENTION = narrowed(attention(1, 64, 96, 32), DType.BF16)


def test_attention_stays_in_registers() -> None:
    """With whole rows in one warp only keys and values are shared; otherwise the weights and the
    partial results of rows are, too."""
    found = memory(HALF_ATTENTION, flash(HALF_ATTENTION, (4, 1), 64, 32))
    assert {name for name, where in found.items() if where == "shared"} == {"copy"}
    found = memory(HALF_ATTENTION, flash(HALF_ATTENTION, (2, 2), 32, 32))
    shared = {name for name, where in found.items() if where == "shared"}
    assert shared == {"copy", "weights", "partial"}


def test_operands_keep_their_dtype() -> None:
    """16-bit copies are shared as they are; a computed one is rounded only where it has that
    dtype, for the matrix units."""
    k = narrowed(rms_linear_residual(64, 64, 64), DType.F16)
    tile = {"m": 32, "n": 64, "k": 32}
    kinds = {
        fragment: [
            t.dtype
            for name, t in dealt(k, schedule(k, tile, tiled(k, fragment, grid))).tiles.items()
            if name.startswith("copy")
        ]
        for fragment, grid in (("simt", (8, 16)), ("mma", (2, 2)))
    }
    assert sorted(x.value for x in kinds["simt"]) == ["f16", "f32"]
    assert set(kinds["mma"]) == {DType.F16}


# ---- what is refused

F32 = matmul(64, 64, 64)
BF16 = narrowed(F32, DType.BF16)
LARGE = matmul(512, 512, 512)
GATED = gated(32, 48, 64)
DEEP = {"m": 32, "n": 64, "k": 32}
BLOCKS = {"m": 128, "n": 128}


def swapped(k: Kernel) -> Schedule:
    """Two products whose threads lie in different ways."""
    first, second = tiled(k, "simt", (8, 16))
    return schedule(k, {}, [first, replace(second, grid=(16, 8))])


REFUSED = {
    "fragment mma, grid (2, 2)": (
        F32,
        schedule(F32, DEEP, tiled(F32, "mma", (2, 2))),
    ),
    "fragment simdgroup": (F32, schedule(F32, DEEP, tiled(F32, "simdgroup", (2, 2)))),
    "grid (2, 1)": (BF16, schedule(BF16, DEEP, tiled(BF16, "mma", (2, 1)))),
    "grid (3, 32)": (F32, schedule(F32, DEEP, tiled(F32, "simt", (3, 32)))),
    "not whole fragments": (BF16, schedule(BF16, DEEP | {"k": 24}, tiled(BF16, "mma", (2, 2)))),
    "shared memory": (LARGE, schedule(LARGE, BLOCKS, tiled(LARGE, "simt", (8, 16)))),
    "registers of values": (
        LARGE,
        schedule(LARGE, {**BLOCKS, "k": 16}, tiled(LARGE, "simt", (4, 8)), count=32),
    ),
    "row 128: at most": (
        F32,
        schedule(F32, {}, [Stage()], count=64, row=128),
    ),
    "not a power of two": (F32, schedule(F32, {}, [Stage()], count=96)),
    "leave its registers": (GATED, swapped(GATED)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refusals(why: str) -> None:
    assert why in refusal(*REFUSED[why])


def test_metal_has_other_limits() -> None:
    target = resolve_target("metal:apple7")
    s = schedule(F32, DEEP, tiled(F32, "simdgroup", (2, 2)))
    assert not refusal(F32, s, target)
    assert "ring" in refusal(F32, replace(s, threads=replace(s.threads, ring=2)), target)
    f64 = typed_rows(5, 37, DType.F64)
    assert "f64" in refusal(f64, schedule(f64, {"m": 4}, [Stage(), Stage()]), target)


# ---- barriers

BARRIERS = {
    "transpose": lambda: (k := transpose(45, 70), schedule(k, {"m": 32, "n": 32})),
    "rows": lambda: (
        k := softmax(5, 300),
        schedule(k, {"m": 1}, [Stage(), Stage()], row=128),
    ),
    "simt": lambda: (k := matmul(64, 64, 64), schedule(k, DEEP, tiled(k, "simt", (8, 16)))),
    "ring": lambda: (
        k := narrowed(turned_matmul(64, 64, 160), DType.BF16),
        schedule(k, DEEP, tiled(k, "mma", (2, 2)), ring=3),
    ),
    "gated": lambda: (
        k := gated(32, 64, 48),
        schedule(k, {"m": 32, "n": 64, "k": 16}, tiled(k, "simt", (8, 16))),
    ),
    "attention": lambda: (HALF_ATTENTION, flash(HALF_ATTENTION, (2, 2), 32, 32)),
    "attention in a ring": lambda: (
        HALF_ATTENTION,
        flash(HALF_ATTENTION, (4, 1), 64, 32, ring=2),
    ),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_no_barrier_can_go(name: str, built: Path) -> None:
    """The kernel is clean as it is, and without any one of its barriers it is not."""
    k, s = BARRIERS[name]()
    d = dealt(k, s)
    text, grid = print_kernel(d, Cuda(), "k0")
    texts, n, inputs = [text], text.count(SYNC), random_inputs(k, 1)
    for i in range(n):
        parts = print_kernel(d, Cuda(), f"k{i + 1}")[0].split(SYNC)
        texts.append(SYNC.join(parts[: i + 1]) + ";" + SYNC.join(parts[i + 1 :]))
    module = emulator.build("\n".join(texts), built, checked=True)
    reports = [module.launch(f"k{i}", grid, arguments(k, inputs)) for i in range(n + 1)]
    assert n and not reports[0], reports[0]
    assert all(reports[1:]), f"barriers that nothing needs: {[not r for r in reports[1:]]}"


# ---- the same text every time


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "import random; from dealing import *; from kernel_zoo import *; import hashlib\n"
        "k = narrowed(attention(2, 70, 90, 40), DType.F16); out = ''\n"
        "for i in range(20):\n"
        "    s = random_dealt(k, cuda(), random.Random(i))\n"
        "    out += refusal(k, s) or together([dealt(k, s)])[0]\n"
        "print(hashlib.sha256(out.encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_text_is_read_too() -> None:
    """Names of the model, a comment for every loop and operation, nothing that is not needed."""
    k = linear_gelu(70, 100, 36)
    d = dealt(k, schedule(k, DEEP, tiled(k, "simt", (8, 16))))
    text = print_kernel(d, Cuda(), "k")[0]
    assert "const float *__restrict__ B_x" in text
    assert "/* blocks: m = 70 in tiles of 32, n = 100 in tiles of 64 */" in text
    assert "/* k = 36 in tiles of 32 */" in text
    assert text.count("/*") == 8  # the title, both loops, 5 operations
