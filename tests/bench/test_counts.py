"""No row of the zoo computes or loads more than twice what its graph has: counted, not timed.

Every operator and network is exported by torch, imported and planned by estimate. A process beside
the tests keeps torch, as importing it takes longer than an export.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from counting import plan_of, repeats
from lumc.frontend.onnx import import_onnx

BENCH = Path(__file__).parents[2] / "bench"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(BENCH)}
NAMES = "import json; from zoo.case import cases; print(json.dumps([*map(list, cases().values())]))"
EXPORTER = """
import sys
from pathlib import Path
from zoo.case import export, find
reply, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    folder = Path(line.strip())
    try:
        export(find(folder.name), folder)
        print(file=reply, flush=True)
    except Exception as e:
        print(repr(e), file=reply, flush=True)
"""
Export = Callable[[str], Path]


def names() -> list[str]:
    """Of all rows. Without torch there are none; torch takes seconds, so nobody else asks."""
    if not os.environ.get("LUMC_FUZZ") or not all(map(find_spec, ("torch", "transformers"))):
        return []
    command = [sys.executable, "-c", NAMES]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True)
    return [name for suite in json.loads(done.stdout) for name in suite]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Export]:
    """Writes the row of this name as ONNX."""
    process = subprocess.Popen(
        [sys.executable, "-c", EXPORTER],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    asked, replies = process.stdin, process.stdout
    assert asked and replies

    def write(name: str) -> Path:
        folder = tmp_path_factory.mktemp("zoo") / name
        print(folder, file=asked, flush=True)
        problem = replies.readline()
        assert problem == "\n", problem or "the exporter ended"
        return folder / "model.onnx"

    yield write
    process.kill()
    process.wait()


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", names())
def test_no_row_does_more_than_twice_what_its_graph_asks_for(name: str, export: Export) -> None:
    path = export(name)
    try:
        graph = import_onnx(path).graph()
    finally:
        path.unlink()
    found = list(repeats(plan_of(graph)))
    assert not found, "\n".join(found)
