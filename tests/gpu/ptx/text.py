"""PTX as text: its kernels, each with the functions that it calls in the place of the calls.

``parse`` reads what a compiler of NVIDIA prints for one module (PTX ISA, "Syntax", "State Spaces,
Types, and Variables", "Directives"). Names are made unique on the way: braces open a scope, and
the registers of inline assembly may hide those around it. What is not understood is a PtxError
that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
NAME = re.compile(r"(?<![\w$%.])[%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?")
ROUTINE = re.compile(
    r"\.(entry|func)\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)([{;])"
)
VARIABLE = re.compile(
    r"(\.extern\s+|\.visible\s+|\.weak\s+)?\.(shared|global|const|local|param)\s+"
    r"(?:\.align\s+(\d+)\s+)?\.([busf])(\d+)\s+([\w$%]+)(?:\[(\d*)\])?\s*(?:=\s*\{([^}]*)\})?$"
)
DEPTH = 8  # calls within calls
MAP_BYTES = 128  # of a CUtensorMap


class PtxError(Exception):
    """Text or an instruction that the interpreter does not know."""


@dataclass(frozen=True)
class Instruction:
    """``@guard opcode operands;`` with unique names."""

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""  # a predicate
    negated: bool = False

    @cached_property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        guard = f"@{'!' * self.negated}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Variable:
    """Memory with a name; ``data`` is what it holds at first."""

    space: str
    align: int
    nbytes: int
    extern: bool = False
    data: bytes = b""


@dataclass
class Entry:
    """A kernel."""

    name: str
    params: dict[str, int]  # bytes of each
    threads: int  # most, of a block
    together: int = 1  # blocks of a cluster
    registers: dict[str, str] = field(default_factory=dict)  # name to type
    variables: dict[str, Variable] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # name to position in code

    @property
    def maps(self) -> list[str]:
        """The parameters that are tensor maps."""
        return [name for name, nbytes in self.params.items() if nbytes == MAP_BYTES]

    @property
    def arrays(self) -> list[str]:
        """Those that are addresses."""
        return [name for name, nbytes in self.params.items() if nbytes != MAP_BYTES]


@dataclass(frozen=True)
class Program:
    """A module."""

    version: str
    target: str
    entries: dict[str, Entry]


@dataclass(frozen=True)
class _Routine:
    """An .entry or .func as it stands."""

    kind: str
    results: list[str]
    params: dict[str, int]
    rest: str  # directives behind the parameters
    body: str


def parse(text: str) -> Program:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*\.(?:loc|file)\s[^\n]*$", "", text, flags=re.M)
    version = re.search(r"\.version\s+(\S+)", text)
    target = re.search(r"\.target\s+(\w+)", text)
    if not (version and target and re.search(r"\.address_size\s+64", text)):
        raise PtxError("no .version, .target or .address_size 64")
    routines, outside = _routines(text)
    outside = re.sub(r"\.(version|target|address_size)\s[^\n]*", "", outside)
    variables = dict(_variable(s) for s in statements(outside))
    entries = {
        name: _Body(name, routines, variables).entry
        for name, r in routines.items()
        if r.kind == "entry"
    }
    return Program(version[1], target[1], entries)


def _routines(text: str) -> tuple[dict[str, _Routine], str]:
    """Those with a body, and the text around them."""
    found, outside, at = {}, "", 0
    while m := ROUTINE.search(text, at):
        outside += re.sub(r"(\.visible|\.weak|\.extern)\s*$", "", text[at : m.start()])
        at = m.end()
        if m[6] == "{":
            at = _closing(text, m.end())
            results, params = ([_parameter(p) for p in split(g or "")] for g in (m[2], m[4]))
            body = text[m.end() : at - 1]
            found[m[3]] = _Routine(m[1], [n for n, _ in results], dict(params), m[5], body)
    return found, outside + text[at:]


def _closing(text: str, at: int) -> int:
    """Behind the brace that closes the one before ``at``."""
    depth = 1
    for m in re.finditer(r"[{}]", text[at:]):
        depth += 1 if m[0] == "{" else -1
        if not depth:
            return at + m.end()
    raise PtxError("a brace is not closed")


def _parameter(text: str) -> tuple[str, int]:
    m = re.match(r"\.(?:param|reg)\s.*?\.[busf](\d+)\b.*?([\w$%]+)(?:\[(\d+)\])?$", text, re.S)
    if not m:
        raise PtxError(f"parameter: {text}")
    return m[2], BYTES[m[1]] * int(m[3] or 1)


def _variable(text: str) -> tuple[str, Variable]:
    if not (m := VARIABLE.match(" ".join(text.split()))):
        raise PtxError(f"not known: {text}")
    size, data = BYTES[m[5]], b""
    if m[8]:
        values = [int(v, 0) for v in m[8].split(",")]
        data = b"".join((v % (1 << 8 * size)).to_bytes(size, "little") for v in values)
    extern = (m[1] or "").strip() == ".extern"
    count = 0 if extern else int(m[7] or 1)
    return m[6], Variable(m[2], int(m[3] or size), count * size, extern, data)


def statements(text: str) -> Iterator[str]:
    """What ends with a semicolon, labels with their colon, and braces of a scope."""
    now, depth, at = "", 0, 0
    for m in re.finditer(r"[;:{}]", text):
        now, c, at = now + text[at : m.start()], m[0], m.end()
        if c in "{}" and not now.strip() and not depth:
            yield c
            continue
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == ";" or (c == ":" and re.fullmatch(r"\s*[\w$]+", now)):
            if now.strip():
                yield " ".join(now.split()) + ":" * (c == ":")
            now = ""
        else:
            now += c
    if now := (now + text[at:]).strip():
        raise PtxError(f"not known: {now[:80]}")


def split(text: str) -> list[str]:
    """Between the commas that are in no bracket."""
    out, depth, start = [], 0, 0
    for m in re.finditer(r"[,{}\[\]()]", text):
        depth += (m[0] in "{[(") - (m[0] in "}])")
        if m[0] == "," and not depth:
            out.append(text[start : m.start()].strip())
            start = m.end()
    last = text[start:].strip()
    return [*out, last] if last else out


class _Body:
    """An entry while its statements are read."""

    def __init__(self, name: str, routines: dict[str, _Routine], outside: dict[str, Variable]):
        r = routines[name]
        bound = re.search(
            r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", r.rest
        )
        threads = 1
        for n in bound.groups() if bound else ("1024",):
            threads *= int(n or 1)
        cluster = re.search(r"\.reqnctapercluster\s+(\d+)(\s*,\s*1)*", r.rest)
        together = int(cluster[1]) if cluster else 1
        self.routines = routines
        self.entry = Entry(name, r.params, threads, together, variables=dict(outside))
        self.scopes = [{n: n for n in (*r.params, *outside)}]
        self.prefix, self.leave, self.calls, self.scopes_made = "", "", 0, 0
        self.depth = 0
        self.read(r.body)

    def read(self, body: str) -> None:
        self.scopes.append({})
        for statement in statements(body):
            self.statement(statement)
        self.scopes.pop()

    def statement(self, s: str) -> None:
        if s == "{":
            self.scopes.append({})
            self.scopes_made += 1
        elif s == "}":
            self.scopes.pop()
        elif s.endswith(":"):
            self.label(self.prefix + s[:-1])
        elif s.startswith(".reg"):
            self.registers(s)
        elif s.startswith(".pragma"):
            pass  # advice to the assembler
        elif s.startswith("."):
            name, variable = _variable(s)
            space = "local" if variable.space == "param" else variable.space
            v = Variable(space, variable.align, variable.nbytes, variable.extern, variable.data)
            self.entry.variables[self.declared(name)] = v
        else:
            self.instruction(s)

    def label(self, name: str) -> None:
        if name in self.entry.labels:
            raise PtxError(f"label {name} stands twice")
        self.entry.labels[name] = len(self.entry.code)

    def declared(self, name: str) -> str:
        taken = name in self.scopes[0] or len(self.scopes) > 2 or self.prefix
        unique = f"{self.prefix}{name}@{self.scopes_made}" if taken else name
        self.scopes[-1][name] = unique
        return unique

    def registers(self, s: str) -> None:
        m = re.match(r"\.reg\s*\.(\w+)\s+(.*)", s)
        if not m:
            raise PtxError(f"not known: {s}")
        for name in split(m[2]):
            many = re.fullmatch(r"(.+)<(\d+)>", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for n in names:
                self.entry.registers[self.declared(n)] = m[1]

    def meant(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def instruction(self, s: str) -> None:
        guard, negated = "", False
        if m := re.match(r"@(!?)\s*([\w$%]+)\s+", s):
            guard, negated, s = self.meant(m[2]), bool(m[1]), s[m.end() :]
        opcode, _, rest = s.partition(" ")
        operands = split(rest)
        if opcode in ("call", "call.uni"):
            if guard:
                raise PtxError(f"a call under a condition: {s}")
            return self.call(operands)
        if opcode.partition(".")[0] == "bra":
            operands = [self.prefix + o for o in operands]
        elif opcode in ("ret", "ret.uni") and self.leave:
            opcode, operands = "bra", [self.leave]
        else:
            operands = [NAME.sub(lambda m: self.meant(m[0]), o) for o in operands]
        self.entry.code.append(Instruction(opcode, tuple(operands), guard, negated))

    def call(self, operands: list[str]) -> None:
        """The body of a function, with the names of this call's arguments."""
        results = split(operands.pop(0)[1:-1]) if operands[0].startswith("(") else []
        name, arguments = operands[0], split(operands[1][1:-1]) if len(operands) > 1 else []
        routine = self.routines.get(name)
        if routine is None or self.depth == DEPTH:
            raise PtxError(f"call of {name}: {'too deep' if routine else 'it has no body'}")
        formal = [*routine.results, *routine.params]
        given = [self.meant(a) for a in (*results, *arguments)]
        before = self.scopes, self.prefix, self.leave
        self.calls += 1
        self.depth += 1
        self.prefix = f"{name}#{self.calls}:"
        self.leave = f"{self.prefix}left"
        self.scopes = [{n: n for n in before[0][0]} | dict(zip(formal, given, strict=True))]
        self.read(routine.body)
        self.label(self.leave)
        self.scopes, self.prefix, self.leave = before
        self.depth -= 1
