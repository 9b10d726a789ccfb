"""Runs a bundle on an NVIDIA GPU from Python, through pycuda or cuda-bindings.

``lumc-run`` of a bundle does the same without Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lumc.bundle import manifest
from lumc.bundle.reader import Plan
from lumc.bundle.unpack import opened
from lumc.errors import LumcError
from lumc.runtime.captured import Captured
from lumc.runtime.nvidia import Gpu, capability, missing
from lumc.runtime.opened import first_of, plans_of, read_checked, usage, weights_of


def problem() -> LumcError | None:
    """Why nothing can run on a GPU here; None when it can."""
    try:
        capability()
    except LumcError as e:
        return e
    return None


class Bundle(Captured):
    """A bundle on the GPU. Use ``Bundle.open``."""

    device = "cuda"

    @staticmethod
    def open(path: str | Path, cache: Path | None = None) -> Bundle:
        """Check and load a bundle, a directory or one file, which is unpacked under ``cache`` or
        into a temporary folder.

        Raises E0706 (exit 7) without a GPU, E0708 (exit 7) for a bundle that has no plan for one,
        E0501 (exit 5) for anything damaged or changed, E0610 for a bundle for a mesh.
        """
        with opened(path, cache) as folder:
            files = manifest.read(folder)["files"]
            plans = plans_of(folder, files, "cuda")
            if plans[0].mesh:
                raise usage(
                    "ranks on GPUs run by lumc-run: open_bundle starts them, with mesh=True"
                )
            here, gpu = capability(), Gpu()
            plan = max(plans, key=lambda p: _suits(p, here))
            attribute = gpu.drv.device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            _check_shared(plan, gpu.device.get_attribute(attribute), here)
            name = image_of(files, plan.target, here)
            image = read_checked(folder, files, name), name
            read = weights_of(folder, files, plan), first_of(folder, files, plan)
            return Bundle(gpu, Path(path), plan, image, *read)


def _suits(plan: Plan, here: int) -> int:
    """The newest plan that was made for this GPU or an older one, else any."""
    arch = plan.arch.removeprefix("sm_")
    number = int(arch) if arch.isdecimal() else 0
    return number if number <= here else -number


def _check_shared(plan: Plan, most: int, here: int) -> None:
    """Raises E0706, exit 7, when a kernel needs more shared memory than the GPU has."""
    for kernel in plan.kernels:
        if kernel.grid and kernel.grid.shared_bytes > most:
            need = f"{kernel.grid.shared_bytes >> 10} KB of shared memory"
            what = f"kernel {kernel.symbol} needs {need}, this GPU (sm_{here}) has {most >> 10} KB"
            raise missing(what, f"link the model for cuda:sm_{here}")


def image_of(files: Mapping[str, str], target: str, here: int) -> str:
    """The image for a GPU: of its own architecture, an older one of the same generation, or text
    that the driver compiles."""
    for arch in range(here, here // 10 * 10 - 1, -1):
        if (name := f"kernels/{target}/kernels.sm_{arch}.cubin") in files:
            return name
    return f"kernels/{target}/kernels.ptx"
