"""docs/onnx.md: its tables are those of the registry (rewrite them with --update-golden), its
example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
MARK = "<!-- operators: written by tests/docs/test_onnx.py --update-golden -->\n"


def test_tables_are_current(request: pytest.FixtureRequest) -> None:
    from lumc.frontend.onnx.tables import markdown

    page = PAGE.read_text()
    head, found, _ = page.partition(MARK)
    assert found, "the mark is missing"
    wanted = f"{head}{MARK}\n{markdown()}"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "run: pytest tests/docs/test_onnx.py --update-golden"


def test_the_example_of_the_backend_runs() -> None:
    """It is that of the module, too."""
    from lumc import onnx_backend

    pattern = r"```python\n(import lumc.onnx_backend.*?)```\n+```text\n(.*?)```"
    (found,) = re.findall(pattern, PAGE.read_text(), re.S)
    assert re.findall(pattern, onnx_backend.__doc__ or "", re.S) == [found]
    done = subprocess.run(
        [sys.executable, "-c", found[0]], capture_output=True, text=True, timeout=200
    )
    assert done.stdout == found[1], done.stderr
