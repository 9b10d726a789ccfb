"""Damaged artifact envelopes: one clear error, exit code 5, whatever the bytes are."""

import json
import os
import random
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lumc.disk import artifact
from lumc.errors import Exit, LumcError

BODY = {"graph": "lumc graph 1\n", "files": [{"path": "a", "size": 3}], "n": 1.5, "x": []}
TEXT = artifact.dump("space", "0" * 64, BODY)


def parse(text: str, kind: str = "space") -> artifact.Artifact:
    return artifact.parse(text, kind, "a.ls", Path())


def test_the_envelope_comes_back():
    read = parse(TEXT)
    assert (read.kind, read.input, read.body) == ("space", "0" * 64, BODY)
    moved = {**BODY, "files": [{"path": "b", "size": 3}]}
    assert read.digest == artifact.digest(moved)  # wherever the weights lie
    assert read.digest != artifact.digest({**BODY, "n": 1})


@pytest.mark.parametrize(
    "fields",
    ['"files":3', '"files":[3]', '"files":{"a":1}', '"files":[{"path":1}]', '"a":1e999', '"a":NaN',
     '"a":' + "[" * 990 + "]" * 990, '"a":"\\ud800"', '"a":1', '"digest":null', '"input":3',
     '"lumc":"plan"', '"lumc":["space"]', '"schema":2', '"schema":true', '"a":' + "9" * 5000],
)  # fmt: skip
def test_wrong_fields(fields):
    text = '{"lumc":"space","schema":1,"input":"","digest":"x",' + fields + "}"
    with pytest.raises(LumcError) as e:
        parse(text)
    assert e.value.exit == Exit.CORRUPT and e.value.where == "a.ls"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '"space"', "{}", "[" * 100_000, '{"lumc":3}', "lumc graph 1"],
)
def test_no_envelope(text):
    with pytest.raises(LumcError, match="not a lumc space"):
        parse(text)


def test_another_kind_says_what_made_it():
    with pytest.raises(LumcError) as e:
        parse(TEXT, "plan")
    assert (e.value.code, e.value.what) == ("E0502", "expected a plan, got a space")
    assert "'lumc search'" in e.value.fix and "'lumc profile'" in e.value.fix


def test_damaged_characters():
    rng = random.Random(5)
    for _ in range(300):
        at = rng.randrange(len(TEXT))
        text = TEXT[:at] + chr(ord(TEXT[at]) ^ (1 << rng.randrange(7))) + TEXT[at + 1 :]
        try:
            assert parse(text).body == BODY  # white space, or the path of a weight file
        except LumcError as e:
            assert e.exit == Exit.CORRUPT
        except AssertionError:
            assert json.loads(text)["files"][0] != BODY["files"][0]
    for end in range(0, len(TEXT) - 2, 5):
        with pytest.raises(LumcError):
            parse(TEXT[:end])


def test_fields_turns_any_mistake_into_one_error():
    for mistake in (
        lambda: {}["q"],
        lambda: [][3],
        lambda: int("q"),
        lambda: None.q,
        lambda: 1 + "",
    ):
        with pytest.raises(LumcError, match="malformed thing"), artifact.fields("thing", "w"):
            mistake()


def test_files_of_strangers(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"\xff\xfe")
    with pytest.raises(LumcError, match="not text"):
        artifact.read_text(str(tmp_path / "a"))
    monkeypatch.setattr(artifact, "MAX_BYTES", 1)
    with pytest.raises(LumcError, match="larger than 1 bytes"):
        artifact.read_text(str(tmp_path / "a"))
    with pytest.raises(LumcError, match="cannot read"):
        artifact.read_text(str(tmp_path / "missing"))


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.ls"
    artifact.write_text(str(path), "old")
    with pytest.raises(KeyboardInterrupt), artifact.atomic(path) as f:
        f.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.ls"]


def test_what_is_no_file_stays_what_it_is(tmp_path):
    """As root, a file would take the place of /dev/null or of a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    artifact.check_writable(pipe)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(pipe.read_bytes)
        artifact.write_text(str(pipe), "all of it")
        assert reader.result(10) == b"all of it"
    assert stat.S_ISFIFO(pipe.stat().st_mode) and [*tmp_path.iterdir()] == [pipe]
    artifact.check_writable(os.devnull)
    artifact.write_text(os.devnull, "nothing")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
