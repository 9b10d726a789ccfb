"""Distributed program -> Metal text: the syntax, and the 8x8 matrices of simdgroups."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import Distribution
from lumc.codegen.gpu.program import Step
from lumc.codegen.gpu.writer import GpuWriter
from lumc.codegen.text.writer import title
from lumc.graph.expr import Expr, dim

WORD = 16  # bytes of an element of the threadgroup memory


class MetalWriter(GpuWriter):
    """The text of ``lumc_dev.metal`` must stand in front of it."""

    def kernel(self, symbol: str, body: Sequence[str]) -> list[str]:
        count, buffers = self.d.threads.count, enumerate(self.parameters())
        head = f"[[max_total_threads_per_threadgroup({count})]] kernel void {symbol}("
        lines = [f"    device {kind} *{name} [[buffer({i})]]," for i, (kind, name) in buffers]
        lines.append("    uint tid [[thread_index_in_threadgroup]],")
        lines.append("    uint3 group [[threadgroup_position_in_grid]])")
        return [*title(self.d.program), head, *lines, "{", *body, "}"]

    def declare(self) -> None:
        if self.d.program.tiles > 1:
            self.line("const int block = group.x;")
        if self.d.shared_bytes:
            self.line(f"threadgroup uint4 SHARED[{-(-self.d.shared_bytes // WORD)}];")
        self.registers_and_tiles()

    def tile(self, kind: str, array: str, offset: int, size: int) -> str:
        return f"threadgroup {kind} *{array} = (threadgroup {kind} *)(SHARED + {offset // WORD});"

    # ---- simdgroup matrices

    def fragments(self, step: Step, op: ir.Contract) -> None:
        assert step.roles and op.plan.rows_axis and op.plan.lane_axis
        roles, rows, lane = step.roles, op.plan.rows_axis, op.plan.lane_axis
        mi, ni, ki = roles.counts
        with ExitStack() as nest:
            self.around(nest, op, roles.along)
            nest.enter_context(self.counting({"K": ki}))
            self.line(f"simdgroup_float8x8 A[{mi}], B[{ni}];")
            for ref, role, other, n in ((op.a, roles.a, rows, mi), (op.b, roles.b, lane, ni)):
                self._matrix(op, ref, role, (other, roles.along), n)
            nest.enter_context(self.counting({"I": mi, "J": ni}))
            self.line("simdgroup_float8x8 C;")
            r, v = (self.index(dim(f"{x}.o")) for x in (rows, lane))
            at, dst = f"const int {r} = I * 8, {v} = J * 8 + H;", self.address(op.dst)
            for moved in (f"C.thread_elements()[H] = {dst};", f"{dst} = C.thread_elements()[H];"):
                with self.counting({"H": 2}):
                    self.lines_of([at, moved])
                if moved.startswith("C"):
                    self.line("simdgroup_multiply_accumulate(C, A[I], B[J], C);")

    def _matrix(
        self, op: ir.Contract, ref: Expr, role: Distribution, axes: tuple[str, str], count: int
    ) -> None:
        """The elements of an operand for 8 steps of the reduced axis."""
        is_a = ref is op.a
        parts = ("I * 8", "K * 8 + H") if is_a else ("I * 8 + H", "K * 8")
        with self.block(), ExitStack() as nest:
            self.threads(role, axes)
            nest.enter_context(self.counting({"I": count, "H": 2}))
            self.elements(op, role, dict(zip(axes, parts, strict=True)))
            value = self.operand(ref, op, role, axes)
            self.line(f"{'A' if is_a else 'B'}[I].thread_elements()[H] = {value};")
