"""Lowering: where stages live, how often they are computed, what is refused."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drawing import random_schedule
from kernel_zoo import (
    FAMILIES,
    attention,
    attention_parts,
    bordered_conv,
    c,
    conv,
    gated,
    kernel,
    layernorm,
    linear_gelu,
    masked_attention,
    matmul,
    norm_of_gelu,
    normalized_conv,
    plus,
    pooled_beside,
    qkv,
    rms_linear_residual,
    running,
    softmax,
    times,
    total,
    unfused_attention,
    windows,
    x,
)
from kernels import native
from lumc.codegen.count import of_operation, operations
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.program import (
    Contract,
    Map,
    Par,
    Reduce,
    Rows,
    When,
    leaves,
    loads_of,
    terms_of,
)
from lumc.codegen.tile.verify import problems
from lumc.errors import LumcError
from lumc.graph.expr import add
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import unary
from lumc.schedule.first import default_schedule, tiled
from lumc.schedule.first_stages import contraction_stage
from lumc.schedule.schedule import Schedule, Stage

TARGET = resolve_target("cpu:x86-64-v4")


def ops(k, schedule=None):
    program = lower(k, schedule or default_schedule(k, TARGET), TARGET)
    return program, list(leaves(program.body))


def count(k, kind) -> int:
    return sum(isinstance(op, kind) for op in ops(k)[1])


def test_equal_stages_are_one() -> None:
    assert count(gated(32, 48, 64), Contract) == 2
    assert count(qkv(32, 48, 64), Contract) == 3
    assert count(qkv(32, 48, 64), Reduce) == 1  # one statistic for three results
    assert count(attention(2, 32, 64, 16), Contract) == 2  # scores once for both weighted sums


def test_gated_contractions_share_one_copy() -> None:
    k = gated(32, 48, 64)
    p = Stage("contract", "m", "n", 8, 1, stage_a="inner", stage_b="link")
    _, found = ops(k, Schedule(("m", "n"), 1, {"m": 8}, (p, p)))
    copies = [op for op in found if isinstance(op, Map) and op.copy]
    assert len(copies) == 1


def test_attention_is_one_pass_without_a_matrix_of_scores() -> None:
    program, _ = ops(masked_attention(4, 1024, 32))
    assert program.scratch_bytes < 4 * 1024 * 1024 / 2


def test_an_unfused_contraction_accumulates_in_its_result() -> None:
    _, (op,) = ops(matmul(64, 96, 64))
    assert isinstance(op, Contract) and op.dst.attr[0] == "out"


def test_rows_are_fused_and_folded() -> None:
    program, _ = ops(layernorm(64, 256))
    (par,) = program.body
    assert isinstance(par, Par) and all(isinstance(op, Rows) for op in par.body)
    assert program.scratch_bytes == 0  # the statistics of one row are local


def test_expensive_values_are_kept_in_the_result() -> None:
    _, found = ops(softmax(8, 64))
    (keeping,) = [op for op in found if isinstance(op, Reduce) and op.stores]
    assert keeping.stores[0][0].attr[0] == "out"


def test_a_kept_value_serves_every_later_pass() -> None:
    _, found = ops(norm_of_gelu(8, 64))
    hard = [op for op in found if "exp" in " ".join(map(str, terms_of(op)))]
    assert hard == found[:1]  # of three passes; what is kept is all of gelu
    (kept, value) = found[0].stores[0]
    assert kept.attr[0] == "out" and value == found[0].outputs[0].term


def test_streamed_results_keep_values_elsewhere() -> None:
    k = softmax(8, 64)
    _, found = ops(k, replace(default_schedule(k, TARGET), stream=True))
    assert [op.stream for op in found if isinstance(op, Map)] == [True]
    places = {op.stores[0][0].attr[0] for op in found if isinstance(op, Reduce) and op.stores}
    assert len(places) == 1 and "out" not in places


def test_rows_are_prefetched_once_beside_the_most_work() -> None:
    k = softmax(64, 512)
    _, found = ops(k, replace(default_schedule(k, TARGET), prefetch=True))
    (ahead,) = (op for op in found if op.ahead)
    assert isinstance(ahead, Reduce) and ahead.stores  # the exponentials
    assert ahead.ahead == (x("x", add("m", 4), "j"),)  # 8 KiB
    _, found = ops(
        kernel("long", "n", {"n": 1 << 16}, x("x", "n"), {"x": (1 << 16,)}),
        Schedule(("n",), 1, {"n": 1 << 13}, prefetch=True),
    )
    assert found[0].ahead == (x("x", add("n", 512)),)  # 2 KiB
    for pitch, later in ((1024, x("x", "m", add("n", 512))), (1040, x("x", add("m", 2), "n"))):
        _, found = ops(
            kernel("rows", "m n", {"m": 64, "n": 1024}, x("x", "m", "n"), {"x": (64, pitch)}),
            Schedule(("m", "n"), 1, {"m": 8}, prefetch=True),
        )
        assert found[0].ahead == (later,)  # rows that are not end to end: the next but one


def test_what_an_outer_tile_needs_is_computed_once() -> None:
    k = rms_linear_residual(128, 512, 64)
    program, _ = ops(k)
    (par,) = program.body
    assert isinstance(par, Par) and len(par.loops) == 2
    once = [op for op in par.body if isinstance(op, When)]
    assert len(once) == 1 and any(isinstance(op, Reduce) for op in leaves(once[0].body))


def test_overlapping_windows_are_copied_in_index_space() -> None:
    k = conv(16, 4, 16, 16)
    p = Stage("contract", "o", "x", 8, 1, stage_b="inner")
    program, _ = ops(k, Schedule(("o", "y", "x"), 0, {"y": 4}, (p,)))
    (window,) = [q for q in program.places.values() if q.name.startswith("window")]
    assert [d.size for d in window.dims] == [4, 6, 18]


@pytest.mark.parametrize("last", [False, True])
def test_what_one_axis_repeats_is_computed_once(last: bool) -> None:
    program, _ = ops(normalized_conv(32, 4, 16, 16, last))
    rows = [op for op in program.body if isinstance(op, Map)]
    assert [op.axes for op in rows] == [("o",)]
    assert not any("recip" in str(t) for op in leaves(program.body[1:]) for t in terms_of(op))
    few, _ = ops(normalized_conv(32, 4, 2, 2, last))
    assert not any(isinstance(op, Map) and op.axes == ("o",) for op in few.body)


def test_windows_lie_as_what_they_are_copied_from() -> None:
    for last, label in ((False, "v"), (True, "c")):
        program, _ = ops(normalized_conv(32, 16, 16, 16, last))
        (window,) = [q for q in program.places.values() if q.name.startswith("window")]
        assert window.dims[-1].label.startswith(label)


def test_rows_with_weights_of_their_own_go_one_by_one() -> None:
    value = total("u", times(x("w", "c", "u"), x("x", "c", add("j", "u"))))
    extent = {"c": 12, "j": 64, "u": 9}
    k = kernel("taps", "c j", extent, value, {"w": (12, 9), "x": (12, 72)}, "w")
    shared = windows(4, 12, 64, 3, 1, False)
    texts = (print_kernel(lower(k, default_schedule(k, TARGET), TARGET), "k") for k in (k, shared))
    assert ["/* 6 of" in t for t in texts] == [False, True]


@pytest.mark.parametrize(
    ("size", "kind", "many"), [(3, "sum", 6), (5, "sum", 8), (7, "sum", 8), (7, "max", 6)]
)
def test_long_sums_fill_the_multipliers(size: int, kind: str, many: int) -> None:
    k = windows(4, 24, 64, size, 1, False, kind)
    text = print_kernel(lower(k, default_schedule(k, TARGET), TARGET), "k")
    assert f"/* {many} of y */" in text


@pytest.mark.parametrize(("step", "size", "phases"), [(2, 3, 2), (1, 3, 0), (3, 5, 0)])
def test_every_second_element_of_a_copy_lies_apart(step: int, size: int, phases: int) -> None:
    """Whole vectors are read then, and rows of all phases start with a cache line; both are copied
    from a row while it is in the cache."""
    program, _ = ops(windows(4, 112, 112, size, step, False))
    (window,) = [q for q in program.places.values() if q.name.startswith("window")]
    parts = [d for d in window.dims if d.label.endswith("p")]
    assert [d.size for d in parts] == [phases] * bool(phases)
    (walk,) = [op for op in leaves(program.body) if isinstance(op, Reduce)]
    steps = {window.access(e).stride("x") for e in loads_of(walk) if e.attr[0] == window.name}
    assert steps == {1 if phases else step}
    assert not phases or window.dims[-1].size % TARGET.lanes == 0
    assert print_kernel(program, "k").count("/* rows of") == 1


def test_what_follows_a_window_is_done_in_registers() -> None:
    k = windows(4, 24, 64, 3, 1, False)
    program = lower(k, default_schedule(k, TARGET), TARGET)
    (walk,) = [op for op in leaves(program.body) if isinstance(op, Reduce)]
    assert walk.then is not None and walk.then.dst.attr[0] == "out"
    assert not any(q.startswith("stage") for q in program.scratch)
    (sums, _), place = k.roots[0].value.kids, ("c", "y", "x")
    roots = [(x("out", *place), plus(sums, c(1.0))), (x("sums", *place), sums)]
    shapes = {**{b.name: b.shape for b in k.buffers}, "sums": (4, 24, 64)}
    both = kernel("both", "c y x", dict(k.extent), roots, shapes, "w")
    program = lower(both, default_schedule(both, TARGET), TARGET)
    assert not any(op.then for op in leaves(program.body) if isinstance(op, Reduce))


@pytest.mark.parametrize("width", [7, 14, 40, 56])
def test_steps_beyond_a_border_are_left_out(width: int) -> None:
    """Above 9 rows of pixels, and at the ends of each: of whole register tiles, or of some rows."""
    k = normalize(bordered_conv(32, 4, 9, width, 3, 1))
    schedule = default_schedule(k, TARGET)
    if width == 40:  # where lanes along the pixels are faster, and leave nothing out
        rows = contraction_stage(k, k.stages[0], ("x", "o"), TARGET)
        schedule = tiled(k, (rows,), TARGET)
    program = lower(k, schedule, TARGET)
    found = [(op, n) for op, n in operations(program) if isinstance(op, Contract)]
    assert all(op.edge for op, _ in found)
    flops = sum(of_operation(program, op).flops * n for op, n in found)
    assert flops == pytest.approx(2 * 32 * 4 * (9 * 3 - 2) * (width * 3 - 2))
    whole = conv(32, 4, 9, width, 3, 0)
    inside = leaves(lower(whole, default_schedule(whole, TARGET), TARGET).body)
    assert not any(op.edge for op in inside if isinstance(op, Contract))


def test_nothing_is_computed_for_nothing() -> None:
    for family, shapes in FAMILIES.items():
        k = family(*shapes[-1])
        for seed in range(3):
            program, _ = ops(k, random_schedule(k, TARGET, random.Random(seed)))
            text = print_kernel(program, "k")
            for name, place in program.places.items():
                if place.kind == "scratch" and name in program.scratch:
                    symbol = f"S_{name.replace('.', '_')}"
                    assert text.count(symbol) > 2, (family.__name__, name)


def test_illegal_updates_are_refused() -> None:
    roots = [(x("x", "m"), unary("sin", x("x", add("m", 1))))]
    with pytest.raises(LumcError, match="updated and read elsewhere"):
        k = kernel("k", "m", {"m": 8}, roots, {"x": (9,)})
        lower(k, Schedule(("m",), 0), TARGET)


def test_unpackable_operands_are_refused() -> None:
    k = linear_gelu(16, 48, 32)
    p = Stage("contract", "m", "n", 8, 1, stage_a="link", stage_b="inner")
    with pytest.raises(LumcError, match="stage_a link"):
        lower(k, Schedule(("m", "n"), 0, {}, (p,)), TARGET)


def test_constants_are_packed_as_described() -> None:
    program, _ = ops(linear_gelu(64, 100, 32))
    (packed,) = program.packed.values()
    assert packed.weight == "w" and packed.axes == (("a0", 32), ("a1", 100))  # k, n
    assert packed.panel == (1, 48) and packed.size == 3 * 32 * 48
    assert [str(i) for i in packed.index] == ["a1", "a0"]


def test_large_offsets_are_64_bits() -> None:
    k = kernel(
        "k", "m n", {"m": 1 << 20, "n": 1 << 12}, x("x", "m", "n"), {"x": (1 << 20, 1 << 12)}
    )
    text = print_kernel(*[lower(k, default_schedule(k, TARGET), TARGET)], "k")
    assert "int m" not in text and "long m" in text


def test_many_axes() -> None:
    names = [f"a{i}" for i in range(14)]
    extent = dict.fromkeys(names, 2)
    k = kernel("deep", " ".join(names), extent, x("x", *reversed(names)), {"x": (2,) * 14})
    assert print_kernel(lower(k, default_schedule(k, TARGET), TARGET), "k").count("for (") >= 11


def test_hostile_names_never_reach_the_source() -> None:
    """Words of C are renamed; what would end a comment is refused."""
    k = kernel("k", "for", {"for": 8}, x("x", "for"), {"x": (8,)})
    program = lower(k, default_schedule(k, TARGET), TARGET)
    assert "long for" not in print_kernel(program, "k")
    with pytest.raises(LumcError) as e:
        lower(replace(k, name="k */ int main("), default_schedule(k, TARGET), TARGET)
    assert e.value.code == "E0410"


SCRIPT = """
import random, sys, hashlib
from kernel_zoo import FAMILIES
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.tile.lower import lower
from lumc.schedule.first import default_schedule
from drawing import random_schedule
from lumc.kernel.machines import resolve_target
t, h = resolve_target("cpu:x86-64-v4"), hashlib.sha256()
for f, shapes in FAMILIES.items():
    k = f(*shapes[-1])
    for s in (default_schedule(k, t), random_schedule(k, t, random.Random(1))):
        h.update(repr(s.to_json()).encode() + print_kernel(lower(k, s, t), "k").encode())
print(h.hexdigest())
"""


def test_the_text_does_not_depend_on_hash_seeds() -> None:
    seen = set()
    for seed in ("0", "1", "99"):
        path = os.pathsep.join([*sys.path, str(Path(__file__).parents[3])])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env
        )
        assert not done.returncode, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1


def test_nested_reductions_contract_too() -> None:
    assert count(unfused_attention(17, 33, 20), Contract) == 4  # scores of three walks, values
    assert count(attention_parts(2, 4, 16, 32, 16), Contract) == 2


def test_long_sums_of_powers_are_not_written_out() -> None:
    """A loop of fifty powers is none that a compiler makes vectors of."""
    forms = {}
    for steps in (4, 50):
        value = total("k", unary("exp2", x("x", "m", "k", "n")))
        extent = {"m": 20, "n": 64, "k": steps}
        k = kernel("powers", "m n", extent, value, {"x": (20, steps, 64)})
        program = lower(k, default_schedule(k, TARGET), TARGET)
        (forms[steps],) = {op.lanes for op in leaves(program.body) if isinstance(op, Reduce)}
    assert forms == {4: "windows", 50: "kept"}


def test_walks_are_over_what_is_not_zero() -> None:
    """Maxima of a quarter of the channels take a quarter of the steps."""
    few, all_ = (
        lower(k, default_schedule(k, TARGET), TARGET)
        for k in (pooled_beside(96, 32, 20, 20, True), pooled_beside(0, 128, 20, 20, True))
    )
    walks = [[op for op in leaves(p.body) if isinstance(op, Reduce)] for p in (few, all_)]
    flops = [
        sum(of_operation(p, replace(op, then=None)).flops for op in ops)
        for p, ops in zip((few, all_), walks, strict=True)
    ]
    assert flops[0] == pytest.approx(flops[1] / 4)


def test_running_results_are_sound_in_any_tiles() -> None:
    """All of a result where each part has its own is no other result, but a race."""
    for n, shape in enumerate(FAMILIES[running]):
        for i in range(4):
            k = running(*shape)
            program = lower(k, random_schedule(k, native(), random.Random(f"{n} {i}")), native())
            assert not problems(program), (shape, i)
