"""What NVIDIA's compiler makes of the text of lumc, on the interpreter of PTX: the operations and
functions of the header, kernels, and mutants of every line of assembly, which have to die."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dealing
import emulator
import on_gpu
import on_ptx
from dealing import dealt, flash, narrowed, refusal, schedule, tiled
from device import HARDWARE, every_function
from differential import Case, check_emulated
from gpu import test_checker as checker
from gpu import test_device_hardware as hardware
from gpu import test_device_math as values
from gpu import test_gpu_kernels as families
from gpu import test_tensor_maps as maps
from gpu import test_warpgroups as groups
from gpu.ptx import module, mutants, mutants_of_copies
from gpu.ptx.mutants import SHUFFLED
from gpu.ptx.text import PtxError
from kernel_zoo import FAMILIES, attention, matmul, random_inputs, softmax, unfused_attention
from kernels import assert_close
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.text.headers import header_of
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule
from random_graphs import Profile, random_graph

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(not module.compiler(), reason=module.WHY)
F16, BF16 = DType.F16, DType.BF16
TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


@pytest.fixture
def on_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "build", on_ptx.build)


# ---- the header, and what it is for


def check_hardware(built: module.Module) -> None:
    for name in ("half", "brain", "tensor", "bytes"):
        hardware.test_products(built, name)
    hardware.test_matrices(built)
    hardware.test_copies(built, "forward")


SHUFFLES = '#include "lumc_dev.h"\n' + "".join(
    f"""extern "C" __global__ void s{i}(const {t} *B_x, {t} *B_y)
{{
    B_y[threadIdx.x] = lumc_shuffle_xor(B_x[threadIdx.x], 21);
}}
LUMC_EXPORT(s{i})
"""
    for i, t in enumerate(SHUFFLED)
)


def check_shuffles(built: module.Module) -> None:
    for i, dtype in enumerate(SHUFFLED.values()):
        x, y = np.random.default_rng(i).integers(0, 100, (2, 64)).astype(dtype)
        assert built.launch(f"s{i}", Grid(1, 64), [x, y]) == ""
        np.testing.assert_array_equal(y, x[np.arange(64) ^ 21])


DIFFERENCES = '#include "lumc_dev.h"\n' + "".join(
    f"""extern "C" __global__ void {t}s(const {t} *B_a, const {t} *B_b, const {t} *B_c, {t} *B_y)
{{
    int i = threadIdx.x;
    B_y[i] = lumc_rounded_{name}(B_a[i] * B_b[i]) - B_c[i];
}}
LUMC_EXPORT({t}s)
"""
    for t, name in (("float", "f32"), ("double", "f64"))
)


def check_differences(header: str) -> None:
    """A product is no distance from itself, whatever the compilers make of it."""
    for fused in (False, True):
        built = module.build(DIFFERENCES, "compute_80", header, fused)
        for symbol, dtype in (("floats", "f4"), ("doubles", "f8")):
            a, b = np.random.default_rng(1).standard_normal((2, 128)).astype(dtype)
            y = np.ones_like(a)
            assert built.launch(symbol, Grid(1, 128), [a, b, a * b, y]) == ""
            assert not y.any(), y


def check_functions(built: module.Module) -> None:
    device = values.caller(built)
    for name, *rest in values.FUNCTIONS:
        if name != "decay":
            values.test_functions(device, name, *rest)
    for kind in ("f32", "f64"):
        values.test_floats_of_two(device, kind)
    for kind in ("int64", "int32", "int8", "uint8"):
        values.test_integers(device, kind)
    values.test_half_precision(device)
    values.test_merged_words(device)
    values.test_conversions(device)
    check_decay(device)
    zero = np.array([-0.0, 0.0] * 64)
    for kind, dtype in (("f32", np.float32), ("f64", np.float64)):
        rounded = device(f"lumc_rounded_{kind}", zero.astype(dtype))
        assert np.signbit(rounded).tolist() == [True, False] * 64
    x = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    half = (x.view(np.uint32) & 0xFFFFE000 | 0x1000).view(np.float32)  # between two of tf32
    away = (half.view(np.uint32) + 0x1000).view(np.float32)
    np.testing.assert_array_equal(device("lumc_to_tf32", half).view(np.float32), away)


def check_decay(device: Callable[..., Array]) -> None:
    """2 ulp, and what the manual allows where that is more: 2^-22 of the result; below 2^-126
    it is 0, whatever the approximation."""
    x = -np.abs(values.numbers(np.random.default_rng(3), -130, 0))
    got, want = device("lumc_decay_f32", x).astype(np.float64), np.exp2(x.astype(np.float64))
    normal = want > 2.0**-125.9
    assert (np.abs(got - want)[normal] <= 2.0**-21.6 * want[normal]).all()
    assert not got[want < 2.0**-126.1].any()


def test_operations_of_the_hardware() -> None:
    for arch in ("compute_80", "compute_90a"):
        check_hardware(module.build(HARDWARE, arch))
        check_shuffles(module.build(SHUFFLES, arch))


def test_functions_of_the_header() -> None:
    check_functions(module.build(every_function()))


def test_races_are_reported_and_nothing_else() -> None:
    """As the definition says, as for the checker of the emulator."""
    built, rng = module.build(checker.INTERPRETER), np.random.default_rng(5)
    seen = {False: 0, True: 0}
    for n in range(120):
        kinds = rng.choice(4, rng.integers(2, 12), p=[0.35, 0.25, 0.25, 0.15])
        threads = rng.choice([0, 1, 2, 31, 32, 40], len(kinds))
        elements = rng.integers(0, 2, len(kinds))
        program = [tuple(map(int, s)) for s in zip(kinds, threads, elements, strict=True)]
        want = checker.races(program)  # type: ignore[arg-type]
        seen[want] += 1
        said = checker.verdict(built, program, "forward", bool(n % 2))  # type: ignore[arg-type]
        assert bool(said) == want, (program, said)
    assert min(seen.values()) > 20


# ---- kernels


@pytest.mark.usefixtures("on_the_interpreter")
def test_families(tmp_path: Path) -> None:
    """Every fourth one; all of them are in the tests that run on this interpreter (deep)."""
    kernels = [family(*shapes[len(shapes) // 2]) for family, shapes in FAMILIES.items()][1::4]
    families.check([(k, families.first_guess(k)) for k in kernels], tmp_path, checked=True)


@pytest.mark.usefixtures("on_the_interpreter")
def test_a_graph(tmp_path: Path) -> None:
    case = Case(random_graph(11, Profile()), 11, target=resolve_target("cuda:sm_90"))
    case.prepare()
    check_emulated(tmp_path, [case])


@pytest.mark.usefixtures("on_the_interpreter")
def test_products_of_warpgroups(tmp_path: Path) -> None:
    groups.check([groups.products()[0], groups.products()[-1]], tmp_path)


def test_kernels_of_amd_stay_on_the_emulator(tmp_path: Path) -> None:
    """Whose waves have 64 threads: tests of several targets have them beside others."""
    k, target = matmul(24, 24, 24), resolve_target("hip:gfx942")
    s = next(s for s in guesses(k, target) if not refusal(k, s, target))
    source, grids = dealing.together([dealt(k, s, target)])
    inputs = random_inputs(k, 0)
    for plugin in (on_ptx, on_gpu):
        built = plugin.build(source, tmp_path, True, lanes=64)
        assert isinstance(built, emulator.Module)
        got = dealing.run(built, "k0", k, grids[0], inputs)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


def test_products_are_rounded_before_they_are_subtracted() -> None:
    """The compiler keeps the addition of -0 with its rounding, after a product and before a
    difference, and makes no multiply-add of them: PTX allows that only where none is said."""
    k = unfused_attention(17, 33, 20)
    text = dealing.together([dealt(k, families.first_guess(k))])[0]
    assert text.count("lumc_rounded_f32(") > 0
    for arch in ("compute_80", "compute_90a"):
        code = module.build(text, arch).program.entries["k0"].code
        made = {i.operands[0]: i for i in code if i.operands}
        found = [i for i in code if i.opcode == "add.rn.f32" and i.operands[2] == "0f80000000"]
        assert found
        for i in found:
            assert made[i.operands[1]].opcode == "mul.f32"
            users = {u.base for u in code if i.operands[0] in u.operands[1:]}
            assert users and "fma" not in users, users


# ---- mutants of the header

MUTANTS = mutants.MUTANTS | mutants_of_copies.MUTANTS

SOME = ["halves of bf16 exchanged", "left steps exchanged", "a group less is waited for"]


def sm_80_cases() -> list[tuple[Kernel, Schedule]]:
    """A ring of copies with edges, attention across warps, sums across a block."""
    k = narrowed(matmul(70, 100, 72), F16)
    ring = schedule(k, {"m": 32, "n": 32, "k": 16}, tiled(k, "mma", (2, 2)), ring=3, vector=8)
    a = narrowed(attention(1, 40, 70, 32), F16)
    s = softmax(17, 300)
    return [(k, ring), (a, families.first_guess(a)), (s, families.first_guess(s))]


def sm_90_cases() -> list[tuple[Kernel, Schedule]]:
    """Both kinds of operands, lying both ways, more than one panel and more than one group."""
    f16, bf16 = groups.linear(70, 136, 200, F16, "x"), groups.linear(70, 136, 200, BF16, "w")
    a, tall = narrowed(attention(1, 70, 130, 128), F16), groups.linear(136, 72, 128, F16)
    return [
        (tall, groups.tiled(tall, 128, 64, 2)),
        (f16, groups.tiled(f16, 64, 128, 3)),
        (bf16, groups.tiled(bf16, 64, 64, 2, 128)),
        (a, flash(a, (4, 1), 64, 64, "wgmma", count=128, ring=2)),
    ]


def cases_of_maps() -> list[tuple[Kernel, Schedule]]:
    """Tensors of two and of three axes, several panels, blocks by themselves and in pairs; queries
    that are stored beside what is copied."""
    wide, tall = groups.linear(128, 128, 200, F16, "x"), groups.linear(256, 96, 328, BF16)
    return [
        maps.whole(wide, groups.tiled(wide, 64, 64, 3, 128)),
        maps.whole(tall, groups.tiled(tall, 128, 64, 4), 2),
        maps.of_three_axes(128, True, 2),
        maps.attended("shared"),
    ]


def check_cases(cases: list[tuple[Kernel, Schedule]], arch: str, header: str) -> None:
    assert not any(refusal(*c) for c in cases)
    text, grids = dealing.together([dealt(*c) for c in cases])
    built = module.build(text, arch, header)
    for i, (k, s) in enumerate(cases):
        got = dealing.run(built, f"k{i}", k, grids[i], random_inputs(k, i))  # type: ignore[arg-type]
        assert_close(k, got, evaluate_kernel(k, random_inputs(k, i)), s)


CHECKS: dict[str, Callable[[str], None]] = {
    "functions": lambda h: check_functions(module.build(every_function(), "compute_80", h)),
    "hardware": lambda h: check_hardware(module.build(HARDWARE, "compute_80", h)),
    "shuffles": lambda h: check_shuffles(module.build(SHUFFLES, "compute_80", h)),
    "differences": check_differences,
    "kernels": lambda h: check_cases(sm_80_cases(), "compute_80", h),
    "groups": lambda h: check_cases(sm_90_cases(), "compute_90a", h),
    "maps": lambda h: check_cases(cases_of_maps(), "compute_90a", h),
}


def dies(name: str) -> str:
    """How a mutant of the header is found, "" if it is not."""
    check, old, new = MUTANTS[name]
    header = header_of("cuda")
    assert old in header, f"{name}: the header has no {old}"
    try:
        CHECKS[check](header.replace(old, new))
    except (AssertionError, PtxError) as e:
        return str(e)[:300] or "wrong"
    return ""


@pytest.mark.parametrize("name", SOME)
def test_some_mutants_die(name: str) -> None:
    assert dies(name)


def test_differences_of_products() -> None:
    check_differences(header_of("cuda"))


@pytest.mark.deep
@pytest.mark.parametrize("check", CHECKS)
def test_what_is_not_changed_lives(check: str) -> None:
    CHECKS[check](header_of("cuda"))


@pytest.mark.deep
@pytest.mark.parametrize("name", [n for n in MUTANTS if n not in SOME])
def test_mutants_die(name: str) -> None:
    assert dies(name)


def test_every_line_of_assembly_has_a_mutant() -> None:
    """None of them is left as it is by all."""
    header = header_of("cuda")
    lines = [
        line for line in header.splitlines() if re.search(r"asm|\.sync\.|__shfl_|row\.col", line)
    ]
    changed = [header.replace(old, new) for _, old, new in MUTANTS.values()]
    texts = [set(c.splitlines()) for c in changed]
    assert len(lines) > 25
    assert [line for line in lines if all(line in t for t in texts)] == []


# ---- all tests of kernels

FILES = ("gpu_kernels", "gpu_values", "fragments", "warpgroups", "split", "device_hardware")
FILES += ("device_math", "gpu_graphs", "models", "distribute", "gpu_states", "gpu_lengths")
FILES += ("live_gpu_graphs", "lanes", "tensor_maps")
HOW = {"": {}, "sm_90a": {"LUMC_PTX": "compute_90a"}, "fused": {"LUMC_PTX_FUSED": "1"}}
# Every family and the samples; steps of training, whole networks, 500 random schedules.
COUNTED = ("gpu_kernels", "warpgroups", "split", "gpu_states", "models", "gpu_samples")
COUNTED += ("ptx_models", "ptx_schedules")
OTHERS = "random_schedules or exported or long_ones or gpt"  # of their tests


def launches(files: Sequence[str], *words: str, **env: str) -> int:
    """Of tests that run on this interpreter, and pass."""
    path = f"{TESTS}:{ROOT / 'src'}"
    kept = {k: v for k, v in os.environ.items() if k != "LUMC_FUZZ"}
    command = [sys.executable, "-m", "pytest", "-p", "on_ptx", "-p", "no:cacheprovider", *words]
    command += [f"tests/gpu/test_{f}.py" for f in files]
    done = subprocess.run(
        command, env=kept | {"PYTHONPATH": path} | env, capture_output=True, text=True, cwd=ROOT
    )
    assert not done.returncode, done.stdout + done.stderr
    found = re.search(r"PTX: (\d+) launches", done.stdout)
    assert found
    return int(found[1])


@pytest.mark.deep
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("file", FILES)
def test_tests_of_kernels(file: str, how: str) -> None:
    """Those of the emulator, for sm_80; warpgroups are for sm_90a anyhow."""
    assert launches([file], **HOW[how])


@pytest.mark.deep
@pytest.mark.timeout(1000)
def test_a_gpt_learns() -> None:
    """The longest of the samples, as all others in the test below."""
    assert launches(["gpu_samples"], "-k", "gpt", LUMC_FUZZ="1")


@pytest.mark.deep
@pytest.mark.timeout(3000)
def test_a_thousand_launches() -> None:
    """In less than four minutes of a processor."""
    before = os.times()
    assert launches(COUNTED, "-k", f"not ({OTHERS})", LUMC_FUZZ="1") >= 1000
    after = os.times()
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 240
