"""The canonical form of terms and kernels: equal kernels have one key, whatever the names.

Operands of commutative operations are ordered by a structural hash that sees no names; axes and
buffers are then numbered in order of first visit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from lumc.graph.expr import Expr, axis, bound_axes, make, rebuild, rewrite, subterms
from lumc.kernel.codec import encode
from lumc.kernel.instance import results
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, Root

LETTERS = "ijklmnop"  # of the axes of a result
COMMUTATIVE = ("add", "mul", "eq", "or")
T = TypeVar("T", str, int)


def sha(text: str) -> str:
    """16 hexadecimal digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def kernel_key(kernel: Kernel, target: Target) -> str:
    """The sha256 (16 digits) of a canonical kernel's text without names, and the target."""
    exprs = [e for root in kernel.roots for e in (*root.index, root.value)]
    visited = _visit(exprs, structural_hashes(exprs, kernel.told))[0]
    axes = {a: f"a{i}" for i, a in enumerate(visited)}
    nodes, roots = encode([rename(e, axes) for e in exprs])
    body = {
        "terms": [nodes, roots],
        "extents": [kernel.extent[a] for a in axes],
        "axes": [axes.get(a, "") for a in kernel.axes],
        "buffers": [[b.name, b.dtype.value, b.shape, b.constant] for b in kernel.buffers],
        "roots": [[r.buffer, len(r.index)] for r in kernel.roots],
        "target": [target.arch, target.flags, target.lanes, target.registers],
    }
    if few := [[b.name, b.bits] for b in kernel.buffers if b.bits]:
        body["bits"] = few
    if own := kernel.lengths:  # named as in the graph: equal keys are called with equal dims
        live = sorted((axes[a], str(e)) for a, e in own.live if a in axes)
        dims = sorted((d.name, d.lo, d.hi, d.multiple) for d in own.dims)
        body |= {"live": [live, dims]} if dims else {}
    return sha(json.dumps(body, sort_keys=True))


def canonical(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel with ordered operands, numbered buffers (b0.. read, out written) and axes named
    by what they are: schedules, which name them, go with the key from one model to another.

    Also gives the buffers' old names in the new argument order.
    """
    exprs = [e for root in kernel.roots for e in (*root.index, root.value)]
    ordered = order_operands(exprs, structural_hashes(exprs, kernel.told))
    axes, visited = _visit(ordered, structural_hashes(ordered, kernel.told))
    stored = kernel.stored
    old = (*(b for b in visited if b not in stored), *stored)
    new = [*(f"b{i}" for i in range(len(old) - len(stored))), *results(len(stored))]
    names = dict(zip(old, new, strict=True))
    left, roots = iter(ordered), []
    for r in kernel.roots:
        roots.append(Root(r.buffer, tuple(next(left) for _ in r.index), next(left)))
    buffers = tuple(kernel.buffer(b) for b in old)
    kernel = replace(kernel, roots=tuple(roots), buffers=buffers)
    return renamed(kernel, _axis_names(kernel, axes), names), old


def _axis_names(kernel: Kernel, visited: Sequence[str]) -> dict[str, str]:
    """i, j, .. of the result; k64_1, k3_2, .. of reductions, with their extents."""
    own = {a: LETTERS[n] if n < len(LETTERS) else f"i{n}" for n, a in enumerate(kernel.axes)}
    bound = [a for a in visited if a not in own]
    names = own | {a: f"k{kernel.extent[a]}_{n}" for n, a in enumerate(bound, 1)}
    dims = kernel.lengths.ranges
    return {a: f"{name}_axis" if name in dims else name for a, name in names.items()}


def renamed(kernel: Kernel, axes: Mapping[str, str], names: Mapping[str, str]) -> Kernel:
    """The same kernel over other axes and buffers; those without a new name keep the old one."""
    buffers = dict.fromkeys(replace(b, name=names.get(b.name, b.name)) for b in kernel.buffers)
    extent = {axes.get(a, a): n for a, n in kernel.extent.items()}
    roots = []
    for r in kernel.roots:
        index = tuple(rename(i, axes, names) for i in r.index)
        roots.append(Root(names.get(r.buffer, r.buffer), index, rename(r.value, axes, names)))
    own = tuple(axes.get(a, a) for a in kernel.axes)
    live = kernel.live and kernel.live.renamed(axes)
    return Kernel(kernel.name, own, extent, tuple(roots), tuple(buffers), live)


def order_operands(roots: Sequence[Expr], hashes: Mapping[Expr, str]) -> list[Expr]:
    """Operands of commutative operations in the order of their structural hashes."""

    def ordered(e: Expr, kids: list[Expr]) -> Expr:
        if e.kind == "bin" and e.attr[0] in COMMUTATIVE and hashes[e.kids[1]] < hashes[e.kids[0]]:
            kids.reverse()
        return rebuild(e, kids)

    memo: dict[Expr, Expr] = {}
    return [rewrite(root, memo, ordered) for root in roots]


def rename(e: Expr, axes: Mapping[str, str], buffers: Mapping[str, str] | None = None) -> Expr:
    """The same term over other axis names, bound ones included, and other buffer names; those
    without a new name keep the old one."""

    def renamed(t: Expr, kids: list[Expr]) -> Expr:
        match t.kind:
            case "axis":
                return axis(axes.get(t.attr[0], t.attr[0]))
            case "load" if buffers:
                return make("load", (buffers.get(t.attr[0], t.attr[0]), t.attr[1]), tuple(kids))
            case "red" | "wsum":
                names = tuple(axes.get(a, a) for a in bound_axes(t))
                attr = (t.attr[0], names) if t.kind == "red" else names
                return make(t.kind, attr, tuple(kids), names)
        return rebuild(t, kids)

    return rewrite(e, {}, renamed)


@lru_cache(maxsize=1 << 13)  # variants of a region, and its layouts, have most terms in common
def abstract(e: Expr) -> tuple[Expr, tuple[str, ...]]:
    """The term as a function of its free axes, which are numbered x0, x1, .. by first visit.

    Terms that differ in the names of free axes only give the same function.
    """
    visited = [a for a in _visit([e], {})[0] if a in e.free]
    return rename(e, {a: f"x{i}" for i, a in enumerate(visited)}), tuple(visited)


def structural_hashes(
    roots: Iterable[Expr], extent: Mapping[str, int | str], buffers: bool = False
) -> dict[Expr, str]:
    """A hash, 16 digits, of every term below the roots that sees extents (of live axes: lengths)
    but no names of axes, and those of buffers only if told."""
    return _structure(roots, extent, buffers, sha)


def structural_numbers(roots: Iterable[Expr], extent: Mapping[str, int | str]) -> dict[Expr, int]:
    """The same as small numbers, which say nothing elsewhere; with names of buffers."""
    known = dict[str, int]()
    return _structure(roots, extent, True, lambda said: known.setdefault(said, len(known)))


def _structure(
    roots: Iterable[Expr],
    extent: Mapping[str, int | str],
    buffers: bool,
    name: Callable[[str], T],
) -> dict[Expr, T]:
    """What ``name`` makes of the operation of every term and of the names of its kids."""
    out: dict[Expr, T] = {}
    parts: list[object]
    for e in subterms(*roots):
        kids = [out[k] for k in e.kids]
        match e.kind:
            case "axis":
                parts = ["axis", extent[e.attr[0]]]
            case "lin":
                parts = ["lin", e.attr[0], sorted(zip(kids, e.attr[1], strict=True))]
            case "load":
                parts = ["load", e.attr[not buffers :], kids]
            case "red" | "wsum":
                bound = sorted(
                    (extent[a] for a in bound_axes(e)), key=lambda n: (isinstance(n, str), n)
                )
                parts = [e.kind, e.attr[0] if e.kind == "red" else "", bound, kids]
            case _:
                if e.kind == "bin" and e.attr[0] in COMMUTATIVE:
                    kids.sort()
                parts = [e.kind, e.attr, kids]
        out[e] = name(repr(parts))
    return out


def _visit(roots: Sequence[Expr], hashes: Mapping[Expr, str]) -> tuple[list[str], list[str]]:
    """Axes and buffers in order of first visit, parents first, left to right."""
    axes: dict[str, None] = {}
    buffers: dict[str, None] = {}
    seen: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.kind == "axis":
            axes.setdefault(e.attr[0])
        elif e.kind == "load":
            buffers.setdefault(e.attr[0])
        axes.update((a, None) for a in bound_axes(e))
        kids = list(e.kids)
        if e.kind == "lin":  # its atoms are ordered by name
            order = sorted(range(len(kids)), key=lambda i: (hashes.get(kids[i], ""), e.attr[1][i]))
            kids = [kids[i] for i in order]
        stack.extend(reversed(kids))
    return list(axes), list(buffers)
