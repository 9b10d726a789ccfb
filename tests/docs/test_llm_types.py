"""The real model with weights of other types, and with activations of 8 bits: how large its bundle
is, and how near its logits are to those of transformers on the same weights."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from docs.test_llm import ROOT, WORDS, encoding, surprise
from lumc.generate.language import Kept
from lumc.runtime.choose import open_bundle
from unit.frontend.models.test_gguf import network_of, real

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]

TYPES = ("f16", "q8_0", "q4_0")


def requantised(kind: str, to: Path) -> None:
    """The model in a file of another type, by the package of ggml."""
    gguf = pytest.importorskip("gguf")
    source = gguf.GGUFReader(real())
    out = gguf.GGUFWriter(to, source.fields["general.architecture"].contents())
    for name, f in source.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        if f.types[0] == gguf.GGUFValueType.ARRAY:
            out.add_array(name, f.contents())
        else:
            out.add_key_value(name, f.contents(), f.types[0])
    wanted = gguf.GGMLQuantizationType[kind.upper()]
    for t in source.tensors:
        values = gguf.dequantize(t.data, t.tensor_type)
        if len(t.shape) == 1:
            out.add_tensor(t.name, values.astype(np.float32))
        else:
            out.add_tensor(t.name, gguf.quantize(values, wanted), raw_dtype=wanted)
    for write in (
        out.write_header_to_file,
        out.write_kv_data_to_file,
        out.write_tensors_to_file,
        out.close,
    ):
        write()


@cache
def compiled(folder: Path, file: Path, how: str = "", target: str = "cpu:native") -> Path:
    """A bundle of a file."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for line in (
        f"import {file} --context 1024 {how} -o m.lg",
        f"compile m.lg --estimate --target {target} --allow-path {file.parent} -o m.lb",
    ):
        call = [sys.executable, "-m", "lumc", *shlex.split(line)]
        subprocess.run(call, cwd=folder, env=env, check=True)
    return folder / "m.lb"


def size(bundle: Path) -> int:
    return sum(f.stat().st_size for f in bundle.rglob("*"))


def logits(bundle: Path, ids: list[int]) -> np.ndarray:
    """f64[ids, words] of a text, token by token."""
    with open_bundle(str(bundle), say=print) as opened:
        model = Kept(opened)
        return np.stack([model.step([t], i) for i, t in enumerate(ids)]).astype(np.float64)


@cache
def wanted(file: Path, ids: tuple[int, ...]) -> np.ndarray:
    """The same by transformers, of what the package of ggml makes of the weights."""
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        found: np.ndarray = network_of(file)(torch.tensor([ids])).logits[0].double().numpy()
        return found


def text(count: int = WORDS) -> list[int]:
    """Tokens of a text in the repository."""
    return encoding(str(real())).encode((ROOT / "CONTRIBUTING.md").read_text())[:count]


@pytest.mark.parametrize("kind", TYPES)
def test_weights_of_other_types(kind: str, tmp_path: Path) -> None:
    requantised(kind, file := tmp_path / f"{kind}.gguf")
    bundle, ids = compiled(tmp_path, file), text(64)
    assert size(bundle) <= 1.1 * file.stat().st_size + 3e6
    want = wanted(file, tuple(ids))
    assert np.linalg.norm(logits(bundle, ids) - want) <= 1e-5 * np.linalg.norm(want)


# ---- activations of 8 bits


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vnni = "avx512_vnni" in Path("/proc/cpuinfo").read_text()
    target = f"cpu:native{'+vnni' * vnni}"
    return compiled(tmp_path_factory.mktemp("i8"), real(), "--activations i8", target)


def test_perplexity_is_near_that_of_transformers(integers: Path) -> None:
    ids = text()
    got, want = (
        surprise(x[:-1], ids[1:]) for x in (logits(integers, ids), wanted(real(), tuple(ids)))
    )
    assert got == pytest.approx(want, abs=0.01)  # of logarithms: one in a hundred


def test_the_error_is_at_most_that_of_llama_cpp(integers: Path) -> None:
    """Which rounds what its products read to bytes, too."""
    llama_cpp = pytest.importorskip("llama_cpp")
    ids = text(256)
    want = wanted(real(), tuple(ids))
    theirs = llama_cpp.Llama(str(real()), n_ctx=1024, n_threads=1, logits_all=True, verbose=False)
    theirs.eval(ids)
    errors = [
        np.linalg.norm(x - want, axis=-1) / np.linalg.norm(want, axis=-1)
        for x in (logits(integers, ids), np.array(theirs.scores[: len(ids)], np.float64))
    ]
    own, other = map(np.median, errors)
    assert own <= other


RESIDENT = """
import sys
import numpy  # has 20 MB of its own, whatever the model
import lumc

def resident() -> int:
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(n.split()[1] for n in lines if n.startswith("VmRSS")))

before = resident()
with lumc.load(sys.argv[1]) as model:
    logits = model.run({"input_ids": range(1, 65)}, "prefill", dims={"p": 0})["logits"]
    model.run({"input_ids": [logits.argmax()]}, "decode", dims={"p": 64})
    states = sum(a.nbytes for a in model.state().values())
    print(resident() - before, states)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="says what is resident")
def test_weights_lie_once_where_products_are_of_integers_too(integers: Path) -> None:
    """Lookups read the packed form of the tied table, and both entries one copy of everything."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    nbytes = real().stat().st_size
    assert size(integers) <= 1.1 * nbytes + 3e6
    call = [sys.executable, "-c", RESIDENT, str(integers)]
    said = subprocess.run(call, env=env, check=True, capture_output=True, text=True).stdout
    taken, states = map(int, said.split())
    assert taken <= 1.25 * (nbytes + states)
