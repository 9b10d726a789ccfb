"""The pool of a Ray cluster, and its driver, on a fake of what it calls of Ray."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from commands import Lumc
from kernels import native
from lumc.errors import LumcError
from lumc.kernel.codec import from_plain, to_plain
from lumc.process import Lost
from lumc.profile import on_ray
from lumc.profile.cluster import LOST, VALUE, WHY, Kind, Remote, code_here
from lumc.profile.on_ray import Driver, RayPool
from lumc.voice import saying

NUMBERS = count()
KIND = Kind("d", "t", {"cores": 2})
FINE = to_plain(replace(KIND, code=code_here()))


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Ref(NamedTuple):
    """What an actor will say."""

    host: str
    name: str
    number: int


class Call:
    """A method of an actor."""

    def __init__(self, host: str, name: str) -> None:
        self.host, self.name = host, name

    def options(self, max_task_retries: int) -> Call:
        assert (self.name, max_task_retries) == ("described", -1)
        return self

    def remote(self, *job: Any) -> Ref:
        return Ref(self.host, self.name, next(NUMBERS))


class FakeRay(ModuleType):
    """``says`` maps a machine and a method to what it answers: None is no answer yet."""

    def __init__(self, *hosts: str) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.nodes_, self.says = list[dict[str, Any]](), dict[tuple[str, str], Any]()
        self.killed, self.started, self.refuses = list[str](), list[Any](), None
        for number, host in enumerate(hosts):
            node = {"NodeID": str(number), "NodeManagerHostname": host, "Alive": True}
            self.nodes_.append({**node, "Resources": {"CPU": 4.0}})
            self.says[str(number), "described"] = {VALUE: FINE}

    def init(self, address: str, **how: Any) -> None:
        assert how == {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if self.refuses:
            raise self.refuses

    def nodes(self) -> list[dict[str, Any]]:
        return self.nodes_

    def remote(self, cls: type) -> Any:
        assert cls is Remote
        return self

    def options(self, **how: Any) -> Any:
        self.started.append(how)
        node = how["scheduling_strategy"]
        methods = {name: Call(node, name) for name in ("described", "measure")}
        actor = SimpleNamespace(node=node, **methods)
        return SimpleNamespace(remote=lambda *asked: actor)

    def wait(
        self, refs: list[Any], num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        assert 0 < num_returns <= len(refs)
        ready = [ref for ref in refs if self.says.get((ref.host, ref.name)) is not None]
        ready = ready[:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: Any) -> Any:
        said = self.says[ref.host, ref.name]
        if isinstance(said, Exception):
            raise said
        return said

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.node)


class InThisProcess:
    """In place of the driver's process."""

    def __init__(self, serve: object, address: str, target: Any, cc: str | None, here: Any) -> None:
        assert serve is on_ray.drive
        self.driver, self.ended = Driver(address, (target, cc), from_plain(Kind, here)), False

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        if self.ended:
            raise Lost("crash: exit code -9")
        name, *arguments = question
        return getattr(self.driver, name)(*arguments)

    def kill(self) -> None:
        self.ended = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRay]:
    """Ray knows these machines."""

    def make(*hosts: str) -> FakeRay:
        ray, util = FakeRay(*hosts), ModuleType("ray.util.scheduling_strategies")
        util.NodeAffinitySchedulingStrategy = lambda node, soft: node  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
        monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", util)
        return ray

    monkeypatch.setattr(on_ray, "Process", InThisProcess)
    monkeypatch.setattr(on_ray, "find_spec", lambda _: object())
    return make


def pool(said: list[str] | None = None) -> RayPool:
    with saying(lambda _, text: (said if said is not None else []).append(text)):
        return RayPool("ray", native(), None, KIND)


def test_every_machine_has_one_actor_with_all_of_its_processors(
    cluster: Callable[..., FakeRay],
) -> None:
    ray, said = cluster("a", "b", "a", "head", "gone"), list[str]()
    ray.nodes_[3]["Resources"] = {}  # it takes no work
    ray.nodes_[4]["Alive"] = False
    one = pool(said)
    assert one.free() == ["a", "b", "a 2"] and one.count == 3
    assert said == ["profile: 3 machines measure: a, a 2, b"]
    assert [how["num_cpus"] for how in ray.started] == [4, 4, 4]
    assert [how["scheduling_strategy"] for how in ray.started] == ["0", "1", "2"]
    one.close()


def test_a_machine_of_another_kind_is_told_and_let_go(cluster: Callable[..., FakeRay]) -> None:
    ray, said = cluster("a", "b", "c", "d", "e"), list[str]()
    other = {**FINE, "device": "other", "said": {"cores": 64}}
    ray.says["0", "described"] = {VALUE: other}
    ray.says["1", "described"] = {WHY: "no C compiler: tried gcc"}
    ray.says["2", "described"] = None  # taken
    ray.says["3", "described"] = RayError("it died\n  trace\nModuleNotFoundError: no module 'lumc'")
    one = pool(said)
    assert one.free() == ["e"] and one.count == 1 and sorted(ray.killed) == ["0", "1", "2", "3"]
    assert sorted(said) == [
        "profile: 1 machines measure: e",
        "profile: a does not measure: cores 64 (here 2)",
        "profile: b does not measure: no C compiler: tried gcc",
        "profile: c does not measure: no answer in 60 s: other work of Ray may have its processors",
        "profile: d does not measure: ModuleNotFoundError: no module 'lumc'",
    ]


def test_without_a_machine_of_this_kind_there_is_no_search(
    cluster: Callable[..., FakeRay],
) -> None:
    ray = cluster("a")
    ray.says["0", "described"] = {VALUE: {**FINE, "code": "other"}}
    said = list[str]()
    with pytest.raises(LumcError, match="no machine can measure for this one: --on ray") as e:
        pool(said)
    assert (e.value.code, e.value.exit) == ("E0716", 7)
    assert said == ["profile: a does not measure: other files of lumc"]


@pytest.mark.parametrize("refused", [ConnectionError("Could not find any"), RuntimeError("old")])
def test_no_cluster_is_one_error(cluster: Callable[..., FakeRay], refused: Exception) -> None:
    cluster("a").refuses = refused
    with pytest.raises(LumcError, match=f"--on ray: no Ray cluster: {refused}") as e:
        pool()
    assert (e.value.code, e.value.exit) == ("E0715", 7) and "ray start" in e.value.fix


def test_jobs_go_out_and_answers_come_back(cluster: Callable[..., FakeRay]) -> None:
    ray = cluster("a", "b")
    one = pool()
    one.give("a", {"job": 1})
    assert one.free() == ["b"] and one.heard(0.0) == []
    ray.says["0", "measure"] = {VALUE: {"us": 1.0}}
    assert one.heard(0.0) == [("a", {VALUE: {"us": 1.0}})]
    assert sorted(one.free()) == ["a", "b"] and one.heard(0.0) == []
    ray.says["1", "measure"] = RayTaskError("\x1b[36mray::x\x1b[39m\n trace\nKeyError: 'x'")
    one.give("b", {"job": 2})
    assert one.heard(0.0) == [("b", {WHY: "KeyError: 'x'"})]
    one.drop("b")
    assert one.free() == ["a"] and one.heard(0.0) == [] and one.count == 1 and ray.killed == ["1"]


def test_a_process_that_ends_is_started_again_or_the_machine_is_let_go(
    cluster: Callable[..., FakeRay],
) -> None:
    ray = cluster("a", "b")
    one = pool()
    ray.says["0", "measure"], ray.says["0", "described"] = RayError("socket closed"), None
    one.give("a", {})
    assert one.heard(0.0) == [("a", {LOST: "its process ended"})]
    assert one.free() == ["b"] and one.count == 2, "it may come back"
    assert one.heard(0.0) == [] and one.free() == ["b"]
    ray.says["0", "described"] = {VALUE: FINE}
    assert one.heard(0.0) == [] and sorted(one.free()) == ["a", "b"]
    one.give("a", {})
    ray.says["0", "described"] = RayError("The actor is dead")
    assert one.heard(0.0) == [("a", {LOST: "its process ended"})]
    said = list[str]()
    with saying(lambda _, text: said.append(text)):
        assert one.heard(0.0) == [] and one.free() == ["b"] and one.count == 1
    assert said == ["profile: a does not measure: The actor is dead"]


def test_the_end_of_the_cluster_loses_what_is_measured_only(
    cluster: Callable[..., FakeRay],
) -> None:
    cluster("a", "b")
    one = pool()
    one.give("b", {})
    one.drop("b")  # it took too long
    one.give("a", {})
    one._driver.kill()
    assert one.heard(0.0) == [("a", {LOST: "the cluster ended"})]
    assert one.heard(0.0) == [] and one.free() == [] and one.count == 0
    one.close()


def test_what_the_driver_is_told_can_be_sent() -> None:
    """Terms cannot: they are plain there."""
    sent = on_ray.drive, "auto", to_plain(native()), None, to_plain(KIND)
    assert pickle.loads(pickle.dumps(sent)) == sent  # noqa: S301


# ---- the command


def test_ray_is_an_extra(lumc: Lumc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda _: None)
    said = lumc.fails(7, "compile", "m.lg", "-o", "m.lb", "--on", "ray")
    assert said.startswith("E0714 --on ray needs a package that is not installed: ray\n")
    assert "pip install 'lumc[ray]'" in said


@pytest.mark.parametrize("way", [["--estimate"], ["--frozen"], ["--device-records", "1f"]])
def test_on_measures_and_others_do_not(lumc: Lumc, way: list[str]) -> None:
    assert "choose one" in lumc.fails(2, "profile", "m.ls", "--on", "ray", *way)


@pytest.mark.parametrize("address", ["slurm", "ray:", "ray://", "ray://a b", "http://a:1", "RAY"])
def test_what_is_no_cluster_is_refused(lumc: Lumc, address: str) -> None:
    assert "expected ray, ray://HOST:PORT, or ssh-hosts FILE" in lumc.fails(
        2, "profile", "m.ls", "--on", address
    )


def test_ray_is_imported_by_its_driver_only() -> None:
    told = "import sys, lumc.profile.on_ray, lumc.command.passes; sys.exit('ray' in sys.modules)"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", told], env=env).returncode == 0
