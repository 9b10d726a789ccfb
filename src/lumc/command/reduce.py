"""``lumc reduce``: the smallest graph on which a command still ends as it does on the given one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lumc.artifacts import files
from lumc.command.shrink import Search, Size
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.graph.graph import Graph
from lumc.graph.text import print_graph
from lumc.report.log import Log, interruptible

SAID_S = 2.0  # between two lines of progress
HUNG = "no end"


def reduce_graph(source: str, check: str, output: str, seconds: float) -> None:
    """Write the smaller graph. Raises E0210 where the command finds nothing, or is none."""
    log = Log()
    artifact.check_writable(output)
    graph, command = files.read_graph(source, {}), words(check)
    folder = Path.cwd() if source == "-" else Path(source).resolve().parent
    with candidate_file(folder) as file:
        fault = run(command, file, graph, seconds)
        if fault == 0:
            what = f"--check {check}: it ends with 0 on {source}, so it shows no fault"
            fix = "give a command that ends with another status where the fault is"
            raise LumcError("E0210", what, fix=fix, exit=Exit.USAGE)
        log(0, f"reduce: {Size.of(graph)}; the check ends with {fault}")
        with interruptible(log) as stopped:
            search = Search(
                graph, lambda g: run(command, file, g, seconds) == fault, Teller(log), stopped
            )
            search.run()
            early = stopped()
    artifact.write_text(output, text_of(search.graph, output))
    log(0, f"reduce: {Size.of(graph)} -> {search.size}; {search.tries} tries")
    if early:
        raise LumcError("E0210", "reduce was stopped: it can be smaller", exit=Exit.INTERRUPTED)


class Teller:
    """Says how far it is, now and then."""

    def __init__(self, log: Log) -> None:
        self.log, self.last = log, time.monotonic()

    def __call__(self, size: Size, tries: int) -> None:
        if time.monotonic() - self.last > SAID_S:
            self.last = time.monotonic()
            self.log(0, f"reduce: {size} after {tries} tries")


def words(check: str) -> list[str]:
    """The command, of which no shell is made. Raises E0210."""
    try:
        found = shlex.split(check)
    except ValueError as e:
        raise LumcError("E0210", f"--check {check}: {e}", exit=Exit.USAGE) from None
    if found:
        return found
    raise LumcError("E0210", "--check is empty", exit=Exit.USAGE)


@contextmanager
def candidate_file(folder: Path) -> Iterator[Path]:
    """A file for candidates, beside the graph: weights are named from there."""
    place = folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
    handle, name = tempfile.mkstemp(prefix=".reduce.", suffix=".lg", dir=place)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def run(command: Sequence[str], file: Path, graph: Graph, seconds: float) -> int | str:
    """How the command ends on a graph: its exit status, or that it does not end."""
    file.write_text(text_of(graph, str(file)))
    whole = [str(file) if w == "{}" else w for w in command]
    whole += [] if "{}" in command else [str(file)]
    quiet = subprocess.DEVNULL
    try:
        child = subprocess.Popen(whole, stdin=quiet, stdout=quiet, stderr=quiet, process_group=0)
    except OSError as e:
        what = f"--check: cannot run {whole[0]}: {e.strerror}"
        raise LumcError("E0210", what, exit=Exit.USAGE) from None
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return HUNG
    finally:
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def text_of(graph: Graph, path: str) -> str:
    """The graph as a file at this path."""
    base = Path.cwd() if path == "-" else Path(path).resolve().parent
    return print_graph(graph, lambda f: files.relative(f, base))
