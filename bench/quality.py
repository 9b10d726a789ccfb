"""How good the schedule search is: many seeds of the default search against one of ten times the
trials, and tree search against uniform sampling at equal trials.

    python bench/quality.py --out quality.json --svg docs/search-quality.svg --seconds 50

Every (kernel, schedule) is timed once and kept in a records file, so seeds that propose the same
schedule share its time. As in a search the best few of every run are then timed in turn: those
times are compared. A run ends after ``--seconds`` and a later one goes on, until all is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chart import text
from lumc.frontend import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import WeightFile
from lumc.kernel.machines import resolve_target
from lumc.link.toolchain import find
from lumc.profile.choose import estimate
from lumc.profile.finals import FINALISTS
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Records, Setting, Trial, text_of, yardstick
from lumc.profile.tree import Tree
from lumc.profile.tune import BATCH
from lumc.profile.walk import Walk
from lumc.schedule.plan import KernelPlan
from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar
from lumc.search import search

FILE = WeightFile("weights.safetensors", 8, "0" * 64)
NEAR = 1.05  # of the best of the long search
COLOURS = {"default": "#2563eb", "tree": "#15803d", "uniform": "#d97706"}


def product(g: Model) -> Tensor:
    return g.input("x", (256, 256)) @ g.input("y", (256, 256))


def linear(g: Model) -> Tensor:
    return (g.input("x", (64, 256)) @ g.weight("w", (256, 512), "f32", FILE)).relu()


def vector(g: Model) -> Tensor:
    return g.input("x", (1, 1024)) @ g.weight("w", (1024, 1024), "f32", FILE)


def convolution(g: Model) -> Tensor:
    return g.input("x", (1, 32, 28, 28)).conv(g.weight("w", (32, 32, 3, 3), "f32", FILE), padding=1)


def attention(g: Model) -> Tensor:
    q, k, v = (g.input(n, (4, 128, 64)) for n in "qkv")
    return (q @ k.transpose() * 0.125).softmax(-1) @ v


def softmax(g: Model) -> Tensor:
    return g.input("x", (256, 512)).softmax(-1)


def layernorm(g: Model) -> Tensor:
    x = g.input("x", (256, 768))
    y = x - x.mean(-1, keepdim=True)
    return y * ((y * y).mean(-1, keepdim=True) + 1e-5).sqrt().reciprocal()


def turned(g: Model) -> Tensor:
    return g.input("x", (512, 512)).transpose() + 1.0


KERNELS = (product, linear, vector, convolution, attention, softmax, layernorm, turned)


class Run(NamedTuple):
    """A search: its schedules in order, and the best of them, best first."""

    every: list[str]
    best: list[Schedule]


class Study:
    """Searches over one kernel, with times from the records or the device."""

    def __init__(self, plan: KernelPlan, records: Records, bench: Bench, until: float) -> None:
        self.plan, self.records, self.bench, self.until = plan, records, bench, until
        self.known = records.trials.setdefault((plan.key, False), {})

    def trials(self, schedules: Sequence[Schedule]) -> Iterator[Trial]:
        if time.monotonic() > self.until:
            raise TimeoutError
        new = [s for s in schedules if text_of(s) not in self.known]
        best = min((t.us for t in self.known.values() if t.us), default=None)
        jobs = [Job(self.plan, s, 0, best, yardstick(self.known)) for s in new]
        for trial in self.bench.measure(jobs) if new else ():
            self.records.add(self.plan.key, False, trial)
        return (self.known[text_of(s)] for s in schedules)

    def run(self, propose: Callable[[int], list[Schedule]], observe: Any, limit: int) -> Run:
        """``limit`` trials, or fewer when nothing is new."""
        every = list[str]()
        while len(every) < limit:
            found = propose(min(BATCH, limit - len(every)))
            if not found:
                break
            for trial in self.trials(found):
                observe(trial)
                every.append(text_of(trial.schedule))
        done = [self.known[text] for text in dict.fromkeys(every)]
        best = sorted((t for t in done if t.us), key=lambda t: t.time)[:FINALISTS]
        return Run(every, [t.schedule for t in best])

    def times(self, run: Run) -> list[float]:
        """The best time so far after every trial."""
        return list(itertools.accumulate((self.known[text].time for text in run.every), min))

    def finals(self, runs: Sequence[Run]) -> list[float]:
        """What every run ends with: the least time of its best schedules, timed in turn."""
        every = {text_of(s): s for run in runs for s in run.best}
        found = self.bench.finals([Job(self.plan, s) for s in every.values()])
        if not found:
            raise SystemExit(f"{self.plan.kernel.name}: the finals were lost")
        times = {text_of(t.schedule): t.time for t in found}
        return [min(times[text_of(s)] for s in run.best) for run in runs]

    def default(self, seed: int, limit: int) -> Run:
        walk = Walk(self.plan, self.bench.target, 0.0, seed, [])

        def observe(trial: Trial) -> None:
            walk.refresh(self.known)
            walk.observe(trial)

        return self.run(walk.propose, observe, limit)

    def tree(self, seed: int, limit: int) -> Run:
        """The tree search alone. It knows the time of the default, which does not count."""
        grammar = Grammar(self.plan.kernel, self.bench.target)
        tree, seen = Tree(grammar, random.Random(f"{seed}:tree")), set[Any]()
        for trial in self.trials([grammar.default]):
            tree.observe(trial.schedule, trial.us)

        def propose(n: int) -> list[Schedule]:
            out = []
            for _ in range(n):
                if found := tree.propose(seen):
                    seen.add(grammar.path(found))
                    out.append(found)
            return out

        return self.run(propose, lambda t: tree.observe(t.schedule, t.us), limit)

    def uniform(self, seed: int, limit: int) -> Run:
        """Samples of which all schedules of the space are equally likely."""
        grammar, rng = Grammar(self.plan.kernel, self.bench.target), random.Random(f"{seed}:any")
        draw = grammar.sample
        return self.run(
            lambda n: [grammar.build(draw(rng)) for _ in range(n)], lambda _: None, limit
        )


def study(plan: KernelPlan, study: Study, trials: int, seeds: int, few: int) -> dict[str, Any]:
    runs = {
        "default": [study.default(seed, trials) for seed in range(seeds)],
        "tree": [study.tree(seed, 2 * trials) for seed in range(few)],
        "uniform": [study.uniform(seed, 2 * trials) for seed in range(few)],
        "long": [study.default(seeds, 10 * trials)],
    }
    start = Run([], [plan.schedule])
    first, *ends = study.finals([start, *(run for each in runs.values() for run in each)])
    ended = {name: [ends.pop(0) for _ in each] for name, each in runs.items()}
    (best,) = ended["long"]
    return {
        "kernel": plan.kernel.name,
        "schedules": Grammar(plan.kernel, study.bench.target).size(),
        "default_us": first,
        "best_us": best,
        "near": sum(us <= NEAR * best for us in ended["default"]),
        "seeds": seeds,
        **{f"{name}_median_us": _median(each) for name, each in ended.items()},
        "ended_us": ended,
        "runs": {name: [study.times(run) for run in each] for name, each in runs.items()},
    }


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def kernel(write: Callable[[Model], Tensor], target: Any) -> KernelPlan:
    g = Model()
    g.output("y", write(g))
    plans = estimate(search(g.graph(), target, inside=True)).kernels.values()
    return max(plans, key=lambda k: k.bound_us)


# ---- the picture


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """A panel per kernel: the median of the best time so far, over the trials."""
    width, height, columns = 230, 150, 4
    lines = -(-len(rows) // columns)
    size = columns * (width + 30) + 30, lines * (height + 60) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>',
    ]
    for i, row in enumerate(rows):
        x, y = 30 + i % columns * (width + 30), 40 + i // columns * (height + 60)
        out += _panel(row, x, y, width, height)
    for i, (name, colour) in enumerate(COLOURS.items()):
        out.append(text(30 + 90 * i, size[1] - 12, name, colour=colour, weight="bold"))
    out.append(text(310, size[1] - 12, "best time so far / best of the long search, by trials"))
    return "\n".join([*out, "</svg>", ""])


def _panel(row: dict[str, Any], x: int, y: int, width: int, height: int) -> list[str]:
    top = 2.0  # times the best
    out = [text(x, y - 8, f"{row['kernel']}: {row['near']}/{row['seeds']} within 5 %", size=11)]
    for value in (1.0, 1.05, 1.5, 2.0):
        at = y + height * (top - value) / (top - 1)
        out.append(
            f'<line x1="{x}" y1="{at:.1f}" x2="{x + width}" y2="{at:.1f}" stroke="#e5e7eb"/>'
        )
        out.append(text(x - 4, int(at) + 3, f"{value:g}", anchor="end", size=9))
    longest = max(len(r) for name in COLOURS for r in row["runs"][name])
    for name, colour in COLOURS.items():
        runs = row["runs"][name]
        for each in [*runs, [_median(s) for s in zip(*runs, strict=False)]]:
            points = " ".join(
                f"{x + width * (i + 1) / longest:.1f},"
                f"{y + height * (top - min(us / row['best_us'], top)) / (top - 1):.1f}"
                for i, us in enumerate(each)
            )
            main = each not in runs
            out.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="{2 if main else 1}" opacity="{1 if main else 0.25}"/>'
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("quality.json"))
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--records", type=Path, default=Path("build/quality_records"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--few", type=int, default=3, help="seeds of tree and uniform")
    parser.add_argument("--seconds", type=float, default=math.inf)
    a = parser.parse_args()
    target = resolve_target("cpu:native")
    records = Records(a.records, Setting("here", "cc", 1))
    rows, until = [], time.monotonic() + a.seconds
    with Bench(target, find()) as bench:
        for write in KERNELS:
            if a.only and write.__name__ not in a.only:
                continue
            plan = kernel(write, target)
            try:
                row = study(plan, Study(plan, records, bench, until), a.trials, a.seeds, a.few)
            except TimeoutError:
                print(f"{write.__name__}: not done, {len(records.trials[plan.key, False])} trials")
                break
            rows.append({"name": write.__name__, **row})
            print({k: v for k, v in rows[-1].items() if k != "runs"}, flush=True)
    a.out.write_text(json.dumps(rows))
    if a.svg and rows:
        a.svg.write_text(draw(rows))


if __name__ == "__main__":
    main()
