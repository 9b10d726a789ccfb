"""Rules as data: parsed from their text, instantiated at random, both sides evaluated.

A pattern variable stands for an arbitrary function of some axes: a load of an array of random
values. Axes have few names and small extents, so that conditions fail about as often as they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lumc.graph.expr import Expr, axis, bounds, index, num, substitute
from lumc.graph.expr import add as plus
from lumc.graph.expr import mul as times
from lumc.graph.ops import DType
from lumc.kernel import term
from lumc.oracle.term import evaluate_term
from lumc.search.egraph import literal
from lumc.search.saturate import rule_files

Sexp = Any  # a token or a list of them
AXES = ("i", "j", "k")
RULE_LINE = ":ruleset laws"
FLOAT = "f64"


@dataclass(frozen=True)
class Rule:
    """``left = right`` under ``conditions``; ``law`` is the comment behind it."""

    name: str
    text: str
    left: Sexp
    right: Sexp
    conditions: list[Sexp] = field(hash=False)
    law: str = ""

    @property
    def keeps_nan(self) -> bool:
        return "[finite]" not in self.law


def parse(text: str) -> Sexp:
    """The first s-expression of a text; strings keep their quotes."""
    tokens = iter(re.findall(r'"[^"]*"|[()]|[^\s()]+', text))

    def read(token: str) -> Sexp:
        if token != "(":
            return token
        out = []
        while (t := next(tokens)) != ")":
            out.append(read(t))
        return out

    return read(next(tokens))


def rule(line: str) -> Rule:
    body, _, law = line.partition("  ;")
    s = parse(body)
    options = {
        s[i]: s[i + 1] for i in range(3, len(s)) if str(s[i]).startswith(":") and i + 1 < len(s)
    }
    name = options[":name"].strip('"')
    if s[0] == "rewrite":
        return Rule(name, line, s[1], s[2], options.get(":when", []), law.strip())
    (_, e, left), *conditions = s[1]
    ((_, same, right),) = s[2]
    assert e == same
    return Rule(name, line, left, right, conditions, law.strip())


def all_rules() -> Iterator[Rule]:
    for text in rule_files().values():
        yield from (rule(line) for line in text.splitlines() if RULE_LINE in line)


class Violated(AssertionError):
    pass


@dataclass
class Instance:
    """Values of the pattern variables, made as the left side is read."""

    rng: np.random.Generator
    nan: bool
    extent: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {a: (0, max(n - 1, 0)) for a, n in self.extent.items()}

    # ---- random parts

    def some_axis(self) -> str:
        return str(self.rng.choice(AXES))

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        kind = DType(dtype)
        if kind.is_float:
            values = self.rng.integers(-4, 5, shape).astype(float)
            special = self.rng.random(shape) < (0.25 if self.nan else 0)
            pick = self.rng.choice([np.nan, np.inf, -np.inf], shape)
            self.arrays[name] = np.where(special, pick, values).astype(kind.numpy)
        elif kind is DType.BOOL:
            self.arrays[name] = self.rng.random(shape) < 0.5
        else:
            self.arrays[name] = self.rng.integers(-2, 5, shape).astype(kind.numpy)

    def value(self, name: str, dtype: str) -> Expr:
        axes = [a for a in AXES if self.rng.random() < 0.5]
        self.array(name, dtype, tuple(self.extent[a] for a in axes))
        return term.load(name, DType(dtype), *axes)

    def some_index(self) -> Expr:
        """An axis, a constant or a sum with non-negative coefficients."""
        draw = self.rng.random()
        if draw < 0.6:
            return axis(self.some_axis())
        if draw < 0.7:
            return num(int(self.rng.integers(0, 3)))
        return plus(self.some_axis(), times(self.some_axis(), 2), int(self.rng.integers(0, 2)))

    def dtype_name(self, pattern: Sexp, choices: tuple[str, ...]) -> str:
        if pattern.startswith('"'):
            return str(pattern.strip('"'))
        return str(self.bound.setdefault(pattern, str(self.rng.choice(choices))))

    # ---- the left side

    def read(self, p: Sexp, dtype: str = FLOAT) -> Expr:
        """The term of a pattern of sort E; unbound variables get random values.

        Values are f64 whatever a ``Const`` beside them says: only texts depend on its dtype.
        """
        if isinstance(p, str):
            if p not in self.bound:
                self.bound[p] = self.value(p, dtype)
            return self.bound[p]
        match p:
            case ["Bin", op, a, b]:
                op = op.strip('"')
                kinds = (dtype, dtype)
                if op in ("lt", "eq"):
                    kind = self.bound.setdefault("?compared", str(self.rng.choice(["i64", FLOAT])))
                    kinds = (kind, kind)
                elif op == "sel":
                    kinds = ("bool", dtype)
                elif op == "or":
                    kinds = ("bool", "bool")
                # an Iota decides what it is compared with
                if isinstance(a, list) and a[0] == "Iota":
                    first = self.read(a)
                    return term.binary(op, first, self.read(b, term.dtype(first).value))
                return term.binary(op, self.read(a, kinds[0]), self.read(b, kinds[1]))
            case ["Un", op, a]:
                return term.unary(op.strip('"'), self.read(a, dtype))
            case ["Cast", d, a]:
                made = DType(self.dtype_name(d, ("f64", "i64")))
                return term.cast(made, self.read(a, "i32" if made is not DType.F64 else "f32"))
            case ["Const", d, c]:
                name, number = self.dtype_name(d, (FLOAT, "f32")), self.number(c)
                if not 1e-45 < abs(number) < 3.4e38:
                    raise Violated(f"{number} is no Const: it overflows or vanishes as f32")
                return term.const(number, DType(name))
            case ["Lit", d, t]:
                d, t = d.strip('"'), t.strip('"')
                return term.const(literal(d, t), DType(d))
            case ["Iota", d, i]:
                return term.iota(
                    self.index(i), DType(self.dtype_name(d, ("i64", "i32", "i8", "u8")))
                )
            case ["Guard", i, lo, hi, b]:
                return term.guard(
                    self.index(i), self.integer(lo), self.integer(hi), self.read(b, dtype)
                )
            case ["Red", op, k, b]:
                return term.reduce(op.strip('"'), self.axis(k), self.read(b, dtype))
            case ["WSum", k, s, v]:
                return term.wsum(self.axis(k), self.read(s, dtype), self.read(v, dtype))
            case ["Load", b, t, l]:
                where = self.indices(l)
                name = self.bound.setdefault(b, f"buffer_{b}")
                kind = self.dtype_name(t, (dtype,))
                if name not in self.arrays:
                    shape = tuple(bounds(i, self.ranges)[1] + 1 for i in where)
                    self.array(name, kind, shape)
                return term.load(name, DType(kind), *where)
        raise ValueError(p)

    def number(self, c: str) -> float:
        if re.match(r"-?[0-9]", c):
            return float(c)
        return float(
            self.bound.setdefault(c, float(self.rng.choice([-2.0, -1.0, 0.5, 2.0, 1e20, 1e-30])))
        )

    def integer(self, c: str) -> int:
        if re.match(r"-?[0-9]", c):
            return int(c)
        return int(self.bound.setdefault(c, int(self.rng.integers(-1, 4))))

    def axis(self, k: str) -> str:
        return str(self.bound.setdefault(k, self.some_axis()))

    def index(self, p: Sexp) -> Expr:
        match p:
            case str():
                if p not in self.bound:
                    self.bound[p] = self.some_index()
                return index(self.bound[p])
            case ["IAx", k]:
                return axis(self.axis(k))
            case ["IDyn", e]:
                return term.dyn(self.read(e, "i64"))
        raise ValueError(p)

    def indices(self, p: Sexp) -> list[Expr]:
        match p:
            case str():
                if p not in self.bound:
                    self.bound[p] = [self.some_index() for _ in range(self.rng.integers(0, 3))]
                return list(self.bound[p])
            case ["ICons", i, rest]:
                return [self.index(i), *self.indices(rest)]
            case ["Put", l, k, i]:
                where = self.indices(l)
                return [substitute(e, {axis(self.axis(k)): self.index(i)}) for e in where]
        raise ValueError(p)

    # ---- conditions

    def holds(self, p: Sexp) -> bool:
        match p:
            case ["=", f, ["free" | "fi" | "fl" as kind, a]]:
                known = self.bound[a]
                parts = known if kind == "fl" else [index(known) if kind == "fi" else known]
                self.bound[f] = frozenset[str]().union(*(e.free for e in parts))
                return True
            case ["=", k, ["Axis", m, n]]:
                self.bound[m], self.bound[n] = self.bound[k], self.extent[self.bound[k]]
                return True
            case ["set-not-contains", f, k]:
                return self.bound[k] not in self.bound[f]
            case ["integer", a]:
                return term.dtype(self.bound[a]).is_int
            case ["!=", d, text]:
                return bool(self.bound[d] != text.strip('"'))
            case [">" | "<" as op, a, b]:
                x, y = self.arithmetic(a), self.arithmetic(b)
                return x > y if op == ">" else x < y
        raise ValueError(p)

    def arithmetic(self, p: Sexp) -> float:
        match p:
            case str():
                return float(p) if re.match(r"-?[0-9]", p) else float(self.bound[p])
            case ["abs", a]:
                return abs(self.arithmetic(a))
            case ["*", a, b]:
                return self.arithmetic(a) * self.arithmetic(b)
        raise ValueError(p)


def instantiate(r: Rule, rng: np.random.Generator, nan: bool) -> tuple[Instance, Expr, Expr] | None:
    """Both sides of a rule at random values, or None when a condition does not hold."""
    it = Instance(rng, nan, {a: int(rng.integers(0, 5)) for a in AXES})
    if "Iota" in r.text and rng.random() < 0.05:  # more than an i8 can count
        it.extent = {**dict.fromkeys(AXES, 1), str(rng.choice(AXES)): 300}
    is_list = isinstance(r.left, list) and r.left[0] == "Put"
    left = ["Load", "b", '"f64"', r.left] if is_list else r.left
    right = ["Load", "b", '"f64"', r.right] if is_list else r.right
    if is_list:  # an array for the indices before the replacement
        it.read(["Load", "b", '"f64"', r.left[1]])
    a = it.read(left)
    if not all(it.holds(c) for c in r.conditions):
        return None
    return it, a, it.read(computed(right, it))


def computed(p: Sexp, it: Instance) -> Sexp:
    """A right side with its arithmetic on constants done."""
    if isinstance(p, list):
        if p[0] == "Const" and isinstance(p[2], list):
            return [p[0], p[1], repr(it.arithmetic(p[2]))]
        return [computed(q, it) for q in p]
    return p


def check(r: Rule, instances: int, seed: int = 0) -> int:
    """Evaluate a rule at random instances; raises ``Violated``. How many met its conditions."""
    rng = np.random.default_rng(seed)
    met = 0
    for n in range(instances):
        made = instantiate(r, rng, nan=r.keeps_nan and n % 2 == 1)
        if made is None:
            continue
        met += 1
        it, a, b = made
        compare(it, a, b)
    return met


def compare(it: Instance, a: Expr, b: Expr) -> None:
    kinds = {term.dtype(e) for e in (a, b)}
    if len(kinds) > 1 and not all(k.is_float for k in kinds):
        raise Violated(f"{a} is {term.dtype(a)}, {b} is {term.dtype(b)}")
    (x, xs), (y, ys) = (evaluate_term(e, it.extent, it.arrays) for e in (a, b))
    x, y = spread(x, xs, it.extent), spread(y, ys, it.extent)
    same = np.isclose(x, y, rtol=1e-9, atol=1e-9, equal_nan=True) if x.dtype.kind == "f" else x == y
    if not same.all():
        raise Violated(f"{a} != {b}")


def spread(x: Any, axes: tuple[str, ...], extent: Mapping[str, int]) -> Any:
    """The value over all axes, in their order."""
    shape = [extent[a] if a in axes else 1 for a in AXES]
    return np.broadcast_to(x.reshape(shape), [extent[a] for a in AXES])
