"""What the text of a graph means, read and computed apart from lumc, and how far from it a right
program may end.

Every element of a value carries a bound of its rounding error, in whatever order sums and products
are taken, and a doubt: what the law of NaN and infinity (docs/formats.md) leaves open.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PARTS = ("v", "err", "size", "top", "low", "doubt")
SURE, NO_NUMBER, OPEN = 0, 1, 2  # doubts: none; NaN or infinite, whichever; anything
NUMPY = {
    "f32": "f8", "f16": "f8", "bf16": "f8", "f64": "f8",
    "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1", "bool": "?",
    "u64": "u8", "u32": "u4", "u16": "u2", "u8": "u1",
}  # fmt: skip
BITS = {"f32": 24, "f16": 11, "bf16": 8, "f64": 53}
LARGEST = {"f32": 3.4028235e38, "f16": 65504.0, "bf16": 3.3895314e38, "f64": 1.7976931e308}
LEAST = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133, "f64": 5e-324}
NORMAL = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126, "f64": 2.0**-1022}
FLUSHED = {**LEAST, **{d: NORMAL[d] for d in ("f32", "bf16", "f64")}}  # f16 is computed in f32
ULPS = 4  # that an elementary function may be off by
SLACK = 4  # of the bounds, which hold to first order
FAR = 1e4  # where the period of the sine is more than its argument tells


@dataclass
class Value:
    """Elements (floats in float64), how large the terms were that made them and their greatest and
    least factor, bounds of their errors, and doubts."""

    v: Array
    dtype: str
    err: Array
    size: Array
    top: Array
    low: Array
    doubt: Array

    def __setattr__(self, name: str, value: Any) -> None:
        """Arrays, of rank 0 too; doubts are written, so each has its own."""
        if name == "doubt":
            value = np.array(value, np.uint8)
        super().__setattr__(name, value if name == "dtype" else np.asarray(value))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.v.shape

    def map(self, f: Callable[[Array], Array]) -> Value:
        parts = (self.err, self.size, self.top, self.low, self.doubt)
        return Value(f(self.v), self.dtype, *map(f, parts))


def exact(v: Any, dtype: str) -> Value:
    """Elements that are known as they are."""
    v = np.asarray(v)
    floats = dtype in BITS
    v = v.astype(NUMPY[dtype])
    size = np.abs(v) if floats else np.zeros(v.shape)
    size = np.where(np.isfinite(size), size, 0.0) if floats else size
    low = np.where(size > 0, size, 1.0)
    return Value(
        v, dtype, np.zeros(v.shape), size, np.array(size), low, np.zeros(v.shape, np.uint8)
    )


def rounded(v: Any, dtype: str) -> Value:
    """Numbers that a dtype may not hold exactly."""
    out = exact(v, dtype)
    if dtype in BITS:
        out.err = np.where(representable(out.v, dtype), 0.0, eps(dtype) * out.size + LEAST[dtype])
        out.doubt[np.isfinite(out.v) & (np.abs(out.v) > LARGEST[dtype])] = OPEN
    return out


def representable(v: Array, dtype: str) -> Array:
    if dtype == "f64":
        return np.ones(v.shape, bool)
    mantissa, power = np.frexp(np.where(np.isfinite(v), v, 0.0))
    steps = np.ldexp(mantissa, BITS[dtype])
    fine = power - BITS[dtype] >= math.frexp(LEAST[dtype])[1] - 1
    return (steps == np.rint(steps)) & (fine | (v == 0)) & ~(np.abs(v) > LARGEST[dtype])


def eps(dtype: str) -> float:
    return 2.0 ** -BITS[dtype]


@contextmanager
def flushing() -> Iterator[None]:
    """In this block numbers below the least normal one are zeros, as in bundles."""
    kept = dict(LEAST)
    LEAST.update(FLUSHED)
    try:
        yield
    finally:
        LEAST.update(kept)


def leaf(v: Array, dtype: str) -> Value:
    """Numbers as they are, or flushed."""
    out = exact(v, dtype)
    if dtype in BITS and LEAST[dtype] == NORMAL[dtype]:
        out.err = np.where(np.abs(out.v) < NORMAL[dtype], out.size, 0.0)
    return out


# ---- reading


@dataclass(frozen=True)
class Operand:
    """A value read at indices, a constant, or an index as a value."""

    source: str  # "" for a constant and an index
    dtype: str
    index: tuple[ast.expr, ...] = ()
    number: float | int | bool | None = None
    bounds: tuple[tuple[int, ast.expr, int], ...] = ()


@dataclass(frozen=True)
class Statement:
    """A node; of a state after an update, what is written and where."""

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]
    op: str
    operands: tuple[Operand, ...]
    over: tuple[str, int] | None
    update: tuple[str, tuple[ast.expr, ...], str, tuple[str, ...]] | None = None


@dataclass
class Entry:
    """A graph of a text."""

    name: str
    leaves: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    nodes: list[Statement] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    updates: list[tuple[str, tuple[ast.expr, ...], str, tuple[str, ...]]] = field(
        default_factory=list
    )


NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
LEAF = re.compile(rf"(input|state|weight) ({NAME}) (\w+)\[(.*?)\]")
NODE = re.compile(rf"({NAME}) (\w+)\[(.*?)\] = (\w+) (.*)")
SPECIAL = {"true": True, "false": False, "inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def parse(text: str) -> tuple[list[Entry], dict[str, tuple[str, tuple[int, ...]]]]:
    """The entries of a text without dims, and its states."""
    shared: dict[str, tuple[str, tuple[int, ...]]] = {}
    states: dict[str, tuple[str, tuple[int, ...]]] = {}
    entries: list[Entry] = []

    def current() -> Entry:
        if not entries:
            entries.append(Entry("main", dict(shared)))
        return entries[-1]

    for raw in text.split("\n")[1:]:
        line = raw.partition("#")[0].strip()
        if not line or line.startswith("file "):
            continue
        if line.startswith("entry "):
            entries.append(Entry(line.split()[1], dict(shared)))
        elif line.startswith("output "):
            name, _, value = line[7:].partition(" = ")
            current().outputs[name] = value
        elif line.startswith("update "):
            current().updates.append(_update(line))
        elif named := re.match(rf"({NAME}) = (update .*)", line):
            update = _update(named[2])
            known = current().leaves[update[0]][0]
            current().nodes.append(Statement(named[1], known, (), "update", (), None, update))
        elif leaf := LEAF.match(line):
            kind, name, dtype, dims = leaf.groups()
            known = dtype, tuple(int(n) for n in dims.split(", ") if n)
            if kind == "input":
                current().leaves[name] = known
            else:
                shared[name] = known
                if kind == "state":
                    states[name] = known
        else:
            current().nodes.append(_node(line, current()))
    return entries, states


def _update(line: str) -> tuple[str, tuple[ast.expr, ...], str, tuple[str, ...]]:
    found = re.fullmatch(rf"update ({NAME})\[(.*)\] = ({NAME})\[(.*)\]", line)
    assert found, line
    state, index, value, axes = found.groups()
    return state, _indices(index), value, tuple(a for a in axes.split(", ") if a)


def _node(line: str, entry: Entry) -> Statement:
    found = NODE.fullmatch(line)
    assert found, line
    name, dtype, axes, op, rest = found.groups()
    named = tuple((a.split(":")[0], int(a.split(":")[1])) for a in axes.split(", ") if a)
    over = None
    if op in ("sum", "max"):
        axis, _, rest = rest.partition(" of ")
        over = axis.split(":")[0], int(axis.split(":")[1])
    known = dict(entry.leaves) | {n.name: (n.dtype, ()) for n in entry.nodes}
    parts = _split(rest)
    operands = [_operand(p, known, "") for p in parts[:1]]
    operands += [_operand(p, known, operands[0].dtype) for p in parts[1:]]
    return Statement(name, dtype, named, op, tuple(operands), over)


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def _operand(text: str, known: Mapping[str, tuple[str, Any]], other: str) -> Operand:
    body, _, guard = text.partition(" if ")
    bounds = tuple(_bound(b) for b in guard.split(" and ") if b)
    if body.endswith("]"):
        name, _, index = body[:-1].partition("[")
        return Operand(name, known[name][0], _indices(index), None, bounds)
    dtype, inside = other, body
    if body.endswith(")") and (cast := re.match(r"(\w+)\(", body)):
        dtype, inside = cast[1], body[len(cast[0]) : -1]
    if inside in SPECIAL:
        return Operand("", dtype, (), SPECIAL[inside], bounds)
    if re.fullmatch(r"-?\d+", inside):
        return Operand("", dtype, (), int(inside), bounds)
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", inside, re.I):
        return Operand("", dtype, (), float(inside), bounds)
    return Operand("", dtype, _indices(inside), None, bounds)


def _bound(text: str) -> tuple[int, ast.expr, int]:
    low, index, high = re.fullmatch(r"(-?\d+) <= (.*) < (-?\d+)", text).groups()  # type: ignore[union-attr]
    return int(low), _indices(index)[0], int(high)


def _indices(text: str) -> tuple[ast.expr, ...]:
    tree = ast.parse(f"({text},)" if text else "()", mode="eval").body
    assert isinstance(tree, ast.Tuple)
    return tuple(tree.elts)


STEPS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


def number(e: ast.expr, grid: Mapping[str, Array]) -> Any:
    """An index expression over a grid of axes."""
    match e:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return grid[name]
        case ast.UnaryOp():
            return -number(e.operand, grid)
        case ast.BinOp():
            return STEPS[type(e.op)](number(e.left, grid), number(e.right, grid))
    raise AssertionError(ast.dump(e))


# ---- computing


@dataclass
class Result:
    """What an entry gives: outputs and the states that it writes."""

    values: dict[str, Value]


def evaluate(
    text: str, leaves: Callable[[str], Array], bf16: Callable[[Array], Array]
) -> dict[str, Result]:
    """By entry. ``leaves`` gives arrays by name, ``bf16`` turns bits into numbers."""
    entries, _ = parse(text)
    out = {}
    with np.errstate(all="ignore"):
        for entry in entries:
            values = {}
            for name, (dtype, _) in entry.leaves.items():
                array = leaves(name)
                is_bits = dtype == "bf16" and array.dtype == np.uint16
                values[name] = leaf(bf16(array) if is_bits else array, dtype)
            after = dict[str, Value]()
            for node in entry.nodes:
                if node.update:
                    _write(node.update, values, after)
                    values[node.name] = after[node.update[0]].map(np.array)
                else:
                    values[node.name] = _computed(node, values)
            found = {name: values[value] for name, value in entry.outputs.items()}
            for update in entry.updates:
                _write(update, values, after)
            out[entry.name] = Result(found | after)
    return out


def _write(
    update: tuple[str, tuple[ast.expr, ...], str, tuple[str, ...]],
    values: Mapping[str, Value],
    after: dict[str, Value],
) -> None:
    """An update, of a state as it is after those before it."""
    state, index, name, axes = update
    value = values[name]
    target = after.setdefault(state, values[state].map(np.array))
    grid = dict(zip(axes, np.indices(value.shape), strict=True))
    at = tuple(np.broadcast_to(number(e, grid), value.shape) for e in index)
    for part in PARTS:
        getattr(target, part)[at] = getattr(value, part)


def _computed(node: Statement, values: Mapping[str, Value]) -> Value:
    loops = [*node.axes, *([node.over] if node.over else [])]
    sizes = [n for _, n in loops]
    grid = dict(zip((a for a, _ in loops), np.indices(sizes), strict=True))
    args = [_read(o, grid, sizes, values) for o in node.operands]
    if node.over:
        out = _reduced(node.op, args[0])
    elif node.op == "contiguous":
        out = _cast(args[0], node.dtype)
    elif len(args) == 2:
        out = BINARY[node.op](*args)
    else:
        out = _unary(node.op, args[0])
    return _limited(out)


def _read(
    o: Operand, grid: Mapping[str, Array], sizes: Sequence[int], values: Mapping[str, Value]
) -> Value:
    inside: Array = np.ones(sizes, bool)
    for low, index, high in o.bounds:
        at = number(index, grid)
        inside = inside & (low <= at) & (at < high)
    if o.number is not None:
        full = rounded(np.full(sizes, o.number), o.dtype)
    elif not o.source:
        at = np.broadcast_to(np.asarray(number(o.index[0], grid)), sizes)
        full = rounded(at, o.dtype) if o.dtype in BITS else exact(at, o.dtype)
    else:
        source = values[o.source]
        blank = exact(np.zeros(sizes), o.dtype)
        where = tuple(np.broadcast_to(number(e, grid), sizes)[inside] for e in o.index)
        for part in PARTS:
            getattr(blank, part)[inside] = getattr(source, part)[where]
        return blank
    zero = exact(np.zeros(sizes), o.dtype)
    for part in PARTS:
        getattr(full, part)[~inside] = getattr(zero, part)[~inside]
    return full


def _limited(x: Value) -> Value:
    """With a doubt where some order of the same sums and products leaves the range of the dtype."""
    if x.dtype not in BITS:
        return x
    finite = np.isfinite(x.v)
    wide = (x.top > LARGEST[x.dtype] / 8) | (x.size > LARGEST[x.dtype] / 8)
    x.doubt[(wide | (np.abs(x.v) > LARGEST[x.dtype] / 8)) & finite] = OPEN
    narrow = (x.low < NORMAL[x.dtype] * 8) & finite
    x.doubt[narrow & (x.top > 256)] = OPEN
    x.err = x.err + np.where(narrow, LEAST[x.dtype] * 256, 0.0)
    x.doubt[finite & ~(x.err <= np.maximum(x.size, np.abs(x.v)) * 0.25 + LEAST[x.dtype] * 1024)] = (
        OPEN
    )
    return x


def _joined(
    v: Array, dtype: str, err: Array, size: Array, top: Array, low: Array, *of: Value
) -> Value:
    """A sum or product: NaN and infinity may be either, as other orders give the other."""
    doubt = np.maximum.reduce([x.doubt for x in of])
    if dtype in BITS:
        odd = ~np.isfinite(v)
        for x in of:
            odd = odd | ~np.isfinite(x.v)
        doubt = np.where(odd, np.maximum(doubt, NO_NUMBER), doubt).astype(np.uint8)
        doubt[np.isfinite(v) & odd] = OPEN
    clean = [np.where(np.isfinite(p), p, 0.0) for p in (err, size)]
    return Value(v, dtype, *clean, top, low, doubt)


def _add(a: Value, b: Value) -> Value:
    if a.dtype not in BITS:
        out = exact(a.v | b.v if a.dtype == "bool" else a.v + b.v, a.dtype)
        out.doubt = np.maximum(a.doubt, b.doubt)
        return out
    size = a.size + b.size
    err = a.err + b.err + eps(a.dtype) * size
    return _joined(a.v + b.v, a.dtype, err, size, a.top + b.top, np.minimum(a.low, b.low), a, b)


def _mul(a: Value, b: Value) -> Value:
    if a.dtype == "bool" and b.dtype != "bool":
        zero = exact(np.zeros(b.shape), b.dtype)
        parts = {p: np.where(a.v, getattr(b, p), getattr(zero, p)) for p in PARTS}
        out = Value(dtype=b.dtype, **parts)
        out.doubt = np.where(a.doubt > 0, OPEN, out.doubt).astype(np.uint8)
        return out
    if a.dtype not in BITS:
        out = exact(a.v & b.v if a.dtype == "bool" else a.v * b.v, a.dtype)
        out.doubt = np.maximum(a.doubt, b.doubt)
        return out
    size = a.size * b.size
    err = a.err * b.size + b.err * a.size + a.err * b.err + eps(a.dtype) * size
    top = np.maximum(a.top, 1) * np.maximum(b.top, 1)
    out = _joined(
        a.v * b.v, a.dtype, err, size, top, np.minimum(a.low, 1) * np.minimum(b.low, 1), a, b
    )
    for x, y in ((a, b), (b, a)):  # a factor outside of its bound may leave out the product
        out.doubt[(x.v == 0) & (x.size == 0) & ~np.isfinite(y.v)] = OPEN
    return out


def _strict(v: Array, dtype: str, err: Any, *of: Value) -> Value:
    """An operation that takes its operands as they are: what is in doubt there leaves all open."""
    out = exact(v, dtype)
    if dtype in BITS:
        out.err = np.where(np.isfinite(v), err, 0.0) + 0.0 * out.size
    doubt = np.maximum.reduce([x.doubt for x in of])
    out.doubt = np.where(doubt > 0, OPEN, 0).astype(np.uint8)
    return out


def _mod(a: Value, b: Value) -> Value:
    if a.dtype not in BITS:
        return _strict(np.fmod(a.v, b.v), a.dtype, 0, a, b)
    least = (np.abs(a.v) - a.err * SLACK) / (np.abs(b.v) + b.err * SLACK)
    most = (np.abs(a.v) + a.err * SLACK) / (np.abs(b.v) - b.err * SLACK)
    out = _strict(np.fmod(a.v, b.v), a.dtype, a.err + np.abs(np.trunc(most)) * b.err, a, b)
    sure = (a.err == 0) & (b.err == 0)
    none = np.abs(b.v) <= SLACK * b.err  # it may be zero
    out.doubt[~sure & (none | ~(np.trunc(least) == np.trunc(most)))] = OPEN
    return out


def _lt(a: Value, b: Value) -> Value:
    out = _strict(a.v < b.v, "bool", 0, a, b)
    if a.dtype in BITS:
        near = np.abs(a.v - b.v) <= SLACK * (a.err + b.err)
        out.doubt[near & (a.err + b.err > 0)] = OPEN
    return out


BINARY = {"add": _add, "mul": _mul, "mod": _mod, "lt": _lt}
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "log2": np.log2, "exp2": np.exp2, "sin": np.sin, "sqrt": np.sqrt, "recip": np.reciprocal,
}  # fmt: skip


def _unary(op: str, x: Value) -> Value:
    f, e = FUNCTIONS[op], x.err * SLACK
    v = f(x.v)
    ends = [np.abs(f(x.v + s) - v) for s in (e, -e)]
    err = np.where(e > 0, np.maximum(*ends), 0.0)
    if op == "sin":
        err = np.minimum(e, 2.0)
    inexact = 2 * ULPS * eps(x.dtype) * np.abs(v) + LEAST[x.dtype]
    out = _strict(v, x.dtype, err / SLACK + inexact, x)
    out.doubt[np.isfinite(v) & ~np.isfinite(err)] = OPEN
    around = (e > 0) & ~(np.abs(x.v) > e) & (op in ("log2", "sqrt", "recip"))
    out.doubt[around | ((op == "sin") & (np.abs(x.v) > FAR))] = OPEN
    if op in ("log2", "sqrt"):
        out.doubt[(e > 0) & (x.v < e)] = OPEN
    if op == "recip":  # the sign of a zero is open
        out.doubt = np.where(x.v == 0, np.maximum(out.doubt, NO_NUMBER), out.doubt)
    out.top, out.low = np.maximum(out.top, x.top), np.minimum(out.low, x.low)
    return out


def _cast(x: Value, dtype: str) -> Value:
    if dtype == "bool":
        out = _strict(x.v != 0, dtype, 0, x)
        out.doubt[(x.err > 0) & (np.abs(x.v) <= SLACK * x.err)] = OPEN
        return out
    if dtype in BITS and x.dtype in BITS:
        out = Value(x.v, dtype, x.err, x.size, x.top, x.low, np.array(x.doubt))
        kept = representable(x.v, dtype) & (x.err == 0)
        out.err = x.err + np.where(kept, 0.0, eps(dtype) * x.size + LEAST[dtype])
        return out
    if dtype in BITS:
        out = rounded(x.v, dtype)
        out.doubt = np.maximum(out.doubt, np.where(x.doubt > 0, OPEN, 0)).astype(np.uint8)
        return out
    if x.dtype in BITS:
        info = np.iinfo(NUMPY[dtype])
        e = x.err * SLACK
        inside = (x.v - e > float(info.min) - 1) & (x.v + e < float(info.max))
        whole = np.trunc(np.where(inside, x.v, 0.0))
        out = _strict(whole, dtype, 0, x)
        out.doubt[~inside | ((e > 0) & (np.trunc(x.v - e) != np.trunc(x.v + e)))] = OPEN
        return out
    out = exact(x.v.astype(NUMPY[dtype]), dtype)
    out.doubt = np.array(x.doubt)
    return out


def _reduced(op: str, x: Value) -> Value:
    n = x.shape[-1]
    if op == "sum":
        v = x.v.sum(-1, dtype=NUMPY[x.dtype])
        if x.dtype not in BITS:
            out = exact(v, x.dtype)
            out.doubt = x.doubt.max(-1, initial=0)
            return out
        size = x.size.sum(-1)
        inner = eps("f32") if x.dtype in ("f16", "bf16") else eps(x.dtype)
        err = x.err.sum(-1) + (n * inner + 4 * eps(x.dtype)) * size * (n > 1)
        low, top = x.low.min(-1, initial=1.0), x.top.sum(-1)
        total = Value(v, x.dtype, err, size, top, low, x.doubt.max(-1, initial=0).astype(np.uint8))
        odd = ~np.isfinite(x.v).all(-1)
        total.doubt = np.where(odd, np.maximum(total.doubt, NO_NUMBER), total.doubt)
        total.doubt[np.isfinite(v) & odd] = OPEN
        total.err = np.where(np.isfinite(err), err, 0.0)
        return total
    least = -np.inf if x.dtype in BITS else False
    if x.dtype not in (*BITS, "bool"):
        least = np.iinfo(NUMPY[x.dtype]).min
    out = _strict(x.v.max(-1, initial=least), x.dtype, x.err.max(-1, initial=0.0), exact(0, "i8"))
    out.doubt = np.where(x.doubt.max(-1, initial=0) > 0, OPEN, 0).astype(np.uint8)
    out.size = x.size.max(-1, initial=0.0)
    out.top, out.low = x.top.max(-1, initial=0.0), x.low.min(-1, initial=1.0)
    return out


# ---- judging


def wrong(got: Array, want: Value, ratio: float = 1.0) -> str:
    """What is wrong with a result, or nothing. This is the law of NaN and infinity: where sums and
    products met one, either may come out, but no number; in doubt beyond that, anything; elsewhere
    they stand in the same places. ``ratio`` is how much more precise the result should be."""
    got = np.asarray(got)
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    with np.errstate(all="ignore"):
        if want.dtype not in BITS:
            bad = (got != want.v) & (want.doubt == SURE)
        else:
            got = got.astype(np.float64)
            same = (got == want.v) | (np.isnan(got) & np.isnan(want.v))
            least = LEAST[want.dtype] * SLACK if ratio == 1 else 5e-324
            near = np.abs(got - want.v) <= SLACK * want.err * ratio + least
            both = np.isfinite(got) & np.isfinite(want.v)
            bad = ~same & ~(both & near) & (want.doubt == SURE)
            bad |= np.isfinite(got) & (want.doubt == NO_NUMBER)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} wrong, first {got[at]!r} != {want.v[at]!r} at {list(at)}; "
        f"may be off by {SLACK * want.err[at]:.2e}, doubt {want.doubt[at]}"
    )


def checked_share(want: Value) -> tuple[int, int]:
    """How many elements are judged, and how many there are."""
    return int((want.doubt < OPEN).sum()), want.v.size
