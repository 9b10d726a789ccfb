"""``lumc verify`` of states: what a run leaves of them, from values that are not zero."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from forging import forge

STEP = """lumc graph 1
state w f32[8, 16]
state v f32[8, 16]
state t i64[]
state still f32[4]
input g f32[8, 16]
t1 i64[] = add t[], i64(1)
g2 f32[i:8, j:16] = mul g[i, j], g[i, j]
v1 f32[i:8, j:16] = add v[i, j], g2[i, j]
r f32[i:8, j:16] = sqrt v1[i, j]
u f32[i:8, j:16] = mul r[i, j], g[i, j]
w1 f32[i:8, j:16] = add w[i, j], u[i, j]
update t[] = t1[]
update v[i, j] = v1[i, j]
update w[i, j] = w1[i, j]
"""
LATER = """lumc graph 1
state s f32[6]
input x f32[6]
y f32[i:6] = mul s[i], f32(2.0)
now = update s[i] = x[i]
z f32[i:6] = add now[i], x[i]
output y = y
output z = z
"""


def compiled(lumc: Lumc, text: str) -> Lumc:
    Path("m.lg").write_text(text)
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    return lumc


def changed(lumc: Lumc, change: Any) -> str:
    """A bundle of the plan with other launches, whose digests are right."""
    shutil.copy("m.lp", "bad.lp")
    forge(Path("bad.lp"), change)
    lumc("codegen", "bad.lp", "-o", "bad.lk")
    lumc("link", "bad.lk", "-o", "bad.lb")
    return "bad.lb"


def rows(text: str) -> dict[str, Any]:
    return {r["output"]: r for r in json.loads(text)}


def test_an_entry_that_only_updates_states(lumc: Lumc) -> None:
    compiled(lumc, STEP)
    found = rows(lumc("verify", "m.lb", "--json"))
    assert set(found) == {"state w", "state v", "state t"}  # nothing was written to the other
    assert all(r["ok"] and r["unjudged"] == 0 and r["got"] != 0 for r in found.values())
    assert "every launch computes what it should" in lumc("verify", "m.lb", "--bisect")


@pytest.mark.parametrize("state", ["t", "v", "w"])
def test_an_update_that_is_dropped_is_found(lumc: Lumc, state: str) -> None:
    compiled(lumc, STEP)

    def drop(body: Any) -> None:
        body["instances"] = [i for i in body["instances"] if state not in i["outputs"]]

    bad = changed(lumc, drop)
    found = rows(lumc.fails(3, "verify", bad, "--json"))
    assert [name for name, r in found.items() if not r["ok"]] == [f"state {state}"]


def test_what_is_read_too_late_and_too_early_is_found(lumc: Lumc) -> None:
    """The value of the state as it was, computed after the update; what follows it, before."""
    compiled(lumc, LATER)
    assert set(rows(lumc("verify", "m.lb", "--json"))) == {"y", "z", "state s"}

    def turn(body: Any) -> None:
        body["instances"].reverse()

    found = rows(lumc.fails(3, "verify", changed(lumc, turn), "--json"))
    assert {name for name, r in found.items() if not r["ok"]} == {"y", "z"}


def test_a_state_that_no_update_names_may_not_change(lumc: Lumc) -> None:
    compiled(lumc, STEP.replace("state still f32[4]", "state still f32[8, 16]"))

    def astray(body: Any) -> None:
        (one,) = [i for i in body["instances"] if i["outputs"] == ["w"]]
        one["outputs"] = ["still"]

    found = rows(lumc.fails(3, "verify", changed(lumc, astray), "--json"))
    assert {name for name, r in found.items() if not r["ok"]} == {"state w", "state still"}


def test_a_kernel_that_writes_a_wrong_state_is_named(lumc: Lumc) -> None:
    compiled(lumc, STEP)
    body = json.loads(Path("m.lk").read_text())
    (launch,) = [x for x in body["entries"][0]["launches"] if x["args"][-1] == "w"]
    shutil.copy("m.lk", "bad.lk")

    def spoil(b: Any) -> None:
        (k,) = [k for k in b["kernels"] if k["symbol"] == launch["kernel"]]
        head, _, rest = k["source"].rpartition("}")
        at = len(k["args"]) - 1
        k["source"] = f"{head}  if (!part) ((float *)args[{at}])[3] += 1.0f;\n}}{rest}"

    forge(Path("bad.lk"), spoil)
    lumc("link", "bad.lk", "-o", "bad.lb")
    first = json.loads(lumc.fails(3, "verify", "bad.lb", "--bisect", "--json"))["first"]
    assert first["symbol"] == launch["kernel"] and first["value"] in ("w", "v")


def test_states_that_are_given(lumc: Lumc) -> None:
    compiled(lumc, STEP)
    given = {
        "w": np.ones((8, 16), "f4"),
        "v": np.zeros((8, 16), "f4"),
        "t": np.array(41, "i8"),
        "still": np.zeros(4, "f4"),
    }
    np.savez("s.npz", **given)
    np.save("g.npy", np.full((8, 16), 3, "f4"))
    found = rows(lumc("verify", "m.lb", "--state", "s.npz", "--input", "g=g.npy", "--json"))
    assert found["state t"]["got"] == 42 and found["state w"]["got"] == 10
    np.savez("s.npz", w=np.ones((8, 15), "f4"))
    assert "must be" in lumc.fails(2, "verify", "m.lb", "--state", "s.npz")
