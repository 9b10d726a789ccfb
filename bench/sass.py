"""The machine code of a GPU, as nvdisasm prints it: the loop in which a kernel spends its time,
what a warp does in one round of it, and what it does in all."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from lumc.codegen.gpu.counts import Counts

LABEL = re.compile(r"^\s*(\.L\w+):")
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?(.*?)\s*;")
BACK = re.compile(r"^BRA\b.*?(\.L\w+)")
TILE = "UTMALDG"  # asks for a whole tile, which one thread of a block does
F32 = ("FFMA", "FMUL", "FADD")
SHARED = ("LDGSTS", "LDS", "STS")
MMA = re.compile(r"^(?:HMMA|IMMA)\.(\d+)")
WARPGROUP = re.compile(r"^HGMMA\.64x(\d+)x(\d+)")
# rows, lanes and steps, as the name has them side by side
SHAPES = {"16816": (16, 8, 16), "1688": (16, 8, 8), "16832": (16, 8, 32)}


def disassembler() -> str | None:
    """nvdisasm of the wheel nvidia-cuda-nvdisasm, or of the PATH."""
    spec = find_spec("nvidia")
    folders = [Path(f) for f in spec.submodule_search_locations or ()] if spec else []
    found = sorted(p for f in folders for p in f.glob("*/bin/nvdisasm"))
    return str(found[-1]) if found else shutil.which("nvdisasm")


def disassembled(image: Path) -> str:
    """The text of a cubin."""
    command = [disassembler() or "nvdisasm", "-c", str(image)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Line(str):
    """An instruction. ``alone``: it lies behind a jump that leaves out copies of whole tiles, so
    one warp of a block comes to it."""

    alone = False


def main_loop(text: str) -> tuple[list[Line], bool]:
    """The instructions of the longest loop without a loop in it, and True; all up to the end, and
    False, where there is no loop. Behind the end are slow ways of divisions, and a jump to
    itself. Where a loop multiplies only those are looked at that do: beside the products there may
    be short ones, of lanes that ask for a tile one by one."""
    code, labels, loops, ends = list[Line](), dict[str, int](), list[tuple[int, int]](), 0
    jumps, always = list[tuple[int, str]](), dict[int, str]()
    for line in text.splitlines():
        if m := LABEL.match(line):
            labels[m[1]] = len(code)
        elif m := LINE.match(line):
            code.append(Line(m[2]))
            back = BACK.match(m[2])
            if back and m[1]:
                jumps.append((len(code), back[1]))
            elif not m[1] and (m[2] == "EXIT" or (back and not UNIFORM.match(m[2]))):
                always[len(code)] = back[1] if back else ""
            ends = ends or (len(code) if m[2] == "EXIT" and not m[1] else 0)
            if back and labels.get(back[1], len(code)) < len(code) - 1:
                loops.append((labels[back[1]], len(code)))
    for start, label in jumps:
        past = code[start : labels.get(label, 0)]
        for line in past if any(x.startswith(TILE) for x in past) else ():
            line.alone = not products(past)
    loops = [a for a in loops if _goes_round(*a, jumps, always, labels)]
    loops = [a for a in loops if products(code[slice(*a)])] or loops
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    start, end = max(inner, key=lambda a: a[1] - a[0], default=(0, ends or len(code)))
    return code[start:end], bool(inner)


def _goes_round(
    start: int,
    end: int,
    jumps: Iterable[tuple[int, str]],
    always: Mapping[int, str],
    labels: Mapping[str, int],
) -> bool:
    """Does a warp come from the start to the jump back before it goes elsewhere? What is behind the
    end of a kernel, as where it waits for a barrier again, jumps back into its middle."""
    targets = [(i, labels[label]) for i, label in (*jumps, *always.items()) if label in labels]
    seen, todo = set[int](), [start]
    while todo:
        at = todo.pop()
        if at in seen or not start <= at < end:
            continue
        stop = min((i for i in always if i > at), default=end)  # it goes on as far as this
        seen |= {*range(at, min(stop, end))}
        todo += [to for i, to in targets if at < i <= stop]
    return end - 1 in seen


# ---- everything that a warp does

SECTION = re.compile(r"^\.text\.(\w+):$")
JUMP = re.compile(
    r"^(?:BRA|CALL\.REL\.NOINC)\b.*?(\.L\w+)"
)  # a call of a place: sm_80 leaves loops so
COMPARED = re.compile(r"^U?ISETP\.(\w\w)(?:\.U32)?\.AND (U?P\d), U?PT, (\S+), (\S+), U?PT$")
ADDED = re.compile(
    r"^U?(?:IADD3?|VIADD) U?R\d+, (?:U?PT, U?PT, )?(U?R\d+)(?:\.reuse)?, (-?0x[0-9a-f]+)"
)
UNIFORM = re.compile(r"^BRA\.U (!?UP\d), ")  # a jump whose predicate is an operand
MOVED = re.compile(r"^(?:U?MOV \S+,|IMAD\.MOV\.U32 \S+, RZ, RZ,) (\S+)$")
HALVES = re.compile(
    r"^HFMA2(?:\.MMA)? \S+, -RZ, RZ, (\S+), (\S+)$"
)  # a constant, as two numbers of f16
COPIED = re.compile(r"^PLOP3\.LUT (P\d), PT, PT, PT, (UP\d), 0x80, 0x0$")  # of a predicate
ASKED = "BRA.U.ANY"  # lanes one by one, of which one asks for a tile
SLOW = 8  # instructions that a jump passes over: with a call among them, the rare way of a function
MOST = 1 << 20  # rounds
Guarded = tuple[str, str]  # predicate, instruction


def kernels(text: str) -> dict[str, str]:
    """The text of a cubin with several kernels, by their names."""
    out, here = dict[str, list[str]](), list[str]()
    for line in text.splitlines():
        if m := SECTION.match(line):
            here = out.setdefault(m[1], [])
        here.append(line)
    return {name: "\n".join(lines) for name, lines in out.items()}


def executed(text: str, share: float = 1.0, warps: float = 1.0) -> list[tuple[str, float]]:
    """The instructions of a warp up to the end, and how often it comes to each: loops go round as
    often as their counters say, conditions hold, and functions take their usual way. Of the warps
    a ``share`` goes on where a condition ends some; of so many ``warps`` one asks for whole tiles.
    Raises ValueError for a loop whose counter is not seen."""
    code, labels = list[Guarded](), dict[str, int]()
    for line in text.splitlines():
        if m := LABEL.match(line):
            labels[m[1]] = len(code)
        elif m := LINE.match(line):
            own = UNIFORM.match(m[2])
            code.append((f"@{own[1]}" if own else (m[1] or "").strip(), m[2]))
    end = next((i for i, c in enumerate(code) if c == ("", "EXIT")), len(code) - 1) + 1
    jumps = {
        i: labels.get(m[1], end) for i, (_, c) in enumerate(code[:end]) if (m := JUMP.match(c))
    }
    times = [1.0] * end
    for i, to in jumps.items():
        if to <= i and not code[i][1].startswith(ASKED):
            rounds = _rounds(code, to, i, jumps)
            times[to : i + 1] = [t * rounds for t in times[to : i + 1]]
        past = [c for _, c in code[i + 1 : min(to, end)]]
        if code[i][0] and any(c.startswith(TILE) for c in past) and not products(past):
            times[i + 1 : to] = [t / warps for t in times[i + 1 : to]]
    out, i, left = list[tuple[str, float]](), 0, 1.0
    while i < end:
        (predicate, line), to = code[i], jumps.get(i, 0)
        out.append((line, times[i] * left))
        left *= share if predicate and line == "EXIT" else 1.0
        over = code[i + 1 : to] if i < to <= end else []
        rare = len(over) <= SLOW and any(c.startswith("CALL") for _, c in over)
        i = to if over and (rare or not predicate) else i + 1
    return out


def _rounds(code: Sequence[Guarded], start: int, end: int, jumps: Mapping[int, int]) -> int:
    """How often a loop goes round: by the comparison that its last jump depends on, or that out of
    it where this one is always taken, and the register that this looks at."""
    leaves, predicate = False, code[end][0]
    if not predicate:
        out = [i for i in range(start, end) if code[i][0] and jumps.get(i, 0) > end]
        end, leaves = (out[-1], True) if out else (end, False)
        predicate = code[end][0]
    copies = {m[1]: m[2] for _, c in code[start:end] if (m := COPIED.match(c))}
    wanted = predicate.lstrip("@!")
    wanted = copies.get(wanted, wanted)
    found = [(j, m) for j in range(start, end) if (m := COMPARED.match(code[j][1]))]
    found = [(j, m) for j, m in found if m[2] == wanted]
    if not found:
        raise ValueError(f"no comparison before {code[end]}")
    at, m = found[-1]
    ends = [_register(m[3]), _register(m[4])]
    turned = _number(ends[0]) is not None
    counter, last = (ends[1], _number(ends[0])) if turned else (ends[0], _number(ends[1]))
    if last is None:
        raise ValueError(f"no counter of {code[at][1]}")
    first, step = _counted(code, (start, end), counter, at)
    for n, value in enumerate(range(first, first + step * MOST, step), 1):
        pair = (last, value) if turned else (value, last)
        if _holds(m[1], *pair) == (("!" in predicate) is not leaves):
            return n
    raise ValueError(f"no end of {code[at][1]}")


def _counted(
    code: Sequence[Guarded], loop: tuple[int, int], register: str, at: int
) -> tuple[int, int]:
    """What a register is where it is compared in the first round of a loop, and what each round
    adds: additions and copies are followed back, into the round before, until one register comes
    again."""
    path, here, first, known = dict[str, int](), at, 0, False
    while register not in path:
        every = [j for j in range(*loop) if _writes(code[j][1], register)]
        before = [j for j in every if j < here]
        if not before and not known:  # what it was before the loop
            first, known = first + _start(code, loop[0], register), True
        line = code[(before or every or [at])[-1]][1]
        here = (before or every or [at])[-1]
        added, moved = ADDED.match(line), MOVED.match(line)
        if not added and not moved:
            raise ValueError(f"no counter of {code[at][1]}")
        path[register] = (_number(added[2]) or 0) if added else 0
        first += 0 if known else path[register]
        register = added[1] if added else _register((moved or [""])[1])
    first += 0 if known else _start(code, loop[0], register)
    own = list(path)[list(path).index(register) :]
    step = sum(path[r] for r in own)
    if step == 0:
        raise ValueError(f"no step of {code[at][1]}")
    return first, step


def _start(code: Sequence[Guarded], start: int, register: str) -> int:
    """What a register holds before a loop: the last constant that is moved to it, else 0."""
    for _, line in reversed(code[:start]):
        if _writes(line, register):
            if m := HALVES.match(line):
                return int.from_bytes(struct.pack("<2e", float(m[2]), float(m[1])), "little")
            m = MOVED.match(line)
            return (_number(m[1]) or 0) if m else 0
    return 0


def _writes(line: str, register: str) -> bool:
    _, _, operands = line.partition(" ")
    for operand in operands.split(",")[:2]:
        if _register(operand.strip()) == register:
            return True
        if not operand.strip().startswith(("P", "UP")):
            return False
    return False


def _register(operand: str) -> str:
    return operand.removesuffix(".reuse")


def _number(operand: str) -> int | None:
    """Of 32 bits with a sign."""
    if operand in ("RZ", "URZ"):
        return 0
    m = re.fullmatch(r"(-?)(0x[0-9a-f]+|\d+)", operand)
    n = int(m[2], 0) * (-1 if m[1] else 1) if m else None
    return n - (1 << 32) if n is not None and n >= 1 << 31 else n


def _holds(relation: str, a: int, b: int) -> bool:
    return {"GE": a >= b, "GT": a > b, "LE": a <= b, "LT": a < b, "NE": a != b, "EQ": a == b}[
        relation
    ]


def weighed(code: Iterable[tuple[str, float]]) -> Counts:
    """What ``counted`` counts, of instructions that a warp comes to so often."""
    total = Counts()
    for line, times in code:
        total += counted([Line(line)]) * times
    return total


def counted(code: Sequence[Line], warps: float = 1) -> Counts:
    """Of one warp of so many in a block, which share what one of them does. Operations of matrix
    units are those that are done, whatever their rate; of bytes in shared memory only those are
    counted that an instruction names, without conflicts."""
    total = Counts(issue=sum(1 / warps if line.alone else 1 for line in code))
    for line in code:
        name, _, operands = line.partition(" ")
        if m := MMA.match(name):
            rows, lanes, steps = SHAPES[m[1]]
            total += Counts(tensor=2 * rows * lanes * steps)
        elif m := WARPGROUP.match(name):  # a warp's share of 64 rows
            lanes, steps = int(m[1]), int(m[2])
            left = 64 if operands.split(",")[1].strip().startswith("gdesc") else 0
            total += Counts(tensor=2 * 16 * lanes * steps, shared=(lanes + left) * steps * 2 / 4)
        elif name.startswith("LDSM"):
            total += Counts(shared=128 * int(name[-1]))
        elif name.startswith(SHARED) and operands != "RZ, [RZ]":  # a fence has these
            total += Counts(shared=512 if ".128" in name else 256 if ".64" in name else 128)
        total += Counts(f32=name.startswith(F32), special=name.startswith("MUFU"))
    return total


def products(code: Sequence[str]) -> int:
    """Instructions of the matrix units."""
    return sum(bool(MMA.match(line) or WARPGROUP.match(line)) for line in code)
