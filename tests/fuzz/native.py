"""What the native runner reads, with faults, under ASan and UBSan, guided by coverage: native.c."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from bundles import begun, build, compiler, every_place, mlp, with_buckets
from lumc.link import runners
from meshed import alternating, meshed, staged

RUNNER = Path(runners.__file__).parent / "runner"
HARNESS = Path(__file__).with_name("native.c")
TARGETS = ("plan", "npy", "states", "manifest", "bundle")
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-O1", "-std=gnu11")
LIMITS = "allocator_may_return_null=1:max_allocation_size_mb=4096"
MOST = 1 << 62  # runs of one slice
SMALL = 1 << 16  # bytes of an input that the harness takes


def make(folder: Path) -> Path:
    """The harness, a bundle, and first inputs of every target; made once."""
    out = folder / "harness"
    if out.exists():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "made"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    product = build(mlp(base)[0], base / "m.lb", base)
    first = np.arange(12, dtype=np.float32)
    places = build(begun(every_place(), base, s=first), base / "s.lb", base)
    buckets = build(with_buckets(), base / "b.lb", base)
    for target in TARGETS:
        corpus = folder / target
        corpus.mkdir(exist_ok=True)
        for name, data in first_inputs(target, (product, places, buckets)):
            (corpus / name).write_bytes(data)
    objects = []
    for name in runners.LIBRARY:  # coverage is of what is tested
        objects.append(folder / f"{name}.o")
        source, traced = str(RUNNER / f"{name}.c"), "-fsanitize-coverage=trace-pc"
        cc(traced, "-c", source, "-o", str(objects[-1]))
    part = out.with_suffix(".part")
    cc(f"-I{RUNNER}", str(HARNESS), *map(str, objects), "-o", str(part), "-pthread", "-ldl")
    part.rename(out)
    return out


def cc(*args: str) -> None:
    subprocess.run([*compiler().command, *CHECKED, *args], check=True)


def first_inputs(target: str, bundles: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    if target == "npy":
        yield from arrays()
    elif target == "states":
        yield from states()
    elif target == "manifest":
        yield "first", (bundles[0] / "manifest.json").read_bytes()
    else:  # whole bundles keep the files of the first one
        for i, bundle in enumerate(bundles if target == "plan" else bundles[:1]):
            (plan,) = (bundle / "plan").glob("*.bin")
            yield f"first{i}", plan.read_bytes()
        if target == "plan":
            yield "mesh", meshed()
            yield "stages", staged()
            yield "turns", alternating()


def states() -> Iterator[tuple[str, bytes]]:
    """Files of three states, in both orders, with metadata and without."""
    given = {"f": np.ones((3, 5), "f4"), "t": np.ones(4, bool), "n": np.array(7)}
    yield "first0", save(given)
    yield "first1", save(dict(reversed(given.items())), {"a": "1", "c": "two"})


def arrays() -> Iterator[tuple[str, bytes]]:
    """Files of numpy of every dtype and version."""
    import io

    shapes: list[tuple[int, ...]] = [(), (3,), (2, 3), (0, 4), (1, 1, 2)]
    for i, kind in enumerate(
        ("f4", "f2", "u2", "f8", "i8", "i4", "i1", "u1", "?", "i2", "u4", "u8")
    ):
        out = io.BytesIO()
        version = ((1, 0), (2, 0), (3, 0))[i % 3]
        np.lib.format.write_array(out, np.ones(shapes[i % 5], kind), version, allow_pickle=False)
        yield f"first{i}", out.getvalue()


def fuzz(
    folder: Path, target: str, seed: int, limits: tuple[float, float], most: int = MOST
) -> dict[str, int]:
    """Runs of one target, as many seconds of the processor and in all as the limits say;
    ``finding`` is 1 when one was made, and its input lies in ``found``."""
    harness, own = make(folder), folder / f"{target}.lb"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(folder / "made" / "m.lb", own)
    current = folder / f"{target}.current"
    numbers = str(seed), str(most), *map(str, limits)
    command = [str(harness), target, str(folder / target), str(current), *numbers, str(own)]
    env = {"ASAN_OPTIONS": LIMITS, "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode == 3:
        raise RuntimeError(f"the harness cannot run: {' '.join(command)}\n{done.stderr}")
    if done.returncode:
        keep(folder.parent / "found", target, seed, current, done.stderr)
        return {"findings": 1}
    runs, corpus, edges, accepted = map(int, done.stdout.split())
    return {"runs": runs, "corpus": corpus, "edges": edges, "accepted": accepted}


def keep(found: Path, target: str, seed: int, current: Path, said: str) -> None:
    """The input that a sanitizer ended, and its report."""
    found.mkdir(parents=True, exist_ok=True)
    data = current.read_bytes()
    size = int.from_bytes(data[:8], "little")
    (found / f"{target}-{seed}.bin").write_bytes(data[8 : 8 + size])
    (found / f"{target}-{seed}.txt").write_text(said)
    print(f"native {target}: {said.strip()[:2000]}", file=sys.stderr)
