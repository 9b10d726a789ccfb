"""Running bundles from Python: inputs, outputs, states, threads, and what a wrong input says."""

import ctypes
import multiprocessing
import platform
import shutil
import threading
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import build, kernel, mlp, simple
from lumc.codegen.code import EntryPlan, Launch, Value
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.runtime.cpu import Bundle
from lumc.runtime.opened import Opened

F32, I64 = DType.F32, DType.I64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Any]:
    base = tmp_path_factory.mktemp("mlp")
    code, reference = mlp(base)
    return Bundle.open(build(code, base / "m.lb", base)), reference


def sample(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((5, 11), np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_run(model: tuple[Bundle, Any], threads: int) -> None:
    bundle, reference = model
    for seed in range(20):
        x = sample(seed)
        y = bundle.run({"x": x}, threads=threads)["y"]
        np.testing.assert_allclose(y, reference(x), rtol=1e-4, atol=1e-5)


def test_what_it_takes_and_gives(model: tuple[Bundle, Any]) -> None:
    bundle, _ = model
    assert bundle.entries == ("main",) and bundle.states == ()
    (x,), (y,) = bundle.inputs, bundle.outputs
    assert (x.name, str(x), y.name, str(y)) == ("x", "f32[5, 11]", "y", "f32[5, 3]")


def test_bench_gives_positive_samples(model: tuple[Bundle, Any]) -> None:
    bundle, _ = model
    samples = bundle.bench({"x": sample()}, threads=2, seconds=0.02)
    assert len(samples) >= 3 and all(us > 0 for us in samples)
    assert sum(samples) < 1e6


@pytest.mark.parametrize("threads", [1, 3])
def test_trace_times_every_launch_on_every_thread(
    model: tuple[Bundle, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, reference = model
    outputs, parts = bundle.trace({"x": sample(3)}, threads=threads)
    np.testing.assert_allclose(outputs["y"], reference(sample(3)), rtol=1e-4, atol=1e-5)
    launches = bundle.manifest["entries"][0]["launches"]
    assert [(p.launch, p.thread) for p in parts] == list(np.ndindex(launches, threads))
    assert min(p.start_us for p in parts) == 0 and all(p.us >= 0 for p in parts)
    for a, b in pairwise(parts):
        assert a.launch == b.launch or a.start_us + a.us <= b.start_us + 1e-3
    assert {p.kernel for p in parts} == {k["symbol"] for k in bundle.manifest["kernels"]}
    monkeypatch.setattr(bundle, "_library", object())
    with pytest.raises(LumcError, match="could not trace"):
        bundle.trace({"x": sample()})


# ---- inputs


def test_names_are_checked(model: tuple[Bundle, Any]) -> None:
    bundle, _ = model
    with pytest.raises(LumcError) as e:
        bundle.run({"z": sample(), "q": sample()})
    assert e.value.exit == Exit.USAGE
    assert "unknown: q, z" in e.value.what and "missing: x f32[5, 11]" in e.value.what


@pytest.mark.parametrize("shape", [(5, 12), (11, 5), (55,), (1, 5, 11), (), (0, 11)])
def test_shapes_are_checked(model: tuple[Bundle, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(LumcError, match=r"must be f32\[5, 11\], got shape") as e:
        model[0].run({"x": np.zeros(shape, np.float32)})
    assert e.value.exit == Exit.USAGE


@pytest.mark.parametrize("dtype", ["f8", "i4", "i1", "?", "c8", "U3", "O", "M8[s]", "V4"])
def test_lossy_dtypes_are_refused(model: tuple[Bundle, Any], dtype: str) -> None:
    with pytest.raises(LumcError, match=r"must be f32\[5, 11\], got") as e:
        model[0].run({"x": np.zeros((5, 11), dtype)})
    assert e.value.exit == Exit.USAGE and "astype" in e.value.fix


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.float16),
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(5, 11),
    ],
    ids=["f16", "byte order", "fortran", "strided", "not aligned"],
)
def test_lossless_conversions_are_made_and_said(model: tuple[Bundle, Any], change: Any) -> None:
    bundle, reference = model
    x, said = change(sample()), list[str]()
    y = bundle.run({"x": x}, say=said.append)["y"]
    np.testing.assert_allclose(y, reference(np.asarray(x, np.float32)), rtol=1e-4, atol=1e-5)
    assert len(said) == 1 and "input 'x'" in said[0]
    with pytest.warns(UserWarning, match="input 'x'"):
        bundle.run({"x": x})


def test_nothing_is_said_of_a_plain_array(model: tuple[Bundle, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model[0].run({"x": sample()})


def test_integers_widen(tmp_path: Path) -> None:
    body = "  const long *x = args[0]; long *y = args[1]; for (; lo < hi; ++lo) y[lo] = x[lo] + 1;"
    values = [Value("x", I64, (3,), "input", 0), Value("y", I64, (3,), "output", 0)]
    code = simple([kernel("k0", 3, body, ("b0", "out"))], values, [Launch("k0", ("x", "y"))])
    with Bundle.open(build(code, tmp_path / "m.lb", tmp_path)) as b:
        for dtype in ("i4", "u4", "u1", "i1", "?"):
            said = list[str]()
            got = b.run({"x": np.array([0, 1, 1], dtype)}, say=said.append)["y"]
            np.testing.assert_array_equal(got, [1, 2, 2])
            assert said and "i64" in said[0]
        assert b.run({"x": [-7, 2**62, 3]})["y"][1] == 2**62 + 1
        for dtype in ("u8", "f4", "f8"):
            with pytest.raises(LumcError):
                b.run({"x": np.zeros(3, dtype)})


def test_unknown_entry_and_threads(model: tuple[Bundle, Any]) -> None:
    bundle, _ = model
    with pytest.raises(LumcError, match="no entry 'decode'") as e:
        bundle.run({"x": sample()}, "decode")
    assert e.value.exit == Exit.USAGE
    for threads in (0, -1, 1025):
        with pytest.raises(LumcError, match="threads must be in 1"):
            bundle.run({"x": sample()}, threads=threads)
    bundle.run({"x": sample()})


# ---- kernels of every sort


def test_scalars_zero_sizes_and_serial_kernels(tmp_path: Path) -> None:
    """A rank-0 input, a zero-size input and output, and a kernel that is only right in one part."""
    scale = kernel(
        "k0_scale",
        4,
        "  const float *s = args[0]; float *y = args[1];\n"
        "  for (; lo < hi; ++lo) y[lo] = *s * (float)lo;",
        ("b0", "out"),
    )
    total = kernel(
        "k1_total",
        4,
        "  const float *y = args[0]; float *t = args[2]; (void)lo; (void)hi;\n"
        "  if (part || nparts != 1) __builtin_trap();\n"
        "  *t = 0; for (long i = 0; i < 4; ++i) *t += y[i];",
        ("b0", "b1", "out"),
        parallel=False,
    )
    values = [
        Value("s", F32, (), "input", 0),
        Value("e", F32, (0, 7), "input", 1),
        Value("t", F32, (), "output", 0),
        Value("z", F32, (7, 0), "output", 1),
        Value("y", F32, (4,), "arena", 0),
    ]
    launches = [Launch("k0_scale", ("s", "y")), Launch("k1_total", ("y", "e", "t"))] * 3
    code = simple([scale, total], values, launches, arena=64)
    with Bundle.open(build(code, tmp_path / "m.lb", tmp_path)) as b:
        for threads in (1, 2, 3, 7):
            out = b.run({"s": np.float32(2.5), "e": np.zeros((0, 7), np.float32)}, threads=threads)
            assert out["t"].shape == () and out["t"] == 15 and out["z"].shape == (7, 0)


@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64", "aarch64"), reason="no such mode"
)
@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_that_are_not_normal_are_zero_while_kernels_run(
    tmp_path: Path, threads: int
) -> None:
    """As operands and as results, on every thread; the caller has them before and after."""
    body = "  const float *x = args[0]; float *y = args[1];"
    body += " for (; lo < hi; ++lo) y[lo] = x[lo] * (lo % 2 ? 0.25f : 0x1p100f);"
    values = [Value("x", F32, (8,), "input", 0), Value("y", F32, (8,), "output", 0)]
    code = simple([kernel("k0", 8, body, ("b0", "out"))], values, [Launch("k0", ("x", "y"))])
    tiny, small = np.float32(2.0**-140), np.float32(2.0**-125)
    x = np.array([tiny, small] * 4, np.float32)
    with Bundle.open(build(code, tmp_path / "m.lb", tmp_path)) as b:
        np.testing.assert_array_equal(b.run({"x": x}, threads=threads)["y"], np.zeros(8))
        assert np.float32(0.25) * small == np.float32(2.0**-127) and tiny * np.float32(2) > 0
        x[:] = 1
        assert (b.run({"x": x}, threads=threads)["y"] > 0).all()


def test_scratch_is_separate_for_every_part(tmp_path: Path) -> None:
    """Every part fills its scratch with its number, and finds it so after the others ran."""
    body = """  char *mine = (char *)args[1] + part * 8192;
  for (long i = 0; i < 5000; ++i) mine[i] = (char)(part + 1);
  for (volatile long wait = 0; wait < 20000; ++wait) ;
  float *y = args[0];
  for (; lo < hi; ++lo) {
    y[lo] = 1;
    for (long i = 0; i < 5000; ++i) if (mine[i] != (char)(part + 1)) y[lo] = 0;
  }"""
    code = simple(
        [kernel("k0", 64, body, ("out",), scratch=5000)],
        [Value("y", F32, (64,), "output", 0)],
        [Launch("k0", ("y",))] * 5,
    )
    with Bundle.open(build(code, tmp_path / "m.lb", tmp_path)) as b:
        for threads in (7, 1, 3):
            assert b.run({}, threads=threads)["y"].all()


def counter(tmp_path: Path) -> Path:
    """Two entries that share a state: step adds x to it and gives it, look gives it."""
    add = kernel(
        "k0_add",
        3,
        "  const float *x = args[0]; float *s = args[1];\n  for (; lo < hi; ++lo) s[lo] += x[lo];",
        ("b0", "out"),
    )
    copy = kernel(
        "k1_copy",
        3,
        "  const float *s = args[0]; float *y = args[1];\n  for (; lo < hi; ++lo) y[lo] = s[lo];",
        ("b0", "out"),
    )
    x, s = Value("x", F32, (3,), "input", 0), Value("s", F32, (3,), "state", 0)
    y = Value("y", F32, (3,), "output", 0)
    launches = [Launch("k0_add", ("x", "s")), Launch("k1_copy", ("s", "y"))]
    code = simple([add, copy], [x, s, y], launches, states=[("s", F32, (3,))])
    look = EntryPlan("look", (s, y), ("y",), tuple(launches[1:]), 0, 0)
    (main,) = code.graph.entries
    graph = replace(code.graph, entries=(main, replace(main, name="look", inputs=())))
    code = replace(code, graph=graph, entries=(*code.entries, look))
    return build(code, tmp_path / "m.lb", tmp_path)


def test_states_stay_between_runs(tmp_path: Path) -> None:
    path = counter(tmp_path)
    x = np.array([1, 2, 3], np.float32)
    with Bundle.open(path) as b, Bundle.open(path) as other:
        assert b.entries == ("main", "look") and [t.name for t in b.states] == ["s"]
        np.testing.assert_array_equal(b.state()["s"], 0)
        for i in range(1, 4):
            np.testing.assert_array_equal(b.run({"x": x}, threads=i)["y"], i * x)
        np.testing.assert_array_equal(b.run({}, "look")["y"], 3 * x)
        saved = b.state()
        b.trace({"x": x}, threads=2)  # one run, as far as a state can tell
        np.testing.assert_array_equal(b.state()["s"], saved["s"] + x)
        b.set_state(saved)
        b.run({"x": x})
        np.testing.assert_array_equal(saved["s"], 3 * x)
        b.set_state(saved)
        np.testing.assert_array_equal(b.run({}, "look")["y"], 3 * x)
        b.bench({"x": x}, seconds=0.001)
        np.testing.assert_array_equal(b.state()["s"], 3 * x)
        np.testing.assert_array_equal(other.state()["s"], 0)
        with pytest.raises(LumcError, match="unknown state k; the states are: s"):
            b.set_state({"k": x})
        with pytest.raises(LumcError, match="state 's' must be"):
            b.set_state({"s": x[:2]})


def boxes(tmp_path: Path, shape: tuple[int, ...], kind: DType) -> Bundle:
    """A bundle with a state of this shape."""
    n = int(np.prod(shape))
    copy = kernel(
        "k0",
        n,
        "  const char *s = args[0]; char *y = args[1]; (void)lo; y[0] = s[0];",
        ("b0", "out"),
    )
    s, y = Value("s", kind, shape, "state", 0), Value("y", kind, shape, "output", 0)
    code = simple([copy], [s, y], [Launch("k0", ("s", "y"))], states=[("s", kind, shape)])
    return Bundle.open(build(code, tmp_path / "m.lb", tmp_path))


def test_rows_of_states_are_copied(tmp_path: Path) -> None:
    """In C and in Python as numpy does it, where they overlap too."""
    shape = (3, 2, 7, 4)
    with boxes(tmp_path, shape, F32) as b:
        library, handle = b._library, b._handle
        row = ctypes.c_int64 * len(shape)
        library.lumc_copy_state.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int,
            *[ctypes.POINTER(row)] * 3,
        )
        rng = np.random.default_rng(0)
        for _ in range(300):
            size = [int(rng.integers(0, n + 1)) for n in shape]
            start, to = (
                [int(rng.integers(0, n - m + 1)) for n, m in zip(shape, size, strict=True)]
                for _ in range(2)
            )
            here, there = (
                tuple(slice(i, i + m) for i, m in zip(at, size, strict=True)) for at in (start, to)
            )
            before = {"s": rng.standard_normal(shape).astype(np.float32)}
            want = before["s"].copy()
            want[there] = before["s"][here]
            b.set_state(before)
            given = (row(*each) for each in (start, to, size))
            assert library.lumc_copy_state(handle, 0, *map(ctypes.byref, given)) == 0
            np.testing.assert_array_equal(b.state()["s"], want)
            b.set_state(before)
            b.copy_state(here, there)
            np.testing.assert_array_equal(b.state()["s"], want)
        outside = [
            ((0, 0, 0, 0), (0, 0, 4, 0), (1, 1, 4, 1)),
            ((0, 0, -1, 0), (0, 0, 0, 0), (1, 1, 1, 1)),
        ]
        outside += [
            ((0, 0, 0, 0), (0, 0, 0, 0), (1, 1, -1, 1)),
            ((0, 0, 1 << 62, 0), (0,) * 4, (1,) * 4),
        ]
        for each in outside:
            given = (row(*x) for x in each)
            assert library.lumc_copy_state(handle, 0, *map(ctypes.byref, given)) == Exit.USAGE
        given = (row(0, 0, 0, 0) for _ in range(3))
        assert library.lumc_copy_state(handle, 1, *map(ctypes.byref, given)) == Exit.USAGE
        np.testing.assert_array_equal(b.state()["s"], want)
        b.reset()
        assert not b.state()["s"].any()
        b.set_state(before)
        Opened.reset(b)  # as devices without a call for it do it
        assert not b.state()["s"].any()
        for source, target in (
            ((0, 9), (0, 1)),
            (np.s_[0, :, :3], np.s_[1, :, :4]),
            (("x",), (0,)),
            (([0, 1],), ([1, 2],)),
            ((0,) * 5, (1,) * 5),
        ):
            with pytest.raises(LumcError, match="E0610"):
                b.copy_state(source, target)


# ---- threads and processes


def test_a_handle_may_be_shared(model: tuple[Bundle, Any]) -> None:
    bundle, reference = model
    wrong = list[int]()

    def work(seed: int) -> None:
        x = sample(seed)
        for _ in range(50):
            if not np.allclose(bundle.run({"x": x}, threads=2)["y"], reference(x), 1e-4, 1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def _child(bundle: Bundle, x: Any, expected: Any, queue: Any) -> None:
    queue.put(all(np.allclose(bundle.run({"x": x}, threads=2)["y"], expected) for _ in range(5)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads
def test_a_forked_child_starts_its_own_threads(model: tuple[Bundle, Any]) -> None:
    bundle, _ = model
    x = sample()
    expected = bundle.run({"x": x}, threads=2)["y"]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(bundle, x, expected, queue))
    child.start()
    try:
        assert queue.get(timeout=60)
        child.join(60)
        assert child.exitcode == 0
    finally:
        child.kill()
    np.testing.assert_array_equal(bundle.run({"x": x}, threads=2)["y"], expected)


# ---- opening


def constant(tmp_path: Path, value: int, out: str) -> Path:
    body = f"  float *y = args[0]; for (; lo < hi; ++lo) y[lo] = {value};"
    values = [Value("y", F32, (2,), "output", 0)]
    code = simple([kernel("k0", 2, body, ("out",))], values, [Launch("k0", ("y",))])
    return build(code, tmp_path / out, tmp_path)


def test_a_bundle_that_was_linked_again_runs_its_new_code(tmp_path: Path) -> None:
    """The loader keeps libraries by name: the old code must not come back, in any order."""
    first = Bundle.open(constant(tmp_path, 1, "m.lb"))
    again = Bundle.open(tmp_path / "m.lb")
    assert first.run({})["y"][0] == again.run({})["y"][0] == 1
    again.close()
    for value in range(2, 6):
        with Bundle.open(constant(tmp_path, value, "m.lb")) as b:
            assert b.run({})["y"][0] == value
            assert first.run({})["y"][0] == 1
    first.close()
    with pytest.raises(LumcError, match="closed"):
        first.run({})
    first.close()


def test_the_bundle_may_be_removed_while_it_is_open(tmp_path: Path) -> None:
    b = Bundle.open(constant(tmp_path, 4, "m.lb"))
    shutil.rmtree(tmp_path / "m.lb")
    assert b.run({}, threads=2)["y"][0] == 4
    b.close()


def test_a_cpu_that_lacks_a_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lumc.link import toolchain

    monkeypatch.setattr(toolchain, "features", lambda macros: ("sse9",))
    path = constant(tmp_path, 1, "m.lb")
    with pytest.raises(LumcError, match="needs the CPU feature sse9") as e:
        Bundle.open(path)
    assert e.value.exit == Exit.TOOLCHAIN
    monkeypatch.setattr(toolchain, "features", lambda macros: ())
    monkeypatch.setattr(toolchain, "architecture", lambda macros: "pdp11")
    with pytest.raises(LumcError, match="is for pdp11") as e:
        Bundle.open(constant(tmp_path, 1, "n.lb"))
    assert e.value.exit == Exit.TOOLCHAIN


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LumcError, match="no bundle at") as e:
        Bundle.open(tmp_path / "none.lb")
    assert e.value.exit == Exit.USAGE
    (tmp_path / "empty").mkdir()
    with pytest.raises(LumcError, match="not a lumc bundle") as e:
        Bundle.open(tmp_path / "empty")
    assert e.value.exit == Exit.CORRUPT
