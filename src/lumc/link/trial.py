"""What was linked is opened and run once, on zeros, before anybody is told that it is there."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from lumc.doing import doing
from lumc.errors import Exit, LumcError

TIMEOUT_S = 600
NO_MEMORY = "out of memory"  # how the runner says so


def run_once(folder: Path, ranks: bool = False) -> list[str]:
    """Every entry of a bundle, by its own runner, on the best device, or by all its ``ranks``;
    nothing on a machine that cannot run any of it, and a note where it has too little memory.
    Raises E0709 when it crashes, is refused or does not end."""
    command = [str(folder / "bin" / "lumc-run"), str(folder), "--check", *["--mesh"][:ranks]]
    doing("running it once")
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
        code, said = done.returncode, done.stderr.decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        code, said = int(Exit.FAILED), f"one run takes more than {TIMEOUT_S} s"
    except OSError:  # a runner for another architecture
        return []
    if code < 0:
        said = f"it ended by {signal.Signals(-code).name}"
    if code == Exit.FAILED and said.endswith(NO_MEMORY):
        return ["not tried here: it needs more memory than this machine has"]
    if code and (code != Exit.TOOLCHAIN or "cannot load" in said):
        what = f"the bundle was linked, but does not run: {said.removeprefix('lumc-run: ')}"
        fix = "try another compiler (--cc), or report it with the .lk file"
        raise LumcError("E0709", what, fix=fix)
    return []
