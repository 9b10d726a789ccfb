"""How many lines of Python some work takes: a measure of its time that is the same every time."""

from __future__ import annotations

import ctypes
import functools
import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lumc.link.toolchain import find


@functools.cache
def _tracer() -> ctypes.CDLL:
    """The compiled ``steps.c``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.so"
        source = Path(__file__).with_suffix(".c")
        command = [*find().command, "-O2", "-shared", "-fPIC", "-o", str(out), str(source)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(out))


def steps(work: Callable[[], object]) -> int:
    """Lines that ``work`` runs in this thread, those of comprehensions, generators and libraries
    included. It starts with empty caches."""
    gc.unfreeze()  # what is frozen is in no list
    every = gc.get_objects()
    gc.freeze()
    for known in every:
        if isinstance(known, functools._lru_cache_wrapper) and known is not _tracer:
            known.cache_clear()
    tracer = _tracer()
    count = ctypes.c_long.in_dll(tracer, "lines")
    count.value = 0
    before = sys.gettrace()
    set_trace = ctypes.pythonapi.PyEval_SetTrace
    set_trace.argtypes, set_trace.restype = [ctypes.c_void_p, ctypes.py_object], None
    set_trace(ctypes.cast(tracer.on_event, ctypes.c_void_p), None)
    try:
        work()
    finally:
        sys.settrace(before)
    return count.value
