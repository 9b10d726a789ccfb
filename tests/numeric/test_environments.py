"""Environments of graphs/rl as graphs: their steps are those of gymnasium, whose equations are
written here again for where it is not installed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lumc
from lumc.oracle.graph import evaluate

FOLDER = Path(__file__).parents[2] / "graphs" / "rl"
ENVIRONMENTS = runpy.run_path(str(FOLDER / "environments.py"))
N = 200
RNG = np.random.default_rng(3)
SPREAD = {"CartPole-v1": (2.5, 3.0, 0.25, 3.0), "Pendulum-v1": (8.0, 8.0)}


def stepped(name: str, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the graph, in the dtypes that it declares."""
    m = lumc.Model()
    state = m.input("state", states.shape)
    action = m.input("action", actions.shape, "bool" if actions.dtype == bool else "f32")
    step = ENVIRONMENTS["cartpole" if name == "CartPole-v1" else "pendulum"]
    new, said = step(state, action)
    m.output("new", new)
    m.output("said", said)
    given = {"state": states, "action": actions}
    out = evaluate(m.graph(), "main", given, lambda _: np.zeros(0), declared=True)[0]
    return out["new"], out["said"]


def drawn(name: str) -> tuple[np.ndarray, np.ndarray]:
    spread = np.array(SPREAD[name])
    states = RNG.uniform(-spread, spread, (N, len(spread))).astype("f4")
    right = RNG.random(N) < 0.5
    torque = RNG.uniform(-3, 3, N).astype("f4")
    return states, right if name == "CartPole-v1" else torque


def reference(name: str, gym: Any, state: np.ndarray, action: Any) -> tuple[np.ndarray, float]:
    env = gym.make(name).unwrapped
    env.reset(seed=0)
    if name == "CartPole-v1":
        env.state, env.steps_beyond_terminated = state.astype("f8"), None
        _, _, failed, _, _ = env.step(int(action))
        return np.array(env.state), failed
    env.state = state.astype("f8")
    _, reward, _, _, _ = env.step(np.array([action]))
    return np.array(env.state), reward


@pytest.mark.parametrize("name", SPREAD)
def test_steps_are_those_of_gymnasium(name: str) -> None:
    gym = pytest.importorskip("gymnasium")
    states, actions = drawn(name)
    new, said = stepped(name, states, actions)
    for i in range(N):
        want, also = reference(name, gym, states[i], actions[i])
        assert np.abs(new[i] - want).max() < 1e-6 * max(1, np.abs(want).max()), i
        edge = abs(abs(want[0]) - 2.4) < 1e-5 or abs(abs(want[-2]) - 0.20943951) < 1e-5
        assert abs(float(said[i]) - float(also)) < 1e-5 or (name == "CartPole-v1" and edge), i


def test_a_pole_and_a_pendulum_by_hand() -> None:
    states = np.array([[0.0, 0.0, 0.0, 0.0], [2.39, 1.0, 0.0, 0.0], [0.0, 0.0, 0.2, 1.0]], "f4")
    new, failed = stepped("CartPole-v1", states, np.array([True, False, True]))
    assert failed.tolist() == [False, True, True]
    pull = 10 / 1.1  # what the pole falls by: -cos * pull over its length and its share of the mass
    bent = -pull / (0.5 * (4 / 3 - 0.1 / 1.1))
    push = pull - 0.05 * bent / 1.1
    assert np.allclose(new[0], [0, 0.02 * push, 0, 0.02 * bent], atol=1e-6)
    new, reward = stepped(
        "Pendulum-v1", np.array([[np.pi, 8.0], [0.0, 0.0]], "f4"), np.ones(2, "f4")
    )
    assert np.allclose(new[0], [np.pi + 0.4, 8.0], atol=1e-5)  # no faster than 8
    assert np.allclose(reward, [-(np.pi**2 + 6.4 + 0.001), -0.001], atol=1e-5)
    assert np.allclose(new[1], [0.0075, 0.15], atol=1e-6)


def test_the_model_that_learns_is_a_graph() -> None:
    """Rollouts in numpy's order: what is kept of them fits together."""
    ppo = runpy.run_path(str(FOLDER / "ppo.py"))
    graph = ppo["build"]().graph()
    assert [(e.name, e.repeat) for e in graph.entries] == [
        ("rollout", "t"), ("look_back", "back"), ("learn", "k"), ("test", "u"),
    ]  # fmt: skip
