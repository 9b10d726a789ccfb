"""Rules of Metal that neither C++ nor address spaces show, and the limits of a capability level.

From the Metal Shading Language Specification and the Metal Feature Set Tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gpu.msl_text import CONSTANT, Function, Parameter, kernels, line_of, without_comments

BUFFERS, THREADS, THREADGROUP_BYTES, SET_BYTES = 31, 1024, 32 << 10, 4 << 10


@dataclass(frozen=True)
class Level:
    """What a GPU family and a version of the language offer."""

    family: int  # 7, 8, 9: M1, M2, M3
    version: tuple[int, int]


LEVELS = {
    "apple7": Level(7, (3, 0)),
    "apple8": Level(8, (3, 0)),
    "apple9": Level(9, (3, 1)),
}
# word -> the least version of the language, or family of GPUs, that has it
VERSIONS = dict.fromkeys(("bfloat", "bfloat2", "bfloat3", "bfloat4", "simdgroup_bfloat8x8"), (3, 1))
FAMILIES = dict.fromkeys(("atomic_ulong", "atomic_max_explicit", "atomic_min_explicit"), 9)
MATRIX = re.compile(r"\bsimdgroup_(?:matrix|\w+8x8)\b")
MISSING = {  # of C++ that Metal leaves out
    "double": "there is no double",
    "goto": "there is no goto",
    "new": "there is no new",
    "delete": "there is no delete",
    "throw": "there are no exceptions",
    "try": "there are no exceptions",
    "catch": "there are no exceptions",
    "virtual": "there are no virtual functions",
    "dynamic_cast": "there is no dynamic_cast",
    "thread_local": "there is no thread_local",
    "std": "there is no standard library",
    "asm": "there is no inline assembly",
}
_RESERVED = """
kernel vertex fragment device constant thread threadgroup threadgroup_imageblock object_data
ray_data mesh visible stitchable half bfloat uchar ushort uint ulong sampler texture metal
char short int long float bool void if else for while do switch case default break continue
return struct union enum class template typename typedef using namespace static inline const
constexpr volatile auto sizeof operator this true false nullptr signed unsigned private
public protected friend mutable explicit extern register noexcept static_assert
static_cast reinterpret_cast const_cast alignas alignof and or not xor bitand bitor compl
infinity INFINITY NAN
"""
RESERVED = frozenset(_RESERVED.split())
SCALARS = {
    "bool": 1, "char": 1, "uchar": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "ushort": 2,
    "int16_t": 2, "uint16_t": 2, "half": 2, "bfloat": 2, "int": 4, "uint": 4, "int32_t": 4,
    "uint32_t": 4, "float": 4, "long": 8, "ulong": 8, "int64_t": 8, "uint64_t": 8,
    "lumc_i8": 1, "lumc_u8": 1, "lumc_u16": 2, "lumc_f16": 2, "lumc_bf16": 2, "lumc_i32": 4,
    "lumc_u32": 4, "lumc_i64": 8, "lumc_u64": 8,
}  # fmt: skip
# what an attribute of a parameter delivers: 1 for a scalar, 3 for up to three dimensions
ATTRIBUTES = {
    "thread_position_in_grid": 3, "thread_position_in_threadgroup": 3,
    "threadgroup_position_in_grid": 3, "threads_per_threadgroup": 3, "threadgroups_per_grid": 3,
    "thread_index_in_threadgroup": 1, "thread_index_in_simdgroup": 1,
    "simdgroup_index_in_threadgroup": 1, "simdgroups_per_threadgroup": 1,
    "threads_per_simdgroup": 1,
}  # fmt: skip
KERNEL_ATTRIBUTES = ("max_total_threads_per_threadgroup",)


def lint(source: str, level: str, threads: int = 0) -> list[str]:
    """What is wrong with a text for a level such as apple7: ``kernels.metal:12: message``.

    ``threads`` are those of the threadgroups that it is launched with, where that is known.
    """
    text = without_comments(source)
    try:
        found = list(kernels(text))
    except ValueError as e:
        return [f"kernels.metal:{e}"]
    problems: list[tuple[int, str]] = [
        *_words(text, LEVELS[level]),
        *_constants(text),
        *_locals(text, found),
    ]
    names = Counter(f.name for f in found)
    problems += [(0, f"two kernels are called {n}") for n, times in names.items() if times > 1]
    for f in found:
        problems += [(f.start, f"kernel {f.name}: {what}") for what in _kernel(f, threads)]
        problems += _body(text, f)
    return [f"kernels.metal:{line_of(text, at)}: {what}" for at, what in sorted(problems)]


def _words(text: str, level: Level) -> Iterator[tuple[int, str]]:
    """Words that Metal, its version or the GPU does not have."""
    for m in re.finditer(r"\b[A-Za-z_]\w*\b", text):
        word = m[0]
        if word in MISSING:
            yield m.start(), MISSING[word]
        if word in VERSIONS and level.version < VERSIONS[word]:
            yield m.start(), f"{word} needs Metal {'.'.join(map(str, VERSIONS[word]))}"
        if word in FAMILIES and level.family < FAMILIES[word]:
            yield m.start(), f"{word} needs a GPU of family Apple{FAMILIES[word]}"
    for m in re.finditer(r"\b\d+\.\d*(?:[eE][-+]?\d+)?(?![\w.])", text):
        yield m.start(), f"{m[0]} is a double"
    for m in re.finditer(r"\b__\w+", text):
        if m[0] not in ("__VA_ARGS__",):
            yield m.start(), f"{m[0]} is a name of the compiler"


def _constants(text: str) -> Iterator[tuple[int, str]]:
    indices = Counter(int(m[3]) for m in CONSTANT.finditer(text))
    for m in CONSTANT.finditer(text):
        if indices[int(m[3])] > 1:
            yield m.start(), f"function constant {m[3]} is declared twice"
        if m[1] not in SCALARS:
            yield m.start(), f"a function constant of type {m[1]}"
    for m in re.finditer(r"\bconstant\s+\w+\s+\w+\s*;", text):
        yield m.start(), "a constant without a value"


def _kernel(f: Function, threads: int) -> Iterator[str]:
    """The signature of a kernel."""
    if f.result != "void":
        yield f"it returns {f.result}"
    unknown = [n for n, _ in f.attributes if n not in KERNEL_ATTRIBUTES]
    yield from (f"unknown attribute [[{n}]]" for n in unknown)
    most = f.attribute("max_total_threads_per_threadgroup") or THREADS
    if most > THREADS or threads > most:
        yield f"{max(most, threads)} threads, at most {min(most, THREADS)} are possible"
    for p in f.parameters:
        yield from _parameter(p)
    indices = sorted(
        p.index for p in f.parameters if p.attribute == "buffer" and p.index is not None
    )
    if indices and indices != list(range(len(indices))):
        yield f"its buffers have the indices {indices}, not 0 to {len(indices) - 1}"
    if indices and indices[-1] >= BUFFERS:
        yield f"buffer({indices[-1]}): the last index is {BUFFERS - 1}"
    names = [p.name for p in f.parameters]
    names += [n for local in f.locals for n, _ in local.declarators]
    yield from (f"{n} is a reserved word" for n in (f.name, *names) if n in RESERVED)
    yield from (f"two things are called {n}" for n, k in Counter(names).items() if k > 1)
    used = _threadgroup_bytes(f)
    if used > THREADGROUP_BYTES:
        yield f"{used} bytes of threadgroup memory, there are {THREADGROUP_BYTES}"


def _parameter(p: Parameter) -> Iterator[str]:
    words = p.type.replace("*", " * ").replace("&", " & ").split()
    if not p.attribute:
        yield f"parameter {p.name} has no attribute"
    elif p.attribute == "buffer":
        if p.index is None:
            yield f"parameter {p.name}: buffer() without an index"
        if words[-1:] not in (["*"], ["&"]):
            yield f"parameter {p.name} is a buffer but neither a pointer nor a reference"
        elif not {"device", "constant"} & set(words):
            yield f"parameter {p.name} has no address space"
        elif words[-1] == "&" and _size(words[-2]) > SET_BYTES:
            yield f"parameter {p.name} has more than {SET_BYTES} bytes"
    elif p.attribute not in ATTRIBUTES:
        yield f"parameter {p.name}: unknown attribute [[{p.attribute}]]"
    else:
        allowed = ["uint", "ushort"]
        if ATTRIBUTES[p.attribute] == 3:
            allowed += ["uint2", "uint3", "ushort2", "ushort3"]
        if p.type not in allowed:
            yield f"parameter {p.name}: [[{p.attribute}]] is no {p.type}"


def _locals(text: str, found: list[Function]) -> Iterator[tuple[int, str]]:
    """Where threadgroup arrays may stand, and what may be in them."""
    known = {local.start for f in found for local in f.locals if local.depth == 1}
    for m in re.finditer(r"\bthreadgroup\s+[\w:<>, ]+?\s+\w+\s*(?:\[[^\]]*\]\s*)*[;,=]", text):
        parameter = text[: m.start()].rstrip()[-1:] in "(,"
        if m[0].endswith("="):
            yield m.start(), "a threadgroup array cannot be initialised"
        elif m.start() not in known and not parameter:
            yield m.start(), "a threadgroup array outside of the outermost block of a kernel"
    for f in found:
        for local in f.locals:
            if _size(local.type) == 0:
                yield local.start, f"a threadgroup array of {local.type}, whose size is not known"


def _body(text: str, f: Function) -> Iterator[tuple[int, str]]:
    """Barriers order threadgroup memory; matrices hold f32, f16 or bf16."""
    for m in re.finditer(r"\bthreadgroup_barrier\s*\(([^)]*)\)", text[f.body : f.end]):
        if "mem_threadgroup" not in m[1]:
            yield f.body + m.start(), "a barrier that does not order threadgroup memory"
    for m in re.finditer(r"\bsimdgroup_matrix\s*<([^>]*)>", text[f.body : f.end]):
        element, *extents = (w.strip() for w in m[1].split(","))
        if element not in ("float", "half", "bfloat") or extents != ["8", "8"]:
            yield f.body + m.start(), f"there is no simdgroup_matrix<{m[1]}>"


def _threadgroup_bytes(f: Function) -> int:
    """The sum over all arrays, each at a multiple of 16; extents are numbers."""
    total = 0
    for local in f.locals:
        for _, extents in local.declarators:
            size = _size(local.type)
            for n in re.findall(r"\[\s*([^\]]*?)\s*\]", extents):
                size *= _product(n)
            total += (size + 15) // 16 * 16
    return total


def _product(text: str) -> int:
    """A number, or sums and products of numbers."""
    total = 0
    for term in text.split("+"):
        value = 1
        for factor in term.split("*"):
            value *= int(factor.strip(" ()")) if factor.strip(" ()").isdecimal() else 1
        total += value
    return total


def _size(type: str) -> int:
    """Bytes of a scalar or vector type; 0 for others."""
    m = re.fullmatch(r"(?:metal::)?(\w+?)([234]?)", type)
    if type in SCALARS:
        return SCALARS[type]
    if m and m[1] in SCALARS:
        return SCALARS[m[1]] * (4 if m[2] == "3" else int(m[2] or 1))
    matrix = MATRIX.fullmatch(type)
    return 256 if matrix else 0
