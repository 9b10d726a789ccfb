"""What others need to run a server: a Kubernetes object, a container, an application of Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lumc import __version__

KINDS = ("kserve", "container", "ray")
HTTP, GRPC = 8080, 8081
PLACE = "/models"  # of bundles in the container

CONTAINER = """\
# podman build -f Containerfile -t {image} .    (in the folder of the bundles; or docker build)
# podman run --rm -p {http}:{http} -p {grpc}:{grpc} {image}
FROM docker.io/library/python:3.13-slim
# What computes is the native runner of the bundles; Python carries requests to it.
RUN pip install --no-cache-dir 'lumc[{extras}]=={version}'
{copies}
USER 65532
ENV XDG_CACHE_HOME=/tmp
EXPOSE {http} {grpc}
STOPSIGNAL SIGTERM
ENTRYPOINT ["lumc", "serve"]
CMD {command}
"""

RAY = '''\
"""serve run {module}:app    (pip install 'ray[serve]' {lumc})"""

from typing import Any

import lumc
import numpy as np
from ray import serve
from starlette.requests import Request

BUNDLES = {bundles}


@serve.deployment(ray_actor_options={{"num_cpus": {threads}}}, max_ongoing_requests={queue})
class Models:
    def __init__(self) -> None:
        self.models = {{name: lumc.load(path, threads={threads}) for name, path in BUNDLES.items()}}

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """A request: {{"model": .., "inputs": {{NAME: numbers}}}}; its outputs by name."""
        model, given = self.models[request["model"]], request["inputs"]
        inputs = {{t.name: np.asarray(given[t.name], t.dtype.numpy) for t in model.inputs}}
        return {{name: array.tolist() for name, array in model.run(inputs).items()}}


@serve.deployment(max_ongoing_requests={queue})
class Web:
    def __init__(self, models: Any) -> None:
        self.models = models

    async def __call__(self, request: Request) -> Any:
        return await self.models.remote(await request.json())


app = Web.bind(Models.bind())
'''


def manifest(
    kind: str,
    paths: Mapping[str, str],
    arguments: Sequence[str],
    threads: int,
    workers: int,
    queue: int,
    seconds: float,
) -> str:
    """A text of a kind, for models by their names. ``arguments`` are those of ``lumc serve``
    besides models and addresses; ``seconds`` what a request may take."""
    if kind == "kserve":
        return kserve(paths, arguments, threads * workers, workers, seconds)
    if kind == "container":
        return container(paths, arguments)
    lumc = f"'lumc=={__version__}'"
    found = {name: str(Path(path).absolute()) for name, path in paths.items()}
    return RAY.format(
        module="serve_models", lumc=lumc, bundles=shown(found), threads=threads, queue=queue
    )


def shown(bundles: Mapping[str, str]) -> str:
    """A dict as Python writes it."""
    rows = [f"    {json.dumps(name)}: {json.dumps(path)},\n" for name, path in bundles.items()]
    return "{\n" + "".join(rows) + "}"


def command(paths: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """What ``lumc serve`` is given where the bundles lie in the container."""
    models = [f"{name}={PLACE}/{Path(path).name}" for name, path in paths.items()]
    ports = ["--host", "0.0.0.0", "--http", str(HTTP), "--grpc", str(GRPC)]
    return [*models, *ports, *arguments]


def container(paths: Mapping[str, str], arguments: Sequence[str]) -> str:
    """A Containerfile, which copies bundles from its own folder."""
    names = dict.fromkeys(Path(path).name for path in paths.values())
    copies = "\n".join(f"COPY {json.dumps([n, f'{PLACE}/{n}'])}" for n in names)
    return CONTAINER.format(
        image=f"lumc-{next(iter(paths))}".lower(),
        http=HTTP,
        grpc=GRPC,
        version=__version__,
        extras="serve,llm",
        copies=copies,
        command=json.dumps(command(paths, arguments)),
    )


def kserve(
    paths: Mapping[str, str], arguments: Sequence[str], cpus: int, workers: int, seconds: float
) -> str:
    """An InferenceService of KServe, as JSON, which is YAML."""
    name = next(iter(paths)).lower().replace("_", "-").replace(".", "-")
    probe = {"httpGet": {"path": "/v2/health/ready", "port": HTTP}, "periodSeconds": 2}
    live = {"httpGet": {"path": "/v2/health/live", "port": HTTP}, "periodSeconds": 10}
    of_bundles = sum(size_of(Path(path)) for path in paths.values())
    memory = f"{(workers * of_bundles + (256 << 20)) * 3 // 2 >> 20}Mi"
    made = {
        "name": "kserve-container",
        "image": f"lumc-{name}",
        "args": command(paths, arguments),
        "ports": [{"name": "http1", "containerPort": HTTP, "protocol": "TCP"}],
        "readinessProbe": probe,
        "livenessProbe": live,
        "resources": {
            "requests": {"cpu": str(cpus), "memory": memory},
            "limits": {"memory": memory},
        },
    }
    grace = int(seconds) + 10
    predictor = {"terminationGracePeriodSeconds": grace, "minReplicas": 1, "containers": [made]}
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, "annotations": {"prometheus.io/path": "/metrics"}},
        "spec": {"predictor": predictor},
    }
    return json.dumps(service, indent=2) + "\n"


def size_of(path: Path) -> int:
    """Bytes of a bundle."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.stat().st_size for f in files if f.is_file())
