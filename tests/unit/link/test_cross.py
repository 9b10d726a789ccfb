"""Bundles for processors that this machine does not have."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elf
from bundles import NATIVE, build, compiler, mlp
from commands import Lumc
from emulated import ARM, arm_compiler, arm_runner
from lumc.command.plan import why_untimed
from lumc.errors import Exit, LumcError
from lumc.kernel.machines import resolve_target
from lumc.link import cross, toolchain
from lumc.link.toolchain import Toolchain
from lumc.report import machine
from lumc.runtime.cpu import Bundle

GCC = Toolchain(("gcc",), "gcc 12", "x86_64-linux-gnu")
ZIG = Toolchain(("python3", "-m", "ziglang", "cc"), "clang 22", "x86_64-unknown-linux-musl")
IS_X86 = cross.made_by(compiler()) == "x86_64"
GRAPHS = Path(__file__).parents[3] / "graphs"


def script(path: Path, machine: str) -> None:
    path.write_text(f'#!/bin/sh\ncase "$*" in *-dumpmachine*) echo {machine};; *) echo it 1;; esac')
    path.chmod(0o755)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what the test puts there, and no zig."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    return tmp_path


def test_what_makes_code_for_the_target_is_kept() -> None:
    for name in ("cpu:x86-64-v4", "cpu:x86-64-v2", "cpu:generic", "cuda:sm_90", "metal:apple7"):
        assert cross.for_target(GCC, resolve_target(name)) is GCC, name
    mac = replace(GCC, machine="arm64-apple-darwin24.1.0")
    assert cross.for_target(mac, ARM) is mac
    assert cross.for_target(mac, resolve_target("cpu:generic")) is mac


def test_a_cross_compiler_of_the_path(alone: Path) -> None:
    with pytest.raises(LumcError, match="no C compiler for aarch64, which cpu:aarch64 needs") as e:
        cross.for_target(GCC, ARM)
    assert e.value.code == "E0710" and e.value.exit == Exit.TOOLCHAIN
    assert "ziglang" in e.value.fix and "aarch64-linux-gnu-gcc" in e.value.what
    script(alone / "aarch64-linux-gnu-gcc", "aarch64-linux-gnu")
    found = cross.for_target(replace(GCC, kept=alone), ARM)
    assert found.command == ("aarch64-linux-gnu-gcc",) and found.kept == alone


def test_zig_is_told_the_target_and_the_oldest_glibc(alone: Path) -> None:
    script(alone / "zig", "aarch64-unknown-linux-gnu")
    mine = replace(ZIG, command=(str(alone / "zig"), "cc"))
    found = cross.for_target(mine, ARM)
    assert found.command == (*mine.command, "-target", "aarch64-linux-gnu.2.17")
    assert cross.made_by(found) == "aarch64" and found.is_zig


def test_linked_for_another_processor(tmp_path: Path) -> None:
    """As the macros say, and as the file does, which a wrapper of a compiler may not know."""
    header = b"\x7fELF\2\1\1" + bytes(9) + b"\3\0"
    made = tmp_path / "kernels.so"
    made.write_bytes(header + b"\x3e\0")
    with pytest.raises(LumcError, match="gcc makes code for x86_64, cpu:aarch64 needs") as e:
        cross.check(made, "aarch64", ARM, GCC)
    assert e.value.code == "E0710" and e.value.exit == Exit.TOOLCHAIN
    cross.check(made, "x86_64", resolve_target("cpu:x86-64-v3"), GCC)
    cross.check(made, "x86_64", resolve_target("cpu:generic"), GCC)
    made.write_bytes(header + b"\xb7\0")
    cross.check(made, "aarch64", ARM, GCC)
    with pytest.raises(LumcError, match="E0710"):
        cross.check(made, "x86_64", ARM, GCC)
    made.write_bytes(header + b"\x08\0")
    with pytest.raises(LumcError, match="another processor"):
        cross.check(made, "aarch64", ARM, GCC)


@pytest.mark.skipif(not IS_X86, reason="x86-64 is the machine that is here")
def test_a_compiler_that_lies(tmp_path: Path) -> None:
    """zig without a target made files for x86-64 of cpu:aarch64."""
    lying = tmp_path / "cc"
    lying.write_text(
        '#!/bin/sh\n[ "$1" = -dumpmachine ] && echo aarch64-linux-gnu || exec gcc "$@"'
    )
    lying.chmod(0o755)
    tools = toolchain.find(str(lying))
    code, _ = mlp(tmp_path)
    from lumc.link.link import TargetCode, Tools, link

    flagless = replace(code, target=replace(ARM, flags=()))
    with pytest.raises(LumcError, match="makes code for x86_64, cpu:aarch64 needs aarch64"):
        parts = [TargetCode(flagless, "")]
        link(parts, tmp_path / "m.lb", tmp_path, Tools(tools), single=False)
    assert not (tmp_path / "m.lb").exists()


def test_targets_tell_what_builds(lumc: Lumc, alone: Path) -> None:
    script(alone / "cc", f"{'aarch64' if IS_X86 else 'x86_64'}-linux-gnu")
    rows = {r["name"]: r for r in json.loads(lumc("targets", "--cc", alone / "cc", "--json"))}
    builds = {n for n, r in rows.items() if r["builds_here"] and n.startswith("cpu")}
    x86 = {"cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"}
    assert builds == ({"cpu:aarch64"} if IS_X86 else {"cpu:native", *x86}) | {"cpu:generic"}
    said = lumc("targets", "--cc", alone / "cc")
    lines = {line.split()[0]: line for line in said.splitlines()}
    missing = "x86_64" if IS_X86 else "aarch64"
    assert lines["cpu:native"].endswith(f"here (no C compiler for {missing}), runs here")
    assert rows["cpu:native"]["runs_here"] and rows["cpu:generic"]["runs_here"]
    nothing = machine.target_rows(machine.Asked(cc="/nowhere/cc"))
    assert not any(r.builds_here for r in nothing if r.name.startswith("cpu"))


def test_zig_has_a_cache_where_the_home_cannot_be_written(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    monkeypatch.setattr(toolchain.tempfile, "tempdir", str(tmp_path))
    script(alone / "zig", "x86_64-linux-musl")
    text = (alone / "zig").read_text().partition("\n")[2]
    asks = '[ -d "$ZIG_GLOBAL_CACHE_DIR" ] || { echo "error: no cache" >&2; exit 1; }'
    (alone / "zig").write_text(f"#!/bin/sh\n{asks}\n{text}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(LumcError, match="no C compiler: tried") as e:
        toolchain.find("zig")
    assert e.value.where == "zig cc says: error: no cache"
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    assert toolchain.find("zig").is_zig
    assert len(list(tmp_path.glob("lumc-zig-*"))) == 1


def test_a_compiler_is_asked_once_for_all_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, find = [], toolchain.find
    monkeypatch.setattr(toolchain, "find", lambda cc: asked.append(cc) or find(cc))
    machine.target_rows()
    assert asked == [None]


@pytest.mark.skipif(not IS_X86, reason="x86-64 is the machine that is here")
def test_nothing_is_timed_for_a_processor_that_is_not_here() -> None:
    assert "this machine is" in why_untimed(ARM, None) and not why_untimed(NATIVE, None)
    assert not why_untimed(resolve_target("cpu:generic"), None)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    arm_compiler()
    base = tmp_path_factory.mktemp("arm")
    code, reference = mlp(base)
    return build(replace(code, target=ARM), base / "m.lb", base), reference


@pytest.mark.skipif(not IS_X86, reason="x86-64 is the machine that is here")
def test_a_bundle_for_arm64(arm: tuple[Path, Any]) -> None:
    path, _ = arm
    body = json.loads((path / "manifest.json").read_text())
    assert body["targets"][0]["arch"] == "aarch64" and "neon" in body["targets"][0]["features"]
    for name in ("kernels/cpu-aarch64/kernels.so", "lib/liblumc.so", "bin/lumc-run"):
        assert cross.MACHINES[elf.read(path / name).machine] == "aarch64", name
    for name in ("lib/liblumc.so", "bin/lumc-run"):
        found = elf.read(path / name)
        assert found.glibc and found.glibc[-1] <= (2, 17), name
    assert not {n for n in elf.read(path / "lib/liblumc.so").exports if not n.startswith("lumc_")}
    with pytest.raises(LumcError, match="not for this machine") as e:
        Bundle.open(path)
    assert e.value.code == "E0704" and e.value.exit == Exit.TOOLCHAIN


def emulate(run: tuple[str, ...], path: Path, runner: str, x: Any, out: Path) -> Any:
    np.save(out / "x.npy", x)
    command = [*run, path / "bin" / runner, path, "--input", out / "x.npy", "-o", out / "y.npy"]
    subprocess.run([*command, "--threads", "2"], check=True, timeout=100)
    return np.load(out / "y.npy")


def test_it_gives_right_results_there(arm: tuple[Path, Any], tmp_path: Path) -> None:
    path, reference = arm
    x = np.random.default_rng(5).standard_normal((5, 11), np.float32)
    got = emulate(tuple(arm_runner()), path, "lumc-run", x, tmp_path)
    np.testing.assert_allclose(got, reference(x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not IS_X86, reason="x86-64 is the machine that is here")
def test_one_bundle_for_both(arm: tuple[Path, Any], tmp_path: Path) -> None:
    code, reference = mlp(tmp_path)
    path = build(code, tmp_path / "m.lb", tmp_path, others=[replace(code, target=ARM)])
    for name, arch in (
        ("bin/lumc-run", "x86_64"),
        ("lib/liblumc.so", "x86_64"),
        ("bin/lumc-run-linux-aarch64", "aarch64"),
        ("lib/linux-aarch64/liblumc.so", "aarch64"),
    ):
        assert cross.MACHINES[elf.read(path / name).machine] == arch, name
        assert name in json.loads((path / "manifest.json").read_text())["files"]
    x = np.random.default_rng(6).standard_normal((5, 11), np.float32)
    with Bundle.open(path) as b:
        np.testing.assert_allclose(b.run({"x": x})["y"], reference(x), rtol=1e-4, atol=1e-5)
    other = emulate(tuple(arm_runner()), path, "lumc-run-linux-aarch64", x, tmp_path)
    np.testing.assert_allclose(other, reference(x), rtol=1e-4, atol=1e-5)


DEEP = [n for n in sorted(p.stem for p in GRAPHS.glob("*.lg")) if n != "softmax"]


@pytest.mark.parametrize(
    "name", ["softmax", *(pytest.param(n, marks=pytest.mark.deep) for n in DEEP)]
)
def test_every_graph_gives_right_results_there(name: str, lumc: Lumc, tmp_path: Path) -> None:
    """Kernels as the compiler prints them, NEON through the vectors of the header, beside the
    float64 oracle."""
    from lumc.bundle.restore import graph_of, weight_reader
    from lumc.command.bundles import complete
    from lumc.oracle.graph import evaluate

    arm_compiler()
    run, source = arm_runner(), GRAPHS / f"{name}.lg"
    dims = re.findall(r"^dim (\w+) in", source.read_text(), re.MULTILINE)
    bound = [word for dim in dims for word in ("--dim", f"{dim}=16")]
    lumc("compile", source, *bound, "--estimate", "--target", "cpu:aarch64", "-o", "m.lb")
    graph = graph_of(Path("m.lb"))
    entry = graph.entries[0].name
    arrays = complete(graph, entry, {}, 0)
    words = []
    for key, value in arrays.items():
        np.save(tmp_path / f"{key}.npy", value)
        words += ["--input", f"{key}={key}.npy"]
    subprocess.run([*run, "m.lb/bin/lumc-run", "m.lb", *words, "-o", "out.npz"], check=True)
    want, _ = evaluate(graph, entry, arrays, weight_reader(Path("m.lb")))
    with np.load("out.npz") as got:
        for key, value in want.items():  # conv takes the roots of numbers drawn at random
            np.testing.assert_array_equal(np.isnan(got[key]), np.isnan(value))
            error = np.linalg.norm(np.nan_to_num(got[key] - value))
            assert error <= 1e-5 * np.linalg.norm(np.nan_to_num(value)), key
