"""The hosts of a file: what the file says, who measures, and what is lost with a host. ssh is a
stand-in that runs commands on this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mutating
import ssh
from commands import Lumc
from kernels import CC, native
from lumc.errors import LumcError
from lumc.kernel.codec import to_plain
from lumc.lab.process import Limits
from lumc.link.toolchain import find
from lumc.profile import on_ssh
from lumc.profile.cluster import LOST, VALUE, WHY, Cluster, Kind, code_here, kind_here
from lumc.profile.measure import Job
from lumc.profile.on_ssh import Host, SshPool
from lumc.voice import saying
from measuring import kernel_of, product

KIND = Kind("here", "tools", {"cores": 2})
FINE: dict[str, Any] = {**to_plain(KIND), "code": code_here()}
WAITS = "cat > /dev/null"  # until nobody asks


# ---- the file


def test_a_file_names_hosts(tmp_path: Path) -> None:
    text = (
        "# ours\n\nnode1\n  me@node2 \t 3 # three\n10.0.0.7\nfe80::1\r\n\n#node3\nn-4.example.org 1"
    )
    (tmp_path / "hosts").write_text(text)
    assert on_ssh.hosts_in(str(tmp_path / "hosts")) == [
        Host("node1", 1),
        Host("me@node2", 3),
        Host("10.0.0.7", 1),
        Host("fe80::1", 1),
        Host("n-4.example.org", 1),
    ]


BAD = [
    ("node1 slots=2", 1, "names no host"),
    ("node1\nnode2 two", 2, "names no host"),
    ("node1 2 3", 1, "names no host"),
    ("-oProxyCommand=x", 1, "names no host"),
    ("me@-x", 1, "names no host"),
    ("a@b@c", 1, "names no host"),
    ("no;de", 1, "names no host"),
    ("$(x)", 1, "names no host"),
    ("node1 -1", 1, "names no host"),
    ("node1 0", 1, "slots are 1 to 64"),
    ("node1 65", 1, "slots are 1 to 64"),
    ("node1 99999999999999999999", 1, "slots are 1 to 64"),
    ("node1\n\n# x\nnode1 2", 4, "node1 stands there twice"),
]


@pytest.mark.parametrize(("text", "line", "what"), BAD)
def test_a_line_that_names_no_host_is_told(text: str, line: int, what: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LumcError, match=what) as e:
        on_ssh.hosts_in(str(tmp_path / "hosts"))
    assert (e.value.code, e.value.exit) == ("E0203", 2)
    assert f"hosts:{line}: " in e.value.what and "[user@]host [slots]" in e.value.fix


def test_a_file_without_hosts_is_told(tmp_path: Path) -> None:
    for text in ("", "\n# node1\n"):
        (tmp_path / "hosts").write_text(text)
        with pytest.raises(LumcError, match="names no host"):
            on_ssh.hosts_in(str(tmp_path / "hosts"))
    with pytest.raises(LumcError, match="cannot read") as e:
        on_ssh.hosts_in(str(tmp_path / "none"))
    assert e.value.code == "E0201"
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(LumcError, match="it is no text"):
        on_ssh.hosts_in(str(tmp_path / "hosts"))


# ---- who measures


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines = list[str]()
    with saying(lambda _, text: lines.append(text)):
        yield lines


def pool(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str, kind: Kind = KIND) -> SshPool:
    monkeypatch.setenv("LUMC_SSH", str(folder / "ssh"))
    (folder / "list").write_text("\n".join(lines))
    return SshPool(f"ssh-hosts:{folder / 'list'}", native(), None, kind)


def heard(one: SshPool, seconds: float = 20.0) -> list[tuple[str, dict[str, Any]]]:
    """The first answers, within so long."""
    return one.heard(seconds)


def test_hosts_of_another_kind_and_those_that_do_not_answer_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    ssh.fake(tmp_path, "a", "b", "c", "d", "e", "f", "g")
    monkeypatch.setattr(on_ssh, "START_S", 3.0)
    ssh.instead(tmp_path, "a", "welcome to a", {VALUE: FINE}, then=WAITS)
    ssh.instead(tmp_path, "b", {VALUE: {**FINE, "device": "x", "said": {"cores": 9}}}, then=WAITS)
    ssh.instead(tmp_path, "c", then="echo 'me@c: Permission denied (publickey).' >&2; exit 255")
    ssh.instead(tmp_path, "d", "lumc: {", then=WAITS)
    ssh.instead(tmp_path, "e", then="exec sleep 1000")
    ssh.instead(tmp_path, "f", {WHY: "no C compiler: tried gcc"}, then=WAITS)
    ssh.instead(tmp_path, "g", {VALUE: {**FINE, "code": "0"}}, then=WAITS)
    one = pool(tmp_path, monkeypatch, "a", "b", "me@c", "d", "e", "f", "g", "gone")
    assert one.free() == ["a"] and one.count == 1
    assert sorted(said) == [
        "profile: 1 machines measure: a",
        "profile: b does not measure: cores 9 (here 2)",
        "profile: d does not measure: it answered with something else than JSON",
        "profile: e does not measure: no answer in 3 s",
        "profile: f does not measure: no C compiler: tried gcc",
        "profile: g does not measure: other files of lumc",
        "profile: gone does not measure: ssh: Could not resolve hostname gone",
        "profile: me@c does not measure: me@c: Permission denied (publickey).",
    ]
    one.close()
    call = next(words for words in ssh.calls(tmp_path) if words[0] == "me@c")
    assert call[1] == "-T" and "BatchMode=yes" in call and call[-4] == ssh.PYTHON
    assert call[-5:] == ["me@c", ssh.PYTHON, "-P", "-m", on_ssh.__name__]


def test_without_a_host_that_measures_there_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    ssh.fake(tmp_path)
    with pytest.raises(LumcError, match="no machine can measure for this one: --on ssh-hosts") as e:
        pool(tmp_path, monkeypatch, "a", "b")
    assert (e.value.code, e.value.exit) == ("E0716", 7)
    assert len(said) == 2 and all("Could not resolve" in line for line in said)


def test_without_ssh_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LumcError, match="needs a program that is not here: ") as e:
        pool(tmp_path, monkeypatch, "a")
    assert (e.value.code, e.value.exit) == ("E0714", 7) and "LUMC_SSH" in e.value.fix


def test_jobs_go_out_and_answers_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    ssh.fake(tmp_path, "a", "b")
    answers = 'read first; read job; echo "lumc: {\\"value\\": $job}"; ' + WAITS
    ssh.instead(tmp_path, "a", {VALUE: FINE}, then=answers)
    ssh.instead(tmp_path, "b", {VALUE: FINE}, then=answers)
    one = pool(tmp_path, monkeypatch, "a 2", "b")
    assert sorted(one.free()) == ["a", "a 2", "b"] and one.count == 3
    assert said == ["profile: 3 machines measure: a, a 2, b"]
    assert one.heard(0.0) == []
    one.give("a 2", {"job": 1})
    assert sorted(one.free()) == ["a", "b"]
    assert heard(one) == [("a 2", {VALUE: {"job": 1}})]
    assert sorted(one.free()) == ["a", "a 2", "b"]
    one.drop("b")
    assert sorted(one.free()) == ["a", "a 2"] and one.count == 2
    pids = [s.process.pid for s in one.slots.values()]
    one.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids) and one.count == 0


def test_a_host_that_is_lost_comes_again_or_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    ssh.fake(tmp_path, "a")
    ends = "read first; read job; echo 'kex: connection reset' >&2; exit 1"
    ssh.instead(tmp_path, "a", {VALUE: FINE}, then=ends)
    one = pool(tmp_path, monkeypatch, "a")
    for _ in range(on_ssh.RESTARTS + 1):
        one.give("a", {})
        assert heard(one) == [("a", {LOST: "kex: connection reset"})]
        end = time.monotonic() + 20
        while one.count and not one.free() and time.monotonic() < end:
            assert one.heard(0.2) == []
    assert one.count == 0 and said[1:] == ["profile: a does not measure: kex: connection reset"]
    assert len(ssh.calls(tmp_path)) == on_ssh.RESTARTS + 1
    one.close()


def test_a_process_that_is_killed_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    ssh.fake(tmp_path, "a")
    ssh.instead(tmp_path, "a", {VALUE: FINE}, then="exec " + WAITS)
    one = pool(tmp_path, monkeypatch, "a")
    one.give("a", {})
    os.kill(one.slots["a"].process.pid, signal.SIGKILL)
    assert heard(one) == [("a", {LOST: "its process ended with -9"})]
    one.close()


def test_a_host_that_speaks_unasked_or_without_end_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    ssh.fake(tmp_path, "a", "b")
    ssh.instead(tmp_path, "a", {VALUE: FINE}, {VALUE: 1}, then=WAITS)
    ssh.instead(tmp_path, "b", {VALUE: FINE}, then="read first; read job; cat /dev/zero")
    one = pool(tmp_path, monkeypatch, "a", "b")
    if one.count == 2:
        one.heard(1.0)
    assert "profile: a does not measure: it speaks without being asked" in said
    one.give("b", {})
    assert heard(one) == [("b", {WHY: "it says too much"})]
    one.close()


# ---- a whole bench


def job() -> Job:
    kernel = kernel_of(product)
    return Job(kernel, kernel.schedule)


def test_a_real_process_measures_what_this_one_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """The bench behind the stand-in is the real one: it compiles, checks and times."""
    ssh.fake(tmp_path, "a", "other")
    ssh.of_another_kind(tmp_path, "other")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    tools, target = find(CC), native()
    kind = kind_here(target, tools)

    def opened() -> SshPool:
        return pool(tmp_path, monkeypatch, "a", "other", kind=kind)

    with Cluster(opened, target, tools, Limits()) as bench:
        ((_, trial),) = bench.as_completed([job()])
        assert trial.us and not trial.reason and dict(bench.made) == {"a": 1}
    assert any("other does not measure: cores 77 (here" in line for line in said)


# ---- the command


@pytest.mark.parametrize("words", [["ssh-hosts"], ["ssh-hosts:"], ["ssh-hosts", "--seed", "1"]])
def test_a_file_has_to_be_named(lumc: Lumc, words: list[str]) -> None:
    assert "or ssh-hosts FILE" in lumc.fails(2, "profile", "m.ls", "--on", *words)


def test_the_file_is_read_before_anything_is_done(lumc: Lumc) -> None:
    said = lumc.fails(2, "compile", "m.lg", "-o", "m.lb", "--on", "ssh-hosts", "no-such-file")
    assert said.startswith("E0201 cannot read no-such-file: ")
    (lumc.folder / "bad").write_text("a b c\n")
    said = lumc.fails(2, "compile", "m.lg", "-o", "m.lb", "--on", "ssh-hosts:bad")
    assert "bad:1: 'a b c' names no host" in said


MUTANTS = [
    ('.partition("#")[0]', '.partition("%")[0]'),
    ("if not text:\n            continue", "if False:\n            continue"),
    ("if name in found", "if False"),
    ("if slot.starts > RESTARTS:", "if slot.starts > 0 * RESTARTS:"),
    ("if why := refusal(answer, self.here):", 'if why := "":'),
    ("if line.startswith(MARK)", "if line"),
    ('return was == "busy"', "return True"),
    ('was, slot.state = slot.state, "free"', "was = slot.state"),
]


@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_mutants_die(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    mutating.replace(on_ssh, old, new, monkeypatch)
    monkeypatch.setattr(on_ssh, "START_S", 3.0)
    failed = (AssertionError, LumcError, KeyError, IndexError, pytest.fail.Exception)
    with pytest.raises(failed):
        test_a_file_names_hosts(tmp_path)
        test_a_line_that_names_no_host_is_told(*BAD[-1], tmp_path)
        for i, test in enumerate(
            (
                test_hosts_of_another_kind_and_those_that_do_not_answer_are_told,
                test_jobs_go_out_and_answers_come_back,
                test_a_host_that_is_lost_comes_again_or_is_let_go,
            )
        ):
            (tmp_path / str(i)).mkdir()
            said.clear()
            test(tmp_path / str(i), monkeypatch, said)
