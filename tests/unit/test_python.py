"""``import lumc``: bundles as functions, models compiled in place, what is said and refused."""

import inspect
import logging
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lumc
from commands import BESIDE
from lumc.kernel.machines import resolve_target
from lumc.python import Options
from lumc.report.log import Log, interruptible
from lumc.runtime.opened import as_wanted


def doubled() -> lumc.Model:
    """One output."""
    model = lumc.Model()
    model.output("y", model.input("x", (4,)) * 2)
    return model


def counting() -> lumc.Model:
    """Two inputs, two outputs, a state and two entries."""
    model = lumc.Model()
    total = model.state("total", (3,))
    model.entry("add")
    a, b = model.input("a", (3,)), model.input("b", (3,))
    model.update(total, total + a)
    model.output("sum", a + b)
    model.output("product", a * b)
    model.entry("read")
    model.output("now", total * 1.0)
    return model


@pytest.fixture(scope="module")
def bundle() -> lumc.Bundle:
    return lumc.compile(counting(), estimate=True)


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is not open, of a graph that a text names."""
    graph = tmp_path_factory.mktemp("doubling") / "m.lg"
    doubled().save(graph)
    return lumc.compile(str(graph), graph.with_suffix(".lb"), estimate=True)


def test_a_bundle_is_a_function_of_arrays_by_name_or_place(
    bundle: lumc.Bundle, doubling: Path
) -> None:
    a, b = np.arange(3, dtype="f4"), np.ones(3, "f4") * 3
    for got in (bundle(a, b), bundle(a=a, b=b), bundle(a, b=b), bundle.run({"a": a, "b": b})):
        assert np.array_equal(got["sum"], a + b) and np.array_equal(got["product"], a * b)
    with lumc.load(doubling) as one:
        assert np.array_equal(one(a[:1].repeat(4) + 1), np.full(4, 2, "f4"))


def test_entries_states_and_what_they_are(bundle: lumc.Bundle) -> None:
    assert bundle.entries == ("add", "read") and bundle.device == "cpu"
    assert [t.name for t in bundle.inputs] == ["a", "b"]
    assert [(t.name, str(t)) for t in bundle.entry("read").outputs] == [("now", "f32[3]")]
    bundle.set_state({"total": np.ones(3, "f4")})
    bundle(np.full(3, 2, "f4"), np.zeros(3, "f4"))
    assert np.array_equal(bundle.run({}, "read")["now"], np.full(3, 3, "f4"))
    assert np.array_equal(bundle.state()["total"], np.full(3, 3, "f4"))
    assert "a f32[3], b f32[3] -> sum f32[3]" in repr(bundle)


def foreign() -> str:
    """A CPU that is not this one."""
    here = resolve_target("cpu:native").arch
    return "cpu:x86-64-v2" if here == "aarch64" else "cpu:aarch64"


def test_wrong_calls_are_one_error_each(bundle: lumc.Bundle) -> None:
    x = np.zeros(3, "f4")
    for args, named, said in (
        ((x, x, x), {}, "3 arrays for 2 inputs: a, b"),
        ((x,), {"a": x}, "input 'a' is given twice"),
        ((x,), {}, "missing: b"),
        ((x, x), {"c": x}, "unknown: c"),
        ((x, np.zeros(4, "f4")), {}, r"must be f32\[3\]"),
        ((x, np.zeros(3)), {}, "must be f32"),
    ):
        with pytest.raises(lumc.Error, match=said) as e:
            bundle(*args, **named)
        assert (e.value.code, e.value.exit) == ("E0610", 2)
    for options, said in (
        ({"threads": 0}, "threads=0"),
        ({"threads": "2"}, "threads='2'"),
        ({"threads": 1.5}, "threads=1.5"),
        ({"target": ["cpu"]}, "target="),
        ({"dtype": "f8"}, "dtype='f8'"),
        ({"weights": "q4"}, "weights='q4'"),
        ({"budget": "soon"}, "expected a time"),
        ({"target": "vax"}, "vax"),
        ({"target": foreign()}, f"a bundle for {foreign()} cannot be opened here: this machine"),
        ({"estimate": True, "frozen": True}, "two ways to choose"),
        ({"device_records": "nobody", "cache": "none"}, "none of the records"),
    ):
        with pytest.raises(lumc.Error, match=said):
            lumc.compile(doubled(), **options)  # type: ignore[call-overload]
    for target in ("metal", "cuda:sm_90,metal"):  # before anything is compiled
        with pytest.raises(lumc.Error, match="cannot be opened here") as e:
            lumc.compile("nosuch.onnx", target=target)
        assert (e.value.code, e.value.exit) == ("E0704", 7) and "model.lb" in e.value.fix
    with pytest.raises(lumc.Error, match="E0201"):
        lumc.compile("nosuch.onnx", target="metal,cpu")
    with pytest.raises(lumc.Error):
        lumc.load("nosuch.lb")


def test_numbers_of_python_have_no_dtype_of_their_own(doubling: Path) -> None:
    with lumc.load(doubling) as one:
        for x in ([1, 2, 3, 4], (0.5, 1, 1.5, 2), [True, False, True, True]):
            assert one(x).tolist() == [2 * float(v) for v in x]
        with pytest.raises(lumc.Error, match="must be f32"):
            one(["1", "2", "3", "4"])
    whole, small = np.dtype("i8"), np.dtype("i1")
    assert as_wanted(np.array([1.0, 2.0]), whole).dtype == whole
    for x, dtype in (([1.5, 2.0], whole), ([300, 1], small), ([np.nan, 1.0], small)):
        assert as_wanted(np.array(x), dtype).dtype != dtype


def test_what_is_no_tensor_is_refused_where_it_is_written() -> None:
    model = lumc.Model()
    x = model.input("x", (np.int64(4),))
    assert x.shape == (4,) and type(x.shape[0]) is int
    for code, wrong in (
        ("E0126", lambda: model.output("y", 3)),  # type: ignore[arg-type]
        ("E0121", lambda: model.input("z", (2.5,))),  # type: ignore[arg-type]
        ("E0123", lambda: x + "a"),
        ("E0127", lambda: np.array(x)),
    ):
        with pytest.raises(lumc.Error) as e:
            wrong()
        assert e.value.code == code and e.value.where.startswith("test_python.py:")


def test_a_closed_bundle_says_so_and_stays_closed(doubling: Path) -> None:
    one = lumc.load(doubling)
    one.close()
    one.close()
    assert repr(one) == "<lumc.Bundle, closed>"
    for use in (one.state, lambda: one(np.zeros(4, "f4")), lambda: one.inputs):
        with pytest.raises(lumc.Error, match="the bundle is closed"):
            use()


def test_conversions_are_warned_of_where_the_bundle_is_called(doubling: Path) -> None:
    with lumc.load(doubling) as one, warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        assert one(np.ones(4, "f2")).dtype == "f4"
        one.run({"x": np.ones(4, "f2")})
    assert [(Path(x.filename).name, str(x.message)[:10]) for x in w] == [
        ("test_python.py", "input 'x':")
    ] * 2


def test_a_bundle_is_written_and_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lumc"):
        path = lumc.compile(doubled(), tmp_path / "m.lb", estimate=True)
    assert path == tmp_path / "m.lb" and [x.name for x in tmp_path.iterdir()] == ["m.lb"]
    assert [r.getMessage() for r in caplog.records] == ["search: 1 regions, 1 unique"]
    with lumc.load(path, threads=2, device="cpu") as one:
        assert one.threads == 2 and np.array_equal(one(np.ones(4, "f4")), np.full(4, 2, "f4"))


def test_dims_and_files_are_compiled_too(tmp_path: Path) -> None:
    model = lumc.Model()
    n = model.dim("n", 1, 64)
    model.output("y", model.input("x", (n,)).exp())
    model.save(tmp_path / "m.lg")
    for source in (model, tmp_path / "m.lg"):
        with lumc.compile(source, dims={"n": 5}, estimate=True) as one:
            assert one(np.zeros(5, "f4")).tolist() == [1] * 5


def test_models_are_compiled_in_threads_too() -> None:
    """Signals, and limits of the processor, are of the main thread."""
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(lumc.compile, doubled(), estimate=True) for _ in range(2)]
    for job in jobs:
        assert job.result()(np.ones(4, "f4")).tolist() == [2] * 4


def test_variables_stand_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "nosuchcc")
    with pytest.raises(lumc.Error, match=r"E0701.*nosuchcc"):
        lumc.compile(doubled(), estimate=True)


def test_sigterm_of_a_host_is_left_alone() -> None:
    """The command line ends with it; a program that imports lumc has its own way."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with interruptible(Log()):
        assert signal.getsignal(signal.SIGTERM) is before[0]
        assert signal.getsignal(signal.SIGINT) is not before[1]
    assert signal.getsignal(signal.SIGINT) is before[1]


SCRIPT = """
import lumc, numpy as np
print("once")
model = lumc.Model()
model.output("y", model.input("x", (64,)) + 1)
with lumc.compile(model, budget=0.5, allow_estimate=True, cache="records") as bundle:
    print(bundle(np.zeros(64, "f4")).sum())
"""


def test_measuring_runs_no_script_twice(tmp_path: Path) -> None:
    """From stdin, where there is no file of it either; tests/docs/test_python.py has one."""
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, cwd=tmp_path, capture_output=True, text=True
    )
    said = [s for s in done.stderr.splitlines() if BESIDE not in s]
    assert (done.stdout, said) == ("once\n64.0\n", []), done


def test_what_lies_in_the_current_folder_is_not_imported_by_workers(tmp_path: Path) -> None:
    (tmp_path / "struct.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "m.lg").write_text(
        "lumc graph 1\ninput x f32[4]\ny f32[i:4] = add x[i], x[i]\noutput y = y\n"
    )
    code = "import lumc.__main__ as m; m.main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "search", "m.lg", "-o", "m.ls"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_importing_lumc_imports_nothing_else() -> None:
    code = "import lumc, sys; print([m for m in sys.modules if m in ('numpy', 'click', 'egglog')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_types_are_published() -> None:
    assert (Path(lumc.__file__).parent / "py.typed").is_file()


def test_typed_options_are_those_of_compile() -> None:
    told = inspect.signature(lumc.compile).parameters.values()
    named = {p.name: p.annotation for p in told if p.kind is p.KEYWORD_ONLY}
    assert {k: str(v.__forward_arg__) for k, v in Options.__annotations__.items()} == named
