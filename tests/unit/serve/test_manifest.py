"""What other systems are told: read back by what reads them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import Lumc
from lumc.serve.manifest import manifest
from serving import SMALL, expected


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "small.lg").write_text(SMALL)
    Lumc(tmp_path)("compile", tmp_path / "small.lg", "--estimate", "-o", tmp_path / "small.lb")
    return tmp_path / "small.lb"


def made(kind: str, bundle: Path) -> str:
    return manifest(kind, {"a_b": str(bundle)}, ["--workers", "2"], 3, 2, 64, 60.0)


def test_a_service_of_kserve(tmp_path: Path) -> None:
    (tmp_path / "small.lb").write_bytes(b"0" * 1000)
    said = json.loads(made("kserve", tmp_path / "small.lb"))
    assert said["apiVersion"] == "serving.kserve.io/v1beta1" and said["metadata"]["name"] == "a-b"
    predictor = said["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert container["args"][0] == "a_b=/models/small.lb"
    assert container["args"][-2:] == ["--workers", "2"]
    assert container["resources"]["requests"]["cpu"] == "6"
    assert predictor["terminationGracePeriodSeconds"] > 60
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(made("kserve", tmp_path / "small.lb")) == said


def test_a_container(tmp_path: Path) -> None:
    text = made("container", tmp_path / "small.lb")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = {line.split()[0] for line in lines}
    assert words == {
        "FROM",
        "RUN",
        "COPY",
        "USER",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    }
    (command,) = (json.loads(line[4:]) for line in lines if line.startswith("CMD "))
    assert command[:3] == ["a_b=/models/small.lb", "--host", "0.0.0.0"]
    (copied,) = (json.loads(line[5:]) for line in lines if line.startswith("COPY "))
    assert copied == ["small.lb", "/models/small.lb"]
    assert re.search(r"lumc\[serve,llm\]==\d", text)


class Handle:
    """What Ray makes of a bound class: calls of it are awaited."""

    def __init__(self, made: Any) -> None:
        self.made = made

    async def remote(self, *arguments: Any) -> Any:
        return self.made(*arguments)


def deployment(**options: Any) -> Callable[[type], Any]:
    def wrap(kind: type) -> Any:
        return SimpleNamespace(bind=lambda *a: Handle(kind(*a)), options=options)

    return wrap


def test_an_application_of_ray(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Ray that runs classes where they stand."""
    pytest.importorskip("starlette")
    ray, serve = ModuleType("ray"), ModuleType("ray.serve")
    serve.deployment = deployment  # type: ignore[attr-defined]
    ray.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    text = made("ray", bundle)
    (bundle.parent / "serve_models.py").write_text(text)
    monkeypatch.syspath_prepend(bundle.parent)
    web = import_module("serve_models").app.made
    x = np.arange(8, dtype=np.float32).reshape(2, 4)

    class Request:
        async def json(self) -> Any:
            return {"model": "a_b", "inputs": {"x": x.tolist()}}

    import asyncio

    out = asyncio.run(web(Request()))
    assert np.allclose(out["y"], expected(x))


def test_the_command_prints_it(bundle: Path) -> None:
    said = Lumc(bundle)("serve", bundle, "--manifest", "kserve", "--queue", 9)
    (container,) = json.loads(said)["spec"]["predictor"]["containers"]
    at = container["args"].index("--queue")
    assert container["args"][at + 1] == "9"
