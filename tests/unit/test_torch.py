"""torch.compile with lumc: results are those of PyTorch; what cannot be compiled runs there, and
says so."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lumc  # noqa: E402
import lumc.torch  # noqa: E402
from lumc.errors import Exit  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are compiled."""
    models = list[Any]()
    compile = lumc.torch.lumc.compile

    def noted(model: Any, *rest: Any, **options: Any) -> Any:
        models.append(model)
        return compile(model, *rest, **options)

    monkeypatch.setattr(lumc.torch.lumc, "compile", noted)
    return models


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of lumc."""
    own = [r for r in caplog.records if r.name == "lumc" and r.levelno >= logging.WARNING]
    return [r.getMessage() for r in own]


def near(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def tensors(result: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(result))


def network() -> Any:
    parts = [nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)]
    return nn.Sequential(*parts).eval()


def test_a_module_is_compiled_once_for_a_shape(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    module = network()
    fast = torch.compile(module, backend="lumc")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 6)
            near(fast(x), module(x))
        assert len(made) == 1
        for n in (2, 7, 4, 1):
            near(fast(torch.ones(n, 6)), module(torch.ones(n, 6)))
        before = len(made)
        for n in (7, 4, 2):
            near(fast(torch.ones(n, 6)), module(torch.ones(n, 6)))
    assert len(made) == before and not told(caplog)


def test_parameters_are_constants_until_they_change(made: list[Any]) -> None:
    module, x = network(), torch.randn(4, 6)
    fast = torch.compile(module, backend="lumc")
    with torch.no_grad():
        near(fast(x), module(x))
        graph = made[0].graph()
        assert len(graph.weights) == 4 and len(graph.entries[0].inputs) == 1
        module[0].weight.mul_(2.0)
        near(fast(x), module(x))
        module.load_state_dict(network().state_dict())
        near(fast(x), module(x))
    assert len(made) == 3


def test_inference_mode(made: list[Any]) -> None:
    module = network()
    fast = torch.compile(module, backend="lumc")
    with torch.inference_mode():
        for _ in range(2):
            x = torch.randn(4, 6)
            near(fast(x), module(x))
        module[0].weight.data = torch.randn(8, 6)
        near(fast(x), module(x))
    assert len(made) == 2


def test_what_cannot_be_compiled_runs_in_pytorch_and_says_so(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def odd(x: Any) -> Any:
        return torch.fft.rfft(x).abs() + x.sum()

    x = torch.randn(8)
    with caplog.at_level(logging.WARNING, "lumc"):
        near(torch.compile(odd, backend="lumc")(x), odd(x))
    (said,) = told(caplog)
    assert "runs in PyTorch" in said and "aten._fft_r2c (1x)" in said and "test_torch.py:" in said
    assert not made


def test_the_parts_around_a_break_are_compiled(made: list[Any]) -> None:
    def broken(x: Any) -> Any:
        y = x.sin() * 2
        if y.sum() > 0:  # Dynamo cannot trace what depends on values
            return y.cumsum(0)
        return y - 1

    fast = torch.compile(broken, backend="lumc")
    for x in (torch.arange(1.0, 4.0), -torch.arange(1.0, 4.0)):
        near(fast(x), broken(x))
    assert len(made) >= 3


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_where_dynamo_is_told_to_trace_them(
    kind: Any, made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Both directions, two layers; an LSTM comes as layers of oneDNN, a GRU as its steps."""
    module, x = kind(5, 6, 2, batch_first=True, bidirectional=True).eval(), torch.randn(2, 3, 5)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        got = torch.compile(module, backend="lumc", fullgraph=True)(x)
        for mine, want in zip(tensors(got), tensors(module(x)), strict=True):
            near(mine, want)
    assert len(made) == 1 and not told(caplog)


def test_a_dynamic_size_has_a_bundle_for_each_of_its_values(made: list[Any]) -> None:
    def sized(x: Any) -> Any:
        return (x @ x.T).softmax(-1) + x.shape[0]

    fast = torch.compile(sized, backend="lumc", dynamic=True)
    for n in (3, 5, 3, 9):
        x = torch.randn(n, 4)
        near(fast(x), sized(x))
    assert len(made) == 3


def test_training_gives_the_same_steps(made: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Forward and backward are graphs of the same operators; parameters are inputs there."""
    module = network().train()
    twin = copy.deepcopy(module)
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    losses = list[list[float]]()
    for net, run in ((module, torch.compile(module, backend="lumc")), (twin, twin)):
        optimizer, found = torch.optim.SGD(net.parameters(), 0.1), list[float]()
        for _ in range(3):
            loss = nn.functional.cross_entropy(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][0] > losses[0][2] and len(made) == 2 and not told(caplog)
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        near(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_dtypes(dtype: Any, made: list[Any]) -> None:
    def twice(x: Any) -> Any:
        return x * 2 + x.flip(0)

    x = torch.arange(6).to(dtype)
    got = torch.compile(twice, backend="lumc")(x)
    assert got.dtype is dtype and torch.equal(got, twice(x)) and made


def test_options_are_those_of_compile(made: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3)
    fast = torch.compile(torch.sin, backend="lumc", options={"target": "cpu:generic", "threads": 1})
    near(fast(x), x.sin())
    assert len(made) == 1
    torch._dynamo.reset()
    with caplog.at_level(logging.WARNING, "lumc"):
        bad = torch.compile(torch.sin, backend="lumc", options={"target": "cpu:nosuch"})
        near(bad(x), x.sin())
    assert "E0401" in told(caplog)[0]


def test_a_module_as_a_bundle(tmp_path: Path) -> None:
    module, x = network(), torch.randn(4, 6)
    with lumc.torch.compile(module, (x,), estimate=True) as bundle:
        assert [t.name for t in bundle.inputs] == ["input"]
        near(torch.from_numpy(bundle(x.numpy())), module(x).detach())
    path = lumc.torch.compile(module, (x,), tmp_path / "m.lb", estimate=True)
    with lumc.load(path) as bundle:
        near(torch.from_numpy(bundle(x.numpy())), module(x).detach())


def test_a_bundle_of_all_lengths() -> None:
    module = network()
    shapes = {"input": {0: torch.export.Dim("rows", min=1, max=16)}}
    with lumc.torch.compile(
        module, (torch.randn(4, 6),), dynamic_shapes=shapes, estimate=True
    ) as bundle:
        for n in (1, 4, 16):
            x = torch.randn(n, 6)
            near(torch.from_numpy(bundle(x.numpy())), module(x).detach())


class Alias(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x * 2
        y[0] = 0
        return y


def test_what_only_simpler_operators_say_is_imported() -> None:
    x = torch.randn(3, 4)
    with lumc.torch.compile(Alias(), (x,), estimate=True) as bundle:
        near(torch.from_numpy(bundle(x.numpy())), Alias()(x))


def test_an_exported_program_is_taken_too() -> None:
    module, x = network(), torch.randn(4, 6)
    program = torch.export.export(module, (x,))
    model = lumc.torch.imported(program)
    assert isinstance(model, lumc.Model) and list(dict(model.builder.outputs)) == ["output"]


def test_unsupported_modules_are_errors() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x).abs()

    with pytest.raises(lumc.Error) as e:
        lumc.torch.compile(Odd(), (torch.randn(8),))
    assert (e.value.code, e.value.exit) == ("E0352", Exit.UNSUPPORTED)


def test_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import lumc.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "E0354 lumc.torch needs the torch package" in done.stderr
    assert "pip install 'lumc[torch]'" in done.stderr
