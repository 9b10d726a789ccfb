"""`lumc profile --on ssh-hosts` with real processes behind a stand-in for ssh, on this machine.
They have its one lock, so they compile at the same time and time in turn."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssh
from clusters import WAIT_S, Commands
from commands import MATMUL

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
SEARCH = ("--on", "ssh-hosts", "list", "--cache", "cache", "--budget", "120s")
SEARCH += ("--target-fraction", "1")


class Hosts(Commands):
    """Two hosts that are like this machine, one that is not, one that is not there."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "LUMC_SSH": ssh.fake(folder, "node1", "node2", "old")}
        super().__init__(folder, env)
        self.env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        ssh.of_another_kind(folder, "old")
        (folder / "list").write_text("# ours\nnode1\n\nme@node2 1\nold\ngone # since May\n")

    def workers(self) -> list[int]:
        """The processes on hosts that belong to this test."""
        found, own = list[int](), f"LUMC_SSH={self.env['LUMC_SSH']}\0".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words, env = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
            except OSError:
                continue  # it ended
            python = b"lumc.profile.on_ssh" in words.split(b"\0")  # not the shell that started it
            if python and own in env + b"\0":
                found.append(int(path.name))
        return sorted(found)

    def gone(self) -> None:
        end = time.monotonic() + WAIT_S
        while self.workers():
            assert time.monotonic() < end
            time.sleep(0.2)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "m.lg").write_text(MATMUL)
    one = Hosts(tmp_path)
    one.lumc("search", "m.lg", "-o", "m.ls")
    yield one
    one.gone()


def same_again(hosts: Hosts, bundle: str) -> None:
    """Records alone, without a host, give the same bytes."""
    hosts.env["LUMC_SSH"] = "/nonexistent"
    hosts.same_again(bundle)


def test_two_hosts_give_a_plan_that_their_records_give_again(hosts: Hosts) -> None:
    ssh_at = hosts.env["LUMC_SSH"]
    said = hosts.lumc("compile", "m.lg", "-o", "m.lb", *SEARCH, "--trials", "16")
    assert "profile: 2 machines measure: me@node2, node1" in said
    assert "profile: old does not measure: cores 77 (here " in said
    assert "profile: gone does not measure: ssh: Could not resolve hostname gone" in said
    counts = re.findall(r": (\d+)", re.findall(r"trials by machine(.*)", said)[0])
    assert len(counts) == 2 and all(int(n) > 0 for n in counts)
    assert sum(map(int, counts)) == len(hosts.trials()) >= 8
    assert not any('"reason"' in line for line in hosts.trials())
    same_again(hosts, "m.lb")
    hosts.env["LUMC_SSH"] = ssh_at


@pytest.mark.deep
def test_the_end_of_one_host_loses_no_record(hosts: Hosts) -> None:
    ssh_at = hosts.env["LUMC_SSH"]
    search = hosts.start("compile", "m.lg", "-o", "m.lb", *SEARCH, "--trials", "60")
    before = hosts.wait_for_trials(4, search)
    first, *others = hosts.workers()
    assert others
    os.kill(first, signal.SIGKILL)
    said = hosts.end(search)
    lost = re.search(r"was lost \((.*)\): its candidate goes to another machine", said)
    assert lost and lost[1] in ("Killed", "its process ended with 137"), said
    after = hosts.trials()
    assert after[: len(before)] == before and len(after) > len(before)
    assert not any('"reason"' in line for line in after)
    same_again(hosts, "m.lb")
    hosts.env["LUMC_SSH"] = ssh_at


@pytest.mark.deep
def test_a_stop_keeps_what_was_measured_and_leaves_no_process(hosts: Hosts) -> None:
    search = hosts.start("profile", "m.ls", "-o", "m.lp", *SEARCH, "--trials", "500")
    before = hosts.wait_for_trials(4, search)
    search.send_signal(signal.SIGINT)
    said = hosts.end(search)
    assert "stopping: the best plan so far will be written" in said
    assert hosts.trials()[: len(before)] == before
    hosts.gone()
    hosts.lumc("profile", "m.ls", "-o", "again.lp", "--frozen", "--cache", "cache")
    assert (hosts.folder / "m.lp").read_bytes() == (hosts.folder / "again.lp").read_bytes()


@pytest.mark.deep
def test_a_command_that_is_killed_leaves_no_process(hosts: Hosts) -> None:
    search = hosts.start("profile", "m.ls", "-o", "m.lp", *SEARCH, "--trials", "500")
    before = hosts.wait_for_trials(4, search)
    search.kill()
    search.communicate()
    hosts.gone()
    assert hosts.trials()[: len(before)] == before


@pytest.mark.deep
def test_all_hosts_that_end_leave_the_rest_to_this_machine(hosts: Hosts) -> None:
    ssh_at = hosts.env["LUMC_SSH"]
    search = hosts.start("compile", "m.lg", "-o", "m.lb", *SEARCH, "--trials", "40")
    before = hosts.wait_for_trials(4, search)
    for host in ("node1", "node2"):  # who goes there again finds nobody
        (hosts.folder / "hosts" / host).rename(hosts.folder / f"{host} that was")
    for pid in hosts.workers():
        os.kill(pid, signal.SIGKILL)
    said = hosts.end(search)
    assert hosts.trials()[: len(before)] == before and "this machine: " in said
    same_again(hosts, "m.lb")
    hosts.env["LUMC_SSH"] = ssh_at


@pytest.mark.deep
def test_messages_as_json(hosts: Hosts) -> None:
    words = ["profile", "m.ls", "-o", "m.lp", *SEARCH, "--trials", "8", "--log-json"]
    lines = [json.loads(line) for line in hosts.lumc(*words).splitlines()]
    assert any("2 machines measure" in str(line) for line in lines)


PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@pytest.mark.deep
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Its file of hosts and its command, where all of them answer but one."""
    (text,) = re.findall(r"^## Hosts by ssh\n(.*?)^## ", PAGE.read_text(), re.M | re.S)
    file, command, *_ = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.M | re.S)
    one = Hosts(tmp_path)
    for host in ("10.0.0.7", "node2"):
        (tmp_path / "hosts" / host).mkdir(exist_ok=True)
    (tmp_path / "hosts" / "node1").rename(tmp_path / "hosts" / "elsewhere")
    (tmp_path / "hosts.txt").write_text(file)
    (tmp_path / "model.lg").write_text(MATMUL)
    one.env["LUMC_CACHE"] = str(tmp_path / "records")  # where nothing was measured yet
    said = one.lumc(*command.split()[1:])
    assert "profile: 3 machines measure: 10.0.0.7, me@node2, me@node2 2" in said
    assert "profile: node1 does not measure: ssh: " in said
    assert (tmp_path / "model.lb" / "manifest.json").exists()
    one.gone()
