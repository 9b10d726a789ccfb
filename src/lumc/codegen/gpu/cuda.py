"""Distributed program -> CUDA text: the syntax, asynchronous copies, tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import WARP, Distribution, Roles
from lumc.codegen.gpu.operations import print_nodes
from lumc.codegen.gpu.program import Nest, Step
from lumc.codegen.gpu.writer import GpuWriter
from lumc.codegen.text.writer import about, title
from lumc.graph.expr import Expr, axis, dim
from lumc.schedule.operands import computed


class CudaWriter(GpuWriter):
    """The text includes ``lumc_dev.h`` and needs nothing else."""

    def kernel(self, symbol: str, body: Sequence[str]) -> list[str]:
        t = self.d.threads
        head = f'extern "C" __global__ void __launch_bounds__({t.count}, {t.resident})'
        parameters = ", ".join(f"{kind} *__restrict__ {name}" for kind, name in self.parameters())
        lines = ['#include "lumc_dev.h"', "", *title(self.d.program), head]
        return [*lines, f"{symbol}({parameters})", "{", *body, "}", f"LUMC_EXPORT({symbol})"]

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

    # ---- tensor cores

    def fragments(self, step: Step, op: ir.Contract) -> None:
        assert step.roles and step.roles.product and op.plan.rows_axis and op.plan.lane_axis
        roles, rows, lane = step.roles, op.plan.rows_axis, op.plan.lane_axis
        product = step.roles.product
        (mi, ni, ki), k = roles.counts, roles.along
        kind = self.spelling.stored[product.operands[0]]
        with ExitStack() as nest:
            self.around(nest, op, k)
            nest.enter_context(self.counting({"K": ki}))
            self.line(f"lumc_u32 A[{mi}][4], B[{ni // 2}][4];")
            self._fragment(op, op.a, roles, (rows, k), mi)
            self._fragment(op, op.b, roles, (lane, k), ni)
            nest.enter_context(self.counting({"I": mi, "J": ni}))
            self.line("const lumc_u32 PAIR[2] = {B[J / 2][J % 2 * 2], B[J / 2][J % 2 * 2 + 1]};")
            self.line(f"{self.spelling.types[product.sums]} C[4];")
            r, v = (self.index(dim(f"{x}.o")) for x in (rows, lane))
            each = f"const int {r} = I * 16 + Q / 2 * 8, {v} = J * 8 + Q % 2;"
            for move in ("C[Q] = {};", "{} = C[Q];"):
                with self.counting({"Q": 4}):
                    self.line(each)
                    self.line(move.format(self.address(op.dst)))
                if move.startswith("C"):
                    self.line(f"lumc_mma<{kind}>(C, A[I], PAIR, C);")

    def _fragment(
        self, op: ir.Contract, ref: Expr, roles: Roles, axes: tuple[str, str], count: int
    ) -> None:
        """The words of an operand for the steps of one instruction."""
        tile, is_a, product = self.tiles.get(ref.attr[0]), ref is op.a, roles.product
        role = roles.a if is_a else roles.b
        assert product
        word, steps, near = product.word, product.shape[2], role.registers[-1].extent
        if tile and tile.memory == "shared" and word > 1:
            self._matrices(op, ref, roles, axes, count)
            return
        o, along = (self.index(dim(f"{x}.o")) for x in axes)
        groups = (2 if is_a else 1) * (1 if word == 1 else 2)  # of neighbours: words, or pairs
        place, half = ("I * 16 + Q % 2 * 8", "Q / 2") if is_a else ("I * 8", "Q")
        start = f"K * {steps}" + f" + {half} * {steps // 2}" * (word > 1)
        to = "A[I][Q{}]" if is_a else "B[I / 2][I % 2 * 2 + Q{}]"
        with self.block(), ExitStack() as nest:
            self.threads(role, axes)
            nest.enter_context(self.counting({"I": count, "Q": groups}))
            if tile and tile.packed and word == 2:
                self.line(f"const int {o} = {place}, {along} = {start};")
                self.line(f"{to.format('')} = {self.address(ref)};")
                return
            self._near(op, ref, role, {axes[0]: place, axes[1]: start})
            kind = self.spelling.stored[product.operands[0]]
            if word > 1:
                self.line(f"{to.format('')} = lumc_word<{kind}>(NEAR);")
            for n in range(near if word == 1 else 0):
                also = f" + {n * groups}" * (n > 0)
                self.line(f"{to.format(also)} = lumc_to_tf32(NEAR[{n}]);")

    def _near(
        self, op: ir.Contract, ref: Expr, role: Distribution, start: Mapping[str, str]
    ) -> None:
        """The elements that a thread has side by side, loaded at once where they lie so."""
        (other, place), (k, first) = start.items()
        near, kind = role.registers[-1].extent, self.places[ref.attr[0]].dtype
        self.line(f"{self.spelling.types[computed(kind)]} NEAR[{near}];")
        if at_once := self.neighbours(ref, op, role) == near:
            self.line(f"{self.spelling.stored[kind]} NEXT[{near}];")
            with self.block():
                self.elements(op, role, start)
                self.line(f"lumc_load(NEXT, &{self.address(ref)});")
        with self.counting({"H": near}):
            if not at_once:
                self.elements(op, role, {other: place, k: f"{first} + H"})
            held = self.tiles.get(ref.attr[0])  # whole fragments, zero outside the data
            value = self.load(ref) if held else self.operand(ref, op, role, (other, k))
            self.line(f"NEAR[H] = {self.widened(ref, 'NEXT[H]') if at_once else value};")

    def _matrices(
        self, op: ir.Contract, ref: Expr, roles: Roles, axes: tuple[str, str], count: int
    ) -> None:
        """Four matrices of 8 rows of 16 bytes at once, transposed on the way if memory runs along
        the other axis."""
        (other, k), is_a, product = axes, ref is op.a, roles.product
        role = roles.a if is_a else roles.b
        assert product
        strides = self.tiles[ref.attr[0]].strides
        turned = axis(k) not in (i for i, s in zip(ref.kids, strides, strict=True) if s == 1)
        high, middle, row = "(tid >> 4 & 1)", "(tid >> 3 & 1)", product.shape[2] // 2
        sixteen, eight = "(tid & 15)", f"(tid & 7) + {high} * 8"
        if is_a:
            steps, lines = (eight, f"{middle} * 8") if turned else (f"{high} * {row}", sixteen)
        else:
            steps, lines = (sixteen, f"{high} * 8") if turned else (f"{middle} * {row}", eight)
        warp = [
            f"(int){self.digit(t)} * {t.stride}"
            for t in role.threads
            if t.axis == other and t.div >= WARP
        ]
        n, array = (count, "A") if is_a else (count // 2, "B")
        with self.counting({"I": n}):
            for x, parts in ((k, [f"K * {2 * row}", steps]), (other, ["I * 16", *warp, lines])):
                lo = self.index(op.ranges[x].lo)
                parts = parts if lo == "0" else [lo, *parts]
                self.line(f"const int {self.names.axis(x)} = {' + '.join(parts)};")
            flag = "true" if turned else "false"
            self.line(f"lumc_ldmatrix_x4<{flag}>({array}[I], &{self.address(ref)});")
