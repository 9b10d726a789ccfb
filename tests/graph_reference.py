"""What a graph means, as plainly as possible: every node in full, every operand by fancy indexing.

Also random graphs: every primitive, dtype, and kind of index map, with values that are exact.
"""

import numpy as np

from lumc.graph.builder import Builder
from lumc.graph.expr import add, axis, floordiv, index, mod, mul
from lumc.graph.graph import Bound, Iota, Read, Scalar, Update
from lumc.graph.ops import BINARY, FLOATS, REDUCE, UNARY, DType, Op, from_bf16, to_bf16

UFUNCS = {
    Op.LOG2: np.log2, Op.EXP2: np.exp2, Op.SIN: np.sin, Op.SQRT: np.sqrt,
    Op.RECIP: lambda x: 1 / x, Op.ADD: np.add, Op.MOD: np.fmod, Op.LT: np.less,
}  # fmt: skip
DTYPES = tuple(DType)


def work_dtype(dtype, declared):
    if dtype.is_float and not declared:
        return np.dtype("f8")
    return np.dtype("f4") if dtype in (DType.F16, DType.BF16) else dtype.numpy


def rounded(x, dtype, declared):
    if declared and dtype is DType.F16:
        x = np.asarray(x).astype("f2")
    if declared and dtype is DType.BF16:
        x = from_bf16(to_bf16(np.asarray(x, "f4")))
    return np.asarray(x).astype(work_dtype(dtype, declared))


def value_of(e, grid):
    """An index expression by Python's own arithmetic, point by point."""
    match e.kind:
        case "num":
            return e.attr[0]
        case "axis" | "dim":
            return grid[e.attr[0]]
        case "lin":
            return e.attr[0] + sum(
                c * value_of(k, grid) for k, c in zip(e.kids, e.attr[1], strict=True)
            )
        case "div":
            return value_of(e.kids[0], grid) // e.attr[0]
        case "mod":
            return value_of(e.kids[0], grid) % e.attr[0]
    raise AssertionError(e.kind)


def reference(graph, entry, inputs, states=None, declared=False):
    entry, values = graph.entry(entry), {}
    given = {n: inputs[n.name] for n in entry.inputs}
    given |= {s: (states or {}).get(s.name, np.zeros(s.shape, s.dtype.numpy)) for s in graph.states}
    for n, x in given.items():
        x = from_bf16(x) if n.dtype is DType.BF16 and x.dtype == np.uint16 else x
        values[n] = x.astype(work_dtype(n.dtype, declared))
    after = {s.name: np.array(values[s]) for s in graph.states}
    for n in entry.nodes:
        if n.op == "update":
            write(n.write, values, after)
            values[n] = np.array(after[n.home.name])
        else:
            values[n] = node_value(n, values, declared)
    for u in entry.updates:
        write(u, values, after)
    return {name: values[v] for name, v in entry.outputs}, after


def write(u, values, after):
    for point in np.ndindex(*u.value.shape):
        at = dict(zip(u.value.axes, point, strict=True))
        after[u.state.name][tuple(value_of(e, at) for e in u.index)] = values[u.value][point]


def node_value(n, values, declared):
    sizes = [e for _, e in n.loops]
    grids = np.indices(sizes) if sizes else []
    grid = dict(zip((a for a, _ in n.loops), grids, strict=True))
    args = [operand_value(o, grid, sizes, values, declared) for o in n.operands]
    with np.errstate(all="ignore"):
        if n.op is Op.CONTIGUOUS:
            return rounded(args[0] != 0 if n.dtype is DType.BOOL else args[0], n.dtype, declared)
        if n.op is Op.MUL:
            a, b = args
            select = n.operands[0].dtype is DType.BOOL
            return rounded(np.where(a, b, np.zeros_like(b)) if select else a * b, n.dtype, declared)
        if n.op is Op.SUM:
            total = np.zeros(n.shape, args[0].dtype)
            for i in range(sizes[-1]):
                total = total + args[0][..., i]
            return rounded(total, n.dtype, declared)
        if n.op is Op.MAX:
            low = -np.inf if n.dtype.is_float else n.dtype.limits[0] if n.dtype.is_int else False
            best = np.full(n.shape, low, args[0].dtype)
            for i in range(sizes[-1]):
                best = np.maximum(best, args[0][..., i])
            return rounded(best, n.dtype, declared)
        return rounded(UFUNCS[n.op](*args), n.dtype, declared)


def operand_value(o, grid, sizes, values, declared):
    work = work_dtype(o.dtype, declared)
    inside = np.ones(sizes, bool)
    for b in o.bounds:
        at = value_of(b.index, grid)
        inside = inside & (b.lo <= at) & (at < b.hi)
    if isinstance(o, Scalar):
        full = np.full(sizes, o.value, work)
    elif isinstance(o, Iota):
        full = np.broadcast_to(np.asarray(value_of(o.index, grid)).astype(work), sizes)
    else:
        full = np.zeros(sizes, work)
        at = [np.broadcast_to(value_of(e, grid), sizes)[inside] for e in o.index]
        full[inside] = values[o.source][tuple(at)]
    return np.where(inside, full, work.type(0))


# ---- random graphs


def random_array(rng, dtype, shape, special=True):
    """Distinct-looking values with few bits, so that sums and products are exact."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_int:
        lo, hi = (-100, 101) if dtype is not DType.U8 else (0, 256)
        return rng.integers(lo, hi, shape).astype(dtype.numpy)
    x = rng.integers(-40, 41, shape) / 8.0
    if special and rng.random() < 0.3:
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.inf, -np.inf, np.nan, -0.0]), x)
    return to_bf16(x) if dtype is DType.BF16 else x.astype(dtype.numpy)


class RandomGraph:
    """``graph``, ``inputs`` and ``states`` drawn by ``rng``."""

    def __init__(self, rng, dtypes=DTYPES, nodes=8, special=True):
        self.rng, self.dtypes = rng, dtypes
        self.b, self.exact = Builder(), []
        self.inputs, self.states = {}, {}
        for i in range(rng.integers(1, 4)):
            self.leaf("input", f"x{i}", self.inputs, special)
        if rng.random() < 0.4:
            self.leaf("state", "st", self.states, special)
        for _ in range(rng.integers(1, nodes + 1)):
            self.node()
            for s in self.b.states if rng.random() < 0.2 else ():
                self.b.updated(self.update(s))  # nodes that follow may read any of them
        made = [n for n in self.b.nodes if not n.is_leaf]
        self.b.outputs = [(f"y{i}", n) for i, n in enumerate(made) if rng.random() < 0.4]
        self.b.outputs.append(("last", made[-1]))
        self.b.updates = [self.update(s) for s in self.b.states]
        self.b.finish()
        self.graph = self.b.graph()

    def pick(self, items):
        return items[self.rng.integers(len(items))]

    def size(self):
        return int(self.pick([0, 1, 1, 2, 3, 3, 5, 7])) if self.rng.random() < 0.5 else 3

    def leaf(self, kind, name, arrays, special):
        dtype = self.pick(self.dtypes)
        shape = tuple(self.size() for _ in range(self.rng.integers(0, 4)))
        node = self.b.leaf(kind, name, dtype, shape)
        arrays[name] = random_array(self.rng, dtype, shape, special)
        self.exact.append(node)

    @property
    def tensors(self):
        return [*self.b.inputs, *self.b.states, *self.b.nodes]

    def expr(self, loops):
        e = index(int(self.rng.integers(-3, 4)))
        for a, _ in loops:
            if self.rng.random() < 0.6:
                e = add(e, mul(axis(a), int(self.pick([1, 1, 1, -1, 2, 3, -2]))))
        kind = self.rng.random()
        if kind < 0.15:
            return mod(e, int(self.rng.integers(1, 6)), {})
        if kind < 0.3:
            return floordiv(e, int(self.rng.integers(1, 5)), {})
        return e

    def bounds(self, loops, chance=0.15):
        if self.rng.random() > chance:
            return ()
        lo = int(self.rng.integers(-2, 3))
        return (Bound(self.expr(loops), lo, lo + int(self.rng.integers(0, 5))),)

    def read(self, source, loops):
        where, guards = [], list(self.bounds(loops))
        for size in source.shape:
            plain = [a for a, e in loops if e == size]
            if plain and self.rng.random() < 0.7:
                where.append(axis(self.pick(plain)))
            else:
                where.append(self.expr(loops))
                guards.append(Bound(where[-1], 0, size))
        return Read(source, tuple(where), tuple(guards))

    def operand(self, dtype, loops):
        kind = self.rng.random()
        if kind < 0.1:
            value = random_array(self.rng, dtype, ())
            value = from_bf16(value) if dtype is DType.BF16 else value
            return Scalar(dtype, value.item(), self.bounds(loops))
        if kind < 0.2 and dtype is not DType.BOOL:
            return Iota(dtype, self.expr(loops), self.bounds(loops))
        same = [t for t in self.tensors if t.dtype is dtype]
        source = self.pick(same) if same else self.cast(dtype)
        return self.read(source, loops)

    def cast(self, dtype):
        choice = [t for t in self.exact if t.dtype.is_float == dtype.is_float] or self.exact
        whole = dtype.is_int  # floats with a defined integer value only
        source = self.pick([t for t in choice if not whole or not t.dtype.is_float] or [None])
        if source is None:
            return self.b.node(Op.CONTIGUOUS, [Scalar(dtype, 1)], [])
        loops = [(f"c{i}", e) for i, e in enumerate(source.shape)]
        o = Read(source, tuple(axis(a) for a, _ in loops))
        return self.b.node(Op.CONTIGUOUS, [o], loops, dtype=dtype)

    def node(self):
        loops = [(a, self.size()) for a in "ijk"[: self.rng.integers(0, 4)]]
        tensors = [t for t in self.tensors if t in self.exact]
        dtype = self.pick(tensors).dtype
        floats = dtype in FLOATS
        ops = [Op.ADD, Op.MUL, Op.MUL, Op.MAX, Op.CONTIGUOUS]
        ops += [] if dtype is DType.BOOL else [Op.SUM, Op.SUM, Op.SUM]
        ops += UNARY if floats else ()
        exact = all(t in self.exact for t in self.tensors if t.dtype is dtype)
        if exact:  # a rounding difference may not become a jump
            ops += [Op.LT] if dtype is DType.BOOL else [Op.LT, Op.MOD]
        op = self.pick(ops)
        reduced = ("r", self.size()) if op in REDUCE else None
        over = [*loops, reduced] if reduced else loops
        if op is Op.MUL and self.rng.random() < 0.3:
            operands = [self.operand(DType.BOOL, over), self.operand(dtype, over)]
        else:
            operands = [self.operand(dtype, over) for _ in range(2 if op in BINARY else 1)]
        to = None
        if op is Op.CONTIGUOUS:
            options = [d for d in self.dtypes if not floats or d in FLOATS]
            to = self.pick(options or [dtype])
        n = self.b.node(op, operands, loops, reduced, to)
        if exact and op not in UNARY:
            self.exact.append(n)
        if op in (Op.MUL, Op.SUM) and self.rng.random() < 0.6:  # what the oracle contracts
            self.sum_of(n)

    def sum_of(self, n):
        if not n.axes or n.dtype is DType.BOOL:
            return
        loops = list(zip(n.axes, n.shape, strict=True))
        over = loops.pop(int(self.rng.integers(len(loops))))
        read = Read(n, tuple(axis(a) for a in n.axes), self.bounds([*loops, over], 0.1))
        s = self.b.node(Op.SUM, [read], loops, over)
        if n in self.exact:
            self.exact.append(s)

    def update(self, state):
        names = ["x", "y", "z"][: len(state.shape)]
        sizes = [int(self.rng.integers(0, e + 1)) for e in state.shape]
        free = [e - n for e, n in zip(state.shape, sizes, strict=True)]
        loops = list(zip(names, sizes, strict=True))
        value = self.b.node(Op.CONTIGUOUS, [self.operand(state.dtype, loops)], loops)
        index = tuple(
            add(a, int(self.rng.integers(0, n + 1))) for a, n in zip(names, free, strict=True)
        )
        return Update(state, index, value)


def close(got, want, exact=False, rtol=1e-9):
    """Equal as far as reordering allows; NaN and infinities in the same places."""
    assert got.shape == want.shape
    got, want = np.asarray(got), np.asarray(want)
    if exact or got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = finite.max() if finite.size else 1.0
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale, equal_nan=True)
