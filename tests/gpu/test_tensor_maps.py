"""Copies of whole tiles by tensor maps: products that are right, on the emulator and as PTX, which
copies they are, what blocks share, and the maps that both runtimes make."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import emulator
import mutating
import on_ptx
from bundles import build
from dealing import dealt, flash, narrowed, refusal, schedule
from fake_gpu import environment
from gpu import test_warpgroups as groups
from gpu.ptx import module as ptx
from gpu.test_cuda_runner import sign
from gpu.test_warpgroups import Case, linear
from gpu_bundles import Emulator, python_environment
from kernel_zoo import attention, kernel, times, total, x
from lumc.codegen.generate import generate
from lumc.codegen.gpu import bulk
from lumc.codegen.gpu.counts import Counts, count
from lumc.codegen.gpu.grid import TensorMap
from lumc.codegen.gpu.limits import times_us
from lumc.codegen.gpu.program import Bulk, steps_of
from lumc.frontend import Model
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.profile.choose import estimate
from lumc.profile.price import cheaper, scheduled
from lumc.schedule.schedule import Schedule, Stage
from lumc.search import search

F16, BF16 = DType.F16, DType.BF16


def whole(k: Kernel, s: Schedule, blocks: int = 1) -> Case:
    """With copies of whole tiles, each for so many blocks along the rows."""
    order = tuple(sorted(s.order, key=lambda a: a == "m")) if blocks > 1 else s.order
    assert s.threads
    return k, replace(s, order=order, threads=replace(s.threads, bulk=blocks))


def batched(h: int, m: int, n: int, k: int, inside: bool) -> Kernel:
    """A product for each h; of x that axis lies ``inside`` of the rows."""
    extent = {"h": h, "m": m, "n": n, "k": k}
    axes = {"x": ("m", "h", "k") if inside else ("h", "m", "k"), "w": ("h", "n", "k")}
    value = total("k", times(*(x(b, *a, kind=F16) for b, a in axes.items())))
    shapes = {b: tuple(extent[i] for i in a) for b, a in axes.items()}
    return kernel("batched", "h m n", extent, value, shapes, "w", dict.fromkeys(axes, F16))


def of_three_axes(rows: int, inside: bool, blocks: int = 1, ring: int = 4) -> Case:
    k = batched(3, rows, 200, 72, inside)
    p = Stage("contract", "m", "n", stage_a="inner", stage_b="inner", fragment="wgmma", grid=(4, 1))
    tile = {"h": 1, "m": 64, "n": 64, "k": 64}
    return whole(k, schedule(k, tile, [p], count=128, ring=ring, vector=4), blocks)


def products() -> list[Case]:
    """Both ways to lie, edges along all axes, one and several panels, rings whose products are
    waited for and that run behind; blocks by themselves and in pairs."""
    out = list[Case]()
    for blocks in (1, 2):
        for kind in (F16, BF16):
            for turned in ("", "x", "w", "xw"):
                k = linear(256, 264, 200, kind, turned)
                out.append(whole(k, groups.tiled(k, 64, 64, 3), blocks))
        for shape, tile in (
            ((256, 256, 136), (128, 128, 4)),
            ((200, 256, 392), (128, 256, 4)),
            ((128, 136, 104), (64, 128, 2)),
            ((128, 96, 320), (64, 96, 4)),
            ((128, 128, 320), (64, 128, 4, 128)),
        ):
            out.append(whole(k := linear(*shape, F16), groups.tiled(k, *tile), blocks))
    return [*out, of_three_axes(136, False), of_three_axes(128, True, 2)]


def attended(place: str, blocks: int = 1) -> Case:
    """Attention, whose queries lie in panels that are filled otherwise, or in registers."""
    k = narrowed(attention(2, 128, 200, 64), BF16)
    s = flash(k, (4, 1), 64, 64, "wgmma", count=128, ring=2)
    stages = (replace(p, place_a=place) if p.stage_a == "hoist" else p for p in s.stages)
    assert s.threads
    return k, replace(s, stages=tuple(stages), threads=replace(s.threads, bulk=blocks))


def copied(case: Case) -> list[Bulk]:
    return [s.bulk for s in steps_of(dealt(*case).body) if s.bulk]


@pytest.mark.parametrize("part", range(3))
def test_products(part: int, tmp_path: Path) -> None:
    cases = [*products(), attended("register"), attended("shared", 2)][part::3]
    assert all(len(copied(c)) == 2 for c in cases)
    groups.check(cases, tmp_path)


@pytest.mark.skipif(not ptx.compiler(), reason=ptx.WHY)
@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.deep) for i in (1, 2))])
def test_as_ptx(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of the hardware, with barriers that count bytes and pairs of blocks."""
    monkeypatch.setattr(emulator, "build", on_ptx.build)
    groups.check([*products(), attended("register"), attended("shared", 2)][part::3], tmp_path)


def drawn(rng: random.Random, n: int) -> list[Case]:
    """Random products whose tiles are copied whole."""
    out = list[Case]()
    while len(out) < n:
        sizes = [rng.choice((8, 64, 72, 128, 136, 200)) for _ in range(3)]
        k = linear(*sizes, rng.choice((F16, BF16)), rng.choice(("", "x", "w", "xw")))
        lanes = rng.choice((16, 48, 64, 64, 96, 128))
        s = groups.tiled(k, *(64 * rng.choice((1, 1, 2)), lanes, rng.randint(2, 5)), 64)
        if rng.random() < 0.2:
            case = of_three_axes(128, rng.random() < 0.5, 1, rng.randint(2, 4))
        else:
            case = whole(k, replace(s, tile=s.tile | {"k": rng.choice((64, 64, 128))}), 1)
        if rng.random() < 0.5:
            case = whole(*case, 2)
        if not refusal(*case) and copied(case):
            out.append(case)
    return out


@pytest.mark.parametrize("part", range(2))
def test_random_schedules(part: int, tmp_path: Path) -> None:
    cases = drawn(random.Random(f"whole{part}"), 10)
    assert {b.blocks for c in cases for b in copied(c)} == {1, 2}
    groups.check(cases, tmp_path, order=("reverse", "random")[part])


# ---- which copies they are


def counted(k: Kernel, **threads: int) -> list[Bulk]:
    return copied(whole(k, groups.tiled(k, 64, 64, threads.pop("ring", 3)), **threads))


def test_which_copies_they_are() -> None:
    """Boxes of buffers, in rings; of a pair only those that it reads alike are shared."""
    k = linear(256, 264, 200, F16)
    assert [b.blocks for b in counted(k)] == [1, 1]
    assert sorted(b.blocks for b in counted(k, blocks=2)) == [1, 2]
    assert counted(k, ring=1) == []
    assert counted(linear(256, 264, 100, F16)) == []  # rows of 200 bytes are no whole pieces
    (a, b) = (m for m in dealt(*whole(k, groups.tiled(k, 64, 64, 3), 2)).maps)
    assert a == TensorMap(0, (200, 256), (400,), (64, 64))
    assert b == TensorMap(1, (200, 264), (400,), (64, 32))
    three = dealt(*of_three_axes(128, True)).maps
    assert three[0] == TensorMap(0, (72, 128, 3), (432, 144), (64, 64))
    assert three[1] == TensorMap(1, (72, 200, 3), (144, 28800), (64, 64))


def test_what_blocks_cannot_share() -> None:
    said = "no copies that 2 blocks share"
    odd = linear(192, 264, 200, F16)
    for case in (
        whole(odd, groups.tiled(odd, 64, 64, 3), 2),  # three blocks along the rows
        whole(linear(256, 264, 100, F16), groups.tiled(linear(256, 264, 100, F16), 64, 64, 3), 2),
    ):
        assert said in refusal(*case)


def test_diagonals() -> None:
    """An axis along two dims is no box."""
    extent, shapes = {"m": 64, "n": 64, "k": 136}, {"x": (64, 64, 136), "w": (64, 136)}
    value = total("k", times(x("x", "m", "m", "k", kind=F16), x("w", "n", "k", kind=F16)))
    assert (
        counted(kernel("diagonal", "m n", extent, value, shapes, "w", dict.fromkeys(shapes, F16)))
        == []
    )


def test_parts_of_buffers() -> None:
    """What lies beyond the end of an axis is not zero where a buffer goes on."""
    extent, shapes = {"m": 64, "n": 64, "k": 136}, {"x": (64, 200), "w": (64, 200)}
    value = total("k", times(*(x(b, a, "k", kind=F16) for b, a in (("x", "m"), ("w", "n")))))
    k = kernel("part", "m n", extent, value, shapes, "w", dict.fromkeys(shapes, F16))
    assert counted(k) == []
    assert len(counted(replace(k, extent=extent | {"k": 128}))) == 2  # two whole tiles


MUTANTS = {
    "rows of other matrices": ("moving = {a for a in op.axes if", "moving = {a for a in () if"),
    "whole buffers": ("place.dims[i].size == extent[a]", "True"),
    "all are shared": ("ir.block_start(self.dealt[-1].axis) not in", "None not in"),
    "odd ones": ("self.dealt[-1].count % self.blocks", "False"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(bulk, *MUTANTS[name], monkeypatch)
    with pytest.raises(AssertionError):
        test_which_copies_they_are()
        test_what_blocks_cannot_share()
        test_parts_of_buffers()
        test_diagonals()


# ---- what is chosen, and why


def test_counts_by_hand() -> None:
    """A pair of blocks of 128 x 256 in steps of 64: the copies of the lanes are fetched once. One
    thread asks for a panel of each operand, eight warps multiply, wait and pass a barrier."""
    n, steps = 4096, 4096 // 64
    k = linear(n, n, n, F16)
    d = dealt(*whole(k, groups.tiled(k, 128, 256, 4), 2))
    left, right, out = 128 * n * 2, 256 * n * 2, 128 * 256 * 2
    byhand = Counts(
        tensor=2 * 128 * 256 * n,
        shared=left + right + 2 * (n // 16) * (64 + 256) * 32,
        issue=2 * steps + 8 * (n // 16) + out // 4 // 32 + 8 * steps,
        l2=left + right / 2 + out,
    )
    assert count(d) == byhand


def test_pairs_share_where_the_second_cache_limits() -> None:
    """By the estimate alone, a product of 4096^3 is 97 % of what tensor cores could do; where there
    is no whole number of pairs, no block shares."""
    target = resolve_target("cuda:sm_90")
    assert target.gpu and target.gpu.rates
    k = linear(4096, 4096, 4096, F16)
    first, program = scheduled(k, target)
    s = cheaper(k, target, first)
    assert s == first and s.threads
    assert (s.threads.bulk, s.tile) == (2, {"m": 128, "n": 256, "k": 64})
    found = times_us(count(dealt(k, s)), program.tiles, target)
    peak = 2 * 4096**3 / target.gpu.processors / target.gpu.rates.tensor / target.gpu.rates.mhz
    assert peak / max(found.values()) > 0.965
    odd = scheduled(linear(4096 + 128, 4096, 4096, F16), target)[0]
    assert odd.threads and odd.threads.bulk == 0


# ---- bundles


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.lb, whose product copies whole tiles for pairs of blocks; x.npy, and what comes of it."""
    base = tmp_path_factory.mktemp("maps")
    rng = np.random.default_rng(4)
    g = Model()
    w = rng.standard_normal((72, 136)).astype(np.float16)
    g.output(
        "y", (g.input("x", (128, 136), "f16") @ g.input("w", (72, 136), "f16").permute(1, 0)).relu()
    )
    plan = estimate(search(g.graph(), resolve_target("cuda:sm_90"), inside=True))
    ((key, made),) = plan.kernels.items()
    assert made.schedule.threads and made.schedule.stages[0].fragment == "wgmma"
    threads = replace(made.schedule.threads, bulk=2)
    s = replace(made.schedule, order=made.schedule.order[::-1], threads=threads)
    code = generate(replace(plan, kernels={key: replace(made, schedule=s)}))
    grid = code.kernels[0].grid
    assert grid and len(grid.maps) == 2
    value = rng.standard_normal((128, 136)).astype(np.float16)
    np.save(base / "x.npy", value)
    np.save(base / "w.npy", w)
    np.save(base / "y.npy", np.maximum(value.astype("f4") @ w.astype("f4").T, 0))
    return build(code, base / "m.lb", base, cuda=Emulator()).parent


PROGRAM = """
import numpy as np
from lumc.runtime import cpu, cuda
with {} as b:
    given = {{"x": np.load("x.npy"), "w": np.load("w.npy")}}
    want = np.load("y.npy")
    for _ in range(2):
        np.testing.assert_allclose(b.run(given)["y"], want, rtol=2e-3, atol=1e-2)
    assert len(b.trace(given)[1]) == 1
    print(all(us > 0 for us in b.bench(given, seconds=1e-4)))
"""


def python(base: Path, opener: str, **settings: object) -> str:
    bindings = bool(settings.pop("bindings", False))
    words = [sys.executable, "-c", PROGRAM.format(opener)]
    env = python_environment(bindings, **settings)
    done = subprocess.run(words, cwd=base, env=env, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.parametrize("sm", [90, 89, 100])
@pytest.mark.parametrize(
    "opener", ['cuda.Bundle.open("m.lb")', 'cpu.Bundle.open("m.lb", device="cuda")']
)
def test_a_bundle(opener: str, sm: int, base: Path) -> None:
    """The driver makes the maps of each launch, and the kernel finds the one that it asks for;
    other GPUs than sm_90 need none."""
    assert python(base, opener, sm=sm) == "True\n"


def test_a_bundle_by_cuda_bindings(base: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    assert python(base, 'cuda.Bundle.open("m.lb")', bindings=True) == "True\n"


def test_the_command_of_a_bundle(base: Path) -> None:
    words = [base / "m.lb" / "bin" / "lumc-run", base / "m.lb"]
    for name in "xw":
        words += ["--input", f"{name}={base}/{name}.npy"]
    done = subprocess.run([*words, "-o", base / "o.npy"], env=environment(), capture_output=True)
    assert not done.returncode, done.stderr
    np.testing.assert_allclose(np.load(base / "o.npy"), np.load(base / "y.npy"), 2e-3, 1e-2)


def words_of(*values: int) -> bytes:
    return b"".join(v.to_bytes(8, "little") for v in values)


FIRST = words_of(1, 2, 136, 128, 1, 272, 0, 64, 64)  # the map of x
HOSTILE = {
    (0, 2, 136, 72, 1, 272, 0, 64, 64): "it is not the one that the kernel asks for",
    (9, 2, 136, 128, 1, 272, 0, 64, 64): "a tensor map is of more than its argument",
    (1, 2, 136, 129, 1, 272, 0, 64, 64): "a tensor map is of more than its argument",
    (1, 3, 136, 128, 2, 272, 16, 64, 64): "a tensor map is of more than its argument",
    (1, 2, 0, 128, 1, 272, 0, 64, 64): "no driver makes such a tensor map",
    (1, 2, 136, 128, 1, 264, 0, 64, 64): "no driver makes such a tensor map",
    (1, 2, 136, 128, 1, 272, 0, 32, 64): "no driver makes such a tensor map",
    (1, 2, 136, 128, 1, 272, 0, 64, 257): "no driver makes such a tensor map",
    (1, 4, 136, 128, 1, 272, 0, 64, 64): "a tensor map has other axes",
    (1, 1, 136, 128, 1, 272, 0, 64, 64): "a tensor map has other axes",
}


@pytest.mark.parametrize("bad", HOSTILE, ids=str)
def test_hostile_maps(bad: tuple[int, ...], base: Path, tmp_path: Path) -> None:
    """In a plan whose hash is right: both runtimes refuse it, or the kernel sees another map."""
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    plan = tmp_path / "m.lb" / "plan" / "cuda-sm_90.bin"
    good = plan.read_bytes()
    assert good.count(FIRST) == 1
    plan.write_bytes(good.replace(FIRST, words_of(*bad)))
    sign(tmp_path / "m.lb")
    for opener in ('cuda.Bundle.open("m.lb")', 'cpu.Bundle.open("m.lb", device="cuda")'):
        assert HOSTILE[bad] in python(tmp_path, opener)
