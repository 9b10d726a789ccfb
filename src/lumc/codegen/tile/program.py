"""The tile program: loops over tiles with tile operations inside. Data only.

    Par       tiles dealt to the parts            Map       dst = term over the axes of a tile
    Block     a loop over tiles of an axis        Reduce    several outputs over one walk
    Rows      a loop over single rows             Contract  a register-tiled sum of products
    When      in the first tile of some axes      Case      where an axis is in a run of its values

Everything an operation reads or writes is a load term: a place and indices. A stage value, a
packed operand, a window copy and a tensor of the user differ only in their ``Place``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from lumc.codegen.tile.packing import Packing
from lumc.codegen.tile.ranges import Loop as Loop
from lumc.codegen.tile.ranges import Range as Range
from lumc.codegen.tile.ranges import Span as Span
from lumc.codegen.tile.ranges import block_size as block_size
from lumc.codegen.tile.ranges import block_start as block_start
from lumc.codegen.tile.ranges import live_tile as live_tile
from lumc.codegen.tile.ranges import rounded as rounded
from lumc.codegen.tile.ranges import tile_sizes as tile_sizes
from lumc.codegen.tile.ranges import whole as whole
from lumc.graph.expr import Expr, combine, make, substitute, subterms
from lumc.graph.ops import DType
from lumc.kernel.access import Access, access
from lumc.kernel.borders import Border
from lumc.kernel.selected import Selected, selected
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.schedule.schedule import Stage

Valid = tuple[tuple[int, int], ...]  # by step the rows of a register tile


@dataclass(frozen=True)
class Dim:
    """One dimension of a place; index ``origin`` is its first element."""

    label: str
    origin: Expr
    size: int


@dataclass(frozen=True)
class Place:
    """Memory that holds a value: an argument (row-major), scratch of a part, or packed at link.

    With ``panel`` = (dimension, width) the layout is [dimension/width][the others..][width].
    """

    name: str
    dtype: DType
    dims: tuple[Dim, ...]
    kind: str = "scratch"  # argument | scratch | packed
    panel: tuple[int, int] | None = None
    steps: int = 1  # along the dimension before the panel that are one word
    digits: bool = False  # of four neighbours the words of the last digits, the middle, the first

    @cached_property
    def _layout(self) -> tuple[tuple[int, ...], int, int]:
        stride, n = [0] * len(self.dims), self.panel[1] if self.panel else 1
        for i in reversed(range(len(self.dims))):
            if self.panel is None or i != self.panel[0]:
                words = self.steps if i == len(self.dims) - 2 else 1
                stride[i], n = n, n * self.dims[i].size // words
        if self.panel is None:
            return tuple(stride), n, 0
        at, width = self.panel
        stride[at] = 1
        return tuple(stride), n * -(-self.dims[at].size // width), n

    @property
    def strides(self) -> tuple[int, ...]:
        """Per dimension, in elements, or words; inside one panel for the panel dimension."""
        return self._layout[0]

    @property
    def size(self) -> int:
        """In elements, or words."""
        return self._layout[1]

    @property
    def stored(self) -> DType:
        """That of its elements, or of words."""
        return self.dtype if self.steps == 1 else DType.I32

    @property
    def nbytes(self) -> int:
        """Of all that it holds."""
        return self.size * self.stored.nbytes

    @property
    def panel_size(self) -> int:
        """Elements of one panel; 0 without panels."""
        return self._layout[2]

    def offset(self, index: Sequence[Expr]) -> Expr:
        """The element at these indices, in a panel place only inside the first panel."""
        dims = list(zip(index, self.dims, self.strides, strict=True))
        return combine([(i, n) for i, _, n in dims] + [(d.origin, -n) for _, d, n in dims])

    def access(self, load: Expr) -> Access:
        """How a load of it, or a store, moves; in a panel place, inside the first panel."""
        if load.kids not in self._accesses:
            self._accesses[load.kids] = access(self.offset(load.kids))
        return self._accesses[load.kids]

    @cached_property
    def _accesses(self) -> dict[tuple[Expr, ...], Access]:
        return {}


@dataclass(frozen=True)
class Par:
    """Loops whose tiles are dealt to the parts, in order."""

    loops: tuple[Loop, ...]
    body: list[Op]


@dataclass(frozen=True)
class Block:
    """A loop over the tiles of one axis, by every part."""

    loop: Loop
    body: list[Op]


@dataclass(frozen=True)
class Rows:
    """With ``lags``: every operation so many rows behind the loop, side by side (``skew``)."""

    axis: str
    range: Range
    body: list[Op]
    lags: tuple[int, ...] = ()


@dataclass(frozen=True)
class When:
    """In the first tile of these axes; with ``part_start`` also in the first tile of a part."""

    first: tuple[str, ...]
    body: list[Op]
    part_start: bool = False


@dataclass(frozen=True)
class Case:
    """Where ``lo <= axis < hi``, of the values from ``span[0]`` to ``span[1]`` that it can have."""

    axis: str
    lo: int
    hi: int
    span: tuple[int, int]
    body: list[Op]

    @property
    def share(self) -> float:
        """Of all values."""
        return (self.hi - self.lo) / (self.span[1] - self.span[0] + 1)


@dataclass(frozen=True)
class Map:
    """``dst = term`` for all points of ``axes``, lanes along the last one."""

    dst: Expr
    axes: tuple[str, ...]
    ranges: Mapping[str, Range]
    term: Expr
    turn: str | None = None  # load along this axis, store along the last: a register transpose
    turned: tuple[Expr, ...] = ()  # loads that are transposed instead of the result
    copy: bool = False  # a staged operand; never fused with others
    stream: bool = False  # store around the caches
    ahead: tuple[Expr, ...] = ()  # prefetched along the last axis: what a later row reads
    abreast: bool = False  # the last axis is written out, lanes go along the one before


@dataclass(frozen=True)
class Output:
    """One result of a Reduce: ``dst = init op term op ..``; op is sum, max or top (a max that
    ignores NaN); of keys, integers in the order of the values with NaN above all: key, their
    maximum, or keyed, the value of which that is the key."""

    dst: Expr
    op: str
    term: Expr
    init: Expr


@dataclass(frozen=True)
class Reduce:
    """``outputs``, each reduced over ``red`` for every point of ``kept``, in one walk."""

    kept: tuple[str, ...]
    red: tuple[str, ...]
    ranges: Mapping[str, Range]
    outputs: tuple[Output, ...]
    lanes: str = "reduced"  # | kept | strips: vectors in registers | scattered: see ``selection``
    streams: int = 1
    stores: tuple[tuple[Expr, Expr], ...] = ()  # (dst, term) kept on the way
    ahead: tuple[Expr, ...] = ()  # prefetched along the lanes
    then: Map | None = None  # of the results, done while they are in registers, and all that lasts
    copy: bool = False  # what a staged operand needs beside it

    @property
    def runs(self) -> bool:
        """Does every step store its result, which the next one goes on from?"""
        return any(o.dst.free.intersection(self.red) for o in self.outputs)


def selection(op: Reduce, extent: Mapping[str, int] | None = None) -> Selected | None:
    """What each step of a sum adds to, if it selects that; of axes of these extents, if given."""
    if len(op.outputs) != 1 or op.outputs[0].op != "sum" or op.stores or op.then or op.runs:
        return None
    return selected(op.outputs[0].term, op.kept, extent)


@dataclass(frozen=True)
class Within:
    """The only steps of a reduced axis that add something, between a border's ends. ``counts``: how
    many in a tile, all that occur; ``mean``: how many at a point."""

    border: Border
    counts: tuple[int, ...]
    mean: float  # steps at a point


@dataclass(frozen=True)
class Edge:
    """Steps of a reduced axis, all of it in every tile, that add nothing to some rows: those next
    to a border along the rows, of which there are ``extent`` in tiles of ``tile``."""

    border: Border
    extent: int
    tile: int
    mean: float  # steps that add something to a row

    def rows(self, by: int, steps: int) -> dict[tuple[int, Valid], list[int]]:
        """For all register tiles of at most ``by`` rows: how many these are and, by step, the first
        of them that it adds something to and the first after those; and where such tiles start."""
        out = dict[tuple[int, Valid], list[int]]()
        for start in range(0, self.extent, self.tile):
            end = min(start + self.tile, self.extent)
            for at in range(start, end, by):
                m = min(by, end - at)
                own = [self.border.steps(at + i) for i in range(m)]
                here = ([i for i in range(m) if own[i][0] <= v < own[i][1]] for v in range(steps))
                valid = tuple((i[0], i[-1] + 1) if i else (0, 0) for i in here)
                out.setdefault((m, valid), []).append(at)
        return out


@dataclass(frozen=True)
class Contract:
    """``dst (+)= sum over red of a * b``, in the register tiles of ``stage``; where b are levels,
    of a * (scale * b + shift), which are the same along the last reduced axis. Multiplied as
    integers, a are bytes or digits, their products multiplied ``by`` something; ``sums``: of a
    along that axis, where b are signed or shifted."""

    dst: Expr
    a: Expr
    b: Expr
    stage: Stage
    kept: tuple[str, ...]
    red: tuple[str, ...]
    ranges: Mapping[str, Range]
    overwrite: tuple[str, ...] | None  # in the first tile of these axes; None: never
    within: tuple[Within, ...] = ()
    edge: Edge | None = None
    levels: bool = False
    scale: Expr | None = None
    shift: Expr | None = None
    by: Expr | None = None
    sums: Expr | None = None

    @property
    def rest(self) -> tuple[Expr, ...]:
        """What makes b of levels."""
        return tuple(e for e in (self.scale, self.shift) if e is not None)

    @property
    def means(self) -> dict[str, float]:
        """Of reduced axes of which some steps are left out, how many are done."""
        some = {each.border.over: each.mean for each in self.within}
        return some | ({self.edge.border.over: self.edge.mean} if self.edge else {})


Leaf = Map | Reduce | Contract
Op = Par | Block | Rows | When | Case | Leaf
NESTS = (Par, Block, Rows, When, Case)


@dataclass(frozen=True)
class Program:
    """What one kernel does, for one target.

    Arguments: ``kernel.buffers``, ``packed``, then the base of ``scratch_bytes`` for every part
    (each rounded up to 4096). ``scratch`` gives the offset of a place in the part's scratch;
    scratch places without one are local arrays.
    """

    kernel: Kernel
    target: Target
    places: Mapping[str, Place]
    body: list[Op]
    packed: Mapping[str, Packing]  # by place; their weights are buffers of the kernel
    scratch: Mapping[str, int] = field(default_factory=dict)
    scratch_bytes: int = 0

    @property
    def tiles(self) -> int:
        """That are dealt to the parts, by the distributed loops with most; 0: only one has work."""
        loops = [op.loops for op in self.body if isinstance(op, Par)]
        return max((prod(loop.count for loop in each) for each in loops), default=0)


def is_copy(op: Leaf) -> bool:
    """Does it make a staged operand, or what is needed beside that?"""
    return not isinstance(op, Contract) and op.copy


def lane_of(op: Map, place: Place) -> str:
    """The axis of the lanes of a map into a place: in panels theirs, else the last one."""
    if place.panel is None:
        return op.axes[-1]
    (lane,) = op.dst.kids[place.panel[0]].free
    return lane


def reference(place: Place, axes: Sequence[Expr]) -> Expr:
    """The load term of a place."""
    return make("load", (place.name, place.dtype.value), tuple(axes))


def rewrite(
    body: Sequence[Op], change: Callable[[list[Op], Op | None], list[Op]], loop: Op | None = None
) -> list[Op]:
    """The body as ``change`` makes it: of every body, inner ones first, and the loop around it,
    None at the top."""
    ops = [replace(o, body=rewrite(o.body, change, o)) if isinstance(o, NESTS) else o for o in body]
    return change(ops, loop)


def rewrite_leaves(body: Sequence[Op], change: Callable[[Leaf], Iterable[Op]]) -> list[Op]:
    """The body with what ``change`` makes of every operation that is not a loop, in program order;
    loops in which nothing is left are left out."""
    out = list[Op]()
    for op in body:
        if not isinstance(op, NESTS):
            out += change(op)
        elif inner := rewrite_leaves(op.body, change):
            out.append(replace(op, body=inner))
    return out


def leaves(body: Sequence[Op]) -> Iterator[Leaf]:
    """Every operation that is not a loop, in program order."""
    for op in body:
        if isinstance(op, NESTS):
            yield from leaves(op.body)
        else:
            yield op


def written(op: Leaf) -> list[Expr]:
    """Where an operation stores its results."""
    if isinstance(op, Reduce) and op.then is not None:
        return [op.then.dst]
    if isinstance(op, Reduce):
        return [*(o.dst for o in op.outputs), *(dst for dst, _ in op.stores)]
    return [op.dst]


def terms_of(op: Leaf) -> list[Expr]:
    """Every term that an operation reads or writes."""
    match op:
        case Map():
            read = [op.term]
        case Contract():
            read = [op.a, op.b, *op.rest, *(e for e in (op.by, op.sums) if e is not None)]
        case Reduce():
            read = [t for o in op.outputs for t in (o.term, o.init)]
            read += [term for _, term in op.stores]
            if op.then is not None:
                read.append(substitute(op.then.term, {o.dst: o.term for o in op.outputs}))
    return written(op) + read


def loads_of(op: Leaf, but: Sequence[Expr] = ()) -> list[Expr]:
    """The distinct loads in its terms, ``but`` some, in a fixed order."""
    terms = [t for t in terms_of(op) if t not in but]
    return [e for e in subterms(*terms) if e.kind == "load"]
