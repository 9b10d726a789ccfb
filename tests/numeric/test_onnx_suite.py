"""The ONNX backend suite through compiled C: what passes, what is refused and why.

A refusal is a clean error with exit code 4; a wrong answer is never accepted. Half of the cases run
here, with one variant of every region after few steps, as one kernel if it can be, and without
optimisation by the C compiler, which takes a third of the time; all of them, as users have them, in
``make test-deep``, which also compares docs/onnx-coverage.md.
"""

import os
import signal

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import onnx_coverage  # noqa: E402  needs onnx
import onnx_suite  # noqa: E402

pytestmark = pytest.mark.timeout(900)  # of the first test, which waits for all cases
HALF = (0, 3)  # of every four cases: many stand in pairs, an operator and the same written out
VERSION = "1.23."  # of the suite whose results are known


@pytest.fixture(scope="module")
def results():
    half = [case for i, case in enumerate(onnx_suite.cases()) if i % 4 in HALF]
    return onnx_suite.run(half, how=onnx_suite.SHORT)


def failing(results):
    return {
        r.name: r.detail[:300] for r in results if r.verdict in ("wrong", *onnx_coverage.FAULTS)
    }


def test_nothing_is_wrong_and_nothing_fails(results):
    if not onnx.__version__.startswith(VERSION):
        pytest.skip("the expected results of other versions have errors of their own")
    assert failing(results) == {}


def test_every_refusal_says_why(results):
    refused = [r for r in results if r.verdict == "refused"]
    assert [r.name for r in refused if onnx_suite.reason(r.detail) == "other"] == []


def test_most_cases_pass_through_compiled_kernels(results):
    passed = [r for r in results if r.verdict in onnx_suite.PASSED]
    assert len(results) >= len(onnx_suite.cases()) // 2
    assert len(passed) > 0.9 * len(results)
    assert sum(r.kernels > 0 for r in passed) > 0.9 * len(passed)


def test_numbers_of_another_generator_are_not_compared():
    (case,) = (c for c in onnx_suite.cases() if c.name == "test_bernoulli_seed")
    assert [r.verdict for r in onnx_suite.run([case])] == ["random"]


@pytest.mark.parametrize("change", ["value", "dtype", "shape"])
def test_a_wrong_result_is_seen(monkeypatch, change):
    """What the harness compares is what the kernels gave."""
    (case,) = (c for c in onnx_suite.cases() if c.name == "test_add")
    run = onnx_suite.launching.run

    def spoiled(*args):
        found = run(*args)
        for name, a in found.items():
            if change == "value":
                a.flat[-1] += 1
            found[name] = {"dtype": a.astype("f8"), "shape": a[:1]}.get(change, a)
        return found

    assert [r.verdict for r in onnx_suite.run([case])] == ["pass"]
    monkeypatch.setattr(onnx_suite.launching, "run", spoiled)
    assert [r.verdict for r in onnx_suite.run([case])] == ["wrong"]


def test_a_crash_costs_one_case(monkeypatch):
    """The cases behind it run."""
    wanted = ("test_add", "test_mul", "test_exp")
    chosen = sorted((c for c in onnx_suite.cases() if c.name in wanted), key=lambda c: c.name)
    run = onnx_suite.launching.run

    def crashing(library, prefix, code, *args):
        if prefix == "g1_":
            os.kill(os.getpid(), signal.SIGKILL)
        return run(library, prefix, code, *args)

    monkeypatch.setattr(onnx_suite.launching, "run", crashing)
    assert [r.verdict for r in onnx_suite.run(chosen)] == ["pass", "crash", "pass"]


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_the_page_is_what_all_cases_give():
    cases = list(onnx_suite.cases())
    results = onnx_suite.run(cases, os.cpu_count() or 1)
    assert failing(results) == {}
    peer = pytest.importorskip("onnxruntime").__version__
    page = onnx_coverage.PAGE.read_text()
    if f"onnx {onnx.__version__} " in page and f"onnxruntime {peer}," in page:
        text = onnx_coverage.page(results, onnx_coverage.onnxruntime_verdicts(cases), peer)
        assert page == text, "python tests/onnx_coverage.py --update"


def test_tolerances_are_the_suite_s():
    (case,) = (c for c in onnx_suite.cases() if c.name == "test_add")
    one = np.ones(3, "f4")
    onnx_suite.compare(case, one + np.float32(case.rtol / 2), one)
    with pytest.raises(AssertionError):
        onnx_suite.compare(case, one + np.float32(case.rtol * 2), one)


def test_a_hang_costs_one_case(monkeypatch):
    """In the compiler, and in a kernel that does not end."""
    wanted = ("test_add", "test_mul", "test_exp")
    chosen = sorted((c for c in onnx_suite.cases() if c.name in wanted), key=lambda c: c.name)
    run, generate = onnx_suite.launching.run, onnx_suite.generate

    def forever(*_):
        while True:
            pass

    def generating(plan):
        return (
            forever()
            if "exp" in str([n.op for n in plan.graph.entries[0].nodes])
            else generate(plan)
        )

    def running(library, prefix, *args):
        return forever() if prefix == "g1_" else run(library, prefix, *args)

    monkeypatch.setattr(onnx_suite, "SECONDS", 1)
    monkeypatch.setattr(onnx_suite, "generate", generating)
    monkeypatch.setattr(onnx_suite.launching, "run", running)
    assert [r.verdict for r in onnx_suite.run(chosen)] == ["pass", "hang", "hang"]
