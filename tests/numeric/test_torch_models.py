"""Architectures of transformers through archives of torch.export and through torch.compile, against
PyTorch itself. Two of them always, all by `make test-deep`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import lumc.torch  # noqa: E402, F401
from lumc.frontend.aten.pt2 import import_pt2  # noqa: E402
from lumc.oracle.graph import evaluate  # noqa: E402
from torch_models import MODELS, made, tensors  # noqa: E402

ALWAYS = ("bert", "llama")
NAMES = [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.deep) for n in MODELS]


def near(got: Any, want: Any) -> None:
    assert want.abs().sum() > 0, "all zero: it shows nothing"
    assert got.shape == want.shape
    assert (got - want).norm() <= 5e-6 * want.norm()


@pytest.mark.parametrize("name", NAMES)
def test_through_an_archive(name: str, tmp_path: Path) -> None:
    module, args = made(name)
    with torch.no_grad():
        program = torch.export.export(module, args, strict=False)
        wanted = tensors(program.module()(*args))
    torch.export.save(program, tmp_path / "m.pt2")
    model = import_pt2(tmp_path / "m.pt2")
    graph = model.graph()
    feed = {n.name: a.numpy() for n, a in zip(graph.entries[0].inputs, args, strict=True)}
    got = evaluate(graph, "main", feed, model.read_weight)[0]
    for mine, want in zip(got.values(), wanted, strict=True):
        near(torch.from_numpy(mine).to(want.dtype), want)


@pytest.mark.deep
@pytest.mark.parametrize("name", MODELS)
def test_through_torch_compile(name: str, caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    module, args = made(name)
    with torch.no_grad():
        wanted = tensors(module(*args))
        with caplog.at_level(logging.WARNING, "lumc"):
            got = tensors(torch.compile(module, backend="lumc")(*args))
    assert not [r for r in caplog.records if r.name == "lumc"]
    for mine, want in zip(got, wanted, strict=True):
        near(mine, want)
