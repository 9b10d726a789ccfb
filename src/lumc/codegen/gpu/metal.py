"""Distributed program -> Metal text: the syntax, and the 8x8 matrices of simdgroups."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import Distribution
from lumc.codegen.gpu.program import Step
from lumc.codegen.gpu.writer import Dialect, GpuWriter
from lumc.codegen.text.statements import bare, new
from lumc.codegen.text.writer import title
from lumc.graph.expr import Expr, dim

EACH = ".thread_elements()[`H`]"
WORD = 16  # bytes of an element of the threadgroup memory


class Metal(Dialect):
    """The text of ``lumc_dev.metal`` must stand in front of it."""

    def kernel(self, w: GpuWriter, symbol: str, body: Sequence[str]) -> list[str]:
        count, buffers = w.d.threads.count, enumerate(w.parameters())
        head = f"[[max_total_threads_per_threadgroup({count})]] kernel void {symbol}("
        lines = [
            f"    {space} {kind} *{bare(name)} [[buffer({i})]],"
            for i, (space, kind, name) in buffers
        ]
        lines.append("    uint tid [[thread_index_in_threadgroup]],")
        lines.append("    uint3 group [[threadgroup_position_in_grid]])")
        return [*title(w.d.program), head, *lines, "{", *body, "}"]

    def declare(self, w: GpuWriter) -> None:
        if w.d.program.tiles > 1:
            w.line("const int `:block` = group.x;")
        if w.d.shared_bytes:
            w.line(f"threadgroup uint4 `:SHARED`[{-(-w.d.shared_bytes // WORD)}];")

    def tile(self, kind: str, array: str, offset: int, size: int) -> str:
        return f"threadgroup {kind} *{array} = (threadgroup {kind} *)(`SHARED` + {offset // WORD});"

    # ---- simdgroup matrices

    def fragments(self, w: GpuWriter, step: Step, op: ir.Contract) -> None:
        assert step.roles and op.stage.rows_axis and op.stage.lane_axis
        roles, rows, lane = step.roles, op.stage.rows_axis, op.stage.lane_axis
        mi, ni, ki = roles.counts
        with ExitStack() as nest:
            w.around(nest, op, roles.along)
            nest.enter_context(w.counting({"`K`": ki}))
            w.line(f"simdgroup_float8x8 `:A`[{mi}], `:B`[{ni}];")
            for ref, role, other, n in ((op.a, roles.a, rows, mi), (op.b, roles.b, lane, ni)):
                _matrix(w, op, ref, role, (other, roles.along), n)
            nest.enter_context(w.counting({"`I`": mi, "`J`": ni}))
            w.line("simdgroup_float8x8 `:C`;")
            r, v = (w.index(dim(f"{x}.o")) for x in (rows, lane))
            at, dst = f"const int {new(r)} = `I` * 8, {new(v)} = `J` * 8 + `H`;", w.address(op.dst)
            for moved in (f"`C`{EACH} = {dst};", f"{dst} = `C`{EACH};"):
                with w.counting({"`H`": 2}):
                    w.lines_of([at, moved])
                if moved.startswith("`C`"):
                    w.line("simdgroup_multiply_accumulate(`C`, `A`[`I`], `B`[`J`], `C`);")


def _matrix(
    w: GpuWriter, op: ir.Contract, ref: Expr, role: Distribution, axes: tuple[str, str], count: int
) -> None:
    """The elements of an operand for 8 steps of the reduced axis."""
    is_a = ref is op.a
    parts = ("`I` * 8", "`K` * 8 + `H`") if is_a else ("`I` * 8 + `H`", "`K` * 8")
    with w.block(), ExitStack() as nest:
        w.threads(role, axes)
        nest.enter_context(w.counting({"`I`": count, "`H`": 2}))
        w.elements(op, role, dict(zip(axes, parts, strict=True)))
        value = w.operand(ref, op, role, axes)
        w.line(f"{'`A`' if is_a else '`B`'}[`I`]{EACH} = {value};")
