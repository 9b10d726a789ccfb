"""Models with dims as plain C: every length by one program that knows the header only, whose arrays
end where they should."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bundles import compiler, with_buckets, with_lengths
from commands import Lumc
from live import ATTENTION, CUBE, MOVED, NAMES, POINTS, SOFTMAX, Dims, case, with_weights
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.graph.expr import Expr, add, dim, floordiv, mod, mul
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.link import emit, shapes
from lumc.link.link import TargetCode, Tools
from lumc.profile.choose import estimate
from lumc.search import search
from schemas import check
from searching import error

FLAGS = ("-Wall", "-Wextra", "-Werror", "-O1", "-fopenmp-simd", "-fsanitize=address,undefined")
FLAGS = (*FLAGS, "-fno-sanitize-recover=all", "-fno-sanitize=alignment")
C_TYPES = {"f32": "float", "i64": "int64_t", "i32": "int32_t", "u8": "uint8_t"}
# runs of any lengths, one after the other in one arena that begins with NaN; arrays end exactly
APP = r"""
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES];
static void *given(size_t n, size_t size) {
  void *p = malloc(n * size + !n);
  if (fread(p, size, n, stdin) != n) exit(9);
  return p;
}
static void *made(size_t n, size_t size) { return memset(malloc(n * size), 255, n * size); }
int main(void) {
  memset(arena, 255, sizeof arena);
  int64_t DIMS;
  while (fread(&FIRST, 8, 1, stdin) == 1) {
    READ
    int code = net_run(GIVEN, arena);
    if (code) { fprintf(stderr, "code %d\n", code); return code; }
    WRITE
  }
  return 0;
}
"""


def code_of(text: str, folder: Path) -> Code:
    graph = with_weights(text, folder)
    target = resolve_target("cpu:generic")
    return generate(estimate(search(graph, target, inside=True)))


def emitted(code: Code, folder: Path) -> Path:
    emit.emit_c([TargetCode(code, "0" * 64)], folder / "net", folder)
    return folder / "net"


def application(graph: Graph, entry_dims: list[str]) -> str:
    """The program for the entry of a graph; counts are those of the header."""
    (entry,) = graph.base.entries
    read = [f"if (fread(&{d}, 8, 1, stdin) != 1) return 9;" for d in entry_dims[1:]]
    write = list[str]()
    tensors = [(n.name, n) for n in entry.inputs] + list(entry.outputs)
    counts = dict[str, str]()
    for i, (name, n) in enumerate(tensors):
        used = [d for e in n.shape if isinstance(e, Expr) for d in re.findall(r"\w+", str(e))]
        own = ", ".join(d for d in entry_dims if d in used)
        counts[name] = f"NET_{name.upper()}_COUNT" + (f"_OF({own})" if own else "")
        kind, c = C_TYPES[n.dtype.value], f"a{i}"
        how = "given" if i < len(entry.inputs) else "made"
        read.append(f"{kind} *{c} = {how}((size_t)({counts[name]}), sizeof *{c});")
        if i >= len(entry.inputs):
            write.append(f"fwrite({c}, sizeof *{c}, (size_t)({counts[name]}), stdout);")
        write.append(f"free({c});")
    args = [*entry_dims, *(f"a{i}" for i in range(len(tensors)))]
    if graph.states:
        read.append("char *state = aligned_alloc(NET_ALIGN, NET_STATE_BYTES);")
        read.append("if (fread(state, NET_STATE_BYTES, 1, stdin) != 1) return 9;")
        write.append("fwrite(state, NET_STATE_BYTES, 1, stdout); free(state);")
        args.append("state")
    text = APP.replace("DIMS", ", ".join(entry_dims)).replace("FIRST", entry_dims[0])
    text = text.replace("READ", "\n    ".join(read)).replace("WRITE", "\n    ".join(write))
    return text.replace("GIVEN", ", ".join(args))


def compiled(text: str, model: Path, out: Path) -> Path:
    (out / "app.c").write_text(text)
    sources = sorted(map(str, (model / "src").glob("*.[cS]")))
    include = [f"-I{model / 'include'}", f"-I{model / 'src'}"]
    command = [*compiler().command, *FLAGS, *include, str(out / "app.c"), *sources]
    subprocess.run([*command, "-lm", "-o", str(out / "app")], check=True)
    return out / "app"


def program(code: Code, folder: Path) -> tuple[Path, list[str]]:
    """The program, and the dims that it reads."""
    model = emitted(code, folder)
    header = (model / "include" / "net.h").read_text()
    (head,) = re.findall(r"^int net_run\((.*)\);", header, re.MULTILINE)
    dims = re.findall(r"int64_t (\w+)", head)
    return compiled(application(code.graph, dims), model, folder), dims


def worst(program: Path, names: list[str], graph: Graph, points: list[Dims]) -> float:
    """The largest error of all points, in one process; infinite where it stops."""
    (entry,) = graph.entries
    asked, wanted = [], list[np.ndarray]()
    for dims in points:
        given, want = case(graph, dims)
        asked += [np.array([dims[d] for d in names], np.int64)]
        asked += [np.ascontiguousarray(given[n.name]) for n in entry.inputs]
        asked += [given[s.name] for s in graph.states]
        made = [(name, n.dtype) for name, n in entry.outputs]
        made += [(s.name, s.dtype) for s in graph.states]
        wanted += [want[name].astype(dtype.numpy) for name, dtype in made]
    sent = b"".join(a.tobytes() for a in asked)
    done = subprocess.run([str(program)], input=sent, capture_output=True)
    if done.returncode:
        return np.inf
    errors, at = [0.0], 0
    for right in wanted:
        got = np.frombuffer(done.stdout, right.dtype, right.size, at).reshape(right.shape)
        errors.append(error(got, right))
        at += right.nbytes
    assert at == len(done.stdout)
    return max(e if e == e else np.inf for e in errors)


BUCKETS = ATTENTION.replace("1..16", "1..16 tune 1, 5, 16")
MORE = POINTS[ATTENTION]
ALL = {**POINTS, BUCKETS: [*MORE, {"p": 7, "s": 6}, {"p": 24, "s": 1}, *MORE]}


@pytest.mark.parametrize(
    "text",
    [pytest.param(t, marks=pytest.mark.deep) if NAMES.get(t) == "attention" else t for t in ALL],
    ids=[NAMES.get(t, "buckets") for t in ALL],
)
def test_one_program_for_every_length(text: str, tmp_path: Path) -> None:
    code = code_of(text, tmp_path)
    assert len(code.entries) == (3 if text is BUCKETS else 1)
    made, names = program(code, tmp_path)
    assert worst(made, names, parse_graph(text), ALL[text]) < 1e-5


def test_an_archive_takes_dims_too(tmp_path: Path) -> None:
    text, model = SOFTMAX, tmp_path / "net"
    code = code_of(text, tmp_path)
    emit.emit_archive([TargetCode(code, "0" * 64)], model, tmp_path, Tools(compiler()))
    names = list(parse_graph(text).dims)
    (tmp_path / "app.c").write_text(application(code.graph, names))
    files = [str(tmp_path / "app.c"), f"-I{model / 'include'}", str(model / "lib" / "libnet.a")]
    command = [*compiler().command, *FLAGS, *files, "-lm", "-o", str(tmp_path / "app")]
    subprocess.run(command, check=True)
    assert worst(tmp_path / "app", names, parse_graph(text), POINTS[text]) < 1e-5


def runs(made: Path, names: list[str], dims: Dims) -> subprocess.CompletedProcess[bytes]:
    p, s = dims["p"], dims["s"]
    x = np.arange(s * 3, dtype=np.float32)
    rest = bytes(2 * (p + s) * 8 + (16 - s // 3) * ((p + 1) % 5 + 1))
    sent = np.array([dims[d] for d in names], np.int64).tobytes() + x.tobytes() + rest
    return subprocess.run([str(made)], input=sent, capture_output=True)


@pytest.mark.parametrize("made_of", [with_lengths, with_buckets])
def test_quotients_and_rests(made_of: object, tmp_path: Path) -> None:
    code = made_of()  # type: ignore[operator]
    made, names = program(code, tmp_path)
    assert names == ["p", "s"], "unused has no effect"
    for dims in ({"p": 0, "s": 2}, {"p": 7, "s": 8}, {"p": 24, "s": 16}, {"p": 8, "s": 10}):
        done = runs(made, names, dims)
        assert done.returncode == 0, done.stderr
        y = np.frombuffer(done.stdout, np.float32, 3 * dims["s"])
        n = np.frombuffer(done.stdout, np.int32, offset=y.nbytes)
        assert (y == 2 * np.arange(y.size)).all() and (n == np.arange(y.size + 1) + dims["p"]).all()


def test_values_that_dims_do_not_have(tmp_path: Path) -> None:
    """Each dim has a code of its own; nothing is read or written."""
    model = emitted(with_buckets(), tmp_path)
    header = (model / "include" / "net.h").read_text()
    said = {m[1]: int(m[2]) for m in re.finditer(r"#define NET_DIM_(\w+) (\d+)", header)}
    assert said == {
        **{"P_LEAST": 0, "P_MOST": 24, "P_MULTIPLE": 1, "P_WRONG": 2},
        **{"S_LEAST": 2, "S_MOST": 16, "S_MULTIPLE": 2, "S_WRONG": 3},
    }
    lines = [
        f"if (net_run({p}, {s}, 0, 0, 0, 0, 0, arena) != {code}) return {i + 1};"
        for i, (p, s, code) in enumerate(
            [
                (-1, 2, 2), (25, 2, 2), ("INT64_MAX", 2, 2), ("INT64_MIN", 2, 2),
                (0, 0, 3), (0, 1, 3), (0, 3, 3), (0, 17, 3), (0, 18, 3), (0, -2, 3), (25, 3, 2),
            ]
        )
    ]  # fmt: skip
    text = '#include "net.h"\nstatic _Alignas(64) char arena[NET_ARENA_BYTES];\nint main(void) {\n'
    text += "if (net_run(0, 2, 0, 0, 0, 0, 0, arena + 1) != 1) return 99;\n"
    made = compiled(text + "\n".join(lines) + "\nreturn 0;\n}\n", model, tmp_path)
    subprocess.run([str(made)], check=True)


def test_extents_in_c(tmp_path: Path) -> None:
    """As they are in Python, where quotients are rounded down, below zero too."""
    d = parse_graph("lumc graph 1\ndim s in 1..9\ninput x f32[s]\noutput y = x\n").dims
    spelled, lines = shapes.Dims({"s": "s"}, d), list[str]()
    for shift, n in product((-7, -3, 0, 2), (2, 3, 5)):
        inner, ranges = add(mul(dim("s"), 2), shift), {"s": (1, 9)}
        ends = (
            (floordiv(inner, n, ranges), lambda a, n: a // n),
            (mod(inner, n, ranges), int.__mod__),
        )
        for e, python in ends:
            for s in range(1, 10):
                right = python(2 * s + shift, n)
                lines.append(
                    f'enum {{ s = {s} }}; _Static_assert(({spelled.text(e)}) == {right}, "");'
                )
    bodies = (f"void f{i}(void) {{ {line} }}" for i, line in enumerate(lines))
    (tmp_path / "x.c").write_text("\n".join(bodies))
    subprocess.run([*compiler().command, "-c", "x.c"], cwd=tmp_path, check=True)


MUTANTS = {  # of net.c: what is replaced, by what, and on which graph that shows
    "a length that is one less": (r"\(void \*\)&s\b", "(void *)&(int64_t){s - 1}", SOFTMAX),
    "arrays that are read in place": (r"own\[0\] = at \+ \d+;", ";", CUBE),
    "outputs that are not copied": (r"__builtin_memcpy\(\(char \*\)y", "if (0) \\g<0>", CUBE),
    "rows as long as there may be": (r"s \* 4(?!\d)", "40 * 4", SOFTMAX),
    "planes that overlap": (r"\(i0 \* s \+ i1\)", "i1", CUBE),
    "the first bucket for all": (r"if \(s <= 1\)", "if (1)", BUCKETS),
    "two dims exchanged": (r"&s,([^;]*)&u\b", "&u,\\1&s", MOVED),
}


DEAR = ("the first bucket for all",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.deep) if n in DEAR else n for n in MUTANTS]
)
def test_mistakes_are_noticed(name: str, tmp_path: Path) -> None:
    old, new, text = MUTANTS[name]
    code = code_of(text, tmp_path)
    model = emitted(code, tmp_path)
    source = model / "src" / "net.c"
    changed, count = re.subn(old, new, source.read_text())
    assert count, source.read_text()
    source.write_text(changed)
    names = list(parse_graph(text).dims)
    made = compiled(application(code.graph, names), model, tmp_path)
    assert not worst(made, names, parse_graph(text), ALL[text]) < 1e-5


def test_names_of_dims_in_c(tmp_path: Path) -> None:
    """A dim may be called as a local name of the functions, or as a word of C."""
    text = (
        "lumc graph 1\ndim int in 1..4\ndim own in 1..4\ninput i0 f32[2, int, own]\n"
        "y f32[a:2, b:int, c:own] = add i0[a, b, c], i0[a, b, c]\noutput at = y\n"
    )
    model = emitted(code_of(text, tmp_path), tmp_path)
    header = (model / "include" / "net.h").read_text()
    assert (
        "net_run(int64_t int_, int64_t own_, const float *i0_, float *at_, void *arena)" in header
    )
    app = (
        '#include "net.h"\nstatic _Alignas(64) char arena[NET_ARENA_BYTES];\n'
        "int main(void) { float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[12];\n"
        "if (NET_I0__COUNT_OF(3, 1 + 1) != 12 || net_run(3, 2, x, y, arena)) return 1;\n"
        "for (int i = 0; i < 12; ++i) if (y[i] != 2 * x[i]) return 2;\nreturn 0; }\n"
    )
    subprocess.run([str(compiled(app, model, tmp_path))], check=True)


def test_the_command(lumc: Lumc) -> None:
    Path("m.lg").write_text(CUBE)
    lumc("compile", "m.lg", "--estimate", "--emit", "c", "-o", "net", "--target", "cpu:generic")
    said = lumc("show", "net")
    assert "int net_run(int64_t s, int64_t u, const float *x, const int64_t *i" in said
    assert "NET_X_COUNT 360, f32[2, s, 3, u]" in said and "NET_DIM_U_MULTIPLE 2\n" in said
    check("show-plain", json.loads(lumc("show", "net", "--json")))


TWO = """lumc graph 1
dim p in 0..6
dim s in 1..4
state K f32[10, 3]
entry read
input x f32[s, 3]
kk = update K[p + i, c] = x[i, c]
t f32[c:3] = sum j:p + s of kk[j, c]
output t = t
entry peek
u f32[c:3] = sum j:p + 1 of K[j, c]
output u = u
"""
ENTRIES = r"""
#include "net.h"
#include <string.h>
static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES], state[NET_STATE_BYTES];
int main(void) {
  float x[4 * 3], t[NET_READ_T_COUNT], u[NET_PEEK_U_COUNT];
  for (int i = 0; i < 12; ++i) x[i] = (float)i;
  memset(arena, 255, sizeof arena);
  memset(state, 255, sizeof state); /* nothing of it is read before it is written */
  if (net_read(0, 5, x, t, state, arena) != NET_DIM_S_WRONG) return 1;
  if (net_peek(7, u, state, arena) != NET_DIM_P_WRONG) return 2;
  if (net_read(0, 2, x, t, state, arena) || t[0] != 3 || t[2] != 7) return 3;
  if (net_read(2, 1, x + 6, t, state, arena) || t[0] != 9 || t[1] != 12) return 4;
  if (net_peek(1, u, state, arena) || u[0] != 3 || u[1] != 5) return 5;
  return NET_READ_X_COUNT_OF(4) != 12;
}
"""


def test_entries_that_take_different_dims(tmp_path: Path) -> None:
    model = emitted(code_of(TWO, tmp_path), tmp_path)
    subprocess.run([str(compiled(ENTRIES, model, tmp_path))], check=True)
