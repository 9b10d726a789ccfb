"""The texts of a model as plain C; emit.py writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lumc import __version__
from lumc.bundle.planfile import lists_of
from lumc.codegen.code import Code, EntryPlan, KernelCode
from lumc.codegen.text.term import STORED
from lumc.codegen.tile.memory import ALIGN, aligned
from lumc.graph.bind import dims_in
from lumc.graph.dim import Dim
from lumc.graph.graph import Entry, Node, shape_text
from lumc.graph.verify import MAX_RANK
from lumc.link.shapes import Copy, Dims, is_live
from lumc.link.toolchain import GCC_ONLY, KERNEL_FLAGS

MARK = b" as plain C, made by lumc "  # of folders that may be replaced
# what a name of a parameter may not be: in C, in C++, and beside it in the functions
TAKEN = """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
const const_cast constexpr continue decltype default delete do double dynamic_cast else enum
explicit export extern false float for friend goto if inline int linux long mutable namespace new
noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
restrict return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename typeof union unix unsigned using virtual void
volatile wchar_t while xor xor_eq null arena state at states scratch turn weights"""
LOCAL = {"own", *(f"i{i}" for i in range(MAX_RANK))}  # taken too where there are dims
WRONG = 2  # what a function returns for a value that the first dim may not have
OF_CMAKE = ("all", "clean", "help", "install", "lumc", "package", "test")  # and our own header
LIBM = re.compile(r"\blumc_((exp2?|exp2?_ftz|decay|log2|sin|mod)_f64|mod_f32)\(")
OPTIONAL = ("-g0", "-fPIC", "-fno-semantic-interposition", *GCC_ONLY)
FLAGS = tuple(f for f in KERNEL_FLAGS if f not in OPTIONAL)


def prefix(name: str) -> str:
    """The C name of a model in a folder of this name."""
    word = re.sub(r"\W", "_", name.partition(".")[0], flags=re.ASCII)
    word = word if re.search("[A-Za-z0-9]", word) else "model"
    word = word if word[0].isalpha() else f"m{word}"
    return f"{word}_model" if word.lower() in OF_CMAKE else word


@dataclass(frozen=True)
class Model:
    """A code, and the prefix of all of its C names."""

    name: str
    code: Code

    @property
    def upper(self) -> str:
        return self.name.upper()

    @cached_property
    def scratch(self) -> int:
        """Where the memory that kernels use while they run starts, behind all values."""
        return aligned(max(e.arena_bytes for e in self.code.entries))

    @cached_property
    def room(self) -> int:
        """Where copies of arrays of a run start, behind that."""
        return self.scratch + max(aligned(k.scratch_bytes) for k in self.kernels)

    @cached_property
    def arena(self) -> int:
        ends = [c.end for call in self.calls for b in call.buckets for c in b.copies]
        return max(self.room, ALIGN, *ends)

    @cached_property
    def calls(self) -> list[Call]:
        return calls(self)

    @cached_property
    def dims(self) -> Mapping[str, Dim]:
        """The dims that its functions take, by C name."""
        known = self.code.graph.dims
        used = {d for call in self.calls for d in call.dims.names}
        own = [d for d in known if d in used]
        return dict(zip(_names(own, set()), (known[d] for d in own), strict=True))

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        return self.code.kernels

    @cached_property
    def states(self) -> tuple[list[int], int]:
        """Where each state lies in the caller's memory, and the size of that."""
        places, at = [], 0
        for s in self.code.graph.states:
            places.append(at)
            at = aligned(at + s.size * s.dtype.nbytes)
        return places, at

    @cached_property
    def begun(self) -> str:
        """The declaration of the function that writes what states begin with, if it is needed."""
        taken, name = {c.name for c in self.calls}, f"{self.name}_begin"
        while name in taken:
            name += "_"
        return f"void {name}(void *state)" * any(s.file for s in self.code.graph.states)

    @property
    def libm(self) -> bool:
        return any(LIBM.search(k.source) for k in self.kernels)


@dataclass(frozen=True)
class Bucket:
    """What runs an entry up to some values of its dims, and the arrays that it copies."""

    plan: EntryPlan
    entry: Entry
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Call:
    """The C function of an entry: its name, what its macros start with, the dims that it takes, the
    names of what it reads and of what it writes, its buckets."""

    name: str
    macro: str
    dims: Dims
    inputs: Mapping[str, Node]
    outputs: Mapping[str, Node]
    buckets: tuple[Bucket, ...]

    @property
    def tensors(self) -> Mapping[str, Node]:
        return {**self.inputs, **self.outputs}

    def parameters(self, has_states: bool) -> dict[str, str]:
        """Names, and the declarations of these."""
        words = {n: f"int64_t {n}" for n in self.dims.names.values()}
        words |= {n: f"const {STORED[v.dtype]} *{n}" for n, v in self.inputs.items()}
        words |= {n: f"{STORED[v.dtype]} *{n}" for n, v in self.outputs.items()}
        memory = ("state", "arena") if has_states else ("arena",)
        return words | {n: f"void *{n}" for n in memory}

    def declaration(self, has_states: bool) -> str:
        return f"int {self.name}({', '.join(self.parameters(has_states).values())})"


def calls(model: Model) -> list[Call]:
    """main is NAME_run; another one is NAME_ENTRY, and so are its macros."""
    graph, out = model.code.graph, list[Call]()
    entries = graph.base.entries
    used = {"weights", *(k.symbol for k in model.kernels)}
    for e in entries:
        lists = lists_of(model.code, e.name)
        (word,) = _names(["run" if e.name == "main" else e.name], used)
        macro = model.upper if len(entries) == 1 else f"{model.upper}_{word.upper()}"
        own = [d for d in graph.dims if d in dims_in(e) and d != e.repeat]
        taken = {*TAKEN.split()}
        if own:
            taken |= LOCAL | {f"bucket{i}" for i in range(len(graph.entries))}
        inputs, outputs = [n.name for n in e.inputs], [name for name, _ in e.outputs]
        names = _names([*own, *inputs, *outputs], taken)
        dims = Dims(dict(zip(own, names, strict=False)), graph.dims)
        names = names[len(own) :]
        given = dict(zip(names, e.inputs, strict=False))
        made = dict(zip(names[len(given) :], (n for _, n in e.outputs), strict=True))
        buckets = tuple(Bucket(p, b, _copies(names, b, model.room)) for p, b in lists)
        out.append(Call(f"{model.name}_{word}", macro, dims, given, made, buckets))
    return out


def _copies(names: Sequence[str], bucket: Entry, at: int) -> tuple[Copy, ...]:
    """The tensors of a bucket whose extents a run decides, from this byte of the arena on."""
    out = list[Copy]()
    tensors = (*bucket.inputs, *(n for _, n in bucket.outputs))
    for name, n in zip(names, tensors, strict=True):
        if is_live(n):
            out.append(Copy(name, n, at, len(out)))
            at = out[-1].end
    return tuple(out)


def _names(wanted: Iterable[str], taken: set[str]) -> list[str]:
    """C names that differ in more than case."""
    out = []
    for text in wanted:
        name = re.sub(r"\W", "_", text, flags=re.ASCII)
        name = name if name and not name[0].isdigit() else f"v{name}"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        out.append(name)
    return out


# ---- texts


def header(model: Model) -> str:
    """include/NAME.h: all that a program needs to know."""
    up = model.upper
    libm = ", but libm" if model.libm else ""
    flags = " ".join((*FLAGS, *model.code.target.flags))
    lines = [
        f"/* {model.name}.h - a network{MARK.decode()}{__version__} for {model.code.target.name}.",
        " *",
        f" * It calls nothing{libm}: no files, no threads, no allocation. A function returns 0,",
        f" * or 1 if memory that it is given is not aligned to {up}_ALIGN. It writes to that and",
        " * to its outputs only, so calls that have an arena each may run at the same time.",
        " * Tensors are dense and row-major; inputs and outputs must not overlap.",
        " *",
        f" *   static _Alignas({up}_ALIGN) char arena[{up}_ARENA_BYTES];",
        " *",
        " * To build it: add_subdirectory of CMake, or gcc or clang with the sources and",
        f" *   {flags}",
        " * It is right without these flags, but slow; with -ffast-math it is wrong. */",
        f"#ifndef {up}_H",
        f"#define {up}_H",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {up}_ALIGN {ALIGN}",
        f"#define {up}_ARENA_BYTES {model.arena} /* what it holds does not matter */",
        *_dims(model),
        *_states(model),
    ]
    for call in model.calls:
        lines.append("")
        for name, n in call.tensors.items():
            lines += _count(f"{call.macro}_{name.upper()}_COUNT", n, call.dims)
        lines.append(f"{call.declaration(bool(model.states[1]))};")
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def _count(macro: str, n: Node, dims: Dims) -> Iterable[str]:
    """How many elements a tensor has: at most, and for dims."""
    shape = f"{n.dtype.value}{shape_text(n.shape)}"
    if not is_live(n):
        yield f"#define {macro} {n.size} /* {shape} */"
        return
    own = [dims.names[d] for d in dims.of(n)]
    within = Dims({d: f"({name})" for d, name in dims.names.items()}, dims.known)
    count = " * ".join(within.factor(e) for e in n.shape)
    yield f"#define {macro} {n.size} /* {shape} at most */"
    yield f"#define {macro}_OF({', '.join(own)}) ({count})"


def _dims(model: Model) -> list[str]:
    lines = ["/* What dims may be, both ends included; what a function returns for others. */"]
    for i, (name, d) in enumerate(model.dims.items()):
        macro = f"#define {model.upper}_DIM_{name.upper()}"
        lines += [f"{macro}_LEAST {d.values[0]}", f"{macro}_MOST {d.values[-1]}"]
        lines += [f"{macro}_MULTIPLE {d.multiple}", f"{macro}_WRONG {WRONG + i}"]
    return lines if model.dims else []


def _states(model: Model) -> list[str]:
    places, nbytes = model.states
    if not nbytes:
        return []
    names = _names([s.name for s in model.code.graph.states], {"bytes"})
    first = "what this writes" if model.begun else "zeros"
    lines = [
        f"/* What a model remembers between calls: {first} before the first one. */",
        *([f"{model.begun};"] if model.begun else []),
        f"#define {model.upper}_STATE_BYTES {nbytes}",
    ]
    for name, at, s in zip(names, places, model.code.graph.states, strict=True):
        shape = ", ".join(map(str, s.shape))
        macro = f"{model.upper}_STATE_{name.upper()}"
        lines.append(f"#define {macro} {at} /* where {s.dtype.value}[{shape}] starts */")
    return lines


def kernel(model: Model, code: KernelCode) -> str:
    return f'#include "{model.name}_kernels.h"\n{code.source}'


def kernels(model: Model, nbytes: int) -> str:
    """src/NAME_kernels.h: names that no other model and no program has."""
    hidden = '__attribute__((visibility("hidden")))'
    lines = [
        f"#ifndef {model.upper}_KERNELS_H",
        f"#define {model.upper}_KERNELS_H",
        "#include <stdint.h>",
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__",
        f'#error "{model.name} is for little-endian machines"',
        "#endif",
        '#pragma GCC diagnostic ignored "-Wpsabi" /* of functions that no other file calls */',
    ]
    if nbytes:
        lines.append(f"extern const uint64_t {model.name}_weights[{nbytes // 8}] {hidden};")
    for k in model.kernels:
        mine = f"{model.name}_{k.symbol}"
        lines.append(f"#define {k.symbol} {mine}")
        lines.append(f"void {mine}(void *const *args, long part, long nparts) {hidden};")
    return "\n".join([*lines, "#endif", ""])


def constant(model: Model, data: bytes) -> str:
    """src/NAME_weights.c: little-endian words, four a line."""
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    rows = (", ".join(f"{w:#x}" for w in words[i : i + 4]) for i in range(0, len(words), 4))
    first = f'#include "{model.name}_kernels.h"\n_Alignas({ALIGN}) const uint64_t '
    return f"{first}{model.name}_weights[{len(words)}] = {{\n" + ",\n".join(rows) + "};\n"


def included(model: Model) -> str:
    """src/NAME_weights.S: the same from a file, which no compiler has to read as text."""
    return f"""/* The weights of {model.name}. Compile it with -I and the folder of the .bin. */
#if defined(__APPLE__)
  .section __TEXT,__const
  .private_extern _{model.name}_weights
  .p2align 6
_{model.name}_weights:
#else
#if defined(_WIN32)
  .section .rdata,"dr"
#else
  .section .rodata
  .hidden {model.name}_weights
#endif
  .globl {model.name}_weights
  .balign {ALIGN}
{model.name}_weights:
#endif
  .incbin "{model.name}_weights.bin"
#if defined(__ELF__)
  .section .note.GNU-stack,"",%progbits
#endif
"""


def cmake(model: Model, names: Iterable[str]) -> str:
    """CMakeLists.txt: a static library, whose target has the model's name."""
    name, up = model.name, model.upper
    sources = "".join(f"\n  src/{n}" for n in names)
    libm = f"target_link_libraries({name} PUBLIC m)\n" if model.libm else ""
    return f"""# {name}, made by lumc {__version__}
# In your project: add_subdirectory({name}) and target_link_libraries(program {name})
cmake_minimum_required(VERSION 3.13)
project({name} LANGUAGES C ASM)
if(NOT CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  message(FATAL_ERROR "{name} needs gcc or clang: its kernels use their vectors")
endif()
set({up}_CPU "{";".join(model.code.target.flags)}" CACHE STRING "flags: what the kernels may use")
add_library({name} STATIC{sources})
target_include_directories({name} PUBLIC include PRIVATE src)
target_compile_options({name} PRIVATE {" ".join(f for f in FLAGS if "std" not in f)} ${{{up}_CPU}})
set_target_properties({name} PROPERTIES C_STANDARD 11 C_EXTENSIONS ON
  C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
{libm}"""
