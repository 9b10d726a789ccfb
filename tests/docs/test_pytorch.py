"""docs/pytorch.md: its tables are those of the registry (rewrite them with --update-golden), its
programs and commands run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
MARK = "<!-- operators: written by tests/docs/test_pytorch.py --update-golden -->\n"


def test_tables_are_current(request: pytest.FixtureRequest) -> None:
    from lumc.frontend.aten.tables import markdown

    page = PAGE.read_text()
    head, found, _ = page.partition(MARK)
    assert found, "the mark is missing"
    wanted = f"{head}{MARK}\n{markdown()}"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "run: pytest tests/docs/test_pytorch.py --update-golden"


def test_the_programs_and_commands_run(tmp_path: Path) -> None:
    """The example of lumc.torch is that of the module, too."""
    pytest.importorskip("torch")
    from lumc import torch as backend

    text = PAGE.read_text()
    export, example = re.findall(r"```python\n(.*?)```", text, re.S)
    (said,) = re.findall(r"```text\n(.*?)```", text, re.S)
    assert f"```python\n{example}```\n\n```text\n{said}```" in (backend.__doc__ or "")
    (tmp_path / "export.py").write_text(export)
    (commands,) = re.findall(r"```\n(python export.py\n.*?)```", text, re.S)
    binary = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": binary + os.pathsep + os.environ["PATH"]}
    for command in commands.splitlines():
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "out.npz").stat().st_size > 0
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == said, done.stderr


def test_core_aten_is_supported_but_for_what_the_page_says() -> None:
    torch = pytest.importorskip("torch")

    from lumc.frontend.aten import tables  # noqa: F401
    from lumc.frontend.aten.registry import ROWS

    refused = set(re.findall(r"^\| (\w+) \| it", PAGE.read_text(), re.M))
    refused |= set(re.findall(r"^\| (\w+) \| tensors", PAGE.read_text(), re.M))
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for kind in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.core in getattr(packet, kind).tags and kind != "out":
                row = f"aten.{name}" + f".{kind}" * (kind != "default")
                assert row in ROWS or name in refused, row
