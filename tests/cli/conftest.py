"""What several tests of the command line share."""

from pathlib import Path

import pytest

from commands import SQUARE, Lumc


@pytest.fixture(scope="session")
def square(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every artifact of a tiny model, m.lg to m.lb. To be copied before it is
    written to."""
    folder = tmp_path_factory.mktemp("square")
    (folder / "m.lg").write_text(SQUARE)
    call = ("compile", "--estimate", folder / "m.lg", "-o", folder / "m.lb", "--save-temps", folder)
    Lumc(folder)(*call)
    return folder
