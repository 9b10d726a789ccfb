"""Optimizers, losses and what is done to gradients, beside torch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lumc import Model, Tensor, train
from lumc.errors import LumcError
from lumc.grad import gradients
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
SHAPES = {"w": (3, 4), "b": (5,)}
STEPS = 12
RATES = [0.01 * (1 + step % 3) for step in range(STEPS)]  # a schedule
Step = Callable[..., None]


def drawn(seed: int, scale: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) * scale for name, shape in SHAPES.items()}


def ours(step: Step, grads: Sequence[dict[str, Array]], **options: Any) -> list[dict[str, Array]]:
    """The parameters after every step, as the oracle computes them in f64."""
    m = Model()
    params = [m.state(name, shape, "f64") for name, shape in SHAPES.items()]
    slopes = [m.input(f"{name}.grad", shape, "f64") for name, shape in SHAPES.items()]
    if "when" in options:
        options = options | {"when": m.input("when", (), "bool")}
    step(params, slopes, m.input("lr", (), "f64"), **options)
    m.output("first", params[0].sum())
    graph = m.graph()
    verify_graph(graph)
    states: dict[str, Array] = dict(drawn(0))
    out = list[dict[str, Array]]()
    for i, (given, lr) in enumerate(zip(grads, RATES, strict=True)):
        feed: dict[str, Array] = {f"{name}.grad": g for name, g in given.items()}
        feed |= {"lr": np.array(lr)}
        if "when" in options:
            feed["when"] = np.array(i % 3 != 1)
        states = evaluate(graph, "main", feed, m.read_weight, states)[1]
        out.append({name: states[name] for name in SHAPES})
    return out


def theirs(
    make: Callable[..., Any], grads: Sequence[dict[str, Array]], left_out: bool = False
) -> list[dict[str, Array]]:
    params = {name: torch.tensor(a, requires_grad=True) for name, a in drawn(0).items()}
    optimizer = make(list(params.values()))
    out = list[dict[str, Array]]()
    for i, (given, lr) in enumerate(zip(grads, RATES, strict=True)):
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("times", 1.0)
        for name, p in params.items():
            p.grad = torch.tensor(given[name])
        if not (left_out and i % 3 == 1):
            optimizer.step()
        out.append({name: p.detach().numpy().copy() for name, p in params.items()})
    return out


def groups(params: Sequence[Any]) -> list[dict[str, Any]]:
    """Two groups: the first one decays."""
    return [
        {"params": [params[0]], "weight_decay": 0.1},
        {"params": [params[1]], "weight_decay": 0.0},
    ]


def optim(name: str, **options: Any) -> Callable[..., Any]:
    return lambda params: getattr(torch.optim, name)(params, lr=1.0, **options)


CASES: dict[str, tuple[Step, dict[str, Any], Callable[..., Any]]] = {
    "sgd": (train.sgd, {}, optim("SGD")),
    "sgd, decay": (train.sgd, {"decay": 0.1}, optim("SGD", weight_decay=0.1)),
    "momentum": (train.sgd, {"momentum": 0.9}, optim("SGD", momentum=0.9)),
    "nesterov": (
        train.sgd,
        {"momentum": 0.8, "nesterov": True, "decay": 0.1},
        optim("SGD", momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (train.adam, {}, optim("Adam")),
    "adam, decay": (
        train.adam,
        {"decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3},
        optim("Adam", weight_decay=0.1, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adam without a mean": (train.adam, {"betas": (0.0, 0.9)}, optim("Adam", betas=(0.0, 0.9))),
    "adamw": (train.adamw, {}, optim("AdamW")),
    "adamw, groups": (
        train.adamw,
        {"decay": [0.1, 0.0]},
        lambda params: torch.optim.AdamW(groups(params), lr=1.0),
    ),
}


def close(found: Sequence[dict[str, Array]], wanted: Sequence[dict[str, Array]]) -> None:
    for step, (a, b) in enumerate(zip(found, wanted, strict=True)):
        for name in SHAPES:
            np.testing.assert_allclose(a[name], b[name], 0, 1e-12, err_msg=f"{name}, step {step}")


@pytest.mark.parametrize("left_out", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("case", CASES)
def test_every_step_equals_torch(case: str, left_out: bool) -> None:
    step, options, make = CASES[case]
    grads = [drawn(i + 1) for i in range(STEPS)]
    close(
        ours(step, grads, **options, **({"when": None} if left_out else {})),
        theirs(make, grads, left_out),
    )


def test_lion() -> None:
    """Algorithm 2 of the paper, in numpy."""
    grads, decay = [drawn(i + 1) for i in range(STEPS)], 0.1
    params, mean, out = dict(drawn(0)), {n: np.zeros(s) for n, s in SHAPES.items()}, []
    for given, lr in zip(grads, RATES, strict=True):
        for name, g in given.items():
            c = 0.9 * mean[name] + 0.1 * g
            params[name] = params[name] - lr * (np.sign(c) + decay * params[name])
            mean[name] = 0.99 * mean[name] + 0.01 * g
        out.append(dict(params))
    close(ours(train.lion, grads, decay=decay), out)


def test_rates_for_each_parameter() -> None:
    grads = [drawn(i + 1) for i in range(STEPS)]

    def step(params: list[Tensor], slopes: list[Tensor], lr: Tensor) -> None:
        train.sgd(params, slopes, [lr, lr * 0.1])

    def make(params: list[Any]) -> Any:
        two = [{"params": params[:1]}, {"params": params[1:], "times": 0.1}]
        return torch.optim.SGD(two, lr=1.0)

    close(ours(step, grads), theirs(make, grads))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_parameters_of_16_bits_keep_moments_in_f32(dtype: str) -> None:
    m = Model()
    w = m.state("w", (4,), dtype)
    train.adamw([w], [m.input("g", (4,), dtype)], 0.1)
    states = {s.name: s.dtype.value for s in m.graph().states}
    assert states == {"w": dtype, "w.m": "f32", "w.v": "f32", "adam.steps": "i64"}


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_clipping(most: float) -> None:
    grads = drawn(1)
    m = Model()
    slopes = [m.input(name, shape, "f64") for name, shape in SHAPES.items()]
    for kind, out in (
        ("norm", train.clip_norm(slopes, most)),
        ("value", train.clip_value(slopes, most)),
    ):
        for name, t in zip(SHAPES, out, strict=True):
            m.output(f"{kind}.{name}", t)
    m.output("size", train.norm(slopes))
    found = evaluate(m.graph(), "main", grads, m.read_weight)[0]
    for kind, clip in (
        ("norm", torch.nn.utils.clip_grad_norm_),
        ("value", torch.nn.utils.clip_grad_value_),
    ):
        params = {name: torch.zeros(shape).double() for name, shape in SHAPES.items()}
        for name, p in params.items():
            p.requires_grad, p.grad = True, torch.tensor(grads[name])
        size = clip(params.values(), most)
        if kind == "norm":
            assert abs(found["size"] - float(size)) < 1e-12
        for name, p in params.items():
            assert np.abs(found[f"{kind}.{name}"] - p.grad.numpy()).max() < 1e-12


def test_gradients_of_several_batches() -> None:
    """Three batches, a step, and one more: the sums begin again."""
    m, seen = Model(), dict[str, Array]()
    params = [m.state(name, shape, "f64") for name, shape in SHAPES.items()]
    sums = train.Sums(params)
    m.entry("batch")
    sums.add([m.input(f"{name}.grad", shape, "f64") for name, shape in SHAPES.items()])
    m.entry("step")
    train.sgd(params, sums.take(), 1.0)
    graph = m.graph()
    states: dict[str, Array] = {n: np.zeros(s) for n, s in SHAPES.items()}
    wanted = {n: np.zeros(s) for n, s in SHAPES.items()}
    for group in ((1, 2, 3), (4,)):
        for seed in group:
            feed = {f"{name}.grad": g for name, g in drawn(seed).items()}
            states = evaluate(graph, "batch", feed, m.read_weight, states)[1]
        states = evaluate(graph, "step", {}, m.read_weight, states)[1]
        for name in SHAPES:
            wanted[name] = wanted[name] - np.mean([drawn(s)[name] for s in group], 0)
            seen[name] = states[name]
            assert np.abs(seen[name] - wanted[name]).max() < 1e-7  # the count is f32


def test_a_loss_that_is_scaled() -> None:
    """Torch's GradScaler says when a step counts and which scale follows."""
    m = Model()
    w, x = m.state("w", (4,)), m.input("x", (4,))
    loss = (w * x).sum()
    grads, finite = train.scaled_gradients(loss, [w], first=2.0**63, patience=2)
    train.sgd([w], grads, 0.5, when=finite)
    m.output("finite", finite)
    m.output("loss", loss)
    graph = m.graph()
    states: dict[str, Array] = {"w": np.ones(4, "f4")}
    scale, good, weight = 2.0**63, 0, np.ones(4, "f4")
    for value in (8.0, 4.0, 1.0, 1.0, 0.5, 2.0, 0.25, np.nan, 1.0, 1.0, 1.0, 1.0):
        x_now = np.array([1.0, value * 2.0**62, 0.5, 0.0], "f4")
        with np.errstate(all="ignore"):
            slopes = np.float32(scale) * x_now
        ok = bool(np.isfinite(slopes).all())
        # the oracle computes f32 in f64, where nothing overflows: it is asked in f32
        outputs, states = evaluate(graph, "main", {"x": x_now}, m.read_weight, states, True)
        assert bool(outputs["finite"]) == ok
        weight = weight - 0.5 * x_now if ok else weight
        good, scale = (good + 1, scale) if ok else (0, scale / 2)
        if good == 2:
            good, scale = 0, min(scale * 2, 2.0**64)  # far below inf
        assert np.array_equal(states["w"], weight) and states["scale"] == np.log2(scale) - 63
        assert states["scale.good"] == good


# ---- losses


def logits(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape) * 3


def classes(n: int, *shape: int) -> Array:
    return np.random.default_rng(5).integers(0, n, shape)


F: Any = torch.nn.functional
X, T = logits(1, 6, 5), logits(2, 6, 5)
SHARES = np.abs(T) / np.abs(T).sum(-1, keepdims=True)
IDS = classes(5, 6)
LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Any], Array, Array]] = {
    "cross entropy": (lambda x, t: x.cross_entropy(t), F.cross_entropy, X, IDS),
    "smoothed": (
        lambda x, t: x.cross_entropy(t, smoothing=0.1),
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        X,
        IDS,
    ),
    "of shares": (lambda x, t: x.cross_entropy(t), F.cross_entropy, X, SHARES),
    "of shares, smoothed": (
        lambda x, t: x.cross_entropy(t, smoothing=0.2),
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.2),
        X,
        SHARES,
    ),
    "without a class": (
        lambda x, t: x.cross_entropy(t, ignore=2),
        lambda x, t: F.cross_entropy(x, t, ignore_index=2),
        X,
        IDS,
    ),
    "along another axis": (
        lambda x, t: x.cross_entropy(t, 1),
        F.cross_entropy,
        logits(3, 4, 5, 3),
        classes(5, 4, 3),
    ),
    "of large logits": (lambda x, t: x.cross_entropy(t), F.cross_entropy, X * 1e4, IDS),
    "mean square": (lambda x, t: x.mse(t), F.mse_loss, X, T),
    "binary": (
        lambda x, t: x.binary_cross_entropy(t),
        F.binary_cross_entropy_with_logits,
        X,
        SHARES,
    ),
    "binary, weighted": (
        lambda x, t: x.binary_cross_entropy(t, 3.0),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.tensor(3.0)),
        X * 100,
        SHARES,
    ),
    "divergence": (
        lambda x, t: x.kl_divergence(t),
        lambda x, t: F.kl_div(
            x.log_softmax(-1), t.log_softmax(-1), log_target=True, reduction="batchmean"
        ),
        X,
        T,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name: str) -> None:
    ours_, theirs_, x, t = LOSSES[name]
    m = Model()
    z = m.input("x", x.shape, "f64")
    target = m.input("t", t.shape, "f64" if t.dtype.kind == "f" else "i64")
    loss = ours_(z, target)
    m.output("loss", loss)
    m.output("slope", gradients(loss, [z])[0])
    found = evaluate(m.graph(), "main", {"x": x, "t": t}, m.read_weight)[0]
    z_ = torch.tensor(x, requires_grad=True)
    wanted = theirs_(z_, torch.tensor(t))
    wanted.backward()
    size = max(1.0, abs(float(wanted.detach())))
    assert abs(found["loss"] - float(wanted.detach())) < 1e-12 * size
    assert np.abs(found["slope"] - z_.grad.numpy()).max() < 1e-12


# ---- what is refused


def refused(call: Callable[[Model, Tensor, Tensor], object]) -> str:
    m = Model()
    w, g = m.state("w", (4,)), m.input("g", (4,))
    with pytest.raises(LumcError) as caught:
        call(m, w, g)
    return f"{caught.value.code} {caught.value.what}"


def test_refusals() -> None:
    assert "E0126 a parameter is a whole state" in refused(lambda m, w, g: train.sgd([g], [g], 1.0))
    assert "E0126 a parameter" in refused(lambda m, w, g: train.sgd([w[1:]], [g[1:]], 1.0))
    assert "E0126 an optimizer without" in refused(lambda m, w, g: train.adam([], [], 1.0))
    assert "E0120 1 parameters and 2" in refused(lambda m, w, g: train.adamw([w], [g, g], 1.0))
    assert "E0120 the gradient of 'w'" in refused(lambda m, w, g: train.lion([w], [g[:2]], 1.0))
    assert "E0120 lr has 2" in refused(lambda m, w, g: train.sgd([w], [g], [1.0, 2.0]))
    assert "E0120 the target of" in refused(lambda m, w, g: g.mse(w[:2]))
    assert "E0120 ignore goes" in refused(lambda m, w, g: g.cross_entropy(w, ignore=1))
    assert "E0126 sums of no" in refused(lambda m, w, g: train.Sums([]))
    assert "E0120 1 parameters and 2" in refused(lambda m, w, g: train.Sums([w]).add([g, g]))
