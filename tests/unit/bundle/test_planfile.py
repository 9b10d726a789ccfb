"""plan.bin read in Python: what was written comes back, and it refuses what plan.c refuses."""

import random
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bundles import compiler, mlp, simple, with_buckets, with_lengths
from lumc.bundle import planfile
from lumc.bundle.extents import BY_NAME, BY_SHAPE, COUNTED, UNUSED, Source
from lumc.bundle.packing import Recipe, recipe
from lumc.bundle.ranks import KINDS, Segment
from lumc.bundle.reader import FIXED, ROOMY, ZEROED, Argument, decode
from lumc.bundle.reader_ranks import Turns, Way
from lumc.bundle.weights import Layout
from lumc.codegen.code import Code, KernelCode, Launch, Value
from lumc.codegen.gpu.grid import Grid
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.graph.tensor import Tensor
from lumc.graph.verify import MAX_REPEATS
from lumc.kernel.machines import resolve_target
from lumc.link import link
from meshed import alternating, meshed, staged

RUNNER = Path(link.__file__).parent / "runner"
READ = r"""
#include "internal.h"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) { /* of every file in the list: what is wrong with it */
  FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
  uint64_t size;
  while (f && fread(&size, 8, 1, f) == 1) {
    struct plan p;
    uint8_t *data = malloc(size + 1);
    if (fread(data, 1, size, f) != size) return 1;
    puts(plan_read(&p, data, size) ? lumc_error() : "good");
    plan_free(&p);
  }
  return f ? fclose(f) : 1;
}
"""


def on_a_gpu() -> Code:
    """A kernel with a grid, and a value in every place."""
    f = DType.F32
    args = ("a", "b", "c", "d", "e")
    k = KernelCode("key", "k0", "k0_all", "", args, 0, 0, 1, Grid(7, 128, 4096))
    values = [
        Value("x", f, (3, 4), "input", 0),
        Value("i", DType.I64, (), "input", 1),
        Value("y", f, (3, 4), "output", 0),
        Value("t", f, (3, 4), "arena", 64),
        Value("s", DType.BF16, (12,), "state", 0),
    ]
    launches = [
        Launch("k0_all", ("x", "i", "y", "t", "s")),
        Launch("k0_all", ("", "", "", "t", "")),
    ]
    states = [("s", DType.BF16, (12,))]
    return simple([k], values, launches, 128, states, resolve_target("metal:apple9"))


def encoded(
    code: Code,
    layout: Layout,
    target: str = "a",
    arch: str = "b",
    features: tuple[str, ...] = (),
    recipes: Mapping[str, Recipe] | None = None,
) -> bytes:
    place = planfile.loading(code, layout, recipes or {})
    return planfile.encode(code, target, arch, features, place)


def test_what_is_written_is_read() -> None:
    code = on_a_gpu()
    data = encoded(code, Layout({}, 4096, 640), "metal-apple9", "apple9", ("one", "two"))
    plan = decode(data)
    assert (plan.target, plan.arch, plan.features) == ("metal-apple9", "apple9", ("one", "two"))
    assert (plan.weights_start, plan.weights_bytes) == (4096, 640)
    assert plan.states == (Tensor("s", DType.BF16, (12,)),)
    assert [(k.symbol, k.grid) for k in plan.kernels] == [("k0_all", Grid(7, 128, 4096))]
    (entry,) = plan.entries
    assert (entry.name, entry.arena_bytes) == ("main", 128)
    assert [str(t.shape) for t in entry.inputs] == ["(3, 4)", "()"]
    assert entry.outputs == (Tensor("y", DType.F32, (3, 4)),)
    assert entry.launches[0].args == (
        Argument(planfile.INPUT, 0, 0, 48),
        Argument(planfile.INPUT, 1, 0, 8),
        Argument(planfile.OUTPUT, 0, 0, 48),
        Argument(planfile.ARENA, 0, 64, 48),
        Argument(planfile.STATE, 0, 0, 24),
        Argument(planfile.SCRATCH, 0, 0, 0),
    )
    assert entry.launches[1].args[0] == Argument(planfile.NOWHERE, 0, 0, 0)


def test_lengths_come_back_as_they_are_in_the_graph() -> None:
    code = with_lengths()
    plan = decode(encoded(code, Layout({}, 8, 64)))
    (entry,), (graph,) = plan.entries, code.graph.entries
    assert plan.dims == code.graph.dims
    for tensors, nodes in (
        (entry.inputs, graph.inputs),
        (entry.outputs, dict(graph.outputs).values()),
    ):
        for t, n in zip(tensors, nodes, strict=True):
            assert (t.shape, t.extents) == (n.sizes, n.shape)  # type: ignore[attr-defined]
    told = Source(BY_SHAPE, 0, 0, 1, 0)
    assert entry.sources == (Source(BY_NAME), told, Source(UNUSED))
    (only,) = entry.lists
    assert only.bounds == (24, 16, 3)
    assert [a.index for a in only.launches[0].args if a.place == planfile.DIM] == [0, 1]


def test_lists_say_what_they_are_for_and_where_their_tensors_lie() -> None:
    code = with_buckets()
    (entry,) = decode(encoded(code, Layout({}, 8, 64))).entries
    assert [e.bounds for e in entry.lists] == [(p, s, 3) for p in (7, 24) for s in (2, 8, 16)]
    for one, bucket in zip(entry.lists, code.graph.entries, strict=True):
        ends = (*bucket.inputs, *(n for _, n in bucket.outputs))
        assert one.shapes == tuple(n.sizes for n in ends)
    assert entry.inputs[0].shape == (16, 3) and entry.lists[0].shapes[0] == (2, 3)


def test_plans_of_version_3_are_read() -> None:
    """Their lists all had memory for the greatest shapes, and did not say so."""
    data = encoded(with_lengths(), Layout({}, 8, 64))
    every = words(data)
    at = next(i for i in range(len(every)) if every[i : i + 3] == [24, 16, 3]) + 3
    extents = sum(
        len(t.shape) for t in (*decode(data).entries[0].inputs, *decode(data).entries[0].outputs)
    )
    old = [every[0], ROOMY, *every[2:at], *every[at + extents :]]
    assert decode(struct.pack(f"<{len(old)}q", *old)) == decode(data)


def test_plans_of_version_4_are_read() -> None:
    """Their states were all zeros at first, and did not say so."""
    data = encoded(on_a_gpu(), Layout({}, 4096, 640), "metal-apple9", "apple9")
    every, plan = words(data), decode(data)
    shape = next(i for i in range(len(every)) if every[i : i + 4] == [2, 1, 12, 0])
    assert every[shape + 4] == 0 and plan.first == (None,)
    old = [every[0], ZEROED, *every[2 : shape + 4], *every[shape + 5 :]]
    assert decode(struct.pack(f"<{len(old)}q", *old)) == plan


def words(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 8}q", data))


def test_lists_without_room_for_their_lengths_are_refused() -> None:
    """As if a bucket ended later than its kernels do, began beyond its dims, or were not there."""
    data = encoded(with_buckets(), Layout({}, 8, 64))
    at = next(
        i for i in range(len(data) // 8) if words(data)[i : i + 5] == [7, 8, 3, 8, 3]
    )  # bounds of p, s and unused; x

    def other(i: int, value: int) -> bytes:
        start = (at + i) * 8
        return data[:start] + struct.pack("<q", value) + data[start + 8 :]

    assert said(other(0, 7)) == "good"
    assert said(other(1, 9)) == "good"  # 9 is no multiple of 2
    for i, value in ((1, 10), (0, 8), (3, 7), (3, 17), (4, 2), (4, 4)):
        assert "a list has no room for its lengths" in said(other(i, value)), (i, value)
    assert "launches for no dims" in said(other(1, 1))
    last = len(data) // 8 - 1 - words(data)[::-1].index(24)
    cut = data[: last * 8] + struct.pack("<q", 23) + data[last * 8 + 8 :]
    assert "no launches for all dims" in said(cut)


def repeated(code: Code) -> Code:
    """The same, whose entries repeat over the dim p."""
    entries = tuple(replace(e, repeat="p") for e in code.graph.base.entries)
    graph = replace(code.graph, entries=entries, whole=None)
    return replace(code, graph=graph)


def test_counted_dims() -> None:
    code = repeated(with_lengths())
    data = encoded(code, Layout({}, 8, 64))
    plan = decode(data)
    (entry,) = plan.entries
    assert [s.how for s in entry.sources] == [COUNTED, BY_SHAPE, UNUSED]
    assert plan.counter(entry) == 0 and plan.turns(entry) == code.graph.dims["p"].values
    once = decode(encoded(with_lengths(), Layout({}, 8, 64)))
    assert once.counter(once.entries[0]) is None and len(once.turns(once.entries[0])) == 1
    every = words(data)
    at = next(i for i in range(len(every)) if every[i : i + 5] == [COUNTED, 0, 0, 0, 0])

    def other(i: int, value: int) -> str:
        return said(data[: i * 8] + struct.pack("<q", value) + data[i * 8 + 8 :])

    assert every[at + 10] == UNUSED
    assert "two dims count the repetitions" in other(at + 10, COUNTED)
    assert "a dim is told in no way" in other(at, COUNTED + 1)
    last = len(every) - 1 - every[::-1].index(24)
    assert "no launches for all dims" in other(last, 23)
    d = code.graph.dims["unused"]
    hi = 1 + next(i for i in range(at) if every[i : i + 3] == [d.lo, d.hi, d.multiple])
    many = [*every]
    many[at], many[at + 10], many[hi] = BY_NAME, COUNTED, MAX_REPEATS + 1
    assert "an entry repeats too often" in said(struct.pack(f"<{len(many)}q", *many))
    several = encoded(with_buckets(), Layout({}, 8, 64))
    told = next(
        i for i in range(len(several) // 8) if words(several)[i : i + 5] == [BY_NAME, 0, 0, 0, 0]
    )
    changed = several[: told * 8] + struct.pack("<q", COUNTED) + several[told * 8 + 8 :]
    assert "launches for some repetitions only" in said(changed)


def test_what_is_written_of_a_mesh_is_read() -> None:
    plan = decode(meshed())
    assert plan.mesh and plan.mesh.axes == {"a": 2, "b": 3}
    assert plan.mesh.segments[0] == Segment(0, 0, 64, 6, (1, 2))
    assert plan.mesh.cuts == (((0, 1), (1, 0)),)
    assert plan.mesh.whole(plan.states) == (Tensor("kept", DType.F32, (12, 12)),)
    kinds = [(KINDS[e.kind].value, e.axis, e.elements) for e in plan.exchanges]
    assert kinds == [
        ("all_reduce", 0, 24),
        ("reduce_scatter", 1, 24),
        ("all_gather", 0, 24),
        ("all_to_all", 0, 24),
        ("all_slice", 0, 24),
    ]
    assert [e.outer for e in plan.exchanges] == [1, 4, 1, 1, 1]
    assert [e.joined for e in plan.exchanges] == [1, 1, 1, 2, 1]
    assert [x.kernel for x in plan.entries[0].launches] == [0, 1, 2, 3, 4]


def test_what_is_written_of_stages_is_read() -> None:
    plan = decode(staged())
    assert plan.mesh and plan.mesh.stages == "b"
    assert [s.stage for s in plan.mesh.segments] == [0, 2, 1]
    assert plan.mesh.states == (2, 1, 0) and plan.mesh.packed == ()
    kinds = [(KINDS[e.kind].value, e.axis, e.source, e.target) for e in plan.exchanges]
    ends = [("send", 1, 0, 1), ("all_reduce", 0, 0, 0), ("broadcast", 1, 1, 0)]
    assert kinds == [("all_reduce", 2, 0, 0), *ends]
    assert [x.ranks for x in plan.entries[0].launches] == [1, 1, 0, 2, 2, 0]
    assert plan.mesh.time == "c" and plan.entries[0].lists[0].turns == Turns(0, 2)


SEND, BROADCAST = (5, 1, 0, 0, 24, 1, 1, 0, 1), (6, 1, 0, 0, 24, 1, 1, 1, 0)
REDUCE, ADD = (0, 0, 2, 0, 24, 1, 1, 0, 0), (0, 2, 1, 0, 24, 1, 1, 0, 0)
HEAD, SEGMENT = (2, 3, 3, 0, 0, 64), (64, 64, 128, 2, 2, 1, 0, 0)
WRONG_STAGES = [
    ("stages along an axis that there is not", HEAD, (4, 3, 3, 0, 0, 64)),
    ("stages along an axis that there is not", HEAD, (2, 4, 3, 0, 0, 64)),
    ("stages along an axis that there is not", HEAD, (2, 2, 3, 0, 0, 64)),
    ("a stage that there is not", SEGMENT, (64, 64, 128, 2, 4, 1, 0, 0)),
    ("a weight is in parts of micro-batches", SEGMENT, (64, 64, 128, 2, 2, 0, 0, 1)),
    ("a stage that there is not", SEND, (5, 1, 0, 0, 24, 1, 1, 0, 3)),
    ("a stage that there is not", SEND, (5, 1, 0, 0, 24, 1, 1, 3, 1)),
    ("a stage that there is not", SEND, (5, 1, 0, 0, 24, 1, 1, 1, 1)),
    ("a stage that there is not", BROADCAST, (6, 1, 0, 0, 24, 1, 1, 1, 1)),
    ("a stage that there is not", REDUCE, (0, 0, 2, 0, 24, 1, 1, 0, 1)),
    ("a collective between stages, or none", SEND, (5, 0, 0, 0, 24, 1, 1, 0, 1)),
    ("a collective between stages, or none", BROADCAST, (0, 1, 2, 0, 24, 1, 1, 0, 0)),
    ("a collective that is not in time", ADD, (3, 2, 0, 0, 20, 1, 1, 0, 0)),
    ("an unknown collective", SEND, (5, 1, 1, 0, 24, 1, 1, 0, 1)),
    ("an unknown collective", BROADCAST, (7, 1, 0, 0, 24, 1, 1, 1, 0)),
    ("values of other sizes", SEND, (5, 1, 0, 0, 20, 1, 1, 0, 1)),
    ("splits what does not divide", SEND, (5, 1, 0, 0, 24, 2, 1, 0, 1)),
    ("a stage that there is not", (0, 2, 4, 5, 0), (0, 4, 4, 5, 0)),  # a launch
    ("stages of other weights than are packed", (0, 8, 192, 0, 0), (1, 0, 8, 192, 0, 0)),
    ("a state is in parts that there are not", (2, 1, 1, 0, 1, 0), (2, 1, 1, 2, 1, 0)),
    ("micro-batches of other launches", (0, 2, 6, 0, 1), (0, 7, 6, 0, 1)),
    ("micro-batches of other launches", (0, 2, 6, 0, 1), (3, 2, 6, 0, 1)),
    ("micro-batches of other launches", HEAD, (2, 0, 3, 0, 0, 64)),
]


@pytest.mark.parametrize(("what", "old", "new"), WRONG_STAGES)
def test_plans_for_stages_that_are_wrong(
    what: str, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    data, pack = staged(), "<" + len(old) * "Q"
    assert data.count(struct.pack(pack, *old)) == 1
    assert what in said(
        data.replace(struct.pack(pack, *old), struct.pack("<" + len(new) * "Q", *new))
    )


def test_what_is_written_of_turns_is_read() -> None:
    plan = decode(alternating())
    turns = plan.entries[0].lists[0].turns
    first = Way(3, 2, (0, 2, 1, 4, 3, 5))  # F0 F1 B0 F2 B1 B2
    assert turns == Turns(0, 7, (first, Way(7, 1, (0, 1, 2, 3, 4, 5))), (384, 64))
    assert plan.entries[0].arena_bytes == 384 + 2 * 64


FIRST, OTHER = (1, 384, 64, 3, 2, 0, 2, 1, 4, 3, 5), (7, 1, 0, 1, 2, 3, 4, 5)
WRONG_TURNS = [
    ("micro-batches that go another way", FIRST, (2, *FIRST[1:])),
    ("an arena is too large", FIRST, (1, 1 << 47, *FIRST[2:])),
    ("an arena is too large", FIRST, (1, 384, 1 << 47, *FIRST[3:])),
    ("what waits lies outside of its place", FIRST, (1, 448, *FIRST[2:])),
    ("what waits lies outside of its place", FIRST, (1, 320, 128, *FIRST[3:])),
    ("what waits lies outside of its place", FIRST, (1, 383, *FIRST[2:])),
    ("what waits lies outside of its place", FIRST, (1, 384, 63, *FIRST[3:])),
    ("an argument lies outside of its place", FIRST, (1, 256, *FIRST[2:])),
    ("an argument lies outside of its place", FIRST, (1, 384, 0, *FIRST[3:])),
    ("micro-batches of other launches", FIRST, (1, 384, 64, 8, *FIRST[4:])),
    ("a stage has too many micro-batches open", FIRST, (1, 384, 64, 3, 3, *FIRST[5:])),
    ("a stage has too many micro-batches open", FIRST, (1, 384, 64, 3, 0, *FIRST[5:])),
    ("a stage has too many micro-batches open", OTHER, (7, 2, *OTHER[2:])),
    ("in another order", FIRST, (1, 384, 64, 3, 2, 0, 2, 4, 1, 3, 5)),  # F0 F1 F2 B0
    ("in another order", FIRST, (1, 384, 64, 3, 1, *FIRST[5:])),
    ("in another order", FIRST, (1, 384, 64, 3, 2, 0, 2, 3, 4, 1, 5)),  # B1 before B0
    ("in another order", FIRST, (1, 384, 64, 3, 2, 2, 0, 1, 4, 3, 5)),  # F1 before F0
    ("in another order", FIRST, (1, 384, 64, 3, 2, 0, 1, 2, 3, 4, 6)),  # no B2
    ("in another order", FIRST, (1, 384, 64, 3, 2, 1, 0, 2, 3, 4, 5)),  # B0 before F0
    ("in another order", OTHER, (7, 1, 0, 1, 2, 3, 4, 1 << 40)),
]


@pytest.mark.parametrize(("what", "old", "new"), WRONG_TURNS)
def test_plans_with_turns_that_are_wrong(
    what: str, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    data, pack = alternating(), "<" + len(old) * "Q"
    assert data.count(struct.pack(pack, *old)) == 1
    assert what in said(data.replace(struct.pack(pack, *old), struct.pack(pack, *new)))


# of the words of the last collective of the plan, which are kind, axis, op, dtype, elements, outer,
# joined; and of the axes, segments and parts
WRONG = [
    ("an unknown collective", (4, 0, 0, 0, 24, 1, 1), (5, 0, 0, 0, 24, 1, 1)),
    ("an unknown collective", (4, 0, 0, 0, 24, 1, 1), (4, 2, 0, 0, 24, 1, 1)),
    ("an unknown collective", (4, 0, 0, 0, 24, 1, 1), (4, 0, 1, 0, 24, 1, 1)),
    ("an unknown collective", (4, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 24, 0, 1)),
    ("a collective is too large", (4, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 1 << 44, 1, 1)),
    ("splits what does not divide", (4, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 24, 5, 1)),
    ("splits what does not divide", (4, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 24, 24, 1)),
    ("joins what does not divide", (3, 0, 0, 0, 24, 1, 2), (3, 0, 0, 0, 24, 1, 5)),
    ("joins what does not divide", (4, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 24, 1, 2)),
    ("values of other sizes", (4, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 22, 1, 1)),
    ("values of other sizes", (2, 0, 0, 0, 24, 1, 1), (4, 0, 0, 0, 24, 1, 1)),
    ("ranks do not sum such elements", (0, 0, 1, 0, 24, 1, 1), (0, 0, 1, 1, 48, 1, 1)),
    ("weights are not side by side", (384, 64, 128, 2, 1, 0), (448, 64, 128, 2, 1, 0)),
    ("other parts of a weight", (384, 64, 128, 2, 1, 0), (384, 64, 128, 2, 2, 0)),
    ("a weight lies outside of its place", (384, 64, 128, 2, 1, 0), (384, 192, 128, 2, 1, 0)),
    ("a state is in parts that there are not", (0, 1, 1, 0), (0, 1, 2, 0)),
    ("a state is in parts that there are not", (0, 1, 1, 0), (0, 0, 1, 0)),
    ("a state is in parts that there are not", (0, 1, 1, 0), (0, 2, 1, 0)),
]


@pytest.mark.parametrize(("what", "old", "new"), WRONG)
def test_plans_for_a_mesh_that_are_wrong(
    what: str, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    data, pack = meshed(), "<" + len(old) * "Q"
    assert data.count(struct.pack(pack, *old)) == 1
    assert what in said(data.replace(struct.pack(pack, *old), struct.pack(pack, *new)))


def test_a_collective_may_not_write_what_it_reads() -> None:
    """But one that leaves as much as it takes, if these are the same bytes."""
    data = meshed()
    arena = [struct.pack("<4Q", planfile.ARENA, 0, at, 96) for at in (0, 64, 128)]
    given = struct.pack("<4Q", planfile.INPUT, 0, 0, 96)
    result = struct.pack("<4Q", planfile.OUTPUT, 0, 0, 96)
    first = struct.pack("<2Q", 0, 2)
    there = data.index(first + given + result)

    def changed(of: bytes, to: bytes) -> str:
        return said(data[: there + 16] + of + to + data[there + 80 :])

    assert changed(arena[0], arena[0]) == "good"
    assert changed(arena[0], arena[2]) == "good"
    assert "writes what it reads" in changed(arena[0], arena[1])
    assert "writes what it reads" in changed(arena[2], arena[1])
    assert "is of no two values" in changed(given, struct.pack("<4Q", planfile.STATE, 0, 0, 96))
    slices = struct.pack("<2Q", 4, 2)
    there = data.index(slices + given)
    assert "writes what it reads" in changed(arena[0], struct.pack("<4Q", planfile.ARENA, 0, 0, 48))


def mutations(data: bytes, n: int) -> list[bytes]:
    rng = random.Random(5)
    odd = [0, 1, 2, 7, 63, 64, 255, 1 << 31, 1 << 32, 1 << 45, 1 << 46, 1 << 61, (1 << 64) - 1]
    out = [data, data + bytes(8), b""]
    for _ in range(n):
        new = bytearray(data)
        for _ in range(rng.randint(1, 2)):
            if rng.random() < 0.3:
                new[rng.randrange(len(new))] ^= 1 << rng.randrange(7)  # no bytes beyond ASCII
            else:
                at = rng.randrange(len(new) // 8) * 8
                new[at : at + 8] = rng.choice(odd).to_bytes(8, "little")
        out.append(bytes(new[: rng.randrange(len(new))] if rng.random() < 0.2 else new))
    return out


def said(data: bytes) -> str:
    try:
        decode(data)
    except LumcError as e:
        assert e.exit == Exit.CORRUPT
        return e.what
    return "good"


def test_the_same_files_are_refused_as_in_c(tmp_path: Path) -> None:
    (tmp_path / "read.c").write_text(READ)
    files = [str(RUNNER / f"{name}.c") for name in ("plan", "plan_ranks", "errors")]
    command = [*compiler().command, "read.c", *files, f"-I{RUNNER}", "-o", "read"]
    subprocess.run(command, check=True, cwd=tmp_path)
    code, _ = mlp(tmp_path)
    offsets = {name: 64 * i for i, name in enumerate(("w1@0", "w2@1", "b1"))}
    files = mutations(encoded(on_a_gpu(), Layout({}, 8, 64), features=("c",)), 1000)
    files += mutations(encoded(code, Layout(offsets, 8, 1 << 20)), 1000)
    files += mutations(encoded(with_lengths(), Layout({}, 8, 64)), 4000)
    files += mutations(encoded(with_buckets(), Layout({}, 8, 64)), 4000)
    files += mutations(encoded(repeated(with_lengths()), Layout({}, 8, 64)), 2000)
    layout = Layout({"w1": 0, "w2": 640, "b1": 1280}, 8, 2048)
    recipes = {n: recipe(p, (11, 13), p.dtype) for n, p in code.packings.items() if n == "w1@0"}
    recipes |= {n: recipe(p, (13, 3), p.dtype) for n, p in code.packings.items() if n == "w2@1"}
    files += mutations(encoded(code, layout, recipes=recipes), 2000)  # type: ignore[arg-type]
    files += mutations(meshed(), 1500)
    files += mutations(staged(), 1500)
    files += mutations(alternating(), 3000)
    large = [(f"s{i}", DType.U8, (1 << 45,)) for i in range(1 << 6)]
    files.append(encoded(simple([], [], [], states=large), Layout({}, 8, 64)))
    older = [struct.pack("<Q", v) for v in (FIXED, ROOMY, ZEROED)]
    files = [f for f in files if f[8:16] not in older]  # C reads its own version
    listed = b"".join(struct.pack("<Q", len(f)) + f for f in files)
    (tmp_path / "plans").write_bytes(listed)
    done = subprocess.run([tmp_path / "read", tmp_path / "plans"], capture_output=True, text=True)
    assert done.returncode == 0
    answers = [said(f) for f in files]
    pairs = list(zip(answers, done.stdout.splitlines(), strict=True))  # C does not look at UTF-8
    assert all(a == c or "utf-8" in a for a, c in pairs), [
        p for p in pairs if p[0] != p[1] and "utf-8" not in p[0]
    ]
    assert "too large together" in answers[-1]
    assert answers.count("good") > 10 and len(set(answers)) > 12


def test_names_are_text() -> None:
    data = encoded(on_a_gpu(), Layout({}, 8, 64))
    with pytest.raises(LumcError, match="corrupt plan"):
        decode(data.replace(b"main", b"m\xff\xffn"))
