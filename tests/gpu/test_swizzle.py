"""Tiles whose pieces are exchanged: no bytes between rows and no turns of banks, by the counts; and
right, on the emulator and on what NVIDIA's compiler makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import dealing
import mutating
from dealing import dealt, flash, narrowed, schedule, tiled
from gpu.ptx import module
from gpu.test_counts import without_conflicts
from gpu.test_warpgroups import linear
from kernel_zoo import attention, byte_matmul, gated, random_inputs, rms_linear_residual
from kernels import assert_close
from lumc.codegen.gpu import copies, counts, cuda, swizzle
from lumc.codegen.gpu.counts import count
from lumc.codegen.gpu.swizzle import swizzle_of
from lumc.codegen.text.headers import header_of
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.profile.price import scheduled
from lumc.schedule.schedule import Schedule

AMPERE = resolve_target("cuda:sm_80")
Case = tuple[Kernel, Schedule]


def cases() -> dict[str, tuple[Kernel, Schedule, int]]:
    """Rows of 32, 64, 128, 160, 256 and 320 bytes, operands that lie both ways, bytes, attention;
    edges along all axes; and how many elements there are in all slots of their tiles."""
    out = dict[str, tuple[Kernel, Schedule, int]]()
    for m, n, deep in ((64, 64, 32), (128, 152, 16), (64, 80, 64), (64, 16, 128)):
        for turned in ("", "x", "w", "xw"):
            k = linear(136, 160, 168, DType.F16, turned)
            s = schedule(k, {"m": m, "n": n, "k": deep}, tiled(k, "mma", (4, 1)), ring=3)
            out[f"{m} x {n} x {deep} {turned}"] = k, s, 3 * (m + -(-n // 16) * 16) * deep
    k = byte_matmul(72, 80, 160, True)
    s = schedule(k, {"m": 64, "n": 64, "k": 64}, tiled(k, "mma", (2, 2)), ring=2)
    out["bytes"] = k, s, 2 * (64 + 64) * 64
    k = narrowed(attention(1, 70, 130, 96), DType.F16)  # keys are copied for each of two walks
    out["attention"] = k, flash(k, (4, 1), 64, 64, ring=2), 2 * 3 * 64 * 96
    return out


def computed() -> list[Case]:
    """Operands that are no copies: single elements and neighbours are stored to such tiles."""
    every = (rms_linear_residual(40, 72, 96), gated(40, 48, 64))
    return [(k, scheduled(k, AMPERE)[0]) for k in (narrowed(k, DType.BF16) for k in every)]


@pytest.mark.parametrize("nbytes", [1, 2])
def test_where_elements_lie(nbytes: int) -> None:
    """Every element has a place of its own, pieces are whole, and eight rows of any piece of 16
    bytes lie in different banks, as do eight pieces of a row that begin at a multiple of eight."""
    each = 16 // nbytes
    for pieces in range(1, 41):
        row, rows = pieces * each, 16
        s = swizzle_of(row, nbytes)
        places = [s.at(i) if s else i for i in range(row * rows)]
        assert sorted(places) == [*range(row * rows)]
        assert all(places[i] == places[i - i % each] + i % each for i in range(row * rows))
        line = [p // each for p in places[::each]]  # of pieces, in the order of the data
        for i in range(pieces):
            for r in range(0, rows, 8):
                assert len({line[(r + j) * pieces + i] % 8 for j in range(8)}) == 8
        whole = [line[i : i + 8] for i in range(0, len(line), 8)] if pieces % 8 == 0 else []
        assert all(len({p % 8 for p in w}) == 8 for w in whole)
        if s:
            assert all(s.at(i + s.period) == s.at(i) + s.period for i in range(row * 8))


@pytest.mark.parametrize("name", cases())
def test_nobody_waits_for_a_bank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles have no byte that is not an element's."""
    k, s, elements = cases()[name]
    d = dealt(k, s, AMPERE)
    found = count(d).shared
    monkeypatch.setattr(counts, "turns", without_conflicts)
    assert found == count(d).shared
    shared = [t for t in d.tiles.values() if t.memory == "shared"]
    assert sum(t.size * t.slots for t in shared) == elements


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89", "cuda:sm_120"])
def test_what_is_chosen_waits_for_no_bank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half, target = DType.F16, resolve_target(name)
    products = [linear(4096, 4096, 4096, half, t) for t in ("", "x", "w", "xw")]
    whole = narrowed(attention(16, 4096, 4096, 128, mask=False), half)
    small = linear(1024, 1024, 1024, half)
    programs = [dealt(k, scheduled(k, target)[0], target) for k in (*products, small, whole)]
    found = [count(d).shared for d in programs]
    monkeypatch.setattr(counts, "turns", without_conflicts)
    assert found == [count(d).shared for d in programs]


BITS = {
    "too few bits": ("min(twos, LINE)", "min(twos, LINE - 1)"),
    "by the next row": ("Swizzle(max(LINE, twos)", "Swizzle(max(LINE, twos) + 1"),
    "long rows as short ones": ("Swizzle(max(LINE, twos)", "Swizzle(LINE"),
    "rows as they are": ("if exchanged else None", "if exchanged > 3 else None"),
}


@pytest.mark.parametrize("name", BITS)
def test_a_mutant_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(swizzle, *BITS[name], monkeypatch)
    every = [dealt(k, s, AMPERE) for k, s, _ in cases().values()]
    found = [count(d).shared for d in every]
    monkeypatch.setattr(counts, "turns", without_conflicts)
    assert found != [count(d).shared for d in every]


# ---- what is computed


def check(every: Mapping[str, Case], folder: Path, header: str | None = None) -> None:
    """On the emulator with its checker; with a header on the interpreter of PTX."""
    programs = [dealt(*c, AMPERE) for c in every.values()]
    if header:
        text, grids = dealing.together(programs)
        built = module.build(text, "compute_80", header)
    else:
        built, grids = dealing.build(programs, folder, checked=True)  # type: ignore[assignment]
    for i, (k, s) in enumerate(every.values()):
        inputs = random_inputs(k, i)
        got = dealing.run(built, f"k{i}", k, grids[i], inputs)  # type: ignore[arg-type]
        assert_close(k, got, evaluate_kernel(k, inputs), s)


def few() -> dict[str, Case]:
    names = ("64 x 64 x 32 ", "128 x 152 x 16 w", "64 x 80 x 64 xw", "bytes", "attention")
    return {name: cases()[name][:2] for name in names}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_products(every: bool, tmp_path: Path) -> None:
    found = {name: (k, s) for name, (k, s, _) in cases().items()} if every else few()
    check(found | {k.name: (k, s) for k, s in computed()[: None if every else 1]}, tmp_path)


@pytest.mark.skipif(not module.compiler(), reason=module.WHY)
def test_machine_code(tmp_path: Path) -> None:
    check(few(), tmp_path, header_of("cuda"))


TEXTS = {
    "copies repeat after four rows": (copies, "points, tile.swizzle.period)", "points, 8)"),
    "matrices below are above": (cuda, "sum(n for _, n in moved)", "sum(8 for _, n in moved)"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_mutant_of_the_text_dies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(*TEXTS[name], monkeypatch)
    k = linear(24, 40, 168, DType.F16)  # 32 threads copy four rows of 128 bytes at once
    s = schedule(k, {"m": 16, "n": 32, "k": 64}, tiled(k, "mma", (1, 1)), count=32, ring=2)
    with pytest.raises(AssertionError):
        check({"one": (k, s)}, tmp_path)


@pytest.mark.skipif(not module.compiler(), reason=module.WHY)
def test_a_mutant_of_the_header_dies(tmp_path: Path) -> None:
    old = "return i ^ (i >> SHIFT & MASK);"
    assert old in header_of("cuda")
    mutant = header_of("cuda").replace(old, old.replace("^", "+"))
    with pytest.raises(AssertionError):
        check({"64 x 64 x 32 ": few()["64 x 64 x 32 "]}, tmp_path, mutant)
