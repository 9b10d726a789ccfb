"""Runs a bundle on an AMD GPU from Python, through libamdhip64.

``lumc-run`` of a bundle does the same without Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lumc.bundle import manifest
from lumc.bundle.reader import Plan
from lumc.bundle.unpack import opened
from lumc.errors import Exit, LumcError
from lumc.runtime import amd
from lumc.runtime.captured import Captured
from lumc.runtime.opened import first_of, plans_of, read_checked, weights_of

# The GPUs that run the kernels for a target, by its family: those with its waves and matrix units.
FAMILIES = {
    "gfx90a": ("gfx90a", "gfx94", "gfx95"),
    "gfx942": ("gfx90a", "gfx94", "gfx95"),
    "gfx1100": ("gfx11",),
    "gfx1201": ("gfx12",),
}


def problem() -> LumcError | None:
    """Why nothing can run on a GPU here; None when it can."""
    try:
        amd.architecture()
    except LumcError as e:
        return e
    return None


class Bundle(Captured):
    """A bundle on the GPU. Use ``Bundle.open``."""

    device = "hip"

    @staticmethod
    def open(path: str | Path, cache: Path | None = None) -> Bundle:
        """Check and load a bundle, a directory or one file, which is unpacked under ``cache`` or
        into a temporary folder.

        Raises E0706 (exit 7) without a GPU, E0708 (exit 7) for a bundle that has no plan for one
        of its family, E0501 (exit 5) for anything damaged or changed.
        """
        with opened(path, cache) as folder:
            files = manifest.read(folder)["files"]
            plans = plans_of(folder, files, "hip")
            here = amd.architecture()
            plan = max(plans, key=lambda p: suits(p.arch, here))
            if not suits(plan.arch, here):
                what = f"this GPU is {here}, the bundle is for {', '.join(p.arch for p in plans)}"
                fix = f"link the model for a target of the family of {here}"
                raise LumcError("E0708", what, fix=fix, exit=Exit.TOOLCHAIN)
            gpu = amd.Gpu()
            image = image_of(folder, files, plan, here)
            read = weights_of(folder, files, plan), first_of(folder, files, plan)
            return Bundle(gpu, Path(path), plan, image, *read)


def suits(arch: str, here: str) -> int:
    """How well a plan that was made for one GPU suits another one: 0 where it does not run."""
    if arch == here:
        return 2
    return int(here.startswith(FAMILIES.get(arch, ())))


def image_of(folder: Path, files: Mapping[str, str], plan: Plan, here: str) -> tuple[bytes, str]:
    """The image for a GPU, and its name; where there is none, of the text."""
    room = f"kernels/{plan.target}"
    if (name := f"{room}/kernels.{here}.hsaco") in files:
        return read_checked(folder, files, name), name
    text, header = f"{room}/kernels.hip", "lumc_hip.h"
    headers = {header: read_checked(folder, files, f"{room}/{header}")}
    return amd.compiled(read_checked(folder, files, text), headers, here), text
