"""The samples of training learn: digits that nobody showed them, and letters that follow. Their
losses beside torch's: in f32 two runs part as soon as a ReLU falls on another side of 0 in one of
them, for Adam makes a whole step of the smallest gradient. So losses of many steps are compared of
networks without kinks, and of others the gradients of one step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

import lumc
from learning import LEARN, Array, Batch, convolutional, dense, ours, theirs, transformer
from lumc import Model, gradients

pytest.importorskip("sklearn")
WARM = {"mlp": 50, "cnn": 50, "gpt": 20}  # steps
TORCH = {"mlp": dense, "cnn": convolutional, "gpt": transformer}


@pytest.fixture(scope="module")
def mlp() -> Iterator[lumc.Bundle]:
    with LEARN.network("mlp") as bundle:
        yield bundle


def batches(name: str, steps: int, seed: int) -> list[Batch]:
    if name == "gpt":
        rng = np.random.default_rng(seed)
        return [LEARN.lines(LEARN.letters()[0], rng) for _ in range(steps)]
    return list(LEARN.batches(LEARN.pictures(seed)[0], steps, seed))


def first(name: str, seed: int) -> dict[str, Array]:
    if name == "gpt":
        return dict(LEARN.GPT.begin(seed))
    return dict(LEARN.DIGITS.begin(LEARN.NETWORKS[name][1], seed))


def errors(bundle: lumc.Bundle, name: str, steps: int, seed: int) -> tuple[float, float, float]:
    """The greatest distances of losses: ours and torch's in f32 to float64, and of the two."""
    pytest.importorskip("torch")
    begun, data, warm = first(name, seed), batches(name, steps, seed), WARM[name]
    mine = ours(bundle, begun, data, warm)
    torch = [theirs(TORCH[name], begun, data, warm, t) for t in ("float32", "float64")]
    pairs = ((mine, torch[1]), (torch[0], torch[1]), (mine, torch[0]))
    a, b, c = (float(np.abs(x - y).max()) for x, y in pairs)
    return a, b, c


def test_the_dense_network_reads_digits(mlp: lumc.Bundle) -> None:
    mlp.reset()
    found = LEARN.digits(mlp, 300)
    assert found.score >= 0.98 and np.isfinite(found.losses).all()


def test_the_first_losses_are_those_of_torch(mlp: lumc.Bundle) -> None:
    for seed in (0, 1):
        assert max(errors(mlp, "mlp", 10, seed)) < 1e-6


@pytest.mark.deep
@pytest.mark.parametrize("name", LEARN.NETWORKS)
def test_networks_read_digits_in_every_dtype(name: str) -> None:
    scores = dict[str, float]()
    for dtype in LEARN.DTYPES:
        with LEARN.network(name, dtype) as bundle:
            scores[dtype] = LEARN.digits(bundle).score
    assert scores["f32"] >= 0.98
    assert max(abs(s - scores["f32"]) for s in scores.values()) <= 0.005, scores


@pytest.mark.deep
def test_the_transformer_learns_to_spell_in_every_dtype() -> None:
    scores = dict[str, float]()
    for dtype in LEARN.DTYPES:
        with LEARN.network("gpt", dtype) as bundle:
            found = LEARN.text(bundle, 1000, 40)
        assert np.isfinite(found.losses).all() and len(found.said) == 40 + LEARN.GPT.LENGTH
        scores[dtype] = found.score
    assert scores["f32"] < 2.0  # of every letter alike: 4.3
    assert max(abs(s - scores["f32"]) for s in scores.values()) <= 0.05, scores


@pytest.mark.deep
@pytest.mark.parametrize("name", LEARN.NETWORKS)
def test_gradients_are_as_near_to_float64_as_those_of_torch(name: str) -> None:
    """Of one step: the distances of all elements of a parameter, relative to their size; of several
    batches the median, as in some of them a ReLU falls on another side."""
    torch = pytest.importorskip("torch")
    network, shapes = LEARN.NETWORKS[name]
    begun, m = first(name, 0), Model()
    x, label = (
        m.input("x", (LEARN.DIGITS.BATCH, 64)),
        m.input("label", (LEARN.DIGITS.BATCH,), "i64"),
    )
    params = {key: m.input(key, shape) for key, shape in shapes.items()}
    loss = network(x, params).cross_entropy(label)
    for key, slope in zip(params, gradients(loss, list(params.values())), strict=True):
        m.output(f"{key}.grad", slope)

    def slopes(x: Array, label: Array, dtype: str) -> list[Array]:
        kind = getattr(torch, dtype)
        p = {k: torch.tensor(v, dtype=kind, requires_grad=True) for k, v in begun.items()}
        logits = TORCH[name](torch.tensor(x).to(kind), p)
        torch.nn.functional.cross_entropy(logits, torch.tensor(label)).backward()
        return [v.grad.double().numpy() for v in p.values()]

    found = list[list[tuple[float, float]]]()
    with lumc.compile(m, estimate=True) as bundle:
        for x_, label_ in batches(name, 7, 0):
            out = bundle.run({"x": x_, "label": label_, **begun})
            mine = [out[f"{key}.grad"] for key in params]
            rough, exact = (slopes(x_, label_, t) for t in ("float32", "float64"))
            each = zip(mine, rough, exact, strict=True)
            found.append([(_distance(a, c), _distance(b, c)) for a, b, c in each])
    for key, (a, b) in zip(params, np.median(found, 0), strict=True):
        assert a <= 3 * b or a < 3e-7, f"{key}: {a:.1e}, torch {b:.1e}"


def _distance(got: Array, want: Array) -> float:
    return float(np.sqrt(np.square(got - want).mean() / np.square(want).mean()))


@pytest.mark.deep
def test_losses_of_the_transformer_are_as_near_to_float64_as_those_of_torch() -> None:
    with LEARN.network("gpt") as bundle:
        for seed in range(3):
            mine, torch, _ = errors(bundle, "gpt", 40, seed)
            assert mine <= 2 * torch, seed


@pytest.mark.deep
def test_without_kinks_losses_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same network with tanh: nothing falls on another side, and no run parts."""

    def smooth(x: lumc.Tensor, p: dict[str, lumc.Tensor]) -> lumc.Tensor:
        h = ((x @ p["w0"] + p["b0"]).tanh() @ p["w1"] + p["b1"]).tanh()
        return h @ p["w2"] + p["b2"]

    monkeypatch.setitem(TORCH, "mlp", partial(dense, kink="tanh"))
    made = LEARN.DIGITS.step(smooth, LEARN.DIGITS.MLP)
    with lumc.compile(made, estimate=True) as bundle:
        for seed in range(3):
            assert errors(bundle, "mlp", 300, seed)[2] < 1e-6, seed
