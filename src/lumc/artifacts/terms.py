"""What terms from files must obey, so that the code they become stays inside its buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lumc.errors import LumcError
from lumc.graph.expr import Expr, Range, bound_axes, bounds, subterms
from lumc.graph.ops import DType
from lumc.kernel.inside import escape
from lumc.kernel.target import Target
from lumc.kernel.term import INDEX_KINDS, Buffer, Kernel, dtype
from lumc.schedule.legal import check_kernel


def check_accesses(kernel: Kernel, target: Target) -> None:
    """Terms that mean something, names, and the proof that every load and store lies inside its
    buffer, whatever the axes are. Raises ValueError."""
    names = [b.name for b in kernel.buffers]
    terms = [e for r in kernel.roots for e in (*r.index, r.value)]
    dims = [d for d in kernel.lengths.dims if d.is_possible]
    known = {d.name: (d.values[0], d.values[-1]) for d in dims}
    check_terms(terms, kernel.buffers, kernel.extent, target.largest, known)
    if len(set(names)) < len(names) or not set(kernel.axes) <= set(kernel.extent):
        raise ValueError("a kernel's buffers or axes are malformed")
    for root in kernel.roots:
        to = kernel.buffer(root.buffer)
        if len(root.index) != len(to.shape) or dtype(root.value) is not to.dtype:
            raise ValueError(f"a root does not fit its buffer {to.name}")
    try:
        check_kernel(kernel)
    except LumcError as e:
        raise ValueError(e.what) from None
    if what := escape(kernel):
        raise ValueError(what)


def check_terms(
    terms: Iterable[Expr],
    buffers: Sequence[Buffer],
    extent: Mapping[str, int],
    largest: int,
    dims: Mapping[str, Range],
) -> None:
    """Every axis has an extent, every dim bounds, every load agrees with its buffer, every
    operation with its operands, and no index exceeds the largest on its way. Raises ValueError."""
    known = {b.name: b for b in buffers}
    spans = {a: (0, max(n - 1, 0)) for a, n in extent.items()} | dict(dims)
    for e in subterms(*terms):
        for a in (*bound_axes(e), *(e.attr if e.kind == "axis" else ())):
            if a not in extent:
                raise ValueError(f"axis {a} has no extent")
        if e.kind == "dim" and e.attr[0] not in dims:
            raise ValueError("a dim is not bound")
        if e.kind == "load":
            b = known.get(e.attr[0])
            if b is None or b.dtype.value != e.attr[1] or len(b.shape) != len(e.kids):
                raise ValueError(f"load from {e.attr[0]} does not fit any buffer")
        if e.kind == "lin" and 0 in e.attr[1]:
            raise ValueError("an index has a part that does not count")
        if e.kind == "lin" and not _by_data(e) and _reach(e, spans) > largest:
            raise ValueError("an index overflows")
        sums = [k for k in subterms(e.kids[0]) if k.kind == "lin"] if e.kind == "guard" else []
        if any(_reach(k, spans) >= 1 << 63 for k in sums):  # as two times what data says may be
            raise ValueError("a guard overflows")
        if not _fits(e, [dtype(k) for k in e.kids if k.kind not in INDEX_KINDS]):
            raise ValueError(f"{e.kind} {e.attr} of operands that it does not take")


def _reach(e: Expr, spans: Mapping[str, Range]) -> int:
    return max(map(abs, bounds(e, spans)))


def _by_data(e: Expr) -> bool:
    return any(below.kind == "dyn" for below in subterms(e))


def _fits(e: Expr, kinds: Sequence[DType]) -> bool:
    """Whether an operation takes operands of these dtypes."""
    match e.kind, e.attr, kinds:
        case "dyn", _, [a]:
            return a.is_int
        case "un", _, [a]:
            return a.is_float
        case "bin", ("sel",), [a, _]:
            return a is DType.BOOL
        case "bin", ("or",), [a, b]:
            return a is b is DType.BOOL
        case "bin", ("mod",), [a, b]:
            return a is b is not DType.BOOL
        case "bin", _, [a, b]:
            return a is b
        case "where", _, [a, b, c]:
            return a is DType.BOOL and b is c
        case "red", ("sum", _), [a]:
            return a is not DType.BOOL
        case "wsum", _, [a, b]:
            return a.is_float and a is b
    return True
