"""The ``.lg`` text form: ``print_graph`` and ``parse_graph``; the grammar is in docs/formats.md.

The printed form is canonical: printing what was parsed from it gives the same bytes. The parser
is meant for files from strangers: every size is limited and only ``LumcError`` comes out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from lumc.errors import LumcError
from lumc.graph.builder import Builder
from lumc.graph.collective import KINDS
from lumc.graph.derive import LAYOUTS, PARTS
from lumc.graph.dim import Extent, extent
from lumc.graph.expr import Expr, add, axis, dim, floordiv, mod, mul, num, substitute
from lumc.graph.graph import (
    Bound,
    Derivation,
    Graph,
    Iota,
    Node,
    Operand,
    Read,
    Scalar,
    Update,
    WeightFile,
)
from lumc.graph.lexer import Lines, Token
from lumc.graph.lines import entry_lines, head_lines, leaf_text
from lumc.graph.mesh_text import mesh_line, parts, stage, words_of
from lumc.graph.ops import REDUCE, DType, Op
from lumc.graph.verify import LITERALS, check_update

HEADER = "lumc graph 1"
MAX_DIMS = 64
MAX_TERMS = 128  # of one index expression; also bounds its nesting
OPS = {op.value: op for op in Op}
KNOWN = ", ".join((*OPS, *KINDS))
LEVEL = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}  # of operators in an index


# ---- printing


def print_graph(graph: Graph, path: Callable[[WeightFile], str] = lambda f: f.path) -> str:
    """The canonical text of a graph; ``path`` gives what is written for a weight file. Raises E0304
    (a weight that is in no file)."""
    lines, graph = [HEADER], graph.base
    lines += head_lines(graph)
    for f in graph.files:
        lines.append(f"file {json.dumps(path(f))} size {f.size} sha256 {f.sha256}")
    if graph.tokenizer:
        lines.append(f"tokenizer {json.dumps(path(graph.tokenizer))}")
    for n in (*graph.weights, *graph.states):
        if n.file is None and (n.op == "weight" or n.key):
            raise LumcError("E0304", f"{n.op} '{n.name}' is in no file yet")
        lines.append(leaf_text(n, path))
    for entry in graph.entries:
        lines.append("")
        if [e.name for e in graph.entries] != ["main"] or entry.repeat:
            lines.append(f"entry {entry.name}" + (f" repeat {entry.repeat}" * bool(entry.repeat)))
        lines += entry_lines(entry)
    return "\n".join(lines) + "\n"


# ---- parsing


def parse_graph(text: str, where: str = "", path: Callable[[str], str] = lambda p: p) -> Graph:
    """The graph of a text; ``where`` names the file in messages, ``path`` places weight files.

    Raises E0301 (cannot be read) and E0302 (too large), exit 5; E0303 (means nothing), exit 4.
    """
    return _Parser(text, where or "graph", path).graph()


class _Parser(Lines):
    """Reads one statement after the other into a ``Builder``."""

    def __init__(self, text: str, where: str, place: Callable[[str], str]) -> None:
        super().__init__(text, where)
        self.place = place
        self.builder = Builder()
        self.files: dict[str, WeightFile] = {}
        self.shared: dict[str, Node] = {}  # weights and states
        self.local: dict[str, Node] = {}  # inputs and nodes of this entry
        self.entry = self.repeat = ""  # of the last header
        self.terms = 0  # of this index expression

    def graph(self) -> Graph:
        parse = self.version
        while self.next_line() or parse == self.version:
            self.builder.origin = f"{self.where}:{self.number}"
            try:
                parse()
            except LumcError as e:
                if e.code.startswith("E03"):
                    raise
                self.fail(e.what, "E0303", self.tokens[0])
            self.take("the end of the line", self.peek().kind == "end")
            parse = self.statement
        self.finish()
        return self.builder.graph()

    # ---- statements

    def version(self) -> None:
        if " ".join(t.text for t in self.tokens[:3]) != HEADER:
            self.fail(f"a graph starts with the line '{HEADER}'")
        self.at = 3

    def statement(self) -> None:
        word = self.peek().text
        if word == "dim" and (self.builder.nodes or self.entry):
            self.fail("a dim stands before the first operation", "E0303")
        if word == "tokenizer" and self.peek(1).kind == "string":  # else a node of this name
            self.at += 1
            return self.tokenizer()
        if word == "mesh" and self.peek(2).kind == "number":  # else a node of this name
            return mesh_line(self, self.builder, bool(self.shared or self.local or self.entry))
        if word in ("weight", "state") and self.entry:
            self.fail(f"a {word} stands before the first entry", "E0303")
        statements = {
            "dim": self.dim, "file": self.file, "entry": self.header, "output": self.output,
            "update": self.update, "input": self.leaf, "weight": self.leaf, "state": self.leaf,
        }  # fmt: skip
        self.at += word in statements
        statements.get(word, self.node)()

    def dim(self) -> None:
        """``dim NAME in LO..HI [multiple M] [tune N, ..]``"""
        name = self.name()
        if name in self.builder.dims or len(self.builder.dims) == MAX_DIMS:
            what = f"dim '{name}' is declared twice or after {MAX_DIMS} others"
            self.fail(what, "E0303", self.last)
        self.expect("in")
        lo, hi = self.integer(), self.bound_above()
        self.builder.dim(name, lo, hi, self.integer() if self.accept("multiple") else 1)
        at = [self.integer()] if self.accept("tune") else []
        while at and self.accept(","):
            at.append(self.integer())
        if at:
            self.builder.tune(name, at)

    def file(self) -> None:
        """``file PATH size N sha256 SHA256``"""
        path = self.string()
        if path in self.files:
            self.fail("the file is declared twice", "E0303", self.last)
        self.expect("size")
        size = self.integer()
        self.expect("sha256")
        digest = self.take("64 hexadecimal digits", self.peek().kind == "hash")
        self.files[path] = WeightFile(self.place(path), size, digest.text)

    def tokenizer(self) -> None:
        """``tokenizer PATH``"""
        if self.builder.tokenizer or self.builder.nodes or self.entry:
            what = "a tokenizer stands once, before the first operation"
            self.fail(what, "E0303", self.last)
        self.builder.tokenizer = self.declared(self.string())

    def declared(self, path: str) -> WeightFile:
        """The file of a path."""
        if path not in self.files:
            self.fail(f"no line 'file {json.dumps(path)} ..' above", "E0303")
        return self.files[path]

    def leaf(self) -> None:
        """``input NAME DTYPE[EXTENT, ..] [in LO..HI]``; ``weight`` with PATH and KEY; ``state``,
        with these or without"""
        kind = self.last.text
        name, dtype, shape = self.name(), self.dtype(), self.bracket(self.extent)
        file, key, values, how = None, "", None, None
        if kind == "input" and self.accept("in"):
            values = self.integer(), self.bound_above()
        if kind == "weight" or (kind == "state" and self.peek().kind == "string"):
            path, key = self.string(), self.string()
            file = self.declared(path)
            how = self.derivation(dtype) if self.accept("from") else None
        own = parts(self, mesh := self.builder.mesh), None if kind == "input" else stage(self, mesh)
        known = self.local if kind == "input" else self.shared
        known[name] = self.builder.leaf(kind, name, dtype, shape, file, key, values, how, *own)

    def derivation(self, own: DType) -> Derivation:
        """``DTYPE [PART AXIS by N]`` or ``LAYOUT PART``"""
        if layout := next((n for n in LAYOUTS if self.accept(n)), ""):
            return Derivation(own, self.name(), layout=layout)
        dtype = self.dtype()
        part = next((p for p in PARTS if self.accept(p)), "")
        if not part:
            return Derivation(dtype)
        axis = self.integer()
        self.expect("by")
        return Derivation(dtype, part, axis, self.integer())

    def bound_above(self) -> int:
        """``..HI``"""
        self.expect("..")
        return self.integer()

    def header(self) -> None:
        """``entry NAME [repeat DIM]``"""
        if self.entry or self.local or self.builder.outputs:
            self.finish()
        self.entry = self.name()
        if self.entry in [e.name for e in self.builder.entries]:
            self.fail(f"two entries are named '{self.entry}'", "E0303", self.last)
        self.repeat = self.name() if self.accept("repeat") else ""
        if self.repeat and self.repeat not in self.builder.dims:
            self.fail(f"no dim '{self.repeat}' above", "E0303", self.last)

    def finish(self) -> None:
        name = self.entry or "main"
        ends = self.builder.outputs or self.builder.updates
        if not ends and all(n.op != "update" for n in self.builder.nodes):
            self.fail(f"entry '{name}' has no output and no update", "E0303")
        try:
            self.builder.finish(name, repeat=self.repeat)
        except LumcError as e:
            self.fail(e.what, "E0303", self.tokens[0])
        self.local = {}

    def output(self) -> None:
        """``output NAME = VALUE``"""
        name = self.name()
        if name in dict(self.builder.outputs):
            self.fail(f"two outputs are named '{name}'", "E0303", self.last)
        self.expect("=")
        self.builder.outputs.append((name, self.value()))
        if own := parts(self, self.builder.mesh):
            self.builder.parts[name] = own

    def update(self, name: str = "") -> None:
        """``[NAME =] update STATE[INDEX, ..] = VALUE[AXIS, ..]``; the index is written over these
        axes"""
        state, index = self.value(), self.bracket(lambda: self.index(None))
        self.expect("=")
        value, names = self.value(), self.bracket(self.name)
        if len(set(names)) != len(value.axes):
            self.fail(f"'{value.name}' has {len(value.axes)} axes: name each once", "E0303")
        own: dict[Expr, Expr] = {axis(d): dim(d) for d in self.builder.dims}
        own |= {axis(a): axis(b) for a, b in zip(names, value.axes, strict=True)}
        update = Update(state, tuple(substitute(e, own) for e in index), value)
        if name:
            self.local[name] = self.builder.updated(update, name)
            return
        check_update(update, self.builder.dims)
        self.builder.updates.append(update)

    def node(self) -> None:
        """``NAME DTYPE[AXIS, ..] = OP [AXIS of] OPERAND, ..``, or ``NAME = update ..``"""
        name = self.name()
        if self.accept("="):
            self.expect("update")
            return self.update(name)
        dtype, axes = self.dtype(), self.bracket(self.axis)
        self.expect("=")
        if self.peek().text in KINDS:
            return self.collective(name, dtype, axes)
        op = OPS.get(self.peek().text)
        if op is None:
            self.fail(f"no operation {self.said()}", "E0303", fix=f"one of: {KNOWN}")
        self.at += 1
        reduced = self.axis() if op in REDUCE else None
        if reduced:
            self.expect("of")
            axes.append(reduced)
        operands = list[Operand]()
        while not operands or self.accept(","):
            operands.append(self.operand([a for a, _ in axes], operands))
        loops = [(a, self.inferred(a, operands) if e is None else e) for a, e in axes]
        over = loops.pop() if reduced else None
        self.local[name] = self.builder.node(op, operands, loops, over, dtype, name)

    def collective(self, name: str, dtype: DType, axes: list[tuple[str, Extent | None]]) -> None:
        """``NAME DTYPE[AXIS, ..] = COLLECTIVE .. of VALUE[AXIS, ..]``"""
        op = words_of(self, self.builder.mesh, [a for a, _ in axes])
        read = Read(self.value(), tuple(map(axis, self.bracket(self.name))))
        loops = [(a, self.inferred(a, [read]) if e is None else e) for a, e in axes]
        self.local[name] = self.builder.collective(op, read, loops, dtype, name)

    # ---- parts of statements

    def axis(self) -> tuple[str, Extent | None]:
        return self.name(), self.extent() if self.accept(":") else None

    def extent(self) -> Extent:
        return extent(self.index(()))

    def inferred(self, name: str, operands: Sequence[Operand]) -> Extent:
        """The extent of an axis without one: of its dim, or of what is read at the plain axis."""
        if name in self.builder.dims:
            return dim(name)
        sizes = dict[Extent, str]()
        for o in operands:
            if isinstance(o, Read):
                pairs = zip(o.index, o.source.shape, strict=False)
                sizes |= {size: o.source.name for e, size in pairs if e is axis(name)}
        if len(sizes) != 1:
            said = " and ".join(f"{size} in '{of}'" for size, of in sizes.items()) or "not known"
            self.fail(f"the extent of axis '{name}' is {said}", "E0303", fix=f"write {name}:EXTENT")
        return next(iter(sizes))

    def value(self) -> Node:
        name = self.name()
        node = self.local.get(name) or self.shared.get(name)
        if node is None:
            self.fail(f"no tensor '{name}' above", "E0303", self.last)
        return node

    def operand(self, axes: Sequence[str], before: Sequence[Operand]) -> Operand:
        """A read, a typed scalar or index, or a scalar of the dtype of the operand before it."""
        if self.peek(1).text == "[":
            node = self.value()
            return Read(node, tuple(self.bracket(lambda: self.index(axes))), self.bounds(axes))
        if self.peek(1).text == "(":
            dtype = self.dtype()
            self.expect("(")
            value = self.literal(dtype) if self.is_literal() else self.index(axes)
            self.expect(")")
            if isinstance(value, Expr):
                return Iota(dtype, value, self.bounds(axes))
            return Scalar(dtype, value, self.bounds(axes))
        if not before:
            fix = "write f32(0.5); a scalar after an operand has the dtype of that operand"
            self.fail(f"expected NAME[..] or DTYPE(..), got {self.said()}", fix=fix)
        value = self.literal(before[0].dtype)
        return Scalar(before[0].dtype, value, self.bounds(axes))

    def is_literal(self) -> bool:
        """Whether there is one number or word up to the closing parenthesis."""
        i = 1 if self.peek().text == "-" else 0
        word = self.peek(i)
        return word.text in LITERALS or (word.kind == "number" and self.peek(i + 1).text == ")")

    def literal(self, dtype: DType) -> float | int | bool:
        """A scalar as a value of this dtype."""
        sign, word = -1 if self.accept("-") else 1, self.peek()
        if dtype is DType.BOOL:
            self.take("true or false", word.text in ("true", "false") and sign > 0)
            return word.text == "true"
        if dtype.is_int:
            return sign * self.integer()
        self.take(f"a value of {dtype.value}", word.kind == "number" or word.text in ("inf", "nan"))
        return sign * float(word.text)

    def bounds(self, axes: Sequence[str]) -> tuple[Bound, ...]:
        """``[if LO <= INDEX < EXTENT and ..]``"""
        out = list[Bound]()
        while self.accept("and" if out else "if"):
            lo = self.integer()
            self.expect("<=")
            index = self.index(axes)
            self.expect("<")
            out.append(Bound(index, lo, self.extent()))
        return tuple(out)

    def index(self, axes: Sequence[str] | None, level: int = 0) -> Expr:
        """An affine expression of axes and dims; without ``axes`` every name is an axis."""
        self.terms = self.terms + 1 if level else 0
        if self.terms > MAX_TERMS:
            self.fail(f"more than {MAX_TERMS} terms in an index", "E0302")
        if self.accept("-"):
            e = mul(self.index(axes, 3), -1)
        elif self.accept("("):
            e = self.index(axes, 1)
            self.expect(")")
        elif self.peek().kind == "number":
            e = num(self.integer())
        else:
            e = self.variable(axes)
        while LEVEL.get(self.peek().text, 0) >= max(level, 1):
            sign = self.take("", True)
            e = self.combined(sign, e, self.index(axes, LEVEL[sign.text] + 1))
        return e

    def variable(self, axes: Sequence[str] | None) -> Expr:
        name = self.name()
        if axes is None or name in axes:
            return axis(name)
        if name not in self.builder.dims:
            known = ", ".join((*axes, *self.builder.dims)) or "none"
            self.fail(f"no axis or dim '{name}'", "E0303", self.last, f"known here: {known}")
        return dim(name)

    def combined(self, sign: Token, a: Expr, b: Expr) -> Expr:
        if sign.text in ("+", "-"):
            return add(a, b if sign.text == "+" else mul(b, -1))
        if sign.text == "*" and a.kind == "num":
            a, b = b, a
        if b.kind != "num" or (sign.text != "*" and b.attr[0] < 1):
            what = "an index is affine: one factor, and a positive divisor, is an integer"
            self.fail(what, "E0303", sign)
        factor = b.attr[0]
        if sign.text == "*":
            return mul(a, factor)
        return floordiv(a, factor, {}) if sign.text == "//" else mod(a, factor, {})
