"""The checks of Metal text that need no Mac find planted mistakes of every class."""

import re

import pytest

from gpu import address_spaces
from gpu.msl_lint import lint
from msl_kernels import HEADER, MATMUL, ROWS

GOOD = HEADER + MATMUL + ROWS
needs_clang = pytest.mark.skipif(
    not address_spaces.clang(), reason="needs clang 14 or later (C++ for OpenCL)"
)
TID = "uint tid [[thread_index_in_threadgroup]]"
SPACES = {
    "a pointer without an address space": ("    device const float *row = x", "    float *row = x"),
    "an array of the thread as threadgroup memory": (
        "threadgroup half A[32][16]",
        "half A[32][16]",
    ),
    "a threadgroup array as device memory": ("&A[m + i * 8][0]", "(device half *)&A[m + i * 8][0]"),
    "a store to constant memory": ("device float *out [[", "constant float *out [["),
    "an unknown function": ("simd_max(top)", "simd_top(top)"),
    "a matrix of another type": ("simdgroup_half8x8 left, right", "simdgroup_float8x8 left, right"),
}


@needs_clang
def test_address_spaces_of_good_text() -> None:
    assert address_spaces.check(GOOD) == []


@needs_clang
@pytest.mark.parametrize("what", SPACES)
def test_address_spaces(what: str) -> None:
    old, new = SPACES[what]
    text = GOOD.replace(old, new)
    assert text != GOOD
    (first, *_) = address_spaces.check(text)
    assert first.startswith("kernels.metal:")


def test_good_text_has_nothing_to_complain_about() -> None:
    for level in ("apple7", "apple8", "apple9"):
        assert lint(GOOD, level, 128) == []


WRONG = {
    "the index 1 twice": (
        "*out [[buffer(2)]]",
        "*out [[buffer(1)]]",
        "its buffers have the indices",
    ),
    "a hole": ("*out [[buffer(2)]]", "*out [[buffer(3)]]", "its buffers have the indices"),
    "no attribute": (TID, "uint tid", "parameter tid has no attribute"),
    "an unknown attribute": (
        TID,
        "uint tid [[thread_index]]",
        r"unknown attribute \[\[thread_index",
    ),
    "a vector for a scalar": (TID, TID.replace("uint", "uint3"), "is no uint3"),
    "a signed position": (TID, TID.replace("uint", "int"), "is no int"),
    "no index": ("*out [[buffer(2)]]", "*out [[buffer]]", "without an index"),
    "no address space": ("device float *out", "float *out", "no address space"),
    "a value as buffer": ("device float *out", "float out", "neither a pointer nor a reference"),
    "a result": ("kernel void k_rows", "kernel float k_rows", "it returns float"),
    "a reserved word": ("float part[4]", "float kernel[4]", "kernel is a reserved word"),
    "a double": ("float sum = 0.0f", "double sum = 0.0f", "there is no double"),
    "a double number": ("float sum = 0.0f", "float sum = 0.0", "0.0 is a double"),
    "C++": ("float sum = 0.0f", "float sum = std::exp(0.0f)", "no standard library"),
    "a builtin": ("-LUMC_INF_F32", "-__builtin_inff()", "a name of the compiler"),
    "memory": (
        "half A[32][16]",
        "float A[128][64]",
        "bytes of threadgroup memory, there are 32768",
    ),
    "a sum": ("half A[32][16], B[8][40]", "half A[32][500], B[8][60]", "32960 bytes"),
    "an inner block": (
        "{\n            A[e",
        "{ threadgroup int t[4];\n A[e",
        "outside of the outermost",
    ),
    "a value": ("float part[4]", "float part[4] = {}", "cannot be initialised"),
    "a barrier": ("mem_threadgroup); // full", "mem_device);", "does not order threadgroup memory"),
    "a matrix": ("half8x8 left", "matrix<int, 8, 8> left", "no simdgroup_matrix<int, 8, 8>"),
    "the same kernel": ("void k_rows(", "void k_matmul(", "two kernels are called k_matmul"),
    "the same name": ("uint lane [[", "uint tid [[", "two things are called tid"),
    "a bracket": ("    y[block.x * 64", "    { y[block.x * 64", "not closed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_planted_mistakes(what: str) -> None:
    old, new, message = WRONG[what]
    body = (MATMUL + ROWS).replace(old, new)
    assert body != MATMUL + ROWS
    problems = lint(HEADER + body, "apple9")
    assert any(re.search(message, p) for p in problems), problems
    assert all(re.match(r"kernels\.metal:\d+: ", p) for p in problems)


def test_limits() -> None:
    def kernel(parameters: list[str], attributes: str = "") -> str:
        return f"{attributes} kernel void k({', '.join(parameters)}) {{ }}\n"

    many = kernel([f"device float *x{i} [[buffer({i})]]" for i in range(32)])
    assert "the last index is 30" in lint(many, "apple7")[0]
    block = kernel(["constant float4 &x [[buffer(0)]]"])
    assert lint(block, "apple7") == []
    assert "1025 threads" in lint(block, "apple7", 1025)[0]
    few = kernel([], "[[max_total_threads_per_threadgroup(256)]]")
    assert lint(few, "apple7", 256) == [] and "512 threads" in lint(few, "apple7", 512)[0]
    assert "unknown attribute" in lint(kernel([], "[[host_names(2)]]"), "apple7")[0]
    twice = "constant uint A [[function_constant(0)]];\nconstant uint B [[function_constant(0)]];\n"
    assert "declared twice" in lint(twice, "apple7")[0]
    assert "without a value" in lint("constant uint A;", "apple7")[0]


def test_what_a_level_has() -> None:
    text = "kernel void k(device float *x [[buffer(0)]]) { simdgroup_bfloat8x8 a; }\n"
    assert lint(text, "apple9") == []
    assert "needs Metal 3.1" in lint(text, "apple8")[0]
