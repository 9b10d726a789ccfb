"""Folders of the user: made private, and used only if nobody else could have changed them."""

import os
import pwd
import stat
import sys
import warnings
from pathlib import Path

import pytest

from lumc import environment
from lumc.disk import objects, private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_folder_that_is_made_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert private.ensure(tmp_path / "a" / "b" / "c") == ""
    finally:
        os.umask(before)
    assert {mode(tmp_path / p) for p in ("a", "a/b", "a/b/c")} == {0o700}


@pytest.mark.parametrize("others", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, others: int) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept").chmod(others)
    assert "others can write" in private.ensure(tmp_path / "kept")


def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open" / "kept").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    assert "others can write" in private.ensure(tmp_path / "open" / "kept")
    (tmp_path / "open").chmod(0o1777)  # as /tmp: only owners replace what lies there
    assert private.ensure(tmp_path / "open" / "kept") == ""


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private.os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to another user" in private.ensure(tmp_path)


def test_what_cannot_be_made_is_no_error() -> None:
    assert "cannot use /dev/null/lumc" in private.ensure(Path("/dev/null/lumc"))


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert environment.user_folder() == Path("/nonexistent/.cache/lumc")


def test_the_user_keeps_things_where_the_system_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    usual = "Library/Caches/lumc" if sys.platform == "darwin" else ".cache/lumc"
    assert environment.user_folder() == tmp_path / usual
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
        assert environment.user_folder() == tmp_path / "caches" / "lumc"


def plant(kept: Path, data: bytes = b"planted") -> Path:
    path = kept / f"made-{objects._sha(data)}.o"
    path.write_bytes(data)
    return path


def test_planted_objects_are_not_linked(tmp_path: Path) -> None:
    """An object that holds what its name says, in a folder where everybody could have put it."""
    plant(tmp_path)
    assert objects.fetch(tmp_path, "made") == b"planted"
    tmp_path.chmod(0o777)
    with pytest.warns(UserWarning, match="neither used nor kept: others can write"):
        assert objects.fetch(tmp_path, "made") is None
    objects.keep(tmp_path, "new", b"mine")
    assert len([*tmp_path.iterdir()]) == 1
    assert not objects.is_own(tmp_path)  # said once
    tmp_path.chmod(0o700)


def test_objects_of_others_are_not_linked(tmp_path: Path) -> None:
    planted = plant(tmp_path)
    planted.chmod(0o666)
    assert objects.fetch(tmp_path, "made") is None
    planted.unlink()
    target = plant(tmp_path).rename(tmp_path / "elsewhere")
    (tmp_path / planted.name).symlink_to(target)
    assert objects.fetch(tmp_path, "made") is None
    (tmp_path / planted.name).unlink()
    os.mkfifo(tmp_path / planted.name)
    assert objects.fetch(tmp_path, "made") is None


def test_objects_are_kept_in_a_private_folder(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert objects.fetch(tmp_path / "home" / "objects", "made") is None
        objects.keep(tmp_path / "home" / "objects", "made", b"mine")
        assert objects.fetch(tmp_path / "home" / "objects", "made") == b"mine"
    assert mode(tmp_path / "home") == mode(tmp_path / "home" / "objects") == 0o700
