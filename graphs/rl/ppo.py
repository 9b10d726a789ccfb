"""CartPole, learned by proximal policy optimisation (arXiv 1707.06347): environments, policy, value
and optimiser in one model, whose states are all that there is between runs.

    lumc compile graphs/rl/ppo.py --estimate -o ppo.lb
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import lumc
from lumc import Model, Tensor, random, train, where
from lumc.frontend import minus

sys.path.insert(0, str(Path(__file__).parent))
from environments import cartpole

MANY, STEPS, EPOCHS = 256, 32, 8  # environments, steps of each in a rollout, steps of learning
TESTS, LONGEST = 100, 500  # episodes of the test, steps of an episode
DISCOUNT, SMOOTHING = 0.99, 0.98
SHAPES = {
    "policy.w1": (4, 64), "policy.b1": (64,), "policy.w2": (64, 2), "policy.b2": (2,),
    "value.w1": (4, 64), "value.b1": (64,), "value.w2": (64, 1), "value.b2": (1,),
}  # fmt: skip
Weights = dict[str, Tensor]


def network(w: Weights, name: str, x: Tensor) -> Tensor:
    """f32[n, 4] -> f32[n, 2] or f32[n, 1]."""
    return (x @ w[f"{name}.w1"] + w[f"{name}.b1"]).tanh() @ w[f"{name}.w2"] + w[f"{name}.b2"]


def begin(m: Model, n: int, counter: Tensor) -> Tensor:
    """States of n new episodes, f32[n, 4], by numbers of this counter and the 4 n - 1 after it."""
    at = m.arange(n)[:, None] * 4 + m.arange(4)[None, :]
    return random.uniform(counter + at) * 0.1 - 0.05


def build() -> Model:
    rng = np.random.default_rng(0)
    m = Model()
    t, back, k = m.dim("t", 0, STEPS - 1), m.dim("back", 0, STEPS - 1), m.dim("k", 0, EPOCHS - 1)
    u = m.dim("u", 0, LONGEST - 1)
    w = Weights()
    for name, shape in SHAPES.items():
        scale = 0.0 if len(shape) == 1 else 0.5 if name.endswith("w1") else 0.1
        first = (rng.standard_normal(shape) * scale).astype("f4")
        w[name] = m.state(name, shape, value=first)
    env, age = m.state("env", (MANY, 4)), m.state("age", (MANY,), "i32")
    clock = m.state("clock", (), "i64")  # random numbers so far
    seen, took = m.state("seen", (STEPS, MANY, 4)), m.state("took", (STEPS, MANY), "bool")
    done, logp = m.state("done", (STEPS, MANY), "bool"), m.state("logp", (STEPS, MANY))
    worth = m.state("worth", (STEPS, MANY))
    gain, goal = m.state("gain", (STEPS, MANY)), m.state("goal", (STEPS, MANY))
    ahead, next_worth = m.state("ahead", (MANY,)), m.state("next_worth", (MANY,))
    ended, steps = m.state("ended", (), "i32"), m.state("steps", (), "i32")

    m.entry("rollout", repeat=t)
    scores = network(w, "policy", env).log_softmax(-1)
    right = random.uniform(clock + m.arange(MANY)) < scores[:, 1].exp()
    new, failed = cartpole(env, right)
    old = age + 1
    over = failed | (old >= LONGEST)
    m.update(seen, env, (t,))
    m.update(took, right, (t,))
    m.update(logp, where(right, scores[:, 1], scores[:, 0]), (t,))
    m.update(worth, network(w, "value", env)[:, 0], (t,))
    m.update(done, over, (t,))
    m.update(env, where(over[:, None], begin(m, MANY, clock + MANY), new))
    m.update(age, where(over, 0, old))
    m.update(clock, clock + 5 * MANY)
    m.update(ended, ended + over.to("i32").sum())
    m.update(steps, steps + where(over, old, 0).sum())

    # from the last step to the first: generalised advantages (arXiv 1506.02438)
    m.entry("look_back", repeat=back)
    row, first = minus(STEPS - 1, back), m.size(back) < 0.5
    after = where(first, network(w, "value", env)[:, 0], next_worth)
    lasts = (~done[row]).to("f32")
    surprise = 1.0 + after * lasts * DISCOUNT - worth[row]
    sum_ = surprise + where(first, 0.0, ahead) * lasts * (DISCOUNT * SMOOTHING)
    m.update(gain, sum_, (row,))
    m.update(goal, sum_ + worth[row], (row,))
    m.update(ahead, sum_)
    m.update(next_worth, worth[row])

    m.entry("learn", repeat=k)
    rate = m.input("rate", ())
    every = STEPS * MANY
    x, a = seen.reshape(every, 4), gain.reshape(every)
    a = (a - a.mean()) * (a.var() + 1e-6).rsqrt()
    scores = network(w, "policy", x).log_softmax(-1)
    ratio = (where(took.reshape(every), scores[:, 1], scores[:, 0]) - logp.reshape(every)).exp()
    better = (ratio * a).minimum(ratio.clip(0.8, 1.2) * a).mean()
    unsure = -(scores.exp() * scores).sum(-1).mean()
    off = (network(w, "value", x)[:, 0] - goal.reshape(every)) * 0.1
    loss = -better - unsure * 0.01 + off.square().mean()
    every_w = list(w.values())
    train.adam(every_w, lumc.gradients(loss, every_w), rate)
    m.output("loss", loss)

    # what was learned, without chance: all episodes of the test at once
    m.entry("test", repeat=u)
    seed = m.input("seed", (), "i64")
    tried, alive = m.state("tried", (TESTS, 4)), m.state("alive", (TESTS,), "bool")
    length = m.state("length", (TESTS,), "i32")
    first = m.size(u) < 0.5
    now = where(first, begin(m, TESTS, seed * 4 * TESTS + (1 << 40)), tried)
    on = alive | first
    scores = network(w, "policy", now)
    new, failed = cartpole(now, scores[:, 0] < scores[:, 1])
    m.update(tried, new)
    m.update(alive, on & ~failed)
    lasted = where(first, 0, length) + on.to("i32")
    m.update(length, lasted)
    m.output("length", lasted)
    return m
