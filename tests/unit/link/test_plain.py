"""Models as plain C: built and run by programs that know nothing of lumc."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import GENERIC, build, compiler, kernel, mlp, simple
from commands import Lumc
from emulated import ARM, arm_compiler, arm_runner
from lumc.codegen.code import Code, Launch, Value
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.link import emit, plain
from lumc.link.link import TargetCode, Tools
from lumc.link.toolchain import Toolchain
from schemas import check

F32 = DType.F32
GRAPHS = Path(__file__).parents[3] / "graphs"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-O1", "-fopenmp-simd")

# all that an application has: the header's names
APP = r"""
#include "net.h"
#include <stdio.h>
static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES];
int main(void) {
  static float x[NET_X_COUNT], y[NET_Y_COUNT];
  if (fread(x, sizeof *x, NET_X_COUNT, stdin) != NET_X_COUNT) return 2;
  if (net_run(x, y, arena + 1) != 1 || net_run(x, y, 0) != 1) return 3; /* not aligned */
  for (int i = 0; i < (int)sizeof arena; ++i) arena[i] = -1; /* what it holds does not matter */
  if (net_run(x, y, arena)) return 4;
  return fwrite(y, sizeof *y, NET_Y_COUNT, stdout) != NET_Y_COUNT;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.13)
project(app C)
add_subdirectory(net)
add_executable(app app.c)
target_link_libraries(app net)
"""
# a program without a C library: what gcc asks of every platform, and the model
BARE = r"""
#include "net.h"
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t n) {
  for (size_t i = 0; i < n; ++i) ((volatile char *)to)[i] = ((const char *)from)[i];
  return to;
}
void *memset(void *to, int c, size_t n) {
  for (size_t i = 0; i < n; ++i) ((volatile char *)to)[i] = (char)c;
  return to;
}
static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES];
static float x[NET_X_COUNT], y[NET_Y_COUNT];
static long call(long number, long a, const void *b, long c) {
#if defined(__x86_64__)
  long out;
  __asm__ volatile("syscall" : "=a"(out) : "a"(number == 0 ? 60 : 1), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return out;
#else
  register long x8 __asm__("x8") = number == 0 ? 93 : 64, x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = (long)b, x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#endif
}
__attribute__((force_align_arg_pointer)) void _start(void) {
  for (int i = 0; i < NET_X_COUNT; ++i) x[i] = (float)(i % 7) - 3;
  int code = net_run(x, y, arena);
  call(1, 1, y, sizeof y);
  call(0, code, 0, 0);
}
"""


def emitted(code: Code, out: Path, base: Path, tools: Toolchain | None = None) -> Path:
    """As text, or as an archive when there is a compiler."""
    parts = [TargetCode(code, "0" * 64)]
    out.parent.mkdir(exist_ok=True)
    if tools:
        emit.emit_archive(parts, out, base, Tools(tools))
    else:
        emit.emit_c(parts, out, base)
    return out


def compiled(text: str, model: Path, out: Path, *flags: str, cc: str = "") -> Path:
    """A program of one file and a model, in a folder that has nothing else."""
    (out / "app.c").write_text(text)
    sources = sorted((model / "src").glob("*.[cS]")) or [model / "lib" / f"lib{model.name}.a"]
    include = [f"-I{model / 'include'}", *(f"-I{f}" for f in [model / "src"] if f.exists())]
    command = [*([cc] if cc else compiler().command), *WARNINGS, *flags, *include]
    words = [str(out / "app.c"), *map(str, sources), "-o", str(out / "app")]
    subprocess.run([*command, *words, *(["-lm"] * ("-nostdlib" not in flags))], check=True)
    return out / "app"


def run(program: Path, x: Any, *before: str) -> Any:
    done = subprocess.run([*before, str(program)], input=x.tobytes(), capture_output=True)
    assert done.returncode == 0, done
    return np.frombuffer(done.stdout, np.float32)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Code, Any, Any]:
    base = tmp_path_factory.mktemp("mlp")
    code, reference = mlp(base)
    x = np.random.default_rng(3).standard_normal((5, 11), np.float32)
    return base, replace(code, target=GENERIC), x, reference(x).reshape(-1)


def test_sources_and_a_c_compiler(given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    base, code, x, want = given
    model = emitted(code, tmp_path / "net", base)
    assert sorted(p.relative_to(model).as_posix() for p in model.rglob("*") if p.is_file()) == [
        "CMakeLists.txt",
        "include/net.h",
        "src/lumc_kernel.h",
        "src/net.c",
        *(f"src/net_{k.symbol}.c" for k in code.kernels),
        "src/net_kernels.h",
        "src/net_weights.c",
    ]
    np.testing.assert_allclose(run(compiled(APP, model, tmp_path), x), want, rtol=1e-4, atol=1e-5)


def test_an_archive_and_a_header(given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    base, code, x, want = given
    model = emitted(code, tmp_path / "net", base, compiler())
    again = emitted(code, tmp_path / "other" / "net", base, compiler())
    files = sorted(p.relative_to(model).as_posix() for p in model.rglob("*") if p.is_file())
    assert files == ["include/net.h", "lib/libnet.a"]
    assert all((model / f).read_bytes() == (again / f).read_bytes() for f in files)
    np.testing.assert_allclose(run(compiled(APP, model, tmp_path), x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_a_cmake_project(given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    base, code, x, want = given
    emitted(code, tmp_path / "net", base)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    (tmp_path / "app.c").write_text(APP)
    for words in (["-S", ".", "-B", "build"], ["--build", "build"]):
        subprocess.run(["cmake", *words], cwd=tmp_path, check=True, capture_output=True)
    got = run(tmp_path / "build" / "app", x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_large_weights_are_a_file_beside(
    given: tuple[Path, Code, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, code, x, want = given
    text = emitted(code, tmp_path / "text" / "net", base)
    monkeypatch.setattr(emit, "TEXT_BYTES", 0)
    for tools in (None, compiler()):
        model = emitted(code, tmp_path / "net", base, tools)
        got = run(compiled(APP, model, tmp_path), x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        shutil.rmtree(model)
    emit.emit_c([TargetCode(code, "")], tmp_path / "net", base)
    data = (tmp_path / "net" / "src" / "net_weights.bin").read_bytes()
    words = re.findall(r"0x[0-9a-f]+", (text / "src" / "net_weights.c").read_text())
    assert data == b"".join(int(w, 16).to_bytes(8, "little") for w in words)


def test_two_models_in_one_program(given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    """Their kernels and weights have the same names in lumc. One is text, one an archive."""
    base, code, x, want = given
    net = emitted(code, tmp_path / "net", base)
    *first, last = code.kernels
    last = replace(last, source=last.source.replace("x[i", "2 * x[i"))
    twice = replace(code, kernels=(*first, last))
    other = emitted(twice, tmp_path / "other", base, compiler())
    both = APP.replace('#include "net.h"', '#include "net.h"\n#include "other.h"').replace(
        "  return fwrite",
        "  static float z[OTHER_Y_COUNT];\n"
        "  static _Alignas(OTHER_ALIGN) char more[OTHER_ARENA_BYTES];\n"
        "  if (other_run(x, z, more)) return 5;\n"
        "  for (int i = 0; i < NET_Y_COUNT; ++i) y[i] += z[i];\n"
        "  return fwrite",
    )
    library = (f"-I{other / 'include'}", f"-L{other / 'lib'}", "-Wl,--no-as-needed", "-lother")
    (tmp_path / "app.c").write_text(both)
    sources = [str(p) for p in (net / "src").glob("*.c")]
    command = [*compiler().command, *WARNINGS, f"-I{net / 'include'}", str(tmp_path / "app.c")]
    subprocess.run([*command, *sources, *library, "-o", str(tmp_path / "app")], check=True)
    np.testing.assert_allclose(run(tmp_path / "app", x), 3 * want, rtol=1e-4, atol=1e-4)


def counter() -> Code:
    """Two entries that share a state: ``main`` adds x to it, ``peek at`` gives it."""
    add = kernel(
        "k0_add",
        4,
        "  const float *x = args[0]; float *s = args[1], *y = args[2], *t = args[3];\n"
        "  for (long i = lo; i < hi; ++i) t[i] = x[i], s[i] += t[i], y[i] = s[i];",
        ("b0", "b1", "out"),
        scratch=16,
    )
    peek = kernel(
        "k1_peek",
        4,
        "  const float *s = args[0]; float *y = args[1];\n"
        "  for (long i = lo; i < hi; ++i) y[i] = s[i];",
        ("b0", "out"),
    )
    x, y = Value("x", F32, (4,), "input", 0), Value("t", F32, (4,), "output", 0)
    s = Value("s", F32, (4,), "state", 1)
    states = [("unused", F32, (3,)), ("s", F32, (4,))]
    code = simple([add, peek], [x, s, y], [Launch("k0_add", ("x", "s", "t"))], states=states)
    (main,) = code.entries
    other = replace(main, name="peek at", values=(s, y), launches=(Launch("k1_peek", ("s", "t")),))
    (known,) = code.graph.entries
    graph = replace(code.graph, entries=(known, replace(known, name="peek at", inputs=())))
    return replace(code, graph=graph, entries=(main, other))


STATES = r"""
#include "net.h"
#include <stdio.h>
static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES], state[NET_STATE_BYTES];
int main(void) {
  float x[NET_RUN_X_COUNT] = {1, 2, 3, 4}, y[NET_PEEK_AT_T_COUNT];
  if (net_run(x, y, state + 1, arena) != 1) return 1;
  if (net_run(x, y, state, arena) || net_run(x, y, state, arena)) return 2;
  if (net_peek_at(y, state, arena)) return 3;
  for (int i = 0; i < 4; ++i)
    if (y[i] != 2 * x[i] || ((float *)(state + NET_STATE_S))[i] != y[i]) return 4;
  return 0;
}
"""


def test_states_and_several_entries(tmp_path: Path) -> None:
    model = emitted(counter(), tmp_path / "net", tmp_path)
    assert not (model / "src" / "net_weights.c").exists()
    run(compiled(STATES, model, tmp_path), np.empty(0))


def test_names_that_are_none_in_c(tmp_path: Path) -> None:
    body = "  const float *x = args[0], *y = args[1]; float *z = args[2];\n"
    body += "  for (long i = lo; i < hi; ++i) z[i] = x[i] - y[i];"
    values = [
        Value("int", F32, (4,), "input", 0),
        Value("Int", F32, (4,), "input", 1),
        Value("a.b/0", F32, (4,), "output", 0),
    ]
    launch = Launch("k0", ("int", "Int", "a.b/0"))
    code = simple([kernel("k0", 4, body, ("b0", "b1", "out"))], values, [launch])
    model = emitted(code, tmp_path / "2nd test.c", tmp_path)
    text = (model / "include" / "m2nd_test.h").read_text()
    assert (
        "int m2nd_test_run(const float *int_, const float *Int__, float *a_b_0, void *arena)"
        in text
    )
    types = "const float *, const float *, float *, void *"
    text = f'#include "m2nd_test.h"\nint (*f)({types}) = m2nd_test_run;\n'
    (tmp_path / "x.cc").write_text(text)
    if shutil.which("g++"):
        command = ["g++", "-Wall", "-Werror", f"-I{model / 'include'}", "-c", "x.cc"]
        subprocess.run(command, cwd=tmp_path, check=True)
    for name, c in (
        ("test", "test_model"),
        ("lumc.d", "lumc_model"),
        (".x", "model"),
        ("é", "model"),
    ):
        assert plain.prefix(name) == c
    assert plain.prefix("_net") == "m_net", "C keeps names that begin so for itself"


def test_what_has_no_plain_c(given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    base, code, _, _ = given
    other = replace(code, target=resolve_target("cuda:sm_90"))
    for codes in ([code, other], [other]):
        with pytest.raises(LumcError, match="plain C is for one CPU target") as e:
            emit.emit_c([TargetCode(c, "") for c in codes], tmp_path / "net", base)
        assert e.value.code == "E0711" and e.value.exit == Exit.USAGE


def test_only_such_a_folder_is_replaced(given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    base, code, _, _ = given
    net = emitted(code, tmp_path / "net", base)
    (net / "stray").touch()
    emitted(code, net, base)
    assert not (net / "stray").exists()
    (tmp_path / "link").symlink_to(net)
    (tmp_path / "mine" / "include").mkdir(parents=True)
    (tmp_path / "mine" / "include" / "mine.h").write_text("int years_of_work;\n")
    (tmp_path / "folder" / "include" / "folder.h").mkdir(parents=True)
    (tmp_path / "file").touch()
    build(code, tmp_path / "m.lb", base)
    for name in ("link", "mine", "folder", "file", "m.lb"):
        with pytest.raises(LumcError, match="is not a model as plain C") as e:
            emitted(code, tmp_path / name, base)
        assert e.value.code == "E0703" and e.value.exit == Exit.USAGE
    with pytest.raises(LumcError, match="is not a lumc bundle"):
        build(code, net, base)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """softmax as lumc compiles it, by the command line: C, an archive, and the files between."""
    folder = tmp_path_factory.mktemp("printed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "archive").mkdir()
        (folder / "again").mkdir()
        lumc = Lumc(folder)
        how = ("--dim", "b=4", "--estimate", "--target", "cpu:generic")
        lumc(
            "compile", GRAPHS / "softmax.lg", *how, "--emit", "c", "--save-temps", "t", "-o", "net"
        )
        lumc("link", "t/net.lk", "--emit", "static", "-o", "archive/net")
        lumc("link", "t/net.lk", "--emit", "c", "-o", "again/net")
    return folder


def softmax(x: Any) -> Any:
    e = np.exp(x.astype(np.float64).reshape(4, 1000))
    return (e / e.sum(axis=1, keepdims=True)).reshape(-1)


def test_commands(printed: Path, tmp_path: Path, lumc: Lumc) -> None:
    """compile gives what link gives; printed kernels compile without a warning and are right."""
    for file in (printed / "net").rglob("*.*"):
        again = printed / "again" / "net" / file.relative_to(printed / "net")
        assert file.is_dir() or file.read_bytes() == again.read_bytes()
    x = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    for model in (printed / "net", printed / "archive" / "net"):
        got = run(compiled(APP, model, tmp_path), x)
        np.testing.assert_allclose(got, softmax(x), rtol=1e-5, atol=1e-8)
    lk = printed / "t" / "net.lk"
    (tmp_path / "taken").mkdir()
    assert "E0703" in lumc.fails(2, "link", lk, "--emit", "c", "-o", "taken")
    words = ("compile", GRAPHS / "softmax.lg", "--dim", "b=4", "--estimate", "--emit", "static")
    assert "E0703" in lumc.fails(2, *words, "-o", "taken")
    assert "E0711" in lumc.fails(2, *words, "--target", "cpu,cuda:sm_90", "-o", "free")
    for model, how in ((printed / "net", "add_subdirectory"), (printed / "archive" / "net", ".a")):
        said = lumc("show", model)
        assert said.startswith("net: plain C for cpu:generic, made by lumc ") and how in said
        assert "  int net_run(const float *x, float *y, void *arena);\n" in said
        assert "NET_X_COUNT 4000, f32[4, 1000]\n" in said and "NET_ARENA_BYTES " in said
        check("show-plain", json.loads(lumc("show", model, "--json")))
        assert "E0203" in lumc.fails(2, "show", model, "--dot", "-")
        assert "not a lumc bundle" in lumc.fails(5, "run", model)
    assert "choose one" in lumc.fails(2, "link", lk, "--emit", "c", "--zip", "-o", "two")
    lumc("link", lk, "--zip", "-o", "zipped.lb")
    assert Path("zipped.lb").is_file()


def test_without_a_c_library(printed: Path, tmp_path: Path) -> None:
    """Freestanding, linked with nothing: no file, no thread, no malloc, weights in the object."""
    flags = ("-ffreestanding", "-nostdlib", "-static", "-fno-stack-protector", "-Wno-attributes")
    program = compiled(BARE, printed / "net", tmp_path, *flags)
    got = run(program, np.empty(0))
    want = softmax(np.arange(4000) % 7 - 3.0)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_for_arm64(printed: Path, given: tuple[Path, Code, Any, Any], tmp_path: Path) -> None:
    base, code, x, want = given
    tools, before = arm_compiler(), arm_runner()
    model = emitted(replace(code, target=ARM), tmp_path / "net", base, compiler())
    (tmp_path / "app.c").write_text(APP)
    words = ["app.c", f"-I{model / 'include'}", str(model / "lib/libnet.a"), "-o", "app"]
    subprocess.run([*tools.command, *words], cwd=tmp_path, check=True)
    got = run(tmp_path / "app", x, *before)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
