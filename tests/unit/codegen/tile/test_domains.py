"""Guards that are decided for whole runs of an axis; none may be dropped where it fails."""

from dataclasses import replace

import pytest

from kernel_zoo import (
    c,
    joined,
    joined_product,
    kernel,
    paired,
    plus,
    reflected,
    rolled,
    side_by_side,
    x,
)
from lumc.codegen.count import of_program
from lumc.codegen.tile.abreast import stores
from lumc.codegen.tile.domains import PIECES, _deciding, _runs, decided
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import Case, Map, leaves
from lumc.graph.expr import Expr, add, axis, mul, subterms
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel, const, guard
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule, Threads
from steps import steps

TARGET = resolve_target("cpu:x86-64-v4")
X = x("x", "m", "n")


def maps(k: Kernel, schedule: Schedule | None = None) -> list[Map]:
    program = lower(k, schedule or default_schedule(k, TARGET), TARGET)
    return [op for op in leaves(program.body) if isinstance(op, Map)]


def asked(op: Map) -> list[Expr]:
    return [e for e in subterms(op.term) if e.kind in ("guard", "div", "mod")]


@pytest.mark.parametrize(
    "k", [reflected(33, 37, 4), joined(17, 20, 30, "n"), joined(40, 20, 13, "m")]
)
@pytest.mark.parametrize("rows", [7, 100])
def test_no_piece_asks_any_more(k: Kernel, rows: int) -> None:
    found = maps(k, Schedule(("m", "n"), 1, {"m": rows} if rows < k.extent["m"] else {}, ()))
    assert 1 < len(found) <= PIECES
    assert not any(asked(op) for op in found)


def test_indices_that_go_round_do_not_divide() -> None:
    assert all(e.attr == (2,) for op in maps(rolled(40, 130, 5)) for e in asked(op))


def test_every_element_is_read_once() -> None:
    k = joined(40, 20, 13, "m")
    program = lower(k, default_schedule(k, TARGET), TARGET)
    done = of_program(program)
    assert done.loads == pytest.approx(33 * 40)
    assert done.flops == pytest.approx(13 * 40)  # of the part that is negated


def test_what_two_axes_decide_together_stays() -> None:
    sum_ = add("m", "n")
    value = guard(sum_, 0, 20, X)
    (op,) = maps(kernel("k", "m n", {"m": 30, "n": 40}, value, {"x": (30, 40)}))
    assert asked(op)


def test_pieces_are_few() -> None:
    value = c(0.0)
    for i in range(0, 60, 3):
        value = plus(value, guard("n", i, i + 2, X))
    assert len(maps(kernel("k", "m n", {"m": 30, "n": 60}, value, {"x": (30, 60)}))) == 1


def test_copies_of_operands_side_by_side_are_made_one_by_one() -> None:
    """Also in panels and where they are turned; what lies along the lanes already is not turned."""
    copies = [op for op in maps(joined_product(64, 128, 2, 32)) if op.copy]
    assert [op.turn for op in copies] == ["k", None, "k"]
    assert not any(asked(op) for op in copies)
    assert all(len([e for e in subterms(op.term) if e.kind == "load"]) == 1 for op in copies)


def test_an_axis_decides_where_the_rest_is_shorter_than_its_steps() -> None:
    """32*i + j: whether it is below 64 i alone says, but not whether it is below 65."""
    spans, index = {"i": (0, 11), "j": (0, 31)}, add(mul(axis("i"), 32), axis("j"))
    assert _deciding(index, 0, 64, spans) == "i"
    assert _deciding(index, 0, 65, spans) == ""
    assert _deciding(index, 0, 64, {"i": (0, 11), "j": (0, 32)}) == ""


@pytest.mark.parametrize("op", ["", "exp2"])
def test_many_wide_pieces(op: str) -> None:
    k = side_by_side(20, 40, 37, op)
    found = maps(k)
    assert len(found) == 40
    assert not any(asked(op) for op in found)
    assert all(len([e for e in subterms(op.term) if e.kind == "load"]) == 1 for op in found)


def test_many_rows_ask_once() -> None:
    value = c(0.0)
    for i in range(0, 60, 3):
        value = plus(value, guard("m", i, i + 2, X))
    found = maps(kernel("k", "m n", {"m": 60, "n": 64}, value, {"x": (60, 64)}))
    assert len(found) == 40 and not any(asked(op) for op in found)
    narrow = maps(kernel("k", "m n", {"m": 60, "n": 24}, value, {"x": (60, 24)}))
    assert len(narrow) == 1  # a row has less to do than it would ask


def test_pieces_that_repeat_the_text_are_few() -> None:
    value = c(0.0)
    for i in range(40):  # the last piece is in all of them
        value = plus(value, guard("n", 32 * i, 1280, x(f"x{i}", "m", "n")))
    shapes = {f"x{i}": (30, 1280) for i in range(40)}
    assert len(maps(kernel("k", "m n", {"m": 30, "n": 1280}, value, shapes))) == 1


def test_cutting_takes_few_steps() -> None:
    """Twice the pieces take little more than twice the steps."""

    def cut(count: int) -> None:
        (value,) = side_by_side(4, count, 32).values
        ends = range(0, 32 * count + 1, 32)
        pieces = list(_runs("n", ends, {"m": (0, 3), "n": (0, 32 * count - 1)}, value, False))
        assert len(pieces) == count

    one, two = (steps(lambda n=n: cut(n)) for n in (32, 64))
    assert two < 2.6 * one, (one, two)


def test_long_rows_in_pieces_are_whole() -> None:
    def tile(m: int, threads: int = 1) -> tuple[int, int]:
        k = side_by_side(m, 3, 4000)
        found = default_schedule(k, replace(TARGET, threads=threads)).tile
        return found.get("m", m), found.get("n", 12000)

    assert tile(64) == (16, 12000)
    assert tile(80, 2) == (10, 12000)  # equal shares of rows
    assert tile(4)[1] < 12000  # few rows: threads share the lanes


@pytest.mark.parametrize(
    ("span", "what"), [((0, 4), "holds"), ((5, 9), "fails"), ((4, 5), "stays"), ((-1, 4), "stays")]
)
def test_a_guard_is_decided_by_all_values(span: tuple[int, int], what: str) -> None:
    term = guard("n", 0, 5, X)
    found = {"holds": X, "fails": const(0.0), "stays": term}
    assert decided(term, {"n": span}) is found[what]


def test_zeros_are_not_added_and_numbers_are() -> None:
    span = {"n": (5, 9)}
    assert decided(plus(guard("n", 0, 5, X), X), span) is X
    assert decided(plus(X, 1.0), span) is plus(X, 1.0)


def test_short_axes_are_written_out() -> None:
    (op,) = maps(paired(3, 50, 2))
    axes, values = stores(op)
    assert op.abreast and axes == ("m", "n") and len(values) == 2
    assert not any(e.kind == "guard" or e is axis("j") for v in values for e in subterms(*v))
    assert not maps(paired(3, 50, 5))[0].abreast


def test_programs_of_gpus_are_whole() -> None:
    k, gpu = joined(17, 20, 30, "n"), resolve_target("cuda:sm_90")
    program = lower(k, Schedule(("m", "n"), 1, {}, (), threads=Threads()), gpu)
    assert not any(isinstance(op, Case) for op in program.body)
    assert [op for op in leaves(program.body) if isinstance(op, Map) and asked(op)]
