"""A server in a process of its own, for tests; and requests that are none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PACKAGES = (
    *("uvicorn", "httptools", "uvloop", "starlette"),
    *("grpc", "google.protobuf", "prometheus_client"),
)
SMALL = """lumc graph 1
dim b in 1..8
input x f32[b, 4]
t0 f32[i:b, j:3, k:4] = mul x[i, k], f32(k + 2*j)
t1 f32[i:b, j:3] = sum k:4 of t0[i, j, k]
y f32[i:b, j:3] = add t1[i, j], 1.0
output y = y
"""
FACTORS = np.arange(4)[:, None] + 2.0 * np.arange(3)  # k, j


def expected(x: Any) -> np.ndarray[Any, Any]:
    """What SMALL makes of rows f32[b, 4], in f64."""
    return np.asarray(x, np.float64) @ FACTORS + 1.0


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """What listens at ``http`` and ``grpc``, and the process it is."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log
        self.http = int(self._said(r"serving http at 127.0.0.1:(\d+)"))
        found = re.search(r"serving grpc at 127.0.0.1:(\d+)", log.read_text())
        self.grpc = int(found[1]) if found else 0

    def _said(self, pattern: str, seconds: float = 240) -> str:
        return said(self.log, pattern, self.process, seconds)

    def hears(self, pattern: str, seconds: float = 240) -> str:
        """Waits until it says so on stderr."""
        return self._said(pattern, seconds)

    @property
    def workers(self) -> list[int]:
        """The processes that it started."""
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(p) for f in found for p in f.read_text().split()]

    def ask(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = 60,
        method: str | None = None,
    ) -> Answer:
        """A request on a connection of its own."""
        url = f"http://127.0.0.1:{self.http}{path}"
        request = urllib.request.Request(url, body, dict(headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return Answer(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as e:
            with e:
                return Answer(e.code, e.read(), e.headers)

    def infer(self, x: Any, model: str = "small") -> Answer:
        """Rows as JSON."""
        x = np.asarray(x, np.float32)
        return self.ask(f"/v2/models/{model}/infer", json.dumps(request_of(x)).encode())


def request_of(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    one = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.reshape(-1).tolist()}
    return {"inputs": [one]}


def said(log: Path, pattern: str, process: subprocess.Popen[str], seconds: float) -> str:
    """The first group of a pattern, once it is on stderr."""
    end = time.monotonic() + seconds
    while not (found := re.search(pattern, log.read_text())):
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"no {pattern!r} in: {log.read_text()}")
        time.sleep(0.02)
    return found[1] if found.groups() else found[0]


@contextmanager
def served(folder: Path, *arguments: object, grpc: bool = True) -> Iterator[Server]:
    """A server on free ports; it is stopped behind the block, and has to end well."""
    ports = ["--http", "0", *(["--grpc", "0"] if grpc else [])]
    command = [sys.executable, "-m", "lumc", "serve", *map(str, arguments), *ports]
    log, out = folder / "serve.err", folder / "serve.out"
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([source_folder(), *paths])}
    with log.open("w") as err, out.open("w") as stdout:
        process = subprocess.Popen(command, stdout=stdout, stderr=err, text=True, env=there)
    try:
        yield Server(process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(240)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def source_folder() -> str:
    import lumc

    return str(Path(lumc.__file__).parents[1])


# ---- requests that are none


def v2(**change: Any) -> bytes:
    """A request with one thing in it changed; None takes it away."""
    one: dict[str, Any] = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 4],
        "data": [1.0, 2.0, 3.0, 4.0],
    }
    rest = {k: change.pop(k) for k in ("id", "outputs", "parameters", "inputs") if k in change}
    one = {k: v for k, v in {**one, **change}.items() if v is not None}
    return json.dumps({"inputs": [one], **rest}).encode()


BYTES = {"binary_data_size": 16}
X = np.ones((1, 4), np.float32).tobytes()


def binary(size: Any = 16, data: bytes = X, **change: Any) -> tuple[bytes, str]:
    head = v2(data=None, **change).replace(
        b'"shape"', b'"parameters": {"binary_data_size": %s}, "shape"' % json.dumps(size).encode()
    )
    return head + data, str(len(head))


MALFORMED: dict[str, bytes | tuple[bytes, str]] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half of it": v2()[:-10],
    "a number": b"1",
    "a text": b'"x"',
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "two objects": v2() + v2(),
    "zeros": b"\0" * 100,
    "no UTF-8": b'{"inputs": [{"name": "\xff\xfe"}]}',
    "a lone surrogate": b'{"inputs": [{"name": "\\ud800"}]}',
    "deep lists": b"[" * 50_000,
    "deep data": v2().replace(b"[1.0, 2.0, 3.0, 4.0]", b"[" * 20_000 + b"]" * 20_000),
    "inputs are null": v2(inputs=None).replace(b'"inputs": []', b'"inputs": null'),
    "inputs are a number": v2(inputs=7),
    "inputs are an object": v2(inputs={}),
    "no inputs": v2(inputs=[]),
    "an input that is a number": v2(inputs=[1]),
    "an input without a name": v2(name=None),
    "a name that is a number": v2(name=7),
    "another name": v2(name="z"),
    "a long name": v2(name="z" * 10_000),
    "the same input twice": v2(inputs=json.loads(v2())["inputs"] * 2),
    "no shape": v2(shape=None),
    "a shape that is a number": v2(shape=4),
    "a shape of texts": v2(shape=["1", "4"]),
    "a negative extent": v2(shape=[-1, 4]),
    "a fraction": v2(shape=[1.5, 4]),
    "a huge extent": v2(shape=[1 << 70, 4]),
    "extents that overflow": v2(shape=[1 << 39, 1 << 39]),
    "another rank": v2(shape=[4]),
    "rank 100": v2(shape=[1] * 100),
    "another extent": v2(shape=[1, 5], data=[1.0] * 5),
    "no rows": v2(shape=[0, 4], data=[]),
    "too many rows": v2(shape=[9, 4], data=[1.0] * 36),
    "no datatype": v2(datatype=None),
    "another datatype": v2(datatype="STRING"),
    "BYTES": v2(datatype="BYTES", data=["a"] * 4),
    "a datatype that would lose something": v2(datatype="FP64"),
    "integers": v2(datatype="INT32", data=[1, 2, 3, 4]),
    "no data": v2(data=None),
    "data that are a number": v2(data=1),
    "data that are a text": v2(data="1234"),
    "data that are an object": v2(data={"0": 1}),
    "too few data": v2(data=[1.0]),
    "too many data": v2(data=[1.0] * 5),
    "a text among data": v2(data=[1.0, "2", 3.0, 4.0]),
    "null among data": v2(data=[1.0, None, 3.0, 4.0]),
    "a list among data": v2(data=[1.0, [2.0], 3.0, 4.0]),
    "lists of other lengths": v2(shape=[2, 2], data=[[1.0], [2.0, 3.0, 4.0]]),
    "NaN": v2().replace(b"1.0", b"NaN"),
    "a number too many digits long": v2().replace(b"1.0", b"1" * 30_000 + b"e"),
    "another output": v2(outputs=[{"name": "w"}]),
    "an output without a name": v2(outputs=[{}]),
    "outputs are a number": v2(outputs=3),
    "another entry": v2(parameters={"entry": "train"}),
    "an entry that is a number": v2(parameters={"entry": 1}),
    "parameters are a list": v2(parameters=[1]),
    "an id that is a number": v2(id=7),
    "a header longer than the body": (v2(), "100000"),
    "a negative header": (v2(), "-5"),
    "a header that is no number": (v2(), "ten"),
    "a header of many digits": (v2(), "9" * 5000),
    "a header that cuts the JSON": (v2(), "20"),
    "bytes behind": (v2() + b"abc", str(len(v2()))),
    "too few bytes": binary(16, X[:8]),
    "too many bytes": binary(16, X + X),
    "a size that is a text": binary("16"),
    "a negative size": binary(-16),
    "a size that is true": binary(True),
    "a huge size": binary(1 << 62),
    "a size of other bytes": binary(8),
    "a fraction of a size": binary(16.5),
    "nothing but a header": (b"", "0"),
}
