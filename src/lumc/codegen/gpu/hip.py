"""Distributed program -> HIP text: the syntax, and the matrices of AMD.

Nothing is copied ahead: before gfx950 they load no 16 bytes into shared memory past the registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu import launched
from lumc.codegen.gpu.distribution import VECTORS, Distribution
from lumc.codegen.gpu.neighbours import side_by_side
from lumc.codegen.gpu.program import Step
from lumc.codegen.gpu.writer import UNROLL, Dialect, GpuWriter
from lumc.codegen.text.statements import new
from lumc.graph.expr import Expr, dim
from lumc.graph.ops import DType


class Hip(Dialect):
    """The text includes ``lumc_hip.h`` and needs nothing else."""

    steps = "LUMC_STEPS "  # clang would load the operands of all steps before the first product

    def kernel(self, w: GpuWriter, symbol: str, body: Sequence[str]) -> list[str]:
        return launched.kernel(w, "lumc_hip.h", str(w.d.threads.count), symbol, body)

    def declare(self, w: GpuWriter) -> None:
        launched.declare(w, "lumc_thread()", "lumc_block()")

    def tile(self, kind: str, array: str, offset: int, size: int) -> str:
        return launched.tile(kind, array, offset, size)

    def fragments(self, w: GpuWriter, step: Step, op: ir.Contract) -> None:
        assert step.roles and step.roles.product and op.stage.rows_axis and op.stage.lane_axis
        roles, rows, lane = step.roles, op.stage.rows_axis, op.stage.lane_axis
        (mi, ni, ki), product = roles.counts, step.roles.product
        kind, near = w.spelling.stored[product.operands[0]], roles.a.registers[-1].extent
        _, each, stride = roles.c.registers[-1]
        steps = UNROLL if w.held((op.a, op.b)) else self.steps
        with ExitStack() as nest:
            w.around(nest, op, roles.along)
            nest.enter_context(w.count("`K`", "0", f"{ki}", before=steps))
            w.line(f"{kind} `:A`[{mi}][{near}], `:B`[{ni}][{near}];")
            for ref, role, other, n in ((op.a, roles.a, rows, mi), (op.b, roles.b, lane, ni)):
                _operand(w, op, ref, role, (other, roles.along), (n, product.operands[0]))
            nest.enter_context(w.counting({"`I`": mi, "`J`": ni}))
            w.line(f"{w.spelling.types[product.sums]} `:C`[{each}];")
            r, v = (w.index(dim(f"{x}.o")) for x in (rows, lane))
            at = f"const int {new(r)} = `I` * 16, {new(v)} = `J` * 16 + `Q` * {stride};"
            dst = w.address(op.dst)
            for moved in (f"`C`[`Q`] = {dst};", f"{dst} = `C`[`Q`];"):
                with w.counting({"`Q`": each}):
                    w.lines_of([at, moved])
                if moved.startswith("`C`"):
                    w.line("lumc_turned_product(`C`, `A`[`I`], `B`[`J`]);")


def _operand(
    w: GpuWriter,
    op: ir.Contract,
    ref: Expr,
    role: Distribution,
    axes: tuple[str, str],
    held: tuple[int, DType],
) -> None:
    """The elements of so many matrices of an operand for 16 steps of the reduced axis, by vectors
    where they lie side by side."""
    (other, along), (count, kind), near = axes, held, role.registers[-1].extent
    each = min(near, VECTORS[-1] // kind.nbytes)
    part = role.registers[-1]._replace(extent=each)
    points = replace(role, registers=(*role.registers[:-1], part))
    to = f"{'`A`' if ref is op.a else '`B`'}[`I`][`P` * {each} + `H`]"
    start = f"`K` * 16 + `P` * {each}"
    with w.block(), ExitStack() as nest:
        w.threads(role, axes)
        nest.enter_context(w.counting({"`I`": count, "`P`": near // each}))
        if side_by_side(w, ref, op, points) == each:
            w.line(f"{w.spelling.stored[kind]} `:NEXT`[{each}];")
            w.elements(op, role, {other: "`I` * 16", along: start})
            w.line(f"lumc_load(`NEXT`, &{w.address(ref)});")
            with w.counting({"`H`": each}):
                w.line(f"{to} = `NEXT`[`H`];")
            return
        nest.enter_context(w.counting({"`H`": each}))
        w.elements(op, role, {other: "`I` * 16", along: f"{start} + `H`"})
        inside = w.tiles.get(ref.attr[0])  # whole fragments, zero outside the data
        value = w.load(ref) if inside else w.operand(ref, op, role, axes)
        w.line(f"{to} = lumc_to_{kind.value}({value});")
