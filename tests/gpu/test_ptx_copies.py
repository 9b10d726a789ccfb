"""Copies of whole tiles, barriers that count bytes and clusters on the interpreter of PTX, by hand:
what a box is, and a kernel for everything that is reported. No compiler is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.ptx.launch import launch
from gpu.ptx.text import parse
from lumc.codegen.gpu.grid import TensorMap

Array = np.ndarray[Any, Any]
ROWS, WIDE = 8, 64  # of a box
BYTES = ROWS * WIDE * 2
HEIGHT, WIDTH, DEPTH = 11, 72, 3
PLANE = TensorMap(0, (WIDTH, HEIGHT), (WIDTH * 2,), (WIDE, ROWS))
SPACE = TensorMap(0, (WIDTH, HEIGHT, DEPTH), (WIDTH * 2, HEIGHT * WIDTH * 2), (WIDE, ROWS))
CLUSTER = ".explicitcluster .reqnctapercluster 2, 1, 1"
SHARED = 2 * BYTES + 64
HEAD = """.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 s[];
.visible .entry k(.param .align 64 .b8 k_m[128], .param .u64 k_0, .param .u64 k_1) DIRECTIVES {
.reg .pred %p<8>; .reg .b32 %r<40>; .reg .b64 %d<40>; .reg .b16 %h<4>;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
ld.param.u64 %d31, [k_1];
mov.b64 %d1, k_m; cvta.param.u64 %d2, %d1;
mov.u32 %r2, s; add.u32 %r3, %r2, 2048;
setp.eq.u32 %p1, %r0, 0;
"""
INIT = "mbarrier.init.shared::cta.b64 [%r3], 1;"
SHOWN = "fence.mbarrier_init.release.cluster;"
SYNC = "bar.sync 0;"
BOTH = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
EXPECT = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {BYTES};"
TENSOR = "cp.async.bulk.tensor.{}.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
COPY = TENSOR.format("2d") + " [%r2], [%d2, {%r10, %r11}], [%r3];"
WAIT = """
again: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], PHASE; @!%p2 bra again;"""
# each of 64 threads stores 16 bytes of what lies in shared memory
STORE = f"""
shl.b32 %r20, %r0, 4; add.u32 %r21, %r2, %r20;
mad.lo.u32 %r22, %r1, {BYTES}, %r20; cvt.u64.u32 %d5, %r22; add.u64 %d6, %d31, %d5;
ld.shared.v4.u32 {{%r30, %r31, %r32, %r33}}, [%r21];
st.global.v4.u32 [%d6], {{%r30, %r31, %r32, %r33}};
"""


def first(*parts: str) -> str:
    """By one thread of a block."""
    first.count += 1  # type: ignore[attr-defined]
    name = f"later{first.count}"  # type: ignore[attr-defined]
    return f"@!%p1 bra {name}; {' '.join(parts)} {name}:\n"


first.count = 0  # type: ignore[attr-defined]


def run(
    body: str, at: tuple[int, ...] = (0, 0), blocks: int = 1, together: bool = False, **other: Any
) -> tuple[str, Array, Array]:
    """(what is reported, the tensor, what was stored)."""
    made = other.get("made", PLANE if len(at) == 2 else SPACE)
    x = np.arange(DEPTH * HEIGHT * WIDTH, dtype=np.uint16).reshape(DEPTH, HEIGHT, WIDTH)
    y = np.zeros((blocks, ROWS, WIDE), np.uint16)
    where = "".join(f"mov.s32 %r{10 + i}, {n};" for i, n in enumerate(at))
    head = HEAD.replace("DIRECTIVES", CLUSTER * together)
    text = f"{head}{where}{body.replace('PHASE', '0')} ret; }}"
    said = launch(parse(text).entries["k"], blocks, 64, SHARED, [x, y], maps=[made])
    return said, x, y


def exchanged(box: Array) -> Array:
    """How rows of 128 bytes lie: their eight pieces are exchanged by the row."""
    pieces = box.reshape(-1, 8, 8)
    out = np.empty_like(pieces)
    for row in range(len(pieces)):
        for i in range(8):
            out[row, i ^ row % 8] = pieces[row, i]
    return out.reshape(box.shape)


def box_of(x: Array, at: tuple[int, ...]) -> Array:
    padded = np.zeros((DEPTH + 40, HEIGHT + 40, WIDTH + 200), np.uint16)
    padded[20 : 20 + DEPTH, 20 : 20 + HEIGHT, 100 : 100 + WIDTH] = x
    column, row, *depth = at
    return padded[20 + sum(depth), 20 + row :, 100 + column :][:ROWS, :WIDE]


RIGHT = first(INIT, SHOWN) + SYNC + first(EXPECT, COPY) + WAIT + STORE


@pytest.mark.parametrize(
    "at", [(0, 0), (8, 3), (8, 4), (64, 8), (-8, -3), (72, 0), (0, 11), (0, 0, 2), (3, 5, 1)]
)
def test_a_box(at: tuple[int, ...]) -> None:
    """At any element, and zero outside of the tensor; 72 bytes of 16 bits are no whole pieces."""
    body = RIGHT
    if len(at) == 3:
        inner = "{%r10, %r11, %r12}"
        body = body.replace("2d", "3d").replace("{%r10, %r11}", inner)
    said, x, y = run(body, at)
    assert said == ""
    np.testing.assert_array_equal(y[0], exchanged(box_of(x, at)))


SEVERAL = TENSOR.format("2d") + ".multicast::cluster [%r7], [%d2, {%r10, %r8}], [%r3], %h1;"
PART = f"""and.b32 %r5, %r1, 1; mul.lo.u32 %r6, %r5, {BYTES // 2}; add.u32 %r7, %r2, %r6;
mad.lo.u32 %r8, %r5, {ROWS // 2}, %r11; mov.u16 %h1, MASK;"""
HALF = TensorMap(0, PLANE.dims, PLANE.strides, (WIDE, ROWS // 2))
SHARING = first(INIT, SHOWN) + BOTH + first(PART, EXPECT, SEVERAL) + WAIT + STORE


def test_blocks_share_a_tile() -> None:
    """Each of two blocks fetches half of the rows for both."""
    said, x, y = run(SHARING.replace("MASK", "3"), (8, 1), 4, True, made=HALF)
    assert said == ""
    for block in y:
        np.testing.assert_array_equal(block, exchanged(box_of(x, (8, 1))))


MINE = "shl.b32 %r20, %r0, 4; add.u32 %r21, %r2, %r20; st.shared.u32 [%r21], %r0;"
ELSEWHERE = RIGHT.replace("[%r2], [%d2", "[%r9], [%d2")
WRONG = {
    "misaligned: an mbarrier": "add.u32 %r3, %r2, 2052;" + RIGHT,
    "misaligned: a tensor": "add.u32 %r9, %r2, 64;" + ELSEWHERE,
    "out of bounds: 1 bytes": "add.u32 %r9, %r2, 1280;" + ELSEWHERE,
    "nobody has initialised": SYNC + first(EXPECT, COPY) + WAIT,
    "of a barrier that is in use": first(INIT, INIT),
    "before a barrier of its block": first(INIT, SHOWN, EXPECT, COPY) + WAIT,
    "that it can know": RIGHT.replace(SHOWN, ""),
    "counts no further": first(INIT, SHOWN, EXPECT.replace(str(BYTES), str(1 << 20))),
    "wait for each other": RIGHT.replace(f" {BYTES};", f" {BYTES + 16};"),
    "read of bytes that a copy is to write": first(INIT, SHOWN)
    + SYNC
    + first(EXPECT, COPY, WAIT)
    + STORE,
    "copies under way to it": RIGHT.replace(WAIT, "").replace(STORE, ""),
    "where another one is under way": RIGHT.replace(COPY, COPY + COPY),
    "without fence.proxy.async": MINE + RIGHT,
    "not known to be ready": first(INIT, SHOWN)
    + SYNC
    + MINE
    + "fence.proxy.async;"
    + first(EXPECT, COPY)
    + WAIT,
    "no tensor map is at": "add.u64 %d2, %d2, 64;" + RIGHT,
    "of 2 axes is used for 3": RIGHT.replace("2d", "3d").replace("%r11}", "%r11, %r11}"),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_reported(says: str) -> None:
    assert says in run(WRONG[says])[0]


@pytest.mark.parametrize(
    ("says", "body"),
    [
        ("have not arrived", SHARING.replace("barrier.cluster.arrive.relaxed.aligned;", "")),
        ("arrive twice", SHARING.replace("barrier.cluster.wait.acquire.aligned;", "", 1) + BOTH),
        ("not of the cluster", SHARING.replace("MASK", "5")),
        ("wait for each other", SHARING.replace("MASK", "1")),
        ("can know", SHARING.replace(SHOWN, "")),
    ],
)
def test_what_is_reported_of_clusters(says: str, body: str) -> None:
    assert says in run(body.replace("MASK", "3"), (0, 0), 2, True, made=HALF)[0]


def test_whole_clusters() -> None:
    assert "launches 2 together" in run("", blocks=3, together=True)[0]


@pytest.mark.parametrize(
    "made",
    [
        TensorMap(0, (WIDTH, HEIGHT), (WIDTH * 2 - 8,), (WIDE, ROWS)),
        TensorMap(0, (WIDTH, HEIGHT * DEPTH + 1), (WIDTH * 2,), (WIDE, ROWS)),
        TensorMap(0, (WIDTH, HEIGHT), (WIDTH * 2,), (WIDE, 257)),
        TensorMap(0, (WIDTH, HEIGHT), (WIDTH * 2,), (WIDE * 2, ROWS)),
    ],
)
def test_maps_that_no_driver_makes(made: TensorMap) -> None:
    assert "no driver makes" in run(RIGHT, made=made)[0]
