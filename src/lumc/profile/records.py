"""What was measured: one JSON line per trial, appended and synced, so that a killed search goes on.

A record belongs to a kernel (its key is the hash of its canonical text and target), a schedule and
a setting: device, toolchain, threads, cold or warm weights. Records of another setting are only
hints of what to try first. A torn line and lines of another schema are skipped.

The first schedule of a kernel that has a time is its yardstick: it is timed in turn with every
later one, which took ``us`` while the yardstick took ``beside``. Times in memory are what these
trials would take in the fastest moment of the yardstick. Kernels of rival programs run in turn
now and then: ``turn`` is what a yardstick takes there, in the same moment as the others.

    {"v": 2, "kind": "trial", "kernel": .., "device": .., "tools": .., "threads": 1, "cold": true,
     "schedule": {..}, "us": 12.5, "beside": 13.1, "samples": 20, "noise": 0.01}
    {.., "schedule": {..}, "reason": "wrong", "remark": ".."}
    {.., "kind": "turn", .., "us": 14.2}
    {.., "kind": "machine", .., "cpu": "..", "cores": 2, "compiler": "..", "egglog": "13.2.0"}
    {.., "kind": "peak", .., "gflops": 118.2, "cached": 190.0, "memory": 14.1}
    {.., "kind": "choice", .., "schedule": {..}, "us": 12.5, "stop": "converged", "trials": 80,
     "budget_s": 60.0, "limit": 0, "spent_s": 31.4, "among": ".."}
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from lumc.disk import private
from lumc.environment import user_folder
from lumc.kernel.target import Speeds
from lumc.schedule.schedule import Schedule

SCHEMA = 2  # 2: axes are named by what they are
NAME = "records.jsonl"
SAID = {  # of trials
    **{"samples": int, "noise": float, "slices": int},
    **{"reason": str, "remark": str, "source": str},
}
NEIGHBOUR, ELSEWHERE = "neighbour", "elsewhere"  # where a schedule was best before it was tried
HEAD = ("v", "kind", "kernel", "device", "tools", "threads", "cold")
HINTS = 3  # schedules of other machines that are tried first; a guess


@dataclass(frozen=True)
class Trial:
    """What became of a candidate: a time, or a reason and a remark. The faster is the lesser."""

    schedule: Schedule
    us: float | None = None
    samples: int = 0
    noise: float = 0.0
    slices: int = 0  # over 1: a slice of the tiles was timed, and its share said the rest
    reason: str = ""
    remark: str = ""
    beside: float = 0.0  # microseconds of the yardstick meanwhile; 0: it was timed alone
    seen: float = 0.0  # microseconds before the yardstick corrected them; 0: it did not
    source: str = ""  # neighbour: another kernel of its kind; elsewhere: records of another machine

    def __lt__(self, other: Trial) -> bool:
        return self.time < other.time

    @property
    def time(self) -> float:
        """In microseconds; infinite if it has none."""
        return inf if self.us is None else self.us

    @property
    def longest(self) -> float:
        """What it took for certain, in a slow moment perhaps."""
        return max(self.time, self.seen)


@dataclass(frozen=True)
class Setting:
    """What a time depends on beside the kernel and its schedule."""

    device: str
    tools: str
    threads: int

    def fields(self) -> dict[str, Any]:
        return asdict(self)


class Asked(NamedTuple):
    """What a search may spend, and on what."""

    budget_s: float  # of all kernels together
    limit: int = 0  # of trials of each; 0: none
    among: str = ""  # identifies the kernels that share the budget
    share_s: float = inf  # of the budget that one of them has


@dataclass(frozen=True)
class Choice:
    """The end of the search of one kernel: the winner, why it ended, and what was spent."""

    schedule: Schedule
    us: float
    stop: str
    trials: int  # made so far
    budget_s: float  # of the search, if it was spent, or nothing was left to do; else 0
    limit: int  # of trials; 0: none
    spent_s: float = 0.0  # on this kernel, in all searches that ended
    among: str = ""  # identifies the kernels that shared the budget

    def covers(self, asked: Asked) -> bool:
        """Whether such a search has nothing to add: the same kernels had this budget together, or
        this one had more than its share."""
        if self.stop in ("interrupted", "bound"):
            return self.stop == "bound"
        enough = not self.limit or (0 < asked.limit <= self.limit)
        if self.stop == "trials":
            return enough
        together = self.among == asked.among and asked.budget_s <= self.budget_s
        return enough and (together or asked.share_s <= self.spent_s)


def yardstick(known: Mapping[str, Trial]) -> Trial | None:
    """The trial that others of the kernel are compared with: the first that has a time."""
    return next((t for t in known.values() if t.us), None)


def text_of(schedule: Schedule) -> str:
    return json.dumps(schedule.to_json(), sort_keys=True, separators=(",", ":"))


class Records:
    """The records of one folder; without one that can be used they are forgotten at the end."""

    def __init__(
        self, folder: Path | None, setting: Setting, said: Mapping[str, Any] | None = None
    ) -> None:
        self.path = folder / NAME if folder else None
        self.setting = setting
        self.said = dict(said or {})  # what the setting is, in words
        self._told: Mapping[str, Any] = {}  # what of that is on record
        self.trials: dict[tuple[str, bool], dict[str, Trial]] = {}
        self.choices: dict[tuple[str, bool], Choice] = {}
        self.elsewhere: dict[str, dict[str, float]] = {}  # kernel -> schedule -> us
        self.turns: dict[tuple[str, bool], float] = {}  # us of yardsticks, in turn with others
        self.layouts: dict[str, float] = {}  # us of whole runs of layouts, in turn
        self.speeds: Speeds | None = None  # the greatest that were measured
        self._handle: int | None = None
        try:
            for line in read_lines(self.path) if self.path else ():
                self._learn(line)
        except OSError as e:
            self._forgo(f"cannot read {self.path}", e)

    def _learn(self, line: Mapping[str, Any]) -> None:
        try:
            mine, kind = all(line[k] == v for k, v in self.setting.fields().items()), line["kind"]
            key, us = (str(line["kernel"]), bool(line["cold"])), _microseconds(line.get("us"))
            if kind == "machine" and mine:
                self._told = {k: v for k, v in line.items() if k not in HEAD}
            elif kind == "peak" and mine:
                speeds = Speeds(*(float(line[name]) for name in Speeds._fields))
                self.speeds = speeds if all(rate > 0 for rate in speeds) else self.speeds
            elif kind == "turn" and mine and us:
                self.turns[key] = us
            elif kind == "layout" and mine and us:
                self.layouts[key[0]] = us
            elif kind == "choice" and mine and us is not None:
                numbers = int(line["trials"]), float(line["budget_s"]), int(line["limit"])
                spent = float(line.get("spent_s", 0.0)), str(line.get("among", ""))
                schedule = Schedule.from_json(line["schedule"])
                self.choices[key] = Choice(schedule, us, str(line["stop"]), *numbers, *spent)
            elif kind == "trial" and mine:
                said = {name: to(line[name]) for name, to in SAID.items() if name in line}
                beside = _microseconds(line.get("beside")) or 0.0
                self._keep(
                    key, Trial(Schedule.from_json(line["schedule"]), us, beside=beside, **said)
                )
            elif kind in ("trial", "choice") and us is not None:
                text = text_of(Schedule.from_json(line["schedule"]))
                self.elsewhere.setdefault(key[0], {})[text] = us
        except (LookupError, TypeError, ValueError, OverflowError):
            return

    def _keep(self, key: tuple[str, bool], trial: Trial) -> None:
        """The least time of a schedule counts, in the fastest moment of the yardstick."""
        known = self.trials.setdefault(key, {})
        first = yardstick(known)
        if first and trial.us is not None and trial.beside:
            usual = min(first.time, trial.beside)
            for text, t in known.items() if usual < first.time else ():
                if t.us is not None and (t.beside or t is first):
                    known[text] = replace(t, us=t.us * usual / first.time)
            trial = replace(trial, us=trial.us * usual / trial.beside, seen=trial.us)
        old = known.get(text_of(trial.schedule))
        if old is None or old.us is None or (trial.us is not None and trial.us < old.us):
            known[text_of(trial.schedule)] = trial

    def add(self, kernel: str, cold: bool, trial: Trial) -> None:
        self._keep((kernel, cold), trial)
        body = {k: v for k, v in asdict(trial).items() if v not in (None, "", 0)}
        self._append("trial", kernel, cold, {**body, "schedule": trial.schedule.to_json()})

    def choose(self, kernel: str, cold: bool, choice: Choice) -> None:
        self.choices[kernel, cold] = choice
        body = {**asdict(choice), "schedule": choice.schedule.to_json()}
        self._append("choice", kernel, cold, body)

    def set_turn(self, kernel: str, cold: bool, us: float) -> None:
        """What the yardstick of a kernel took in turn with those of the latest rivals."""
        self.turns[kernel, cold] = us
        self._append("turn", kernel, cold, {"us": us})

    def set_layout(self, key: str, us: float) -> None:
        """What whole runs in a layout took with default schedules, in turn with other layouts."""
        self.layouts[key] = us
        self._append("layout", key, False, {"us": us})

    def set_speeds(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self._append("peak", "", False, speeds._asdict())

    def forget(self, kernel: str, legal: Callable[[Schedule], bool]) -> None:
        """Leave out what is no schedule of a kernel any more: records may be older than the law."""
        for at in ((kernel, False), (kernel, True)):
            known = self.trials.get(at, {})
            for text in [text for text, t in known.items() if not legal(t.schedule)]:
                del known[text]
            if at in self.choices and not legal(self.choices[at].schedule):
                del self.choices[at]

    def hints(self, kernel: str) -> list[Schedule]:
        """The best schedules of other settings, fastest first."""
        known = sorted(self.elsewhere.get(kernel, {}).items(), key=lambda item: (item[1], item[0]))
        return [Schedule.from_json(json.loads(text)) for text, _ in known[:HINTS]]

    def _append(self, kind: str, kernel: str, cold: bool, body: Mapping[str, Any]) -> None:
        if self.said and self._told != self.said:
            self._told = self.said
            self._append("machine", "", False, self.said)
        if self.path is None:
            return
        head = {"v": SCHEMA, "kind": kind, "kernel": kernel, **self.setting.fields(), "cold": cold}
        text = json.dumps({**head, **body}, separators=(",", ":"), allow_nan=False)
        try:
            if self._handle is None:
                self._handle = _open(self.path)
            _write(self._handle, f"{text}\n".encode())
            os.fsync(self._handle)
        except OSError as e:
            self._forgo(f"cannot write {self.path}", e)

    def _forgo(self, what: str, e: OSError) -> None:
        """Go on without the folder: a search is worth its time without records too."""
        self.path = None
        private.warn_once(f"{what}: {e.strerror}: what is measured is used now and forgotten")

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _microseconds(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (float, int) or not isfinite(value) or value < 0:
        raise ValueError(f"not a time: {value!r}")
    return float(value)


def _open(path: Path) -> int:
    """For appending, after the end of a line that a killed search left torn. What is the user's is
    only the user's; a project's folder is as private as the project."""
    private.make(path.parent)
    if path.parent == user_folder() and (why := private.flaw(path.parent)):
        raise OSError(errno.EPERM, why)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags, 0o644)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EPERM, "it is no file")
        if found.st_size and os.pread(handle, 1, found.st_size - 1) != b"\n":
            _write(handle, b"\n")
    except OSError:
        os.close(handle)
        raise
    return handle


def _write(handle: int, data: bytes) -> None:
    """All of it; a nearly full disk takes a part, and says nothing."""
    if os.write(handle, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; a missing file has none."""
    if not path.is_file():
        return
    with path.open("rb") as f:
        for raw in f:
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and line.get("v") == SCHEMA:
                yield line


def identity(line: Mapping[str, Any]) -> str:
    """Records with the same identity are about the same thing; the fastest counts."""
    names = ("kind", "kernel", "device", "tools", "threads", "cold")
    schedule = line.get("schedule") if line.get("kind") == "trial" else None
    return json.dumps([[line.get(n) for n in names], schedule], sort_keys=True)


def compact(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record per identity: of trials the fastest, of others the last; in order of arrival."""
    out: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            us = _microseconds(line.get("us"))
        except ValueError:  # nobody reads such a line
            continue
        key = identity(line)
        old, last = out.get(key, {}).get("us"), line.get("kind") in ("choice", "turn", "layout")
        if old is None or (us is not None and (last or us < old)):
            out[key] = line
    return list(out.values())
