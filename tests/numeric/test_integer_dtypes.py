"""Integers of all widths, at the ends of their ranges: compiled C and the oracle against numpy."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launching
import lumc
from kernels import QUICK, native
from lumc.codegen.generate import generate
from lumc.codegen.text import term
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.fold import cast
from lumc.graph import ops
from lumc.graph.ops import FLOATS, INTS, UNSIGNED, DType
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search
from lumc.search.saturate import Limits

ROWS, COLS = 5, 24
Array = np.ndarray[Any, Any]


def inputs(kind: DType) -> dict[str, Array]:
    """Random values over the whole range, with both ends; divisors without 0; small ones."""
    rng, (lo, hi) = np.random.default_rng(len(kind.value)), kind.limits
    x = rng.integers(lo, hi, (ROWS, COLS), kind.numpy, endpoint=True)
    y = rng.integers(lo, hi, (ROWS, COLS), kind.numpy, endpoint=True)
    x[0, :3], y[0, :3] = (lo, hi, hi), (hi, lo, hi)
    d = np.where(y == 0, 1, y).astype(kind.numpy)
    f = np.array([0.5, 100.75, -3.0, 127.0])  # -3 wraps where nothing is below 0
    return {"x": x, "y": y, "d": d, "f": f}


def model(kind: DType) -> lumc.Model:
    m = lumc.Model()
    x, y, d = (m.input(n, (ROWS, COLS), kind) for n in "xyd")
    f = m.input("f", (4,), "f64")
    m.output("sum", x + y)
    m.output("difference", x - y)
    m.output("product", x * y)
    m.output("remainder", x.fmod(d))
    m.output("less", x < y)
    m.output("equal", (x == y) | (x >= d))
    m.output("greatest", x.max(1))
    m.output("least", x.min(0))
    m.output("total", x.sum(1))
    m.output("rows", x @ y.transpose(1, 0))
    m.output("constant", (x + kind.limits[1]).maximum(kind.limits[0] + 3))
    m.output("where", where(x < y, y, x))
    m.output("first", x.argmax(1))
    m.output("through", (x.to("i64") * 3).to(kind).to("i64") + 1)
    for other in (*INTS, DType.BOOL, DType.F32, DType.F64):
        m.output(f"to {other}", x.to(other).contiguous())
    m.output("from f64", f.to(kind))
    m.output("from f32", f.to("f32").to(kind))
    m.output("from f16", (f * 0.5).to("f16").to(kind))
    return m


def expected(kind: DType, given: dict[str, Array]) -> dict[str, Array]:
    """What numpy makes of it, in this dtype; division as in C."""
    x, y, d, f = given.values()
    t = kind.numpy
    with np.errstate(all="ignore"):
        wide = [int(v) for v in x.ravel()], [int(v) for v in d.ravel()]
        signs = [(-1 if a < 0 else 1) * (abs(a) % abs(b)) for a, b in zip(*wide, strict=True)]
        out = {
            "sum": x + y,
            "difference": x - y,
            "product": x * y,
            "remainder": np.array(signs, object).reshape(x.shape).astype(t),
            "less": x < y,
            "equal": (x == y) | (x >= d),
            "greatest": x.max(1),
            "least": x.min(0),
            "total": x.sum(1, dtype=t),
            "rows": x @ y.T,
            "constant": np.maximum(x + t.type(kind.limits[1]), t.type(kind.limits[0] + 3)),
            "where": np.where(x < y, y, x),
            "first": x.argmax(1),
            "through": (x.astype(np.int64) * 3).astype(t).astype(np.int64) + 1,
            "from f64": f.astype(np.int64).astype(t),
            "from f32": f.astype(np.int64).astype(t),
            "from f16": (f * 0.5).astype("f2").astype(np.int64).astype(t),
        }
        for other in (*INTS, DType.BOOL, DType.F32, DType.F64):
            out[f"to {other}"] = x.astype(other.numpy)
    return out


def compiled(folder: Path, kinds: list[DType]) -> list[dict[str, Array]]:
    """The outputs of the models of these dtypes, in two parts; one library for all."""
    codes = []
    for kind in kinds:
        space = search(model(kind).graph(), native(), Limits(1500, 10), inside=True)
        codes.append(generate(estimate(space)))
    lib = ctypes.CDLL(str(launching.library(folder, codes, QUICK)))
    return [
        launching.run(lib, f"g{i}_", code, "main", lambda n, k=kind: inputs(k)[n.name], 2)
        for i, (code, kind) in enumerate(zip(codes, kinds, strict=True))
    ]


def differing(got: dict[str, Array], kind: DType) -> list[str]:
    wanted = expected(kind, inputs(kind))
    assert set(got) == set(wanted)
    same = {n: got[n].dtype == w.dtype and np.array_equal(got[n], w) for n, w in wanted.items()}
    return [name for name, equal in same.items() if not equal]


def test_compiled_kernels(tmp_path: Path) -> None:
    for kind, got in zip(INTS, compiled(tmp_path, list(INTS)), strict=True):
        assert differing(got, kind) == [], kind


@pytest.mark.parametrize("kind", INTS, ids=str)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "f64"])
def test_the_oracle(kind: DType, declared: bool) -> None:
    graph = model(kind).graph()
    got, _ = evaluate(graph, "main", inputs(kind), lambda _: np.zeros(0), declared=declared)
    bad = set(differing(got, kind))
    assert bad <= (set() if declared else {"to f32"}), bad  # which is f64 there


MUTANTS = {
    "u32 as i32": ("C_TYPES", DType.U32, "int32_t"),
    "u64 as i64": ("C_TYPES", DType.U64, "int64_t"),
    "u16 as u32": ("C_TYPES", DType.U16, "uint32_t"),
    "i16 as u16": ("C_TYPES", DType.I16, "uint16_t"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_die(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, kind, wrong = MUTANTS[name]
    assert getattr(term, table).get(kind) != wrong
    monkeypatch.setitem(getattr(term, table), kind, wrong)
    (got,) = compiled(tmp_path, [kind])
    assert differing(got, kind)


def test_a_wrong_least_value_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A maximum starts from it."""
    monkeypatch.setattr(ops, "UNSIGNED", (DType.U64, DType.U32, DType.U8))
    m = lumc.Model()
    m.output("greatest", m.input("x", (ROWS, COLS), "u16").fmod(9).max(1))
    code = generate(estimate(search(m.graph(), native(), Limits(1500, 10), inside=True)))
    lib = ctypes.CDLL(str(launching.library(tmp_path, [code], QUICK)))
    x = np.arange(ROWS * COLS, dtype=np.uint16).reshape(ROWS, COLS)
    got = launching.run(lib, "g0_", code, "main", lambda _: x, 1)["greatest"]
    assert got.tolist() != (x % 9).max(1).tolist()


@pytest.mark.parametrize("kind", INTS, ids=str)
def test_constants(kind: DType) -> None:
    """What is folded is what numpy computes."""
    lo, hi = kind.limits
    m = lumc.Model()
    one = m.full((1,), hi, kind)
    assert (one + 1).operand.value == lo and (one * 2).operand.value == kind.number(2 * hi)
    assert (-m.full((1,), 1, kind)).operand.value == (hi if kind in UNSIGNED else -1)
    assert cast(-3.7, kind) == kind.number(-3) and cast(3.7, kind) == 3
    for other in INTS:
        wrapped = np.array(hi, kind.numpy).astype(other.numpy)
        assert one.to(other).operand.value == int(wrapped)
    if kind is DType.U64:
        assert cast(2.0**63, kind) == 1 << 63


def test_what_holds_two_dtypes() -> None:
    """As numpy says it, but for 8 bits of both kinds, and 64, which no float replaces."""
    m = lumc.Model()
    for a in INTS:
        for b in INTS:
            kind = (m.full((1,), 1, a) + m.full((1,), 1, b)).dtype
            wanted = np.promote_types(a.numpy, b.numpy)
            if wanted.kind == "f":
                assert kind is DType.I64
            elif {a, b} == {DType.I8, DType.U8}:
                assert kind is DType.I32
            else:
                assert kind.numpy == wanted, (a, b)
        for f in FLOATS:
            assert (m.full((1,), 1, a) + m.full((1,), 1.0, f)).dtype is f


@pytest.mark.parametrize("kind", [DType.I16, DType.U16, DType.U32, DType.U64], ids=str)
def test_bundles_and_their_files(kind: DType, tmp_path: Path) -> None:
    """Inputs, constants, outputs and states, through Python and the native runner."""
    table = np.random.default_rng(3).integers(*kind.limits, (4, 6), kind.numpy)
    m = lumc.Model()
    x, s = m.input("x", (4, 6), kind), m.state("s", (4, 6), kind)
    m.output("y", x + m.constant(table, "table") + s)
    m.update(s, x)
    path = lumc.compile(m, tmp_path / "m.lb", estimate=True)
    x1 = np.random.default_rng(4).integers(*kind.limits, (4, 6), kind.numpy)
    with lumc.load(path) as bundle:
        assert str(bundle.inputs[0]) == f"{kind}[4, 6]"
        assert np.array_equal(bundle(x1), x1 + table)
        assert np.array_equal(bundle(x1), x1 + table + x1)
    np.save(tmp_path / "x.npy", x1)
    command = [path / "bin" / "lumc-run", path, "--input", f"x={tmp_path}/x.npy", "-o", "y.npy"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert np.array_equal(np.load(tmp_path / "y.npy"), x1 + table)
