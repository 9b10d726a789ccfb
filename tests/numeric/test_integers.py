"""Levels multiplied with bytes as integers: by plain C, and by the instructions for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kernels
from kernel_zoo import I8, U8, levels, random_inputs
from kernels import assert_close, compile_programs, native, run, with_flag
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Contract, leaves
from lumc.errors import LumcError
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule

KERNELS = [
    normalize(levels(*shape))
    for shape in (
        (1, 64, 3, 32, U8, 4, "coded"),
        (7, 130, 2, 16, I8, 4, "coded"),
        (3, 37, 3, 12, I8, 0, "bytes"),
        (12, 192, 4, 32, U8, 4, "bytes"),
        (20, 100, 5, 32, U8, 0, "coded"),
    )
]


def as_integers(k: Kernel, target: Target) -> Schedule:
    usual = default_schedule(k, target)
    stages = tuple(
        replace(p, stage_b="integers", stage_a="inner", mr=min(p.mr, 3)) if p.lane_axis else p
        for p in usual.stages
    )
    return replace(usual, stages=stages)


@pytest.mark.parametrize(
    "name",
    [
        "",
        with_flag("cpu:x86-64-v4+vnni", "avx512_vnni"),
        with_flag("cpu:x86-64-v3+vnni", "avx_vnni"),
    ],
)
def test_sums_of_integers(tmp_path: Path, name: str) -> None:
    target = resolve_target(name) if name else native()
    programs = [lower(k, as_integers(k, target), target) for k in KERNELS]
    lib = compile_programs(tmp_path, programs)
    for i, (k, program) in enumerate(zip(KERNELS, programs, strict=True)):
        (op,) = (op for op in leaves(program.body) if isinstance(op, Contract))
        assert op.by is not None and (op.sums is None) == (k is KERNELS[3])
        inputs = random_inputs(k, i)
        assert_close(k, run(lib, i, program, inputs, 2), evaluate_kernel(k, inputs), k.extent)


def test_only_targets_with_the_instructions_do_it_by_default() -> None:
    modes = {
        name: {p.stage_b for k in KERNELS for p in default_schedule(k, resolve_target(name)).stages}
        for arch in ("cpu:x86-64-v4", "cpu:x86-64-v3")
        for name in (arch, f"{arch}+vnni")
    }
    assert modes == {
        "cpu:x86-64-v4": {"none", "narrow"},
        "cpu:x86-64-v4+vnni": {"none", "integers"},
        "cpu:x86-64-v3": {"none", "narrow"},
        "cpu:x86-64-v3+vnni": {"none", "integers"},
    }


def test_the_instructions_are_asked_for() -> None:
    """By name, of an architecture that may have them."""
    target = resolve_target("cpu:native+vnni", "flags : avx512f avx512bw avx512cd avx512dq "
                            "avx512vl avx2 fma f16c bmi1 bmi2 movbe")  # fmt: skip
    assert target.name == "cpu:native+vnni" and target.features == ("vnni",)
    assert target.flags[-1] == "-mavx512vnni" and target.kind == "cpu"
    for name in ("cpu:x86-64-v2+vnni", "cpu:aarch64+vnni", "cpu:native+tf32", "cuda+vnni"):
        with pytest.raises(LumcError) as e:
            resolve_target(name, "flags : sse2")
        assert e.value.code == "E0401", name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- (int32_t)k * 128;", "- (int32_t)k * 127;"),
        ("k + 32 <= n; k += 32", "k + 16 <= n; k += 32"),
        ("sum += p[k];", "sum += p[0];"),
        ("^ 0x80808080u", "^ 0x80808000u"),
    ],
)
def test_mutants_of_sums_of_bytes_die(
    tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = header_of("cpu")
    assert text.count(old) == 1
    monkeypatch.setattr(kernels, "header_of", lambda _: text.replace(old, new))
    monkeypatch.setattr(kernels, "LAST", kernels.PLAIN)
    with pytest.raises(AssertionError):
        test_sums_of_integers(tmp_path, "")
