"""The least work of kernels, against counts of points."""

import numpy as np
import pytest

from kernel_zoo import bordered_conv, conv
from lumc.kernel.bound import least_work
from lumc.kernel.normal import normalize


def inside(n: int, k: int, by: int, before: int) -> int:
    """How many of the steps of all windows of k along n elements lie within these."""
    at = np.arange(n)[:, None] + by * np.arange(k) - before
    return int(((at >= 0) & (at < n)).sum())


@pytest.mark.parametrize(("n", "k"), [(7, 3), (8, 3), (5, 5), (14, 7), (3, 9)])
def test_steps_beyond_the_border_are_no_work(n: int, k: int) -> None:
    kernel = normalize(conv(6, 4, n, n, k, k // 2, bias=False))
    steps = inside(n, k, 1, k // 2) ** 2
    assert least_work(kernel).flops == pytest.approx(2 * 6 * 4 * steps)


def test_steps_of_rows_that_lie_apart() -> None:
    kernel = normalize(bordered_conv(6, 4, 12, 9, 3, 6))
    steps = inside(12, 3, 6, 6) * inside(9, 3, 1, 1)
    assert least_work(kernel).flops == pytest.approx(2 * 6 * 4 * steps)


def test_a_window_without_a_border_is_all_work() -> None:
    kernel = normalize(conv(6, 4, 9, 9, 3, 0, bias=False))
    assert least_work(kernel).flops == 2 * 6 * 4 * 7 * 7 * 9
