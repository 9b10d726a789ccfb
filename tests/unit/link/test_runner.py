"""The native runner: its C sources under sanitizers, its command line, the C API example."""

import errno
import hashlib
import os
import re
import resource
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import build, compiler, kernel, mlp, simple
from compiling import ASAN, ROOT, RUNNER, TSAN, compile_c
from lumc.codegen.code import Launch, Value
from lumc.graph.ops import DType
from lumc.link import runners, toolchain


def run(*command: object, code: int = 0, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=120, **kwargs
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lumc-run with the address and undefined-behaviour sanitizers."""
    out = tmp_path_factory.mktemp("asan") / "lumc-run"
    return compile_c((RUNNER / "main.c").read_text(), out, runners.LIBRARY, ASAN)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    base = tmp_path_factory.mktemp("mlp")
    code, reference = mlp(base)
    return build(code, base / "m.lb", base), reference


# ---- sha256

SHA = r"""
#include "internal.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef PLAIN
#undef __x86_64__
#endif
#include "sha256.c"
int main(void) { /* the hash of every prefix, in pieces of 1, 2, 3 .. bytes */
  static uint8_t data[300];
  char hex[65];
  for (int i = 0; i < 300; ++i) data[i] = (uint8_t)(i * i + 7 * i);
  for (size_t n = 0; n <= 300; ++n) {
    struct sha256 h;
    sha256_start(&h);
    for (size_t at = 0, step = 1; at < n; at += step++) 
      sha256_add(&h, data + at, n - at < step ? n - at : step);
    sha256_hex(&h, hex);
    puts(hex);
  }
}
"""


@pytest.mark.parametrize("define", ["-DPLAIN", "-DFAST"])
def test_sha256(define: str, tmp_path: Path) -> None:
    program = compile_c(SHA, tmp_path / "sha", (), (*ASAN, define))
    data = bytes((i * i + 7 * i) % 256 for i in range(300))
    expected = [hashlib.sha256(data[:n]).hexdigest() for n in range(301)]
    assert run(program).stdout.split() == expected


# ---- the pool

POOL = r"""
#include "internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
enum { N = 64 };
static long seen[N]; /* every launch adds its number to the elements of its part */
static void step(void *const *args, long part, long nparts) {
  long k = *(long *)args[0];
  for (long i = N * part / nparts; i < N * (part + 1) / nparts; ++i) 
    seen[i] = seen[i] * 3 + k;
}
static void shift(void *const *args, long part, long nparts) { /* reads what other parts wrote */
  long *to = args[1];
  for (long i = N * part / nparts; i < N * (part + 1) / nparts; ++i) to[i] = seen[(i + 17) % N];
}
static void back(void *const *args, long part, long nparts) {
  long *from = args[1];
  if (nparts != 1 || part) abort();
  for (long i = 0; i < N; ++i) seen[i] = from[i] % 1000003;
}
/* No part starts before all parts of the launch before it ended. */
static void check_times(const struct op *ops, size_t n, int threads, const int64_t *times) {
  int64_t ended = 0, last = 0;
  for (size_t i = 0; i < n; ++i, last = ended)
    for (int t = 0; t < threads; ++t, times += 2) {
      if (t >= (ops[i].parallel == 1 ? threads : ops[i].parallel ? ops[i].parallel : 1)) continue;
      if (times[0] <= 0 || times[1] < times[0] || times[0] < last) abort();
      ended = times[1] > ended ? times[1] : ended;
    }
}
static long parts_seen, nparts_seen;
static void count(void *const *args, long part, long nparts) {
  (void)args;
  __atomic_fetch_or(&parts_seen, 1l << part, __ATOMIC_RELAXED);
  __atomic_store_n(&nparts_seen, nparts, __ATOMIC_RELAXED);
}
/* What a kernel is told: its parts, at most so many, or a slice of the share of each. */
static void check_parts(struct pool *p, int threads) {
  for (int most = 0; most < 4; ++most)
    for (int slices = 0; slices < 4; ++slices) {
      int parts = most == 1 ? threads : most == 0 ? 1 : most < threads ? most : threads;
      struct op op = {count, NULL, most, slices};
      parts_seen = 0;
      pool_run(p, &op, 1);
      if (parts_seen != (1l << parts) - 1 || nparts_seen != parts * (slices ? slices : 1)) abort();
    }
}
int main(int argc, char **argv) {
  int threads = atoi(argv[1]), runs = atoi(argv[2]);
  static int64_t times[6 * 8 * 2];
  static long one = 1, two = 2, copy[N];
  void *a[] = {&one, copy}, *b[] = {&two, copy};
  struct op ops[] = {{step, a, 1, 0}, {shift, a, 1, 0}, {back, a, 0, 0},
                     {step, b, 2, 0}, {shift, b, 1, 1}, {back, b, 0, 0}};
  long expected[N], total = 0;
  for (int t = 0; t < 2; ++t) {
    struct pool *p = pool_new(t ? threads : 1);
    if (!p) return 1;
    for (int i = 0; i < N; ++i) seen[i] = i;
    for (int r = 0; r < runs; ++r) {
      if (r % 3) {
        pool_run(p, ops, 6);
      } else {
        pool_trace(p, ops, 6, times);
        check_times(ops, 6, t ? threads : 1, times);
      }
      if (r % 50 == 49) usleep(200); /* long enough to fall asleep */
    }
    check_parts(p, t ? threads : 1);
    pool_free(p);
    for (int i = 0; i < N; ++i) {
      if (t && seen[i] != expected[i]) return 2;
      expected[i] = seen[i];
      total += seen[i];
    }
  }
  for (int i = 0; i < 20; ++i) pool_free(pool_new(threads)); /* never used */
  printf("%ld\n", total);
  return argc < 3;
}
"""


@pytest.mark.parametrize("flags", [(), ASAN, TSAN], ids=["plain", "asan", "tsan"])
@pytest.mark.parametrize("futex", [True, False])
def test_pool(flags: tuple[str, ...], futex: bool, tmp_path: Path) -> None:
    text = POOL
    if not futex:  # the other way to sleep, for systems without futexes
        text = POOL.replace('#include "internal.h"', '#include "internal.h"\n#include "pool2.c"')
        (tmp_path / "pool2.c").write_text(
            (RUNNER / "pool.c").read_text().replace("defined(__linux__)", "0")
        )
    sources = ("pool",) if futex else ()
    program = compile_c(text, tmp_path / "pool", sources, (*flags, f"-I{tmp_path}"))
    for threads in (1, 2, 3, 7):
        run(program, threads, 300 if os.environ.get("LUMC_FUZZ") and not flags else 100)


APART = r"""
#include "internal.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
static atomic_int where = -1;
static void note(void *const *args, long part, long parts) {
  (void)args, (void)parts;
  if (part == 1) atomic_store(&where, sched_getcpu());
}
/* A worker that can only run on the first CPU, by a mask that it inherited, and then may leave. */
int main(int argc, char **argv) {
  (void)argc;
  const int first = atoi(argv[1]), second = atoi(argv[2]);
  cpu_set_t one, both;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  both = one;
  CPU_SET(second, &both);
  sched_setaffinity(0, sizeof one, &one);
  struct pool *p = pool_new(2);
  struct op op = {note, NULL, 2, 0};
  for (int i = 0; i < 3; ++i) {
    pool_run(p, &op, 1);
    if (atomic_load(&where) != first) return 1;
  }
  for (int i = 0; i < 1000 && atomic_load(&where) != second; ++i) {
    sched_setaffinity(0, sizeof one, &one); /* the caller is there too, */
    sched_setaffinity(0, sizeof both, &both); /* and may be for a while */
    pool_run(p, &op, 1);
  }
  pool_free(p);
  return atomic_load(&where) == second ? 0 : 2;
}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's affinity")
def test_a_worker_leaves_the_cpu_of_another_part(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    program = compile_c(APART, tmp_path / "apart", ("pool",), TSAN)
    run(program, *cpus[:2])


# ---- the command line


def test_command_line(sanitized: Path, made: tuple[Path, Any], tmp_path: Path) -> None:
    path, reference = made
    x = np.random.default_rng(2).standard_normal((5, 11), np.float32)
    np.save(tmp_path / "x.npy", x)
    for program in (sanitized, path / "bin" / "lumc-run"):
        for threads in (1, 2, 3, 7):
            files = [
                "-o",
                tmp_path / "o.npz",
                "-o",
                tmp_path / "y.npy",
                "-o",
                f"y={tmp_path}/z.npy",
            ]
            given = ["--input", f"x={tmp_path}/x.npy", "--threads", threads]
            assert run(program, path, *given, *files).stdout == ""
            with np.load(tmp_path / "o.npz") as z:
                assert z.files == ["y"]
                np.testing.assert_allclose(z["y"], reference(x), rtol=1e-4, atol=1e-5)
                for name in ("y.npy", "z.npy"):
                    np.testing.assert_array_equal(np.load(tmp_path / name), z["y"])
    said = run(sanitized, path, "-i", tmp_path / "x.npy", "--repeat", 20).stdout
    assert re.fullmatch(r"min [\d.]+ us, median [\d.]+ us \(20 runs, 1 threads\)\n", said)
    said = run(sanitized, path, "--list").stdout
    assert said == "device cpu\nentry main\n  input  x f32[5,11]\n  output y f32[5,3]\n"
    assert run(sanitized, "--help").stdout.startswith("usage: lumc-run BUNDLE")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.npz", "x.npy", "y.npy", "z.npy"]


def save(path: Path, x: Any, **kwargs: Any) -> Path:
    with path.open("wb") as f:
        np.lib.format.write_array(f, x, **kwargs)
    return path


def test_wrong_usage_is_one_line(sanitized: Path, made: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = made
    good = save(tmp_path / "x.npy", np.zeros((5, 11), np.float32))
    short = tmp_path / "short.npy"
    short.write_bytes(good.read_bytes()[:-1])
    long = tmp_path / "long.npy"
    long.write_bytes(good.read_bytes() + b"\0")
    swapped = save(tmp_path / "swapped.npy", np.zeros((5, 11), ">f4"))
    fortran = save(tmp_path / "fortran.npy", np.asfortranarray(np.zeros((5, 11), np.float32)))
    double = save(tmp_path / "double.npy", np.zeros((5, 11)))
    flat = save(tmp_path / "flat.npy", np.zeros(55, np.float32))
    for arguments, said in (
        ([], "no bundle given"),
        ([tmp_path / "none.lb"], "no bundle at"),
        ([good], "is a file, not the folder of a bundle"),
        ([path, "--threads"], "--threads needs a value"),
        ([path, "--threads", "0"], "not a positive number"),
        ([path, "--threads", "2x"], "not a positive number"),
        ([path, "--threads", "100000"], "threads must be in"),
        ([path, "--frobnicate"], "unexpected argument"),
        ([path, path], "unexpected argument"),
        ([path], "input 'x' f32[5,11] is missing"),
        ([path, "-i", f"w={good}"], "no input 'w'"),
        ([path, "-i", f"xx={good}"], "no input 'xx'"),
        ([path, "-i", good, "-i", good], "given twice"),
        ([path, "-i", good, "--entry", "decode"], "no entry 'decode'"),
        ([path, "-i", good, "-o", "q=q.npy"], "no output 'q'"),
        ([path, "-i", tmp_path / "none.npy"], "cannot open"),
        ([path, "-i", ROOT / "pyproject.toml"], "not a .npy file"),
        ([path, "-i", short], "size"),
        ([path, "-i", long], "size"),
        ([path, "-i", swapped], "dtype '>f4"),
        ([path, "-i", fortran], "Fortran order"),
        ([path, "-i", double], "must be f32[5,11]"),
        ([path, "-i", flat], "must be f32[5,11]"),
    ):
        done = run(sanitized, *arguments, code=2)
        assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("lumc-run: ")
    for given, code, said in ((good, 0, ""), (short, 2, "is truncated")):
        call = [sanitized, path, "-i", "/dev/stdin", "-o", tmp_path / "piped.npy"]
        piped = subprocess.run(call, input=given.read_bytes(), capture_output=True)
        assert piped.returncode == code and said in piped.stderr.decode()
    done = run(sanitized, path, "-i", good, "-o", tmp_path / "no" / "y.npy", code=1)
    assert "cannot write" in done.stderr


def output(program: Path, made: tuple[Path, Any], folder: Path, *names: object, **how: Any) -> str:
    """What lumc-run says when it writes its output under these names."""
    x = folder / "x.npy"
    np.save(x, np.ones((5, 11), np.float32))
    said = run(program, made[0], "-i", x, *(w for n in names for w in ("-o", n)), **how).stderr
    x.unlink()
    return said


def test_what_is_no_file_is_written_to(
    sanitized: Path, made: tuple[Path, Any], tmp_path: Path
) -> None:
    """A file would take the place of /dev/null, or of a pipe that somebody reads."""
    want, pipe = tmp_path / "want", tmp_path / "pipe"
    for name, written in (("want.npy", f"y={pipe}"), ("want.npz", tmp_path / "pipe.npz")):
        want = tmp_path / name
        output(sanitized, made, tmp_path, want)
        pipe = Path(str(written).removeprefix("y="))
        os.mkfifo(pipe)
        with ThreadPoolExecutor() as pool:
            reader = pool.submit(pipe.read_bytes)
            output(sanitized, made, tmp_path, written)
            assert reader.result(10) == want.read_bytes()
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        want.unlink()
        pipe.unlink()
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        output(sanitized, made, tmp_path, f"y={null}")
    except PermissionError:  # only root makes devices, and could lose them
        output(sanitized, made, tmp_path, f"y={os.devnull}")
    else:
        assert stat.S_ISCHR(null.stat().st_mode)
        null.unlink()
    assert not [*tmp_path.iterdir()] and stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_outputs_follow_no_links(sanitized: Path, made: tuple[Path, Any], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("y.npy.part", "y.npy"):
        (tmp_path / name).symlink_to(victim)
    output(sanitized, made, tmp_path, tmp_path / "y.npy")
    assert victim.read_text() == "mine" and not (tmp_path / "y.npy").is_symlink()
    assert np.load(tmp_path / "y.npy").shape == (5, 3)
    (tmp_path / "y.npy").unlink()
    before = os.umask(0o027)
    try:
        output(sanitized, made, tmp_path, tmp_path / "y.npy")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "y.npy").stat().st_mode) == 0o640


def test_outputs_that_cannot_be_written_leave_the_old_ones(
    sanitized: Path, made: tuple[Path, Any], tmp_path: Path
) -> None:
    """A file that may not be that long is to a program what a full disk is."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    said = output(sanitized, made, tmp_path, "/dev/full", code=1)
    assert said == f"lumc-run: cannot write /dev/full: {os.strerror(errno.ENOSPC)}\n"
    for name in ("y.npy", "y.npz"):
        (tmp_path / name).write_text("old")
        said = output(sanitized, made, tmp_path, tmp_path / name, code=1, preexec_fn=limit)
        assert said == f"lumc-run: cannot write {tmp_path / name}: {os.strerror(errno.EFBIG)}\n"
        assert (tmp_path / name).read_text() == "old"
    (tmp_path / "folder").mkdir()
    assert "folder: " in output(sanitized, made, tmp_path, f"y={tmp_path / 'folder'}", code=1)
    assert {p.name for p in tmp_path.iterdir()} == {"y.npy", "y.npz", "folder"}


def test_runs_that_write_one_file_share_no_temporary(
    made: tuple[Path, Any], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 11), np.float32))
    command = [made[0] / "bin" / "lumc-run", made[0], "-i", "x.npy", *["-o", "y.npy"] * 20]
    runs = [subprocess.Popen(list(map(str, command)), cwd=tmp_path) for _ in range(4)]
    assert [r.wait(60) for r in runs] == [0] * 4
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}
    assert np.load(tmp_path / "y.npy").shape == (5, 3)


FAULTS = r"""
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fails; /* the call that does, counted down */
static ssize_t read_(int f, void *to, size_t n) {
  return --fails ? read(f, to, n) : (errno = EIO, -1);
}
static void *malloc_(size_t n) { return --fails ? malloc(n) : NULL; }
static void *calloc_(size_t n, size_t size) { return --fails ? calloc(n, size) : NULL; }
#define read read_
#define malloc malloc_
#define calloc calloc_
#include "files.c"
#include "plan.c"
int main(int argc, char **argv) {
  char *data;
  size_t size;
  struct sha256 hash;
  struct plan plan;
  for (int i = 1; i < 100; ++i) {
    fails = i;
    sha256_start(&hash);
    int code = read_whole(argv[argc - 2], argv[argc - 1], 1 << 20, &data, &size, &hash);
    if (!code) code = plan_read(&plan, (uint8_t *)data, size), plan_free(&plan);
    printf("%d %s\n", code, code ? lumc_error() : "");
    if (!code) return 0;
  }
  return 1;
}
"""


def test_faults_of_the_machine_are_no_faults_of_the_bundle(
    made: tuple[Path, Any], tmp_path: Path
) -> None:
    """Each read and each allocation fails in turn: 1, failed; never 5, corrupt."""
    program = compile_c(FAULTS, tmp_path / "faults", ("errors", "plan_ranks", "sha256"), ASAN)
    lines = run(program, made[0], "plan/cpu-native.bin").stdout.splitlines()
    assert len(lines) > 6 and lines[-1] == "0 "
    assert {line.split()[0] for line in lines[:-1]} == {"1"}, lines
    assert any("Input/output error" in line for line in lines)
    assert any("out of memory" in line or "allocate" in line for line in lines)


def test_damaged_npy_headers(sanitized: Path, made: tuple[Path, Any], tmp_path: Path) -> None:
    """Every byte of the header changed in turn: usage errors, never a crash."""
    path, _ = made
    good = save(tmp_path / "x.npy", np.zeros((5, 11), np.float32)).read_bytes()
    rng = np.random.default_rng(0)
    for i in range(0, 128, 2):
        damaged = bytearray(good)
        damaged[i] = int(rng.integers(256))
        damaged[i + 1] = int(rng.integers(32, 127))
        (tmp_path / "bad.npy").write_bytes(damaged)
        done = subprocess.run(
            [sanitized, path, "-i", tmp_path / "bad.npy"], capture_output=True, text=True
        )
        assert done.returncode in (0, 2), done.stderr


def test_a_huge_input_is_not_read(sanitized: Path, made: tuple[Path, Any], tmp_path: Path) -> None:
    """It has the size that its header says, without taking any room on the disk."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (17179869184,), }\n"
    with (tmp_path / "x.npy").open("wb") as f:
        f.write(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head)
        f.truncate(10 + len(head) + (1 << 36))
    done = run(sanitized, made[0], "--input", tmp_path / "x.npy", code=2)
    assert "must be" in done.stderr


def test_check_runs_every_entry(sanitized: Path, made: tuple[Path, Any]) -> None:
    assert run(sanitized, made[0], "--check").stdout == ""


def test_every_dtype_through_files(sanitized: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values, launches, kernels, arrays = [], [], [], {}
    for i, dtype in enumerate(DType):
        shape = (3, 5) if i % 2 else ()
        values.append(Value(f"x{i}", dtype, shape, "input", i))
        values.append(Value(f"y{i}", dtype, shape, "output", i))
        n = values[-1].nbytes
        body = "  const char *x = args[0]; char *y = args[1]; for (; lo < hi; ++lo) y[lo] = x[lo];"
        kernels.append(kernel(f"k{i}", n, body, ("b0", "out")))
        launches.append(Launch(f"k{i}", (f"x{i}", f"y{i}")))
        arrays[f"x{i}"] = rng.integers(0, 2, shape).astype(dtype.numpy)
        np.save(tmp_path / f"x{i}.npy", arrays[f"x{i}"])
    path = build(simple(kernels, values, launches), tmp_path / "m.lb", tmp_path)
    inputs = [a for i in range(len(DType)) for a in ("-i", f"x{i}={tmp_path}/x{i}.npy")]
    for program in (sanitized, path / "bin" / "lumc-run"):
        run(program, path, *inputs, "-o", tmp_path / "o.npz", "-o", f"y3={tmp_path}/y3.npy")
        with np.load(tmp_path / "o.npz") as z:
            for i, dtype in enumerate(DType):
                assert z[f"y{i}"].dtype == dtype.numpy
                np.testing.assert_array_equal(z[f"y{i}"], arrays[f"x{i}"])
    done = run(sanitized, path, "-i", tmp_path / "x0.npy", code=2)
    assert f"there are {len(DType)} inputs: write NAME=" in done.stderr


# ---- the C API


def test_the_example_of_the_docs(made: tuple[Path, Any], tmp_path: Path) -> None:
    path, reference = made
    tmp_path = tmp_path / "a folder"
    tmp_path.mkdir()
    text = (ROOT / "docs" / "bundle.md").read_text()
    (tmp_path / "example.c").write_text(re.findall(r"```c\n(.*?)```", text, re.S)[0])
    (command,) = re.findall(r"^(cc example\.c .*)$", text, re.M)
    (tmp_path / "model.lb").symlink_to(path)
    command = re.sub("^cc", " ".join(compiler().command) + " -Wall -Wextra -Werror", command)
    said = run("sh", "-c", command, cwd=tmp_path).stdout
    x = np.arange(55, dtype=np.float32).reshape(5, 11) / 8
    got = [float(line.split(" = ")[1]) for line in said.splitlines()]
    np.testing.assert_allclose(got, reference(x).reshape(-1), rtol=1e-4)
    assert run(tmp_path / "example", tmp_path, code=1).stderr.count("\n") == 1


def test_the_header_is_plain_c_and_cxx(tmp_path: Path) -> None:
    (tmp_path / "use.c").write_text(
        "#include <lumc.h>\nint main(void) { return lumc_error() == 0; }\n"
    )
    for language in ("c", "c++"):
        standard = {"c": "-std=c99", "c++": "-std=c++11"}[language]
        flags = ("-x", language, standard, "-pedantic-errors", "-Wall", "-Werror", f"-I{RUNNER}")
        done = subprocess.run(
            [*compiler().command, *flags, "-c", "use.c", "-o", "use.o"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        if language == "c++" and "not" in done.stderr and done.returncode:
            continue  # no C++ compiler here
        assert done.returncode == 0, done.stderr


def test_the_sources_compile_without_warnings(tmp_path: Path) -> None:
    for name in (*runners.LIBRARY, "main"):
        flags = (*toolchain.RUNNER_FLAGS, "-Werror", "-Wshadow", "-Wpointer-arith", "-Wundef")
        output = ("-c", str(RUNNER / f"{name}.c"), "-o", str(tmp_path / "x.o"))
        run(*compiler().command, *flags, *output)
