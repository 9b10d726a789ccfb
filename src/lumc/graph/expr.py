"""Hash-consed expressions: index maps here, kernel bodies in ``lumc.kernel.term``.

An expression is ``(kind, attr, kids)``. Equal expressions are the same object, so equality and
hashing cost nothing however large the DAG. Index expressions are kept in normal form:

    axis NAME                 a named axis; its extent lives with whoever binds the name
    dim NAME                  a symbolic dim, an integer known at run time
    num C                     an integer
    lin (C, (c1, ..)) a1 ..   C + c1*a1 + ..   atoms distinct, ordered by text, no zero coefficient
    div C e, mod C e          floor division and modulo by a positive constant
    dyn e                     a data-dependent index: the value of a kernel term (gather)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from math import gcd
from typing import Any

Range = tuple[int, int]  # inclusive bounds of an index
ATOM = 200  # characters of an atom's text that order it among others
LARGE = 160  # nodes of an index that is not substituted into others: what it reads is stored
ENDLESS = 1 << 30
CUT = " .."  # where a text was cut


class Expr:
    """An interned node; build it with the functions of this module or of ``kernel.term``."""

    __slots__ = ("__weakref__", "attr", "free", "kids", "kind", "size")
    kind: str
    attr: tuple[Any, ...]
    kids: tuple[Expr, ...]
    free: frozenset[str]  # names of the axes that it depends on
    size: int  # nodes of its text, at most ENDLESS; a gather counts as one

    def __repr__(self) -> str:
        return text(self, 1000)


_interned: weakref.WeakValueDictionary[Hashable, Expr] = weakref.WeakValueDictionary()


def make(
    kind: str,
    attr: tuple[Any, ...] = (),
    kids: tuple[Expr, ...] = (),
    bound: Iterable[str] = (),
) -> Expr:
    """The node of these parts; ``bound`` are the axes that it binds in its kids."""
    # 0.0 == -0.0 and 1 == 1.0 == True in Python: the repr keeps such constants apart
    key = (kind, repr(attr) if kind == "const" else attr, kids)
    node = _interned.get(key)
    if node is None:
        node = object.__new__(Expr)
        node.kind, node.attr, node.kids = kind, attr, kids
        free = {attr[0]} if kind == "axis" else set[str]().union(*(k.free for k in kids))
        node.free = frozenset(free.difference(bound))
        node.size = 1 if kind == "dyn" else min(1 + sum(k.size for k in kids), ENDLESS)
        _interned[key] = node
    return node


# ---- index constructors


@lru_cache(maxsize=1 << 12)
def axis(name: str) -> Expr:
    """The index that walks along a named axis, from 0."""
    return make("axis", (name,))


def dim(name: str) -> Expr:
    """The value of a symbolic dim."""
    return make("dim", (name,))


@lru_cache(maxsize=1 << 12)
def num(value: int) -> Expr:
    """A constant index."""
    return make("num", (value,))


def index(value: Expr | str | int) -> Expr:
    """An index from an expression, an axis name or an integer."""
    if isinstance(value, Expr):
        return value
    return axis(value) if isinstance(value, str) else num(value)


def linear(e: Expr) -> tuple[int, dict[Expr, int]]:
    """``(constant, {atom: coefficient})`` of an index expression."""
    if e.kind == "num":
        return e.attr[0], {}
    if e.kind == "lin":
        return e.attr[0], dict(zip(e.kids, e.attr[1], strict=True))
    return 0, {e: 1}


def from_linear(constant: int, coefs: Mapping[Expr, int]) -> Expr:
    """``constant + coef * atom + ..`` in normal form, what ``linear`` takes apart."""
    atoms = [a for a, c in coefs.items() if c]
    if len(atoms) > 1:
        atoms.sort(key=_place)
    if not atoms:
        return num(constant)
    if constant == 0 and len(atoms) == 1 and coefs[atoms[0]] == 1:
        return atoms[0]
    return make("lin", (constant, tuple(coefs[a] for a in atoms)), tuple(atoms))


def _place(atom: Expr) -> tuple[str, str]:
    """Where an atom stands in a sum: by its text, however large the term of a gather is."""
    start = text(atom, ATOM)
    return start, digest(atom) if start.endswith(CUT) else ""


def add(*terms: Expr | str | int) -> Expr:
    """The sum of indices; texts are names of axes."""
    return combine((index(term), 1) for term in terms)


def combine(terms: Iterable[tuple[Expr, int]], constant: int = 0) -> Expr:
    """The sum of a constant and of multiples of indices."""
    coefs = dict[Expr, int]()
    for term, factor in terms:
        c, atoms = linear(term)
        constant += c * factor
        for atom, coef in atoms.items():
            coefs[atom] = coefs.get(atom, 0) + coef * factor
    return from_linear(constant, coefs)


def mul(e: Expr | str | int, factor: int) -> Expr:
    """An index times an integer."""
    return combine([(index(e), factor)])


def is_large(index: Iterable[Expr]) -> bool:
    """Whether views of views would multiply their texts without end if these were substituted."""
    return any(i.size > LARGE for i in index)


def bounds(e: Expr, ranges: Mapping[str, Range], known: dict[Expr, Range] | None = None) -> Range:
    """Inclusive bounds of an index; ``ranges`` bounds its axes and dims by name.

    An unknown name (or a data-dependent index) is unbounded: +-2**62. ``known`` are those of
    indices below others, seen before: views of views are DAGs, much larger as trees.
    """
    if e.kind == "num":
        return e.attr[0], e.attr[0]
    lo, hi = -(2**62), 2**62
    if e.kind in ("axis", "dim"):
        return ranges.get(e.attr[0], (lo, hi))
    known = {} if known is None else known
    if e in known:
        return known[e]
    if e.kind == "lin":
        lo = hi = e.attr[0]
        for atom, coef in zip(e.kids, e.attr[1], strict=True):
            a, b = bounds(atom, ranges, known)
            lo, hi = lo + min(a * coef, b * coef), hi + max(a * coef, b * coef)
    elif e.kind in ("div", "mod"):
        lo, hi = bounds(e.kids[0], ranges, known)
        if e.kind == "div":
            lo, hi = lo // e.attr[0], hi // e.attr[0]
        elif lo < 0 or hi >= e.attr[0]:
            lo, hi = 0, e.attr[0] - 1
    return known.setdefault(e, (lo, hi))


def index_value(e: Expr, axes: Mapping[str, Any]) -> Any:
    """The value of an index for values of its axes: integers, or numpy arrays that broadcast.
    Raises ValueError for a dim or a gather."""
    if e.kind == "axis":
        return axes[e.attr[0]]
    kids = [index_value(k, axes) for k in e.kids]
    match e.kind:
        case "num":
            return e.attr[0]
        case "lin":
            return sum((c * k for c, k in zip(e.attr[1], kids, strict=True)), e.attr[0])
        case "div":
            return kids[0] // e.attr[0]
        case "mod":
            return kids[0] % e.attr[0]
    raise ValueError(f"{e} is no index of axes")


def divmod_(e: Expr, divisor: int, ranges: Mapping[str, Range]) -> tuple[Expr, Expr]:
    """``(e // divisor, e % divisor)`` for a divisor > 0, exact where bounds prove it.

    Splits the sum into multiples of the divisor and a remainder proven to lie in [0, divisor).
    ``ranges`` are inclusive bounds of axes and dims, by name.
    """
    if divisor == 1:
        return e, num(0)
    constant, coefs = linear(e)
    whole = from_linear(
        constant // divisor, {a: c // divisor for a, c in coefs.items() if c % divisor == 0}
    )
    rest = from_linear(constant % divisor, {a: c for a, c in coefs.items() if c % divisor})
    lo, hi = bounds(rest, ranges)
    if lo >= 0 and hi < divisor:
        return whole, rest
    constant, coefs = linear(rest)
    for step in sorted({gcd(divisor, c) for c in coefs.values()} - {1, divisor}, reverse=True):
        # (step*x + r) // divisor = x // (divisor / step) where 0 <= r < step
        low = from_linear(constant % step, {a: c for a, c in coefs.items() if c % step})
        lo, hi = bounds(low, ranges)
        if lo >= 0 and hi < step:
            parts = {a: c // step for a, c in coefs.items() if c % step == 0}
            q, r = divmod_(from_linear(constant // step, parts), divisor // step, ranges)
            return add(whole, q), add(mul(r, step), low)
    if rest.kind == "mod" and rest.attr[0] % divisor == 0:  # of x % (a*b) in terms of x
        high, low = divmod_(rest.kids[0], divisor, ranges)
        return add(whole, mod(high, rest.attr[0] // divisor, ranges)), low
    if rest.kind == "div":  # (x // a) // b = x // (a*b)
        inner, a = rest.kids[0], rest.attr[0]
        quotient = make("div", (a * divisor,), (inner,))
    else:
        quotient = make("div", (divisor,), (rest,))
    return add(whole, quotient), make("mod", (divisor,), (rest,))


def floordiv(e: Expr | str | int, divisor: int, ranges: Mapping[str, Range]) -> Expr:
    """``e // divisor``, rounded down, as ``divmod_`` simplifies it."""
    return divmod_(index(e), divisor, ranges)[0]


def mod(e: Expr | str | int, divisor: int, ranges: Mapping[str, Range]) -> Expr:
    """``e % divisor``, in [0, divisor), as ``divmod_`` simplifies it."""
    return divmod_(index(e), divisor, ranges)[1]


def simplify(e: Expr, ranges: Mapping[str, Range]) -> Expr:
    """The normal form that the inclusive bounds of axes and dims allow: div and mod are resolved,
    split indices rejoined."""
    if not e.kids or (e.kind == "lin" and not any(k.kids for k in e.kids)):
        return e  # most are axes, or sums of them

    def simpler(node: Expr, kids: list[Expr]) -> Expr:
        if node.kind in ("div", "mod"):
            return divmod_(kids[0], node.attr[0], ranges)[node.kind == "mod"]
        return _rejoin(rebuild(node, kids), ranges) if node.kind == "lin" else node

    return rewrite(e, {d: d for d in subterms(e) if d.kind == "dyn"}, simpler)


def _rejoin(e: Expr, ranges: Mapping[str, Range]) -> Expr:
    """Undo a split: ``q*c*(x // c) + q*(x % c) = q*x``, ``q*(x % c) - q*x = -q*c*(x // c)``."""
    _, coefs = linear(e)
    for atom, q in coefs.items():
        if atom.kind != "mod":
            continue
        x, c = atom.kids[0], atom.attr[0]
        quotient = divmod_(x, c, ranges)[0]
        if coefs.get(quotient) == q * c:
            return _rejoin(add(e, mul(x, q), mul(atom, -q), mul(quotient, -q * c)), ranges)
        if x.free and all(coefs.get(a) == -q * n for a, n in linear(x)[1].items()):
            return _rejoin(add(e, mul(x, q), mul(atom, -q), mul(quotient, -q * c)), ranges)
    return e


# ---- traversal, for index expressions and kernel terms alike


def rebuild(e: Expr, kids: Sequence[Expr]) -> Expr:
    """The same node over other kids; sums are brought back to normal form."""
    if tuple(kids) == e.kids:
        return e
    if e.kind == "lin":
        return combine(zip(kids, e.attr[1], strict=True), e.attr[0])
    if e.kind in ("div", "mod") and kids[0].kind == "num":
        value = kids[0].attr[0]
        return num(value // e.attr[0] if e.kind == "div" else value % e.attr[0])
    return make(e.kind, e.attr, tuple(kids), bound_axes(e))


def bound_axes(e: Expr) -> tuple[str, ...]:
    """The axes that this node binds in its kids (reductions of kernel terms)."""
    if e.kind == "red":
        axes: tuple[str, ...] = e.attr[1]
        return axes
    return (e.attr[0],) if e.kind == "wsum" else ()


def substitute(e: Expr, replacement: Mapping[Expr, Expr]) -> Expr:
    """Replace whole sub-expressions, outermost first."""
    if not e.kids:
        return replacement.get(e, e)
    return rewrite(e, dict(replacement))


def rewrite(
    e: Expr, memo: dict[Expr, Expr], change: Callable[[Expr, list[Expr]], Expr] = rebuild
) -> Expr:
    """``e`` with every node below it as ``change`` makes it over its new kids, inner ones first
    and each once. ``memo`` gives some of them, below which nothing is looked at, and then has all.
    Not recursive: kernel terms may be deeper than Python's stack.
    """
    for node in below((e,), memo) if memo else subterms(e):
        kids = [memo[k] for k in node.kids]
        memo[node] = node if change is rebuild and tuple(kids) == node.kids else change(node, kids)
    return memo[e]


@lru_cache(maxsize=1 << 13)  # passes ask again and again; nodes are interned and never change
def subterms(*roots: Expr) -> tuple[Expr, ...]:
    """Every distinct node below and including the roots, kids first, in a fixed order."""
    return tuple(below(roots, ()))


def below(roots: Iterable[Expr], but: Container[Expr]) -> list[Expr]:
    """The same without some nodes, and what is only below them."""
    seen: dict[Expr, None] = {}
    path, left = list[Expr](), [iter(roots)]  # to a node, and what is to come at each level
    while left:
        for node in left[-1]:
            if node in seen or node in but:
                continue
            if node.kids:
                path.append(node)
                left.append(iter(node.kids))
                break
            seen[node] = None
        else:
            left.pop()
            if path:
                seen[path.pop()] = None
    return list(seen)


def digest(e: Expr) -> str:
    """64 hexadecimal digits: the same for equal nodes in every process, different for others."""
    known: dict[Expr, str] = {}
    for t in subterms(e):
        said = repr((t.kind, t.attr, [known[k] for k in t.kids]))
        known[t] = sha256(said.encode()).hexdigest()
    return known[e]


def text(e: Expr, most: int | None = None) -> str:
    """One line: index expressions as in the ``.lg`` form, kernel terms as calls.

    A term is a DAG and its text is a tree, which may be exponentially larger: with ``most``, no
    more than so many characters are made of any term below, and ``CUT`` ends a text that was cut.
    """
    known: dict[Expr, str] = {}
    end = None if most is None else most + 1
    for t in subterms(e):
        known[t] = _text(t, known.__getitem__)[:end]  # the start of a text needs those of its parts
    whole = known[e]
    return whole if most is None or len(whole) <= most else whole[: most - len(CUT)] + CUT


def _text(e: Expr, of: Callable[[Expr], str]) -> str:
    """The text of a node ``of`` those of its kids."""
    kids = [of(k) for k in e.kids]
    match e.kind:
        case "axis" | "dim" | "num":
            return str(e.attr[0])
        case "lin":
            return _linear_text(e, of)
        case "div" | "mod":
            sign = "//" if e.kind == "div" else "%"
            return f"{f'({kids[0]})' if e.kids[0].kind == 'lin' else kids[0]} {sign} {e.attr[0]}"
        case "dyn":
            return f"<{kids[0]}>"
        case "load":
            return f"{e.attr[0]}[{', '.join(kids)}]"
        case "const":
            return repr(e.attr[1])
        case "guard":
            return f"({kids[1]} if {e.attr[0]} <= {kids[0]} < {e.attr[1]})"
        case "red":
            return f"{e.attr[0]} {' '.join(e.attr[1])}. ({kids[0]})"
        case "wsum":
            return f"wsum {e.attr[0]}. ({kids[0]}; {kids[1]})"
    return f"{e.attr[0] if e.attr else e.kind}({', '.join(kids)})"


def _linear_text(e: Expr, of: Callable[[Expr], str]) -> str:
    def product(atom: Expr, factor: int) -> str:
        body = f"({of(atom)})" if atom.kind in ("div", "mod") else of(atom)
        return body if factor == 1 else f"{factor}*{body}"

    return signed_sum(e, product)


def signed_sum(e: Expr, product: Callable[[Expr, int], str]) -> str:
    """A sum of kind ``lin`` with its signs; ``product`` spells an atom times a positive factor."""
    out, (constant, coefs) = "", e.attr
    for atom, coef in zip(e.kids, coefs, strict=True):
        sign = (" - " if out else "-") if coef < 0 else (" + " if out else "")
        out += sign + product(atom, abs(coef))
    return out + (f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else "")
