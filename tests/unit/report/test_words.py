"""What the words say about terms and schedules."""

from dataclasses import replace

import pytest

from lumc.graph.expr import Expr
from lumc.graph.ops import DType
from lumc.kernel.term import (
    Buffer,
    Kernel,
    Root,
    binary,
    cast,
    const,
    guard,
    load,
    reduce,
    unary,
    where,
    wsum,
)
from lumc.report.words import difference, equations, schedule_words, us
from lumc.schedule.schedule import Schedule, Stage, Threads

X, Y = load("x", DType.F32, "i", "k"), load("y", DType.F32, "i")
SUM = reduce("sum", "k", X)
CASES = [
    (binary("add", binary("mul", X, Y), Y), "x[i, k] * y[i] + y[i]"),
    (binary("mul", binary("add", X, Y), Y), "(x[i, k] + y[i]) * y[i]"),
    (binary("add", X, binary("mul", const(-1.0), Y)), "x[i, k] - y[i]"),
    (binary("add", X, binary("add", Y, Y)), "x[i, k] + y[i] + y[i]"),
    (binary("mul", X, unary("recip", Y)), "x[i, k] / y[i]"),
    (binary("mul", X, unary("recip", binary("mul", Y, Y))), "x[i, k] / (y[i] * y[i])"),
    (unary("recip", unary("recip", X)), "1 / (1 / x[i, k])"),
    (binary("sel", binary("lt", X, Y), Y), "y[i] where x[i, k] < y[i]"),
    (where(binary("lt", X, Y), X, Y), "x[i, k] where x[i, k] < y[i], else y[i]"),
    (guard("i", 0, 3, X), "x[i, k] where 0 <= i < 3"),
    (cast(DType.F16, unary("sqrt", X)), "f16(sqrt(x[i, k]))"),
    (binary("mod", X, const(2.0)), "mod(x[i, k], 2)"),
    (SUM, "sum over k of x[i, k]"),
    (wsum("k", X, Y), "sum over k of exp2(x[i, k] - its max) * y[i], in one pass"),
    (wsum("k", X, const(1.0)), "sum over k of exp2(x[i, k] - its max), in one pass"),
]


def kernel(value: Expr) -> Kernel:
    buffers = Buffer("x", DType.F32, (4, 8)), Buffer("y", DType.F32, (4,))
    root = Root("out", (), value)
    return Kernel("k", ("i",), {"i": 4, "k": 8}, (root,), (*buffers, Buffer("out", DType.F32, ())))


@pytest.mark.parametrize(("value", "said"), CASES, ids=[said for _, said in CASES])
def test_a_term_reads_like_mathematics(value: Expr, said: str) -> None:
    assert equations(kernel(value)) == [f"out[] = {said}"]


def test_shared_and_nested_values_get_a_line() -> None:
    shared = binary("mul", X, Y)
    value = binary("add", unary("exp2", shared), unary("sin", shared))
    assert equations(kernel(value)) == [
        "t1 = x[i, k] * y[i]",
        "out[] = exp2(t1) + sin(t1)",
    ]
    assert equations(kernel(unary("recip", SUM))) == [
        "t1 = sum over k of x[i, k]",
        "out[] = 1 / t1",
    ]


def test_terms_deeper_than_the_stack_are_said() -> None:
    value = X
    for _ in range(3000):
        value = unary("sin", value)
    lines = equations(kernel(value))
    assert "".join(lines).count("sin(") == 3000
    assert max(map(len, lines)) < 200


def test_schedules_in_words_and_by_their_difference() -> None:
    stage = Stage("contract", "i", "j", mr=8, nv=3, stage_b="link")
    schedule = Schedule(("i",), 1, {"i": 2}, (stage,))
    said = schedule_words(kernel(SUM), schedule, threads=2)
    assert said == [
        "loops i:4, outer ones first; i dealt to 2 threads",
        "cache tiles: i by 2",
        "sum over k:8: b packed when the program is linked; a read in place; "
        "register tile of 8 rows of i by 3 vectors along j",
    ]
    other = replace(schedule, tile={}, stages=(replace(stage, mr=6),), keep=False)
    assert difference(schedule, other) == ["keep yes -> no", "tile i 2 -> none", "mr 8 -> 6"]
    assert difference(schedule, schedule) == []
    assert schedule_words(kernel(SUM), other, 1)[-1] == "what is read again is computed again"


def test_times_have_a_fitting_unit() -> None:
    assert [us(v) for v in (0.5, 12.345, 999.0, 23719.4)] == [
        "0.5 us",
        "12.35 us",
        "999 us",
        "23.72 ms",
    ]


def test_the_threads_of_a_block_in_words() -> None:
    stage = Stage(
        "contract", "i", "j", stage_a="inner", place_a="register", fragment="mma", grid=(4, 1)
    )
    threads = Threads(128, vector=4, ring=3, resident=2)
    said = schedule_words(kernel(SUM), Schedule(("i",), 1, {"i": 4}, (stage,), threads=threads), 1)
    assert said[0].endswith("i dealt to blocks of threads")
    assert said[1] == "tiles of a block: i by 4"
    assert said[2].endswith(
        "b read in place; a copied beside the contraction; 4 x 1 warps (mma) along i and j; "
        "a in registers"
    )
    assert said[3].startswith("128 threads in a block, 32 along a row, 4 elements moved at once")
    assert said[3].endswith("copies 3 tiles deep, 2 blocks on a processor") and len(said) == 4
    whole = Schedule(("i",), 1, {"i": 4}, (stage,), threads=Threads(128, ring=4, bulk=2))
    words = "copies 4 tiles deep, whole tiles copied by tensor maps, each for 2 blocks"
    assert schedule_words(kernel(SUM), whole, 1)[3].endswith(words)
