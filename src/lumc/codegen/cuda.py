"""Distributed program -> CUDA text: the syntax, asynchronous copies, tensor cores."""

from __future__ import annotations

from contextlib import ExitStack

import lumc.codegen.program as ir
from lumc.codegen.cwriter import about, title
from lumc.codegen.distributed import Distributed, Nest, Step
from lumc.codegen.gpu import GpuWriter, without_unused
from lumc.codegen.gpuops import print_nodes
from lumc.codegen.layout import WARP, Distribution
from lumc.codegen.plan import Grid
from lumc.graph.expr import Expr, axis, dim
from lumc.graph.ops import DType


def print_kernel(d: Distributed, symbol: str) -> tuple[str, Grid]:
    """CUDA text of the kernel ``symbol``, whose parameters are the buffers of the kernel in order,
    and how it is launched. It includes ``lumc_dev.h`` and needs nothing else."""
    w = CudaWriter(d)
    print_nodes(w, d.body)
    body, w.lines = without_unused(w.lines), []
    w.declare()
    program, t = d.program, d.threads
    parameters = [
        f"{'' if b.name in program.kernel.stored else 'const '}{w.spelling.stored[b.dtype]} "
        f"*__restrict__ {w.names.place(program.places[b.name])}"
        for b in program.kernel.buffers
    ]
    bounds = f"__launch_bounds__({t.count}, {t.resident})"
    head = f'extern "C" __global__ void {bounds}'
    lines = ['#include "lumc_dev.h"', "", *title(program), head]
    lines += [f"{symbol}({', '.join(parameters)})", "{", *w.lines, *body, "}"]
    text = "\n".join([*lines, f"LUMC_EXPORT({symbol})", ""])
    return text, Grid(max(1, program.tiles), t.count, d.shared_bytes)


class CudaWriter(GpuWriter):
    def declare(self) -> None:
        """The index of the thread and of the block, and every tile."""
        self.line("const unsigned tid = threadIdx.x;")
        if self.d.program.tiles > 1:
            self.line("const int block = blockIdx.x;")
        if self.d.shared_bytes:
            self.line("LUMC_SHARED(lumc_u8, SHARED);")
        self.registers_and_tiles()

    def tile(self, kind: str, array: str, offset: int, size: int) -> str:
        return f"LUMC_TILE({kind}, {array}, SHARED, {offset}, {size});"

    def move(self, step: Step, to: str, source: str, inside: str) -> None:
        if not step.ahead:
            super().move(step, to, source, inside)
            return
        valid = f", {inside} ? 16 : 0" if inside else ""
        self.line(f"lumc_cp_async<16>(&{to}, &{source}{valid});")

    # ---- copies that run ahead

    def ring(self, nest: Nest) -> None:
        """The copies of a loop run ``slots - 1`` tiles ahead of the rest of its body."""
        assert isinstance(nest.op, ir.Block)
        loop, slots = nest.op.loop, nest.slots
        start = self.index(ir.block_start(loop.axis))
        copies = [n for n in nest.body if isinstance(n, Step) and n.ahead]
        with self.block("", f"{about(loop)}, {slots} slots"):
            for s in range(slots - 1):
                self._issue(loop, copies, f"{s * loop.tile}", f"{s}")
            head = f"for (int {start} = 0, SLOT = 0; {start} < {loop.extent}; "
            step = f"{start} += {loop.tile}, SLOT = SLOT + 1 == {slots} ? 0 : SLOT + 1)"
            with self.block(head + step):
                self.tile_size(loop)
                self.line(f"lumc_cp_async_wait<{slots - 2}>();")
                self.line("lumc_sync();")
                self.line(f"const int AHEAD = {start} + {(slots - 1) * loop.tile};")
                self._issue(loop, copies, "AHEAD", f"(SLOT + {slots - 1}) % {slots}")
                self.slot = "SLOT"
                print_nodes(self, [n for n in nest.body if n not in copies])

    def _issue(self, loop: ir.Loop, copies: list[Step], at: str, slot: str) -> None:
        self.slot = slot
        with self.block():
            start = self.index(ir.block_start(loop.axis))
            self.line(f"const int {start} = {at};")
            with self.when([f"{start} < {loop.extent}"]):
                self.tile_size(loop)
                print_nodes(self, copies)
            self.line("lumc_cp_async_commit();")

    # ---- mma.m16n8k16

    def fragments(self, step: Step, op: ir.Contract) -> None:
        assert step.roles and op.plan.rows_axis and op.plan.lane_axis
        roles, rows, lane = step.roles, op.plan.rows_axis, op.plan.lane_axis
        (mi, ni, ki), k = roles.counts, roles.along
        kind = self.spelling.stored[self._operand_kind(op)]
        with ExitStack() as nest:
            self.around(nest, op, k)
            nest.enter_context(self.block(f"LUMC_UNROLL for (int K = 0; K < {ki}; K++)"))
            self.line(f"lumc_u32 A[{mi}][4], B[{ni // 2}][4];")
            self._fragment(op, op.a, roles.a, (rows, k), mi, kind)
            self._fragment(op, op.b, roles.b, (lane, k), ni, kind)
            for i, n in (("I", mi), ("J", ni)):
                head = f"LUMC_UNROLL for (int {i} = 0; {i} < {n}; {i}++)"
                nest.enter_context(self.block(head))
            self.line("const lumc_u32 PAIR[2] = {B[J / 2][J % 2 * 2], B[J / 2][J % 2 * 2 + 1]};")
            self.line("float C[4];")
            r, v = (self.index(dim(f"{x}.o")) for x in (rows, lane))
            each = f"const int {r} = I * 16 + Q / 2 * 8, {v} = J * 8 + Q % 2;"
            for move in ("C[Q] = {};", "{} = C[Q];"):
                with self.block("LUMC_UNROLL for (int Q = 0; Q < 4; Q++)"):
                    self.line(each)
                    self.line(move.format(self.address(op.dst)))
                if move.startswith("C"):
                    self.line(f"lumc_mma_m16n8k16<{kind}>(C, A[I], PAIR, C);")

    def _operand_kind(self, op: ir.Contract) -> DType:
        return self.d.program.places[op.a.attr[0]].dtype

    def _fragment(
        self,
        op: ir.Contract,
        ref: Expr,
        role: Distribution,
        axes: tuple[str, str],
        count: int,
        kind: str,
    ) -> None:
        """The words of an operand for 16 steps of the reduced axis."""
        tile = self.tiles.get(ref.attr[0])
        if tile and tile.memory == "shared":
            self._matrices(op, ref, role, axes, count)
            return
        is_a = ref is op.a
        o, along = (self.index(dim(f"{x}.o")) for x in axes)
        word = "A[I][Q]" if is_a else "B[I / 2][I % 2 * 2 + Q]"
        half, place = ("Q / 2", "I * 16 + Q % 2 * 8") if is_a else ("Q", "I * 8")
        with self.block():
            self.threads(role, axes)
            heads = ((i, n) for i, n in (("I", count), ("Q", 4 if is_a else 2)))
            with ExitStack() as nest:
                for i, n in heads:
                    head = f"LUMC_UNROLL for (int {i} = 0; {i} < {n}; {i}++)"
                    nest.enter_context(self.block(head))
                if tile and tile.packed:
                    self.line(f"const int {o} = {place}, {along} = K * 16 + {half} * 8;")
                    self.line(f"{word} = {self.address(ref)};")
                    return
                self.line("float PAIR[2];")
                with self.block("LUMC_UNROLL for (int H = 0; H < 2; H++)"):
                    offsets = {axes[0]: place, axes[1]: f"K * 16 + {half} * 8 + H"}
                    self.elements(op, role, offsets)
                    self.line(f"PAIR[H] = {self.operand(ref, op, role, axes)};")
                self.line(f"{word} = lumc_pack<{kind}>(PAIR[0], PAIR[1]);")

    def _matrices(
        self,
        op: ir.Contract,
        ref: Expr,
        role: Distribution,
        axes: tuple[str, str],
        count: int,
    ) -> None:
        """Four 8x8 matrices at once, transposed on the way if memory runs along the other axis."""
        (other, k), is_a = axes, ref is op.a
        strides = self.tiles[ref.attr[0]].strides
        turned = axis(k) not in (i for i, s in zip(ref.kids, strides, strict=True) if s == 1)
        high, low, middle = "(tid >> 4 & 1) * 8", "(tid & 7)", "(tid >> 3 & 1) * 8"
        if is_a:
            steps, lines = (f"{low} + {high}", middle) if turned else (high, "(tid & 15)")
        else:
            steps, lines = ("(tid & 15)", high) if turned else (middle, f"{low} + {high}")
        warp = [
            f"(int){self.digit(t)} * {t.stride}"
            for t in role.threads
            if t.axis == other and t.div >= WARP
        ]
        n, array = (count, "A") if is_a else (count // 2, "B")
        with self.block(f"LUMC_UNROLL for (int I = 0; I < {n}; I++)"):
            for x, parts in ((k, ["K * 16", steps]), (other, ["I * 16", *warp, lines])):
                lo = self.index(op.ranges[x].lo)
                parts = parts if lo == "0" else [lo, *parts]
                self.line(f"const int {self.names.axis(x)} = {' + '.join(parts)};")
            flag = "true" if turned else "false"
            self.line(f"lumc_ldmatrix_x4<{flag}>({array}[I], &{self.address(ref)});")
