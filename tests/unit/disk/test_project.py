"""Where records are looked for: here, above, with the user; and whose folder counts."""

import os
from pathlib import Path

import pytest

from lumc.disk import private, project
from lumc.environment import user_folder


@pytest.fixture(autouse=True)
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is two below the project, in a home that is not the user's."""
    (tmp_path / "home/project/sub/deep").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home/project/sub/deep")
    private.warn_once.cache_clear()
    return tmp_path / "home"


def test_the_nearest_folder_above_is_found(below: Path) -> None:
    assert project.cache_folder(None) == user_folder()
    assert "as there is no kernels_cache/ of this user in" in project.looked(user_folder())
    (below / "project/kernels_cache").mkdir()
    assert project.cache_folder(None) == Path("../../kernels_cache")
    (below / "project/sub/kernels_cache").mkdir()
    assert project.cache_folder(None) == Path("../kernels_cache")
    Path("kernels_cache").mkdir()
    assert project.cache_folder(None) == Path("kernels_cache")
    assert project.cache_folder("there") == Path("there")


def test_the_home_is_no_project(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (below / "kernels_cache").mkdir()
    (below.parent / "kernels_cache").mkdir()
    assert project.project_folder() is None
    monkeypatch.chdir(below)
    assert project.project_folder() == Path("kernels_cache")
    (below / "kernels_cache").rmdir()
    assert project.project_folder() is None


def test_what_others_put_above_is_not_used(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = below / "project/kernels_cache"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write"):
        assert project.project_folder() is None
    planted.chmod(0o775)  # a group may share a project
    assert project.project_folder() == Path("../../kernels_cache")
    monkeypatch.setattr(project.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert project.project_folder() is None


def test_a_folder_that_was_removed(below: Path) -> None:
    gone = below / "project/sub/deep"
    gone.rmdir()
    assert project.cache_folder(None) == user_folder()
    assert str(user_folder()) in project.looked(user_folder())
