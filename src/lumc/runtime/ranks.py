"""Runs a bundle for a mesh from one process: all of its ranks are started here for every run, as
``lumc-run --mesh`` starts them. States stay in this process, whole, between runs."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lumc.bundle import manifest
from lumc.bundle.packing import Array
from lumc.bundle.reader import Plan
from lumc.bundle.restore import FILE, graph_of, weight_reader
from lumc.bundle.unpack import opened
from lumc.disk.artifact import corrupt
from lumc.errors import Exit, LumcError
from lumc.graph.ranks import EXCHANGING
from lumc.runtime.opened import NO_DIMS, Opened, Part, Say, entries_of, kinds_of, plans_of, usage

RUNNER = "bin/lumc-run"
UNTIMED = "ranks are timed by themselves: lumc-run BUNDLE --mesh --repeat N"


class Bundle(Opened):
    """A bundle whose ranks are processes. Use ``Bundle.open``."""

    def __init__(self, path: Path, plan: Plan, closing: ExitStack, device: str = "cpu") -> None:
        assert plan.mesh
        self.device = device
        self._plan, self._closing = plan, closing
        states = plan.mesh.whole(plan.states)
        first = dict[str, Array]()
        if begun := [n for n in graph_of(path).states if n.file]:
            read = weight_reader(path)  # it hashes all of them
            first = {n.name: read(n) for n in begun}
        super().__init__(path, entries_of(plan), states, first)
        self.dims = plan.dims
        self._open, self._values = True, dict[str, Array]()
        self.reset()

    @staticmethod
    def open(
        path: str | Path,
        cache: Path | None = None,
        device: str = "",
        say: Say = lambda _: None,
    ) -> Bundle:
        """Check every hash; that of the weights is left to the ranks. One file is unpacked under
        ``cache``, or into a temporary folder. The ranks run on CPUs or GPUs, by default on the
        latter if they work here; ``say`` hears why not. Raises E0501 (exit 5) for anything damaged
        or changed, E0708 (exit 7) for a bundle that has no plan for the device, and E0610 for one
        that is for one process."""
        with ExitStack() as stack:
            folder = stack.enter_context(opened(path, cache))
            files = manifest.read(folder)["files"]
            for name, digest in files.items():
                if name != FILE:
                    manifest.check_file(folder, name, digest)
            kind = device or _best(kinds_of(files), say)
            plan = plans_of(folder, files, kind)[0]  # in all of them the ends are equal
            if not plan.mesh:
                raise usage("this bundle is for one process: leave --mesh out")
            if RUNNER not in files:
                raise corrupt(f"the manifest has no hash of {RUNNER}", str(path))
            return Bundle(folder, plan, stack.pop_all(), kind)

    def run(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> dict[str, Array]:
        """Run an entry on whole arrays by name, on all ranks, each with so many threads; ``say``
        hears of every conversion that was needed. Raises E0610 and E0611 with what the first rank
        that failed says."""
        call = self.call(inputs, entry, say, dims)
        spec = self.entry(entry)
        words = ["--entry", spec.name, "--threads", str(threads)]
        counter = self._plan.counter(self._plan.entries[call.number])
        own = {} if counter is None else {[*self.dims][counter]: 0}
        for name, value in call.dims.items():
            words += ["--dim", f"{name}={value}"] if name not in own else []
        with tempfile.TemporaryDirectory(prefix="lumc-") as held:
            folder = Path(held)
            for i, (t, array) in enumerate(zip(spec.inputs, call.arrays, strict=True)):
                np.save(folder / f"{i}.npy", array)
                words += ["--input", f"{t.name}={folder / str(i)}.npy"]
            before, after = folder / "before.safetensors", folder / "after.safetensors"
            if self.states:
                self.save_state(before)
                words += ["--state", str(before), "--save", str(after)]
            self._start([*words, "-o", str(folder / "out.npz")])
            with np.load(folder / "out.npz") as made:
                found = {t.name: made[t.name].view(t.dtype.numpy) for t in call.outputs}
            if self.states:
                self.load_state(after)
        return found

    def _start(self, words: list[str]) -> None:
        if not self._open:
            raise usage("the bundle is closed")
        own = ["--mesh", "--device", self.device]
        command = [str(self.path / RUNNER), str(self.path), *own, *words]
        try:
            done = subprocess.run(command, capture_output=True)
        except OSError as e:
            what = f"{RUNNER} does not start here: {e.strerror}"
            raise LumcError("E0704", what, where=str(self.path), exit=Exit.TOOLCHAIN) from None
        if done.returncode:
            self._fail(done.returncode, done.stderr.decode(errors="replace").strip())

    def _fail(self, code: int, said: str) -> NoReturn:
        if code < 0:
            said = f"the ranks were ended by {signal.Signals(-code).name}"
        said = said.removeprefix("lumc-run: ")
        if code == Exit.CORRUPT:
            raise corrupt(said, str(self.path))
        known = {Exit.TOOLCHAIN: "E0704", Exit.USAGE: "E0610"}
        own = next((e for e in known if e == code), Exit.FAILED)
        raise LumcError(known.get(own, "E0611"), said, where=str(self.path), exit=own)

    def trace(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> tuple[dict[str, Array], list[Part]]:
        """Raises E0610: no clock is common to all ranks."""
        raise usage(UNTIMED)

    def bench(
        self,
        inputs: Mapping[str, Any],
        entry: str = "",
        threads: int = 1,
        seconds: float = 1.0,
        say: Say = warnings.warn,
        dims: Mapping[str, int] = NO_DIMS,
    ) -> list[float]:
        """Raises E0610: starting the ranks is no part of a run."""
        raise usage(UNTIMED)

    def state(self) -> dict[str, Array]:
        """A copy of every state, whole."""
        return {name: value.copy() for name, value in self._values.items()}

    def _write_state(self, i: int, value: Array) -> None:
        self._values[self.states[i].name] = np.array(value)

    def close(self) -> None:
        """Forget what was unpacked."""
        self._open = False
        self._closing.close()


def _best(there: Sequence[str], say: Say) -> str:
    """The kind of device that ranks run on: GPUs, unless they do not work here and CPUs may."""
    kinds = [kind for kind in EXCHANGING if kind in there]
    if kinds != list(EXCHANGING):
        return kinds[0] if kinds else "cpu"  # which is refused
    from lumc.runtime.cuda import problem

    if found := problem():
        say(f"not on cuda: {found.what}")
    return "cpu" if found else "cuda"
