"""Look for faults for a while, and go on where the last campaign stopped.

    make fuzz FUZZ="--seconds 600 --seed 1 --kind graphs,onnx,artifacts,native"

Every case follows from the seed and its number, so that a finding can be made again. What was
done is kept in build/fuzz/state.json, findings lie in build/fuzz/found: a graph that is wrong is
shrunk, and goes to tests/fuzz/found when its cause is mended.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from fuzz import graphs, native, nnsmith_graphs, onnx_graphs, readers

ROOT = Path(__file__).parent.parent.parent
GOALS = {  # of a unit
    **{"graphs": 20_000, "onnx": 20_000, "nnsmith": 2_000},
    **{"artifacts": 100_000, "native": 1_000_000},
}
UNITS = {
    "graphs": ("all",),
    "onnx": ("all",),
    "nnsmith": ("all",),
    "artifacts": readers.KINDS,
    "native": native.TARGETS,
}
TURN_S = 25.0  # of the processor; the unit that is furthest behind its goal has the next turn
GRACE_S = 240.0  # of the processor that a turn may take longer: a batch is not interrupted
STUCK_S = 3600.0  # after the end that a turn takes where others keep the processor, at most
COUNTED = dict.fromkeys(UNITS, "graphs") | {"artifacts": "tries", "native": "runs"}
NEEDS = {"nnsmith": ("nnsmith", "torch")}  # packages, which tests do not have


@dataclass
class State:
    """What was done so far, by seed and unit; written after every turn."""

    folder: Path
    counts: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> State:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "state.json"
        return State(folder, json.loads(file.read_text()) if file.exists() else {})

    def of(self, seed: int, unit: str) -> Counter[str]:
        return Counter(self.counts.get(str(seed), {}).get(unit, {}))

    def add(self, seed: int, unit: str, done: Mapping[str, int]) -> None:
        now = self.of(seed, unit)
        for name, n in done.items():  # sizes are as they are, counts add up
            now[name] = n if name in ("corpus", "edges") else now[name] + n
        self.counts.setdefault(str(seed), {})[unit] = dict(now)
        part = self.folder / "state.json.part"
        part.write_text(json.dumps(self.counts, indent=1, sort_keys=True))
        part.replace(self.folder / "state.json")

    def total(self, unit: str) -> Counter[str]:
        """Over all seeds."""
        out: Counter[str] = Counter()
        for seed in self.counts:
            for name, n in self.of(int(seed), unit).items():
                out[name] = max(out[name], n) if name in ("corpus", "edges") else out[name] + n
        return out


# ---- one turn, in a process of its own


def turn(args: argparse.Namespace) -> None:
    """Cases from a number on, until so many seconds of the processor or so many in all are over;
    the last line says what was done."""
    kind, _, name = args.turn.partition("/")
    folder, seed, first, seconds = args.folder, args.seed, int(args.first), args.seconds
    end, most = time.monotonic() + float(args.left), int(seconds + GRACE_S)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))

    def go_on() -> bool:
        took = os.times()  # of compilers too
        return sum(took[:4]) < seconds and time.monotonic() < end

    if kind == "native":
        limits = seconds, float(args.left)
        done = native.fuzz(folder / "native", name, seed * 1_000_003 + first, limits)
    elif kind == "graphs":
        done = graphs.fuzz(folder / "graphs", seed, first, go_on, args.modes.split(","))
    elif kind == "onnx":
        done = onnx_graphs.fuzz(folder / "onnx", seed, first, go_on)
    elif kind == "nnsmith":
        make = nnsmith_graphs.cases
        done = onnx_graphs.fuzz(folder / "nnsmith", seed, first, go_on, make)
    else:
        done = artifacts(folder, name, seed, first, go_on)
    print(json.dumps(done))


def artifacts(
    folder: Path, name: str, seed: int, first: int, go_on: Callable[[], bool]
) -> dict[str, int]:
    """Files with faults of one kind. The number of the one that is read is kept in a file, for the
    case that it ends the process."""
    place = folder / "artifacts" / name
    shutil.rmtree(place, ignore_errors=True)  # the last turn left its last damaged file there
    kind = readers.kinds(place, [name])[name]
    with marker(folder, name) as number:
        count: Counter[str] = Counter()
        known = set[str]()
        while go_on():
            n = first + count["tries"]
            number[:8] = n.to_bytes(8, "little")
            data = kind.make(random.Random(f"{seed} {name} {n}"))
            said, accepted = readers.problem(kind, data)
            count["tries"] += 1
            count["accepted"] += accepted
            if said:
                count["findings"] += 1
                if (about := signature(said)) not in known:
                    known.add(about)
                    keep(folder / "found", f"{name}-{seed}-{n}", data, said)
    return dict(count)


def signature(said: str) -> str:
    """What findings of one cause have in common."""
    lines = [s.strip() for s in said.strip().split("\n")]
    places = [s for s in lines if s.startswith("File ")]
    return f"{places[-1] if places else ''} {lines[-1].partition(':')[0]}"


def keep(found: Path, name: str, data: bytes, said: str) -> None:
    found.mkdir(parents=True, exist_ok=True)
    (found / f"{name}.bin").write_bytes(data)
    (found / f"{name}.txt").write_text(said)
    print(f"{name}: {signature(said)}", flush=True)


def marker(folder: Path, name: str) -> mmap.mmap:
    path = folder / f"{name}.number"
    path.write_bytes(bytes(8))
    with path.open("r+b") as f:
        return mmap.mmap(f.fileno(), 8)


# ---- the campaign


@dataclass(frozen=True)
class Campaign:
    """What was asked for."""

    state: State
    seed: int
    units: tuple[str, ...]
    end: float
    modes: str

    def behind(self, busy: set[str]) -> str:
        """The unit that is furthest from its goal."""

        def share(unit: str) -> float:
            kind = unit.partition("/")[0]
            return self.state.total(unit)[COUNTED[kind]] / GOALS[kind]

        return min((u for u in self.units if u not in busy), key=share)

    def work(self, busy: set[str]) -> int:
        """Turns until the time is over; how many findings there were."""
        findings = 0
        while (left := self.end - time.monotonic()) > 1:
            unit = self.behind(busy)
            busy.add(unit)
            done = self.run(unit, left)
            self.state.add(self.seed, unit, done)
            busy.discard(unit)
            findings += done.get("findings", 0)
            now = self.state.total(unit)
            said = ", ".join(f"{n:,} {name}" for name, n in sorted(now.items()))
            print(f"{max(0, self.end - time.monotonic()):5.0f} s left  {unit}: {said}", flush=True)
        return findings

    def run(self, unit: str, left: float) -> dict[str, int]:
        kind = unit.partition("/")[0]
        first = self.state.of(self.seed, unit)[COUNTED[kind]]
        numbers = ["--seed", str(self.seed), "--first", str(first), "--left", f"{left:.1f}"]
        numbers += ["--seconds", str(TURN_S)]
        where = ["--folder", str(self.state.folder), "--modes", self.modes]
        command = [sys.executable, "-m", "fuzz.campaign", "--turn", unit, *numbers, *where]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        env.setdefault("LUMC_OBJECTS", str(self.state.folder / "objects"))
        Path(env["LUMC_OBJECTS"]).mkdir(parents=True, exist_ok=True)
        try:
            made = subprocess.run(
                command, capture_output=True, text=True, env=env, timeout=left + STUCK_S
            )
        except subprocess.TimeoutExpired:
            print(
                f"{unit}: a turn took more than {left + STUCK_S:.0f} s, from {first} on", flush=True
            )
            return {"findings": 1}
        *said, last = made.stdout.strip().split("\n")
        print("".join(f"  {s}\n" for s in said), end="", flush=True)
        if made.returncode == 0:
            done: dict[str, int] = json.loads(last)
            return done
        return self.died(unit, first, made.stderr)

    def died(self, unit: str, first: int, said: str) -> dict[str, int]:
        """A case that ended the process: it counts, and the next turn starts behind it."""
        kind, _, name = unit.partition("/")
        print(f"{unit}: the process ended\n{said[-3000:]}", flush=True)
        file = self.state.folder / f"{name}.number"
        at = int.from_bytes(file.read_bytes(), "little") if file.exists() else first
        return {"findings": 1, COUNTED[kind]: max(1, at + 1 - first)}


def summary(state: State, units: tuple[str, ...]) -> str:
    """What all campaigns in the folder did, as a table for docs/security.md."""
    rows = ["| what | tried | of | accepted | findings |", "|---|--:|--:|--:|--:|"]
    for unit in units:
        kind, now = unit.partition("/")[0], state.total(unit)
        more = f"{now['accepted']:,}" if "accepted" in now else ""
        more = f"{now['refused']:,} refused" if "refused" in now else more
        if kind == "graphs" and now["elements"]:
            more = f"{now['judged'] / now['elements']:.1%} of elements judged"
        tried = f"{now[COUNTED[kind]]:,} | {GOALS[kind]:,}"
        rows.append(f"| {unit.replace('/', ' ')} | {tried} | {more} | {now['findings']} |")
    return "\n".join(rows)


def units_of(kinds: str) -> tuple[str, ...]:
    """``graphs,artifacts/lg`` as units."""
    out = list[str]()
    for kind in kinds.split(","):
        group, _, name = kind.partition("/")
        if group not in UNITS or (name and name not in UNITS[group]):
            known = ", ".join(f"{k}/{u}" for k, us in UNITS.items() for u in us)
            raise SystemExit(f"no kind {kind}; there are: {known}")
        if group not in ready():
            raise SystemExit(f"kind {kind} needs packages: pip install {' '.join(NEEDS[group])}")
        out += [f"{group}/{u}" for u in UNITS[group] if name in ("", u)]
    return tuple(out)


def ready() -> list[str]:
    """The kinds whose packages are there."""
    return [k for k in UNITS if all(find_spec(name) for name in NEEDS.get(k, ()))]


def arguments() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("make fuzz", description=__doc__, formatter_class=form)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--seed", type=int, default=1, help="of all cases (1)")
    parser.add_argument(
        "--kind", default=",".join(ready()), help="graphs, artifacts/lg, native, .."
    )
    parser.add_argument("--modes", default=",".join(graphs.MODES), help="of graphs (all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--folder", type=_whole, default=ROOT / "build" / "fuzz", help="build/fuzz")
    parser.add_argument("--summary", action="store_true", help="only say what was done so far")
    for name in ("--turn", "--first", "--left"):
        parser.add_argument(name, default="0", help=argparse.SUPPRESS)
    return parser.parse_args()


def _whole(name: str) -> Path:
    """Of a folder that commands with other folders of work are told."""
    return Path(name).resolve()


def main() -> int:
    args = arguments()
    if args.turn != "0":
        turn(args)
        return 0
    state, units = State.read(args.folder), units_of(args.kind)
    findings = 0
    if not args.summary:
        end = time.monotonic() + args.seconds
        campaign = Campaign(state, args.seed, units, end, args.modes)
        busy, jobs = set[str](), min(args.jobs, len(units))
        with ThreadPoolExecutor(jobs) as pool:
            findings = sum(pool.map(campaign.work, [busy] * jobs))
    print(summary(state, units))
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
