"""Lookups in packed weights: the elements that the packing says, as numpy finds them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lumc
from lumc.bundle.packing import pack
from lumc.codegen import lookups as module
from lumc.codegen.code import Launch
from lumc.codegen.lookups import lookups, through
from lumc.codegen.tile.packing import Packing
from lumc.frontend.api.model import Model
from lumc.graph.expr import Expr, add, axis, mul
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.term import Buffer, Kernel, Root, binary, cast, const, dyn, guard, load
from lumc.oracle.term import evaluate_kernel

F32, F16, I8, U8, I32, I64 = (
    DType.F32,
    DType.F16,
    DType.I8,
    DType.U8,
    DType.I32,
    DType.I64,
)
ROWS, COLUMNS, ASKED = 37, 24, 5


def lookup(kind: DType, shape: tuple[int, ...], bits: int = 0, alone: bool = False) -> Kernel:
    """out[i, ..] = w[<ids[i]>, ..], 0 where there is no such row."""
    names = [f"k{d}" for d in range(1, len(shape))]
    ids = dyn(load("ids", I64, 0 if alone else "i"))
    row = guard(ids, 0, shape[0], load("w", kind, ids, *names))
    extent = dict(zip(names, shape[1:], strict=True)) | ({} if alone else {"i": ASKED})
    axes = (*(() if alone else ("i",)), *names)
    root = Root("out", tuple(map(axis, axes)), cast(F32, row))
    table = Buffer("w", kind, shape, True, **({"few": bits} if bits else {}))
    buffers = (
        Buffer("ids", I64, (1,) if alone else (ASKED,)),
        table,
        Buffer("out", F32, tuple(extent[a] for a in axes)),
    )
    return Kernel("lookup", axes, extent, (root,), buffers)


def table(kind: DType, shape: tuple[int, ...], bits: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if kind.is_float:
        return rng.standard_normal(shape).astype(kind.numpy)
    low = 0 if kind is U8 else -(1 << (bits or 8) - 1)
    return rng.integers(low, low + (1 << (bits or 8)), shape).astype(kind.numpy)


def difference(kernel: Kernel, packing: Packing, weight: Any, ids: Any) -> str:
    """What differs between a lookup in a weight and one in its packed form, or nothing."""
    moved = through(kernel, {"w": packing})
    if said := escape(moved):
        return said
    b = moved.buffer("w")
    own = pack(weight, kernel.buffer("w").dtype, packing)
    if own.nbytes != b.nbytes:
        return f"{own.nbytes} bytes, {b.nbytes} are read"
    held = own.view(b.dtype.numpy).reshape(b.shape)
    want = evaluate_kernel(kernel, {"w": weight, "ids": ids})["out"]
    got = evaluate_kernel(moved, {"w": held, "ids": ids})["out"]
    return "" if np.array_equal(got, want) else "other values"


def asked(n: int, alone: bool = False) -> Any:
    return np.array([0, n - 1, 3, -1, n], np.int64)[1 if alone else 0 :][: 1 if alone else ASKED]


def panels(kind: DType, dtype: DType, width: int, bits: int = 0) -> Packing:
    """[rows / width][columns][width], as products have their weights."""
    axes, index = (("a0", COLUMNS), ("a1", ROWS)), (axis("a1"), axis("a0"))
    few = {"bits": bits} if bits else {}
    return Packing("w", dtype, index, axes, (1, width), (ROWS, COLUMNS), **few)


PANELS = [
    (F32, F32, 16, 0, 0),
    (F16, F16, 16, 0, 0),
    (F16, F32, 8, 0, 0),  # widened when it is linked
    (I8, I8, 16, 0, 0),
    (I8, I32, 16, 8, 0),
    (U8, I32, 16, 8, 0),
    (I8, I32, 16, 4, 4),
    (U8, I32, 8, 4, 4),
]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("kind", "dtype", "width", "bits", "few"), PANELS)
def test_panels_and_words(
    kind: DType, dtype: DType, width: int, bits: int, few: int, alone: bool
) -> None:
    k, packing = lookup(kind, (ROWS, COLUMNS), few, alone), panels(kind, dtype, width, bits)
    weight = table(kind, (ROWS, COLUMNS), few)
    assert not difference(k, packing, weight, asked(ROWS, alone))


def test_a_packing_of_split_axes_and_of_another_shape() -> None:
    """As products with levels by blocks have them, in kernels that see the weight in 3 dims."""
    blocks = (("o", 3), ("k", 8), ("n", ROWS))
    flat = (axis("n"), add(mul(axis("o"), 8), axis("k")))
    weight = table(I8, (ROWS, COLUMNS), 4)
    for bits, dtype in ((0, I8), (4, I32)):
        few = {"bits": bits} if bits else {}
        packing = Packing("w", dtype, flat, blocks, (2, 16), (ROWS, COLUMNS), **few)
        assert not difference(lookup(I8, (ROWS, COLUMNS), 4), packing, weight, asked(ROWS))
        seen = lookup(I8, (ROWS, 3, 8), 4)
        assert not difference(seen, packing, weight.reshape(ROWS, 3, 8), asked(ROWS))


def test_what_lies_without_panels() -> None:
    """Turned, as a product of the other side reads it."""
    turned = Packing("w", F32, (axis("a1"), axis("a0")), (("a0", COLUMNS), ("a1", ROWS)), None)
    k = lookup(F32, (ROWS, COLUMNS))
    assert not difference(k, turned, table(F32, (ROWS, COLUMNS), 0), asked(ROWS))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_axes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=3)))
    names = [f"a{i}" for i in range(len(shape))]
    order = data.draw(st.permutations(range(len(shape))))
    axes = tuple((names[i], shape[i]) for i in order)
    panel = data.draw(
        st.none() | st.tuples(st.integers(0, len(shape) - 1), st.sampled_from([1, 3, 4]))
    )
    packing = Packing("w", F32, tuple(map(axis, names)), axes, panel, shape)
    ids = np.array([0, shape[0] - 1, -1, shape[0], 0], np.int64)
    assert not difference(lookup(F32, shape), packing, table(F32, shape, 0), ids)


def test_mutants_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quotient that is the rest, halves of bytes that are turned, the least number left out."""
    k, packing = lookup(I8, (ROWS, COLUMNS), 4), panels(I8, I32, 16, 4)
    weight = table(I8, (ROWS, COLUMNS), 4)
    number = module._number

    def turned(byte: Expr, part: Expr, bits: int, kind: DType) -> Expr:
        return number(byte, add(mul(part, -1), 1), bits, kind)

    mutants: list[tuple[str, Any]] = [
        ("mod", lambda e, n, ranges: module.floordiv(e, n, ranges)),
        ("_number", turned),
        ("least_of", lambda bits, kind: 0),
        ("BYTES", 2),
    ]
    for name, wrong in mutants:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, wrong)
            assert difference(k, packing, weight, asked(ROWS)), name
    assert not difference(k, packing, weight, asked(ROWS))


# ---- which lookups read what


def wanted(
    kernels: dict[str, Kernel], launches: list[Launch], packed: list[Packing]
) -> dict[str, Any]:
    touched = {key: [b.name for b in k.buffers] for key, k in kernels.items()}
    return lookups(kernels, launches, touched, packed)


def scaling() -> Kernel:
    """A kernel that reads the table as it is stored."""
    value = binary("mul", load("w", F32, "i", "j"), const(2.0))
    shape = (ROWS, COLUMNS)
    buffers = (Buffer("w", F32, shape, True), Buffer("out", F32, shape))
    root = Root("out", (axis("i"), axis("j")), value)
    return Kernel("scale", ("i", "j"), {"i": ROWS, "j": COLUMNS}, (root,), buffers)


def test_a_weight_that_is_stored_anyway_is_read_there() -> None:
    kernels = {"a": lookup(F32, (ROWS, COLUMNS)), "b": scaling()}
    packed = [Packing("t", F32, (axis("a1"), axis("a0")), (("a0", COLUMNS), ("a1", ROWS)), (1, 16))]
    one, other = Launch("a", ("ids", "t", "y")), Launch("b", ("t", "z"))
    assert set(wanted(kernels, [one], packed)["a"]) == {"w"}
    assert wanted(kernels, [one, other], packed) == {}


def test_a_packing_must_hold_all_and_be_one_for_all_launches() -> None:
    kernels = {"a": lookup(F32, (ROWS, COLUMNS))}
    index, axes = (axis("a1"), axis("a0")), (("a0", COLUMNS), ("a1", ROWS))
    whole = Packing("t", F32, index, axes, (1, 16))
    launches = [Launch("a", ("ids", "t", "y"))]
    for part in (
        Packing("t", F32, index, (("a0", COLUMNS), ("a1", ROWS - 1)), (1, 16)),
        Packing("t", F32, index, (*axes[:1], ("a2", 2), *axes[1:]), (2, 16)),  # twice
        Packing("t", F32, (axis("a1"), mul(axis("a0"), 2)), (("a0", 12), axes[1]), (1, 16)),
    ):
        assert wanted(kernels, launches, [part]) == {}
    assert wanted(kernels, launches, [whole])
    launches.append(Launch("a", ("ids", "u", "z")))  # the same kernel on another table
    assert wanted(kernels, launches, [whole]) == {}
    both = [whole, Packing("u", F32, index, axes, (1, 16))]
    assert wanted(kernels, launches, both)["a"]["w"].weight == "w"


def test_numbers_of_few_bits_are_words() -> None:
    few, plain = lookup(I8, (ROWS, COLUMNS), 4), lookup(I8, (ROWS, COLUMNS))
    launches = [Launch("a", ("ids", "t", "y"))]
    packing = wanted({"a": few}, launches, [])["a"]["w"]
    assert packing.size * 4 == ROWS * COLUMNS // 2
    weight = table(I8, (ROWS, COLUMNS), 4)
    assert not difference(few, packing, weight, asked(ROWS))
    assert wanted({"a": plain}, launches, []) == {}
    odd = lookup(I8, (ROWS, 12), 4)  # no whole words
    assert wanted({"a": odd}, launches, []) == {}
    deep = lookup(I8, (ROWS, 3, 8), 4)
    packing = wanted({"a": deep}, launches, [])["a"]["w"]
    assert not difference(deep, packing, table(I8, (ROWS, 3, 8), 4), asked(ROWS))


# ---- whole models


def test_one_copy_of_a_tied_table(tmp_path: Path) -> None:
    """In a bundle of a model that looks up rows, and multiplies with the same table."""
    rng, rows = np.random.default_rng(3), 800
    values, ids = rng.standard_normal((rows, 64), np.float32), rng.integers(0, rows, 32)
    model = Model()
    table = model.constant(values, "table")
    asked = model.input("ids", (32,), "i64", values=(0, rows - 1))
    model.output("y", table.embedding(asked) @ table.T)
    lumc.compile(model, tmp_path / "m.lb", estimate=True)
    with lumc.load(tmp_path / "m.lb") as bundle:
        got = bundle(ids)
    want = values[ids].astype(np.float64) @ values.T
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    size = (tmp_path / "m.lb" / "weights.safetensors").stat().st_size
    assert values.nbytes < size < 1.2 * values.nbytes
