"""Metal text on the emulator: numbers, functions, simdgroups, and planted mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
import msl
from lumc.codegen.gpu.grid import Grid
from msl_kernels import BARRIER, HEADER, MATMUL, ROWS, without_barrier

Array = np.ndarray[Any, Any]


WIDTH = np.uint32(5)
SMALL = """
kernel void k_part(device float *y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]])
{
    if (tid < 16) threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] = simd_sum(float(tid));
}
kernel void k_past(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                   uint tid [[thread_index_in_threadgroup]])
{
    y[tid] = x[tid + 1];
}
kernel void k_same(device lumc_f16 *x [[buffer(0)]], device half *y [[buffer(1)]],
                   device const half *z [[buffer(2)]], uint tid [[thread_index_in_threadgroup]])
{
    x[tid / 2] = lumc_to_f16(float(tid));
    y[tid] = z[tid] * z[tid];
}
kernel void k_product(device const half *z [[buffer(0)]], device half *y [[buffer(1)]],
                      uint tid [[thread_index_in_threadgroup]])
{
    y[tid / 2] = z[tid] * z[tid];
}
constant uint WIDTH [[function_constant(3)]];
[[max_total_threads_per_threadgroup(64)]]
kernel void k_fill(device uint *y [[buffer(0)]], uint i [[thread_position_in_grid]])
{
    y[i] = i % WIDTH;
}
"""
MUTANTS = [
    (kernel, n) for kernel, text in (("k_matmul", MATMUL), ("k_rows", ROWS))
    for n in range(text.count(BARRIER))
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("msl")


@pytest.fixture(scope="module")
def checked(folder: Path) -> msl.Module:
    """The kernels, and what becomes of them when one barrier is missing."""
    texts = {"k_matmul": MATMUL, "k_rows": ROWS}
    mutants = [
        without_barrier(texts[k], n).replace(f"void {k}(", f"void {k}_{n}(") for k, n in MUTANTS
    ]
    return msl.build(HEADER + MATMUL + ROWS + SMALL + "".join(mutants), folder, True, {3: WIDTH})


@pytest.fixture(scope="module")
def plain(folder: Path) -> msl.Module:
    return msl.build(HEADER + MATMUL + ROWS + FUNCTIONS, folder)


def operands() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((64, 40)).astype(np.float16)
    b = rng.standard_normal((40, 64)).astype(np.float16)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("which", ["plain", "checked"])
def test_two_kernels_of_one_text(which: str, request: pytest.FixtureRequest) -> None:
    module: msl.Module = request.getfixturevalue(which)
    a, b, product = operands()
    assert module.threadgroup_bytes("k_matmul") == (32 * 16 + 8 * 40) * 2
    for order in ("forward", "reverse", "random"):
        c, y = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
        assert module.launch("k_matmul", Grid(4, 128), [a, b, c], order) == ""
        np.testing.assert_allclose(c, product, rtol=0, atol=2e-5)
        assert module.launch("k_rows", Grid(64, 128), [c, y], order) == ""
        e = np.exp2(product - product.max(1, keepdims=True))
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("kernel", "n"), MUTANTS)
def test_a_missing_barrier_is_reported(checked: msl.Module, kernel: str, n: int) -> None:
    a, b, product = operands()
    out = np.zeros((64, 64), np.float32)
    arguments = [a, b, out] if kernel == "k_matmul" else [product.astype(np.float32), out]
    report = checked.launch(f"{kernel}_{n}", Grid(4, 128), arguments)
    assert "race" in report or "uninitialised" in report


def test_a_barrier_that_not_all_threads_reach(checked: msl.Module) -> None:
    assert "barrier" in checked.launch("k_part", Grid(1, 32), [np.zeros(32, np.float32)])


def test_out_of_bounds(checked: msl.Module) -> None:
    x = np.zeros(32, np.float32)
    assert "out of bounds" in checked.launch("k_past", Grid(1, 32), [x, x.copy()])


def test_a_race_of_16_bit_floats(checked: msl.Module) -> None:
    x, y, z = (np.zeros(32, np.float16) for _ in range(3))
    assert "race" in checked.launch("k_same", Grid(1, 32), [x, y, z])
    assert "race" in checked.launch("k_product", Grid(1, 32), [z, y])


def test_function_constants(checked: msl.Module) -> None:
    y = np.zeros(128, np.uint32)
    assert checked.launch("k_fill", Grid(2, 64), [y]) == ""
    assert (y == np.arange(128) % 5).all()
    with pytest.raises(emulator.LaunchError, match="compiled for 64 threads"):
        checked.launch("k_fill", Grid(1, 128), [y])


def test_errors_name_lines_of_the_metal_text(folder: Path) -> None:
    text = (
        HEADER
        + """kernel void k_bad(device float *y [[buffer(0)]])
{
    y[0] = unknown;
    threadgroup float a[8193];
}
"""
    )
    with pytest.raises(AssertionError, match="32 KB") as e:
        msl.build(text, folder)
    assert f"kernels.metal:{text.count(chr(10)) - 2}:" in str(e.value)
    inner = "kernel void k(device float *y [[buffer(0)]]) { { threadgroup float a[4]; } }"
    with pytest.raises(ValueError, match="inner block"):
        msl.build(inner, folder)


# ---- the functions of lumc_dev.metal

EDGES = np.array(
    [0.0, -0.0, 1, -1, 0.5, 3, -3, 1e-30, -1e30, 127, -149.5, 1e-42, 5.5, np.inf, -np.inf, np.nan],
    np.float32,
)
LEAST = -3.4028234663852886e38
UNARY = {
    "exp2": np.exp2,
    "exp2_ftz": np.exp2,
    "exp": np.exp,
    "exp_ftz": np.exp,
    "decay": np.exp2,  # of what is not above 0
    "log2": np.log2,
    "sin": np.sin,
    "recip": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "finite": lambda x: np.where(x < LEAST, LEAST, x),
    "rounded": np.positive,
}
BINARY = {"mod": np.fmod, "max": np.maximum, "top": lambda a, b: np.where(b > a, b, a)}
INTEGERS = {
    "i64": ("lumc_i64", "i8"),
    "i32": ("lumc_i32", "i4"),
    "i8": ("lumc_i8", "i1"),
    "u8": ("lumc_u8", "u1"),
}
OPERATIONS = {"add": np.add, "mul": np.multiply, "mod": np.fmod, "max": np.maximum}


def functions() -> str:
    """A kernel for every type of operand: all functions of all pairs of edge cases."""
    calls = [f"y[{i} * 256 + i] = lumc_{f}_f32(a);" for i, f in enumerate(UNARY)]
    calls += [f"y[{i} * 256 + i] = lumc_{f}_f32(a, b);" for i, f in enumerate(BINARY, len(UNARY))]
    text = _function("f32", "float", 16, calls)
    for kind, (c, _) in INTEGERS.items():
        calls = [f"y[{i} * 64 + i] = lumc_{f}_{kind}(a, b);" for i, f in enumerate(OPERATIONS)]
        text += _function(kind, c, 8, calls)
    return text


def _function(kind: str, c: str, n: int, calls: list[str]) -> str:
    return f"""
kernel void k_{kind}(device const {c} *x [[buffer(0)]], device {c} *y [[buffer(1)]],
                     uint i [[thread_index_in_threadgroup]])
{{
    {c} a = x[i / {n}], b = x[i % {n}];
    {" ".join(calls)}
}}
"""


HALVES = """
kernel void k_halves(device const lumc_u16 *h [[buffer(0)]], device const float *x [[buffer(1)]],
                     device float *wide [[buffer(2)]], device lumc_u16 *narrow [[buffer(3)]],
                     uint i [[thread_position_in_grid]])
{
    wide[i] = lumc_from_f16({h[i]});
    wide[i + 65536] = lumc_from_bf16({h[i]});
    narrow[i] = lumc_to_f16(x[i]).bits;
    narrow[i + 65536] = lumc_to_bf16(x[i]).bits;
}
"""
# rows of 4 words through threadgroup memory, in accesses of 16, 8 and 4 bytes
MEMORY = """
kernel void k_memory(device const lumc_f16 *x [[buffer(0)]], device lumc_f16 *y [[buffer(1)]],
                     device lumc_i64 *z [[buffer(2)]], uint i [[thread_index_in_threadgroup]])
{
    threadgroup lumc_f16 rows[32][8];
    lumc_f16 eight[8], four[4], two[2];
    lumc_copy<16>(&rows[i][0], x + i * 8);
    lumc_sync();
    lumc_load(eight, x + (31 - i) * 8);
    lumc_load(four, &rows[31 - i][4]);
    lumc_load(two, &rows[31 - i][2]);
    for (int k = 0; k < 4; k++) eight[4 + k] = four[k];
    for (int k = 0; k < 2; k++) eight[2 + k] = two[k];
    lumc_store(y + i * 8, eight);
    z[i] = lumc_shuffle_xor(lumc_i64(i) << 33 | i, 5);
}
"""
FUNCTIONS = functions() + HALVES + MEMORY


def test_memory_and_shuffles(plain: msl.Module) -> None:
    x = np.arange(256, dtype=np.float16).reshape(32, 8)
    y, z = np.zeros_like(x), np.zeros(32, np.int64)
    assert plain.launch("k_memory", Grid(1, 32), [x, y, z]) == ""
    np.testing.assert_array_equal(y, x[::-1])
    np.testing.assert_array_equal(z, (np.arange(32) ^ 5) * ((1 << 33) + 1))


def test_floats_have_the_edge_cases_of_numpy(plain: msl.Module) -> None:
    got = np.zeros((len(UNARY) + len(BINARY), 16, 16), np.float32)
    assert plain.launch("k_f32", Grid(1, 256), [EDGES, got]) == ""
    a, b = np.meshgrid(EDGES.astype(np.float64), EDGES.astype(np.float64), indexing="ij")
    with np.errstate(all="ignore"):
        for i, (name, f) in enumerate(UNARY.items()):
            rows = EDGES <= 0 if name == "decay" else slice(None)
            want = f(a).astype(np.float32)
            np.testing.assert_allclose(got[i][rows], want[rows], rtol=3e-7, err_msg=name)
        for i, (name, g) in enumerate(BINARY.items(), len(UNARY)):
            np.testing.assert_array_equal(got[i], g(a, b).astype(np.float32), err_msg=name)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_wrap(plain: msl.Module, kind: str) -> None:
    dtype = np.dtype(INTEGERS[kind][1])
    limits = np.iinfo(dtype)
    x = np.array([0, 1, 3, 7, 0, limits.max, limits.min, limits.max // 3], dtype)
    x[4] = np.array(-1).astype(dtype)
    got = np.zeros((4, 8, 8), dtype)
    assert plain.launch(f"k_{kind}", Grid(1, 64), [x, got]) == ""
    a, b = np.meshgrid(x, x, indexing="ij")
    with np.errstate(all="ignore"):
        for i, (name, f) in enumerate(OPERATIONS.items()):
            want = np.where(b == 0, 0, f(a, b)) if name == "mod" else f(a, b)
            np.testing.assert_array_equal(got[i], want, err_msg=name)


def test_16_bit_floats(plain: msl.Module) -> None:
    h = np.arange(65536, dtype=np.uint16)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 32, 65536, dtype=np.uint32).view(np.float32)
    x[::2] = (rng.standard_normal(32768) * 10.0 ** rng.integers(-9, 6, 32768)).astype(np.float32)
    wide, narrow = np.zeros((2, 65536), np.float32), np.zeros((2, 65536), np.uint16)
    assert plain.launch("k_halves", Grid(64, 1024), [h, x, wide, narrow]) == ""
    np.testing.assert_array_equal(wide[0], h.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(wide[1], (h.astype(np.uint32) << 16).view(np.float32))
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(narrow[0].view(np.float16), want)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(narrow[1][~np.isnan(x)], rounded[~np.isnan(x)])
    assert np.isnan((narrow[1][np.isnan(x)].astype(np.uint32) << 16).view(np.float32)).all()
