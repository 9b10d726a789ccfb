"""``lumc verify --bisect``: of a bundle with one wrong kernel, that kernel; of a wrong plan, the
value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Lumc
from forging import forge
from live import ATTENTION
from lumc.frontend.api.model import Model
from schemas import check

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
    assert said["first"] is None and {r["output"] for r in said["outputs"]} == {
        "y",
        "x2",
        "state s",
    }
    Path("m.lp").unlink()
    assert "no plan beside m.lb" in made.fails(2, "verify", "m.lb", "--bisect")
    assert isinstance(json.loads(made("verify", "m.lb", "--json")), list)


def test_values_in_another_layout(lumc: Lumc) -> None:
    """They are compared as the graph has them."""
    g = Model()
    x = g.input("x", (1, 3, 29, 17))
    w, v = (g.input(n, (a, b, 3, 3)) for n, a, b in (("w", 32, 3), ("v", 16, 32)))
    g.output("y", x.conv2d(w, padding=1).relu().conv2d(v, padding=1).relu())
    g.save("m.lg")
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    assert "-out." in Path("m.lp").read_text()
    assert "every launch computes what it should" in lumc("verify", "m.lb", "--bisect")


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


@pytest.fixture
def live(lumc: Lumc) -> Lumc:
    """A bundle with dims, and two buckets."""
    Path("m.lg").write_text(ATTENTION)
    lumc("compile", "m.lg", "--estimate", "--tune", "s=1,16", "-o", "m.lb", "--save-temps", ".")
    return lumc


def first_of(lumc: Lumc, *words: str) -> Any:
    said = json.loads(lumc.raw("verify", "bad.lb", "--bisect", "--json", *words).stdout)
    check("verify", said)
    return said["first"]


def spoilt(lumc: Lumc, number: int, old: str, new: str) -> None:
    """bad.lb: the bundle with another text in a kernel."""

    def spoil(b: Any) -> None:
        kernel = b["kernels"][number]
        assert old in kernel["source"]
        kernel["source"] = kernel["source"].replace(old, new)

    Path("bad.lk").write_text(Path("m.lk").read_text())
    forge(Path("bad.lk"), spoil)
    lumc("link", "bad.lk", "-o", "bad.lb")


def test_a_right_bundle_at_every_length(live: Lumc) -> None:
    assert "every launch computes what it should" in live("verify", "m.lb", "--bisect")
    for dims in (("p=0", "s=1"), ("p=24", "s=1"), ("p=3", "s=5"), ("p=24", "s=16")):
        given = (word for d in dims for word in ("--dim", d))
        said = live("verify", "m.lb", "--bisect", "--threads", "2", *given)
        assert said.count("bisect:") == 1 and "what it should" in said
    assert "E0111" in live.fails(2, "verify", "m.lb", "--bisect", "--dim", "s=17")


@pytest.mark.parametrize("change", ["- 1", "+ 1"])
def test_a_wrong_kernel_of_one_bucket(live: Lumc, change: str) -> None:
    """Where a length is one off, a kernel differs at the lengths of its bucket only. Beyond them
    there is NaN, which a length of one more reads."""
    entries, kernels = body()["entries"], body()["kernels"]
    used = [{la["kernel"] for la in e["launches"]} for e in entries]  # for s up to 1 and 16
    for i, (s, other) in enumerate(((1, 7), (7, 1))):
        (number,) = (
            n
            for n, k in enumerate(kernels)
            if k["symbol"] in used[i] - used[1 - i] and "wsum" in k["name"]
        )
        dim = f"*(const int64_t *)args[{kernels[number]['args'].index('p')}]"
        spoilt(live, number, dim, f"{dim} {change}")
        first = first_of(live, "--dim", f"s={s}", "--dim", "p=5")
        wrong = (kernels[number]["symbol"], "kernel", f"p=5, s={s}")
        assert (first["symbol"], first["against"], first["dims"]) == wrong
        assert first_of(live, "--dim", f"s={other}", "--dim", "p=5") is None
