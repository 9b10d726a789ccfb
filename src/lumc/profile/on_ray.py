"""The machines of a Ray cluster: an actor on each, which has all of its processors.

Ray starts processes there, carries what they say, and notices when they end. Its driver is a
process of its own here: it prints to stdout, takes SIGTERM for itself, waits for ever for a cluster
that does not answer, and ends with the cluster. Nothing of Ray is imported anywhere else.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.target import Target
from lumc.process import Lost, Process, answers
from lumc.profile.cluster import (
    LOST,
    WHY,
    Answer,
    Kind,
    Remote,
    code_here,
    refusal,
    require_some,
    say,
)

CONNECT_S = 45.0  # to a cluster; measured: 30 s until Ray's client gives up
START_S = 60.0  # until an actor says what its machine is: it imports numpy, over a network; a guess
ALIVE_S = 15.0  # until the driver answers beyond what it waits for; a guess
RESTARTS = 3  # of the process on one machine; a guess
HERE = "auto"  # Ray's address of the cluster that this machine is a part of
SAID = 200  # characters of what Ray says; a guess
COLOURS = re.compile("\x1b\\[[0-9;]*m")  # in what Ray says of exceptions
JOIN = "ray start --head on one machine, ray start --address=HOST:6379 on the others; ray status"


def require() -> None:
    """Raises E0714."""
    if find_spec("ray") is None:
        what = "--on ray needs a package that is not installed: ray"
        raise LumcError("E0714", what, fix="pip install 'lumc[ray]'", exit=Exit.TOOLCHAIN)


class RayPool:
    """Machines of a cluster that are of the kind of this one. Raises E0714, E0715 where there is no
    cluster, E0716 if none of its machines can measure."""

    def __init__(self, address: str, target: Target, cc: str | None, here: Kind) -> None:
        require()
        self.count = 0
        self._free, self._busy = list[str](), set[str]()
        self._given, self._dropped = list[tuple[str, Any]](), list[str]()
        ours = to_plain(target), cc, to_plain(replace(here, code=code_here()))
        doing("starting the machines of the cluster")
        self._driver = Process(drive, address if address != "ray" else HERE, *ours)
        try:
            self._connect(address)
            require_some(self._free, address)
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str) -> None:
        try:
            why = self._driver.ask(("connect",), CONNECT_S)
            if not why:
                self._ask(START_S, START_S)
        except Lost as e:
            why = str(e)
        if why:
            what = f"--on {address}: no Ray cluster: {why}"
            raise LumcError("E0715", what, fix=JOIN, exit=Exit.TOOLCHAIN)

    def _ask(self, *seconds: float) -> list[tuple[str, Answer]]:
        """What the driver heard, of all that was given and dropped since the last time."""
        question = "turn", self._given, self._dropped, *seconds
        self._given, self._dropped = [], []
        heard, self._free, self.count, said = self._driver.ask(question, sum(seconds) + ALIVE_S)
        for line in said:
            say(line)
        self._busy -= {name for name, _ in heard}
        return list(heard)

    def free(self) -> list[str]:
        return list(self._free)

    def give(self, machine: str, job: Any) -> None:
        self._free.remove(machine)
        self._busy.add(machine)
        self._given.append((machine, job))

    def heard(self, seconds: float) -> list[tuple[str, Answer]]:
        try:
            return self._ask(seconds)
        except Lost:
            self._driver.kill()  # an answer that comes late is none to the next question
            lost: list[tuple[str, Answer]] = [(n, {LOST: "the cluster ended"}) for n in self._busy]
            self._free, self._busy, self.count = [], set(), 0
            return lost

    def drop(self, machine: str) -> None:
        self._free = [name for name in self._free if name != machine]
        self._busy.discard(machine)
        self._dropped.append(machine)

    def close(self) -> None:
        """Without its driver, Ray ends the actors."""
        self._driver.kill()


# ---- the process that talks to Ray


def drive(pipe: Connection, address: str, target: Any, cc: str | None, here: Any) -> None:
    """Answers until the pipe closes."""
    for number in (1, 2):  # an artifact may go to stdout, and what matters is said by the command
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    driver = Driver(address, (target, cc), from_plain(Kind, here))
    answers(pipe, lambda name, *arguments: getattr(driver, name)(*arguments))


class Driver:
    """The actors, as Ray knows them."""

    def __init__(self, address: str, asked: tuple[Any, str | None], here: Kind) -> None:
        self.address, self.asked, self.here = address, asked, here
        self.actors = dict[str, Any]()  # by the name of their machine
        self.free = list[str]()
        self.waiting = dict[Any, tuple[str, bool]]()  # for answers: from whom, whether of a job
        self.said = list[str]()

    def connect(self) -> str:
        """Why there is no cluster, or nothing."""
        import ray

        self.ray = ray
        try:
            ray.init(self.address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (OSError, RuntimeError, ValueError) as e:
            return words(e)
        for node in ray.nodes():
            if node["Alive"] and int(node["Resources"].get("CPU", 0)):
                self._start(node)
        return ""

    def turn(
        self, given: list[tuple[str, Any]], dropped: list[str], seconds: float, start_s: float = 0.0
    ) -> tuple[list[tuple[str, Answer]], list[str], int, list[str]]:
        """Hand out jobs, and wait for the first answer, or so long for all machines to start: what
        was heard, who is free, how many there are, and what to say."""
        for name in dropped:
            self._drop(name)
        for name, job in given:
            self.free.remove(name)
            self.waiting[self.actors[name].measure.remote(job)] = name, True
        count = len(self.waiting) if start_s else 1
        heard = self._hear(min(count, len(self.waiting)), seconds)
        if start_s:
            for name, _ in list(self.waiting.values()):
                why = f"no answer in {start_s:g} s: other work of Ray may have its processors"
                self._hear_kind(name, {WHY: why})
        said, self.said = self.said, []
        return heard, list(self.free), len(self.actors), said

    def _start(self, node: Any) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        host = node["NodeManagerHostname"]
        same = sum(name.partition(" ")[0] == host for name in self.actors)
        name = f"{host} {same + 1}" if same else host
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        cores = int(node["Resources"]["CPU"])  # all of them: nothing else of Ray runs meanwhile
        how = {"num_cpus": cores, "max_restarts": RESTARTS, "scheduling_strategy": there}
        self.actors[name] = self.ray.remote(Remote).options(**how).remote(*self.asked)
        self._ask_kind(name)

    def _ask_kind(self, name: str) -> None:
        asked = self.actors[name].described.options(max_task_retries=-1)  # until it is dead
        self.waiting[asked.remote()] = name, False

    def _hear(self, count: int, seconds: float) -> list[tuple[str, Answer]]:
        """So many answers, or fewer if they take longer: those of jobs."""
        if not count:
            return []
        ready, _ = self.ray.wait(list(self.waiting), num_returns=count, timeout=seconds)
        out = []
        for ref in ready:
            name, of_job = self.waiting.pop(ref)
            answer = self._answer(ref, of_job)
            if not of_job:
                self._hear_kind(name, answer)
                continue
            if LOST in answer:
                self._ask_kind(name)  # Ray starts its process again, perhaps
            else:
                self.free.append(name)
            out.append((name, answer))
        return out

    def _answer(self, ref: Any, of_job: bool) -> Answer:
        try:
            answer: Answer = self.ray.get(ref)
            return answer
        except self.ray.exceptions.RayTaskError as e:
            return {WHY: words(e)}
        except self.ray.exceptions.RayError as e:
            return {LOST: "its process ended" if of_job else words(e)}

    def _hear_kind(self, name: str, answer: Answer) -> None:
        """A machine of the right kind is free, one of another is let go."""
        if why := refusal(answer, self.here):
            self.said.append(f"{name} does not measure: {why}")
            self._drop(name)
        else:
            self.free.append(name)

    def _drop(self, name: str) -> None:
        self.ray.kill(self.actors.pop(name))
        self.free = [other for other in self.free if other != name]
        self.waiting = {ref: of for ref, of in self.waiting.items() if of[0] != name}


def words(e: Exception) -> str:
    """The last line of what Ray says: before it are traces."""
    said = COLOURS.sub("", str(e)).strip() or type(e).__name__
    return said.rpartition("\n")[2].strip()[:SAID]
