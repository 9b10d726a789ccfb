"""Language models as code: a text in any parts gives what transformers gives for the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lumc.frontend.models.cache import Cache
from lumc.frontend.models.gguf import import_gguf
from lumc.frontend.models.huggingface import import_folder
from lumc.link.toolchain import KERNEL_FLAGS
from stepping import Stepping

PARTS = ([6, 1, 1, 3, 1, 2], [1, 1, 5, 6, 1])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_small_model_in_parts(tmp_path: Path, family: str) -> None:
    from unit.frontend.models.test_cache import TEXT, network

    want = network(tmp_path / "hf", family)
    model = import_folder(tmp_path / "hf", Cache(24, 6, every=True))
    code = Stepping(model, tmp_path / "code")
    for sizes in PARTS:
        code.forget()
        p = 0
        for s in sizes:
            got = code.step(TEXT[p : p + s], p).reshape(s, -1)
            right = want[p : p + s]
            assert np.linalg.norm(got - right) <= 1e-5 * np.linalg.norm(right), (sizes, p)
            p += s


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_smollm2_in_parts(tmp_path: Path) -> None:
    """The real model: logits of a text in any parts, and 64 tokens that it goes on with."""
    from unit.frontend.models.test_gguf import network_of, real

    torch, path = pytest.importorskip("torch"), real()
    first = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411]
    with torch.inference_mode():
        network, ids = network_of(path), torch.tensor([first])
        made = network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False,
            eos_token_id=None,
        )  # fmt: skip
        want = network(made).logits[0].numpy()
    text = made[0].numpy()
    code = Stepping(import_gguf(path, Cache(128, 48, every=True)), tmp_path, KERNEL_FLAGS, False)
    for sizes in ([16, *[1] * 64], [1, 2, 3, 38, 1, 1, 34], [40, 40]):
        code.forget()
        p = 0
        for s in sizes:
            got, right = code.step(text[p : p + s], p).reshape(s, -1), want[p : p + s]
            assert np.linalg.norm(got - right) <= 2e-5 * np.linalg.norm(right), (sizes, p)
            assert np.array_equal(got.argmax(-1), right.argmax(-1))
            p += s
    code.forget()
    ids = list(first)
    logits = code.step(ids, 0)[-1]
    for _ in range(64):
        ids.append(int(logits.argmax()))
        logits = code.step(ids[-1:], len(ids) - 1).reshape(-1)
    assert ids == text.tolist()
