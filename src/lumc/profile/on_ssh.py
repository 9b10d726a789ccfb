"""The hosts of a file, reached by ssh: on each a process that holds a bench, and speaks JSON.

ssh knows who may come in and keeps what is said to itself; a process that it started ends when its
stdin does. Nothing else runs there, and nothing listens.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lumc.doing import doing
from lumc.environment import told
from lumc.errors import Exit, LumcError
from lumc.kernel.codec import to_plain
from lumc.kernel.target import Target
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

NAMED = "ssh-hosts:"  # before the name of the file, in --on
CONNECT_S = 15  # until a host takes the connection; a guess
SILENT_S, SILENCES = 15, 3  # of a connection, until ssh takes it for lost; a guess
START_S = 60.0  # until a process there says what its machine is: it imports numpy; a guess
RESTARTS = 3  # of the process of one slot; a guess
END_S = 2.0  # that it has to end by itself; a guess
MOST_SLOTS = 64  # of one host; a guess
LONGEST = 1 << 24  # bytes of a line that a host may say; a guess
MARK = b"lumc: "  # before what is ours: shells may greet
SAID = 200  # characters of what ssh says; a guess
OPTIONS = {
    "BatchMode": "yes",  # nobody is asked for a password
    "ConnectTimeout": CONNECT_S,
    "ServerAliveInterval": SILENT_S,
    "ServerAliveCountMax": SILENCES,
}
LINE = re.compile(r"((?!-)(?:[\w.+-]+@(?!-))?[\w.:-]+)(?:\s+([0-9]+))?")
EXPECTED = "one host a line: [user@]host [slots]; what follows # does not count"


class Host(NamedTuple):
    """Where to go, and how many processes measure there."""

    name: str
    slots: int


def hosts_in(file: str) -> list[Host]:
    """The hosts that a file names. Raises E0201 for one that cannot be read, and E0203 for lines
    that name no host, the same one again, or none at all."""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no text"
        raise LumcError("E0201", f"cannot read {file}: {why}", exit=Exit.USAGE) from None
    found = dict[str, Host]()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        named = LINE.fullmatch(text)
        name, slots = (named[1], int((named[2] or "1")[:9])) if named else ("", 1)
        why = "" if named else f"'{text[:80]}' names no host"
        why = why or (f"{name} stands there twice" if name in found else "")
        why = why or ("" if 1 <= slots <= MOST_SLOTS else f"slots are 1 to {MOST_SLOTS}")
        if why:
            what = f"--on ssh-hosts: {file}:{number}: {why}"
            raise LumcError("E0203", what, fix=EXPECTED, exit=Exit.USAGE)
        found[name] = Host(name, slots)
    if not found:
        what = f"--on ssh-hosts: {file} names no host"
        raise LumcError("E0203", what, fix=EXPECTED, exit=Exit.USAGE)
    return list(found.values())


def command_for(host: str) -> list[str]:
    """What starts the process there: $LUMC_SSH, or ssh, and there $LUMC_SSH_PYTHON, or the Python
    that is at the same place as this one. Raises E0714 without ssh."""
    ssh = shlex.split(told("LUMC_SSH") or "ssh")
    if not ssh or shutil.which(ssh[0]) is None:
        what = f"--on ssh-hosts needs a program that is not here: {' '.join(ssh[:1]) or 'ssh'}"
        raise LumcError(
            "E0714", what, fix="install OpenSSH, or name it: LUMC_SSH", exit=Exit.TOOLCHAIN
        )
    how = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    python = told("LUMC_SSH_PYTHON") or sys.executable
    return [*ssh, "-T", *how, host, shlex.join([python, "-P", "-m", __name__])]


def require(on: str) -> list[Host]:
    """The hosts of the file. Raises E0201, E0203 and E0714."""
    hosts = hosts_in(on.removeprefix(NAMED))
    command_for(hosts[0].name)
    return hosts


class Slot:
    """A process on a host, as long as it is there."""

    def __init__(self, name: str, host: str, first: bytes) -> None:
        self.name, self.host, self.first, self.starts = name, host, first, 0
        self.state = ""  # asked: what its machine is, free, busy
        self.start()

    def start(self) -> None:
        """Ask it what its machine is."""
        self.starts += 1
        self.state, self.came = "asked", b""
        self.told = tempfile.TemporaryFile()  # noqa: SIM115 - what ssh says, as long as it runs
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command_for(self.host),
            stdin=pipe,
            stdout=pipe,
            stderr=self.told,
            start_new_session=True,
        )  # a session of its own: Ctrl-C is for this process alone
        self.tell(self.first)

    def tell(self, line: bytes) -> None:
        """One that ended already is heard of later."""
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def heard(self) -> Iterator[Answer]:
        """What it says now; it is lost where that ends."""
        assert self.process.stdout
        more = os.read(self.process.stdout.fileno(), 1 << 16)
        if not more:
            yield {LOST: self.why()}
            return
        *lines, self.came = (self.came + more).split(b"\n")
        yield from (answer_in(line) for line in lines if line.startswith(MARK))
        if len(self.came) > LONGEST:
            yield {WHY: "it says too much"}

    def why(self) -> str:
        """Why it ended: the last line of what ssh said, or its code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.told.seek(0)
        lines = self.told.read()[-4096:].decode(errors="replace").strip().splitlines()
        said = "".join(c for c in (lines or [""])[-1] if c.isprintable()).strip()[:SAID]
        return said or f"its process ended with {self.process.poll()}"

    def end(self) -> None:
        """It ends by itself when its stdin does; ssh does not wait for it."""
        assert self.process.stdin and self.process.stdout
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.told.close()


def answer_in(line: bytes) -> Answer:
    """An answer, whatever somebody there makes of it."""
    try:
        answer = json.loads(line.removeprefix(MARK))
    except (ValueError, RecursionError):
        answer = None
    return (
        answer if isinstance(answer, dict) else {WHY: "it answered with something else than JSON"}
    )


class SshPool:
    """The hosts of a file that are of the kind of this machine. Raises as ``require``, and E0716 if
    none of them can measure."""

    def __init__(self, on: str, target: Target, cc: str | None, here: Kind) -> None:
        hosts = require(on)
        self.here = replace(here, code=code_here())
        first = json.dumps({"target": to_plain(target), "cc": cc}).encode()
        self.slots = dict[str, Slot]()
        doing("starting the hosts")
        try:
            for host in hosts:
                for i in range(host.slots):
                    name = f"{host.name} {i + 1}" if i else host.name
                    self.slots[name] = Slot(name, host.name, first)
            self._settle(START_S)
            require_some(self.free(), f"ssh-hosts {on.removeprefix(NAMED)}")
        except BaseException:
            self.close()
            raise

    def _settle(self, seconds: float) -> None:
        """Until all have said what their machine is, or so long."""
        end = time.monotonic() + seconds
        while self._in("asked") and (left := end - time.monotonic()) > 0:
            self._listen(left)
        for slot in self._in("asked"):
            self._refuse(slot, f"no answer in {seconds:g} s")

    def _in(self, state: str) -> list[Slot]:
        return [s for s in self.slots.values() if s.state == state]

    @property
    def count(self) -> int:
        return len(self.slots)

    def free(self) -> list[str]:
        return [s.name for s in self._in("free")]

    def give(self, machine: str, job: Any) -> None:
        slot = self.slots[machine]
        slot.state = "busy"
        slot.tell(json.dumps(job).encode())

    def heard(self, seconds: float) -> list[tuple[str, Answer]]:
        end = time.monotonic() + seconds
        while True:
            found = self._listen(max(0.0, end - time.monotonic()))
            if found or time.monotonic() >= end:
                return found

    def _listen(self, seconds: float) -> list[tuple[str, Answer]]:
        """What is said of jobs, when anybody says something."""
        if not self.slots:
            return []
        with selectors.DefaultSelector() as every:
            for slot in self.slots.values():
                assert slot.process.stdout
                every.register(slot.process.stdout, selectors.EVENT_READ, slot)
            ready = [key.data for key, _ in every.select(seconds)]
        return [(s.name, a) for s in ready for a in s.heard() if self._is_of_job(s, a)]

    def _is_of_job(self, slot: Slot, answer: Answer) -> bool:
        """Take note of an answer; whether it is one to a job."""
        if slot.name not in self.slots:  # it was let go just now
            return False
        was, slot.state = slot.state, "free"
        if was == "asked":
            if why := refusal(answer, self.here):
                self._refuse(slot, why)
        elif LOST in answer:
            slot.end()
            if slot.starts > RESTARTS:
                self._refuse(slot, answer[LOST])
            else:
                slot.start()
        elif was == "free":  # nobody asked
            self._refuse(slot, "it speaks without being asked")
        return was == "busy"

    def _refuse(self, slot: Slot, why: str) -> None:
        say(f"{slot.name} does not measure: {why}")
        self.drop(slot.name)

    def drop(self, machine: str) -> None:
        if slot := self.slots.pop(machine, None):
            slot.end()

    def close(self) -> None:
        for machine in list(self.slots):
            self.drop(machine)


# ---- the process on a host


def answer_all() -> None:
    """Say what this machine is, then measure what is asked for, until nobody asks."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints here is no answer
    asked = json.loads(sys.stdin.readline())
    remote = Remote(asked["target"], asked["cc"])
    said = remote.described()
    while True:
        answers.write(MARK + json.dumps(said).encode() + b"\n")
        answers.flush()
        if not (line := sys.stdin.readline()):
            break
        said = remote.measure(json.loads(line))
    remote.close()


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        answer_all()
