"""The machine code of a GPU, as nvdisasm prints it: the loop in which a kernel spends its time, and
what a warp does in one round of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
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
    jumps = list[tuple[int, str]]()
    for line in text.splitlines():
        if m := LABEL.match(line):
            labels[m[1]] = len(code)
        elif m := LINE.match(line):
            code.append(Line(m[2]))
            back = BACK.match(m[2])
            if back and m[1]:
                jumps.append((len(code), back[1]))
            ends = ends or (len(code) if m[2] == "EXIT" and not m[1] else 0)
            if back and labels.get(back[1], len(code)) < len(code) - 1:
                loops.append((labels[back[1]], len(code)))
    for start, label in jumps:
        past = code[start : labels.get(label, 0)]
        for line in past if any(x.startswith(TILE) for x in past) else ():
            line.alone = not products(past)
    loops = [a for a in loops if products(code[slice(*a)])] or loops
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    start, end = max(inner, key=lambda a: a[1] - a[0], default=(0, ends or len(code)))
    return code[start:end], bool(inner)


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
