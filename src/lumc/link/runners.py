"""The native runner of a bundle: for this machine, for the other processors of its targets, and for
Macs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

from lumc.disk.scratch import scratch
from lumc.link import cross, glibc, mac
from lumc.link.toolchain import RUNNER_FLAGS, Toolchain, compile_objects, link_objects

# of runner/, and main for lumc-run
LIBRARY = (
    *("cpu", "cuda", "errors", "features", "feed", "files", "gpu", "gpu_memory", "hip"),
    *("hip_compile", "launch", "listing", "live", "memory", "metal", "metal_framework", "model"),
    *("mpi", "nccl", "npy", "output", "parcels", "plan", "plan_ranks", "pool", "ranks"),
    *("ranks_who", "rows", "safetensors", "sha256", "states", "tcp", "train"),
)
SONAME = "liblumc.so"  # programs ask for this name, wherever the bundle lay when they were linked
EXECUTABLE = 0o755


def build(folder: Path, compilers: Sequence[Toolchain], own: Toolchain) -> None:
    """bin/lumc-run, lib/liblumc.so and include/lumc.h, by the machine's ``own`` compiler if it made
    kernels, else by the first that did. The other processors have bin/lumc-run-linux-aarch64 and
    lib/linux-aarch64/liblumc.so."""
    first = own if own in compilers else compilers[0]
    known = {cross.made_by(tools): tools for tools in reversed((first, *compilers))}
    for arch, tools in known.items():
        for name, data in compile_runner(tools).items():
            place = folder / (name if tools == first else _elsewhere(name, arch))
            write(place, data)
            if place.parent.name == "bin":
                place.chmod(EXECUTABLE)


def _elsewhere(name: str, arch: str) -> str:
    name = name.replace("bin/lumc-run", f"bin/lumc-run-linux-{arch}")
    return name.replace("lib/", f"lib/linux-{arch}/")


def build_mac(folder: Path, tools: Toolchain) -> list[str]:
    """bin/lumc-run-macos-arm64; without its compiler only a note."""
    compiler = mac.compiler(tools.kept)
    if compiler is None:
        return [mac.LEFT_OUT]
    write(folder / mac.NAME, compile_mac_runner(compiler))
    (folder / mac.NAME).chmod(EXECUTABLE)
    return []


@contextmanager
def objects(tools: Toolchain, flags: Sequence[str] = ()) -> Iterator[tuple[Path, list[str]]]:
    """A folder with the objects of the runner, that of main last."""
    with scratch() as folder:
        for source in (files("lumc.link") / "runner").iterdir():
            write(folder / source.name, source.read_bytes())
        names = [f"{n}.c" for n in (*LIBRARY, "main")]
        yield folder, compile_objects(tools, folder, names, (*RUNNER_FLAGS, *flags))


@cache
def compile_runner(tools: Toolchain) -> Mapping[str, bytes]:
    """The files that are the same in every bundle that this compiler makes."""
    flags = glibc.oldest(tools)
    rest = ("-pthread", "-ldl", *flags.linking)
    with objects(tools, flags.compiling) as (folder, made):
        is_mac = "apple" in tools.machine or "macos" in tools.machine
        named = f"-Wl,-install_name,@rpath/{SONAME}" if is_mac else f"-Wl,-soname,{SONAME}"
        link_objects(tools, folder, made[:-1], "liblumc.so", ("-shared", named, *rest))
        link_objects(tools, folder, made, "lumc-run", (*rest, *flags.program))
        found = {"lib": "liblumc.so", "bin": "lumc-run", "include": "lumc.h"}
        return {f"{place}/{n}": (folder / n).read_bytes() for place, n in found.items()}


@cache
def compile_mac_runner(tools: Toolchain) -> bytes:
    with objects(tools) as (folder, made):
        link_objects(tools, folder, made, "lumc-run", ())
        return (folder / "lumc-run").read_bytes()


def write(path: Path, data: bytes) -> None:
    """A file, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
