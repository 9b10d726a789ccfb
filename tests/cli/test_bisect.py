"""``lumc verify --bisect``: of a bundle with one wrong kernel, that kernel; of a wrong plan, the
value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Lumc
from forging import forge

GRAPH = """lumc graph 1
input x f32[16, 48]
input w f32[48, 32]
state s f32[16, 32]
t0 f32[m:16, n:32, k:48] = mul x[m, k], w[k, n]
t1 f32[m:16, n:32] = sum k:48 of t0[m, n, k]
t2 f32[m:16] = max n:32 of t1[m, n]
t3 f32[m:16, n:32] = add t1[m, n], t2[m]
t4 f32[m:16, n:32] = add t3[m, n], s[m, n]
output y = t4
output x2 = x
update s[m, n] = t3[m, n]
"""


@pytest.fixture
def made(lumc: Lumc) -> Lumc:
    Path("m.lg").write_text(GRAPH)
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    return lumc


def body() -> Any:
    return json.loads(Path("m.lk").read_text())


def test_a_right_bundle(made: Lumc) -> None:
    assert "every launch computes what it should" in made("verify", "m.lb", "--bisect")
    said = json.loads(made("verify", "m.lb", "--bisect", "--json", "--threads", "2"))
    assert said["first"] is None and {r["output"] for r in said["outputs"]} == {"y", "x2"}
    Path("m.lp").unlink()
    assert "no plan beside m.lb" in made.fails(2, "verify", "m.lb", "--bisect")
    assert isinstance(json.loads(made("verify", "m.lb", "--json")), list)


def test_a_wrong_kernel(made: Lumc) -> None:
    """Each in turn: it writes where it should, but not what it should."""
    kernels = [k for k in body()["kernels"] if k["name"] != "copy"]
    assert len(kernels) > 1
    for i, kernel in enumerate(kernels):
        head, _, rest = kernel["source"].rpartition("}")
        stored = len(kernel["args"]) - 1

        def spoil(b: Any, i: int = i, head: str = head, rest: str = rest, at: int = stored) -> None:
            end = f"  if (!part) ((float *)args[{at}])[5] += 3.0f;\n}}{rest}"
            next(k for k in b["kernels"] if k["symbol"] == kernels[i]["symbol"])["source"] = (
                head + end
            )

        Path("bad.lk").write_text(Path("m.lk").read_text())
        forge(Path("bad.lk"), spoil)
        made("link", "bad.lk", "-o", "bad.lb")
        first = json.loads(made.fails(3, "verify", "bad.lb", "--bisect", "--json"))["first"]
        assert (first["symbol"], first["against"]) == (kernel["symbol"], "kernel")
        assert (first["wrong"], abs(first["got"] - first["want"]) > 2.9) == (1, True)
        said = made.fails(3, "verify", "bad.lb", "--bisect")
        assert f"is the first that differs: {kernel['name']} ({kernel['symbol']})" in said
        assert "1 of " in said and f"value {first['value']}" in said
