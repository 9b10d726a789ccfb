"""docs/serving.md, "In Triton": its commands, in a Triton where there is one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from commands import Lumc
from triton_hosting import real, server

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
PART = PAGE.partition("\n## In Triton\n")[2].partition("\n## ")[0]
MAKING, LAYOUT, ASKING = re.findall(r"^```\n(.*?)^```", PART, re.M | re.S)


@pytest.fixture
def repository(lumc: Lumc, tmp_path: Path) -> Path:
    """Made as the page says, of the graph that it begins with."""
    (graph,) = re.findall(r"^```lg\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "row.lg").write_text(graph)
    folder, command, start = (line.split() for line in MAKING.splitlines())
    assert folder == ["mkdir", "repository"] and start[-1] == "repository"
    (tmp_path / "repository").mkdir()
    lumc(*command[1:])
    return tmp_path / "repository"


def test_what_is_made_is_what_is_shown(repository: Path) -> None:
    (_, *lines), depth = LAYOUT.splitlines(), list[str]()
    for line in lines:
        name = line.split()[0]
        depth[(len(line) - len(line.lstrip())) // 2 - 1 :] = [name]
        assert (repository / "".join(depth)).exists(), depth
    size = (repository / "row" / "libtriton_lumc.so").stat().st_size
    assert 100_000 < size < 300_000  # "200 KB", by gcc 12


def test_a_real_server_answers(repository: Path, tmp_path: Path) -> None:
    if not (program := server()):
        pytest.skip("no tritonserver: pip install --no-deps nvidia-pytriton, or LUMC_TRITONSERVER")
    with real(program, repository, tmp_path / "log") as address:
        command = ASKING.replace("localhost:8000", address.removeprefix("http://"))
        said = subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout
    assert '"shape":[2,3],"data":[20.0,40.0,60.0,44.0,96.0,148.0]' in said
