"""What README.md shows first is run as it stands there: here as far as the graph, to the end by
`make test-deep`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(python)?\n(.*?)```", re.DOTALL)


def section(title: str) -> list[tuple[str, str]]:
    """The blocks under a title: their language and text."""
    text = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [(m[1] or "", m[2]) for m in BLOCK.finditer(text)]


def run(text: str, folder: Path) -> None:
    """Every line of a block, with this Python."""
    python = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": python + os.pathsep + os.environ["PATH"]}
    for line in text.splitlines():
        command = line.partition("#")[0].strip()
        if command and not command.startswith("pip install"):
            shell = ["bash", "-o", "pipefail", "-c", command]
            done = subprocess.run(shell, cwd=folder, env=env, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    return tmp_path


def test_the_first_lines_of_the_readme_run(folder: Path) -> None:
    (_, install), (_, lines), (language, _) = section("Five lines")
    assert language == "python"
    run(install, folder)
    run(lines.splitlines()[0], folder)
    said = (folder / "bert.lg").read_text()
    assert "input input_ids i64[1, 128]" in said and 'file "bert/model.safetensors"' in said


@pytest.mark.deep
def test_the_first_lines_run_to_the_end(folder: Path) -> None:
    for language, text in section("Five lines"):
        if language:
            code = f"{text}\nnp.save('python.npy', out)"
            subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
        else:
            run(text, folder)
    with np.load(folder / "out.npz") as native:
        (values,) = native.values()
    assert values.shape == (1, 128, 128) and np.isfinite(values).all()
    assert np.array_equal(np.load(folder / "python.npy"), values)
    for language, text in section("The passes"):
        assert not language
        run(text, folder)
