"""Moves and conversions: PTX ISA, "Data Movement and Conversion Instructions", mov, cvt, cvta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.ptx.machine import Decode, Lanes, Step, builds, dtype_of
from gpu.ptx.memory import LOCAL_WINDOW, SHARED_WINDOW, Array
from gpu.ptx.text import split

ROUND = {"rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil, "rni": np.rint}
NAN_16 = 0x7FFF  # the NaN of conversions to 16 bits


@builds("mov")
def moves(d: Decode) -> Step:
    kind = d.kind()
    if d.operands[0].startswith("{"):
        return _unpack(d, kind)
    if d.operands[1].startswith("{"):
        return _pack(d, kind)
    return d.lift(lambda x: x, kind)


def _unpack(d: Decode, kind: str) -> Step:
    """The parts of a word, the lowest first."""
    names = split(d.operands[0][1:-1])
    word = dtype_of(kind)
    part = np.dtype(f"u{word.itemsize // len(names)}")
    puts, a = [d.machine.result(n, part) for n in names], d.source(1, word)
    by = word.type(8 * part.itemsize)

    def step(m: Lanes) -> None:
        value = np.asarray(a(m))
        for put in puts:
            put(m, value.astype(part))
            value = value >> by

    return step


def _pack(d: Decode, kind: str) -> Step:
    names = split(d.operands[1][1:-1])
    word = dtype_of(kind)
    part = np.dtype(f"u{word.itemsize // len(names)}")
    gets, put = [d.machine.source(n, part) for n in names], d.result(0, word)

    def step(m: Lanes) -> None:
        value = word.type(0)
        for i, get in enumerate(gets):
            value = value | np.asarray(get(m)).astype(word) << word.type(8 * part.itemsize * i)
        put(m, value)

    return step


@builds("cvta")
def spaces(d: Decode) -> Step:
    """Between the address in a space and the generic one."""
    kind = d.kind()
    back, space = d.flag("to"), d.flag("global", "shared", "local", "const", "param")
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    by = np.uint64(window)
    if not space or kind != "u64":
        raise d.unknown()
    return d.lift(lambda x: x - by if back else x + by, kind)


@builds("cvt")
def conversions(d: Decode) -> Step:
    source, to = d.kind(), d.kind()
    if to in ("f16x2", "bf16x2"):
        return _pair(d, to, source)
    if to == "tf32":
        d.expect("rna")
        put, a = d.result(0, "b32"), d.source(1, source)
        return lambda m: put(m, tf32(a(m)))
    if "bf16" in (to, source):
        return _bf16(d, to, source)
    return _numbers(d, dtype_of(to), dtype_of(source))


def _pair(d: Decode, to: str, source: str) -> Step:
    """Two floats as 16 bits each: the first one is the upper half."""
    d.expect("rn")
    put, high, low = d.result(0, "b32"), d.source(1, source), d.source(2, source)
    narrow = to_f16 if to == "f16x2" else to_bf16

    def step(m: Lanes) -> None:
        upper, lower = (narrow(x(m)).astype(np.uint32) for x in (high, low))
        put(m, upper << np.uint32(16) | lower)

    return step


def _bf16(d: Decode, to: str, source: str) -> Step:
    if (to, source) == ("bf16", "f32"):
        d.expect("rn")
        put, a = d.result(0, "b16"), d.source(1, "f32")
        return lambda m: put(m, to_bf16(a(m)))
    if (to, source) == ("f32", "bf16"):
        wide, bits = d.result(0, "f32"), d.source(1, "b16")
        return lambda m: wide(
            m, (np.asarray(bits(m)).astype(np.uint32) << np.uint32(16)).view("f4")
        )
    raise d.unknown()


def to_f16(x: Any) -> Array:
    """Bits of f16, a half to even."""
    x = np.asarray(x, np.float32)
    return np.where(np.isnan(x), np.uint16(NAN_16), x.astype(np.float16).view(np.uint16))


def to_bf16(x: Any) -> Array:
    """Bits of bf16, a half to even."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32).astype(np.uint64)
    up = np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))
    return np.where(np.isnan(x), np.uint16(NAN_16), (bits + up >> np.uint64(16)).astype(np.uint16))


def tf32(x: Any) -> Array:
    """Rounded to 10 bits of fraction, a half away from zero; the rest is zero."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    special = bits & np.uint32(0x7F800000) == np.uint32(0x7F800000)
    rounded = bits + np.uint32(0x1000) & np.uint32(0xFFFFE000)
    return np.where(special, bits, rounded)


def _numbers(d: Decode, to: np.dtype[Any], source: np.dtype[Any]) -> Step:
    rounding, saturates = d.flag("rn", *ROUND), bool(d.flag("sat"))
    put, a = d.result(0, to), d.source(1, source)
    if to == np.dtype("f2"):
        if source != np.dtype("f4") or rounding != "rn" or saturates:
            raise d.unknown()
        bits = d.result(0, "b16")
        return lambda m: bits(m, to_f16(a(m)))
    f = _conversion(to, source, rounding, saturates)
    if f is None:
        raise d.unknown()
    return lambda m: put(m, f(np.asarray(a(m))))


def _conversion(
    to: np.dtype[Any], source: np.dtype[Any], rounding: str, saturates: bool
) -> Callable[[Array], Array] | None:
    """None for what does not exist: floats to integers need to say how they round."""
    if source.kind == "f" and to.kind != "f":
        return to_whole(to, ROUND[rounding]) if rounding in ROUND else None
    if source.kind == "f" and rounding in ROUND and to == source:
        return ROUND[rounding]  # type: ignore[no-any-return]
    if rounding in ROUND or (saturates and to.kind == "f"):
        return None
    rounds = to.kind == "f" and (source.kind != "f" or to.itemsize < source.itemsize)
    if rounds != (rounding == "rn"):
        return None
    if saturates:
        info = np.iinfo(to)
        return lambda x: np.clip(x.astype(object), info.min, info.max).astype(to)
    return lambda x: x.astype(to)


def to_whole(to: np.dtype[Any], rounded: Callable[[Any], Any]) -> Callable[[Array], Array]:
    """Beyond the range: its end. NaN is 0, but the highest bit for 64 bits and from f64."""
    info = np.iinfo(to)

    def f(x: Array) -> Array:
        y = rounded(x.astype(np.float64))
        over, under = y >= float(info.max) + (to.itemsize < 8), y <= float(info.min)
        inside = np.where(over | under | np.isnan(y), 0, y)
        out = np.where(over, info.max, np.where(under, info.min, inside.astype(to))).astype(to)
        high = np.array(1 << (8 * to.itemsize - 1), f"u{to.itemsize}").view(to)
        is_high = to.itemsize == 8 or x.dtype.itemsize == 8
        return np.where(np.isnan(y), high if is_high else to.type(0), out)

    return f
