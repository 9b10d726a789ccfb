"""Generated code in tests without a bundle: compile many kernels at once, launch them on arrays."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels import CC, CHECKED, COMMON, aligned
from lumc.artifacts.bodies import code_from_json, code_to_json
from lumc.bundle.packing import pack
from lumc.codegen.code import Code, EntryPlan
from lumc.codegen.text.headers import NAMES, header_of
from lumc.codegen.tile.memory import PAGE
from lumc.graph.graph import Graph, Node
from lumc.graph.text import parse_graph, print_graph
from lumc.kernel.instance import elements_of, whole_of

Array = np.ndarray[Any, Any]
Leaf = Callable[[Node], Array]


GUARDED = "#define LUMC_GUARDED\n"  # of kernels that load anything under a condition


def library(folder: Path, codes: Sequence[Code], flags: Sequence[str]) -> Path:
    """A shared object of the kernels of several codes; those of code ``i`` are ``g{i}_symbol``.

    A warning of the compiler is a failure.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAMES["cpu"]).write_text(header_of("cpu"))
    target = codes[0].target
    # what one of them says before the header, it says for all
    guarded = any(GUARDED in k.source for code in codes for k in code.kernels)
    lanes, header = f"#define LUMC_LANES {target.lanes}\n", f'#include "{NAMES["cpu"]}"\n'
    sources = [lanes + GUARDED * guarded + header]
    for i, code in enumerate(codes):
        for k in code.kernels:
            name = f"g{i}_{k.symbol}"
            own = k.source.replace(k.symbol, name).replace("micro_", f"{name}_micro_")
            sources.append(own.replace(GUARDED, "").removeprefix(lanes + header))
    file, out = folder / "kernels.c", folder / "kernels.so"
    file.write_text("".join(sources))  # in one file: each one more takes a start of the compiler
    command = [CC, *COMMON, *flags, *target.flags, str(file), "-lm", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode and not done.stderr, f"{CC}: {done.stderr[:4000]}"
    return out


class Memory:
    """The values of one entry as memory: separate blocks, or as the plan places them."""

    def __init__(self, code: Code, entry: EntryPlan, leaf: Leaf, parts: int) -> None:
        self.code, self.entry, self.parts = code, entry, parts
        self.arrays: dict[str, Array] = {}
        weights = {w.name: w for w in code.graph.weights}
        arena = aligned((entry.arena_bytes,), np.dtype(np.uint8))
        arena[...] = 0xFF
        for s in code.graph.states:
            if s.name in _own_memory(code, entry):
                self.arrays[s.name] = aligned(s.sizes, s.dtype.numpy)
                self.arrays[s.name][...] = leaf(s)
        for v in entry.values:
            if v.place == "state" or (v.place in ("input", "output") and elements_of(v.name)):
                whole = self.arrays[whole_of(v.name)].reshape(-1)
                part = whole.view(np.uint8)[v.start : v.start + v.nbytes]
                self.arrays[v.name] = part.view(v.dtype.numpy).reshape(v.shape)
                continue
            if v.place == "arena":
                part = arena[v.offset : v.offset + v.nbytes]
                self.arrays[v.name] = part.view(v.dtype.numpy).reshape(v.shape)
                continue
            array = self.arrays[v.name] = aligned(v.shape, v.dtype.numpy)
            array.reshape(-1).view(np.uint8)[...] = 0xFF
            if v.place == "weight":
                array[...] = leaf(weights[v.name])
            elif v.place == "packed":
                packing = code.packings[v.name]
                node = weights[packing.weight]
                array[...] = pack(leaf(node), node.dtype, packing)
            elif v.place == "input":
                array[...] = leaf(inputs_of(code.graph, entry)[v.offset])
        size = max((scratch(k.scratch_bytes) for k in code.kernels), default=0)
        self.scratch = aligned((size * parts,), np.dtype(np.uint8))
        self.scratch[...] = 0xFF

    def after(self, places: Sequence[str] = ("output", "state")) -> dict[str, Array]:
        """Outputs by their public names, states by theirs."""
        outputs = zip(self.entry.outputs, self.entry.place("output"), strict=True)
        found = {name: self.arrays[v.name] for name, v in outputs}
        states = {whole_of(v.name) for v in self.entry.values if v.place == "state"}
        return found | {name: self.arrays[name] for name in sorted(states)}


def scratch(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def inputs_of(graph: Graph, entry: EntryPlan) -> tuple[Node, ...]:
    return graph.entry(entry.name).inputs


def launch(
    lib: ctypes.CDLL,
    prefix: str,
    code: Code,
    entry: EntryPlan,
    address: Callable[[str], int],
    scratch_base: int,
    parts: int,
    turned: bool = False,
) -> None:
    """Every launch in order; its parts one after the other, or from the last to the first."""
    kernels = {k.symbol: k for k in code.kernels}
    for step in entry.launches:
        kernel = kernels[step.kernel]
        where = [address(name) if name else 0 for name in step.args]
        args = (ctypes.c_void_p * (len(where) + 1))(*where, scratch_base)
        count = min(parts, kernel.parallel) if kernel.parallel != 1 else parts
        count = max(1, count)
        for part in reversed(range(count)) if turned else range(count):
            lib[prefix + kernel.symbol](args, ctypes.c_long(part), ctypes.c_long(count))


def run(
    lib: ctypes.CDLL,
    prefix: str,
    code: Code,
    name: str,
    leaf: Leaf,
    parts: int,
    turned: bool = False,
) -> dict[str, Array]:
    """Outputs and written states of an entry."""
    (entry,) = (e for e in code.entries if e.name == name)
    m = Memory(code, entry, leaf, parts)
    launch(
        lib,
        prefix,
        code,
        entry,
        lambda n: m.arrays[n].ctypes.data,
        m.scratch.ctypes.data,
        parts,
        turned,
    )
    return m.after()


# ---- under sanitizers, in a process of its own


def run_checked(
    folder: Path, codes: Sequence[Code], leaves: Sequence[Leaf], parts: int = 2
) -> list[dict[str, dict[str, Array]]]:
    """Per code, outputs by entry. Every value is a block of its own from malloc, so that an
    access outside of one is seen; a fault names the graph that was running."""
    library(folder, codes, CHECKED)
    arrays: dict[str, Array] = {}
    memories: list[dict[str, Memory]] = []
    for i, (code, leaf) in enumerate(zip(codes, leaves, strict=True)):
        (folder / f"{i}.json").write_text(json.dumps(code_to_json(code)))
        (folder / f"{i}.lg").write_text(print_graph(code.graph))
        memories.append({e.name: Memory(code, e, leaf, parts) for e in code.entries})
        for e, (name, m) in enumerate(memories[-1].items()):
            assert name == code.entries[e].name
            own = _own_memory(code, code.entries[e])
            arrays |= {f"{i}/{e}/{j}": m.arrays[n] for j, n in enumerate(own)}
            arrays[f"{i}/{e}/scratch"] = m.scratch
    np.savez(folder / "job.npz", **arrays)
    asan = subprocess.run([CC, "-print-file-name=libasan.so"], capture_output=True, text=True)
    env = {**os.environ, "LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", "import launching; launching.checked_job()"]
    job = [*command, str(folder), str(len(codes)), str(parts)]
    done = subprocess.run(job, capture_output=True, text=True, env=env, timeout=280)
    assert not done.returncode, f"{done.stdout}\n{done.stderr[:4000]}"
    with np.load(folder / "job.npz") as after:
        for i, each in enumerate(memories):
            for e, m in enumerate(each.values()):
                own = _own_memory(m.code, m.entry)
                m.arrays = {n: after[f"{i}/{e}/{j}"] for j, n in enumerate(own)}
    return [{name: m.after() for name, m in each.items()} for each in memories]


def checked_job() -> None:
    """In the other process."""
    folder, count, parts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    lib = ctypes.CDLL(str(folder / "kernels.so"))
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    with np.load(folder / "job.npz") as data:
        arrays = dict(data)
    for i in range(count):
        text = (folder / f"{i}.lg").read_text()
        print(f"{folder}/{i}.lg", flush=True)
        code = code_from_json(json.loads((folder / f"{i}.json").read_text()), parse_graph(text))
        for e, entry in enumerate(code.entries):
            _checked_entry(lib, libc, f"g{i}_", code, entry, arrays, f"{i}/{e}", parts)
    np.savez(folder / "job.npz", **arrays)


def _checked_entry(
    lib: ctypes.CDLL,
    libc: ctypes.CDLL,
    prefix: str,
    code: Code,
    entry: EntryPlan,
    arrays: Mapping[str, Array],
    key: str,
    parts: int,
) -> None:
    mine = {k: a for k, a in arrays.items() if k.rpartition("/")[0] == key}
    memory = {k: libc.malloc(a.nbytes) for k, a in mine.items()}
    for k, a in mine.items():
        ctypes.memmove(memory[k], np.ascontiguousarray(a).ctypes.data, a.nbytes)
    starts = {v.name: v.start for v in entry.values}
    order = {name: f"{key}/{j}" for j, name in enumerate(_own_memory(code, entry))}

    def address(name: str) -> int:
        """Of a part that of its whole value, and so many bytes."""
        return memory[order[whole_of(name)]] + starts[name]

    launch(lib, prefix, code, entry, address, memory[f"{key}/scratch"], parts)
    for k, a in mine.items():
        ctypes.memmove(a.ctypes.data, memory[k], a.nbytes)
        libc.free(memory[k])


def _own_memory(code: Code, entry: EntryPlan) -> list[str]:
    """The values that have memory of their own: parts lie in these."""
    states = {v.offset for v in entry.values if v.place == "state"}
    names = [s.name for i, s in enumerate(code.graph.states) if i in states]
    wholes = [v.name for v in entry.values if whole_of(v.name) == v.name and v.place != "state"]
    return names + wholes
