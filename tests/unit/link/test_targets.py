"""Bundles of several targets: one graph, one copy of the weights, a plan for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import GENERIC, NATIVE, build, mlp
from commands import Lumc
from lumc.bundle.restore import bundle_weight
from lumc.codegen.code import Code, Value
from lumc.codegen.tile.packing import Packing
from lumc.disk.weights import read_header, read_weight
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.link import link
from lumc.link.link import TargetCode, in_order, share_packings
from lumc.runtime.cpu import Bundle
from lumc.runtime.opened import plans_of


def wide(code: Code) -> Code:
    """The same code for another CPU, as if its kernels read other panels of the first weight."""
    names = {n: p.panel for n, p in code.packings.items()}
    assert names["w1@0"] == (1, 8)
    other = replace(code.packings["w1@0"], panel=(0, 4))
    rows = other.size
    packings = {"w1@0": other, "w2@1": code.packings["w2@1"]}
    (entry,) = code.entries
    values = [replace(v, shape=(rows,)) if v.name == "w1@0" else v for v in entry.values]
    return replace(
        code, target=GENERIC, packings=packings, entries=(replace(entry, values=tuple(values)),)
    )


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Code, Any]:
    base = tmp_path_factory.mktemp("codes")
    code, reference = mlp(base)
    return base, code, reference


def test_one_copy_of_the_weights(codes: tuple[Path, Code, Any]) -> None:
    base, code, reference = codes
    same = replace(code, target=GENERIC)
    one = build(code, base / "one.lb", base)
    both = build(same, base / "both.lb", base, others=[code])
    name = "weights.safetensors"
    assert (one / name).read_bytes() == (both / name).read_bytes()
    body = json.loads((both / "manifest.json").read_text())
    assert [t["name"] for t in body["targets"]] == ["cpu-generic", "cpu-native"]
    alone = json.loads((one / "manifest.json").read_text())
    assert body["entries"] == alone["entries"] and body["packings"] == alone["packings"]
    extra = body["targets"][1]
    assert extra["launches"] == {"main": 3} and extra["kernels"] == alone["kernels"]
    assert extra["arena_bytes"] == alone["arena_bytes"] and extra["input"] == "0" * 64
    x = np.random.default_rng(0).standard_normal((5, 11), np.float32)
    with Bundle.open(both) as b:
        np.testing.assert_allclose(b.run({"x": x})["y"], reference(x), rtol=1e-4)


def raw(code: Code) -> Code:
    """The same code for another CPU, as if its kernels also read the weights as they are."""
    (entry,) = code.entries
    names = [p.weight for p in code.packings.values()]
    shapes = {w.name: tuple(int(str(n)) for n in w.shape) for w in code.graph.weights}
    values = [Value(n, DType.F32, shapes[n], "weight") for n in names]
    return replace(code, target=GENERIC, entries=(replace(entry, values=(*entry.values, *values)),))


def test_a_weight_that_is_stored_is_packed_when_it_is_loaded(codes: tuple[Path, Code, Any]) -> None:
    base, code, reference = codes
    path = build(code, base / "load.lb", base, others=[raw(code)])
    stored = read_header(path / "weights.safetensors")
    assert {"w1", "w2"} <= set(stored) and not any("@" in name for name in stored)
    x = np.random.default_rng(1).standard_normal((5, 11), np.float32)
    with Bundle.open(path) as b:
        np.testing.assert_allclose(b.run({"x": x})["y"], reference(x), rtol=1e-4)
    for node in code.graph.weights:
        np.testing.assert_array_equal(bundle_weight(path, node), read_weight(node, base))


def test_the_best_plan_for_this_cpu(codes: tuple[Path, Code, Any]) -> None:
    """The one that may use the most of it, in any order; the kernels of the other do nothing."""
    base, code, _ = codes
    wrong = replace(code, target=GENERIC, kernels=tuple(zeroed(k) for k in code.kernels))
    path = build(wrong, base / "best.lb", base, others=[replace(code, target=NATIVE)])
    with Bundle.open(path) as b:
        assert np.any(b.run({"x": np.ones((5, 11), np.float32)})["y"])


def zeroed(kernel: Any) -> Any:
    """A kernel that writes nothing."""
    text = kernel.source
    return replace(kernel, source=text[: text.index("{")] + "{ (void)args, (void)part; }\n")


def test_packings_that_differ_have_different_names(codes: tuple[Path, Code, Any]) -> None:
    base, code, _ = codes
    first, second = share_packings([code, wide(code)])
    assert first.packings == code.packings
    assert list(second.packings) == ["w1@2", "w2@1"]
    assert second.packings["w1@2"].panel == (0, 4)
    names = {a for launch in second.entries[0].launches for a in launch.args}
    assert {"w1@2", "w2@1"} <= names and "w1@0" not in names
    path = build(code, base / "wide.lb", base, others=[wide(code)])
    body = json.loads((path / "manifest.json").read_text())
    assert [p["name"] for p in body["packings"]] == ["w1@0", "w1@2", "w2@1"]
    plans = {p.target: p for p in plans_of(path, body["files"], "cpu")}
    sizes = {t: p.entries[0].launches[0].args[2].nbytes for t, p in plans.items()}
    sized = {c.target.name.replace(":", "-"): p for c, p in ((code, first), (wide(code), second))}
    for target, made in sized.items():
        (packing,) = (p for p in made.packings.values() if p.weight == "w1")
        assert sizes[target] == 4 * packing.size
    node = next(w for w in code.graph.weights if w.name == "w1")
    assert np.any(bundle_weight(path, node))


def test_one_name_of_a_packing_in_every_code(codes: tuple[Path, Code, Any]) -> None:
    """Two names of one layout become one; a name that is taken by another layout is not reused."""
    _, code, _ = codes
    w1, w2 = code.packings["w1@0"], code.packings["w2@1"]
    a = replace(code, packings={"w1@0": w1, "w1@1": w2})
    plain = Packing("w2", w2.dtype, w2.index, w2.axes, None)
    b = replace(code, packings={"w1@1": w1, "w2@0": plain})
    made = share_packings([a, b])
    assert list(made[0].packings) == ["w1@0", "w1@1"]
    assert list(made[1].packings) == ["w1@0", "w2@0"]


def test_targets_in_order_and_matching(codes: tuple[Path, Code, Any], tmp_path: Path) -> None:
    _, code, _ = codes
    gpu = replace(code, target=resolve_target("cuda:sm_90"))
    metal = replace(code, target=resolve_target("metal"))
    amd = replace(code, target=resolve_target("hip"))
    parts = [TargetCode(c, "") for c in (metal, amd, gpu, code)]
    assert [p.code.target.kind for p in in_order(parts)] == ["cpu", "cuda", "hip", "metal"]
    assert list(link.BUILDERS) == ["cpu", "cuda", "hip", "metal"]
    other, _ = mlp(tmp_path, m=6)
    rounding = replace(code, target=resolve_target("cuda:sm_90+tf32"))
    for bad, said in (
        ([code, replace(other, target=GENERIC)], "they are not of the same graph"),
        ([code, code], "two of them are for the same target"),
        ([gpu, rounding], "two of them are for the same target"),
    ):
        with pytest.raises(LumcError, match=f"E0707 cannot link .* together: {said}") as e:
            in_order([TargetCode(c, "") for c in bad])
        assert e.value.exit == Exit.USAGE and "\n" not in e.value.what


def test_commands(lumc: Lumc) -> None:
    """compile for two targets makes what link of two .lk files makes; show lists both."""
    graph = Path(__file__).parents[3] / "graphs" / "softmax.lg"
    how = ("--dim", "b=4", "--estimate", "--target", "cpu,cpu:generic", "--save-temps", "t")
    lumc("compile", graph, *how, "-o", "a.lb")
    names = {p.name for p in Path("t").glob("*.lk")}
    assert names == {"a.cpu-native.lk", "a.cpu-generic.lk"}
    lumc("link", "t/a.cpu-generic.lk", "t/a.cpu-native.lk", "-o", "b.lb")
    assert Path("a.lb/manifest.json").read_bytes() == Path("b.lb/manifest.json").read_bytes()
    said = lumc("show", "a.lb")
    assert "bundle for cpu-generic, cpu-native" in said and "target cpu-native: launches" in said
    (symbol,) = (line.split()[1] for line in said.splitlines()[-1:])
    assert f"void {symbol}" in lumc("show", "a.lb", "--kernel", f"cpu-native/{symbol}")
    assert f"void {symbol}" in lumc("show", "a.lb", "--kernel", symbol)
    for targets, said in (("cpu,cpu:native", "E0203"), ("cpu,gpu", "E0401")):
        words = ("compile", graph, "--dim", "b=4", "--target", targets, "-o", "c.lb")
        assert said in lumc.fails(2, *words)
    assert "E0707" in lumc.fails(2, "link", *["t/a.cpu-native.lk"] * 2, "-o", "c.lb")
    assert not Path("c.lb").exists()
