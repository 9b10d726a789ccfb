"""Which device a bundle runs on."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from lumc.bundle import manifest
from lumc.bundle.unpack import opened
from lumc.errors import Exit, LumcError
from lumc.runtime.opened import Opened, Say, kinds_of

# The best first. Each module has a class Bundle with an ``open``, and ``problem()``, which says why
# nothing of its kind can run here.
RUNTIMES = {kind: f"lumc.runtime.{kind}" for kind in ("cuda", "hip", "metal", "cpu")}
NO_PLAN = "E0708"


def open_bundle(
    path: str | Path,
    device: str = "",
    cache: Path | None = None,
    say: Say = lambda _: None,
    mesh: bool = False,
) -> Opened:
    """Open a bundle on a device, or on the first of those that it has a plan for and that work
    here; ``say`` hears which were passed over, and why. Of a ``mesh`` all ranks. Raises the error
    of the device that is asked for; E0708, exit 7, when there is no plan for it."""
    if device and device not in RUNTIMES:
        fix = f"one of: {', '.join(RUNTIMES)}"
        raise LumcError("E0708", f"no device '{device}' here", fix=fix, exit=Exit.TOOLCHAIN)
    if mesh:
        from lumc.runtime import ranks

        return ranks.Bundle.open(path, cache, device, say)
    with opened(path, cache) as folder:
        wanted = [device] if device else kinds_in(folder)
        passed = list[str]()
        for kind in wanted:
            runtime = import_module(RUNTIMES[kind])
            found = _opened(runtime, folder, kind, kind == wanted[-1])
            if isinstance(found, LumcError):
                passed.append(f"not on {kind}: {found.what}")
                continue
            for line in passed:
                say(line)
            return found
    raise AssertionError("kinds_in gives one at least")


def _opened(runtime: Any, folder: Path, kind: str, last: bool) -> Opened | LumcError:
    """The bundle on a kind of device, or why there is none that it has a plan for; of the last kind
    that is raised. One rank of a mesh runs on a GPU by the bundle's own library."""
    problem: LumcError | None = runtime.problem()
    if problem and not last:
        return problem
    try:
        if kind != "cpu" and manifest.read(folder).get("mesh"):
            from lumc.runtime import cpu

            return cpu.Bundle.open(folder, device=kind)
        bundle: Opened = runtime.Bundle.open(folder)
    except LumcError as e:
        if last or e.code != NO_PLAN:
            raise
        return e
    return bundle


def kinds_in(folder: Path) -> list[str]:
    """The kinds of device that a bundle has plans for, the best first. Raises E0708."""
    there = kinds_of(manifest.read(folder)["files"])
    if known := [kind for kind in RUNTIMES if kind in there]:
        return known
    what = f"the bundle has plans for {', '.join(there) or 'nothing'} only"
    fix = f"link it for one of: {', '.join(RUNTIMES)}"
    raise LumcError("E0708", what, where=str(folder), fix=fix, exit=Exit.TOOLCHAIN)
