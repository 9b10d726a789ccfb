"""`--memory` and `--recompute`: plans that store less, which are right, or a message that says how
little there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import Lumc
from lumc import train
from lumc.artifacts.files import read_graph
from lumc.frontend import Model
from lumc.grad import gradients
from lumc.limits import AGAIN
from lumc.profile.memory import between

ESTIMATE = ("--estimate", "--target", "cpu:x86-64-v3")
FEW = (*ESTIMATE[1:], "--max-nodes", "500")  # of a search where only regions are looked at


@pytest.fixture
def step(lumc: Lumc) -> Lumc:
    """m.lg, a step of training of a layer with gelu."""
    save(128, 48)
    return lumc


def save(rows: int, hidden: int) -> None:
    m, rng = Model(), np.random.default_rng(0)
    x, y = m.input("x", (rows, 8)), m.input("y", (rows,), "i64", values=(0, 3))
    w = [m.state(f"w{i}", s, value=rng.random(s)) for i, s in enumerate([(8, hidden), (hidden, 4)])]
    loss = ((x @ w[0]).gelu("tanh") @ w[1]).cross_entropy(y)
    train.sgd(w, gradients(loss, w), 0.1)
    m.output("loss", loss)
    m.save("m.lg")


def said_bytes(text: str) -> int:
    """How much the plan takes, as profile says it."""
    (found,) = re.findall(r"profile: ([\d,]+) bytes \(arena [\d,]+, scratch [\d,]+\) of the", text)
    return int(found.replace(",", ""))


@pytest.mark.deep
def test_a_step_in_less_memory(step: Lumc) -> None:
    free = step.raw("compile", "m.lg", "-o", "a.lb", *ESTIMATE, "--save-temps", "a")
    ample = step.raw(
        "compile", "m.lg", "-o", "b.lb", *ESTIMATE, "--save-temps", "b", "--memory", "1GB"
    )
    assert free.exit_code == ample.exit_code == 0 and "--memory" not in free.stderr
    usual = said_bytes(ample.stderr)
    for kind in ("ls", "lp", "lk"):  # where all fits, nothing changes
        assert Path(f"a/a.{kind}").read_text() == Path(f"b/b.{kind}").read_text()
    said = step.fails(6, "compile", "m.lg", "-o", "n.lb", *ESTIMATE, "--memory", "2kB")
    (least,) = re.findall(r"E0419 --memory 2,000: .* take ([\d,]+) bytes at least", said)
    assert int(least.replace(",", "")) < usual and not Path("n.lb").exists()
    tight = str(usual - 1)
    done = step.raw(
        "compile", "m.lg", "-o", "c.lb", *ESTIMATE, "--save-temps", ".", "--memory", tight
    )
    assert done.exit_code == 0, done.stderr
    assert said_bytes(done.stderr) < usual
    assert all(r["ok"] for r in json.loads(step("verify", "c.lb", "--json")))
    bound = [tight, *re.findall(r"search --memory (\d+)", done.stderr)][-1]
    step("search", "m.lg", "-o", "d.ls", *ESTIMATE[1:], "--memory", bound)
    step("profile", "d.ls", "-o", "d.lp", "--estimate", "--memory", tight)
    for kind in ("ls", "lp"):  # the passes one by one do the same
        assert Path(f"c.{kind}").read_text() == Path(f"d.{kind}").read_text()
    said = step.fails(6, "profile", "d.ls", "-o", "e.lp", "--estimate", "--memory", "2kB")
    assert "no plan was found that takes less than" in said and not Path("e.lp").exists()
    assert json.loads(step("explain", "d.lp", "--json"))["regions"]  # those of this graph


def test_values_are_made_again_between_regions(step: Lumc) -> None:
    """What search says of it, and show, where no blocks divide what there is."""
    save(131, 137)
    said = step.fails(6, "search", "m.lg", "-o", "n.ls", *FEW, "--memory", "2kB")
    assert re.search(r"E0419 --memory 2,000: .* take [\d,]+ bytes at least", said)
    most = between(read_graph("m.lg", {}), AGAIN)
    done = step.raw("search", "m.lg", "-o", "m.ls", *FEW, "--memory", str(most - 1), "-v")
    assert done.exit_code == 0, done.stderr
    found = re.search(
        r"search: ([\d,]+) bytes between regions of ([\d,]+): (\d+) values stored, "
        r"(\d+) nodes made again.*, ([+]\d+[.]\d%) operations",
        done.stderr,
    )
    assert found and int(found[1].replace(",", "")) < most == int(found[2].replace(",", ""))
    again = re.findall(r"made again: (.*)", done.stderr)[-1].split(", ")
    assert int(found[4]) == len(again) > 0
    shown = json.loads(step("show", "m.ls", "--json"))["again"]
    assert {*shown["nodes"]} <= {*again} and 0 < shown["operations"] < 1
    step("search", "m.lg", "-o", "p.ls", *FEW)
    assert json.loads(step("show", "p.ls", "--json"))["again"] == {"nodes": [], "operations": 0.0}


def test_values_are_made_in_blocks(step: Lumc) -> None:
    most = between(read_graph("m.lg", {}), AGAIN)
    done = step.raw("search", "m.lg", "-o", "m.ls", *FEW, "--memory", str(most // 2))
    assert done.exit_code == 0, done.stderr
    (found,) = re.findall(r"(\d+) nodes in blocks, [+](\d+[.]\d)% operations", done.stderr)
    assert int(found[0]) > 0 and float(found[1]) < 2
    shown = json.loads(step("show", "m.ls", "--json"))["again"]
    assert shown == {"nodes": [], "operations": 0.0}


@pytest.mark.parametrize("wrong", ["0", "-1", "much", "5 apples", "1e999", "nan", "5mb", ""])
def test_memory_is_bytes(wrong: str, lumc: Lumc) -> None:
    said = lumc.fails(2, "profile", "m.ls", "-o", "m.lp", "--memory", wrong)
    assert "expected bytes, such as 5000000, 5MB or 5MiB" in said


@pytest.mark.deep
def test_nothing_is_measured_within_memory_either(step: Lumc) -> None:
    """The way of a plan that is measured, without a measurement."""
    step("search", "m.lg", "-o", "m.ls")
    words = ("profile", "m.ls", "--budget", "0", "--allow-estimate", "--cache", "cache")
    done = step.raw(*words, "-o", "m.lp", "--memory", "1GB")
    assert done.exit_code == 0, done.stderr
    assert said_bytes(done.stderr) > 0
    assert "E0419" in step.fails(6, *words, "-o", "n.lp", "--memory", "1kB")
