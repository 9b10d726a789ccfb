"""Candidates on a GPU: printed, checked and timed in a worker process, on the fake driver."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpu_bundles import python_environment

PROGRAM = """
import json
from itertools import islice

from gpu_bundles import Emulator
from kernels import CC
from lumc.schedule.first_blocks import guesses
from lumc.schedule.plan import KernelPlan
from lumc.kernel.machines import resolve_target
from lumc.link import cuda
from lumc.link.toolchain import find
from lumc.profile.measure_gpu import GpuBench
from lumc.profile.measure import Job
from lumc.kernel.codec import to_plain
from lumc.lab import worker as remembering
from lumc.lab.gpu_worker import GpuWorker
from lumc.lab.process import Limits
from measuring import kernel_of, product
from live import SOFTMAX
from lumc.graph.text import parse_graph
from lumc.kernel.lengths import points
from lumc.profile.choose import estimate
from lumc.search import search

TID = "const unsigned tid = threadIdx.x;"
PLANTED = {
    "compiler": (TID, "this is not C++"),
    "wrong": ("+= A[D0] * B[D1]", "-= A[D0] * B[D1]"),
    "outside": (TID, TID + " if (tid == 3) B_out[12 * 33 + 5] = 1;"),
    "crash": (TID, TID + " *(volatile int *)8 = 1;"),
    "nothing": (TID, TID),
}


class Planting(Emulator):
    '''The emulator's compiler, of a text in which something is replaced.'''

    replaced = ("", "")

    def image(self, folder, source, arch, output, seconds=0):
        path, (old, new) = folder / source, self.replaced
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new, 1))
        try:
            super().image(folder, source, arch, output, seconds)
        except AssertionError as e:  # g++ said no
            raise cuda.LumcError("E0702", str(e).splitlines()[-1]) from None


def transposed(g):
    return g.input("x", (9, 5)).T * 2.0


def kept(bench, job):
    '''Memory of kernels that a worker forgot: while a candidate waits for its turn, and later.'''
    plan = kernel_of(transposed)
    other = Job(plan, next(iter(guesses(plan.kernel, bench.target))))
    remembering.KEPT, worker, counts = 1, GpuWorker(), []
    for number, (one, made) in enumerate(zip((job, other), bench._make([job, other]))):
        worker.kernel(to_plain(one.plan), 0, 0)
        assert not worker.check(one.plan.key, number, made.loaded)
        counts.append(len(worker.devices))
    times = worker.sample(0, 1, 1)
    worker.forget()
    worker.kernel(to_plain(job.plan), 0, 1 << 20)
    worker.check(job.plan.key, 0, bench._make([job])[0].loaded)
    return [*counts, len(times), len(worker.devices)]


def of_lengths(bench):
    '''A kernel that is checked at several lengths; and one that takes the greatest for all.'''
    plans = estimate(search(parse_graph(SOFTMAX), bench.target, inside=True)).kernels
    plan = next(iter(plans.values()))
    job = Job(plan, plan.schedule, points=points(plan.kernel.lengths.dims))
    for Planting.replaced in (TID, TID), ("(int)*P_s", "40"):
        bench._objects.clear()
        bench._proven.clear()
        (trial,) = bench.measure([job])
        yield [trial.us is not None, trial.reason, trial.remark]


def main():
    target = resolve_target("cuda:sm_90")
    plan = kernel_of(product)
    schedules = list(islice(guesses(plan.kernel, target), 2))
    said = {}
    with GpuBench(target, find(CC), Planting(), Limits(seconds=60.0)) as bench:
        for cold in (0, 1 << 20):
            jobs = [Job(plan, s, cold) for s in schedules]
            for number, trial in enumerate(bench.measure(jobs)):
                said[f"candidate {number}, {cold}"] = [trial.us is not None, trial.remark]
        said["finals"] = [t.us is not None for t in bench.finals(jobs)]
        said["kept"] = kept(bench, jobs[0])
        said["lengths"] = list(of_lengths(bench))
        for name, Planting.replaced in PLANTED.items():
            bench._objects.clear()
            (trial,) = bench.measure(jobs[:1])
            said[name] = [trial.reason, trial.remark]
        bench._objects.clear()
        cuda.figures = lambda image: {"k": cuda.Figures(255, 288, 0)}
        (trial,) = bench.measure(jobs[:1])
        said["spills"] = [trial.reason, trial.remark]
    print(json.dumps(said))


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """What became of sound candidates and of planted ones."""
    program = tmp_path_factory.mktemp("bench") / "program.py"
    program.write_text(PROGRAM)
    words, env = [sys.executable, str(program)], python_environment()
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_sound_candidates_are_timed(said: dict[str, list[object]]) -> None:
    timed = {k: v for k, v in said.items() if k.startswith("candidate")}
    assert len(timed) == 4 and all(v == [True, ""] for v in timed.values()), timed
    assert said["finals"] == [True, True]
    assert said["nothing"] == ["", ""]


def test_no_memory_is_freed_while_a_candidate_waits(said: dict[str, list[object]]) -> None:
    assert said["kept"] == [1, 2, 1, 2]  # at last the other kernel is gone


def test_lengths_are_those_of_each_point(said: dict[str, list[object]]) -> None:
    right, wrong = said["lengths"]
    assert right == [True, "", ""]
    assert wrong[:2] == [False, "wrong"] and "{'s': 1}" in wrong[2]  # type: ignore[index]


def test_others_are_records(said: dict[str, list[object]]) -> None:
    """A fault ends the worker, and only it: the next candidate is timed again."""
    assert said["compiler"][0] == "compiler"
    assert said["wrong"][0] == "wrong" and said["wrong"][1] != said["outside"][1]
    assert said["outside"] == ["wrong", "wrote outside of its buffers"]
    assert said["crash"][0] == "crash"
    assert said["spills"] == ["compiler", "288 bytes of a thread are not in registers"]
