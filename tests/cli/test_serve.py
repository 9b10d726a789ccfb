"""``lumc serve``: requests from outside, as strangers send them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from serving import MALFORMED, PACKAGES, SMALL, Answer, Server, expected, request_of, served

for package in PACKAGES:
    pytest.importorskip(package)

INFER = "/v2/models/small/infer"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "small.lg").write_text(SMALL)
    Lumc(folder)("compile", folder / "small.lg", "--estimate", "-o", folder / "small.lb")
    return folder / "small.lb"


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("server"), bundle, "--queue", 16) as found:
        yield found


def rows(answer: Answer) -> np.ndarray[Any, Any]:
    assert answer.status == 200, answer.body
    (out,) = answer.json["outputs"]
    return np.array(out["data"], np.float32).reshape(out["shape"])


def random_rows(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


# ---- both protocols


def test_rows_as_json_and_as_bytes(server: Server) -> None:
    for count in (1, 3, 8):
        x = random_rows(count, count)
        assert np.allclose(rows(server.infer(x)), expected(x), atol=1e-5)
        asked = request_of(x)
        asked["inputs"][0] |= {"parameters": {"binary_data_size": x.nbytes}}
        del asked["inputs"][0]["data"]
        asked["parameters"] = {"binary_data_output": True}
        head = json.dumps(asked).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        answer = server.ask(INFER, head + x.tobytes(), length)
        at = int(answer.headers["Inference-Header-Content-Length"])
        said = json.loads(answer.body[:at])["outputs"][0]
        got = np.frombuffer(answer.body[at:], np.float32).reshape(said["shape"])
        assert said["parameters"] == {"binary_data_size": len(answer.body) - at}
        assert np.allclose(got, expected(x), atol=1e-5)


def test_health_and_what_there_is(server: Server) -> None:
    assert server.ask("/v2/health/live").json == {"live": True}
    assert server.ask("/v2/health/ready").json == {"ready": True}
    assert server.ask("/v2").json["extensions"] == ["binary_tensor_data"]
    assert server.ask("/v2/models").json == {"models": ["small"]}
    assert server.ask("/v2/models/small/ready").json == {"name": "small", "ready": True}
    for path in ("/v2/models/small", "/v2/models/small/versions/1"):
        assert server.ask(path).json["inputs"] == [
            {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
        ]


def test_what_there_is_not(server: Server) -> None:
    for path in (
        "/",
        "/v2/models/other",
        "/v2/models/small/versions/2",
        "/v2/models/%00",
        "/x" * 900,
    ):
        assert server.ask(path).status == 404, path
    assert server.ask("/v2/models/other/infer", b"{}").status == 404
    assert server.ask(INFER).status == 405
    assert server.ask("/v2/repository/models/small/unload", b"{}").status == 404


def test_what_is_malformed_is_refused_with_a_reason(server: Server) -> None:
    for name, given in MALFORMED.items():
        body, header = given if isinstance(given, tuple) else (given, None)
        headers = {"Inference-Header-Content-Length": header} if header else {}
        answer = server.ask(INFER, body, headers)
        if name == "integers":  # no int32 is lost in f32? some are
            assert answer.status == 400
        assert 400 <= answer.status < 500, (name, answer)
        assert answer.json["error"], name
    assert server.infer([[1, 2, 3, 4]]).status == 200
    assert "Traceback" not in server.log.read_text()


def test_a_body_that_is_too_large(server: Server) -> None:
    for length in (70_000, 1_000_000):
        assert server.ask(INFER, b" " * length).status == 413
    headers = {"Content-Encoding": "gzip"}
    assert server.ask(INFER, b"abc", headers).status == 415
    assert server.infer([[1, 2, 3, 4]]).status == 200


def test_connections_that_speak_no_http(server: Server) -> None:
    for sent in (
        b"\x16\x03\x01\0\0",
        b"GET / HTTP/9\r\n\r\n",
        b"A" * 100_000,
        b"POST " + INFER.encode(),
    ):
        with socket.create_connection(("127.0.0.1", server.http), timeout=20) as s:
            try:
                s.sendall(sent)
                s.shutdown(socket.SHUT_WR)
                got = s.recv(1000)
            except OSError:
                continue
            assert not got or got.startswith(b"HTTP/1.1 4"), got
    assert server.infer([[1, 2, 3, 4]]).status == 200


@pytest.mark.parametrize(
    "begin",
    (
        b"GET /v2 HTTP/1.1\r\nA: ",
        b"GET /",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\nA: ",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ),
    ids=("header", "line", "trailer", "extension of a chunk"),
)
def test_a_head_that_does_not_end(server: Server, begin: bytes) -> None:
    part, sent = b"a" * (1 << 20), 0
    with (
        pytest.raises(OSError),  # the server has closed
        socket.create_connection(("127.0.0.1", server.http), timeout=20) as s,
    ):
        s.sendall(begin)
        while sent < 100:
            s.sendall(part)
            sent += 1
    assert sent < 50
    assert server.infer([[1, 2, 3, 4]]).status == 200


def test_a_long_head_that_ends_and_a_body_in_small_parts(server: Server) -> None:
    assert server.ask("/v2", headers={"A": "a" * 60_000}).status == 200
    body = json.dumps(request_of(random_rows(1, 0))).encode().ljust(60_000)
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as s:
        s.sendall(f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for byte in body:  # each takes six bytes more
            s.sendall(b"1\r\n%c\r\n" % byte)
        s.sendall(b"0\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 200")


def test_requests_that_wait_for_no_answer(server: Server) -> None:
    one = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
    for count in (4, 10_000):
        got = b""
        with (
            suppress(OSError),  # the server has closed
            socket.create_connection(("127.0.0.1", server.http), timeout=20) as s,
        ):
            s.sendall(one * count)
            while got.count(b"200 OK") < count and (more := s.recv(1 << 16)):
                got += more
        assert got.count(b"200 OK") == 4 if count == 4 else got.count(b"200 OK") < 1000


def test_grpc(server: Server) -> None:
    import grpc

    from lumc.serve.messages import SERVICE, classes

    made = classes()

    def call(method: str, request: Any = None, **fields: Any) -> Any:
        ask = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=made[f"{method}Request"].SerializeToString,
            response_deserializer=made[f"{method}Response"].FromString,
        )
        return ask(request or made[f"{method}Request"](**fields), timeout=60)

    def asked(x: np.ndarray[Any, Any], raw: bool) -> Any:
        request = made["ModelInferRequest"](model_name="small", id="7")
        new = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        if raw:
            request.raw_input_contents.append(x.tobytes())
        else:
            new.contents.fp32_contents.extend(x.reshape(-1).tolist())
        return request

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        assert call("ServerLive").live and call("ServerReady").ready
        assert call("ModelReady", name="small").ready
        assert call("ServerMetadata").name == "lumc"
        assert list(call("ModelMetadata", name="small").inputs[0].shape) == [-1, 4]
        x = random_rows(3, 1)
        answer = call("ModelInfer", request=asked(x, raw=True))
        got = np.frombuffer(answer.raw_output_contents[0], np.float32)
        assert answer.id == "7" and np.allclose(got.reshape(3, 3), expected(x), atol=1e-5)
        answer = call("ModelInfer", request=asked(x, raw=False))
        got = np.array(answer.outputs[0].contents.fp32_contents)
        assert np.allclose(got.reshape(3, 3), expected(x), atol=1e-5)
        for change, code in WRONG.items():
            request = asked(x, raw=True)
            CHANGES[change](request)
            with pytest.raises(grpc.RpcError) as e:
                call("ModelInfer", request=request)
            assert e.value.code().name == code, (change, e.value)  # type: ignore[attr-defined]
        with pytest.raises(grpc.RpcError) as e:
            call("ModelReady", name="other")
        assert e.value.code().name == "NOT_FOUND"  # type: ignore[attr-defined]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another model": lambda r: setattr(r, "model_name", "other"),
    "another version": lambda r: setattr(r, "model_version", "2"),
    "another name": lambda r: setattr(r.inputs[0], "name", "z"),
    "no inputs": lambda r: r.ClearField("inputs"),
    "a negative extent": lambda r: r.inputs[0].shape.__setitem__(0, -3),
    "another rank": lambda r: r.inputs[0].shape.append(1),
    "another datatype": lambda r: setattr(r.inputs[0], "datatype", "BYTES"),
    "fewer bytes": lambda r: r.raw_input_contents.__setitem__(0, b"1"),
    "more contents": lambda r: r.raw_input_contents.append(b"1"),
    "numbers of another kind": lambda r: (
        r.ClearField("raw_input_contents"),
        r.inputs[0].contents.int_contents.append(1),
    ),
    "another output": lambda r: r.outputs.add(name="z"),
    "another entry": lambda r: setattr(r.parameters["entry"], "string_param", "x"),
    "a large message": lambda r: setattr(r, "id", "x" * 1_000_000),
}
WRONG = {
    **dict.fromkeys(CHANGES, "INVALID_ARGUMENT"),
    **dict.fromkeys(("another model", "another version"), "NOT_FOUND"),
    "a large message": "RESOURCE_EXHAUSTED",
}


def test_the_triton_client(server: Server) -> None:
    x = random_rows(3, 5)
    for protocol in ("http", "grpc"):
        triton = pytest.importorskip(f"tritonclient.{protocol}")
        client = triton.InferenceServerClient(f"127.0.0.1:{getattr(server, protocol)}")
        assert client.is_server_ready() and client.is_model_ready("small")
        given = triton.InferInput("x", x.shape, "FP32")
        given.set_data_from_numpy(x)
        got = client.infer("small", [given]).as_numpy("y")
        assert np.allclose(got, expected(x), atol=1e-5)
        client.close()


# ---- many at once


def test_many_at_once_get_their_own_rows(bundle: Path, tmp_path: Path) -> None:
    def ask(n: int) -> bool:
        x = random_rows(1 + n % 4, n)
        return np.allclose(rows(server.infer(x)), expected(x), atol=1e-5)

    with served(tmp_path, bundle) as server, ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(200)))
        page = server.ask("/metrics").body.decode()
    assert 'lumc_requests_total{code="200",model="small",protocol="http"} 200.0' in page
    runs = float(page.partition('lumc_run_rows_count{model="small"} ')[2].split()[0])
    total = float(page.partition('lumc_run_rows_sum{model="small"} ')[2].split()[0])
    assert total == 500 and runs <= 200
    lines = [json.loads(line) for line in (tmp_path / "serve.out").read_text().splitlines()]
    assert sum(line["path"] == INFER and line["status"] == 200 for line in lines) == 200


def test_more_than_may_wait(bundle: Path, tmp_path: Path) -> None:
    """Each client says half a body, so all are inside; then nobody else comes in."""
    body = json.dumps(request_of(random_rows(1, 1))).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with served(tmp_path, bundle, "--queue", 3, "--batch", 2, grpc=False) as server:
        inside = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(5)]
        for s in inside:
            s.sendall(head + body[:10])
        end = time.monotonic() + 20
        while (answer := server.infer(random_rows(1, 2))).status == 200:
            assert time.monotonic() < end
        assert answer.status == 503 and answer.headers["Retry-After"] == "1"
        assert "wait" in answer.json["error"]
        assert server.ask("/v2/health/ready").status == 200  # which is no request of a model
        for s in inside:
            s.sendall(body[10:])
            assert s.recv(10_000).startswith(b"HTTP/1.1 200")
            s.close()
        assert server.infer(random_rows(1, 2)).status == 200


# ---- ends


def test_a_worker_that_is_killed(bundle: Path, tmp_path: Path) -> None:
    with served(tmp_path, bundle) as server:
        (before,) = server.workers
        os.kill(before, signal.SIGKILL)
        start = time.monotonic()
        assert server.infer([[1, 2, 3, 4]]).status == 200
        assert time.monotonic() - start < 5 or os.getloadavg()[0] > 4
        assert server.workers != [before]


def test_sigterm_under_load_loses_nothing(bundle: Path, tmp_path: Path) -> None:
    """Who is told that the connection closes opens another one, until nothing listens any more;
    each request that was sent on an open connection is answered."""
    import http.client

    done, lost, running = [0], list[str](), threading.Event()

    def client(n: int) -> None:
        body = json.dumps(request_of(random_rows(1, n)))
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.connect()
            except OSError:
                return
            closes = fresh = False
            while not closes:
                try:
                    connection.request("POST", INFER, body)
                    answer = connection.getresponse()
                    answer.read()
                except OSError as e:  # a connection that waited to be taken when it ended
                    if not fresh and isinstance(e, ConnectionResetError):
                        return
                    lost.append(repr(e))
                    return
                fresh = True
                if answer.status != 200:
                    lost.append(str(answer.status))
                done[0] += 1
                running.set()
                closes = answer.will_close

    with served(tmp_path, bundle, "--queue", 64, grpc=False) as server:
        port, workers = server.http, server.workers
        threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        running.wait(30)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert server.process.wait(60) == 0
    assert not lost and done[0] > 8
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_no_worker_outlives_a_server_that_is_killed(bundle: Path, tmp_path: Path) -> None:
    with served(tmp_path, bundle, grpc=False) as server:
        workers = server.workers
        server.process.kill()
        server.process.wait()
        end = time.monotonic() + 20
        while any(is_alive(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(is_alive(pid) for pid in workers)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


# ---- models


def test_several_models_and_one_that_is_exchanged(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.lg"
    other.write_text(SMALL.replace("add t1[i, j], 1.0", "add t1[i, j], 100.0"))
    Lumc(tmp_path)("compile", other, "--estimate", "-o", tmp_path / "other.lb")
    live = tmp_path / "live.lb"
    shutil.copytree(bundle, live)
    x = random_rows(2, 3)
    with served(tmp_path, live, f"b={tmp_path / 'other.lb'}", grpc=False) as server:
        assert server.ask("/v2/models").json == {"models": ["live", "b"]}
        assert np.allclose(rows(server.infer(x, "live")), expected(x), atol=1e-5)
        assert np.allclose(rows(server.infer(x, "b")), expected(x) + 99, atol=1e-4)
        live.rename(tmp_path / "old.lb")
        shutil.copytree(tmp_path / "other.lb", tmp_path / "new.lb")
        (tmp_path / "new.lb").rename(live)
        end = time.monotonic() + 30
        while not np.allclose(rows(server.infer(x, "live")), expected(x) + 99, atol=1e-4):
            assert time.monotonic() < end
        assert "lumc_swaps_total 1.0" in server.ask("/metrics").body.decode()


# ---- what does not start


def test_what_does_not_start(bundle: Path, tmp_path: Path) -> None:
    lumc = Lumc(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert lumc.fails(2, "serve", bundle, "--http", port).startswith("E0624")
    assert lumc.fails(2, "serve", bundle, f"small={bundle}").startswith("E0203")
    assert lumc.fails(2, "serve", f"a b={bundle}").startswith("E0203")
    assert lumc.fails(2, "serve", "--http", 0, tmp_path / "none.lb").startswith("E0201")
    damaged = tmp_path / "damaged.lb"
    shutil.copytree(bundle, damaged)
    (damaged / "graph.lg").write_text("lumc graph 1\n")
    assert lumc.fails(5, "serve", "--http", 0, damaged).startswith("E0501")


def test_packages_that_are_missing(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lumc.serve import server

    monkeypatch.setattr(server, "NEEDED", ("starlette", "no_such_package", "none.of_it"))
    said = Lumc(bundle)
    text = said.fails(7, "serve", bundle)
    assert text.startswith("E0623") and "no_such_package, none.of_it" in text
    assert "lumc[serve]" in text
