"""What the texts of CUDA and HIP have in common: a kernel is a global function, and shared memory
is one array of bytes."""

from __future__ import annotations

from collections.abc import Sequence

from lumc.codegen.gpu.writer import GpuWriter
from lumc.codegen.text.statements import bare
from lumc.codegen.text.writer import title


def kernel(w: GpuWriter, header: str, bounds: str, symbol: str, body: Sequence[str]) -> list[str]:
    """The lines of a kernel, whose text includes ``header`` and needs nothing else; ``bounds`` of
    its launches: the threads of a block, and what else the compiler is told."""
    together = f"LUMC_BLOCKS({w.d.blocks}) " if w.d.blocks > 1 else ""
    head = f'extern "C" __global__ void {together}__launch_bounds__({bounds})'
    ends = ", ".join(
        f"{kind} {bare(name)}"
        if space == "map"
        else f"{'const ' * (space == 'constant')}{kind} *__restrict__ {bare(name)}"
        for space, kind, name in w.parameters()
    )
    lines = [f'#include "{header}"', "", *title(w.d.program), head]
    return [*lines, f"{symbol}({ends})", "{", *body, "}", f"LUMC_EXPORT({symbol})"]


def declare(w: GpuWriter, thread: str, block: str) -> None:
    """The indices, as the language calls them, and the shared memory."""
    w.line(f"const unsigned `:tid` = {thread};")
    if w.d.program.tiles > 1:
        w.line(f"const int `:block` = {block};")
    if w.d.shared_bytes:
        w.line("LUMC_SHARED(lumc_u8, `:SHARED`);")


def tile(kind: str, array: str, offset: int, size: int) -> str:
    """The declaration of a shared tile."""
    return f"LUMC_TILE({kind}, {array}, `SHARED`, {offset}, {size});"
