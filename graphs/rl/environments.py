"""Environments of gymnasium as graphs: many at once, one step. The equations are gymnasium's."""

from __future__ import annotations

import math

from lumc import Tensor, stack, where


def cartpole(state: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """CartPole-v1 by Euler steps of 0.02 s: a pole on a cart that is pushed. f32[n, 4] of place in
    m, speed, angle in radians and its speed; whether it is pushed to the right, bool[n]. The next
    states, and which of them have failed, bool[n]."""
    x, speed, angle, turning = (state[:, i] for i in range(4))
    push = where(right, 10.0, -10.0)
    sin, cos = angle.sin(), angle.cos()
    both = (push + turning * turning * sin * 0.05) * (1 / 1.1)
    bent = (sin * 9.8 - cos * both) / ((cos * cos * (-0.1 / 1.1) + 4 / 3) * 0.5)
    pulled = both - bent * cos * (0.05 / 1.1)
    new = [x + speed * 0.02, speed + pulled * 0.02, angle + turning * 0.02, turning + bent * 0.02]
    return stack(new, 1), (new[0].abs() > 2.4) | (new[2].abs() > 12 * 2 * math.pi / 360)


def pendulum(state: Tensor, torque: Tensor) -> tuple[Tensor, Tensor]:
    """Pendulum-v1: one that hangs is swung up. f32[n, 2] of the angle, 0 above, and its speed;
    the torque f32[n], of which -2 to 2 is taken. The next states, and the rewards f32[n]."""
    angle, speed = state[:, 0], state[:, 1]
    torque = torque.clip(-2.0, 2.0)
    around = (angle + math.pi).remainder(2 * math.pi) - math.pi
    cost = around * around + speed * speed * 0.1 + torque * torque * 0.001
    faster = (speed + (angle.sin() * 15.0 + torque * 3.0) * 0.05).clip(-8.0, 8.0)
    return stack([angle + faster * 0.05, faster], 1), -cost
