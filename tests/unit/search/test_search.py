"""The search pass: every variant with every cut computes the graph, and what it must find."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lumc.codegen.generate import generate
from lumc.errors import LumcError
from lumc.frontend import concat
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.expr import subterms
from lumc.graph.graph import Graph, Node
from lumc.graph.text import parse_graph
from lumc.kernel.term import Kernel
from lumc.kernel.term import dtype as dtype_of
from lumc.oracle.term import evaluate_kernel
from lumc.profile.candidates import programs_of
from lumc.profile.choose import choose, estimate
from lumc.profile.lowered import Kernels
from lumc.search import search
from lumc.search.cuts import Splitting
from lumc.search.saturate import Limits
from lumc.search.space import Region, Space
from searching import TARGET, error, oracle, random_inputs, random_values, run_plan, weight
from zoo import ATTENTIONS, MODELS, attention, build, layer_norm, model

KNOWN = Kernels(TARGET)  # what they cost, of all tests


def found(graph: Graph, limits: Limits | None = None) -> Space:
    return search(graph, TARGET, limits, inside=True)


def check(graph: Graph, tolerance: float = 1e-12) -> Space:
    """The estimated plan of every entry agrees with the oracle; gives the space."""
    space = found(graph)
    plan = estimate(space, known=KNOWN)
    for entry in graph.entries:
        inputs = random_inputs(graph, entry.name)
        want, states = oracle(graph, entry.name, inputs)
        got = run_plan(plan, entry.name, inputs)
        for name, value in plan.outputs[entry.name]:
            assert error(got[value], want[name]) <= tolerance, (entry.name, name)
        for name, state in states.items():
            assert error(got[name], state) <= tolerance, (entry.name, name)
    return space


def chosen(region: Region) -> list[Kernel]:
    return choose(programs_of(region, TARGET, kernels=KNOWN))


def stages(region: Region) -> list[list[str]]:
    """The kinds of the reductions of every chosen kernel."""
    return [[s.kind for s in k.stages] for k in chosen(region)]


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_the_oracle_computes(name: str) -> None:
    check(model(name))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_becomes_one_kernel_in_one_pass(name: str) -> None:
    (region,) = check(attention(ATTENTIONS[name]), 1e-9).regions
    (kernel,) = stages(region)
    wanted = ["red", "wsum", "wsum"]
    if name == "with sink":  # the maximum is needed alone, and has scores of its own
        wanted = ["red", "red", *wanted]
    assert sorted(kernel) == wanted


def test_without_the_maximum_nothing_is_online() -> None:
    def unsafe(g: Model) -> Tensor:
        e = (g.input("q", (4, 8)) @ g.input("k", (8, 6))).exp()
        return e * e.sum(-1, keepdim=True).reciprocal()

    (region,) = check(build(unsafe)).regions
    assert not any(e.kind == "wsum" for v in region.variants for e in subterms(v.value))


def run_split(kernels: list[Kernel], space: Space, region: Region) -> np.ndarray:
    """The result of a region after these kernels, at random inputs."""
    arrays = {
        b.name: random_values(_leaf(space, name))
        for b, name in zip(region.frame.inputs, _sources(space, region), strict=True)
    }
    for k in kernels:
        given = {b.name: arrays[b.name].reshape(b.shape) for b in k.buffers[:-1]}
        arrays.update(evaluate_kernel(k, given))
    return arrays["out"].reshape(region.frame.output.shape)


def _sources(space: Space, region: Region) -> tuple[str, ...]:
    return next(i.inputs for i in space.instances if i.region == region.key)


def _leaf(space: Space, name: str) -> Node:
    entry = space.graph.entries[0]
    return next(n for n in (*space.graph.weights, *entry.inputs, *entry.nodes) if n.name == name)


@pytest.mark.parametrize("name", ["softmax", "layernorm", "grouped", "square", "gated", "low_rank"])
def test_all_variants_with_all_cuts_are_equal(name: str) -> None:
    space = found(model(name))
    draw = random.Random(1)
    for region in space.regions:
        want = None
        for variant in region.variants:
            splitting = Splitting(region.frame, variant.value, variant.cuts)
            points = range(len(variant.cuts))
            sets = [c for n in (0, 1, len(points)) for c in itertools.combinations(points, n)]
            sets += [tuple(i for i in points if draw.random() < 0.5) for _ in range(4)]
            for chosen in sets:
                got = run_split(splitting.kernels(chosen), space, region)
                want = got if want is None else want
                assert error(got, want) < 1e-12


def test_a_cut_value_is_computed_once_for_all_its_names() -> None:
    """Scores are read along the axis of the maximum and along that of the sum."""

    def unfused(g: Model) -> Tensor:
        s = g.input("q", (5, 8)) @ g.input("k", (8, 6))
        return s - s.max(-1, keepdim=True)

    (region,) = found(build(unfused)).regions
    variant = region.variants[0]
    splitting = Splitting(region.frame, variant.value, variant.cuts)
    scores = next(i for i, c in enumerate(variant.cuts) if len(c.free) == 2)
    first, second = splitting.kernels((scores,))
    assert len(splitting.kernels()[0].stages) == 3
    assert (len(first.stages), len(second.stages)) == (1, 1)


def test_equal_layers_are_searched_once() -> None:
    def stack(g: Model) -> Tensor:
        x = g.input("x", (6, 8))
        for i in range(5):
            x = layer_norm(g, x, f"l{i}.") @ g.constant(_distinct(i), f"w{i}") + x
        return x

    space = found(build(stack))
    counts = sorted(r.count for r in space.regions)
    assert sum(counts) == len(space.instances)
    assert max(counts) >= 4
    assert len(space.regions) <= 4


def _distinct(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(8, 8)).astype("float32")


@pytest.mark.parametrize("rows", [1, 40])
def test_products_with_weights_are_cut_alike_for_one_row_and_many(rows: int) -> None:
    """Both halves of y are read twice: a product of one row is worth storing as well."""

    def write(g: Model) -> Tensor:
        y = g.input("x", (rows, 90)) @ weight(g, "w", 90, 64)
        return concat([-y[:, 32:], y[:, :32]], -1) * y

    first, _ = check(build(write)).instances
    assert first.inputs == ("x", "w")


def test_a_weight_and_an_input_of_one_shape_are_different_regions() -> None:
    def two(g: Model) -> tuple[Tensor, Tensor]:
        x = g.input("x", (6, 8))
        return x @ g.input("y", (8, 8)), x @ g.constant(_distinct(0), "w")

    g = Model()
    a, b = two(g)
    g.output("a", a)
    g.output("b", b)
    assert len(found(g.graph()).regions) == 2


def test_the_sum_of_rows_that_are_selected_is_a_load() -> None:
    space = check(model("embedding"))
    (region,) = space.regions
    (kernel,) = chosen(region)
    assert kernel.stages == []
    assert any(e.kind == "dyn" for e in subterms(kernel.values[0]))


def test_a_lookup_in_a_quantised_table_reads_its_rows() -> None:
    """levels * scales + minima, a scale and a minimum for four of a row: no sum over the rows."""

    def write(g: Model) -> Tensor:
        ids = g.input("ids", (3,), "i64", values=(0, 19))
        levels = g.constant(np.arange(160, dtype="u1").reshape(20, 8), "levels").to("f32")
        scales, minima = (
            g.constant((np.arange(40) % 7 + n).astype("f2").reshape(20, 2), f"part{n}").to("f32")
            for n in (1, 2)
        )
        table = levels * scales.repeat_interleave(4, -1) + minima.repeat_interleave(4, -1)
        return table.embedding(ids)

    (region,) = check(build(write)).regions
    (kernel,) = chosen(region)
    assert kernel.stages == []
    assert sum(e.kind == "dyn" for e in subterms(kernel.values[0])) > 0


@pytest.mark.parametrize("rows", [1, 3])
def test_one_row_of_a_narrow_table_is_proven_inside(rows: int) -> None:
    """The guard of a lookup stays with its load, which does not depend on an axis for one row."""

    def write(g: Model) -> Tensor:
        ids = g.input("ids", (1, rows), "i64", values=(0, 19))
        table = g.constant(np.arange(160).astype("f2").reshape(20, 8), "table").to("f32")
        return table.embedding(ids)

    generate(estimate(check(build(write))))


def test_low_rank_products_are_reassociated() -> None:
    """x (6, 32) @ (a (32, 2) @ b (2, 24)): 3,072 multiplications one way, 672 the other."""
    (region,) = check(model("low_rank")).regions
    kernels = chosen(region)
    sizes = [np.prod([k.extent[a] for a in s.free] or [1]) for k in kernels for s in k.stages]
    assert 6 * 2 in sizes
    assert 32 * 24 not in sizes


def test_no_contraction_is_computed_in_two_forms() -> None:
    """x * rstd times w1 and w3: each product is summed once, not factored in one place only."""
    (region,) = found(model("gated")).regions
    (kernel,) = chosen(region)
    assert len(kernel.stages) == 3


# ---- entries, states, outputs


def test_states_are_updated_after_the_run() -> None:
    g = Model()
    cache = g.state("cache", (3, 4))
    x = g.input("x", (1, 4))
    g.output("seen", cache.sum(0) + x.sum(0))
    g.update(cache, x * 2.0, (slice(1, 2), slice(None)))
    space = check(g.graph())
    last = space.instances[-1]
    assert last.outputs == ("cache",)
    assert ["cache" in i.outputs for i in space.instances].count(True) == 1


def test_entries_share_weights_and_regions() -> None:
    g = Model()
    w = g.constant(_distinct(3), "w")
    for name in ("first", "second"):
        g.entry(name)
        g.output("y", g.input("x", (5, 8)) @ w)
    space = check(g.graph())
    assert [i.entry for i in space.instances] == ["first", "second"]
    assert len(space.regions) == 1


def test_a_row_of_many_is_the_row_alone() -> None:
    """Dims of one element are none: entries with and without them share regions and kernels."""
    g = Model()
    w = g.constant(_distinct(3), "w")
    for name, shape in (("many", (1, 8)), ("one", (8,)), ("deep", (1, 1, 8))):
        g.entry(name)
        x = g.input("x", shape)
        g.output("y", (x @ w) * (x * x).sum(-1, keepdim=True).sqrt())
    space = check(g.graph())
    assert {r.count for r in space.regions} == {3}
    shapes = [b.shape for r in space.regions for b in (*r.frame.inputs, r.frame.output)]
    assert all(1 not in shape for shape in shapes)
    assert len(estimate(space).kernels) == len(space.regions)


def test_an_update_may_not_read_what_another_one_writes() -> None:
    from lumc.graph.text import parse_graph

    text = """lumc graph 1
state a f32[3]
state b f32[3]

input x f32[3]
t0 f32[i:3] = add x[i], a[i]
output y = t0
update a[d0] = b[d0]
update b[d0] = a[d0]
"""
    graph = parse_graph(text)
    with pytest.raises(LumcError, match="E0402 an update reads a state"):
        found(graph)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 3), (0,), (2, 0, 3)])
def test_scalars_ones_and_empty_tensors(shape: tuple[int, ...]) -> None:
    g = Model()
    x = g.input("x", shape)
    g.output("y", x * 2.0 + 1.0)
    if shape:
        g.output("sum", x.sum(-1))
        g.output("max", x.max(0))
    check(g.graph())


def test_one_node_may_be_two_outputs_and_also_be_read() -> None:
    g = Model()
    y = g.input("x", (3, 4)).exp2()
    g.output("a", y)
    g.output("b", y)
    g.output("c", y.sum(0))
    check(g.graph())


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i64", "i32", "i8", "u8"])
def test_dtypes_stay_what_they_are(dtype: str) -> None:
    g = Model()
    x, y = g.input("x", (3, 4), dtype), g.input("y", (4, 5), dtype)
    g.output("product", x @ y + x.sum(-1, keepdim=True))
    g.output("max", (x * 3).max(-1))
    g.output("less", x[:, None] < y.T)
    space = found(g.graph())
    for region in space.regions:
        for variant in region.variants:
            for kernel in Splitting(region.frame, variant.value, variant.cuts).kernels():
                root = kernel.roots[0]
                assert dtype_of(root.value) is kernel.buffer(root.buffer).dtype
    if dtype in ("f64", "i64", "i32"):
        check(g.graph())


def test_a_select_keeps_nan_out() -> None:
    """where(c, x, 0) @ w with NaN in x where c is false."""
    g = Model()
    x, c = g.input("x", (4, 6)), g.input("c", (4, 6), "bool")
    g.output("y", (c * x * 3.0).sum(-1) * 2.0)
    plan = estimate(found(g.graph()))
    inputs = random_inputs(plan.graph, "main")
    inputs["x"][~inputs["c"]] = np.nan
    inputs["x"][0, 0], inputs["c"][0, 0] = np.inf, True
    want, _ = oracle(plan.graph, "main", inputs)
    got = run_plan(plan, "main", inputs)[plan.outputs["main"][0][1]]
    assert error(got, want["y"]) < 1e-12


def test_rows_of_minus_infinity_give_nan_as_written() -> None:
    plan = estimate(found(attention(ATTENTIONS["biased"])))
    inputs = random_inputs(plan.graph, "main")
    inputs["bias"] = np.where(np.arange(16)[:, None] < 3, -np.inf, inputs["bias"]).astype("float32")
    inputs["bias"][0, 5, 7] = -np.inf
    want, _ = oracle(plan.graph, "main", inputs)
    got = run_plan(plan, "main", inputs)[plan.outputs["main"][0][1]]
    assert np.isnan(want["y"]).any()
    assert error(got, want["y"]) < 1e-12


def test_launches_use_known_values() -> None:
    """Every input of an instance is a leaf or was written before."""
    space = found(model("block"))
    graph = space.graph
    have = {n.name for n in (*graph.weights, *graph.states, *graph.entries[0].inputs)}
    for instance in space.instances:
        assert set(instance.inputs) <= have
        have.update(instance.outputs)


def test_long_chains_have_a_variant() -> None:
    """Every other node is of another kind, so no order by kind is bottom up."""
    g = Model()
    x = g.input("x", (4,))
    y = x
    for _ in range(50):
        y = (y + x).sin()
    g.output("y", y)
    check(g.graph())


def test_sets_of_reductions_are_found_at_any_depth() -> None:
    """More nodes on the way to the root than rounds of the fixpoint, reductions among them."""
    g = Model()
    y = x = g.input("x", (4,))
    for i in range(100):
        y = (y + x).sin() if i % 12 else y * (y * x).sum()
    g.output("y", y)
    check(g.graph())


def test_a_sum_whose_price_hides_that_of_its_parts() -> None:
    """Beside 2^50 loads no float has room for the operation that adds them."""
    n = 1 << 50
    text = f"lumc graph 1\ninput x f32[{n}]\ny f32[] = sum i:{n} of x[i]\noutput y = y\n"
    (region,) = found(parse_graph(text)).regions
    assert region.variants


@pytest.mark.parametrize(("dtype", "read"), [("i32", False), ("u8", False), ("f32", True)])
def test_a_product_with_nothing_reads_nothing_where_numbers_are_finite(
    dtype: str, read: bool
) -> None:
    """A value of its sum was computed and not read; 0 * inf is NaN."""
    lines = (
        "lumc graph 1",
        f"input x {dtype}[4, 5]",
        f"t {dtype}[i:4, j:5] = mul x[i, j] if 9 <= i < 12, x[i, j]",
        f"s {dtype}[i:4] = sum j:5 of t[i, j]",
        "output y = s",
    )
    space = check(parse_graph("\n".join(lines)))
    kernels = estimate(space).kernels.values()
    assert any(b.name != "out" for k in kernels for b in k.kernel.buffers) == read
