"""What a package index and a stranger's CI see: metadata, the workflow, links, what is needed."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lumc
from commands import MATMUL

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "bench/README.md"])
UNUSED = ("IPython", "anywidget", "black", "cloudpickle", "graphviz", "ipywidgets", "opentelemetry")


def test_the_description_of_the_package_needs_no_repository() -> None:
    page = (ROOT / PROJECT["readme"]).read_text()
    assert page.startswith("# lumc\n")
    assert not [to for to in LINK.findall(page) if not to.startswith("https://")]


def test_ci_runs_on_every_python_that_is_named() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    matrices = re.findall(r"python: \[(.*)\]", workflow)
    assert matrices and {m.replace('"', "") for m in matrices} == {", ".join(named)}
    for script in re.findall(r"- run: (\S+)", workflow):
        assert (ROOT / script).stat().st_mode & 0o111


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## Version ([0-9.]+)", text, re.MULTILINE)[0] == lumc.__version__


def anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(t) for t in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in LINK.findall(text):
        if not re.match(r"https?:", link):
            path, _, part = link.partition("#")
            to = (page.parent / path).resolve() if path else page
            assert to.exists(), link
            assert not part or part in anchors(to), link


@pytest.mark.deep
def test_a_search_needs_nothing_of_egglog_but_its_module(tmp_path: Path) -> None:
    """README's small environment: what the package of egglog asks for is not there."""
    (tmp_path / "m.lg").write_text(MATMUL)
    # of the command, and of the worker that it starts
    gone = f"import sys; sys.modules |= dict.fromkeys({UNUSED!r}); open('seen', 'a').write('x')"
    (tmp_path / "sitecustomize.py").write_text(gone)
    path = os.pathsep.join([str(tmp_path), str(Path(lumc.__file__).parents[1])])
    call = [sys.executable, "-m", "lumc", "search", "m.lg", "-o", "m.ls"]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.ls").exists() and len((tmp_path / "seen").read_text()) >= 2
