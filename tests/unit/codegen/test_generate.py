"""Plans to code to bundles: places, launches, packed weights, and outputs that are not computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bundles import build
from lumc.artifacts.bodies import code_to_json
from lumc.bundle.restore import bundle_weight
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.disk.weights import read_weight, weight_file
from lumc.errors import Exit, LumcError
from lumc.graph.expr import axis
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.kernel.instance import Instance
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Buffer, Kernel, Root, binary, const, load, reduce
from lumc.runtime.cpu import Bundle
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan, Step
from lumc.schedule.schedule import Schedule, Stage

F = DType.F32
M, K = 33, 50


def matmul() -> KernelPlan:
    """out[i, j] = sum k of b0[i, k] * b1[k, j], with b1 packed when it is linked."""
    product = binary("mul", load("b0", F, "i", "k"), load("b1", F, "k", "j"))
    root = Root("out", (axis("i"), axis("j")), reduce("sum", "k", product))
    buffers = (Buffer("b0", F, (M, K)), Buffer("b1", F, (K, K), True), Buffer("out", F, (M, K)))
    kernel = Kernel("layer.1 matmul", ("i", "j"), {"i": M, "j": K, "k": K}, (root,), buffers)
    stage = Stage("contract", "i", "j", 6, 2, stage_b="link")
    return KernelPlan("mm", kernel, Schedule(("i", "j"), 1, {"i": 16}, (stage,)), 1.0)


def scale(by: float) -> KernelPlan:
    """out = b0 * by + b0."""
    b0 = load("b0", F, "i", "j")
    root = Root("out", (axis("i"), axis("j")), binary("add", binary("mul", b0, const(by)), b0))
    buffers = (Buffer("b0", F, (M, K)), Buffer("out", F, (M, K)))
    kernel = Kernel("scale", ("i", "j"), {"i": M, "j": K}, (root,), buffers)
    return KernelPlan(f"scale {by}", kernel, Schedule(("i", "j"), 1), 1.0)


def text(base: Path, outputs: str) -> str:
    """Two layers h = (x @ w) * 3 + (x @ w) with weights wa and wb, and a state."""
    rng = np.random.default_rng(5)
    w = {n: rng.standard_normal((K, K), np.float32) for n in ("wa", "wb", "unused")}
    save_file(w, base / "w.safetensors")
    file = weight_file(base / "w.safetensors", base)
    layers = ""
    for v, w_, out in (("x", "wa", "h"), ("h", "wb", "y")):
        layers += (
            f"{out}0 f32[i:{M}, j:{K}, k:{K}] = mul {v}[i, k], {w_}[k, j]\n"
            f"{out}1 f32[i:{M}, j:{K}] = sum k of {out}0[i, j, k]\n"
            f"{out}2 f32[i:{M}, j:{K}] = mul {out}1[i, j], 3.0\n"
            f"{out} f32[i:{M}, j:{K}] = add {out}2[i, j], {out}1[i, j]\n"
        )
    weights = "".join(f'weight {n} f32[{K}, {K}] "w.safetensors" "{n}"\n' for n in w)
    return (
        "lumc graph 1\n"
        f'file "w.safetensors" size {file.size} sha256 {file.sha256}\n'
        f"{weights}state s f32[{M}, {K}]\ninput x f32[{M}, {K}]\n\n{layers}{outputs}"
    )


def plan(graph: Graph, last: str = "y") -> Plan:
    steps = (Step("mm", ("b0", "b1", "v0")), Step("scale 3.0", ("v0", "out")))
    region = RegionPlan("layer", steps, (Buffer("v0", F, (M, K)),))
    instances = (
        Instance("main", "layer", ("x", "wa"), ("h",)),
        Instance("main", "layer", ("h", "wb"), (last,)),
    )
    kernels = {k.key: k for k in (matmul(), scale(3.0))}
    target = resolve_target("cpu:native")
    outputs = {e.name: tuple((n, v.name) for n, v in e.outputs) for e in graph.entries}
    return Plan(graph, target, kernels, {"layer": region}, instances, outputs)


def reference(base: Path, graph: Graph, x: Any) -> tuple[Any, Any]:
    wa, wb = (read_weight(w, base).astype(np.float64) for w in graph.weights[:2])
    h = 4 * (x.astype(np.float64) @ wa)
    return h, 4 * (h @ wb)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layers")


def made(base: Path, outputs: str) -> tuple[Graph, Code]:
    graph = parse_graph(text(base, outputs))
    return graph, generate(plan(graph))


def test_places_and_launches(base: Path) -> None:
    _, code = made(base, "output y = y\n")
    (entry,) = code.entries
    assert [k.name for k in code.kernels] == ["layer.1 matmul", "scale"]
    assert [k.symbol for k in code.kernels] == ["k0_layer_1_matmul", "k1_scale"]
    assert [k.regions for k in code.kernels] == [2, 2]
    assert [launch.args for launch in entry.launches] == [
        ("x", "", "0.v0", "wa@0"),
        ("0.v0", "h"),
        ("h", "", "1.v0", "wb@1"),
        ("1.v0", "y"),
    ]
    places = {v.name: v.place for v in entry.values}
    assert places["x"] == "input" and places["y"] == "output" and places["wa@0"] == "packed"
    assert {n for n, p in places.items() if p == "arena"} == {"0.v0", "h", "1.v0"}
    one = -(-M * K * 4 // 64) * 64
    assert entry.arena_bytes == 2 * one and entry.arena_bytes_without_reuse == 3 * one


def test_numbers_on_one_and_three_threads(base: Path) -> None:
    graph, code = made(base, "output y = y\n")
    x = np.random.default_rng(1).standard_normal((M, K), np.float32)
    path = build(code, base / "plain.lb", base)
    with Bundle.open(path) as b:
        for threads in (1, 3):
            y = b.run({"x": x}, threads=threads)["y"]
            np.testing.assert_allclose(y, reference(base, graph, x)[1], rtol=1e-4, atol=1e-3)
        assert b.manifest["kernels"][0]["regions"] == 2
    for w in graph.weights[:2]:
        np.testing.assert_array_equal(bundle_weight(path, w), read_weight(w, base))
    assert not bundle_weight(path, graph.weights[2]).any()  # no kernel reads it


def test_outputs_that_have_a_place_already(base: Path) -> None:
    """An input, a weight, a state, an intermediate, and one value under two names."""
    names = "output a = x\noutput w = wa\noutput s0 = s\noutput h = h\noutput y = y\noutput z = y\n"
    graph, code = made(base, names)
    x = np.random.default_rng(2).standard_normal((M, K), np.float32)
    with Bundle.open(build(code, base / "odd.lb", base)) as b:
        state = np.random.default_rng(3).standard_normal((M, K), np.float32)
        b.set_state({"s": state})
        out = b.run({"x": x}, threads=2)
        assert list(out) == ["a", "w", "s0", "h", "y", "z"]
        h, y = reference(base, graph, x)
        np.testing.assert_array_equal(out["a"], x)
        np.testing.assert_array_equal(out["w"], read_weight(graph.weights[0], base))
        np.testing.assert_array_equal(out["s0"], state)
        np.testing.assert_allclose(out["h"], h, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(out["y"], y, rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(out["y"], out["z"])


def test_a_state_is_written_in_place(base: Path) -> None:
    """The last region writes the state; the output of the state is its value before the run."""
    graph = parse_graph(text(base, "output old = s\noutput h = h\n"))
    code = generate(plan(graph, last="s"))
    x = np.random.default_rng(4).standard_normal((M, K), np.float32)
    with Bundle.open(build(code, base / "state.lb", base)) as b:
        assert not b.run({"x": x})["old"].any()
        first = b.state()["s"]
        np.testing.assert_allclose(first, reference(base, graph, x)[1], rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(b.run({"x": 2 * x}, threads=2)["old"], first)
        np.testing.assert_allclose(b.state()["s"], 2 * first, rtol=1e-4, atol=1e-3)


def test_a_graph_without_nodes(tmp_path: Path) -> None:
    graph = parse_graph(
        "lumc graph 1\ninput x f32[3]\ninput e f32[0]\noutput y = x\noutput f = e\n"
    )
    outputs = {"main": (("y", "x"), ("f", "e"))}
    code = generate(Plan(graph, resolve_target("cpu:generic"), {}, {}, (), outputs))
    with Bundle.open(build(code, tmp_path / "m.lb", tmp_path)) as b:
        out = b.run({"x": np.arange(3, dtype=np.float32), "e": np.zeros(0, np.float32)})
        np.testing.assert_array_equal(out["y"], [0, 1, 2])
        assert out["f"].shape == (0,)


def test_the_same_plan_gives_the_same_code(base: Path) -> None:
    assert code_to_json(made(base, "output y = y\n")[1]) == code_to_json(
        made(base, "output y = y\n")[1]
    )


def of_dims(lo: int, hi: int, target: str = "cpu:generic") -> Code:
    graph = parse_graph(f"lumc graph 1\ndim n in {lo}..{hi}\ninput x f32[n]\noutput y = x\n")
    outputs = {"main": (("y", "x"),)}
    return generate(Plan(graph, resolve_target(target), {}, {}, (), outputs))


def test_copies_have_room_for_the_greatest_dims() -> None:
    (entry,) = of_dims(1, 8).entries
    assert [launch.kernel for launch in entry.launches] == ["copy_32"]


@pytest.mark.parametrize("target", ["cpu:generic", "cuda:sm_90", "metal:apple7"])
def test_dims_that_may_be_zero_are_refused(target: str) -> None:
    assert of_dims(1, 8, target).entries
    with pytest.raises(LumcError, match="n") as e:
        of_dims(0, 8, target)
    assert (e.value.code, e.value.exit) == ("E0112", Exit.UNSUPPORTED)
