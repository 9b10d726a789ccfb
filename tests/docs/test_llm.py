"""docs/llm.md on the real model: its commands, and that what follows a prompt is what transformers
makes of the same weights."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels import has_flag
from lumc.generate.language import Kept
from lumc.generate.sampling import Sampling
from lumc.generate.session import Session
from lumc.runtime.choose import open_bundle
from lumc.tokenizer.encoding import Encoding
from lumc.tokenizer.encoding import encoding as encoding_of
from lumc.tokenizer.sources import of_source
from unit.frontend.models.test_gguf import network_of, real

ROOT = Path(__file__).parents[2]
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time there was a small robot who",
    "Water boils at 100 degrees because",
    "List three reasons why the sky is blue:\n1.",
]
COUNT, WORDS = 256, 700

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]


def encoding(path: str) -> Encoding:
    return encoding_of(of_source(path), path)


def sections() -> list[tuple[list[str], list[str]]]:
    """The commands of the page and its Python, section by section."""
    parts = (ROOT / "docs/llm.md").read_text().split("\n## ")
    blocks = [re.findall(r"^```(\w*)\n(.*?)^```", part, re.M | re.S) for part in parts]
    return [
        ([line for kind, text in found if not kind for line in text.splitlines()],
         [text for kind, text in found if kind == "python"])
        for found in blocks
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands have made a bundle; with what they print in ``said``."""
    here = tmp_path_factory.mktemp("llm")
    shutil.copy(real(), here)
    pytest.importorskip("tokenizers")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = ""
    for commands, scripts in sections():
        for line in commands:
            if "--peer" in line:  # of packages that a user has
                continue
            call = [sys.executable, "-m", *shlex.split(line)]
            done = subprocess.run(call, cwd=here, env=env, capture_output=True)
            assert done.returncode == 0, f"{line}: {done.stderr.decode()}"
            said += f"$ {line}\n{done.stdout.decode()}"
        for text in scripts:
            script = f"import lumc\nids = [1, 9690, 198, 2683]\n{text}"
            subprocess.run([sys.executable, "-c", script], cwd=here, env=env, check=True)
    (here / "said").write_text(said)
    return here


def test_the_commands_of_the_page(folder: Path) -> None:
    said = (folder / "said").read_text()
    assert re.search(r"generate smol.lb .*\n.*compiler", said)
    assert re.search(r"^\| lumc .* \| 2 \| tg32@512 \| [\d.]+ ", said, re.M)
    bundle = sum(f.stat().st_size for f in (folder / "smol.lb").rglob("*") if f.is_file())
    assert bundle <= 1.1 * next(folder.glob("*.gguf")).stat().st_size + 3e6


@pytest.fixture(scope="module", params=["smol.lb", "digits.lb"])
def bundle_of(folder: Path, request: pytest.FixtureRequest) -> str:
    """That of the page, and one that multiplies in digits."""
    made = folder / request.param
    if not made.exists():
        if not has_flag("avx512_vnni"):
            pytest.skip("no avx512_vnni")
        command = f"compile smol.lg --estimate --target cpu:native+vnni -o {made.name}"
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        call = [sys.executable, "-m", "lumc", *command.split()]
        subprocess.run(call, cwd=folder, env=env, check=True)
    return str(made)


def test_the_most_probable_tokens_are_those_of_transformers(bundle_of: str) -> None:
    torch, path = pytest.importorskip("torch"), real()
    words, network = encoding(str(path)), network_of(path)
    with open_bundle(bundle_of, say=print) as bundle, torch.inference_mode():
        for prompt in PROMPTS:
            ids = words.encode(prompt)
            given = torch.tensor([ids])
            want = network.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=COUNT,
                do_sample=False, eos_token_id=None,
            )[0].tolist()  # fmt: skip
            got = Session(Kept(bundle)).tokens(ids, Sampling(temperature=0), COUNT)
            assert ids + list(got) == want, prompt


def test_perplexity_is_that_of_transformers(bundle_of: str) -> None:
    """Of a text in the repository, token by token."""
    torch, path = pytest.importorskip("torch"), real()
    ids = encoding(str(path)).encode((ROOT / "CONTRIBUTING.md").read_text())[:WORDS]
    with open_bundle(bundle_of, say=print) as bundle, torch.inference_mode():
        want = network_of(path)(torch.tensor([ids])).logits[0].double().numpy()[:-1]
        model = Kept(bundle)
        got = np.stack([model.step([t], i) for i, t in enumerate(ids[:-1])]).astype(np.float64)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    assert surprise(got, ids[1:]) == pytest.approx(surprise(want, ids[1:]), abs=1e-4)


def test_activations_of_8_bits_err_no_more_than_those_of_llama_cpp(folder: Path) -> None:
    torch, path = pytest.importorskip("torch"), real()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    target = "cpu:native+vnni" if has_flag("avx512_vnni") else "cpu:native"
    for command in (
        f"import {path} --context 2048 --activations i8 -o bytes.lg --copy-weights",
        f"compile bytes.lg --estimate --target {target} -o bytes.lb",
    ):
        call = [sys.executable, "-m", "lumc", *command.split()]
        subprocess.run(call, cwd=folder, env=env, check=True)
    ids = encoding(str(path)).encode((ROOT / "CONTRIBUTING.md").read_text())[:WORDS]
    with open_bundle(str(folder / "bytes.lb"), say=print) as bundle, torch.inference_mode():
        want = network_of(path)(torch.tensor([ids])).logits[0].double().numpy()[:-1]
        model = Kept(bundle)
        got = np.stack([model.step([t], i) for i, t in enumerate(ids[:-1])]).astype(np.float64)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= _error_of_llama_cpp(path, ids, want)
    assert surprise(got, ids[1:]) == pytest.approx(surprise(want, ids[1:]), abs=1e-2)


def _error_of_llama_cpp(path: Path, ids: list[int], want: np.ndarray) -> float:
    """Relative L2 of its logits; where it isn't installed, what docs/precision.md says."""
    try:
        import llama_cpp
    except ImportError:
        return 1.71e-2
    model = llama_cpp.Llama(str(path), n_ctx=1024, logits_all=True, n_threads=1, verbose=False)
    model.eval(ids)
    got = np.array(model.scores[: len(ids) - 1], np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def surprise(logits: np.ndarray, ids: list[int]) -> float:
    """The logarithm of the perplexity."""
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = shifted[np.arange(len(ids)), ids]
    return float((np.log(np.exp(shifted).sum(-1)) - chosen).mean())
