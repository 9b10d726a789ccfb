"""Several entries and buckets read one copy of every weight."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from lumc.bundle.packing import pack
from lumc.codegen.code import Code
from lumc.codegen.generate import Packings, generate
from lumc.codegen.tile.packing import Packing
from lumc.graph.buckets import with_points
from lumc.graph.expr import add, axis, mul
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.profile import choose, forms
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.space import Space

TARGET = resolve_target("cpu:x86-64-v3")
SHA = "0" * 64
TEXT = f"""lumc graph 1
dim s in 1..64
file "w.safetensors" size 8 sha256 {SHA}
weight up f32[384, 512] "w.safetensors" "up"
weight down f32[512, 384] "w.safetensors" "down"

entry rows
input x f32[s, 512]
m f32[i:s, j:384, k:512] = mul x[i, k], up[j, k]
h f32[i:s, j:384] = sum k:512 of m[i, j, k]
n f32[i:s, j:512, k:384] = mul h[i, k], down[j, k]
y f32[i:s, j:512] = sum k:384 of n[i, j, k]
output y = y

entry one
input x f32[512]
m f32[j:384, k:512] = mul x[k], up[j, k]
h f32[j:384] = sum k:512 of m[j, k]
n f32[j:512, k:384] = mul h[k], down[j, k]
y f32[j:512] = sum k:384 of n[j, k]
output y = y
"""


@cache
def space(text: str = TEXT) -> Space:
    return search(with_points(parse_graph(text), {"s": (1, 8)}), TARGET, inside=True)


def chosen() -> Plan:
    return choose.estimate(space())


def read(code: Code) -> dict[str, list[str]]:
    """What of the weights every entry reads."""
    return {
        e.name: sorted(v.name for v in e.values if v.place in ("weight", "packed"))
        for e in code.entries
    }


def test_weights_have_one_form_in_all_buckets_and_entries() -> None:
    code = generate(chosen())
    assert list(read(code)) == ["rows@s1", "rows@s8", "rows@s64", "one"]
    assert len({tuple(names) for names in read(code).values()}) == 1
    assert sorted(p.weight for p in code.packings.values()) == ["down", "up"]


def test_the_mutant_in_which_each_kernel_has_its_way_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms.Agreement, "plan", lambda _, plan: plan)
    assert len({tuple(names) for names in read(generate(chosen())).values()}) > 1


def halves(kind: str) -> str:
    """The graph with weights of 16 bits, which are read as f32."""
    text = TEXT
    for name, shape in (("up", "[j:384, k:512]"), ("down", "[j:512, k:384]")):
        wide = f"{name}_f32 f32{shape} = contiguous {name}[j, k]"
        text = text.replace(f"weight {name} f32", f"weight {name} {kind}")
        text = text.replace(f"{name}[j, k]\n", f"{name}_f32[j, k]\n")
        text = re.sub(r"(?m)^(input x .*)$", rf"\1\n{wide}", text)
    return text


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_weights_of_16_bits_stay_so(kind: str) -> None:
    """The product of 64 rows alone would take them as f32."""
    code = generate(choose.estimate(space(halves(kind))))
    assert len({tuple(names) for names in read(code).values()}) == 1
    assert {p.dtype.value for p in code.packings.values()} == {kind}
    assert sorted(p.weight for p in code.packings.values()) == ["down", "up"]


def test_the_mutant_that_makes_them_wider_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms.Agreement, "as_stored", lambda _, k, *rest: k)
    code = generate(choose.estimate(space(halves("f16"))))
    assert DType.F32 in {p.dtype for p in code.packings.values()}


def test_the_fastest_measured_schedule_that_fits_is_taken() -> None:
    plan, agreement = chosen(), forms.Agreement(TARGET)
    few = next(i for i in plan.instances if i.entry == "one")
    key = plan.regions[few.region].steps[0].kernel
    fitting = plan.kernels[key].schedule
    own = choose.scheduled(plan.kernels[key].kernel, TARGET)[0]
    assert own != fitting
    kernels = {**plan.kernels, key: forms.replace(plan.kernels[key], schedule=own)}
    free = forms.replace(plan, kernels=kernels)
    times = {key: [(1.0, own), (3.0, fitting)]}
    found = agreement.plan(free, lambda k: times.get(k, ())).kernels[key]
    assert (found.schedule, found.time_us) == (fitting, 3.0)
    failed = {key: [(1.0, own), (float("inf"), fitting)]}
    found = agreement.plan(free, lambda k: failed.get(k, ())).kernels[key]
    assert found.schedule != fitting
    assert agreement.plan(free).kernels[key].schedule == fitting


def test_a_graph_of_one_entry_is_left_as_it_is() -> None:
    graph = parse_graph(
        TEXT[: TEXT.index("\nentry one")]
        .replace("dim s in 1..64\n", "")
        .replace("i:s", "i:8")
        .replace("[s,", "[8,")
    )
    plan = choose.estimate(search(graph, TARGET, inside=True))
    assert forms.Agreement(TARGET).plan(plan) is plan


def packing(extents: tuple[int, ...], coefficients: tuple[int, ...], width: int = 4) -> Packing:
    axes = tuple((f"a{i}", n) for i, n in enumerate(extents))
    index = add(*(mul(axis(a), c) for (a, _), c in zip(axes, coefficients, strict=True)))
    return Packing("w", DType.F32, (index,), axes, (len(axes) - 1, width), (240,))


def test_packings_that_are_the_same_memory_are_one() -> None:
    """Two axes that lie in a row, and one of both."""
    weight = np.arange(240, dtype=np.float32)
    apart, joined = packing((6, 4, 10), (40, 10, 1)), packing((24, 10), (10, 1))
    turned, wider = packing((4, 6, 10), (10, 40, 1)), packing((24, 10), (10, 1), 8)
    assert apart.memory == joined.memory
    np.testing.assert_array_equal(pack(weight, DType.F32, apart), pack(weight, DType.F32, joined))
    assert len({joined.memory, turned.memory, wider.memory}) == 3
    names = Packings()
    assert [names.name(p) for p in (apart, joined, turned, wider)] == ["w@0", "w@0", "w@1", "w@2"]
    assert list(names.by_name.values()) == [apart, turned, wider]
