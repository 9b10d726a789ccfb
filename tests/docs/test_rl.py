"""docs/rl.md: its commands, what they print, and the learned policy in gymnasium itself."""

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
from safetensors.numpy import load_file

import lumc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rl.md").read_text()


def test_the_environment_of_the_page_is_that_of_the_file() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known = (ROOT / "graphs" / "rl" / "environments.py").read_text()
    assert shown in re.sub(r'    """.*?"""\n', "", known, flags=re.DOTALL)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder where the commands of the page ran, and what the last one printed."""
    folder = tmp_path_factory.mktemp("rl")
    shutil.copytree(ROOT / "graphs" / "rl", folder / "graphs" / "rl")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    text = next(
        text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S) if not kind
    )
    said = ""
    for line in text.splitlines():
        words = shlex.split(line)
        call = words[1:] if words[0] == "python" else ["-m", *words]
        done = subprocess.run(
            [sys.executable, *call], cwd=folder, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said = done.stdout
    return folder, said


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_cartpole_is_learned(learned: tuple[Path, str]) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    pattern = re.escape(shown).replace("EPISODES", r"\d+").replace("SECONDS", r"\d+")
    assert re.fullmatch(pattern.replace("last\\ 500", r"last\ (4[7-9]\d|500)"), learned[1])


@pytest.mark.deep
def test_the_policy_balances_in_gymnasium(learned: tuple[Path, str]) -> None:
    gym = pytest.importorskip("gymnasium")
    w = load_file(learned[0] / "cartpole.safetensors")
    lasted = list[int]()
    env = gym.make("CartPole-v1")
    for episode in range(100):
        state, _ = env.reset(seed=episode)
        for n in range(1, 501):
            hidden = np.tanh(state @ w["policy.w1"] + w["policy.b1"])
            scores = hidden @ w["policy.w2"] + w["policy.b2"]
            state, _, failed, late, _ = env.step(int(scores[0] < scores[1]))
            if failed or late:
                lasted.append(n)
                break
    assert len(lasted) == 100 and np.mean(lasted) >= 475


@pytest.mark.deep
def test_what_a_rollout_keeps(learned: tuple[Path, str]) -> None:
    """Policy, value, advantages and new episodes, in numpy."""
    with lumc.load(learned[0] / "ppo.lb") as b:
        b.run({}, entry="rollout")
        b.run({}, entry="look_back")
        s = b.state()

    def network(name: str, x: np.ndarray) -> np.ndarray:
        hidden = np.tanh(x @ s[f"{name}.w1"] + s[f"{name}.b1"])
        return np.asarray(hidden @ s[f"{name}.w2"] + s[f"{name}.b2"])

    worth = network("value", s["seen"])[..., 0]
    scores = network("policy", s["seen"])
    scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    assert np.allclose(worth, s["worth"], atol=1e-5)
    assert np.allclose(np.where(s["took"], scores[..., 1], scores[..., 0]), s["logp"], atol=1e-5)
    ahead, after = np.zeros(worth.shape[1]), network("value", s["env"])[:, 0]
    for t in reversed(range(len(worth))):
        lasts = ~s["done"][t]
        ahead = 1 + 0.99 * after * lasts - worth[t] + 0.99 * 0.98 * lasts * ahead
        after = worth[t]
        assert np.allclose(ahead, s["gain"][t], atol=1e-4)
        assert np.allclose(ahead + worth[t], s["goal"][t], atol=1e-4)
    again = s["seen"][1:][s["done"][:-1]]
    assert len(again) > 10 and np.abs(again).max() <= 0.05 and again.std() > 0.02
