"""Finding a compiler, and what is said when there is none or when it refuses."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lumc.errors import Exit, LumcError
from lumc.link import toolchain


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_the_system_compiler_is_found() -> None:
    tools = toolchain.find()
    assert tools.command[0] in (*toolchain.FALLBACKS, tools.command[0])
    assert tools.version and tools.machine


def test_cc_may_have_arguments(tmp_path: Path) -> None:
    fake = script(
        tmp_path / "my cc", 'case "$*" in *--version*) echo fake 1;; *) echo pdp11;; esac'
    )
    tools = toolchain.find(f"'{fake}' -m64")
    assert tools == toolchain.Toolchain((fake, "-m64"), "fake 1", "pdp11")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LumcError, match="tried gcc, cc, clang") as e:
        toolchain.find()
    assert e.value.exit == Exit.TOOLCHAIN and "ziglang" in e.value.fix


@pytest.mark.parametrize("cc", ["/nowhere/cc", "false", ""])
def test_a_wrong_cc_is_not_replaced_by_another(cc: str) -> None:
    if not cc:
        assert toolchain.find(cc).command == toolchain.find().command
        return
    with pytest.raises(LumcError, match=f"tried {cc}"):
        toolchain.find(cc)


def test_ziglang_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = script(tmp_path / "python", "echo $@")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(toolchain.sys, "executable", fake)
    assert toolchain.find().command == (fake, "-m", "ziglang", "cc")


def test_zig_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its command ``cc`` is the compiler: --cc zig, and one of the PATH without a wheel."""
    said = '[ "$1" = cc ] || exit 1; case "$2" in --version) echo clang 22;; *) echo x86_64;; esac'
    fake = script(tmp_path / "zig", said)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    assert toolchain.find().command == ("zig", "cc") and toolchain.find().is_zig
    assert toolchain.find(fake).command == (fake, "cc")
    assert toolchain.find(f"{fake} cc").command == (fake, "cc")


def test_features_follow_the_flags() -> None:
    tools = toolchain.find()
    macros = toolchain.macros(tools, ())
    if toolchain.architecture(macros) != "x86_64":
        pytest.skip("x86 flags")
    assert toolchain.features(macros) == ()
    v3 = toolchain.features(toolchain.macros(tools, ("-march=x86-64-v3",)))
    assert {"avx2", "fma", "bmi2", "f16c"} <= set(v3) and "avx512f" not in v3
    v4 = toolchain.features(toolchain.macros(tools, ("-march=x86-64-v4",)))
    assert {"avx512f", "avx512vl", "avx2"} <= set(v4)


def test_the_runner_knows_every_feature() -> None:
    source = Path(toolchain.__file__).parent / "runner" / "features.c"
    text = source.read_text()
    for name in (*toolchain.FEATURES.split(), *toolchain.ARM_FEATURES.values()):
        assert f'"{name}"' in text, name


def test_fingerprint_depends_on_version_flags_and_header() -> None:
    tools = toolchain.find()
    mine = toolchain.fingerprint(tools, ("-O2",), "int x;")
    assert mine == toolchain.fingerprint(tools, ("-O2",), "int x;")
    assert mine != toolchain.fingerprint(tools, ("-O3",), "int x;")
    assert mine != toolchain.fingerprint(tools, ("-O2",), "int y;")
    other = toolchain.Toolchain(tools.command, "another version", tools.machine)
    assert mine != toolchain.fingerprint(other, ("-O2",), "int x;")


def test_a_refused_file_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "good.c").write_text("int f(void) { return 1; }\n")
    (tmp_path / "bad.c").write_text("int f(void) {\n  return undeclared;\n}\n")
    tools = toolchain.find()
    assert toolchain.compile_objects(tools, tmp_path, ["good.c"], ("-O1",)) == ["good.o"]
    with pytest.raises(LumcError, match=r"bad\.c:2") as e:
        toolchain.compile_objects(tools, tmp_path, ["good.c", "bad.c"], ("-O1",))
    assert e.value.code == "E0702" and "--cc" in e.value.fix


def test_flags_that_the_compiler_does_not_know() -> None:
    with pytest.raises(LumcError, match="these flags"):
        toolchain.macros(toolchain.find(), ("-march=pdp11",))


def test_zig_spells_cpus_its_own_way() -> None:
    zig = toolchain.Toolchain(("python3", "-m", "ziglang", "cc"), "clang", "x86_64")
    assert zig.spell(("-O3", "-march=x86-64-v4")) == ["-O3", "-march=x86_64_v4"]
    assert zig.spell(("-O2",)) == ["-O2", "-mcpu=baseline"]  # without it: this machine's CPU
    assert zig.spell(("-march=armv8-a",)) == ["-mcpu=baseline"]
    gcc = toolchain.Toolchain(("gcc",), "gcc", "x86_64")
    assert gcc.spell(("-O3", "-march=x86-64-v4")) == ["-O3", "-march=x86-64-v4"]


def test_flags_of_gcc_are_for_gcc() -> None:
    """Clang warns of some, and refuses others."""
    said = {"gcc (Debian 12.2.0) 12.2.0": True, "Apple clang version 16.0.0": False}
    for version, known in said.items():
        tools = toolchain.Toolchain(("cc",), version, "x86_64")
        flags = tools.spell(toolchain.KERNEL_FLAGS)
        assert {f in flags for f in toolchain.GCC_ONLY} == {known} and "-O3" in flags


def fake(path: Path, compiling: str) -> toolchain.Toolchain:
    """A compiler that says who it is, and does this when it is to compile or link."""
    known = 'case "$*" in *--version*) echo fake 1; exit;; *-dumpmachine*) echo pdp11; exit;; esac'
    return toolchain.find(script(path / "cc", f"{known}\n{compiling}\n"))


@pytest.mark.parametrize(
    ("compiling", "said"),
    [
        ("kill -SEGV $$", "ended by SIGSEGV at a.c"),
        ("echo 'half a word' >&2; kill -ILL $$", "ended by SIGILL at a.c: half a word"),
        ("exit 3", "refused a.c: exit code 3"),
        ("exit 0", "refused a.c: exit code 0"),  # and no object is there
    ],
)
def test_a_compiler_that_fails_in_silence(tmp_path: Path, compiling: str, said: str) -> None:
    (tmp_path / "a.c").write_text("int a;\n")
    with pytest.raises(LumcError, match=said) as e:
        toolchain.compile_objects(fake(tmp_path, compiling), tmp_path, ["a.c"], ())
    assert e.value.code == "E0702"


def test_a_compiler_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;\n")
    tools = fake(tmp_path, "echo 'Fatal error: a.o: No space left on device' >&2; exit 1")
    with pytest.raises(LumcError, match="No space left") as e:
        toolchain.compile_objects(tools, tmp_path, ["a.c"], ())
    assert e.value.code == "E0202"


def test_ctrl_c_when_the_compiler_has_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes after it ended and before anybody heard of it."""
    communicate = subprocess.Popen.communicate

    def interrupted(process: Any, *args: Any, **kwargs: Any) -> Any:
        communicate(process, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toolchain._run(["true"])


def test_a_stopped_compiler_removes_its_temporaries(tmp_path: Path) -> None:
    script(tmp_path / "cc", "trap 'rm -f temporary; exit' TERM\n: > temporary; sleep 60 & wait\n")
    done = toolchain._run([str(tmp_path / "cc")], tmp_path, 0.5)
    assert done.returncode and "no result in 0.5 s" in done.stderr
    assert not (tmp_path / "temporary").exists()
