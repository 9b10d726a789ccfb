"""Which operands are made of levels, and the panels that these lie in."""

from dataclasses import replace

import pytest

from kernel_zoo import F16, F32, I8, U8, c, kernel, levels, plus, times, total, x
from lumc.codegen.tile.lower import lower
from lumc.graph.expr import add, axis, mul
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel, cast, dyn, guard, unary
from lumc.schedule.first import default_schedule
from lumc.schedule.legal import is_legal
from lumc.schedule.levels import Levels, levels_of, panel_vectors, steps_of
from lumc.schedule.schedule import Schedule

TARGET = resolve_target("cpu:x86-64-v4")
AT = add(mul(axis("o"), 16), axis("k"))


def found(k: Kernel) -> Levels | None:
    k = normalize(k)
    return next((f for s in k.stages if (f := levels_of(k, s, "n"))), None)


def scaled(b, constant: str = "w s", s=F16, live: bool = False) -> Kernel:
    shapes = {"a": (3, 32), "w": (64, 32), "s": (64, 2)}
    value = total("o k", times(x("a", "m", AT), b))
    return kernel(
        "k", "m n", {"m": 3, "n": 64, "o": 2, "k": 16}, value, shapes, constant, {"w": I8, "s": s}
    )


LEVEL, SCALE = cast(F32, x("w", "n", AT, kind=I8)), cast(F32, x("s", "n", "o", kind=F16))


def test_parts_of_every_form() -> None:
    for form, rest in (("", 1), ("shifted", 2), ("nested", 2), ("turned", 1), ("normed", 1)):
        k = normalize(levels(3, 64, 4, 16, U8, 4, form))
        got = found(k)
        assert got and got.load.attr[0] == "levels" and len(got.rest) == rest, form
        assert k.extent[got.inner] == 16 and steps_of(k, got) == 8
        assert all(got.inner not in e.free for e in got.rest)
    nested = found(levels(3, 64, 4, 16, U8, 4, "nested"))
    assert nested and nested.scale and nested.shift
    assert {e.attr[0] for e in nested.scale.kids for e in (e.kids or (e,))} == {"scales", "factors"}
    assert steps_of(levels(3, 64, 4, 16, I8), Levels(x("levels", "n", "k", kind=I8), "k")) == 1


def test_sums_of_scaled_levels_are_scaled() -> None:
    """(l * s + 2) * s = s*s * l + 2*s"""
    got = found(scaled(times(plus(times(LEVEL, SCALE), 2.0), SCALE)))
    assert got and got.scale and got.shift
    assert got.scale == times(SCALE, SCALE) and got.shift == times(SCALE, c(2.0))


@pytest.mark.parametrize(
    ("b", "constant", "why"),
    [
        (times(LEVEL, SCALE), "w", "a scale that is no weight"),
        (times(LEVEL, SCALE), "s", "levels that are none"),
        (LEVEL, "w s", "bytes alone, which vectors load"),
        (times(unary("exp2", LEVEL), SCALE), "w s", "a function of levels"),
        (times(guard(axis("k"), 0, 9, LEVEL), SCALE), "w s", "a part of them"),
        (times(plus(LEVEL, LEVEL), SCALE), "w s", "levels twice"),
        (times(cast(F32, x("w", "n", dyn(x("i", kind=I8)), kind=I8)), SCALE), "w s", "a lookup"),
        (times(x("f", "n", AT), SCALE), "f s", "floats"),
    ],
)
def test_others_are_not(b, constant: str, why: str) -> None:
    k = scaled(times(LEVEL, SCALE))
    shapes = {"a": (3, 32), "w": (64, 32), "s": (64, 2), "i": (), "f": (64, 32)}
    kinds = {"w": I8, "s": F16, "i": I8}
    value = total("o k", times(x("a", "m", AT), b))
    k = kernel("k", "m n", k.extent, value, shapes, constant, kinds)
    assert found(k) is None, why


def test_words_that_are_not_whole() -> None:
    """12 steps of 4 bits fill no words; as bytes they are scaled behind the sum all the same."""
    assert found(levels(3, 64, 4, 12, U8, 4)) is None
    assert found(levels(3, 64, 4, 12, U8))


def test_panels_fill_with_lanes() -> None:
    assert [panel_vectors(n, 16) for n in (1, 16, 17, 48, 64, 100, 192, 576, 49152)] == [
        *(1, 1, 2, 3, 4, 1, 4, 4, 4)
    ]


def test_tiles_hold_whole_panels_and_blocks() -> None:
    k = normalize(levels(12, 256, 4, 16, U8, 4))
    usual = default_schedule(k, TARGET)
    (p,) = usual.stages
    assert (p.stage_b, p.mr, p.nv) == ("narrow", 6, 4) and is_legal(k, TARGET, usual)

    def legal(tile: dict[str, int], **stage: object) -> bool:
        s = Schedule(usual.order, usual.parallel, tile, (replace(p, **stage),))
        return is_legal(k, TARGET, s)

    assert legal({"n": 128}) and legal({"n": 64, "o": 1, "m": 5})
    assert not legal({"n": 96}) and not legal({"n": 64, "k": 8})
    assert legal({}, nv=2, mr=9) and not legal({}, nv=3, mr=6)


def test_kernels_for_other_rows_read_one_copy() -> None:
    """Laid out as they are in the file, whatever the axes of a kernel are called and stand for."""
    packings = []
    for m, form in ((1, "shifted"), (48, "shifted"), (7, "normed"), (5, "turned")):
        k = normalize(levels(m, 192, 6, 32, U8, 4, form))
        program = lower(k, default_schedule(k, TARGET), TARGET)
        packings.append({p.weight: p for p in program.packed.values()})
    for p in packings[1:]:
        assert p["levels"] == packings[0]["levels"] and p["scales"] == packings[0]["scales"]
