"""NVRTC as a command, so that it is started, timed out and cached like any other compiler:

    python nvrtc.py libnvrtc.so -cubin|-ptx -arch=sm_90 [options of NVRTC] SOURCE -o OUTPUT
    python nvrtc.py libnvrtc.so --version

Headers are looked for in the current folder. This file is run as a script and imports nothing of
lumc.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def main(library_path: str, *words: str) -> int:
    """Exit code 1, and what NVRTC says on stderr, when it refuses the source."""
    library = ctypes.CDLL(library_path)
    if words == ("--version",):
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        print(f"NVRTC {major.value}.{minor.value}")
        return 0
    for builtins in Path(library_path).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC asks for it by name, which is enough once it is loaded
    kind, *flags, source, _, output = words
    folders = [Path.cwd(), Path(library_path).parent.parent / "include"]
    flags += [f"-I{f}" for f in folders]
    return compile_text(library, Path(source), Path(output), kind[1:].upper(), flags)


def compile_text(
    library: ctypes.CDLL, source: Path, output: Path, kind: str, flags: list[str]
) -> int:
    program = ctypes.c_void_p()
    none: tuple[object, ...] = (0, None, None)
    text, name = source.read_bytes(), source.name.encode()
    code = library.nvrtcCreateProgram(ctypes.byref(program), text, name, *none)
    words = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
    code = code or library.nvrtcCompileProgram(program, len(flags), words)
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        said = fetch(library, program, "ProgramLog") if program else b""
        print(f"{library.nvrtcGetErrorString(code).decode()}\n{said.decode()}", file=sys.stderr)
        return 1
    output.write_bytes(fetch(library, program, kind).removesuffix(b"\0" * (kind == "PTX")))
    return 0


def fetch(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """What nvrtcGetWHATSize and nvrtcGetWHAT give."""
    size = ctypes.c_size_t()
    library[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    library[f"nvrtcGet{what}"](program, data)
    return data.raw


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
