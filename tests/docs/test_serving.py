"""docs/serving.md: its commands and scripts, with what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Lumc
from serving import PACKAGES, Server, served

for package in PACKAGES:
    pytest.importorskip(package)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()
Blocks = list[tuple[str, str]]


def blocks(title: str) -> Blocks:
    """The blocks under a title: their language and text."""
    part = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w*)\n(.*?)^```", part, re.M | re.S)


BLOCKS, TEXTS, ELSEWHERE = map(blocks, ("Ten minutes", "Texts", "Elsewhere"))


def lines(start: str, there: Blocks = BLOCKS) -> list[str]:
    """The commands that begin so."""
    every = [line for kind, text in there if not kind for line in text.splitlines()]
    return [line for line in every if line.startswith(start)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("page")
    (graph,) = (text for kind, text in BLOCKS if kind == "lg")
    (folder / "row.lg").write_text(graph)
    (command,) = (line.split()[1:] for line in lines("lumc compile"))
    Lumc(folder)(*(folder / a if a.startswith("row.") else a for a in command))
    (command,) = (line.split() for line in lines("lumc serve"))
    assert command == ["lumc", "serve", "row.lb", "--http", "8080", "--grpc", "8081"]
    with served(folder, folder / "row.lb") as found:
        yield found


def here(text: str, server: Server) -> str:
    """With the ports of this server."""
    for port, own in (("8080", server.http), ("8081", server.grpc)):
        text = text.replace(f"localhost:{port}", f"127.0.0.1:{own}")
    return text


def test_curl(server: Server) -> None:
    said = [
        subprocess.run(["bash", "-c", here(line, server)], capture_output=True, text=True).stdout
        for line in lines("curl")
    ]
    assert said[0] == '{"ready":true}'
    assert '"inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}]' in said[1]
    assert '"shape":[2,3],"data":[20.0,40.0,60.0,44.0,96.0,148.0]' in said[2]
    assert 'lumc_requests_total{code="200",model="row",protocol="http"}' in said[3]


def test_the_clients_of_triton(server: Server) -> None:
    pytest.importorskip("tritonclient.http")
    (text,) = (text for kind, text in BLOCKS if kind == "python")
    both = {text, text.replace("tritonclient.http", "tritonclient.grpc").replace("8080", "8081")}
    for script in (here(text, server) for text in sorted(both)):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "".join(run.stdout.split()) == "[[6.14.22.][6.14.22.]]", run.stderr


def test_manifests(server: Server) -> None:
    folder = server.log.parent
    for line in lines("lumc serve", ELSEWHERE):
        said = Lumc(folder)(*(folder / a if a == "row.lb" else a for a in line.split()[1:]))
        assert "row.lb" in said


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small models in the place of large ones."""
    for package in ("tokenizers", "jinja2"):
        pytest.importorskip(package)
    from text_models import CONTEXT, encoder_folder, writer_file

    monkeypatch.chdir(tmp_path)
    encoder_folder(tmp_path / "minilm")
    writer_file(tmp_path / "model.gguf")
    for line in lines("lumc ", TEXTS)[:-1]:
        line = line.replace("1..128", "1..9").replace("2048", str(CONTEXT))
        Lumc(tmp_path)(*line.split()[1:])
    (command,) = (line.split()[2:-2] for line in lines("lumc serve", TEXTS))
    with served(tmp_path, *command, grpc=False) as server:
        said = [
            subprocess.run(
                ["bash", "-c", here(line, server)], capture_output=True, text=True
            ).stdout
            for line in lines("curl", TEXTS)
        ]
        assert '"usage":{"prompt_tokens":7,"total_tokens":7}' in said[0]
        assert '"object":"text_completion"' in said[1] and '"finish_reason":"' in said[1]
        assert said[2].startswith("data: {") and said[2].endswith("data: [DONE]\n\n")
        pytest.importorskip("openai")
        (text,) = (text for kind, text in TEXTS if kind == "python")
        script = [sys.executable, "-c", here(text, server)]
        assert subprocess.run(script, capture_output=True, text=True).stdout == "2\n"
