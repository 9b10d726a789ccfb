"""Bundles on a GPU of AMD: the real hip.c and lumc.runtime.hip on the fake runtime, and all that
they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import begun, build
from device import in_hip
from fake_clang import Emulator
from fake_hip import environment
from gpu_bundles import counter, gpu_mlp, says_arch
from lumc.codegen.code import Code
from lumc.link import hip

NO_RUNTIME = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
NO_RUNTIME |= {"PYTHONPATH": os.pathsep.join(sys.path)}


def of_hip(code: Code) -> Code:
    kernels = tuple(replace(k, source=in_hip(k.source)) for k in code.kernels)
    return replace(code, kernels=kernels)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """both.lb for the CPU and a GPU, text.lb with text alone; counter.lb; arch.lb; x and y."""
    base = tmp_path_factory.mktemp("hip")
    gpu, cpu, reference = gpu_mlp(base, "hip:gfx942")
    build(of_hip(gpu), base / "both.lb", base, others=[cpu], hip=Emulator())
    build(of_hip(gpu), base / "text.lb", base)
    build(cpu, base / "cpu.lb", base)
    first = begun(of_hip(counter("hip:gfx942")), base, s=np.arange(8, dtype=np.float32))
    build(first, base / "counter.lb", base, hip=Emulator())
    narrow = of_hip(says_arch("hip:gfx1100"))
    build(of_hip(says_arch("hip:gfx942")), base / "arch.lb", base, others=[narrow], hip=Emulator())
    x = np.random.default_rng(0).standard_normal((5, 11), np.float32)
    np.save(base / "x.npy", x)
    np.save(base / "y.npy", reference(x))
    np.save(base / "one.npy", np.zeros(1, np.float32))
    np.save(base / "eight.npy", np.ones(8, np.float32))
    return base


def run(
    base: Path, name: str, *words: str, code: int = 0, env: Mapping[str, str] | None = None
) -> str:
    """What lumc-run says; the output is o.npy."""
    command = [f"{name}/bin/lumc-run", name, "-o", "o.npy", *words]
    env = environment() if env is None else env
    done = subprocess.run(command, cwd=base, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def python(base: Path, code: str, env: Mapping[str, str] | None = None) -> str:
    """What a program prints."""
    program = f"import numpy as np\nfrom lumc.runtime import cpu, hip\n{code}"
    words = [sys.executable, "-W", "error::DeprecationWarning", "-c", program]
    env = environment() if env is None else env
    done = subprocess.run(words, cwd=base, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return done.stdout


OPENERS = ('hip.Bundle.open("{}")', 'cpu.Bundle.open("{}", device="hip")')


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", ["both.lb", "text.lb"])
def test_a_run(opener: str, name: str, base: Path) -> None:
    """From Python, by itself and through the library of the bundle; with images, and by hipRTC."""
    program = f"""
with {opener.format(name)} as b:
    assert b.device == "hip" and b.entries == ("main",), (b.device, b.entries)
    x, want = np.load("x.npy"), np.load("y.npy")
    for _ in range(2):
        np.testing.assert_allclose(b.run({{"x": x}})["y"], want, rtol=1e-4)
    got, parts = b.trace({{"x": x}})
    np.testing.assert_allclose(got["y"], want, rtol=1e-4)
    print([p.kernel for p in parts], min(p.us for p in parts) >= 0)
    print(all(us > 0 for us in b.bench({{"x": x}}, seconds=1e-4)))
"""
    kernels = ["k0_matmul", "k1_bias", "k2_matmul"]
    assert python(base, program) == f"{kernels} True\nTrue\n"


def test_lumc_run(base: Path) -> None:
    for name, words, env, end in (
        ("both.lb", [], environment(), "hip)"),
        ("both.lb", [], environment(old=True), "hip)"),
        ("both.lb", [], NO_RUNTIME, "1 threads)"),
        ("both.lb", ["--device", "cpu"], environment(), "1 threads)"),
        ("text.lb", ["--device", "hip"], environment(), "hip)"),
    ):
        said = run(base, name, "--input", "x.npy", "--repeat", "3", *words, env=env)
        assert said.strip().endswith(end), (name, words, said)
        np.testing.assert_allclose(np.load(base / "o.npy"), np.load(base / "y.npy"), rtol=1e-4)


def test_states_stay_on_the_gpu_between_runs(base: Path) -> None:
    run(base, "counter.lb", "--input", "eight.npy", "--repeat", "3")
    np.testing.assert_array_equal(np.load(base / "o.npy"), np.arange(8) + 3)
    program = """
with hip.Bundle.open("counter.lb") as b:
    for n in range(1, 4):
        b.run({"x": np.ones(8, "f4")})
        np.testing.assert_array_equal(b.state()["s"], np.arange(8) + n)
    b.set_state({"s": np.zeros(8, "f4")})
    print(b.run({"x": np.ones(8, "f4")})["y"][0])
"""
    assert python(base, program) == "1.0\n"


# the GPU that is there, and what its image was made for: of a plan of its family
GPUS = [("gfx90a", 0x90A), ("gfx942", 0x942), ("gfx1100", 0x1100), ("gfx1102", 0x1102)]


@pytest.mark.parametrize(("gfx", "image"), GPUS)
def test_the_image_for_the_gpu(gfx: str, image: int, base: Path) -> None:
    env = environment(gfx=gfx)
    run(base, "arch.lb", "--input", "one.npy", env=env)
    assert np.load(base / "o.npy") == image
    program = 'print(int(hip.Bundle.open("arch.lb").run({"x": np.zeros(1, "f4")})["y"][0]))'
    assert python(base, program, env) == f"{image}\n"


def test_a_gpu_that_the_bundle_is_not_for_is_passed_over(base: Path) -> None:
    """By both runners: the CPU does it."""
    for gfx in ("gfx1100", "gfx1030"):
        env = environment(gfx=gfx)
        said = run(base, "both.lb", "--input", "x.npy", "--repeat", "2", env=env)
        assert said.strip().endswith("1 threads)")
        program = """
from lumc.runtime.choose import open_bundle
with open_bundle("both.lb", say=print) as b:
    print(b.device)
"""
        said = f"not on hip: this GPU is {gfx}, the bundle is for gfx942\ncpu\n"
        assert python(base, program, env) == said


FAILS = """
from lumc.errors import LumcError
try:
    hip.Bundle.open({!r})
except LumcError as e:
    print(e.code, int(e.exit), e.what)
"""
REFUSED = [
    ("both.lb", NO_RUNTIME, "no HIP on this machine"),
    ("both.lb", {"missing": 1}, "the HIP runtime sees no GPU"),
    ("both.lb", {"gfx": "gfx1030"}, "gfx1030"),
    ("both.lb", {"gfx": "gfx1100"}, "gfx1100"),
    ("cpu.lb", {}, "no plan for hip"),
    ("both.lb", {"memory": 300}, "has no 0.0 MB left for"),
]


@pytest.mark.parametrize(("name", "settings", "what"), REFUSED)
def test_what_is_refused(name: str, settings: Any, what: str, base: Path) -> None:
    """By both runners, in one line."""
    env = settings if "PATH" in settings else environment(**settings)
    exits = 1 if "memory" in settings else 7
    said = run(base, name, "--input", "x.npy", "--device", "hip", code=exits, env=env)
    lines = [line for line in said.splitlines() if line.startswith("lumc-run: ")]
    assert len(lines) == 1 and what in lines[0], said
    assert what in python(base, FAILS.format(name), env)


def test_a_text_that_hiprtc_refuses(base: Path, tmp_path: Path) -> None:
    gpu, _, _ = gpu_mlp(base, "hip:gfx942")
    kernels = (replace(gpu.kernels[0], source="#error nobody takes this\n"), *gpu.kernels[1:])
    build(of_hip(replace(gpu, kernels=kernels)), tmp_path / "bad.lb", base)
    (tmp_path / "x.npy").write_bytes((base / "x.npy").read_bytes())
    said = run(tmp_path, "bad.lb", "--input", "x.npy", code=7)
    assert "hipRTC refuses the kernels for gfx942: kernels.hip:1:2: error: nobody takes" in said
    found = python(tmp_path, FAILS.format("bad.lb"))
    assert found.startswith("E0702 7 hipRTC refuses") and "nobody takes this" in found


def test_images_that_were_changed(base: Path, tmp_path: Path) -> None:
    import shutil

    path = tmp_path / "both.lb"
    shutil.copytree(base / "both.lb", path)
    (tmp_path / "x.npy").write_bytes((base / "x.npy").read_bytes())
    image = path / "kernels/hip-gfx942/kernels.gfx942.hsaco"
    image.write_bytes(image.read_bytes() + b"\0")
    assert "does not match its hash" in run(tmp_path, "both.lb", "--input", "x.npy", code=5)
    assert python(tmp_path, FAILS.format("both.lb")).startswith("E0501 5")


def test_what_a_bundle_has(base: Path) -> None:
    names = {p.name for p in (base / "both.lb/kernels/hip-gfx942").iterdir()}
    images = {f"kernels.{a}.hsaco" for a in hip.IMAGES["gfx942"]}
    assert images | {"kernels.hip", "lumc_hip.h", "k0_matmul.hip"} <= names
    assert not any(p.suffix == ".hsaco" for p in (base / "text.lb/kernels/hip-gfx942").iterdir())


def test_a_note_where_there_is_no_compiler(base: Path, tmp_path: Path) -> None:
    from bundles import compiler
    from lumc.link.link import TargetCode, Tools, link

    gpu, _, _ = gpu_mlp(base, "hip:gfx942")
    parts = [TargetCode(of_hip(gpu), "0" * 64)]
    notes = link(parts, tmp_path / "m.lb", base, Tools(compiler()), single=False)
    assert notes == [hip.LEFT_OUT]
