"""Builder scripts: what they return, and how their failures are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from lumc.errors import LumcError
from lumc.frontend.script import import_script

GOOD = """
from helper import WIDTH
from lumc.frontend import Model


def build():
    g = Model()
    x = g.input("x", (WIDTH, 3))
    g.output("y", x.softmax())
    return g


def wrong():
    return 3


def broken():
    g = Model()
    return g.input("x", (2, 3)) @ g.input("y", (4, 5))


def fails():
    return deeper()


def deeper():
    raise ValueError("no luck")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(GOOD)
    (tmp_path / "helper.py").write_text("WIDTH = 7\n")
    return path


def test_a_script_builds_a_model(script: Path) -> None:
    for source in (f"{script}:build", str(script)):
        graph = import_script(source).graph()
        assert graph.entries[0].inputs[0].shape == (7, 3)
        assert graph.entries[0].nodes[0].origin == "model.py:9"


def test_errors_of_lumc_name_the_line_of_the_script(script: Path) -> None:
    with pytest.raises(LumcError, match="3 and 4 differ") as e:
        import_script(f"{script}:broken")
    assert e.value.where == "model.py:19"


def test_errors_of_the_script_name_its_lines_only(script: Path) -> None:
    with pytest.raises(LumcError, match="ValueError: no luck") as e:
        import_script(f"{script}:fails")
    assert e.value.code == "E0331"
    assert e.value.where == f"{script}:27, called from {script}:23"


def test_wrong_results_and_names(script: Path) -> None:
    with pytest.raises(LumcError, match=r"wrong\(\) returned int, not a Model") as e:
        import_script(f"{script}:wrong")
    assert e.value.exit == 4
    with pytest.raises(LumcError, match="has no function 'nothing'") as e:
        import_script(f"{script}:nothing")
    assert e.value.exit == 2
    assert "build, deeper, fails" in e.value.fix.replace("broken, ", "")
    with pytest.raises(LumcError, match="no script"):
        import_script(f"{script.parent}/none.py:build")


@pytest.mark.parametrize("text", ["def build(:\n", "import nothing_of_this_name\n", "1 / 0\n"])
def test_scripts_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(LumcError) as e:
        import_script(f"{path}:build")
    assert e.value.code == "E0331"
    assert f"{path}:1" in e.value.where
