"""Tile program -> C. A table from tile operation to text; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import lumc.codegen.tile.program as ir
from lumc.codegen.cpu.contract import print_contract
from lumc.codegen.cpu.map import print_map
from lumc.codegen.cpu.reduce import print_reduce
from lumc.codegen.cpu.running import print_running
from lumc.codegen.cpu.skew import print_skewed
from lumc.codegen.text.headers import NAMES
from lumc.codegen.text.phases import array
from lumc.codegen.text.statements import Function, Let, bare, lines, live, new
from lumc.codegen.text.term import STORED, WORDS
from lumc.codegen.text.writer import Writer, about, title
from lumc.codegen.tile.memory import PAGE, aligned
from lumc.codegen.tile.rows import touched
from lumc.graph.expr import subterms


def print_kernel(program: ir.Program, symbol: str, shared: frozenset[str] = frozenset()) -> str:
    """C text of ``void symbol(void *const *args, long part, long nparts)``.

    ``args``: the buffers of the kernel in order, the packed operands in order, the dims that it
    names as int64, then the scratch base: ``nparts`` pieces of ``scratch_bytes`` rounded up to
    4096 (unused if that is 0). Includes
    ``lumc_kernel.h`` (``headers``); everything but ``symbol`` is static. Buffers that are
    ``shared`` may be one memory, element for element.
    """
    w = written(program, shared)
    guarded = ["#define LUMC_GUARDED"] * any(map(_is_guarded, ir.leaves(program.body)))
    lanes = f"#define LUMC_LANES {program.target.lanes}"
    head = [lanes, *guarded, f'#include "{NAMES["cpu"]}"', ""]
    micro = [line for f, name in w.functions.items() for line in _function(f, name)]
    function = [f"void {symbol}(void *const *args, long part, long nparts)", "{"]
    body = lines(live(w.body))
    return "\n".join([*head, *micro, *title(program), *function, *body, "}", ""])


def written(program: ir.Program, shared: frozenset[str] = frozenset()) -> Writer:
    """The statements of a kernel, and the functions that they call."""
    w = Writer(program)
    _arguments(w, program, shared)
    _operations(w, program.body)
    if any(isinstance(op, ir.Map) and op.stream for op in ir.leaves(program.body)):
        w.line("lumc_streamed();")
    return w


def _is_guarded(op: ir.Leaf) -> bool:
    """Whether it loads anything under a condition."""
    return any(e.kind == "guard" for e in subterms(*ir.terms_of(op)))


def _function(f: Function, name: str) -> list[str]:
    parameters = ", ".join(map(bare, f.parameters))
    head = f"static __attribute__((noinline)) void {name}({parameters})"
    return [head, "{", *lines(live(f.body)), "}"]


def _arguments(w: Writer, program: ir.Program, shared: frozenset[str]) -> None:
    """Every place as a pointer or a local array."""
    kernel, used = program.kernel, touched(program.body)
    if not program.tiles:
        w.line("if (`part` != 0) return;")
    w.line("(void)`args`, (void)`part`, (void)`nparts`;")
    names = [*(b.name for b in kernel.buffers), *program.packed]
    for i, name in enumerate(names):
        place, value = program.places[name], f"`args`[{i}]"
        if name in shared:
            w.line(f"{STORED[place.dtype]} *{new(w.names.place(place))} = {value};")
        elif name in kernel.stored:
            w.line(f"{_pointer(w, place)} = {value};")
        elif name in used:  # and may not be read after all: 0 * x of integers is no load
            kind = STORED[place.dtype] if place.steps == 1 else WORDS
            w.line(Let(f"{kind} *restrict", w.names.place(place), value))
    dims = kernel.lengths.dims
    for i, d in enumerate(dims, len(names)):
        w.line(Let("long", w.names.dim(d.name), f"*(const int64_t *)`args`[{i}]"))
    if size := aligned(program.scratch_bytes, PAGE):
        at = len(names) + len(dims)
        w.line(f"char *const `:scratch` = (char *)`args`[{at}] + `part` * {size}L;")
    for place in program.places.values():
        if place.name in program.scratch:
            at = program.scratch[place.name]
            w.line(f"{_pointer(w, place)} = (void *)(`scratch` + {at}L);")
        elif place.kind == "scratch" and place.name in used:
            w.line(array(STORED[place.dtype], w.names.place(place), max(1, place.size)))


def _pointer(w: Writer, place: ir.Place) -> str:
    return f"{STORED[place.dtype]} *restrict {new(w.names.place(place))}"


def _operations(w: Writer, body: Sequence[ir.Op]) -> None:
    for op in body:
        match op:
            case ir.Par():
                _parts(w, op)
            case ir.Block():
                with w.tiles_of(op.loop):
                    _operations(w, op.body)
            case ir.Rows() if op.lags:
                print_skewed(w, op)
            case ir.Rows():
                with w.loop(op.axis, op.range, f"rows of {op.axis}"):
                    _operations(w, op.body)
            case ir.When():
                tests = " && ".join(f"{w.index(ir.block_start(a))} == 0" for a in op.first)
                if op.part_start and tests:
                    tests = f"`tile` == `first` || ({tests})"
                with w.block(f"if ({tests})" if tests else "", "once"):
                    _operations(w, op.body)
            case ir.Case():
                c, (first, last) = w.names.axis(op.axis), op.span
                asked = [f"{c} >= {op.lo}"] * (op.lo > first) + [f"{c} < {op.hi}"] * (op.hi <= last)
                with w.block(f"if ({' && '.join(asked)})"):
                    _operations(w, op.body)
            case ir.Map():
                print_map(w, op)
            case ir.Reduce() if op.runs:
                print_running(w, op)
            case ir.Reduce():
                print_reduce(w, op)
            case ir.Contract():
                print_contract(w, op)


def _choose_tile(w: Writer, loops: Sequence[ir.Loop]) -> None:
    """Of the outermost loop, if it is over a length of the run, which may give the parts unequal
    shares of tiles that were made for the greatest one. Tiles of vectors stay whole vectors."""
    outer, *inner = loops
    if outer.length is None or outer.span or outer.tile == 1:
        return
    name, unit = f"`{outer.axis}_tile`", gcd(outer.tile, 2 * w.target.lanes)
    most, others = f"{outer.tile}, {unit}", w.tile_count(inner)
    w.let(name, f"lumc_tile({w.length(outer)}, {most}, {others}, `nparts`)")
    w.chosen_tiles[outer.axis] = name


def _parts(w: Writer, op: ir.Par) -> None:
    """The tiles of the distributed axes, numbered, in equal runs for the parts."""
    _choose_tile(w, op.loops)
    total = w.tile_count(op.loops)
    w.comment("parts: " + ", ".join(about(loop) for loop in op.loops))
    each = f"{total} * `part` / `nparts`", f"{total} * (`part` + 1) / `nparts`"
    w.line("const long `:first` = {}, `:last` = {};".format(*each))
    with w.count("`tile`", "`first`", "`last`"):
        w.tile_starts(op.loops, "`tile`")
        _operations(w, op.body)
