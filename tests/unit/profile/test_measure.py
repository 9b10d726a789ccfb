"""Candidates in the worker: right ones are timed, whatever else they do is a record."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import native
from live import SOFTMAX
from lumc.codegen.generate import generate
from lumc.errors import LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.ops import to_bf16
from lumc.graph.text import parse_graph
from lumc.kernel.lengths import points
from lumc.lab import whole
from lumc.lab.worker import Loaded
from lumc.link import toolchain
from lumc.link.link import TargetCode, Tools, link
from lumc.oracle.kernel import choose_points, expected, inputs_of, is_rough
from lumc.oracle.term import evaluate_kernel
from lumc.profile import measure
from lumc.profile.choose import estimate
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Trial
from lumc.schedule.moves import structures
from lumc.schedule.plan import KernelPlan
from lumc.schedule.space import Grammar
from lumc.search import search
from measuring import BUCKETS, bench, kernel_of, product, space_of
from searching import weight

PLANTED = {
    "crash": "*(volatile int *)0 = 1;",
    "hang": "extern unsigned sleep(unsigned); for (;;) sleep(9);",  # others need the time
    "memory": "for (;;) { char *p = __builtin_malloc(1 << 28); __builtin_memset(p, 1, 1 << 28); }",
    "compiler": "this is not C",
    "wrong": "((float *)args[2])[5] = 1;",
    "outside": "((float *)args[2])[12 * 33 + 40] = 1;",
    "nothing": "",
}

SLOW_CC = "#!/bin/sh\nsleep 600 &\nsleep 600\n"


@pytest.fixture(scope="module")
def device() -> Iterator[Bench]:
    with bench(seconds=6.0, nbytes=1 << 30) as b:
        yield b


def jobs(write: object, n: int) -> list[Job]:
    plan: KernelPlan = kernel_of(write)  # type: ignore[arg-type]
    return [Job(plan, s) for s in structures(Grammar(plan.kernel, native()))[:n]]


def test_every_structure_of_a_product_is_right_and_timed(device: Bench) -> None:
    trials = list(device.measure(jobs(product, 12)))
    assert all(t.us and t.us > 0 and t.samples >= 3 and not t.reason for t in trials)


def test_planted_candidates_are_records_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two sound candidates: a crash, a hang, too much memory, wrong results, no C."""
    every = jobs(product, len(PLANTED) + 2)
    printed, bodies = measure.print_kernel, iter(["sound", *PLANTED, "sound"])

    def plant(program: object, symbol: str) -> str:
        name, text = next(bodies), printed(program, symbol)  # type: ignore[arg-type]
        if name == "sound":
            return text
        if name == "outside":  # right, and more
            return text[: text.rindex("}")] + PLANTED[name] + "}\n"
        head = f"void {symbol}(void *const *args, long part, long nparts)"
        return f"{head} {{ {PLANTED[name]} }}\n"

    monkeypatch.setattr(measure, "print_kernel", plant)
    with bench(seconds=3.0, nbytes=1 << 30) as device:  # one of them takes all of these
        trials = dict(zip(["first", *PLANTED, "last"], device.measure(every), strict=True))
    reasons = {name: t.reason for name, t in trials.items()}
    assert reasons == {
        "first": "",
        "crash": "crash",
        "hang": "hang",
        "memory": "crash",
        "compiler": "compiler",
        "wrong": "wrong",
        "outside": "wrong",
        "nothing": "wrong",
        "last": "",
    }
    assert all((t.us is None) == bool(t.reason) for t in trials.values())
    assert "outside" in trials["outside"].remark and "E0702" not in trials["compiler"].remark


def test_a_candidate_of_ten_times_the_memory_is_a_record(
    device: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measure._loaded

    def greedy(*arguments: object) -> Loaded:
        return made(*arguments)._replace(scratch_bytes=10 << 30)  # type: ignore[arg-type]

    monkeypatch.setattr(measure, "_loaded", greedy)
    (trial,) = device.measure(jobs(product, 1))
    assert (trial.us, trial.reason) == (None, "memory")
    monkeypatch.undo()
    (trial,) = device.measure(jobs(product, 1))
    assert trial.us


def test_a_compiler_that_takes_too_long_is_a_record(
    device: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ends with what it started."""
    slow = tmp_path / "cc"
    slow.write_text(SLOW_CC)
    slow.chmod(0o755)
    monkeypatch.setattr(measure, "COMPILER_S", 1.0)
    monkeypatch.setattr(device, "_objects", {})
    monkeypatch.setattr(device, "tools", replace(device.tools, command=(str(slow),)))
    (trial,) = device.measure(jobs(product, 1))
    assert (trial.us, trial.reason) == (None, "compiler") and "no result in 1 s" in trial.remark
    monkeypatch.undo()
    (trial,) = device.measure(jobs(product, 1))
    assert trial.us


def test_finals_compile_nothing_again(device: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the oldest candidates the files are dropped, and made again when they are needed."""
    todo = jobs(product, 2)
    assert all(t.us for t in device.measure(todo))
    monkeypatch.setattr(device, "tools", replace(device.tools, command=("no such compiler",)))
    assert len(device.finals(todo)) == 2
    monkeypatch.setattr(measure, "OBJECTS", 1)
    assert len(device.finals(todo)) == 2
    assert device.finals(todo) == []
    monkeypatch.undo()
    assert len(device.finals(todo)) == 2


def test_a_slice_says_what_the_whole_takes(device: Bench) -> None:
    """As many tiles as slices and parts allow; kernels of one part have none."""
    plan = kernel_of(long_row)
    cut = replace(
        plan.schedule, parallel=1, tile={**plan.schedule.tile, plan.schedule.order[0]: 48}
    )
    for schedule in (cut, replace(cut, parallel=0)):
        (trial,) = device.measure([Job(plan, schedule)])
        assert trial.us
        made = device._make([Job(plan, schedule)])[0]
        assert not isinstance(made, Trial)
        assert device._check(Job(plan, schedule), made, 0) == ""
        for slices in (2, 5, 1000):
            assert all(us > 0 for us in device._ask("sample", 0, 1, 3, slices))
        device._forget()


def test_finals_are_in_turn_and_close(device: Bench) -> None:
    job = jobs(product, 1)[0]
    times = device.finals([job, job, job])
    assert len(times) == 3
    assert max(t.us or 0 for t in times) < 1.5 * min(t.us or 0 for t in times)


def test_a_yardstick_runs_in_turn(device: Bench) -> None:
    """Compiled once, at hand again after a crash; one that cannot be made is left out."""
    first, second, third = jobs(product, 3)
    (yardstick,) = device.measure([first])
    assert yardstick.us and not yardstick.beside
    for again in range(2):
        found = list(device.measure([replace(j, yardstick=yardstick) for j in (second, third)]))
        for trial in found:
            assert trial.us and yardstick.us / 5 < trial.beside < 5 * yardstick.us
        if not again:
            device._end()
    assert len([k for k in device._yardsticks if k[0] == first.plan.key]) == 1
    bad = replace(yardstick, schedule=replace(yardstick.schedule, order=("nowhere",)))
    (trial,) = device.measure([replace(second, yardstick=bad)])
    assert trial.us and not trial.beside


def test_results_around_the_caches_and_in_them_settle_between_turns(
    device: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(g: Model) -> Tensor:
        return g.input("x", (64, 4096)) * 3.0

    plan, asked = kernel_of(scaled), list[tuple[Any, ...]]()
    ask, same = device._ask, replace(plan.schedule, stream=False)
    plain, around = Job(plan, same), Job(plan, replace(same, stream=True))

    def listen(*question: Any) -> Any:
        asked.append(question)
        return ask(*question)

    monkeypatch.setattr(device, "_ask", listen)
    monkeypatch.setattr(measure, "SETTLE", 333)  # runs that no sample of this kernel has
    (yardstick,) = device.measure([plain])
    assert yardstick.us
    settled = ("sample", 0, measure.SETTLE, 1)
    for job in (plain, around):
        asked.clear()
        (trial,) = device.measure([replace(job, yardstick=yardstick)])
        assert trial.us
        samples = [q for q in asked if q[0] == "sample" and q[1] == 0 and q != settled]
        assert asked.count(settled) == (len(samples) if job is around else 0)
    assert len(device.finals([plain, around])) == 2


def test_cold_weights_are_cycled(device: Bench) -> None:
    plan = kernel_of(product)
    for cold in (0, 1 << 20):
        (trial,) = device.measure([Job(plan, plan.schedule, cold)])
        assert trial.us, trial


def test_the_speeds_are_plausible(device: Bench) -> None:
    gflops, cached, memory = device.speeds()
    assert 1 < gflops < 1000 and 1 < memory < 1000 and 1 < cached < 5000


def test_whole_runs_of_plans(device: Bench) -> None:
    """All are linked and run in turn; without the weights there is nothing to run."""

    def steps(g: Model) -> Tensor:
        x = g.input("x", (40, 48))
        return (g.input("y", (32, 40)) @ x).relu() @ x.transpose()

    plan = estimate(space_of(steps))
    us = device.race([plan, plan], 0.01, lambda: False)
    assert len(us) == 2 and min(us) > 0
    late = iter([False, True])
    assert len(device.race([plan] * 4, 0.01, lambda: next(late))) == 3
    assert device.race([estimate(space_of(product))], 0.01, lambda: False) == []


def test_whole_runs_are_those_of_every_bucket(device: Bench) -> None:
    """Each at its greatest length, and each counts alike."""
    plan = estimate(search(parse_graph(BUCKETS), native(), inside=True))
    with whole.linked(plan, device.linkers) as bundle:
        runs = whole.runs_of(plan, bundle)
    assert [(r.entry, r.dims, r.inputs["x"].shape) for r in runs] == [
        ("main", {"s": n}, (n, 40)) for n in (1, 64)
    ]
    us = device.race([plan, plan], 0.01, lambda: False)
    assert len(us) == 2 and min(us) > 0
    weights = whole.balanced([2.0, 6.0])
    assert weights == [2.0, 4 / 6] and whole.balanced([7.3]) == [1.0]


def test_what_raced_plans_share_is_compiled_once(
    device: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And it is there for the link after the search."""
    text = "lumc graph 1\ninput x f32[7]\ny f32[i:7] = sin x[i]\noutput y = y\n"
    plan = estimate(search(parse_graph(text), native(), inside=True))
    (kernel,) = generate(plan).kernels
    started = list[str]()
    run = toolchain._run

    def said(command: Sequence[str], *rest: Any) -> Any:
        started.extend(Path(word).name for word in command if word.endswith(".c"))
        return run(command, *rest)

    monkeypatch.setattr(toolchain, "_run", said)
    monkeypatch.setenv("LUMC_OBJECTS", str(tmp_path / "objects"))
    with Bench(native(), replace(device.tools, kept=None)) as alone:
        assert len(alone.race([plan, plan, plan], 0.001, lambda: False)) == 3
    assert started.count(f"{kernel.symbol}.c") == 1
    find = toolchain.find(kept=tmp_path / "objects")
    link([TargetCode(generate(plan), "")], tmp_path / "m.lb", tmp_path, Tools(find), single=False)
    assert started.count(f"{kernel.symbol}.c") == 1


# ---- what numpy says


def embedding(g: Model) -> Tensor:
    return weight(g, "table", 50, 16).embedding(g.input("ids", (7,), "i64"))


def masked(g: Model) -> Tensor:
    x, mask = g.input("x", (9, 20)), g.input("mask", (9, 20), "i64")
    return (x + (1 - mask.to("f32")) * -3.0e38).softmax(-1)


def long_row(g: Model) -> Tensor:
    return (g.input("x", (700, 900)) @ g.input("w", (900, 800))).relu()


@pytest.mark.parametrize("write", [product, embedding, masked], ids=lambda f: f.__name__)
def test_points_are_those_of_the_whole_result(write: object) -> None:
    kernel = kernel_of(write).kernel  # type: ignore[arg-type]
    inputs = inputs_of(kernel, 3, 1.0)
    want = expected(kernel, inputs, 3)
    whole = evaluate_kernel(kernel, inputs)
    for name, (where, values) in want.values.items():
        assert np.array_equal(whole[name][where], values, equal_nan=True)
        assert values.size == whole[name].size  # small: every point


def test_large_results_are_seen_at_their_ends(device: Bench) -> None:
    import random

    kernel = kernel_of(long_row).kernel
    points = choose_points(kernel, random.Random(0))
    for axis, at in points.items():
        n = kernel.extent[axis]
        assert at[0] == 0 and at[-1] == n - 1 and len(at) < n
        assert len(set(at)) == len(at)
    (trial,) = device.measure([Job(kernel_of(long_row), kernel_of(long_row).schedule)])
    assert trial.us


@pytest.mark.parametrize("write", [embedding, masked], ids=lambda f: f.__name__)
def test_sound_kernels_pass(write: object, device: Bench) -> None:
    assert all(t.us for t in device.measure(jobs(write, 3)))


def test_rounding_may_decide_a_few_elements() -> None:
    def steps(g: Model) -> Tensor:
        x = g.input("x", (8, 8))
        return (x @ x) < 0.5

    assert is_rough(kernel_of(steps).kernel)
    assert not is_rough(kernel_of(product).kernel)


@pytest.mark.parametrize(("kind", "allowed"), [("bf16", 5e-5), ("f64", 1e-11)])
def test_what_was_computed_in_f32_is_no_more_exact_as_f64(kind: str, allowed: float) -> None:
    def write(g: Model) -> Tensor:
        return (g.input("x", (6,), kind) * 0.7).to("f64").exp2()

    kernel = kernel_of(write).kernel
    want = expected(kernel, inputs_of(kernel, 3, 1.0), 3)
    ((name, (where, values)),) = want.values.items()
    got = np.zeros(kernel.buffer(name).shape)
    for error, is_right in ((0.3 * allowed, True), (1e3 * allowed, False)):
        got[where] = values * (1 + error)
        assert (want.problem({name: got}) == "") is is_right


def test_what_rounding_moves_far_may_be_off() -> None:
    """The reciprocal of a sum that nearly cancels, in another order; and nothing else may be."""

    def write(g: Model) -> Tensor:
        return 1.0 / g.input("x", (400, 4)).sum(1)

    kernel = kernel_of(write).kernel
    given = dict(inputs_of(kernel, 0, 1.0))
    (x,) = given.values()
    x[7] = 1 / 3, -1e-5, 2 / 3, -1 + 2e-5
    want = expected(kernel, given, 0)
    ((name, (where, _)),) = want.values.items()
    got = np.zeros(kernel.buffer(name).shape, np.float32)
    got[where] = 1 / (x[:, 3] + x[:, 0] + (x[:, 2] + x[:, 1]))
    assert np.abs(got[7] * x[7].sum(dtype="f8") - 1) > 1e-3 and want.problem({name: got}) == ""
    got[7] *= 1.5
    assert "differs in 1 of 400" in want.problem({name: got})


def test_a_full_disk_is_no_fault_of_a_candidate(
    device: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be on record as illegal, or refused by the compiler, for ever."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refused(*_: object) -> None:
        raise LumcError("E0202", "cannot write x: No space left on device")

    some = jobs(product, 3)
    with monkeypatch.context() as m:
        m.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            list(device.measure(some))
    with monkeypatch.context() as m:
        m.setattr(device, "_compile_one", refused)
        m.setattr(device, "_objects", {})
        with pytest.raises(LumcError, match="No space left"):
            list(device.measure(some))


def test_what_f32_makes_of_random_inputs_is_right_too(device: Bench) -> None:
    """A constant of 1000 in an exponent: in range for the values of a network, not for random ones.
    What is wrong by both is wrong."""
    text = """lumc graph 1
input y bf16[9]
t0 bf16[i:9, j:5] = add y[i], 1000.0
t1 bf16[i:9, j:5] = exp2 t0[i, j]
t2 bf16[i:9] = sum j:5 of t1[i, j]
t3 bf16[i:9] = recip t2[i]
t4 bf16[i:9, j:5] = mul t1[i, j], t3[i]
output out = t4
"""
    (plan,) = estimate(search(parse_graph(text), native())).kernels.values()
    (trial,) = device.measure([Job(plan, plan.schedule)])
    assert trial.us, trial.remark
    want = expected(plan.kernel, inputs_of(plan.kernel, 3, 1.0), 3)
    for value, wrong in ((0.2, False), (np.nan, False), (0.3, True), (np.inf, True)):
        got = to_bf16(np.full((9, 5), value, np.float32))
        assert bool(want.problem({plan.kernel.stored[0]: got})) == wrong


def of_lengths(n: int) -> list[Job]:
    """Candidates for a softmax over rows whose length is known when it runs."""
    plan = next(
        iter(estimate(search(parse_graph(SOFTMAX), native(), inside=True)).kernels.values())
    )
    known = points(plan.kernel.lengths.dims)
    assert [p["s"] for p in known] == [1, 14, 40]
    every = structures(Grammar(plan.kernel, native()))[:n]
    return [Job(plan, s, points=known) for s in every]


def test_lengths_are_checked_at_several_values_and_timed_at_the_greatest(device: Bench) -> None:
    assert all(t.us and not t.reason for t in device.measure(of_lengths(6)))


def test_what_was_right_at_all_lengths_is_checked_at_the_greatest_then(
    device: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask = list[tuple[int, ...]](), Bench._ask
    monkeypatch.setattr(device, "_proven", set())

    def noting(self: Bench, *question: Any) -> Any:
        if question[0] == "check":
            asked.append(question[3].dims)
        return ask(self, *question)

    monkeypatch.setattr(Bench, "_ask", noting)
    (job,) = of_lengths(1)
    (trial,) = device.measure([job])
    assert trial.us and asked == [(1,), (14,), (40,)]
    asked.clear()
    (again,) = device.finals([job])
    assert again.us and asked == [(40,)]


@pytest.mark.parametrize("wrong", [40, 14])
def test_a_candidate_that_is_wrong_at_a_length_is_a_record(
    device: Bench, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    made = Loaded._replace
    monkeypatch.setattr(device, "_proven", set())  # by other tests

    def told(self: Loaded, **more: Any) -> Loaded:
        return made(self, dims=tuple(d - (d == wrong) for d in more["dims"]))

    monkeypatch.setattr(Loaded, "_replace", told)
    (trial,) = device.measure(of_lengths(1))
    assert trial.reason == "wrong" and "'s':" in trial.remark
