"""Models for Triton in tests: requests to a host that stands for the server (triton_host.c), and a
real server where there is one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bundles import compiler
from compiling import ASAN, RUNNER, STRICT, link
from lumc.graph.ops import DType
from lumc.link import runners, triton

TESTS = Path(__file__).parent
CPU, GPU, MODEL = 1, 2, 3  # kinds of instances
Array = np.ndarray[Any, Any]
SANITIZED = (*ASAN, "-fno-omit-frame-pointer")
# as TRITONSERVER_DataType counts them
TYPES = (
    *("", "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "", "bfloat16"),
)
INTERNAL, NOT_FOUND, INVALID, UNAVAILABLE, UNSUPPORTED = 1, 2, 3, 4, 5

# a dim that shapes tell, two inputs having it; one that has a name only; a scalar, a bool, a state
PARTS = """lumc graph 1
dim s in 2..12 multiple 2
dim p in 0..5
input x f32[s, 4]
input keep bool[s]
input n i32[]
state seen f32[4]
kept f32[i:s, j:4]   = mul keep[i], x[i, j]
some f32[j:4, i:s]   = add kept[i, j], f32(p)
sums f32[j:4]        = sum i:s of some[j, i]
seen.1 f32[j:4]      = add seen[j], sums[j]
more i32[]           = add n[], 7
update seen[j] = seen.1[j]
output kept = kept
output sums = seen.1
output more = more
"""


def parts(x: Array, keep: Array, n: Array, p: int) -> dict[str, Array]:
    """What PARTS makes of its inputs, in f64, of a state that is zero."""
    kept = np.where(keep[:, None], x, 0).astype(np.float64)
    return {"kept": kept, "sums": (kept + p).sum(0), "more": n + 7}


@dataclass
class Request:
    """Inputs by their names; ``pieces`` says how many buffers one lies in, ``as_type``,
    ``as_shape`` and ``as_bytes`` what is said of it in the place of the truth."""

    inputs: Mapping[str, Array]
    wants: Sequence[str]
    parameters: Mapping[str, object] = field(default_factory=dict)
    pieces: int = 1
    as_type: Mapping[str, int] = field(default_factory=dict)
    as_shape: Mapping[str, Sequence[int]] = field(default_factory=dict)
    as_bytes: Mapping[str, int] = field(default_factory=dict)
    on_gpu: str = ""
    refuses: bool = False  # to give memory for outputs

    def text(self) -> str:
        lines = ["request"]
        for name, value in self.parameters.items():
            lines.append(f"param {name} {'int' if isinstance(value, int) else 'text'} {value}")
        for name, a in self.inputs.items():
            shape = self.as_shape.get(name, a.shape)
            known = self.as_type.get(name, TYPES.index(a.dtype.name))
            ends = np.linspace(0, a.nbytes, self.pieces + 1).astype(int)
            numbers = [known, len(shape), *shape, self.pieces, *np.diff(ends)]
            lines.append(" ".join(["input", name, *map(str, numbers)]))
            lines += ["gpu"] * (name == self.on_gpu)
            lines += [f"says {self.as_bytes[name]}"] if name in self.as_bytes else []
        return "\n".join([*lines, *(f"want {w}" for w in self.wants), *["refuse"] * self.refuses])


class Answer(NamedTuple):
    """Outputs by their names, or the code of an error and what it says."""

    outputs: Mapping[str, Array]
    code: int = 0
    error: str = ""


class Done(NamedTuple):
    """What an instance did: its answers, and the requests, successes and runs that it reported."""

    answers: list[Answer]
    reports: list[int]
    error: str = ""  # why there is no instance


def host(folder: Path, *flags: str) -> Path:
    """The program that loads backends."""
    program = folder / "triton_host"
    warnings = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1")
    command = [*compiler().command, *warnings, *flags, f"-I{RUNNER}", str(TESTS / "triton_host.c")]
    rest = ["-rdynamic", "-pthread", "-ldl", "-o", str(program)]
    subprocess.run([*command, *rest], check=True)
    return program


def library(folder: Path, *flags: str) -> Path:
    """The backend with other flags than those of a user."""
    names = (*runners.LIBRARY, *(name.removesuffix(".c") for name in triton.SOURCES))
    every = (*STRICT, "-O0", "-fPIC", "-shared", *flags)
    return link(names, every, folder / "libtriton_lumc.so")


def config(threads: object = 1) -> str:
    """As the server writes a model's configuration, with a text that has quotation marks."""
    text = 'of "threads":{"string_value":"9"'
    every = {"note": {"string_value": text}, "threads": {"string_value": str(threads)}}
    every = every if threads is not None else {}
    return json.dumps({"name": "m", "parameters": every}, separators=(",", ":"))


def served(
    program: Path,
    backend: Path,
    model: Path,
    scripts: Sequence[Sequence[Sequence[Request]]],
    folder: Path,
    kind: int = CPU,
    threads: object = 1,
    code: int = 0,
    env: Mapping[str, str] | None = None,
) -> tuple[list[Done], str]:
    """Every script is one of batches of requests, for an instance of its own. What they did, and
    what the program said."""
    paths = [folder / f"script{i}" for i in range(len(scripts))]
    for path, script in zip(paths, scripts, strict=True):
        every = ["\n".join([*(r.text() for r in batch), "run"]) for batch in script]
        path.write_text("\n".join(every))
        asked = (r for batch in script for r in batch)
        data = (a.tobytes() for r in asked for a in r.inputs.values())
        path.with_name(f"{path.name}.in").write_bytes(b"".join(data))
    command = [program, backend, model, config(threads), kind, *paths]
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == code, done.stderr + done.stdout
    said = done.stdout + done.stderr
    return ([] if code else [answers(p, s) for p, s in zip(paths, scripts, strict=True)]), said


def answers(path: Path, script: Sequence[Sequence[Request]]) -> Done:
    """What lies beside a script."""
    found: list[dict[str, Array]] = [{} for batch in script for _ in batch]
    errors: dict[int, tuple[int, str]] = {}
    data, at, problem = path.with_name(f"{path.name}.data").read_bytes(), 0, ""
    *lines, last = path.with_name(f"{path.name}.out").read_text().splitlines()
    for line in lines:
        number, what, rest = line.split(" ", 2)
        if number == "instance":
            problem = rest
        elif what == "error":
            code, text = rest.split(" ", 1)
            errors[int(number)] = int(code), text
        else:
            name, known, *shape = rest.split()
            dtype, sizes = DType(DTYPES[TYPES[int(known)]]).numpy, [int(n) for n in shape]
            count = int(np.prod(sizes, dtype=int))
            found[int(number)][name] = np.frombuffer(data, dtype, count, at).reshape(sizes)
            at += count * dtype.itemsize
    assert at == len(data)
    every = [Answer(f, *errors.get(i, (0, ""))) for i, f in enumerate(found)]
    return Done(every, [int(n) for n in last.split()[1:]], problem)


DTYPES = {d.numpy.name: d.value for d in DType}


def server() -> Path | None:
    """tritonserver: that of $LUMC_TRITONSERVER, or of the wheel nvidia-pytriton, which need not be
    importable (pip install --no-deps nvidia-pytriton)."""
    if told := os.environ.get("LUMC_TRITONSERVER"):
        return Path(told)
    spec = importlib.util.find_spec("pytriton")
    if not spec or not spec.origin:
        return None
    found = Path(spec.origin).parent / "tritonserver" / "bin" / "tritonserver"
    return found if found.is_file() else None


def headers() -> Path | None:
    """The folder of Triton's own headers, if there is one here."""
    told = os.environ.get("LUMC_TRITON_HEADERS")
    return Path(told) if told else None


@contextmanager
def real(program: Path, repository: Path, log: Path) -> Iterator[str]:
    """A server that has all models of a repository: its address. It has to end well."""
    command = [program, "--model-repository", repository, "--http-address", "127.0.0.1"]
    words = ["--http-port", free_port(), "--allow-grpc", "0", "--allow-metrics", "0"]
    with log.open("w") as f:
        process = subprocess.Popen(list(map(str, [*command, *words])), stdout=f, stderr=f)
    address = f"http://127.0.0.1:{words[1]}"
    try:
        end = time.monotonic() + 120
        while not is_ready(address):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/v2/health/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
