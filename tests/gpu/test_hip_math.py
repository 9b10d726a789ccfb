"""Every function of lumc_hip.h against numpy: the tests of lumc_dev.h, by the other header.

What stands in ``lumc_hip/functions.h`` is text of lumc and runs here as on a GPU; what the hardware
does is the emulator's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from device import every_function_of_hip
from emulator import Array, build
from gpu.test_device_math import (
    caller,
    test_floats_of_two,
    test_functions,
    test_half_precision,
    test_indices,
    test_integers,
)

__all__ = [
    "test_floats_of_two",
    "test_functions",
    "test_half_precision",
    "test_indices",
    "test_integers",
]


@pytest.fixture(scope="module")
def device(built: Path) -> Callable[..., Array]:
    return caller(build(every_function_of_hip(), built))


def bits_of(x: Array) -> Array:
    """Doubles of all exponents, and the hardest one for multiples of pi (Muller, "Elementary
    Functions", section 11.2.3)."""
    hardest = np.array([6381956970095103.0 * 2.0**797, 5319372648326541.0 * 2.0**-49])
    return np.concatenate([x.view(np.float64), hardest, -hardest])


def test_f64(device: Callable[..., Array]) -> None:
    """Of all exponents: at most 4 units of the last place."""
    rng = np.random.default_rng(1)
    x = bits_of(rng.integers(0, 1 << 64, 100_000, np.uint64))
    x = x[np.isfinite(x)]
    near = rng.uniform(-1100, 1100, 100_000)
    small = np.concatenate([near, near / 1000, near / 2**40, [0.0, -0.0]])
    with np.errstate(all="ignore"):
        for name, at, want in (
            ("sin", x, np.sin(x)),
            ("sin", small, np.sin(small)),
            ("log2", np.abs(x), np.log2(np.abs(x))),
            ("exp2", small, np.exp2(small)),
            ("exp", small, np.exp(small)),
        ):
            got = device(f"lumc_{name}_f64", at)
            unit = np.maximum(np.spacing(np.abs(want)), 2.0**-1074)
            same = (got == want) | (np.isnan(got) & np.isnan(want))
            worst = np.max(np.abs(got - want)[~same] / unit[~same], initial=0)
            assert worst <= 4, f"{name}: {worst}"


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_remainders_of_all_sizes(device: Callable[..., Array], kind: str) -> None:
    whole, real = {"f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64)}[kind]
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, np.iinfo(whole).max, 50_000, whole, True).view(real) for _ in "ab")
    least = np.finfo(real).smallest_subnormal
    a[:4], b[:4] = [1, -1, 3 * least, 0], [least, 3 * least, 2 * least, 0]
    with np.errstate(all="ignore"):
        want = np.fmod(a, b)
    got = device(f"lumc_mod_{kind}", a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    use = ~np.isnan(want)
    np.testing.assert_array_equal(got[use].view(whole), want[use].view(whole))  # and its sign
