"""The texts of a model as plain C; emit.py writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from lumc import __version__
from lumc.codegen.code import Code, EntryPlan, KernelCode, Launch, Value
from lumc.codegen.text.term import STORED
from lumc.codegen.tile.memory import ALIGN, aligned
from lumc.link.toolchain import GCC_ONLY, KERNEL_FLAGS

MARK = b" as plain C, made by lumc "  # of folders that may be replaced
# what a name of a parameter may not be: in C, in C++, and beside it in the functions
TAKEN = """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
const const_cast constexpr continue decltype default delete do double dynamic_cast else enum
explicit export extern false float for friend goto if inline int linux long mutable namespace new
noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
restrict return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename typeof union unix unsigned using virtual void
volatile wchar_t while xor xor_eq null arena state at states scratch weights"""
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

    @property
    def arena(self) -> int:
        return max(self.scratch + max(aligned(k.scratch_bytes) for k in self.kernels), ALIGN)

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        return self.code.kernels

    @cached_property
    def states(self) -> tuple[list[int], int]:
        """Where each state lies in the caller's memory, and the size of that."""
        places, at = [], 0
        for s in self.code.graph.states:
            places.append(at)
            at = aligned(at + prod(int(str(n)) for n in s.shape) * s.dtype.nbytes)
        return places, at

    @property
    def libm(self) -> bool:
        return any(LIBM.search(k.source) for k in self.kernels)


@dataclass(frozen=True)
class Call:
    """The C function of an entry: its name, what its macros start with, the names of what it takes
    and of what it writes."""

    name: str
    macro: str
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]

    def declaration(self, has_states: bool) -> str:
        words = [f"const {STORED[v.dtype]} *{n}" for n, v in self.inputs.items()]
        words += [f"{STORED[v.dtype]} *{n}" for n, v in self.outputs.items()]
        words += ["void *state"] * has_states + ["void *arena"]
        return f"int {self.name}({', '.join(words)})"


def calls(model: Model) -> list[Call]:
    """main is NAME_run; another entry is NAME_ENTRY, and so are its macros."""
    entries, out = model.code.entries, list[Call]()
    used = {"weights", *(k.symbol for k in model.kernels)}
    for e in entries:
        (word,) = _names(["run" if e.name == "main" else e.name], used)
        macro = model.upper if len(entries) == 1 else f"{model.upper}_{word.upper()}"
        inputs, outputs = e.place("input"), e.place("output")
        names = _names([*(v.name for v in inputs), *e.outputs], set(TAKEN.split()))
        first = dict(zip(names, inputs, strict=False))
        rest = dict(zip(names[len(inputs) :], outputs, strict=True))
        out.append(Call(f"{model.name}_{word}", macro, first, rest))
    return out


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
    up, functions = model.upper, calls(model)
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
        *_states(model),
    ]
    for call in functions:
        lines.append("")
        for name, v in (*call.inputs.items(), *call.outputs.items()):
            shape = ", ".join(map(str, v.shape))
            macro = f"{call.macro}_{name.upper()}_COUNT"
            lines.append(f"#define {macro} {prod(v.shape)} /* {v.dtype.value}[{shape}] */")
        lines.append(f"{call.declaration(bool(model.states[1]))};")
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def _states(model: Model) -> list[str]:
    places, nbytes = model.states
    if not nbytes:
        return []
    names = _names([s.name for s in model.code.graph.states], {"bytes"})
    lines = [
        "/* What a model remembers between calls: zeros before the first one. */",
        f"#define {model.upper}_STATE_BYTES {nbytes}",
    ]
    for name, at, s in zip(names, places, model.code.graph.states, strict=True):
        shape = ", ".join(map(str, s.shape))
        macro = f"{model.upper}_STATE_{name.upper()}"
        lines.append(f"#define {macro} {at} /* where {s.dtype.value}[{shape}] starts */")
    return lines


def launches(model: Model, offsets: Mapping[str, int]) -> str:
    """src/NAME.c: the kernels of every entry, in order."""
    lines = [f'#include "{model.name}.h"', f'#include "{model.name}_kernels.h"']
    for call, entry in zip(calls(model), model.code.entries, strict=True):
        places = _places(model, call, entry, offsets)
        ran = [_launch(model, launch, places) for launch in entry.launches]
        has_states, body = bool(model.states[1]), "\n".join(ran)
        checked = ["arena", "state"] if has_states else ["arena"]
        wrong = " || ".join(f"!{n} || (uintptr_t){n} % {model.upper}_ALIGN" for n in checked)
        lines += ["", f"{call.declaration(has_states)} {{"]
        lines += ["  char *at = arena, *scratch = at + " + f"{model.scratch};"]
        if "weights +" in body:
            lines.append(f"  const char *weights = (const char *){model.name}_weights;")
        if "states +" in body:
            lines.append("  char *states = state;")
        lines += [f"  if ({wrong}) return 1;", *ran, "  (void)scratch;", "  return 0;", "}"]
    return "\n".join([*lines, ""])


def _places(
    model: Model, call: Call, entry: EntryPlan, offsets: Mapping[str, int]
) -> Mapping[str, str]:
    """What a kernel is given for each value."""
    places = {"": "0"}
    for v in entry.values:
        if v.place == "arena":
            places[v.name] = f"at + {v.offset}"
        elif v.place == "state":
            places[v.name] = f"states + {model.states[0][v.offset]}"
        elif v.place in ("weight", "packed"):
            places[v.name] = f"(void *)(weights + {offsets[v.name]})"
    places |= {v.name: f"(void *){n}" for n, v in call.inputs.items()}
    return places | {v.name: n for n, v in call.outputs.items()}


def _launch(model: Model, launch: Launch, places: Mapping[str, str]) -> str:
    args = ", ".join([*(places[a] for a in launch.args), "scratch"])
    return f"  {model.name}_{launch.kernel}((void *const[]){{{args}}}, 0, 1);"


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
