"""`lumc profile --on ray` on a real cluster: two workers of Ray on this machine. Both have its one
lock, so they compile at the same time and time in turn. Skipped without ray: `pip install ray`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from clusters import WAIT_S, Commands
from commands import MATMUL

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(1200),  # Ray starts a dozen processes
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
UP = """
import sys
from ray.cluster_utils import Cluster
own = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**own, "include_dashboard": False})
cluster.add_node(**own)
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
SEARCH = ("--on", "ray", "--cache", "cache", "--budget", "120s", "--target-fraction", "1")


class Ray(Commands):
    """A cluster, and commands in a folder that find it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"})
        self.env["PYTHONPATH"] = os.pathsep.join(sys.path)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.up = subprocess.Popen([sys.executable, "-c", UP], env=self.env, **pipes)
        assert self.up.stdout
        said = (line.split() for line in self.up.stdout)
        self.env["RAY_ADDRESS"] = next(words[1] for words in said if words[:1] == ["address"])

    def workers(self) -> list[int]:
        """The processes of this cluster that measure."""
        parents, found = dict[int, int](), list[int]()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                words = (path / "cmdline").read_bytes()
            except OSError:
                continue  # it ended
            parents[int(path.name)] = int(stat[1])
            if words.startswith(b"ray::Remote"):
                found.append(int(path.name))
        return [pid for pid in found if self.up.pid in ancestors(pid, parents)]

    def down(self) -> None:
        assert self.up.stdin
        self.up.stdin.close()
        try:
            self.up.wait(60)
        except subprocess.TimeoutExpired:
            self.up.kill()


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    out = list[int]()
    while pid in parents:
        pid = parents[pid]
        out.append(pid)
    return out


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[Ray]:
    (tmp_path / "m.lg").write_text(MATMUL)
    one = Ray(tmp_path)
    try:
        one.lumc("search", "m.lg", "-o", "m.ls")
        yield one
    finally:
        one.down()


def same_again(ray: Ray, bundle: str) -> None:
    """Records alone, without Ray, give the same bytes."""
    ray.env.pop("RAY_ADDRESS")
    ray.same_again(bundle)


def test_two_workers_give_a_plan_that_their_records_give_again(ray: Ray) -> None:
    said = ray.lumc("compile", "m.lg", "-o", "m.lb", *SEARCH, "--trials", "24")
    assert "profile: 2 machines measure: " in said
    counts = re.findall(r": (\d+)", re.findall(r"trials by machine(.*)", said)[0])
    assert len(counts) == 2 and all(int(n) > 0 for n in counts)
    assert sum(map(int, counts)) == len(ray.trials()) >= 17
    assert not any('"reason"' in line for line in ray.trials())
    same_again(ray, "m.lb")


def test_the_end_of_one_worker_loses_no_record(ray: Ray) -> None:
    search = ray.start("compile", "m.lg", "-o", "m.lb", *SEARCH, "--trials", "60")
    before = ray.wait_for_trials(4, search)
    first, *others = ray.workers()
    assert len(others) == 1
    os.kill(first, signal.SIGKILL)
    said = ray.end(search)
    assert "was lost (its process ended): its candidate goes to another machine" in said
    after = ray.trials()
    assert after[: len(before)] == before and len(after) > len(before)
    assert not any('"reason"' in line for line in after)
    same_again(ray, "m.lb")


def test_a_stop_keeps_what_was_measured_and_leaves_no_worker(ray: Ray) -> None:
    search = ray.start("profile", "m.ls", "-o", "m.lp", *SEARCH, "--trials", "500")
    before = ray.wait_for_trials(4, search)
    search.send_signal(signal.SIGINT)
    said = ray.end(search)
    assert "stopping: the best plan so far will be written" in said
    assert ray.trials()[: len(before)] == before
    ray.lumc("profile", "m.ls", "-o", "again.lp", "--frozen", "--cache", "cache")
    assert (ray.folder / "m.lp").read_bytes() == (ray.folder / "again.lp").read_bytes()
    end = time.monotonic() + WAIT_S
    while ray.workers():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_a_cluster_that_ends_leaves_the_rest_to_this_machine(ray: Ray) -> None:
    search = ray.start("compile", "m.lg", "-o", "m.lb", *SEARCH, "--trials", "40")
    before = ray.wait_for_trials(4, search)
    ray.down()
    said = ray.end(search)
    assert ray.trials()[: len(before)] == before and "this machine: " in said
    same_again(ray, "m.lb")
