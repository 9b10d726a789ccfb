"""What an assembler may make of an entry: PTX lets it turn a product and a sum that say nothing of
their rounding into one multiply-add ("Floating Point Instructions", add, sub, mul)."""

from __future__ import annotations

import re
from dataclasses import replace

from gpu.ptx.text import Entry, Instruction

PLAIN = {f"{name}.{kind}": kind for name in ("add", "sub", "mul") for kind in ("f32", "f64")}


def contracted(entry: Entry) -> Entry:
    """The same kernel with every multiply-add that may be."""
    registers = dict(entry.registers)
    out: list[Instruction] = []
    moved = {}  # old positions to new ones
    starts = set(entry.labels.values())
    products: dict[str, tuple[str, ...]] = {}  # in this stretch of straight code: its factors
    for i, instruction in enumerate(entry.code):
        moved[i] = len(out)
        if i in starts:
            products = {}
        out += _fused(instruction, products, registers) or [instruction]
        _follow(instruction, products)
    moved[len(entry.code)] = len(out)
    labels = {name: moved[at] for name, at in entry.labels.items()}
    return replace(entry, code=out, labels=labels, registers=registers)


def _follow(i: Instruction, products: dict[str, tuple[str, ...]]) -> None:
    """What products there are behind an instruction."""
    if i.base in ("bra", "ret", "exit"):
        products.clear()
    results = set(re.findall(r"[^{},|\s]+", i.operands[0])) if i.operands else set()
    for name, factors in list(products.items()):
        if results & {name, *factors}:
            del products[name]
    to, *factors = i.operands or ("",)
    if i.opcode in PLAIN and i.base == "mul" and not i.guard and to not in factors:
        products[to] = tuple(factors)


def _fused(
    i: Instruction, products: dict[str, tuple[str, ...]], registers: dict[str, str]
) -> list[Instruction]:
    """A multiply-add in the place of a sum, [] if it is none of a product."""
    if i.opcode not in PLAIN or i.base == "mul":
        return []
    kind, (to, left, right) = PLAIN[i.opcode], i.operands
    if left in products:
        x, y, other, minus = *products[left], right, right
    elif right in products:
        x, y, other, minus = *products[right], left, products[right][0]
    else:
        return []
    if i.base == "add":
        return [replace(i, opcode=f"fma.rn.{kind}", operands=(to, x, y, other))]
    negative = f"{to}:negative"
    registers[negative] = kind
    operands = (to, x, y, negative) if left in products else (to, negative, y, other)
    first = replace(i, opcode=f"neg.{kind}", operands=(negative, minus))
    return [first, replace(i, opcode=f"fma.rn.{kind}", operands=operands)]
