"""One kernel has one key and one text, whatever its axes are called in the model at hand."""

from __future__ import annotations

import random

import pytest

from kernel_zoo import FAMILIES
from lumc.kernel.key import canonical, kernel_key, renamed
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.schedule.first import default_schedule

TARGET = resolve_target("cpu:x86-64-v4")
NAMES = {family.__name__: family for family in FAMILIES}


@pytest.mark.parametrize("name", NAMES)
def test_equal_keys_mean_equal_names(name: str) -> None:
    """Records of one model hold schedules for another, and schedules name axes."""
    for n, shape in enumerate(FAMILIES[NAMES[name]][:3]):
        kernel = normalize(NAMES[name](*shape))
        others = [f"j_{i}" for i in range(len(kernel.extent))]
        random.Random(n).shuffle(others)
        twin = renamed(kernel, dict(zip(kernel.extent, others, strict=True)), {})
        (one, _), (two, _) = canonical(kernel), canonical(twin)
        if kernel_key(one, TARGET) != kernel_key(two, TARGET):
            continue  # equal coefficients in another order: searched twice, nothing worse
        assert one.roots == two.roots and one.axes == two.axes
        assert default_schedule(one, TARGET) == default_schedule(two, TARGET)
