"""The machine that runs a kernel: registers with a lane for every thread, and which lanes go on.

All threads of several blocks run in lock step, one numpy operation for an instruction. The lanes at
the lowest position of the code go first, so that those of a loop catch up with those behind it; at
an operation of a warp, a warpgroup or a block, lanes wait until the others have come (PTX ISA,
"Parallel Synchronization and Communication Instructions").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpu.ptx.memory import (
    PARAMETERS,
    POISON,
    SHARED_BASE,
    Array,
    Clock,
    Fault,
    Global,
    Report,
    Shared,
)
from gpu.ptx.text import MAP_BYTES, Entry, Instruction, PtxError, Variable

T = TypeVar("T")
Lanes = Any  # slice(None) for all of them, or i64[n]
Step = Callable[[Lanes], None]
ALL = slice(None)
MOST_STEPS = 3_000_000
SHARED_MOST = 232_448  # bytes of a block of sm_90, the largest
NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
BUILDERS: dict[str, Callable[[Decode], Step]] = {}
# what waits for others, by the number of lanes: 0 for the whole block
WAITS = {"bar.sync": 0, "barrier.sync": 0, "bar.warp": 32, "shfl": 32, "vote": 32, "mma": 32}
WAITS |= {"ldmatrix": 32, "wgmma": 128}
CLUSTER = -1  # all blocks of a cluster
WAITS |= {"barrier.cluster.arrive": 32, "barrier.cluster.wait": CLUSTER}


class Special(NamedTuple):
    """Where the threads of a batch are in their grid."""

    first: int  # block
    blocks: int  # in this batch
    grid: int  # in all
    threads: int  # a block


def builds(*names: str) -> Callable[[Callable[[Decode], Step]], Callable[[Decode], Step]]:
    """Register what makes a step of instructions with these first words."""

    def register(f: Callable[[Decode], Step]) -> Callable[[Decode], Step]:
        BUILDERS.update(dict.fromkeys(names, f))
        return f

    return register


@cache
def dtype_of(kind: str) -> np.dtype[Any]:
    """numpy's type of a PTX type: b and u are unsigned."""
    if kind == "pred":
        return np.dtype(bool)
    m = re.fullmatch(r"([bsuf])(8|16|32|64)", kind)
    if not m or kind == "f8":
        raise PtxError(f"type {kind}")
    return np.dtype({"b": "u", "u": "u", "s": "i", "f": "f"}[m[1]] + str(int(m[2]) // 8))


class Decode:
    """An instruction while a step is made of it. Every word of its opcode has to be taken."""

    def __init__(self, machine: Machine, instruction: Instruction) -> None:
        self.machine, self.instruction = machine, instruction
        self.base, *self.words = instruction.opcode.split(".")
        self.operands = instruction.operands

    def flag(self, *names: str) -> str:
        """The word of these that is there, "" if none is."""
        for n in names:
            if n in self.words:
                self.words.remove(n)
                return n
        return ""

    def expect(self, *names: str) -> None:
        """These words, in this order, come next."""
        if tuple(self.words[: len(names)]) != names:
            raise self.unknown()
        del self.words[: len(names)]

    def kind(self) -> str:
        """The type at the end."""
        if not self.words:
            raise self.unknown()
        return self.words.pop()

    def unknown(self) -> PtxError:
        return PtxError(f"not known: {self.instruction}")

    def source(self, i: int, kind: str | np.dtype[Any]) -> Callable[[Lanes], Any]:
        dtype = dtype_of(kind) if isinstance(kind, str) else kind
        return self.machine.source(self.operands[i], dtype)

    def result(self, i: int, kind: str | np.dtype[Any]) -> Callable[[Lanes, Any], None]:
        dtype = dtype_of(kind) if isinstance(kind, str) else kind
        return self.machine.result(self.operands[i], dtype)

    def lift(self, f: Callable[..., Any], kind: str, sources: str = "") -> Step:
        """``f`` of the operands behind the first one, which gets the result."""
        put = self.result(0, kind)
        get = [self.source(i, sources or kind) for i in range(1, len(self.operands))]
        if len(get) == 1:
            (a,) = get
            return lambda m: put(m, f(a(m)))
        if len(get) == 2:
            a, b = get
            return lambda m: put(m, f(a(m), b(m)))
        return lambda m: put(m, f(*(g(m) for g in get)))


class Machine:
    """A batch of blocks of a launch."""

    def __init__(
        self, entry: Entry, where: Special, shared_bytes: int, memory: Global, report: Report
    ) -> None:
        self.entry, self.where, self.memory, self.report = entry, where, memory, report
        self.lanes = where.blocks * where.threads
        lane = self.every = np.arange(self.lanes)
        self.thread, self.block = lane % where.threads, lane // where.threads
        of_block = -(-where.threads // 32)
        warp = (where.first + self.block) * of_block + self.thread // 32
        self.warp = self.block * of_block + self.thread // 32
        self.warps = lane.reshape(-1, 32) if where.threads % 32 == 0 else None  # their lanes
        self.cluster = self.block // entry.together
        self.parked = np.zeros(self.lanes, bool)  # they look again when something has arrived
        self.yields = False  # do lanes of this step park?
        self.group = self.block * -(-where.threads // 128) + self.thread // 128
        self.clock = Clock(
            lane=lane + where.first * where.threads,
            block=where.first + self.block,
            warp=warp,
            blocks_passed=np.zeros(self.lanes, np.int32),
            warps_passed=np.zeros(self.lanes, np.int32),
        )
        self.special = self._special()
        self.symbols, self.local_bytes = self._symbols(shared_bytes)
        self.local = np.full(self.lanes * self.local_bytes, POISON, np.uint8)
        self.carry = np.zeros(self.lanes, bool)
        self.registers = {
            name: np.frombuffer(bytearray([POISON * (kind != "pred")]) * (self.lanes * size), dtype)
            for name, kind in entry.registers.items()
            for dtype in [dtype_of(_bits(kind))]
            for size in [dtype.itemsize]
        }
        self.parts: dict[Any, Any] = {}
        self.finishing: list[Callable[[Array], None]] = []  # what to look at when lanes end
        self.arriving: list[Callable[[], bool]] = []  # what may happen when nobody can go on
        self.steps = [self.step(i) for i in entry.code]
        self.executed = [0] * len(entry.code)  # threads that did, by instruction

    def _special(self) -> dict[str, Array]:
        """Registers that the machine sets (PTX ISA, "Special Registers")."""
        w = self.where
        values: dict[str, Any] = {
            "%tid.x": self.thread, "%ntid.x": w.threads, "%ctaid.x": self.clock.block,
            "%nctaid.x": w.grid, "%laneid": self.thread % 32,
        }  # fmt: skip
        for axis in "yz":
            values |= {f"%{n}.{axis}": int(n[0] == "n") for n in ("tid", "ntid", "ctaid", "nctaid")}
        return {k: np.broadcast_to(np.asarray(v, np.uint32), self.lanes) for k, v in values.items()}

    def _symbols(self, shared_bytes: int) -> tuple[dict[str, int], int]:
        """The address of every variable in its space, and the bytes of local memory of a thread."""
        entry, symbols = self.entry, {n: self.memory.base(i) for n, i in self.memory.places.items()}
        symbols |= {name: PARAMETERS + i * MAP_BYTES for i, name in enumerate(entry.maps)}
        shared = [(n, v) for n, v in entry.variables.items() if v.space == "shared"]
        local = [(n, v) for n, v in entry.variables.items() if v.space == "local"]
        end = _placed([x for x in shared if not x[1].extern], SHARED_BASE, symbols)
        start = _placed([x for x in shared if x[1].extern], end, symbols)
        limit = start - SHARED_BASE + shared_bytes
        if limit > SHARED_MOST:
            raise Fault(f"{limit} bytes of shared memory, {SHARED_MOST} is the most of a block")
        cell = narrowest(entry, "shared")
        self.shared = Shared(self.where.blocks, limit, cell, self.report)
        return symbols, -(-_placed(local, 0, symbols) // 16) * 16

    def part(self, kind: Callable[[Machine], T]) -> T:
        """What the instructions of one kind keep together: one of it for a machine."""
        if kind not in self.parts:
            self.parts[kind] = kind(self)
        return self.parts[kind]  # type: ignore[no-any-return]

    # ---- operands

    def source(self, operand: str, dtype: np.dtype[Any]) -> Callable[[Lanes], Any]:
        """The values of an operand in lanes; a scalar for a constant."""
        if operand in self.registers or operand in self.special:
            return self._register(operand, dtype)
        c = self.constant(operand, dtype)
        return lambda m: c

    def _register(self, operand: str, dtype: np.dtype[Any]) -> Callable[[Lanes], Any]:
        register = self.registers.get(operand, self.special.get(operand))
        assert register is not None
        if not _holds(register, dtype):
            raise PtxError(f"{operand} read as {dtype}")
        if register.itemsize == dtype.itemsize:
            view = register.view(dtype)
            return lambda m: view[m]
        narrow = np.dtype(f"u{dtype.itemsize}")
        return lambda m: register[m].astype(narrow).view(dtype)

    def constant(self, operand: str, dtype: np.dtype[Any]) -> Any:
        bits = 8 * dtype.itemsize
        if operand[:2] in ("0f", "0F"):
            value, dtype_ = int(operand[2:], 16), np.dtype("f4")
        elif operand[:2] in ("0d", "0D"):
            value, dtype_ = int(operand[2:], 16), np.dtype("f8")
        elif NUMBER.match(operand):
            value, dtype_ = int(operand.rstrip("U"), 0), dtype
            if dtype.kind == "f":
                raise PtxError(f"{operand} as {dtype}")
        else:
            value, dtype_ = self.address(operand), dtype
        if dtype.kind == "b":
            return np.bool_(value)
        if dtype_.itemsize != dtype.itemsize:
            raise PtxError(f"{operand} as {dtype}")
        return np.array(value % (1 << bits), f"u{dtype.itemsize}").view(dtype)[()]

    def address(self, operand: str) -> int:
        """Of a variable, or a place in it."""
        name, _, offset = operand.partition("+")
        if name.strip() not in self.symbols:
            raise PtxError(f"operand {operand}")
        return self.symbols[name.strip()] + int(offset or 0)

    def result(self, operand: str, dtype: np.dtype[Any]) -> Callable[[Lanes, Any], None]:
        """Writes a register; a wider one gets the extension of an integer."""
        if operand == "_":
            return lambda m, value: None
        if operand not in self.registers:
            raise PtxError(f"result {operand}")
        register = self.registers[operand]
        if not _holds(register, dtype):
            raise PtxError(f"{operand} written as {dtype}")
        wider = register.itemsize > dtype.itemsize
        view = register.view(f"{'i' if dtype.kind == 'i' else 'u'}{register.itemsize}")
        bits = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "f" else dtype

        def widened(m: Lanes, value: Any) -> None:
            view[m] = np.asarray(value, dtype).view(bits)

        def put(m: Lanes, value: Any) -> None:
            same[m] = value

        same = register.view(dtype) if not wider else register
        return widened if wider else put

    def addresses(self, operand: str) -> Callable[[Lanes], Array]:
        """``[register + offset]`` or ``[variable + offset]``: i64[lanes]."""
        inner = operand[1:-1].strip()
        m = re.fullmatch(r"([\w$%@#:]+)\s*(?:\+\s*(-?\d+))?", inner)
        if not operand.startswith("[") or not m:
            raise PtxError(f"address {operand}")
        offset = int(m[2] or 0)
        if m[1] in self.registers:
            register = self.registers[m[1]]
            return lambda lanes: register[lanes].astype(np.int64) + offset
        at = self.address(m[1]) + offset if not NUMBER.match(m[1]) else int(m[1], 0) + offset
        return lambda lanes: np.full(self.count(lanes), at, np.int64)

    def count(self, m: Lanes) -> int:
        return self.lanes if isinstance(m, slice) else len(m)

    def which(self, m: Lanes) -> Array:
        return self.every if isinstance(m, slice) else m

    def full(self, value: Any, m: Lanes) -> Array:
        """One value for each lane."""
        return value if np.ndim(value) else np.broadcast_to(value, self.count(m))

    # ---- steps

    def step(self, instruction: Instruction) -> Step:
        """Raises PtxError for an instruction that is not known, and names it."""
        if instruction.base in ("bra", "ret", "exit"):
            if instruction.opcode not in ("bra", "bra.uni", "ret", "ret.uni", "exit"):
                raise PtxError(f"not known: {instruction}")
            return lambda m: None
        builder = BUILDERS.get(instruction.base)
        if builder is None:
            raise PtxError(f"not known: {instruction}")
        decode = Decode(self, instruction)
        try:
            step = builder(decode)
        except (IndexError, KeyError, ValueError) as e:
            raise PtxError(f"not known: {instruction} ({e})") from e
        except PtxError as e:
            raise PtxError(f"{e} in: {instruction}") from e
        if decode.words:
            raise PtxError(f"not known: .{' .'.join(decode.words)} of {instruction}")
        return step

    def run(self) -> None:
        """All blocks to their end. Raises Fault."""
        _Control(self).run()

    def close(self) -> None:
        """Its steps know it, so that its registers would stay for a while."""
        self.steps.clear()
        self.finishing.clear()
        self.arriving.clear()
        self.parts.clear()


def narrowest(entry: Entry, space: str) -> int:
    """Bytes of the narrowest access of a space, from which all others are made."""
    least = 16
    for i in entry.code:
        words = i.opcode.split(".")
        if words[0] in ("ld", "st") and (space in words or not _spaces(words)):
            least = min(least, dtype_of(words[-1]).itemsize * int(("v2" in words) + 1))
        elif words[0] == "mbarrier":
            least = min(least, 8)
        elif words[0] == "cp" and len(i.operands) > 2 and "bulk" not in words:
            least = min(least, int(i.operands[2], 0))
    return least


def _spaces(words: Sequence[str]) -> set[str]:
    return {"global", "shared", "local", "param", "const"} & set(words)


def _holds(register: Array, dtype: np.dtype[Any]) -> bool:
    """Whether a register has room for a type; predicates are a kind of their own."""
    same = (register.dtype.kind == "b") == (dtype.kind == "b")
    return same and register.itemsize >= dtype.itemsize


@cache
def _bits(kind: str) -> str:
    return kind if kind == "pred" else f"b{re.sub(r'[^0-9]', '', kind)}"


def _placed(variables: list[tuple[str, Variable]], at: int, symbols: dict[str, int]) -> int:
    """No variable is better aligned than it asks for."""
    for name, v in variables:
        at = -(-(at - v.align) // (2 * v.align)) * 2 * v.align + v.align
        symbols[name] = at
        at += v.nbytes
    return at


class _Control:
    """Which lanes go on."""

    def __init__(self, machine: Machine) -> None:
        entry = machine.entry
        self.machine, self.code, self.steps = machine, entry.code, machine.steps
        self.at = np.zeros(machine.lanes, np.int64)
        self.waiting = np.zeros(machine.lanes, bool)
        self.ended = np.zeros(machine.lanes, bool)
        self.live = np.arange(machine.lanes)
        self.left = 0  # instructions so far
        self.targets = [entry.labels[i.operands[0]] if i.base == "bra" else -1 for i in self.code]
        self.guards = [
            (machine.registers[i.guard], i.negated) if i.guard else None for i in self.code
        ]
        self.groups = [self._group(i) for i in self.code]
        self.ends = [i.base in ("ret", "exit") for i in self.code]

    def _group(self, i: Instruction) -> Array | None:
        """For what several lanes do together: the number of the group of each lane."""
        words = i.opcode.split(".")
        size = next((WAITS[w] for n in (1, 2, 3) if (w := ".".join(words[:n])) in WAITS), None)
        if size is None:
            return None
        if i.guard:
            raise PtxError(f"an operation of several threads under a condition: {i}")
        m = self.machine
        return {0: m.block, 32: m.warp, 128: m.group, CLUSTER: m.cluster}[size]

    def run(self) -> None:
        while len(self.live):
            going = self.live[~(self.waiting | self.machine.parked)[self.live]]
            if not len(going):
                came = [arrive() for arrive in self.machine.arriving]
                if not any(came):
                    raise Fault(self._stuck())
                continue
            places = self.at[going]
            at = int(places.min())
            if at >= len(self.code):
                raise Fault("the code has no end")
            here = going[places == at]
            others = places[places > at]
            stop = int(others.min()) if len(others) else len(self.code)
            self._advance(ALL if len(here) == self.machine.lanes else here, at, stop)

    def _stuck(self) -> str:
        where = Counter(self.at[self.live].tolist())
        said = ", ".join(f"{n} at {str(self.code[p])[:60]}" for p, n in sorted(where.items())[:4])
        return f"divergence: threads wait for each other: {said}"

    def _advance(self, m: Lanes, at: int, stop: int) -> None:
        """Straight on, until lanes part, wait or end, or reach where others are."""
        machine = self.machine
        while at < stop:
            self.left += 1
            if self.left > MOST_STEPS:
                raise Fault("it does not end")
            if self.groups[at] is not None and not isinstance(m, slice):
                return self._together(m, at)
            machine.executed[at] += machine.count(m)
            holds = self._holds(m, at)
            if self.ends[at]:
                return self._end(m, machine.which(m) if holds is None else holds, at)
            if self.targets[at] >= 0:
                if holds is not None and len(holds):
                    self.at[m] = at + 1
                    self.at[holds] = self.targets[at]
                    return None
                at = self.targets[at] if holds is None else at + 1
                continue
            if holds is None or len(holds):
                self.steps[at](m if holds is None else holds)
            at += 1
            if machine.yields:
                machine.yields = False
                break
        self.at[m] = at
        return None

    def _holds(self, m: Lanes, at: int) -> Array | None:
        """The lanes where the condition of an instruction holds; None: in all of them."""
        guard = self.guards[at]
        if guard is None:
            return None
        values = guard[0][m] ^ guard[1]
        return None if values.all() else self.machine.which(m)[values]

    def _end(self, m: Lanes, gone: Array, at: int) -> None:
        for check in self.machine.finishing:
            check(gone)
        self.at[m] = at + 1
        self.ended[gone] = True
        self.live = self.live[~self.ended[self.live]]

    def _together(self, m: Array, at: int) -> None:
        """Lanes at an operation of their group: it is done for groups that are whole."""
        group, machine = self.groups[at], self.machine
        assert group is not None
        self.at[m], self.waiting[m] = at, True
        here = self.live[self.waiting[self.live] & (self.at[self.live] == at)]
        size = int(group.max()) + 1
        came = np.bincount(group[here], minlength=size)
        whole = came == np.bincount(group[self.live], minlength=size)
        go = here[whole[group[here]]]
        if len(go):
            self.waiting[go] = False
            machine.executed[at] += len(go)
            self.steps[at](ALL if len(go) == machine.lanes else go)
            self.at[go] = at + 1
