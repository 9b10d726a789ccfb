"""docs/onnx.md: its tables are those of the registry (rewrite them with --update-golden)."""

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
