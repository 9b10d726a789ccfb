"""Random graphs as texts: every primitive, dtype and kind of index map, extents of 0 and 1, guards,
several outputs, states that are read and written. Names of leaves say what values they get."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

FLOATS, WHOLE = (
    ("f32", "f64", "f16", "bf16"),
    ("i64", "i32", "i8", "u8", "i16", "u16", "u32", "u64"),
)
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 20, 33)
MAX_POINTS, MAX_SIZE = 30_000, 5_000
FLOAT_KINDS = ("real", "real", "real", "pos", "whole", "special", "tiny", "huge")
CONSTANTS = {
    "f": ("0.5", "2.0", "-1.0", "0.1", "-3.5", "1e-3", "0.0", "1.0"),
    "odd": ("inf", "-inf", "nan", "1e-30", "1e30"),
    "i": ("1", "2", "3", "0", "5"),
    "s": ("-1", "-7"),
}
Loops = list[tuple[str, int]]


@dataclass
class Tensor:
    """A value of the graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    leaf: bool = False


@dataclass
class Text:
    """One graph that is being written; ``number`` makes its names its own."""

    draw: random.Random
    number: int = 0
    plain: bool = False  # values that are all finite
    shared: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    serial: int = 0

    def pick(self, items: Sequence[str]) -> str:
        return self.draw.choice(items)

    def chance(self, percent: float) -> bool:
        return self.draw.random() * 100 < percent

    def extent(self) -> int:
        return 0 if self.chance(2) else self.draw.choice(EXTENTS)

    def shape(self, most: int = 4) -> tuple[int, ...]:
        rank = self.draw.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)[: most * 2 + 1])
        shape = [self.extent() for _ in range(rank)]
        while math.prod(shape) > MAX_SIZE:
            shape[shape.index(max(shape))] //= 3
        return tuple(shape)

    def fresh(self) -> str:
        self.serial += 1
        return f"{self.number}_{self.serial}"

    # ---- leaves

    def leaf(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        if dtype == "bool":
            kind = "mask"
        elif dtype in WHOLE:
            kind = self.pick(("whole", "index", "wrap"))
        else:
            kind = self.pick(FLOAT_KINDS[:5] if self.plain else FLOAT_KINDS)
        role = self.pick(("", "", "", "w_", "s_"))
        name = f"{role}{kind}_{self.fresh()}"
        said = f"{name} {dtype}[{', '.join(map(str, shape))}]"
        tensor = Tensor(name, dtype, shape, True)
        if role == "w_":
            self.shared.append(f'weight {said} "weights.safetensors" "{name}"')
        elif role == "s_":
            self.shared.append(f"state {said}")
            self.states.append(tensor)
        else:
            self.lines.insert(0, f"input {said}")
        self.tensors.append(tensor)
        return tensor

    def some(self, dtype: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A value of a dtype, later ones more often."""
        same = [t for t in self.tensors if t.dtype == dtype]
        if not same or self.chance(15):
            return self.leaf(dtype, self.shape() if shape is None else shape)
        return same[-1 - min(int(self.draw.expovariate(0.7)), len(same) - 1)]

    # ---- index maps

    def affine(self, loops: Loops) -> str:
        terms = [str(self.draw.randint(-2, 3))]
        for a, _ in loops:
            if self.chance(60):
                c = self.draw.choice((1, 1, 1, -1, 2, 3, -2))
                terms.append(a if c == 1 else f"{c}*{a}")
        e = " + ".join(terms)
        if self.chance(15):
            return f"({e}) // {self.draw.randint(1, 4)}"
        return f"({e}) % {self.draw.randint(1, 6)}" if self.chance(15) else e

    def inside(self, n: int, loops: Loops) -> str:
        """An expression that stays below n, or nothing."""
        axes = [(a, e) for a, e in loops if e > 0]
        self.draw.shuffle(axes)
        forms: list[str] = []
        for a, e in axes:
            last = e - 1
            if last < n:
                c = self.draw.randint(0, n - 1 - last)
                forms += [a] * 4 + [f"{a} + {c}", f"{n - 1 - c} - {a}"]
            for s in (2, 3):
                if s * last < n:
                    c = self.draw.randint(0, n - 1 - s * last)
                    forms += [f"{s}*{a} + {c}", f"{s * last + c} - {s}*{a}"]
            k = self.draw.randint(1, 5)
            if last // k < n:
                forms.append(f"{a} // {k}")
            forms.append(f"{a} % {self.draw.randint(1, n)}")
        for (a, e), (b, f) in pairwise(axes):
            if e + f - 2 < n:
                forms.append(f"{a} + {b}")
            if e * f <= n:
                forms += [f"{f}*{a} + {b}"] * 2
            if e * f <= 4 * n and n > 1:
                forms.append(f"({f}*{a} + {b}) % {n}")
        if not forms or self.chance(8):
            return str(self.draw.randint(0, n - 1))
        return self.pick(forms)

    def read(self, t: Tensor, loops: Loops) -> str:
        index, guards = [], []
        for n in t.shape:
            plain = [a for a, e in loops if e == n and n]
            if plain and self.chance(55):
                index.append(self.pick(plain))
            elif n and self.chance(75):
                index.append(self.inside(n, loops))
            else:
                index.append(self.affine(loops))
                guards.append(f"0 <= {index[-1]} < {n}")
        return f"{t.name}[{', '.join(index)}]" + self.guard(loops, guards)

    def guard(self, loops: Loops, guards: Sequence[str] = ()) -> str:
        guards = list(guards)
        if self.chance(8):
            low = self.draw.randint(-2, 3)
            guards.append(f"{low} <= {self.affine(loops)} < {low + self.draw.randint(0, 6)}")
        return f" if {' and '.join(guards)}" if guards else ""

    def operand(self, dtype: str, loops: Loops) -> str:
        kind = self.draw.random()
        if kind < 0.08:
            return f"{dtype}({self.constant(dtype)})" + self.guard(loops)
        if kind < 0.14 and dtype != "bool":
            index = self.affine(loops)
            if dtype.startswith("u") and not any(a in index for a, _ in loops):
                index = index.replace("-", "")  # a number, of which there is no negative one
            return f"{dtype}({index})" + self.guard(loops)
        return self.read(self.some(dtype), loops)

    def constant(self, dtype: str) -> str:
        if dtype == "bool":
            return self.pick(("true", "false"))
        if dtype in WHOLE:
            return self.pick(CONSTANTS["i"] + (CONSTANTS["s"] if not dtype.startswith("u") else ()))
        odd = () if self.plain else CONSTANTS["odd"]
        return self.pick(CONSTANTS["f"] * 3 + (odd if dtype in ("f32", "f64") else odd[:3]))

    # ---- nodes

    def node(self, dtype: str, loops: Loops, op: str) -> Tensor:
        name = f"t{self.fresh()}"
        axes = ", ".join(f"{a}:{n}" for a, n in loops)
        self.lines.append(f"{name} {dtype}[{axes}] = {op}")
        self.tensors.append(Tensor(name, dtype, tuple(n for _, n in loops)))
        return self.tensors[-1]

    def loops(self, names: str = "ijkl") -> Loops:
        like = self.draw.choice(self.tensors).shape if self.tensors and self.chance(60) else None
        shape = like if like is not None and len(like) <= len(names) else self.shape(3)
        shape = tuple(self.draw.sample(shape, len(shape))) if self.chance(20) else shape
        return list(zip(names, shape, strict=False))

    def step(self, dtypes: Sequence[str]) -> None:
        dtype = self.pick(dtypes)
        loops = self.loops()
        kind = self.pick(STEPS)
        if kind == "product" and dtype != "bool":
            self.product(dtype, loops)
        elif kind == "softmax" and dtype in FLOATS and loops:
            self.softmax(dtype)
        elif kind == "reduce":
            over = ("r", self.extent())
            if math.prod(n for _, n in loops) * over[1] <= MAX_POINTS:
                op = "max" if dtype == "bool" else self.pick(("sum", "sum", "max"))
                source = self.operand(dtype, [*loops, over])
                self.node(dtype, loops, f"{op} r:{over[1]} of {source}")
        elif kind == "unary" and dtype in FLOATS:
            op = self.pick(("exp2", "log2", "sin", "sqrt", "recip"))
            self.node(dtype, loops, f"{op} {self.operand(dtype, loops)}")
        elif kind == "cast":
            other = self.pick([t.dtype for t in self.tensors] or [dtype])
            self.node(dtype, loops, f"contiguous {self.operand(other, loops)}")
        elif kind == "select":
            mask, value = self.operand("bool", loops), self.operand(dtype, loops)
            self.node(dtype, loops, f"mul {mask}, {value}")
        elif kind == "compare":
            a, b = self.operand(dtype, loops), self.operand(dtype, loops)
            self.node("bool", loops, f"lt {a}, {b}")
        else:
            ops = ("add", "add", "mul", "mul", "mod") if dtype != "bool" else ("add", "mul")
            a, b = self.operand(dtype, loops), self.operand(dtype, loops)
            self.node(dtype, loops, f"{self.pick(ops)} {a}, {b}")

    def product(self, dtype: str, loops: Loops) -> None:
        """A product that is summed, over one axis or two."""
        over = [("r", self.extent()), ("q", self.extent())][: 1 + self.chance(30)]
        every = [*loops, *over]
        if math.prod(n for _, n in every) > MAX_POINTS:
            return
        a, b = (self.read(self.some(dtype), every) for _ in range(2))
        if self.chance(15):
            a = self.read(self.some("bool"), every)
        t = self.node(dtype, every, f"mul {a}, {b}")
        for i in reversed(range(len(over))):
            rest = every[: len(loops) + i]
            index = ", ".join(x for x, _ in [*rest, over[i]])
            t = self.node(dtype, rest, f"sum {over[i][0]}:{over[i][1]} of {t.name}[{index}]")

    def softmax(self, dtype: str) -> None:
        """Of the last axis of a value."""
        x = self.some(dtype)
        if not x.shape or 0 in x.shape or len(x.shape) > 4:
            return
        loops = list(zip("ijkl", x.shape, strict=False))
        *rest, (last, n) = loops
        every, kept = ", ".join(a for a, _ in loops), ", ".join(a for a, _ in rest)
        m = self.node(dtype, rest, f"max {last}:{n} of {x.name}[{every}]")
        minus = self.node(dtype, rest, f"mul {m.name}[{kept}], -1.0")
        d = self.node(dtype, loops, f"add {x.name}[{every}], {minus.name}[{kept}]")
        e = self.node(dtype, loops, f"exp2 {d.name}[{every}]")
        s = self.node(dtype, rest, f"sum {last}:{n} of {e.name}[{every}]")
        r = self.node(dtype, rest, f"recip {s.name}[{kept}]")
        self.node(dtype, loops, f"mul {e.name}[{every}], {r.name}[{kept}]")

    def update(self, state: Tensor) -> str:
        """Some part of a state, written."""
        names = "xyzw"[: len(state.shape)]
        loops: Loops = []
        index = []
        for a, n in zip(names, state.shape, strict=True):
            size = self.draw.randint(0, n) if self.chance(40) else n
            first = self.draw.randint(0, n - size)
            if n and self.chance(15):
                index.append(str(self.draw.randint(0, n - 1)))
                continue
            loops.append((a, size))
            up = f"{a} + {first}" if first else a
            index.append(f"{first + size - 1} - {a}" if size and self.chance(20) else up)
        value = self.node(state.dtype, loops, f"contiguous {self.operand(state.dtype, loops)}")
        at = ", ".join(a for a, _ in loops)
        return f"update {state.name}[{', '.join(index)}] = {value.name}[{at}]"

    def updated(self, state: Tensor) -> None:
        """A state that those who follow read as it is after an update."""
        said = self.update(state)
        name = f"u{self.fresh()}"
        self.lines.append(f"{name} = {said}")
        old = self.versions.get(state.name, state)
        self.tensors = [t for t in self.tensors if t is not old]
        self.versions[state.name] = Tensor(name, state.dtype, state.shape, True)
        self.tensors.append(self.versions[state.name])

    versions: dict[str, Tensor] = field(default_factory=dict)  # of states, the last ones

    ends: list[str] = field(default_factory=list)

    def write(self) -> None:
        dtypes = self.draw.choice(
            (("f32",), ("f32",), FLOATS, FLOATS[2:], WHOLE, (*FLOATS, *WHOLE))
        )
        dtypes = [self.draw.choice(dtypes) for _ in range(self.draw.randint(1, 3))]
        self.leaf(dtypes[0], self.shape())
        before = len(self.tensors)
        while len(self.tensors) == before or self.chance(70):
            self.step([*dtypes, "bool"] if self.chance(15) else dtypes)
            for state in self.states if self.chance(20) else ():
                self.updated(state)
            if self.serial > 24:
                break
        made = [t for t in self.tensors if not t.leaf] or self.tensors
        count = self.draw.choice((0, 0, 1, 2))
        given = [t for t in self.tensors if t.name[0] != "u"]
        outputs = {t.name: t for t in (made[-1], *self.draw.choices(given, k=count))}
        for i, t in enumerate(outputs.values()):
            self.ends.append(f"output y{i} = {t.name}")
        for state in self.states:
            if self.chance(70):
                self.ends.append(self.update(state))
                if self.chance(20):
                    self.ends.append(self.update(state))


STEPS = (
    *("product",) * 4, *("reduce",) * 3, *("unary",) * 2, *("binary",) * 5,
    "softmax", "cast", "cast", "select", "compare",
)  # fmt: skip


def parts_of(seed: str, number: int = 0) -> tuple[list[str], list[str]]:
    """The lines of one graph: those of weights and states, and its own."""
    draw = random.Random(seed)
    text = Text(draw, number, plain=draw.random() < 0.5)
    text.write()
    return text.shared, [*text.lines, *text.ends]


def together(parts: Sequence[tuple[list[str], list[str]]], file: str) -> str:
    """One text of several graphs, each an entry; ``file`` is the line that names the weights."""
    shared = [line for leaves, _ in parts for line in leaves]
    weights = [file] if any(line.startswith("weight") for line in shared) else []
    lines = ["lumc graph 1", *weights, *shared]
    for i, (_, own) in enumerate(parts):
        lines += ([f"entry e{i}"] if len(parts) > 1 else []) + own
    return "\n".join(lines) + "\n"
