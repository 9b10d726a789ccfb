"""Distributed program -> CUDA text: the syntax, asynchronous copies, tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu import launched
from lumc.codegen.gpu.cuda_ring import bulk_ring, rounds, slot_of
from lumc.codegen.gpu.distribution import WARP, Distribution, Roles
from lumc.codegen.gpu.neighbours import side_by_side
from lumc.codegen.gpu.operations import print_nodes
from lumc.codegen.gpu.program import Nest, Step
from lumc.codegen.gpu.shared import ARRIVAL
from lumc.codegen.gpu.writer import Dialect, GpuWriter
from lumc.codegen.text.statements import new
from lumc.codegen.text.writer import about
from lumc.graph.expr import Expr, axis, dim, linear
from lumc.schedule.operands import computed


class Cuda(Dialect):
    """The text includes ``lumc_dev.h`` and needs nothing else."""

    def kernel(self, w: GpuWriter, symbol: str, body: Sequence[str]) -> list[str]:
        return launched.kernel(
            w, "lumc_dev.h", f"{w.d.threads.count}, {w.d.threads.resident}", symbol, body
        )

    def declare(self, w: GpuWriter) -> None:
        launched.declare(w, "threadIdx.x", "blockIdx.x")
        w.let("`GROUP`", "lumc_warpgroup(`tid`)")
        if n := w.d.arrivals:
            w.line(self.tile("lumc_u64", "`:ARRIVED`", w.d.shared_bytes - n * ARRIVAL, n))
            w.line("lumc_u32 `:PARITY` = 0;")
            w.line(f"lumc_arrivals(`ARRIVED`, {n});")

    def tile(self, kind: str, array: str, offset: int, size: int) -> str:
        return launched.tile(kind, array, offset, size)

    def move_ahead(self, to: str, source: str, inside: str) -> str:
        valid = f", {inside} ? 16 : 0" if inside else ""
        return f"lumc_cp_async<16>({to}, {source}{valid});"

    def sync(self, w: GpuWriter) -> None:
        if any(t.panels for t in w.tiles.values()):
            w.line("lumc_fence_async();")
        w.line("lumc_sync();")

    # ---- copies that run ahead

    def ring(self, w: GpuWriter, nest: Nest) -> None:
        """The copies of a loop run ahead of the rest of its body, by as many tiles as there are
        slots which nobody reads."""
        assert isinstance(nest.op, ir.Block)
        if nest.arrivals is not None:
            bulk_ring(w, nest, nest.op.loop, nest.arrivals)
            return
        loop, slots, ahead = nest.op.loop, nest.slots, nest.slots - 1 - nest.behind
        start = w.index(ir.block_start(loop.axis))
        copies = [n for n in nest.body if isinstance(n, Step) and n.ahead]
        rest = [n for n in nest.body if n not in copies]
        with w.block("", f"{about(loop)}, {slots} slots"):
            more = "" if w.first(loop) == "0" else f"{w.first(loop)} + "
            for s in range(ahead):
                _issue(w, loop, copies, f"{more}{s * loop.tile}", f"{s}")
            with w.block(rounds(w, nest, loop)):
                slot_of(w, nest, loop)
                w.tile_size(loop)
                w.line(f"lumc_cp_async_wait<{ahead - 1}>();")
                self.sync(w)
                w.let("`AHEAD`", f"{start} + {ahead * loop.tile}")
                if nest.behind:
                    w.slot = "`SLOT`"
                    print_nodes(w, rest)
                _issue(w, loop, copies, "`AHEAD`", f"(`SLOT` + {ahead}) % {slots}")
                w.slot = "`SLOT`"
                if nest.behind:
                    w.line("lumc_wgmma_wait<1>();")
                else:
                    print_nodes(w, rest)
            if nest.behind:
                w.line("lumc_wgmma_wait<0>();")

    # ---- tensor cores

    def fragments(self, w: GpuWriter, step: Step, op: ir.Contract) -> None:
        assert step.roles and step.roles.product and op.stage.rows_axis and op.stage.lane_axis
        if step.roles.product.fragment == "wgmma":
            _warpgroups(w, step, op)
            return
        roles, rows, lane = step.roles, op.stage.rows_axis, op.stage.lane_axis
        product = step.roles.product
        (mi, ni, ki), k = roles.counts, roles.along
        kind = w.spelling.stored[product.operands[0]]
        with ExitStack() as nest:
            w.around(nest, op, k)
            nest.enter_context(w.counting({"`K`": ki}))
            w.line(f"lumc_u32 `:A`[{mi}][4], `:B`[{(ni + 1) // 2}][4];")
            _fragment(w, op, op.a, roles, (rows, k), mi)
            _fragment(w, op, op.b, roles, (lane, k), ni)
            nest.enter_context(w.counting({"`I`": mi, "`J`": ni}))
            pair = "`B`[`J` / 2][`J` % 2 * 2{}]"
            both = f"{pair.format('')}, {pair.format(' + 1')}"
            w.line(f"const lumc_u32 `:PAIR`[2] = {{{both}}};")
            w.line(f"{w.spelling.types[product.sums]} `:C`[4];")
            r, v = (w.index(dim(f"{x}.o")) for x in (rows, lane))
            each = f"const int {new(r)} = `I` * 16 + `Q` / 2 * 8, {new(v)} = `J` * 8 + `Q` % 2;"
            for move in ("`C`[`Q`] = {};", "{} = `C`[`Q`];"):
                with w.counting({"`Q`": 4}):
                    w.line(each)
                    w.line(move.format(w.address(op.dst)))
                if move.startswith("`C`"):
                    w.line(f"lumc_mma<{kind}>(`C`, `A`[`I`], `PAIR`, `C`);")


def _warpgroups(w: GpuWriter, step: Step, op: ir.Contract) -> None:
    """Warpgroups multiply 64 rows each: by panels of shared memory, the left operand also from
    registers."""
    assert step.roles and step.roles.product and op.stage.rows_axis
    roles, k, product = step.roles, step.roles.along, step.roles.product
    (_, lanes, steps), kind = roles.counts, w.spelling.stored[product.operands[0]]
    tile = w.tiles.get(op.a.attr[0])
    held = tile is None or tile.memory == "register"
    w.line("lumc_wgmma_fence();")
    with ExitStack() as nest:
        w.around(nest, op, k)
        nest.enter_context(w.counting({"`K`": steps}))
        turned = [_turned(w, op.b, k)]
        if held:
            w.line("lumc_u32 `:A`[1][4];")
            _fragment(w, op, op.a, roles, (op.stage.rows_axis, k), 1)
            a = "`A`[0]"
        else:
            turned.insert(0, _turned(w, op.a, k))
            a = _panel(w, op.a, k, "`GROUP`")
        flags = ", ".join("true" if t else "false" for t in turned)
        add = "true" if op.overwrite is None else "`K` > 0"
        ends = f"{w.array(op.dst.attr[0])}, {a}, {_panel(w, op.b, k)}, {add}"
        w.line(f"lumc_wgmma<{kind}, {lanes * 8}, {flags}>({ends});")
    w.line("lumc_wgmma_commit();")
    if not step.behind:
        w.line("lumc_wgmma_wait<0>();")


def _turned(w: GpuWriter, ref: Expr, k: str) -> bool:
    """Do the rows of an operand's panels run along the other axis than that of the sum?"""
    strides = w.tiles[ref.attr[0]].strides
    return axis(k) not in (i for i, s in zip(ref.kids, strides, strict=True) if s == 1)


def _panel(w: GpuWriter, ref: Expr, k: str, group: str = "") -> str:
    """Where the steps of an operand begin, of the left one for this warpgroup, how far from there
    16 of them are, and how many elements its panels are apart."""
    t = w.tiles[ref.attr[0]]
    apart = t.size // t.panels * 64
    turned = _turned(w, ref, k)
    steps = "`K` * 1024" if turned else f"`K` / 4 * {apart} + `K` % 4 * 16"
    parts = [f"{group} * {apart if turned else 4096}"] * bool(group)
    parts += [f"({w.slot}) * {t.size}"] * (t.slots > 1)
    return f"&{w.array(ref.attr[0])}[{' + '.join(parts) or 0}], {steps}, {apart}"


def _issue(w: GpuWriter, loop: ir.Loop, copies: list[Step], at: str, slot: str) -> None:
    w.slot = slot
    with w.block():
        start = w.index(ir.block_start(loop.axis))
        w.let(start, at)
        with w.when([f"{start} < {w.last(loop)}"]):
            w.tile_size(loop)
            print_nodes(w, copies)
        w.line("lumc_cp_async_commit();")


def _fragment(
    w: GpuWriter, op: ir.Contract, ref: Expr, roles: Roles, axes: tuple[str, str], count: int
) -> None:
    """The words of an operand for the steps of one instruction."""
    tile, is_a, product = w.tiles.get(ref.attr[0]), ref is op.a, roles.product
    role = roles.a if is_a else roles.b
    assert product
    word, steps, near = product.word, product.shape[2], role.registers[-1].extent
    if tile and tile.memory == "shared" and word > 1:
        _matrices(w, op, ref, roles, axes, count)
        return
    o, along = (w.index(dim(f"{x}.o")) for x in axes)
    groups = (2 if is_a else 1) * (1 if word == 1 else 2)  # of neighbours: words, or pairs
    place, half = ("`I` * 16 + `Q` % 2 * 8", "`Q` / 2") if is_a else ("`I` * 8", "`Q`")
    start = f"`K` * {steps}" + f" + {half} * {steps // 2}" * (word > 1)
    to = "`A`[`I`][`Q`{}]" if is_a else "`B`[`I` / 2][`I` % 2 * 2 + `Q`{}]"
    with w.block(), ExitStack() as nest:
        w.threads(role, axes)
        nest.enter_context(w.counting({"`I`": count, "`Q`": groups}))
        if tile and tile.packed and word == 2:
            w.line(f"const int {new(o)} = {place}, {new(along)} = {start};")
            w.line(f"{to.format('')} = {w.address(ref)};")
            return
        _near(w, op, ref, role, {axes[0]: place, axes[1]: start})
        kind = w.spelling.stored[product.operands[0]]
        if word > 1:
            w.line(f"{to.format('')} = lumc_word<{kind}>(`NEAR`);")
        for n in range(near if word == 1 else 0):
            also = f" + {n * groups}" * (n > 0)
            w.line(f"{to.format(also)} = lumc_to_tf32(`NEAR`[{n}]);")


def _near(
    w: GpuWriter, op: ir.Contract, ref: Expr, role: Distribution, start: Mapping[str, str]
) -> None:
    """The elements that a thread has side by side, loaded at once where they lie so."""
    (other, place), (k, first) = start.items()
    near, kind = role.registers[-1].extent, w.places[ref.attr[0]].dtype
    w.line(f"{w.spelling.types[computed(kind)]} `:NEAR`[{near}];")
    if at_once := side_by_side(w, ref, op, role) == near:
        w.line(f"{w.spelling.stored[kind]} `:NEXT`[{near}];")
        with w.block():
            w.elements(op, role, start)
            w.line(f"lumc_load(`NEXT`, &{w.address(ref)});")
    with w.counting({"`H`": near}):
        if not at_once:
            w.elements(op, role, {other: place, k: f"{first} + `H`"})
        held = w.tiles.get(ref.attr[0])  # whole fragments, zero outside the data
        value = w.load(ref) if held else w.operand(ref, op, role, (other, k))
        w.line(f"`NEAR`[`H`] = {w.widened(ref, '`NEXT`[`H`]') if at_once else value};")


def _matrices(
    w: GpuWriter, op: ir.Contract, ref: Expr, roles: Roles, axes: tuple[str, str], count: int
) -> None:
    """Four matrices of 8 rows of 16 bytes at once, transposed on the way if memory runs along
    the other axis."""
    (other, k), is_a, product = axes, ref is op.a, roles.product
    role = roles.a if is_a else roles.b
    assert product
    strides = w.tiles[ref.attr[0]].strides
    turned = axis(k) not in (i for i, s in zip(ref.kids, strides, strict=True) if s == 1)
    high, middle, row = "(`tid` >> 4 & 1)", "(`tid` >> 3 & 1)", product.shape[2] // 2
    sixteen, eight = "(`tid` & 15)", f"(`tid` & 7) + {high} * 8"
    if is_a:
        steps, lines = (eight, f"{middle} * 8") if turned else (f"{high} * {row}", sixteen)
    else:
        steps, lines = (sixteen, f"{high} * 8") if turned else (f"{middle} * {row}", eight)
    warp = [
        f"(int){w.digit(t)} * {t.stride}" for t in role.threads if t.axis == other and t.div >= WARP
    ]
    n, array = (count, "`A`") if is_a else ((count + 1) // 2, "`B`")
    along = {k: f"`K` * {2 * row}", other: "`I` * 16"}
    down, far = k if turned else other, ""
    if stride := _rows_apart(w, ref, down):  # after eight rows pieces are exchanged alike
        far = f" + {along.pop(down)} * {stride}"
    with w.counting({"`I`": n}):
        for x, parts in ((k, [steps]), (other, [*warp, lines])):
            lo = w.index(op.ranges[x].lo)
            parts = [p for p in (lo, along.get(x, "0"), *parts) if p != "0"]
            w.let(w.names.axis(x), " + ".join(parts))
        flag = "true" if turned else "false"
        w.line(f"lumc_ldmatrix_x4<{flag}>({array}[`I`], &{w.address(ref)}{far});")


def _rows_apart(w: GpuWriter, ref: Expr, down: str) -> int:
    """Elements from a row of an operand to the next along an axis, if pieces of rows are exchanged
    and the axis moves it in no other way; else 0."""
    tile = w.tiles[ref.attr[0]]
    moved = [
        (atom, n * stride)
        for i, stride in zip(ref.kids, tile.strides, strict=True)
        for atom, n in linear(i)[1].items()
        if down in atom.free
    ]
    plain = tile.swizzle and all(atom is axis(down) for atom, _ in moved)
    return sum(n for _, n in moved) if plain else 0
