"""The C compiler: which one, what it is, and compiling so that equal sources give equal bytes."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lumc.disk import private
from lumc.disk.objects import fetch, keep, name_of
from lumc.doing import doing
from lumc.environment import home, told
from lumc.errors import Exit, LumcError
from lumc.process import Terminated

FALLBACKS = ("gcc", "cc", "clang")
ZIG = ("zig", "ziglang")  # whose command ``cc`` is a C compiler
# Of two accumulators, unroll-and-jam keeps both in memory: a sum takes twice the time. Jump
# threading makes branches of choices, and gcc 12 then reads wrong lanes of what lies strided
# (tests/fuzz/found/choice_of_strided_values.json).
GCC_ONLY = ("-fno-loop-unroll-and-jam", "-fno-thread-jumps")
# Never -ffast-math: NaN and infinity are values, and it reassociates what the schedule ordered.
KERNEL_FLAGS = (
    *("-std=gnu11", "-O3", "-g0", "-fPIC", "-fopenmp-simd", "-ffp-contract=fast"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-semantic-interposition"),
    *GCC_ONLY,
)
RUNNER_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-Wall", "-Wextra", "-pthread")
TIMEOUT_S = 600
NO_ROOM = os.strerror(errno.ENOSPC)  # as compilers say it too
REFUSED = "E0702"  # the code of what a compiler says of a source
STARTS_S = 0.02  # until a compiler that was about to start is looked for again
HEARS_S = 0.2  # until a thread that waits looks for signals
ENDS_S = 1.0  # that a compiler may take to remove what it made, when it is stopped; a guess
T = TypeVar("T")

# What a compiler may use on its own, as its macros say; runner/features.c knows these names.
FEATURES = (
    "sse3 ssse3 sse4_1 sse4_2 popcnt lzcnt movbe bmi bmi2 avx f16c fma avx2 avxvnni gfni "
    "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512vbmi2 avx512vnni "
    "avx512bitalg avx512vpopcntdq avx512fp16 avx512bf16 amx_tile amx_int8 amx_bf16"
)
ARM_FEATURES = {
    "__ARM_NEON": "neon",
    "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "fp16",
    "__ARM_FEATURE_DOTPROD": "dotprod",
    "__ARM_FEATURE_SVE": "sve",
    "__ARM_FEATURE_MATMUL_INT8": "i8mm",
    "__ARM_FEATURE_BF16": "bf16",
}


@dataclass(frozen=True)
class Toolchain:
    """A C compiler: the command words, and what it says about itself."""

    command: tuple[str, ...]
    version: str  # first line of --version
    machine: str  # x86_64-linux-gnu
    kept: Path | None = None  # the folder of compiled objects

    @property
    def is_zig(self) -> bool:
        return any(Path(word).name in ZIG for word in self.command)

    def spell(self, flags: Sequence[str]) -> list[str]:
        """Clang does not know all flags of gcc; ``zig cc`` has its own names of CPUs, and takes
        none to be this machine's."""
        flags = [f for f in flags if f not in GCC_ONLY or "clang" not in self.version]
        if not self.is_zig:
            return list(flags)
        known = [f.replace("=x86-64-v", "=x86_64_v") for f in flags if f != "-march=armv8-a"]
        return known if any(f.startswith("-march=") for f in known) else [*known, "-mcpu=baseline"]


def find(cc: str | None = None, kept: Path | None = None) -> Toolchain:
    """``cc`` (a command, may have arguments), else gcc, cc, clang, zig of the PATH or of its wheel;
    it reuses the objects in ``kept``. Raises E0701, exit 7, when none of them works."""
    candidates = [*((name,) for name in FALLBACKS), *zigs()]
    if cc:
        words = _words(cc)
        alone = words and Path(words[-1]).name in ZIG  # the compiler is one of its commands
        candidates = [(*words, "cc") if alone else words]
    failed = ""
    for command in candidates:
        if command and shutil.which(command[0]):
            version = _run([*command, "--version"])
            machine = _run([*command, "-dumpmachine"])
            if not version.returncode and machine.stdout.strip():  # zig fails and says it
                said = (version.stdout.splitlines() or [""])[0]
                return Toolchain(command, said, machine.stdout.strip(), kept)
            said = f"{version.stderr}\n{machine.stderr}".strip().partition("\n")[0]
            failed = f"{shlex.join(command)} says: {said}" if said else failed
    tried = ", ".join(" ".join(c) for c in candidates)
    fix = "install gcc or clang (Debian: apt install gcc libc6-dev), or: pip install ziglang"
    what = f"no C compiler: tried {tried}"
    raise LumcError("E0701", what, where=failed, fix=fix, exit=Exit.TOOLCHAIN)


def _words(command: str) -> tuple[str, ...]:
    """As a shell splits it; one that no shell takes is one word, of a program that is not there."""
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return (command,)


def zigs() -> list[tuple[str, ...]]:
    """zig as a C compiler: of the PATH, of the ziglang wheel."""
    wheel = (sys.executable, "-m", "ziglang", "cc")
    return [("zig", "cc"), *[wheel][: bool(importlib.util.find_spec("ziglang"))]]


def zig_cache() -> dict[str, str]:
    """Of the environment of zig, which works only with a cache: where that of the user cannot be
    written, it lies among the temporary files."""
    own = Path(told("XDG_CACHE_HOME") or home() / ".cache", "zig")
    folder = Path(tempfile.gettempdir()) / f"lumc-zig-{os.getuid()}"
    if told("ZIG_GLOBAL_CACHE_DIR") or not private.ensure(own) or private.ensure(folder):
        return {}
    return {"ZIG_GLOBAL_CACHE_DIR": str(folder)}


def macros(tools: Toolchain, flags: Sequence[str]) -> dict[str, str]:
    """What the compiler predefines under these flags: it says which instructions it may use."""
    done = _run([*tools.command, *tools.spell(flags), "-dM", "-E", "-x", "c", os.devnull])
    if done.returncode:
        raise _failed("these flags", " ".join(flags), done)
    lines = (line.split(None, 2) for line in done.stdout.splitlines())
    return {words[1]: (words[2] if len(words) > 2 else "") for words in lines if len(words) > 1}


def architecture(macros: dict[str, str]) -> str:
    """As the runner calls it: x86_64, aarch64 or generic."""
    known = ("x86_64", "aarch64")
    return next((name for name in known if f"__{name}__" in macros), "generic")


def features(macros: dict[str, str]) -> tuple[str, ...]:
    """The CPU features that code under these macros may need, in a fixed order."""
    x86 = [name for name in FEATURES.split() if f"__{name.upper()}__" in macros]
    return (*x86, *(name for macro, name in ARM_FEATURES.items() if macro in macros))


def fingerprint(tools: Toolchain, flags: Sequence[str], header: str) -> str:
    """Identifies the code that this compiler would make of kernels: its version, what the flags
    mean, and the text of the header that kernels include."""
    meant = sorted(macros(tools, flags).items())
    text = repr((tools.version, tools.machine, tuple(flags), meant, header))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compile_objects(
    tools: Toolchain,
    folder: Path,
    sources: Sequence[str],
    flags: Sequence[str],
    seconds: float = TIMEOUT_S,
) -> list[str]:
    """Compile files of ``folder``, several at a time, each in so many seconds; names stay relative,
    so no object depends on where the folder lies. Returns the names of the objects."""

    command = [*tools.command, *tools.spell(flags)]
    made_by = (tools.version, tools.machine, *command)

    def compile_one(source: str) -> str:
        output = str(Path(source).with_suffix(".o"))
        compile_file([*command, "-c"], folder, source, output, made_by, tools.kept, seconds)
        return output

    place = folder.name if folder.parent.name == "kernels" else "runner"
    doing(f"compiling {len(sources)} files, {place}")
    return side_by_side(compile_one, sources)


def side_by_side(make: Callable[[str], T], wanted: Sequence[str]) -> list[T]:
    """What is made of each, by several compilers at a time; Ctrl-C ends them, and those that were
    about to start."""
    stopped, running = threading.Event(), list[str]()

    def one(what: str) -> T:
        running.append(what)
        try:
            if stopped.is_set():
                raise CancelledError
            return make(what)
        finally:
            running.remove(what)

    def heard(made: Future[T]) -> T:
        """A signal that comes as this thread begins to wait does not wake it."""
        while wait([made], HEARS_S).not_done:
            pass
        return made.result()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = list[Future[T]]()
        try:
            futures += [pool.submit(one, what) for what in wanted]
            return [heard(made) for made in futures]
        except (KeyboardInterrupt, Terminated):
            stopped.set()
            while running:
                for process in list(_compilers):
                    _stop(process)
                time.sleep(STARTS_S)
            raise
        finally:
            for made in futures:  # after a failure the rest is not begun
                made.cancel()


_compilers: set[subprocess.Popen[str]] = set()  # that run


def compile_file(
    command: Sequence[str],
    folder: Path,
    source: str,
    output: str,
    made_by: Sequence[str],
    kept: Path | None,
    seconds: float = TIMEOUT_S,
) -> None:
    """Make ``output`` of a file in ``folder``, unless the result is kept already under the source,
    the headers beside it and ``made_by``. Raises E0702."""
    name = name_of(folder, source, made_by) if kept else ""
    if kept and (data := fetch(kept, name)):
        (folder / output).write_bytes(data)
        return
    done = _run([*command, source, "-o", output], folder, seconds)
    if done.returncode or not (folder / output).is_file():
        raise _failed(source, f"{folder.name}/{source}", done)
    if kept:
        keep(kept, name, (folder / output).read_bytes())


def output_of(command: Sequence[str]) -> str:
    """What a command prints; nothing when it fails."""
    done = _run(command)
    return "" if done.returncode else done.stdout


def link_objects(
    tools: Toolchain, folder: Path, objects: Sequence[str], output: str, flags: Sequence[str]
) -> None:
    of_paths = tools.is_zig and "linux" in tools.machine  # those of its start files
    bare = ("-s",) if of_paths else ()
    done = _run([*tools.command, *objects, "-o", output, *flags, *bare], folder)
    if done.returncode or not (folder / output).is_file():
        raise _failed(output, " ".join(tools.command), done)


def link_archive(tools: Toolchain, folder: Path, objects: Sequence[str], output: str) -> None:
    """A static library, by the ar of the compiler, without times and owners."""
    asked = output_of([*tools.command, "-print-prog-name=ar"]).strip()
    command = [asked or "ar", "rcs" if sys.platform == "darwin" else "rcsD"]
    if tools.is_zig:
        command[:1] = [*tools.command[: tools.command.index("cc")], "ar"]
    done = _run([*command, output, *objects], folder)
    if done.returncode or not (folder / output).is_file():
        raise _failed(output, " ".join(command), done)


def _run(
    command: Sequence[str], folder: Path | None = None, seconds: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Its output, or a failure; a compiler that takes too long ends with all that it started."""
    pipe = subprocess.PIPE
    env = {**os.environ, **zig_cache()} if any(Path(w).name in ZIG for w in command) else None
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=env, text=True, errors="replace", start_new_session=True, **how
        )
    except OSError as e:
        return subprocess.CompletedProcess(command, 1, "", str(e))
    try:
        _compilers.add(process)
        out, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _stop(process)
        return subprocess.CompletedProcess(command, 1, "", f"no result in {seconds:g} s")
    except BaseException:
        _stop(process)
        raise
    finally:
        _compilers.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, said)


def _stop(process: subprocess.Popen[str]) -> None:
    """End a compiler with all that it started; it may remove its temporary files first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):  # it has ended meanwhile
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_S)


def _failed(what: str, where: str, done: subprocess.CompletedProcess[str]) -> LumcError:
    """Why there is no result. A full disk is nothing that the compiler has against a source."""
    if NO_ROOM in done.stderr:
        fix = "make room for the bundle, or for temporary files ($TMPDIR)"
        return LumcError("E0202", f"the compiler cannot write {what}: {NO_ROOM}", fix=fix)
    lines = done.stderr.splitlines()
    found = [line for line in lines if re.search(r"error|undefined|cannot", line)]
    said = "; ".join(line.strip() for line in (found or lines)[:3])
    if done.returncode < 0:
        ended = f"the compiler ended by {signal.Signals(-done.returncode).name} at {what}"
        said = f"{ended}: {said}" if said else ended
    else:
        said = f"the compiler refused {what}: {said or f'exit code {done.returncode}'}"
    fix = "try another compiler (--cc, $NVCC), or report it with the .lk file"
    return LumcError(REFUSED, said, where=where, fix=fix)
