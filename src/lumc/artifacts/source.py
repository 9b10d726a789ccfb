"""What the text of a kernel from a file may say to its compiler.

It is code, and becomes native code. But compiling it reads no file of the machine that does: of the
preprocessor it has a few lines, and of texts in quotes four, so no path, section or assembler.
"""

from __future__ import annotations

import re

_LINES = re.compile(
    r'#define LUMC_LANES [0-9]{1,3}|#define LUMC_GUARDED|#include "lumc_(?:kernel|dev)\.h"|'
    r" *#pragma GCC unroll [0-9]{1,4}|"
    r" *#pragma omp simd(?: reduction\((?:max|LUMC_TOP|\|):[A-Za-z0-9_]+\)){0,9}"
)
_PHRASES = re.compile(
    r'__asm__\("" : "\+r"\([A-Za-z0-9_]+\)\)|extern "C" __global__ |__builtin_nanf?\(""\)'
)
# quotes, directives, and what a preprocessor takes for these or for the end of a line
_READ = re.compile(r'["#\\]|\?\?|%:|[^ -~]')


def foreign_line(source: str) -> str:
    """The first line that no kernel of lumc has; nothing if there is none."""
    for line in source.split("\n"):
        if _READ.search(_PHRASES.sub("0", line)) and not _LINES.fullmatch(line):
            return ascii(line)[:80]
    return ""
