"""Models for Triton Inference Server: the backend library, under sanitizers, in a host that stands
for the server; and in a real one, where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lumc
from bundles import compiler
from commands import Lumc
from compiling import RUNNER, TSAN
from lumc.link import triton
from triton_hosting import (
    CPU,
    GPU,
    INTERNAL,
    INVALID,
    MODEL,
    NOT_FOUND,
    PARTS,
    SANITIZED,
    UNAVAILABLE,
    UNSUPPORTED,
    Answer,
    Array,
    Done,
    Request,
    headers,
    host,
    library,
    parts,
    real,
    served,
    server,
)

GRAPHS = Path(__file__).parents[3] / "graphs"
# the loader's own lock is not seen by the sanitizer: what one instance frees as it closes its
# library, another one was given as it opened its own
LOADER = Path(__file__).with_name("tsan_loader.txt")
QUIET = {"ASAN_OPTIONS": "detect_leaks=1"}
QUIET["TSAN_OPTIONS"] = f"exitcode=66:suppressions={LOADER}"


class Place:
    """A model repository with two models, a host, and the backend as it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.repository.mkdir()
        (folder / "parts.lg").write_text(PARTS)
        for name, graph in (("parts", folder / "parts.lg"), ("mlp", GRAPHS / "mlp.lg")):
            Lumc(folder)("compile", graph, "--estimate", "--triton", "-o", self.repository / name)
        self.program, self.backend = host(folder), self.repository / "parts" / triton.LIBRARY

    def __call__(self, *batches: list[Request], model: str = "parts", **how: Any) -> Done:
        """What one instance does."""
        return self.all([list(batches)], model, **how)[0]

    def inputs(self, model: str) -> Any:
        return lumc.load(self.repository / model / "1" / "model.lb").inputs

    def all(self, scripts: list[list[list[Request]]], model: str, **how: Any) -> list[Done]:
        folder = self.folder / model
        folder.mkdir(exist_ok=True)
        where = self.repository / model
        done, _ = served(self.program, self.backend, where, scripts, folder, env=QUIET, **how)
        return done


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The library as users have it."""
    return Place(tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def place(plain: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same with sanitizers of addresses and undefined behaviour."""
    return instrumented(plain, tmp_path_factory.mktemp("asan"), SANITIZED)


def instrumented(plain: Place, folder: Path, flags: tuple[str, ...]) -> Place:
    new = object.__new__(Place)
    new.folder, new.repository = folder, plain.repository
    new.program, new.backend = host(folder, *flags), library(folder, *flags)
    return new


def asked(seed: int, s: int = 4, **more: Any) -> Request:
    """Random inputs of PARTS."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {
        "x": rng.standard_normal((s, 4), np.float32),
        "keep": rng.integers(0, 2, s).astype(bool),
        "n": np.array([rng.integers(-99, 99)], np.int32),
    }
    known = {"wants": ("kept", "sums", "more"), "parameters": {"p": seed % 6}}
    return Request(inputs, **{**known, **more})


def right(request: Request, answer: Answer) -> None:
    assert not answer.code, answer.error
    p = request.parameters["p"]
    expected = parts(**request.inputs, p=p)  # type: ignore[arg-type]
    assert list(answer.outputs) == [n for n in expected if n in request.wants]
    for name, got in answer.outputs.items():
        assert got.shape == (expected[name].shape or (1,))  # Triton has no numbers
        np.testing.assert_allclose(got, expected[name], rtol=1e-6, atol=1e-5)


# ---- the folder


def test_the_folder_is_a_model_of_a_repository(plain: Place) -> None:
    model = plain.repository / "parts"
    assert {p.name for p in model.iterdir()} == {"config.pbtxt", "libtriton_lumc.so", "1"}
    text = (model / "config.pbtxt").read_text()
    assert text.startswith(triton.MARK) and "\n# dim s in 2..12 multiple 2\n" in text
    assert 'backend: "lumc"\nmax_batch_size: 0\n' in text
    assert '{ name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] },' in text
    assert '{ name: "keep" data_type: TYPE_BOOL dims: [ -1 ] },' in text
    assert '{ name: "n" data_type: TYPE_INT32 dims: [ 1 ] }' in text
    assert "kind: KIND_CPU" in text
    bundle = lumc.load(model / "1" / "model.lb")
    assert [t.name for t in bundle.inputs] == ["x", "keep", "n"]


def test_every_dtype_has_a_name() -> None:
    from lumc.graph.ops import DType

    said = " ".join(triton.data_type(d.value).removeprefix("TYPE_") for d in DType)
    assert said == "FP32 FP16 BF16 FP64 INT64 INT32 INT8 UINT8 BOOL INT16 UINT16 UINT32 UINT64"


def test_what_it_exports(plain: Place) -> None:
    said = subprocess.run(
        ["nm", "-D", "--undefined-only", plain.backend], capture_output=True, text=True
    ).stdout
    used = set(re.findall(r"\b(TRITON\w+)", said))
    known = set(re.findall(r"\b(TRITON\w+)\(", (RUNNER / "triton.h").read_text()))
    written = "".join(map(text_of, triton.SOURCES))
    own = {n for n in known if re.search(rf"\n(?:fault|TRITON\w+ \*){n}\(", written)}
    assert used == known - own and len(own) == 6  # nothing is declared that is not called


def text_of(name: str) -> str:
    return (RUNNER / name).read_text()


def test_a_bundle_for_gpus_too_chooses_where_it_runs(plain: Place) -> None:
    from lumc.bundle import manifest

    body = manifest.read(plain.repository / "parts" / "1" / "model.lb")
    both = [*body["targets"], {"name": "cuda-sm_90"}]
    assert "kind: KIND_MODEL" in triton.config({**body, "targets": both})


# ---- requests


def test_a_batch_is_answered_one_by_one(place: Place) -> None:
    batch = [asked(i, s) for i, s in enumerate((2, 12, 6, 2, 8))]
    done = place(batch, [asked(9, 4)])
    for request, answer in zip([*batch, asked(9, 4)], done.answers, strict=True):
        right(request, answer)
    assert done.reports == [6, 6, 6]


def test_the_library_as_users_have_it(plain: Place) -> None:
    batch = [asked(i, s, pieces=1 + i) for i, s in enumerate((2, 12, 6))]
    done = plain(batch)
    for request, answer in zip(batch, done.answers, strict=True):
        right(request, answer)


def test_pieces(place: Place) -> None:
    """Cut anywhere, also inside of an element and before the first byte."""
    batch = [asked(i, 6, pieces=i) for i in range(1, 17)]
    for request, answer in zip(batch, place(batch).answers, strict=True):
        right(request, answer)


def test_outputs_that_nobody_wants(place: Place) -> None:
    batch = [asked(1, wants=("more",)), asked(2, wants=("sums", "kept")), asked(3, wants=())]
    for request, answer in zip(batch, place(batch).answers, strict=True):
        right(request, answer)


def test_a_network_of_two_layers(place: Place) -> None:
    bundle = lumc.load(place.repository / "mlp" / "1" / "model.lb")
    requests = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in bundle.inputs}
        requests.append(Request(arrays, ["y"], pieces=seed + 1))
    done = place(requests, model="mlp", threads=2)
    for request, answer in zip(requests, done.answers, strict=True):
        x, w1, b1, w2, b2 = (a.astype(np.float64) for a in request.inputs.values())
        expected = np.maximum(x @ w1 + b1, 0) @ w2 + b2
        got = answer.outputs["y"]
        assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)
        np.testing.assert_array_equal(got, bundle.run(dict(request.inputs))["y"])


def as_four_by_four(x: Array) -> Callable[[Request], Request]:
    """The request with another ``x`` that is said to be 64 bytes, of that shape."""
    said: dict[str, Any] = {"as_shape": {"x": [4, 4]}, "as_bytes": {"x": 64}}
    return lambda r: Request(r.inputs | {"x": x}, r.wants, r.parameters, **said)


BAD = {
    "a shape of another extent": (
        lambda r: Request(r.inputs | {"x": r.inputs["x"][:, :3]}, r.wants, r.parameters),
        INVALID,
        "input 'x' has the shape [4, 3], where [4, 4] fits",
    ),
    "a length that is no multiple": (
        lambda r: Request(r.inputs | {"x": r.inputs["x"][:3]}, r.wants, r.parameters),
        INVALID,
        "dim s=3 is not in 2..12 multiple 2",
    ),
    "a length beyond the greatest": (
        lambda r: Request(r.inputs | {"x": np.ones((14, 4), np.float32)}, r.wants, r.parameters),
        INVALID,
        "axis 0 of input 'x' cannot have 14 elements",
    ),
    "inputs that differ in a dim": (
        lambda r: Request(r.inputs | {"keep": np.ones(6, bool)}, r.wants, r.parameters),
        INVALID,
        "input 'keep' has the shape [6], where [4] fits",
    ),
    "another rank": (
        lambda r: Request(r.inputs | {"x": r.inputs["x"][0]}, r.wants, r.parameters),
        INVALID,
        "input 'x' has 2 axes, not 1",
    ),
    "a rank beyond all": (
        lambda r: Request(r.inputs | {"x": np.ones([1] * 30, np.float32)}, r.wants, r.parameters),
        INVALID,
        "input 'x' has the shape [1, 1, 1,",
    ),
    "a negative extent": (
        lambda r: Request(r.inputs, r.wants, r.parameters, as_shape={"x": [-4, 4]}),
        INVALID,
        "axis 0 of input 'x' cannot have -4 elements",
    ),
    "another type": (
        lambda r: Request(r.inputs, r.wants, r.parameters, as_type={"x": 8}),
        INVALID,
        "input 'x' is f32 in this model, not of type 8",
    ),
    "a number in a matrix": (
        lambda r: Request(r.inputs, r.wants, r.parameters, as_shape={"n": [1, 1]}),
        INVALID,
        "input 'n' has the shape [1, 1], where [1] fits",
    ),
    "several numbers": (
        lambda r: Request(r.inputs | {"n": np.ones(2, np.int32)}, r.wants, r.parameters),
        INVALID,
        "input 'n' has the shape [2], where [1] fits",
    ),
    "a missing input": (
        lambda r: Request({k: v for k, v in r.inputs.items() if k != "n"}, r.wants, r.parameters),
        NOT_FOUND,
        "unknown request input name n",
    ),
    "fewer bytes than its shape says": (
        lambda r: Request(
            r.inputs | {"x": r.inputs["x"][:2]}, r.wants, r.parameters, as_shape={"x": [4, 4]}
        ),
        INVALID,
        "input 'x' has 32 bytes, not 64",
    ),
    "pieces that are longer than they are in all": (
        as_four_by_four(np.ones((17, 1), np.float32)),
        INVALID,
        "input 'x' has too many bytes",
    ),
    "pieces that are shorter": (
        as_four_by_four(np.ones((4, 3), np.float32)),
        INVALID,
        "input 'x' is not whole",
    ),
    "a bool that is none": (
        lambda r: Request(
            r.inputs | {"keep": np.full(4, 2, np.uint8)},
            r.wants,
            r.parameters,
            as_type={"keep": 1},
        ),
        INVALID,
        "input 'keep': a BOOL is a byte of 0 or 1",
    ),
    "memory of a GPU": (
        lambda r: Request(r.inputs, r.wants, r.parameters, on_gpu="x"),
        UNSUPPORTED,
        "input 'x' lies in the memory of a GPU",
    ),
    "no parameter": (
        lambda r: Request(r.inputs, r.wants, {"q": 3}),
        INVALID,
        "no parameter 'p': it is a dim of the model",
    ),
    "a parameter out of bounds": (
        lambda r: Request(r.inputs, r.wants, {"p": 6}),
        INVALID,
        "dim p=6 is not in 0..5",
    ),
    "a parameter that is no number": (
        lambda r: Request(r.inputs, r.wants, {"p": "three"}),
        INVALID,
        "parameter 'p' is no whole number",
    ),
    "no memory for outputs": (
        lambda r: Request(r.inputs, r.wants, r.parameters, refuses=True),
        INTERNAL,
        "no such memory",
    ),
}


def test_each_request_has_its_own_error(place: Place) -> None:
    """One batch: what is wrong between what is right, which is answered as if it were alone."""
    batch, good = list[Request](), asked(3)
    for change, _, _ in BAD.values():
        batch += [change(good), good]
    done = place(batch)
    for (what, (_, code, text)), bad in zip(BAD.items(), done.answers[::2], strict=True):
        assert (bad.code, bad.error[: len(text)]) == (code, text), what
        assert not bad.outputs
    for answer in done.answers[1::2]:
        right(good, answer)
    n = len(BAD)  # of the wrong ones only that without memory was run
    assert done.reports == [2 * n, n, n + 1]


def test_instances_in_threads(place: Place) -> None:
    scripts = [[[asked(10 * i + j, 2 * (1 + (i + j) % 6)) for j in range(8)]] for i in range(4)]
    for script, done in zip(scripts, place.all(scripts, "parts", threads=2), strict=True):
        for request, answer in zip(script[0], done.answers, strict=True):
            right(request, answer)


def test_instances_share_nothing_that_is_written(plain: Place, tmp_path: Path) -> None:
    """Under the sanitizer of threads."""
    place = instrumented(plain, tmp_path, TSAN)
    scripts = [[[asked(10 * i + j, 6) for j in range(4)]] for i in range(3)]
    try:
        every = place.all(scripts, "parts")
    except AssertionError as e:
        if "unexpected memory mapping" in str(e):
            pytest.skip("this kernel lays memory out as the sanitizer of threads cannot have it")
        raise
    for script, done in zip(scripts, every, strict=True):
        for request, answer in zip(script[0], done.answers, strict=True):
            right(request, answer)


# ---- loading


def test_instances_that_cannot_be(place: Place, tmp_path: Path) -> None:
    assert "no plan for cuda" in place(kind=GPU).error
    assert place(kind=GPU).error.startswith(f"{UNAVAILABLE} ")
    right(asked(1), place([asked(1)], kind=MODEL).answers[0])
    right(asked(1), place([asked(1)], threads=None).answers[0])  # nobody says how many
    model = tmp_path / "changed"
    shutil.copytree(place.repository / "parts", model)
    (kernels,) = model.glob("1/model.lb/kernels/*/kernels.so")
    kernels.write_bytes(kernels.read_bytes() + b"\0")
    (done,), _ = served(place.program, place.backend, model, [[]], tmp_path, env=QUIET)
    assert done.error.startswith(f"{UNAVAILABLE} ") and "hash" in done.error
    shutil.rmtree(model / "1" / "model.lb")
    (done,), _ = served(place.program, place.backend, model, [[]], tmp_path, env=QUIET)
    assert "model.lb" in done.error


def test_a_gpu_that_is_not_the_first(place: Place, tmp_path: Path) -> None:
    env, model = {**QUIET, "TRITON_GPU": "1"}, place.repository / "parts"
    (done,), _ = served(place.program, place.backend, model, [[]], tmp_path, kind=GPU, env=env)
    assert done.error.startswith(f"{UNSUPPORTED} lumc runs on GPU 0, not on GPU 1")


@pytest.mark.parametrize("threads", ["0", "1025", "x", "", "2x", "-1", "99999999999999999999"])
def test_threads_that_are_none(place: Place, tmp_path: Path, threads: str) -> None:
    model = place.repository / "parts"
    how: dict[str, Any] = {"threads": threads, "code": 1, "env": QUIET}
    _, said = served(place.program, place.backend, model, [[]], tmp_path, **how)
    assert f"model error {INVALID} parameter 'threads' is no number from 1 to 1024" in said


@pytest.mark.parametrize(("api", "good"), [("1.0", 1), ("2.19", 0), ("0.50", 0)])
def test_servers_of_other_versions(place: Place, tmp_path: Path, api: str, good: int) -> None:
    model = place.repository / "parts"
    how: dict[str, Any] = {"env": {**QUIET, "TRITON_API": api}, "code": 1 - good}
    _, said = served(place.program, place.backend, model, [[]], tmp_path, kind=CPU, **how)
    assert (f"backend error {UNSUPPORTED} lumc knows version 1 of" in said) == (not good)


def test_servers_without_parameters(plain: Place, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in plain.inputs("mlp")}
    program, found = host(tmp_path, "-DOLD_TRITON"), dict[str, Answer]()
    for model, request in {"parts": asked(1), "mlp": Request(arrays, ["y"])}.items():
        where = plain.repository / model
        (done,), _ = served(program, plain.backend, where, [[[request]]], tmp_path)
        found[model] = done.answers[0]
    assert found["parts"].code == UNSUPPORTED
    assert not found["mlp"].code and "y" in found["mlp"].outputs


# ---- the command


def test_linking_is_what_compiling_is(plain: Place, lumc: Lumc) -> None:
    folder = plain.folder
    lumc("compile", folder / "parts.lg", "--estimate", "--save-temps", "t", "-o", "parts.lb")
    for words in (["--triton"], ["--emit", "triton"], ["--triton", "--emit", "triton"]):
        lumc("link", "t/parts.lk", *words, "-o", "parts")  # replaces the one before
        for file in (plain.repository / "parts").rglob("*"):
            there = Path("parts") / file.relative_to(plain.repository / "parts")
            assert file.is_dir() or there.read_bytes() == file.read_bytes()


def test_what_is_there_is_kept(plain: Place, lumc: Lumc) -> None:
    shutil.copytree(plain.repository / "parts", "parts")
    words = ("compile", plain.folder / "parts.lg", "--estimate", "--triton", "-o", "parts")
    for extra in ("2", "notes", "1/more"):
        (Path("parts") / extra).mkdir()
        assert "E0703" in lumc.fails(2, *words)
        (Path("parts") / extra).rmdir()
    Path("parts/config.pbtxt").write_text('backend: "lumc"\n')
    assert "E0703" in lumc.fails(2, *words)
    Path("file").write_text("")
    assert "E0703" in lumc.fails(2, *words[:-1], "file")


def test_wrong_calls(plain: Place, lumc: Lumc) -> None:
    start = ("compile", plain.folder / "parts.lg", "--estimate", "-o", "parts")
    assert "--zip and --triton are two forms" in lumc.fails(2, *start, "--zip", "--triton")
    said = lumc.fails(2, *start, "--triton", "--emit", "c")
    assert "--emit c and --triton are two forms" in said
    assert "E0712" in lumc.fails(2, *start, "--triton", "--target", "metal")
    lumc(*start[:-1], "parts.lb", "--save-temps", "t")
    Path("include").mkdir()
    said = lumc.fails(2, "link", "t/parts.lk", "--triton", "-o", "m", "--triton-headers", "include")
    assert "E0712 --triton-headers include: there is no triton/core/tritonserver.h" in said
    assert not Path("m").exists()


# ---- Triton's own


def test_with_the_headers_of_triton(plain: Place, lumc: Lumc, tmp_path: Path) -> None:
    """Its declarations are those of triton.h: a host and a backend that are compiled with the one
    or the other understand each other, and all numbers are equal."""
    if not (folder := headers()):
        pytest.skip("no headers of Triton: LUMC_TRITON_HEADERS names no folder")
    (tmp_path / "triton_names.h").write_text(triton.names(folder))
    own = ("-DTRITON_HEADERS", f"-I{folder}", f"-I{tmp_path}")
    lumc("compile", plain.folder / "parts.lg", "--estimate", "--save-temps", "t", "-o", "parts.lb")
    lumc("link", "t/parts.lk", "--triton", "--triton-headers", folder, "-o", "parts")
    batch = [asked(i, 6) for i in range(3)]
    for program in (plain.program, host(tmp_path, *own)):
        for backend in (plain.backend, Path("parts") / triton.LIBRARY):
            (done,), _ = served(program, backend, Path("parts"), [[batch]], tmp_path)
            for request, answer in zip(batch, done.answers, strict=True):
                right(request, answer)
    known = numbers()
    checks = "".join(f'_Static_assert({n} == {v}, "{n}");\n' for n, v in known.items())
    (tmp_path / "same.c").write_text(f'#include "triton.h"\n{checks}')
    command = [*compiler().command, "-fsyntax-only", *own, f"-I{RUNNER}", tmp_path / "same.c"]
    subprocess.run(command, check=True)
    assert len(known) == 37


def numbers() -> dict[str, int]:
    """What triton.h enumerates."""
    found = dict[str, int]()
    for body in re.findall(r"enum \{(.*?)\}", text_of("triton.h"), re.S):
        for i, item in enumerate(body.split(",")):
            name, _, value = item.partition("=")
            found[name.strip()] = int(value or i)
    return found


def infer(address: str, request: Request, model: str = "parts") -> tuple[int, dict[str, Any]]:
    """The status, and outputs by their names or the error."""
    names = {"float32": "FP32", "bool": "BOOL", "int32": "INT32"}
    inputs = [
        {
            "name": name,
            "datatype": names[a.dtype.name],
            "shape": list(a.shape),
            "data": a.reshape(-1).tolist(),
        }
        for name, a in request.inputs.items()
    ]
    outputs = [{"name": w} for w in request.wants]
    body = {"inputs": inputs, "outputs": outputs, "parameters": dict(request.parameters)}
    where = f"{address}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(where, json.dumps(body).encode(), timeout=60) as answer:
            found = json.loads(answer.read())["outputs"]
            return 200, {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in found}
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.loads(e.read())


def test_a_real_server(plain: Place, tmp_path: Path) -> None:
    if not (program := server()):
        pytest.skip("no tritonserver: pip install --no-deps nvidia-pytriton, or LUMC_TRITONSERVER")
    shutil.copytree(plain.repository, tmp_path / "repository")
    file = tmp_path / "repository" / "parts" / "config.pbtxt"
    text = file.read_text().replace("count: 1", "count: 3").replace('"1" } }', '"2" } }')
    file.write_text(text)
    with real(program, tmp_path / "repository", tmp_path / "log") as address:
        requests = [asked(seed, 2 * (1 + seed % 6)) for seed in range(12)]
        with ThreadPoolExecutor(6) as clients:
            every = clients.map(lambda r: infer(address, r), requests)
        for seed, (request, (status, found)) in enumerate(zip(requests, every, strict=True)):
            assert status == 200, found
            expected = parts(**request.inputs, p=seed % 6)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)
        status, said = infer(address, asked(1, 14))
        assert status >= 400 and said["error"] == "axis 0 of input 'x' cannot have 14 elements"
        status, said = infer(address, asked(1, parameters={}))
        assert status >= 400 and said["error"] == "no parameter 'p': it is a dim of the model"
        bundle = lumc.load(tmp_path / "repository" / "mlp" / "1" / "model.lb")
        rng = np.random.default_rng(7)
        arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in bundle.inputs}
        status, found = infer(address, Request(arrays, ["y"]), "mlp")
        np.testing.assert_allclose(found["y"], bundle.run(arrays)["y"], rtol=1e-6)
        with urllib.request.urlopen(f"{address}/v2/models/parts/stats", timeout=60) as answer:
            (stats,) = json.loads(answer.read())["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == 12
        assert stats["inference_stats"]["fail"]["count"] == 2
        assert stats["execution_count"] == 12
