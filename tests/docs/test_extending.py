"""The examples of docs/extending.md: each is in the source, and its test fails without it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"<!-- test: (\S+) -k (\S+) -->\n```diff\n(.*?)```", re.DOTALL)
EXAMPLES = EXAMPLE.findall((ROOT / "docs" / "extending.md").read_text())


def fails(source: Path, file: str, name: str) -> bool:
    """Does the test of this name run, and fail, with the package in ``source``?"""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file, "-k", name]
    command += ["-o", f"pythonpath={source} tests"]
    env = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True)
    failed = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED  # or it cannot be imported
    return done.returncode in failed


def parts(diff: str) -> list[str]:
    """The changes of a diff, file by file."""
    return re.split(r"^(?=--- )", diff, flags=re.MULTILINE)[1:]


def without(part: str, source: str) -> str:
    """A file without the change that a diff shows; the lines around it may be others by now."""
    for hunk in re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]:
        for block in re.findall(r"(?:^[+-].*\n)+", hunk, flags=re.MULTILINE):
            added, removed = (
                "".join(re.findall(rf"^\{sign}(.*\n)", block, flags=re.MULTILINE)) for sign in "+-"
            )
            assert source.count(added) == 1, added
            source = source.replace(added, removed)
    return source


def test_there_are_four_examples_and_a_choice_takes_four_files() -> None:
    assert len(EXAMPLES) == 4
    (choice,) = (diff for _, _, diff in EXAMPLES if "schedule/choices.py" in diff)
    assert len(parts(choice)) == 3  # and its test


def files_without(diff: str) -> dict[str, str]:
    """The files that a diff shows, as they would be without it."""
    paths = [(re.findall(r"--- a/(\S+)", part)[0], part) for part in parts(diff)]
    return {path: without(part, (ROOT / path).read_text()) for path, part in paths}


def test_all_are_in_the_source() -> None:
    for file, _, diff in EXAMPLES:
        assert all(text != (ROOT / path).read_text() for path, text in files_without(diff).items())
        assert (ROOT / file).exists()


# one by one they take five seconds: a test that passes without them is seen by make test-deep
@pytest.mark.parametrize(
    ("file", "name", "diff"),
    [pytest.param(*e, marks=[pytest.mark.deep] * (i > 0)) for i, e in enumerate(EXAMPLES)],
    ids=lambda x: str(x)[:40],
)
def test_its_test_fails_without_an_example(file: str, name: str, diff: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")  # with its bytecode, which has the same times
    for path, text in files_without(diff).items():
        if path.startswith("src/"):
            (tmp_path / path).write_text(text)
    assert fails(tmp_path / "src", file, name)  # and passes with it, in a run of its own
