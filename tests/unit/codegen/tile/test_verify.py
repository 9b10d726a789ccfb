"""The verifier: no program of the zoo has problems after any pass; planted mistakes are told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

import lumc.codegen.tile.program as ir
import replay
from drawing import a_path
from kernel_zoo import (
    U8,
    attention,
    conv,
    levels,
    linear_gelu,
    matmul,
    pad_iota,
    softmax,
    transpose,
)
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.verify import problems, verify
from lumc.errors import LumcError
from lumc.graph.expr import Expr, add, axis, make, num, substitute, subterms
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.profile.price import scheduled
from lumc.schedule.first import default_schedule
from lumc.schedule.moves import stroll
from lumc.schedule.space import Grammar

STEP = 13  # of all kernels every so many
TARGET, VNNI = resolve_target("cpu:x86-64-v4"), resolve_target("cpu:x86-64-v4+vnni")
Edit = Callable[[ir.Op], list[ir.Op]]
Mistake = Callable[[ir.Program], Iterator[ir.Program]]


def verified(name: str, program: ir.Program) -> None:
    verify(name, program)


@pytest.mark.parametrize("machine", replay.MACHINES)
def test_every_pass_leaves_a_sound_program(machine: str) -> None:
    target = replay.machine(machine)
    for name, kernel in list(replay.kernels().items())[::STEP]:
        grammar, rng = Grammar(kernel, target), random.Random(name)
        drawn = grammar.build(a_path(grammar, rng)), stroll(grammar, grammar.default, rng)
        for schedule in (grammar.default, *drawn):
            try:
                lower(grammar.kernel, schedule, target, verified)
            except LumcError as e:
                assert e.code in ("E0410", "E0411")


# ---- programs to plant mistakes in


def blocked() -> ir.Program:
    """A product in tiles of all three axes, with copies."""
    k = matmul(64, 96, 64)
    s = default_schedule(k, TARGET)
    (stage,) = s.stages
    stage = replace(stage, stage_a="inner", stage_b="hoist", next_panel=False)
    tile = {"m": 32, "n": 48, "k": 16}
    return lower(k, replace(s, tile=tile, parallel=1, stages=(stage,)), TARGET)


def rows(skew: bool) -> ir.Program:
    k = softmax(64, 512)
    s = replace(default_schedule(k, TARGET), skew=skew, stream=skew)
    return lower(k, s, TARGET)


def summed() -> ir.Program:
    """Sums over tiles of the reduced axis."""
    k = softmax(64, 512)
    s = replace(default_schedule(k, TARGET), fuse_rows=False, keep=False)
    return lower(k, replace(s, tile={"m": 16, "i": 128, "j": 128}), TARGET)


def default(k: Kernel) -> ir.Program:
    return lower(k, default_schedule(k, TARGET), TARGET)


@cache
def programs() -> tuple[ir.Program, ...]:
    kernels = attention(2, 128, 128, 64), conv(16, 4, 16, 16), linear_gelu(64, 96, 64)
    more = transpose(64, 64), pad_iota(17, 137)
    digits = lower(k := levels(3, 64, 4, 32, U8, 4), default_schedule(k, VNNI), VNNI)
    return (digits, blocked(), rows(False), rows(True), summed(), *map(default, (*kernels, *more)))


# ---- the mistakes


def at_each(
    program: ir.Program, wanted: Callable[[ir.Op], bool], edit: Edit
) -> Iterator[ir.Program]:
    """The program with one of the operations that are wanted edited, for each of them."""

    def edits(body: list[ir.Op]) -> Iterator[list[ir.Op]]:
        for i, op in enumerate(body):
            if wanted(op):
                yield [*body[:i], *edit(op), *body[i + 1 :]]
            if isinstance(op, ir.NESTS):
                for inner in edits(op.body):
                    yield [*body[:i], replace(op, body=inner), *body[i + 1 :]]

    for body in edits(program.body):
        yield replace(program, body=body)


def of(*kinds: type, only: Callable[..., bool] = lambda op: True) -> Callable[[Callable], Mistake]:
    """A mistake in one operation of these kinds, for every one where it can be made."""

    def planted(edit: Callable[..., ir.Op | list[ir.Op]]) -> Mistake:
        def wanted(op: ir.Op) -> bool:
            return isinstance(op, kinds) and only(op)

        def edited(op: ir.Op) -> list[ir.Op]:
            new = edit(op)
            return new if isinstance(new, list) else [new]

        return lambda program: at_each(program, wanted, edited)

    return planted


def places(wanted: Callable[[ir.Place], bool], edit: Callable[[ir.Place], ir.Place]) -> Mistake:
    def planted(program: ir.Program) -> Iterator[ir.Program]:
        used = {e.attr[0] for op in ir.leaves(program.body) for e in ir.loads_of(op)}
        for name, p in program.places.items():
            if name in used and wanted(p):
                yield replace(program, places={**program.places, name: edit(p)})

    return planted


def over(op: ir.Map | ir.Reduce | ir.Contract) -> tuple[str, ...]:
    return op.axes if isinstance(op, ir.Map) else (*op.kept, *op.red)


def with_range(change: Callable[[ir.Range], ir.Range]) -> Callable[..., ir.Op]:
    """Of the first axis along which something goes on."""

    def edit(op: ir.Map | ir.Reduce | ir.Contract) -> ir.Op:
        a = next(a for a in over(op) if op.ranges[a].largest > 1)
        return replace(op, ranges={**op.ranges, a: change(op.ranges[a])})

    return edit


def moves(op: ir.Op) -> bool:
    return any(op.ranges[a].largest > 1 for a in over(op))


def starts(op: ir.Op) -> bool:
    """Is its first axis that has several values in tiles?"""
    several = [a for a in over(op) if op.ranges[a].largest > 1]
    return bool(several) and op.ranges[several[0]].lo == ir.block_start(several[0])


def longer(r: ir.Range, by: int = 1) -> ir.Range:
    return ir.Range(r.lo, add(r.n, by), tuple(n + by for n in r.sizes))


def loads(op: ir.Map) -> list[Expr]:
    return [e for e in ir.loads_of(op, but=[op.dst]) if e.kids]


def moved(op: ir.Map, change: Callable[[Expr], Expr]) -> ir.Map:
    """With another first load."""
    e = loads(op)[0]
    return replace(op, term=substitute(op.term, {e: change(e)}))


def shifted(e: Expr, by: int) -> Expr:
    return make("load", e.attr, (*e.kids[:-1], add(e.kids[-1], by)))


def again(op: ir.Map | ir.Reduce | ir.Contract) -> bool:
    """Does it read what it stores? Then another operation has stored there before."""
    results = {dst.attr[0] for dst in ir.written(op)}
    terms = [op.term] if isinstance(op, ir.Map) else []
    if isinstance(op, ir.Reduce):
        terms = [t for o in op.outputs for t in (o.term, o.init)]
    return any(e.kind == "load" and e.attr[0] in results for e in subterms(*terms))


def of_digits(op: ir.Map) -> bool:
    """Does it make digits? Only one program does, and its only map over two axes."""
    return op.copy and [*op.axes[-2:]] == ["o", "k"]


def plain(op: ir.Map) -> bool:
    """Does it read without guards?"""
    return bool(loads(op)) and all(e.kind != "guard" for e in subterms(op.term))


def backwards(program: ir.Program) -> Iterator[ir.Program]:
    """The operations of a whole program, or of one loop, in the other order."""
    yield from at_each(
        program,
        lambda op: isinstance(op, ir.Par | ir.Block) and len(op.body) > 1,
        lambda op: [replace(op, body=op.body[::-1])],
    )


def crowded(program: ir.Program) -> Iterator[ir.Program]:
    """Two scratch values in one place."""
    if len(program.scratch) > 1:
        first = min(program.scratch.values())
        yield replace(program, scratch=dict.fromkeys(program.scratch, first))


def cramped(program: ir.Program) -> Iterator[ir.Program]:
    if program.scratch:
        yield replace(program, scratch_bytes=program.scratch_bytes // 2)


LEAVES = (ir.Map, ir.Reduce, ir.Contract)
MISTAKES: dict[str, Mistake] = {
    "a dealt loop is lost": of(ir.Par)(lambda op: op.body),
    "a loop over tiles is lost": of(ir.Block)(lambda op: op.body),
    "a loop is opened twice": of(ir.Block)(lambda op: replace(op, body=[op])),
    "a loop ends early": of(ir.Block)(
        lambda op: replace(op, loop=replace(op.loop, extent=op.loop.extent - 1))
    ),
    "a tile is larger than its axis": of(ir.Block)(
        lambda op: replace(op, loop=replace(op.loop, tile=op.loop.extent + 1))
    ),
    "a loop of another axis": of(ir.Block)(
        lambda op: replace(op, loop=replace(op.loop, axis="nowhere"))
    ),
    "a dealt loop inside of a loop": of(ir.Block)(lambda op: ir.Par((op.loop,), [op])),
    "a loop over rows is lost": of(ir.Rows)(lambda op: op.body),
    "a row too many": of(ir.Rows)(lambda op: replace(op, range=longer(op.range))),
    "a row too few": of(ir.Rows)(lambda op: replace(op, range=longer(op.range, -1))),
    "rows start at zero": of(ir.Rows, only=lambda op: op.range.lo.kind == "dim")(
        lambda op: replace(op, range=replace(op.range, lo=num(0)))
    ),
    "what is done once stands before its loop": of(ir.When)(
        lambda op: replace(op, first=(*op.first, "nowhere"))
    ),
    "what every tile needs is done in the first": of(ir.Map, only=starts)(
        lambda op: ir.When((next(a for a in op.axes if op.ranges[a].largest > 1),), [op])
    ),
    "a case too wide": of(ir.Case)(lambda op: replace(op, hi=op.span[1] + 2)),
    "an empty case": of(ir.Case)(lambda op: replace(op, hi=op.lo)),
    "a case of no axis": of(ir.Case)(lambda op: replace(op, axis="nowhere")),
    "a piece of a result is lost": of(ir.Case)(lambda op: []),
    "an axis is forgotten": of(ir.Map, only=lambda op: bool(op.axes))(
        lambda op: replace(op, axes=op.axes[1:])
    ),
    "an axis runs twice": of(ir.Map, only=lambda op: bool(op.axes))(
        lambda op: replace(op, axes=(*op.axes, op.axes[0]))
    ),
    "a range is forgotten": of(*LEAVES, only=lambda op: bool(over(op)))(
        lambda op: replace(op, ranges={a: r for a, r in op.ranges.items() if a != over(op)[-1]})
    ),
    "a tile is one too long": of(*LEAVES, only=moves)(with_range(longer)),
    "a tile is one too short": of(*LEAVES, only=lambda op: moves(op) and not again(op))(
        with_range(lambda r: longer(r, -1))
    ),
    "a tile says other sizes": of(*LEAVES, only=moves)(
        with_range(lambda r: replace(r, sizes=(r.largest + 1,)))
    ),
    "a tile starts at zero": of(*LEAVES, only=starts)(with_range(lambda r: replace(r, lo=num(0)))),
    "a tile of another loop": of(*LEAVES, only=moves)(
        with_range(lambda r: replace(r, lo=ir.block_start("nowhere")))
    ),
    "a term uses an axis that is not open": of(ir.Map, only=lambda op: bool(loads(op)))(
        lambda op: moved(op, lambda e: make("load", e.attr, (*e.kids[:-1], axis("nowhere"))))
    ),
    "a load is one element late": of(ir.Map, only=plain)(
        lambda op: moved(op, lambda e: shifted(e, 1))
    ),
    "a load is one element early": of(ir.Map, only=plain)(
        lambda op: moved(op, lambda e: shifted(e, -1))
    ),
    "a load has too few indices": of(ir.Map, only=lambda op: bool(loads(op)))(
        lambda op: moved(op, lambda e: make("load", e.attr, e.kids[1:]))
    ),
    "a load of another dtype": of(ir.Map, only=lambda op: bool(loads(op)))(
        lambda op: moved(op, lambda e: make("load", (e.attr[0], "f64"), e.kids))
    ),
    "a load from nowhere": of(ir.Map, only=lambda op: bool(loads(op)))(
        lambda op: moved(op, lambda e: make("load", ("nowhere", e.attr[1]), e.kids))
    ),
    "an index is stored as it is": of(ir.Map)(
        lambda op: replace(op, term=make("iota", ("i64",), (num(0),)))
    ),
    "all is stored to one element": of(ir.Map, only=moves)(
        lambda op: replace(op, dst=substitute(op.dst, {axis(a): op.ranges[a].lo for a in op.axes}))
    ),
    "an operation is lost": of(*LEAVES, only=lambda op: not again(op))(lambda op: []),
    "a result of a walk is lost": of(ir.Reduce, only=lambda op: op.stores and not again(op))(
        lambda op: replace(op, stores=())
    ),
    "a reduction along nothing": of(ir.Reduce)(lambda op: replace(op, red=())),
    "a reduction by no operation": of(ir.Reduce)(
        lambda op: replace(op, outputs=tuple(replace(o, op="mean") for o in op.outputs))
    ),
    "lanes on a kept axis where none is": of(ir.Reduce, only=lambda op: not op.kept)(
        lambda op: replace(op, lanes="kept")
    ),
    "a sum forgets the tiles before": of(
        ir.Reduce, only=lambda op: any(o.init is o.dst for o in op.outputs)
    )(lambda op: replace(op, outputs=tuple(replace(o, init=_zero(o)) for o in op.outputs))),
    "a product begins anew in every tile": of(ir.Contract, only=lambda op: bool(op.overwrite))(
        lambda op: replace(op, overwrite=())
    ),
    "a product never begins": of(ir.Contract)(lambda op: replace(op, overwrite=None)),
    "operands are exchanged": of(ir.Contract)(lambda op: replace(op, a=op.b, b=op.a)),
    "rows and lanes are exchanged": of(ir.Contract, only=lambda op: bool(op.stage.rows_axis))(
        lambda op: replace(
            op, stage=replace(op.stage, rows_axis=op.stage.lane_axis, lane_axis=op.stage.rows_axis)
        )
    ),
    "a product keeps what it adds": of(ir.Contract)(
        lambda op: replace(op, kept=(*op.kept, op.red[0]), red=op.red[1:])
    ),
    "a product adds what it keeps": of(ir.Contract)(
        lambda op: replace(op, kept=op.kept[1:], red=(*op.red, op.kept[0]))
    ),
    "an edge of other tiles": of(ir.Contract, only=lambda op: bool(op.edge))(
        lambda op: replace(op, edge=replace(op.edge, tile=op.edge.tile + 1))
    ),
    "an edge along the lanes": of(ir.Contract, only=lambda op: bool(op.edge))(
        lambda op: replace(
            op, edge=replace(op.edge, border=replace(op.edge.border, kept=op.stage.lane_axis))
        )
    ),
    "a border along a kept axis": of(ir.Contract, only=lambda op: bool(op.within))(
        lambda op: replace(op, red=tuple(a for a in op.red if a != op.within[0].border.over))
    ),
    "a transpose along the lanes": of(ir.Map, only=lambda op: op.turn is not None)(
        lambda op: replace(op, turn=op.axes[-1])
    ),
    "a row is read before it is written": of(ir.Rows, only=lambda op: bool(op.lags))(
        lambda op: replace(op, lags=tuple(reversed(op.lags)))
    ),
    "no row is behind another": of(ir.Rows, only=lambda op: bool(op.lags))(
        lambda op: replace(op, lags=op.lags[1:])
    ),
    "a ring with a slot too few": places(
        lambda p: any(d.label == "slot" for d in p.dims),
        lambda p: replace(p, dims=(replace(p.dims[0], size=p.dims[0].size - 1), *p.dims[1:])),
    ),
    "a place is one element short": places(
        lambda p: any(d.size > 1 and d.label != "slot" for d in p.dims) and "turned" not in p.name,
        lambda p: replace(p, dims=_shorter(p)),
    ),
    "a place starts at zero": places(
        lambda p: any(d.origin.kind == "dim" and d.size > 1 for d in p.dims),
        lambda p: replace(p, dims=tuple(replace(d, origin=num(0)) for d in p.dims)),
    ),
    "values in one row that live longer": places(
        lambda p: p.kind == "scratch" and any(d.size > 1 and d.label in "mnhq" for d in p.dims),
        lambda p: replace(
            p,
            dims=tuple(
                ir.Dim(d.label, axis(d.label), 1) if d.label in "mnhq" else d for d in p.dims
            ),
        ),
    ),
    "operations run backwards": backwards,
    "two values lie in one place": crowded,
    "scratch is too small": cramped,
    "parts store to the same elements": of(ir.Par)(
        lambda op: replace(op, loops=(*op.loops[:-1], replace(op.loops[-1], axis="k")))
    ),
    "digits of rows that are no fours": of(ir.Map, only=of_digits)(
        lambda op: replace(
            op, ranges={**op.ranges, op.axes[-1]: longer(op.ranges[op.axes[-1]], -1)}
        )
    ),
    "digits along another axis": of(ir.Map, only=of_digits)(
        lambda op: replace(op, axes=op.axes[::-1])
    ),
    "digits taken for floats": of(ir.Contract, only=lambda op: op.by is not None)(
        lambda op: replace(op, stage=replace(op.stage, stage_b="narrow"))
    ),
    "floats taken for digits": places(lambda p: p.digits, lambda p: replace(p, digits=False)),
    "parts of digits are lost": of(ir.Contract, only=lambda op: op.by is not None)(
        lambda op: replace(op, by=None)
    ),
    "a packed weight of another size": places(
        lambda p: p.kind == "packed",
        lambda p: replace(p, dims=(replace(p.dims[0], size=p.dims[0].size + 1), *p.dims[1:])),
    ),
}


def _zero(o: ir.Output) -> Expr:
    return make("const", (o.dst.attr[1], 0.0))


def _shorter(p: ir.Place) -> tuple[ir.Dim, ...]:
    i = next(i for i, d in enumerate(p.dims) if d.size > 1)
    return (*p.dims[:i], replace(p.dims[i], size=p.dims[i].size - 1), *p.dims[i + 1 :])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(name: str) -> None:
    planted = [(p, m) for p in programs() for m in MISTAKES[name](p)]
    assert planted, "nowhere to plant it"
    silent = [p.kernel.name for p, m in planted if not problems(m)]
    assert not silent, f"{len(silent)} of {len(planted)}: {silent}"


# ---- loops that end where a mask leaves no step


def masked() -> ir.Program:
    kernel = attention(2, 128, 128, 64, mask=False, causal=True)
    return scheduled(kernel, resolve_target("cuda:sm_90"))[1]


def spanned(**changes: object) -> Mistake:
    return of(ir.Block, only=lambda op: op.loop.span is not None)(
        lambda op: replace(op, loop=replace(op.loop, span=replace(op.loop.span, **changes)))
    )


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (spanned(ends=(ir.block_start("nowhere"),)), "by what is not open"),
        (spanned(ends=(axis("q"),)), "by what is not open"),
        (spanned(share=1.5), "more than all"),
        (spanned(ends=()), "leaves out nothing"),
        (
            of(ir.Block, only=lambda op: op.loop.span is not None)(
                lambda op: replace(op, body=[ir.When((op.loop.axis,), op.body)])
            ),
            "the first tile of j may be left out",
        ),
    ],
)
def test_a_span_that_is_none_is_told(mistake: Mistake, said: str) -> None:
    program = masked()
    assert not problems(program)
    (wrong,) = mistake(program)
    assert any(said in each for each in problems(wrong))
