"""Metal kernels on the CPU: the text, compiled against a stand-in for Apple's headers, runs on the
emulator with the interface of ``emulator.py``."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import emulator
from gpu.msl_text import (
    ATTRIBUTE,
    CONSTANT,
    Function,
    Parameter,
    kernels,
    line_of,
    without_comments,
)
from lumc.codegen.gpu.grid import Grid

HEADERS = Path(__file__).parent / "gpu" / "metal"
NAME = "kernels.metal"
KEPT = "LUMC_FAKE_METAL_KEPT"  # the folder that the fake Metal keeps libraries in
STANDARD = "metal_(?:stdlib|math|atomic|simdgroup|simdgroup_matrix)"  # headers of Metal


@dataclass
class Module:
    """Compiled kernels, by symbol; ``constants`` are the function constants by index."""

    inner: emulator.Module
    constants: dict[int, Any] = field(default_factory=dict)

    def threadgroup_bytes(self, symbol: str) -> int:
        """What the threadgroup arrays of a kernel take."""
        return self._number(f"lumc_msl_shared_{symbol}")

    def launch(
        self,
        symbol: str,
        grid: Grid,
        arguments: Sequence[np.ndarray[Any, Any]],
        order: str = "forward",
        seed: int = 0,
    ) -> str:
        """Run a kernel on arrays, one for each buffer, as ``emulator.Module.launch`` does; the
        shared memory is that of the kernel's arrays."""
        for index, value in self.constants.items():
            setter = getattr(ctypes.CDLL(str(self.inner.path)), f"lumc_msl_constant_{index}")
            setter(ctypes.c_void_p(np.asarray(value).ctypes.data))
        sized = Grid(grid.blocks, grid.threads, self.threadgroup_bytes(symbol))
        return self.inner.launch(symbol, sized, arguments, order, seed)

    def _number(self, name: str) -> int:
        return ctypes.c_uint32.in_dll(ctypes.CDLL(str(self.inner.path)), name).value


def build(
    source: str,
    folder: Path,
    checked: bool = False,
    constants: Mapping[int, Any] | None = None,
) -> Module:
    """Compile Metal text; AssertionError tells what g++ said, with the lines of that text."""
    path = emulator.compile_shared([translate(source)], folder, checked)
    found = list(kernels(without_comments(source)))
    parameters = {f.name: tuple(p.name for p in _buffers(f)) for f in found}
    bounds = {f.name: _most_threads(f) for f in found}
    return Module(emulator.Module(path, parameters, bounds), dict(constants or {}))


@cache
def _headers() -> str:
    """Names the headers by what is in them: a text is compiled again when they change."""
    text = b"".join(p.read_bytes() for p in sorted(HEADERS.iterdir()))
    return f"// {hashlib.sha256(text).hexdigest()}\n"


def translate(source: str) -> str:
    """C++ of a Metal text: threadgroup arrays become members of one struct per kernel, and every
    kernel gets an entry that fills in what its attributes deliver."""
    plain = without_comments(source)
    edits, tail = list(_constants(plain)), []
    for f in kernels(plain):
        edits.append((f.start, f.start, _layout(f, line_of(plain, f.start))))
        for local in f.locals:
            if local.depth != 1:
                line = line_of(plain, local.start)
                raise ValueError(f"{NAME}:{line}: a threadgroup array in an inner block")
            arrays = " ".join(_array(f.name, local.type, n) for n, _ in local.declarators)
            edits.append((local.start, local.end, arrays))
        tail.append(_entry(f))
    out = plain
    for start, end, text in sorted(edits, reverse=True):
        out = out[:start] + text + out[end:]
    out = re.sub(rf"#include\s*<({STANDARD})>", "", ATTRIBUTE.sub("", out))
    head = f'{_headers()}#include "{HEADERS}/metal_stdlib.h"\n#line 1 "{NAME}"\n'
    return head + out + "\n" + "\n".join(tail)


def _constants(plain: str) -> list[tuple[int, int, str]]:
    """A function constant becomes a variable, and a function that sets it."""
    out = []
    for m in CONSTANT.finditer(plain):
        plainly = '__attribute__((no_sanitize("thread")))'
        setter = f"LUMC_API {plainly} void lumc_msl_constant_{m[3]}(const {m[1]} *v)"
        text = f"static {m[1]} {m[2]}; {setter} {{ {m[2]} = *v; }} static_assert(true)"
        out.append((m.start(), m.end(), text))
    return out


def _layout(f: Function, line: int) -> str:
    """A struct of a kernel's threadgroup arrays."""
    members = "".join(
        f" alignas(16) {local.type} {name}{extents};"
        for local in f.locals
        for name, extents in local.declarators
    )
    size = f"sizeof(lumc_shared_{f.name})" if members else "0"
    limit = "more than 32 KB of threadgroup memory"
    return (
        f"struct lumc_shared_{f.name} {{{members} }};"
        f" LUMC_API const uint32_t lumc_msl_shared_{f.name} = {size};"
        f' static_assert({size} <= 32768, "{limit}");\n#line {line}\n'
    )


def _array(kernel: str, type: str, name: str) -> str:
    member = f"lumc_shared_{kernel}, {name}"
    what = f'decltype(lumc_shared_{kernel}::{name})>("{name}", offsetof({member}), sizeof({type})'
    return f"auto &{name} = lumc_msl::threadgroup_array<{what});"


def _most_threads(f: Function) -> int:
    return f.attribute("max_total_threads_per_threadgroup") or 1024


def _buffers(f: Function) -> list[Parameter]:
    found = (p for p in f.parameters if p.attribute == "buffer")
    return sorted(found, key=lambda p: p.index or 0)


def _entry(f: Function) -> str:
    """What the emulator calls, with a pointer for every buffer in their order."""
    order = {p.name: i for i, p in enumerate(_buffers(f))}
    given = ", ".join(_given(p, order) for p in f.parameters)
    return (
        f"LUMC_API const uint32_t lumc_msl_threads_{f.name} = {_most_threads(f)};\n"
        f"static LUMC_INSIDE void lumc_call_{f.name}(void *const *buffers)"
        f" {{ (void)buffers; {f.name}({given}); }}\n"
        f"static lumc_msl::Export lumc_export_{f.name}"
        f'("{f.name}", lumc_call_{f.name}, {len(order)});\n'
    )


def _given(p: Parameter, order: Mapping[str, int]) -> str:
    if p.attribute != "buffer":
        return f"lumc_msl::{p.attribute}()"
    pointer = f"({p.type.replace('&', '*')})buffers[{order[p.name]}]"
    return f"*{pointer}" if "&" in p.type else pointer


def main(text: str, folder: str) -> int:
    """What the fake Metal compiles texts with: prints the library, or what is wrong."""
    try:
        print(build(Path(text).read_text(), Path(os.environ.get(KEPT, folder))).inner.path)
    except (AssertionError, ValueError) as e:
        print(e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
